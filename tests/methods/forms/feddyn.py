"""FedDyn: Acar et al., ICLR 2021, Algorithm 1."""

import torch

from tests.methods.forms.world import Outcome, Weights, World, clip, mean, score, sgd, weights_of


def run(world: World, *, alpha: float = 0.01) -> Outcome:
    """Train the cohorts with the dynamic regulariser, one fit (0) per round; means are uniform.

    The server's state ``h`` is the paper's h divided by alpha. Nothing is drawn.
    """
    net = world.make()
    theta = weights_of(net)
    names = [name for name, _ in net.named_parameters()]
    h = {name: torch.zeros_like(theta[name]) for name in names}
    own: list[Weights] = [dict(h) for _ in world.clients]  # the clients' gradients, grad L_i(theta_i)
    for round, cohort in enumerate(world.cohorts):
        trained = []
        for i in cohort:
            data = world.clients[i]
            net.load_state_dict(theta)
            optimiser = sgd(world, net)
            for batch in world.batches(i, round):
                optimiser.zero_grad()
                # eq. 1: L_i(w) - <grad L_i(theta_i), w> + alpha / 2 |w - theta|^2
                loss = world.loss(net(data.x[batch]), data.y[batch])
                for name, w in net.named_parameters():
                    loss = loss - (own[i][name] * w).sum() + alpha / 2 * (w - theta[name]).square().sum()
                loss.backward()
                clip(world, net)
                optimiser.step()
            result = weights_of(net)
            own[i] = {name: own[i][name] - alpha * (result[name] - theta[name]) for name in names}
            trained.append(result)
        average = mean(trained)  # running statistics stay at this
        part = len(cohort) / len(world.clients)
        h = {name: h[name] - part * (average[name] - theta[name]) for name in names}
        theta = average | {name: average[name] - h[name] for name in names}
    net.load_state_dict(theta)
    scores = torch.stack([score(net, world.probe)] * len(world.clients))
    clients = [{"gradient": state} for state in own]
    return Outcome({"weights": theta, "h": h}, clients, {"personal": scores, "global": scores})
