"""COPA: Wu, Gong, ICCV 2021, in the form in which Fed-CO2 (Cai et al., NeurIPS 2023) compares with it."""

import torch
from torch.nn import functional as F

from tests.methods.forms.world import Outcome, World, feature, mean, net_of, sgd, step, weights_of


def run(world: World, *, w_foreign: float = 1.0, foreign: str = "sum") -> Outcome:
    """Train the extractor through the own head and the frozen ones of all others; collect the heads.

    A round has one fit.
    """
    names = ("head.weight", "head.bias")
    start = weights_of(world.make())
    heads = [{name: start[name] for name in names} for _ in world.clients]
    weights = {name: value for name, value in start.items() if name not in names}
    for round, cohort in enumerate(world.cohorts):
        trained, collected = [], list(heads)
        for i in cohort:
            data, net = world.clients[i], net_of(world, weights | heads[i])
            others = [head for j, head in enumerate(heads) if j != i]  # of the end of the last round
            factor = w_foreign / (len(others) if foreign == "mean" else 1)
            optimiser = sgd(world, net)
            for batch in world.batches(i, round):
                y = data.y[batch]
                z = net.fc(net.conv(data.x[batch]))
                foreign_losses = [world.loss(F.linear(z, *(h[n] for n in names)), y) for h in others]
                step(world, world.loss(net.head(z), y) + factor * sum(foreign_losses), optimiser, net)
            found = weights_of(net)
            collected[i] = {name: found.pop(name) for name in names}
            trained.append(found)
        weights, heads = mean(trained), collected
    z = feature(net_of(world, weights | heads[0]), world.probe)
    scores = torch.stack([F.linear(z, *(head[name] for name in names)) for head in heads]).mean(0)
    scores = torch.stack([scores] * len(heads))  # the same for all, and in both views: heads are collected
    server = {"weights": weights, "heads": {n: torch.stack([head[n] for head in heads]) for n in names}}
    return Outcome(server, [{"head": head} for head in heads], {"personal": scores, "global": scores})
