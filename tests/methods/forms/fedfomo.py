"""FedFomo: M. Zhang et al., ICLR 2021, Section 3."""

import torch
from torch import Tensor

from tests.methods.forms.world import (
    Outcome,
    Weights,
    World,
    loss_of_samples,
    mean,
    net_of,
    score,
    stacked,
    train,
    weights_of,
)


def run(
    world: World, *, models: int = 5, epsilon: float = 0.3, epsilon_decay: float = 0.05, own: str = "always"
) -> Outcome:
    """Train from a mixture of the models that are better on the client's validation data.

    A round has one fit. ``draw("peer", client, round, 0, k)`` is whose model is drawn as k-th of those that a
    client receives, −1 where the one of the largest affinity is taken.
    """
    n, names = len(world.clients), [name for name, _ in world.make().named_parameters()]
    sent: dict[int, Weights] = {}  # what the server has
    trained = [weights_of(world.make()) for _ in range(n)]
    starts = list(trained)
    P = torch.eye(n, dtype=torch.float64) * (own == "affinity")

    def received(i: int, round: int) -> list[int]:
        left = [j % n for j in range(i + 1, i + n + (own == "affinity")) if j % n in sent]  # ties: the first
        found: list[int] = []
        while left and len(found) < models - (own == "always"):
            explores = epsilon - round * epsilon_decay > 0
            drawn = int(world.draw("peer", i, round, 0, len(found))) if explores else -1
            found.append(drawn if drawn >= 0 else max(left, key=lambda j: float(P[i, j])))
            left.remove(found[-1])
        return found

    def loss(i: int, w: Weights) -> Tensor:
        data = world.clients[i]
        x, y = (data.x_val, data.y_val) if len(data.y_val) else (data.x, data.y)
        return loss_of_samples(world, score(net_of(world, w), x), y)

    for round, cohort in enumerate(world.cohorts):
        for i in cohort:
            those = {j: sent[j] for j in received(i, round)} | ({i: trained[i]} if own == "always" else {})
            v = starts[i]
            gains = {}
            for j, w in those.items():  # eq. 3, with 10⁻⁵ as on the page
                distance = torch.sqrt(sum((w[name] - v[name]).square().sum() for name in names))
                gains[j] = (loss(i, v) - loss(i, w)) / (distance + 1e-5)
                P[i, j] += gains[j]
            better = [j for j in those if gains[j] > 0]
            if better:  # eq. 4: v + Σ share (w − v), of shares with the sum 1
                starts[i] = mean([those[j] for j in better], torch.stack([gains[j] for j in better]))
            elif own == "affinity":
                starts[i] = trained[i]
            net = net_of(world, starts[i])
            train(world, net, world.clients[i], world.batches(i, round))
            trained[i] = weights_of(net)
        sent |= {i: trained[i] for i in cohort}
    logits = torch.stack([score(net_of(world, w), world.probe) for w in trained])
    clients = [{"personal": w, "start": v} for w, v in zip(trained, starts, strict=True)]
    return Outcome({"models": stacked(sent, n), "P": {"P": P}}, clients, {"personal": logits})
