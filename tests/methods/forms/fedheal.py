"""FedHEAL: Chen, Huang, Ye, CVPR 2024, in the form that the specification gives it."""

import torch

from tests.methods.forms.world import Outcome, Weights, World, net_of, score, sgd, step, weights_of


def run(world: World, *, tau: float = 0.3, beta: float = 0.4) -> Outcome:
    """Train as FedAvg does; the server masks what is inconsistent and weighs clients by what is left.

    A round has one fit. What the server keeps of clients, their weights p and δ and the history, is
    stacked over all clients; it is 0 for one that has never taken part.
    """
    count = len(world.clients)
    weights = weights_of(world.make())
    trainable = [name for name, _ in world.make().named_parameters()]
    history = [{name: torch.zeros_like(value) for name, value in weights.items()} for _ in range(count)]
    before = [0] * count  # rounds in which a client has taken part
    p, delta = torch.zeros(2, count, dtype=torch.float64)
    for round, cohort in enumerate(world.cohorts):
        updates: list[Weights] = []
        for i in cohort:
            data, net = world.clients[i], net_of(world, weights)
            optimiser = sgd(world, net)
            for batch in world.batches(i, round):
                step(world, world.loss(net(data.x[batch]), data.y[batch]), optimiser, net)
            updates.append({name: value - weights[name] for name, value in weights_of(net).items()})
        masks: list[Weights] = []
        for i, update in zip(cohort, updates, strict=True):
            mask = {}
            for name, change in update.items():
                h, rises = history[i][name], (change >= 0).to(change)
                consistency = torch.where(change >= 0, h, 1 - h)  # by what was before this round
                mask[name] = (consistency > tau).to(change) if before[i] else torch.ones_like(change)
                history[i][name] = (h * before[i] + rises) / (before[i] + 1)
            masks.append(mask)
            if not before[i]:
                p[i] = 1 / len(cohort)
            before[i] += 1
        sizes = torch.stack(
            [sum((m[n] * u[n]).norm() for n in trainable) for m, u in zip(masks, updates, strict=True)]
        )
        delta[cohort] = (1 - beta) * delta[cohort] + beta * sizes / sizes.sum()
        p[cohort] = p[cohort] + delta[cohort]
        shares = p[cohort] / p[cohort].sum()
        for name in weights:  # every number has shares of its own, over the clients that it is kept from
            m = torch.stack([mask[name] for mask in masks])
            u = torch.stack([update[name] for update in updates])
            kept = shares.reshape(-1, *[1] * (m.ndim - 1)) * m
            total = kept.sum(0)
            by = (kept * u).sum(0) / torch.where(
                total > 0, total, torch.ones_like(total)
            )  # 0 if none is left
            weights[name] = weights[name] + by
    scores = torch.stack([score(net_of(world, weights), world.probe)] * count)
    server = {
        "weights": weights,
        "history": {name: torch.stack([h[name] for h in history]) for name in weights},
        "p": {"p": p},
        "delta": {"delta": delta},
    }
    return Outcome(server, [{} for _ in range(count)], {"personal": scores, "global": scores})
