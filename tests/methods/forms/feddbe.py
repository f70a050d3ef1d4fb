"""FedAvg+DBE: J. Zhang et al., NeurIPS 2023, Algorithm 1."""

import torch
from torch import Tensor, nn

from tests.methods.forms.world import Outcome, World, mean, net_of, score, sgd, step, weights_of


def run(world: World, *, kappa: float = 1.0, momentum: float = 0.1) -> Outcome:
    """Train as FedAvg does, with a memory b in the features and their mean drawn to the one of all clients.

    A round has one fit, the round −1 that of plain FedAvg, of which the means of features remain.
    """
    n, first = len(world.clients), world.make()
    weights, none = weights_of(first), torch.zeros(first.head.in_features, dtype=torch.float64)
    memories = [nn.ParameterList([none.clone()]) for _ in range(n)]

    def fit(i: int, round: int, net: nn.Module, memory: nn.Module, target: Tensor | None) -> Tensor:
        """Train a net and a memory; return the last running mean of the features."""
        data, m, optimiser = world.clients[i], none, sgd(world, net, memory)
        for batch in world.batches(i, round):
            z = net.fc(net.conv(data.x[batch]))
            m = (1 - momentum) * m.detach() + momentum * z.mean(0)
            if target is None:
                loss = world.loss(net.head(z), data.y[batch])
            else:
                loss = world.loss(net.head(z + memory[0]), data.y[batch])
                loss = loss + kappa / 2 * (m - target).square().mean()  # the half as on the page
            step(world, loss, optimiser, net, memory)
        return m.detach()

    unused = nn.ParameterList()
    means = [{"mean": fit(i, -1, net_of(world, weights), unused, None)} for i in range(n)]
    target = mean(means, world.samples(range(n)))["mean"]
    for round, cohort in enumerate(world.cohorts):
        trained = []
        for i in cohort:
            net = net_of(world, weights)
            fit(i, round, net, memories[i], target)
            trained.append(weights_of(net))
        weights = mean(trained, world.samples(cohort))
    net = net_of(world, weights).eval()
    with torch.no_grad():
        z = net.fc(net.conv(world.probe))
        personal = torch.stack([net.head(z + memory[0]) for memory in memories])
    logits = {"personal": personal, "global": torch.stack([score(net, world.probe)] * n)}
    clients = [{"memory": {"b": memory[0].detach()}} for memory in memories]
    return Outcome({"weights": weights, "mean": {"mean": target}}, clients, logits)
