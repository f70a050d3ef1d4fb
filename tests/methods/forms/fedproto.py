"""FedProto: Y. Tan et al., AAAI 2022, Algorithm 1."""

import torch
from torch import Tensor

from tests.methods.forms.world import (
    Outcome,
    World,
    class_means,
    feature,
    net_of,
    score,
    sgd,
    step,
    weights_of,
)


def run(
    world: World, *, lam: float = 1.0, predict: str = "prototype", prototype_weights: str = "uniform"
) -> Outcome:
    """Train each client's model, its features pulled to global prototypes; the server averages prototypes.

    A round has one fit. With ``predict="prototype"`` scores are −‖z − P‖, and −∞ for a class without P.
    Rows of classes without a prototype are zeros.
    """
    first = world.make()
    personal = [weights_of(first) for _ in world.clients]
    prototypes = torch.zeros(world.classes, first.head.in_features, dtype=torch.float64)
    known = torch.zeros(world.classes, dtype=torch.bool)
    for round, cohort in enumerate(world.cohorts):
        sums, shares = torch.zeros_like(prototypes), torch.zeros(world.classes, dtype=torch.float64)
        for i in cohort:
            data, net = world.clients[i], net_of(world, personal[i])
            optimiser = sgd(world, net)
            for batch in world.batches(i, round):
                y = data.y[batch]
                z = net.fc(net.conv(data.x[batch]))
                # eq. 7, with the mean over batch and features; samples without a prototype count as 0.
                pull = ((z - prototypes[y]).square() * known[y][:, None]).mean()
                step(world, world.loss(net.head(z), y) + lam * pull, optimiser, net)
            personal[i] = weights_of(net)
            means, counts = class_means(feature(net, data.x), data.y, world.classes)  # eq. 3
            share = counts if prototype_weights == "counts" else (counts > 0).to(counts)
            sums, shares = sums + share[:, None] * means, shares + share
        now = shares > 0  # a class that nobody here owns keeps its prototype
        prototypes = torch.where(now[:, None], sums / shares.clamp(min=1)[:, None], prototypes)  # eq. 6
        known = known | now

    def scores(net: torch.nn.Module) -> Tensor:
        if predict == "head" or not known.any():
            return score(net, world.probe)
        distances = torch.linalg.vector_norm(feature(net, world.probe)[:, None] - prototypes, dim=2)  # eq. 4
        return -distances.masked_fill(~known, torch.inf)

    logits = torch.stack([scores(net_of(world, w)) for w in personal])
    server = {"prototypes": {"prototypes": prototypes}}
    return Outcome(server, [{"personal": w} for w in personal], {"personal": logits})
