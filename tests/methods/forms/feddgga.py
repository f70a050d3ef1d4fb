"""FedDG-GA: Zhang et al., CVPR 2023."""

import torch
from torch import nn

from tests.methods.forms.world import (
    Outcome,
    Samples,
    World,
    loss_of_samples,
    mean,
    net_of,
    score,
    sgd,
    weights_of,
)
from tests.methods.forms.world import step as take_step


def badness(world: World, net: nn.Module, data: Samples, metric: str) -> float:
    """Return a net's loss or share of errors on validation data, or on training data if there are none."""
    x, y = (data.x_val, data.y_val) if len(data.y_val) else (data.x, data.y)
    scores = score(net, x)
    return float(
        loss_of_samples(world, scores, y) if metric == "loss" else (scores.argmax(1) != y).double().mean()
    )


def run(world: World, *, step: float = 0.2, metric: str = "figure", center: bool = False) -> Outcome:
    """Average by weights that follow the clients' generalisation gaps; nothing is drawn; fit 0."""
    weights, n, T = weights_of(world.make()), len(world.clients), len(world.cohorts)
    a = torch.full((n,), 1 / n, dtype=torch.float64)
    last: dict[int, float] = {}  # of each client's own model, after its last training
    for round, cohort in enumerate(world.cohorts):
        trained, gaps = [], {}
        for i in cohort:
            net, data = net_of(world, weights), world.clients[i]
            gaps[i] = badness(world, net, data, metric) - last[i] if i in last else 0.0  # as the page says
            optimiser = sgd(world, net)
            for batch in world.batches(i, round):
                take_step(world, world.loss(net(data.x[batch]), data.y[batch]), optimiser, net)
            last[i] = badness(world, net, data, metric)
            trained.append(weights_of(net))
        middle = sum(gaps.values()) / len(gaps) if center else 0.0
        gaps = {i: gap - middle for i, gap in gaps.items()}
        largest = max(map(abs, gaps.values()))
        if largest > 0:
            d = step * (1 - round / T)
            for i, gap in gaps.items():
                a[i] = (a[i] + d / n * gap / largest).clip(0, 1)
            a = a / a.sum() if a.sum() > 0 else torch.full_like(a, 1 / n)
        weights = mean(trained, a[cohort] if a[cohort].sum() > 0 else None)
    scores = torch.stack([score(net_of(world, weights), world.probe)] * n)
    clients = [
        {"badness": {"badness": torch.tensor(last[i], dtype=torch.float64)}} if i in last else {}
        for i in range(n)
    ]
    return Outcome({"weights": weights, "a": {"a": a}}, clients, {"personal": scores, "global": scores})
