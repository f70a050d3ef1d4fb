"""Per-FedAvg: Fallah, Mokhtari and Ozdaglar, NeurIPS 2020, Algorithm 1, first-order and Hessian-free."""

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn

from tests.methods.forms.world import Outcome, World, clip, load, mean, net_of, score, sgd, weights_of


def slope(world: World, net: nn.Module, x: Tensor, y: Tensor) -> Sequence[Tensor]:
    """Return ∇f(w) on some samples. The pass renews the net's running statistics."""
    return torch.autograd.grad(world.loss(net(x), y), list(net.parameters()))


def moved(net: nn.Module, direction: Sequence[Tensor], by: float) -> nn.Module:
    """Return a copy of a net, moved along a direction."""
    found = deepcopy(net)
    with torch.no_grad():
        for p, d in zip(found.parameters(), direction, strict=True):
            p += by * d
    return found


def run(
    world: World, *, alpha: float = 0.01, hessian: str = "none", delta: float = 0.001, step_samples: int = 0
) -> Outcome:
    """Train w for what one step makes of it; every client takes this step before it is scored.

    A round has one fit. ``draw("step", client, rounds)`` are the samples of the step before scoring, if not
    all.
    """
    weights, parts = weights_of(world.make()), 3 if hessian == "differences" else 2
    for round, cohort in enumerate(world.cohorts):
        trained = []
        for i in cohort:
            x, y, net = world.clients[i].x, world.clients[i].y, net_of(world, weights)
            optimiser = sgd(world, net)
            for batch in world.batches(i, round):
                d = batch.tensor_split(parts) if len(batch) >= 2 * parts else [batch] * parts  # D, D′, D″
                v = moved(net, slope(world, deepcopy(net), x[d[0]], y[d[0]]), -alpha)
                g = slope(world, v, x[d[1]], y[d[1]])
                load(net, dict(v.named_buffers()))  # only this pass renews statistics, as the page says
                if hessian == "differences":  # g − α ∇²f(w) g
                    ahead, behind = (
                        slope(world, moved(net, g, by), x[d[2]], y[d[2]]) for by in (delta, -delta)
                    )
                    g = [s - alpha * (a - b) / (2 * delta) for s, a, b in zip(g, ahead, behind, strict=True)]
                for p, s in zip(net.parameters(), g, strict=True):
                    p.grad = s
                clip(world, net)
                optimiser.step()
            trained.append(weights_of(net))
        weights = mean(trained)  # uniform
    personal = []
    for i, data in enumerate(world.clients):
        chosen = world.draw("step", i, len(world.cohorts)) if step_samples else torch.arange(len(data.y))
        net = net_of(world, weights)
        ahead = slope(world, net, data.x[chosen], data.y[chosen])  # it renews statistics, as the page says
        personal.append(score(moved(net, ahead, -alpha), world.probe))
    common = torch.stack([score(net_of(world, weights), world.probe)] * len(personal))
    logits = {"personal": torch.stack(personal), "global": common}
    return Outcome({"weights": weights}, [{} for _ in personal], logits)
