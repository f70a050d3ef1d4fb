"""FedPer: Arivazhagan et al., arXiv 1912.00818, 2019, Algorithms 1 and 2."""

import torch

from tests.methods.forms.world import Outcome, World, clip, mean, score, sgd, weights_of


def run(world: World, *, personal: str = "last_layer") -> Outcome:
    """Train the cohorts, one fit (0) per round; the server averages the base layers, by samples.

    Nothing is drawn.
    """
    parts = ("head.",) if personal == "last_layer" else ("fc.", "head.")  # W_P; all else is W_B
    net = world.make()
    base = {name: value for name, value in weights_of(net).items() if not name.startswith(parts)}
    own = [{n: v for n, v in weights_of(net).items() if n.startswith(parts)} for _ in world.clients]
    for round, cohort in enumerate(world.cohorts):
        trained = []
        for i in cohort:
            data = world.clients[i]
            net.load_state_dict(base | own[i])
            optimiser = sgd(world, net)
            for batch in world.batches(i, round):
                optimiser.zero_grad()
                world.loss(net(data.x[batch]), data.y[batch]).backward()
                clip(world, net)
                optimiser.step()
            result = weights_of(net)
            own[i] = {name: result[name] for name in own[i]}
            trained.append({name: result[name] for name in base})
        base = mean(trained, world.samples(cohort))
    scores = []
    for classifier in own:
        net.load_state_dict(base | classifier)
        scores.append(score(net, world.probe))
    clients = [{"personal": classifier} for classifier in own]
    return Outcome({"weights": base}, clients, {"personal": torch.stack(scores)})
