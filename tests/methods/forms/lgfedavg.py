"""LG-FedAvg: Liang et al., arXiv 2001.01523, 2020, Algorithm 1, without auxiliary losses."""

import torch

from tests.methods.forms.world import Outcome, World, clip, mean, score, sgd, weights_of


def run(world: World, *, p: int = 2) -> Outcome:
    """Train the cohorts, one fit (0) per round; the server averages the last `p` parameters, by samples.

    BatchNorm's running statistics stay with the client. Nothing is drawn.
    """
    net = world.make()
    names = [name for name, _ in net.named_parameters()][-p:]
    start = weights_of(net)
    shared = {name: start[name] for name in names}
    own = [{name: value for name, value in start.items() if name not in names} for _ in world.clients]
    for round, cohort in enumerate(world.cohorts):
        trained = []
        for i in cohort:
            data = world.clients[i]
            net.load_state_dict(shared | own[i])
            optimiser = sgd(world, net)
            for batch in world.batches(i, round):
                optimiser.zero_grad()
                world.loss(net(data.x[batch]), data.y[batch]).backward()
                clip(world, net)
                optimiser.step()
            result = weights_of(net)
            own[i] = {name: result[name] for name in own[i]}
            trained.append({name: result[name] for name in shared})
        shared = mean(trained, world.samples(cohort))
    scores = []
    for local in own:
        net.load_state_dict(shared | local)
        scores.append(score(net, world.probe))
    return Outcome(
        {"weights": shared}, [{"personal": local} for local in own], {"personal": torch.stack(scores)}
    )
