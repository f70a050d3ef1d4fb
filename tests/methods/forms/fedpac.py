"""FedPAC: Xu, Tong and Huang, ICLR 2023, Algorithm 1."""

from itertools import combinations

import torch
from torch import Tensor, nn

from tests.methods.forms.world import (
    Outcome,
    World,
    class_means,
    feature,
    mean,
    net_of,
    score,
    sgd,
    stacked,
    step,
    weights_of,
)


def weights_of_heads(i: int, h: Tensor, v: Tensor) -> Tensor:
    """Return what minimises Σ α_j² v_j + ‖Σ α_j (h_i − h_j)‖², α ≥ 0 with sum 1, the best of all supports."""
    n, off = len(v), (h[i] - h).flatten(1)
    Q, found = v.diag() + off @ off.T, []
    for support in (list(s) for size in range(1, n + 1) for s in combinations(range(n), size)):
        system = torch.ones(len(support) + 1, len(support) + 1, dtype=torch.float64)
        system[:-1, :-1], system[-1, -1] = Q[support][:, support], 0
        solved = torch.linalg.solve(system, torch.eye(len(system), dtype=torch.float64)[-1])[:-1]
        if (solved >= 0).all():
            found.append(torch.zeros(n, dtype=torch.float64).index_add_(0, torch.tensor(support), solved))
    return min(found, key=lambda alpha: float(alpha @ Q @ alpha))


def run(
    world: World,
    *,
    lam: float = 1.0,
    head_epochs: int = 1,
    head_lr: float | None = 0.1,
    collaborate: bool = True,
    least_weight: float = 0.0,
) -> Outcome:
    """Train heads, then the common extractor near class centroids; the server mixes heads for each client.

    Fits in a round: 0 the head, of which no more than `head_epochs` epochs are used, 1 the extractor.
    """
    first, n = world.make(), len(world.clients)
    names = [name for name in weights_of(first) if name.startswith("head.")]
    body = {name: value for name, value in weights_of(first).items() if name not in names}
    own = [{name: weights_of(first)[name] for name in names} for _ in range(n)]  # trained
    mixed = list(own)
    centroids = torch.zeros(world.classes, first.head.in_features, dtype=torch.float64)
    known = torch.zeros(world.classes, dtype=torch.bool)
    for round, cohort in enumerate(world.cohorts):
        bodies, h, v = [], [], []
        sums, counts = torch.zeros_like(centroids), torch.zeros(world.classes, dtype=torch.float64)
        for i in cohort:
            data, net = world.clients[i], net_of(world, body | mixed[i])
            z = feature(net, data.x)
            means, sizes = class_means(z, data.y, world.classes)
            h.append(means * (sizes / len(data.y))[:, None])
            v.append((z.square().sum(1).mean() - h[-1].square().sum()) / len(data.y))

            optimiser = sgd(world, net.head)
            optimiser.param_groups[0]["lr"] = head_lr or world.lr
            for batch in (batch for epoch in world.order(i, round, 0)[:head_epochs] for batch in epoch):
                step(world, world.loss(net.head(z[batch]), data.y[batch]), optimiser, net.head)

            net.head.requires_grad_(False)
            extractor = nn.Sequential(net.conv, net.fc)
            optimiser = sgd(world, extractor)
            near = torch.where(known[:, None], centroids, means)
            for batch in world.batches(i, round, 1):
                y, z = data.y[batch], extractor(data.x[batch])
                pull = (z - near[y]).square().mean() if known.any() else 0
                step(world, world.loss(net.head(z), y) + lam * pull, optimiser, extractor)
            result = weights_of(net)
            own[i] = {name: result[name] for name in names}
            bodies.append({name: result[name] for name in body})
            means, sizes = class_means(feature(net, data.x), data.y, world.classes)
            sums, counts = sums + sizes[:, None] * means, counts + sizes
        body = mean(bodies, world.samples(cohort))
        now = counts > 0  # a class that nobody here has keeps its centroid
        centroids = torch.where(now[:, None], sums / counts.clamp(min=1)[:, None], centroids)
        known = known | now
        for place, i in enumerate(cohort):
            alpha = weights_of_heads(place, torch.stack(h), torch.stack(v))
            alpha = alpha * ((alpha >= least_weight) | (alpha == alpha.max()))
            mixed[i] = mean([own[j] for j in cohort], alpha) if collaborate else own[i]
    logits = torch.stack([score(net_of(world, body | head), world.probe) for head in mixed])
    server = {"weights": body, "centroids": {"centroids": centroids}}
    if collaborate:
        change = {i: {name: mixed[i][name] - own[i][name] for name in names} for i in range(n)}
        server["change"] = stacked(change, n)
    return Outcome(server, [{"personal": head} for head in own], {"personal": logits})
