"""FediOS: Gao et al., arXiv 2311.18559, Algorithm 1."""

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.methods.forms.world import Outcome, World, mean, net_of, sgd, step, weights_of


def subspaces(world: World, d: int, basis: str, rank: int | None, overflow: str) -> list[Tensor]:
    """Return P^g and the P_i^p [d, d], eq. 6: P = O O^T with r columns O of an orthonormal matrix."""
    n = len(world.clients)
    r = rank or d // (n + 1) or int(overflow == "reuse")
    if basis == "identity":
        q = torch.eye(d, dtype=torch.float64)
    else:
        q, upper = torch.linalg.qr(world.draw("basis", 0, 0, 0, 0))
        q = q * upper.diag().sign()
    if r < 1 or ((n + 1) * r > d and overflow == "error"):
        raise ValueError(f"{n + 1} subspaces of {r} dimensions do not fit into {d}.")
    fits = (n + 1) * r <= d
    blocks = [0] + [1 + (i if fits else i % (d // r - 1)) for i in range(n)]
    bases = [q[:, j * r : (j + 1) * r] for j in blocks]
    return [o @ o.T for o in bases]


def run(
    world: World,
    *,
    alpha: float = 0.5,
    lam: float = 0.1,
    basis: str = "qr",
    rank: int | None = None,
    overflow: str = "error",
    projections: bool = True,
    individual_extractor: bool = True,
    ortho_reg_on: str = "projected",
    schedule: str = "joint",
) -> Outcome:
    """Train a generic and an individual extractor and their head.

    Draws: "basis" (all places 0) [d, d], standard normal, or from U(0, 1) with ``basis="uniform"``.
    Fit 0; with ``alternating`` that of generic passes, and fit 1 that of individual ones, epoch by epoch.
    """
    weights, n = weights_of(world.make()), len(world.clients)
    d = world.make().head.in_features
    P = [torch.eye(d, dtype=torch.float64)] * (n + 1)
    if projections:
        P = subspaces(world, d, basis, rank, overflow)
    own = [{k: v for k, v in weights.items() if not k.startswith("head.")}] * n

    for round, cohort in enumerate(world.cohorts):
        trained = []
        for i in cohort:
            generic, individual = net_of(world, weights), net_of(world, weights | own[i])
            x, y, H = world.clients[i].x, world.clients[i].y, generic.head
            first, second, both = sgd(world, generic), sgd(world, individual), sgd(world, generic, individual)
            if schedule == "alternating":
                for e in range(world.epochs):
                    for b in world.order(i, round, 0)[e]:
                        loss = world.loss(H(generic.fc(generic.conv(x[b])) @ P[0]), y[b])
                        step(world, loss, first, generic)
                    for b in world.order(i, round, 1)[e] if individual_extractor else []:
                        loss = world.loss(H(individual.fc(individual.conv(x[b])) @ P[i + 1]), y[b])
                        step(world, loss, second, individual)
            for b in world.batches(i, round) if schedule == "joint" else []:
                f_g, f_p = generic.fc(generic.conv(x[b])), individual.fc(individual.conv(x[b]))
                g, p = f_g @ P[0], f_p @ P[i + 1]
                terms = [g, p, alpha * g + (1 - alpha) * p] if individual_extractor else [g]
                loss = sum(world.loss(H(phi), y[b]) for phi in terms)
                if individual_extractor and (ortho_reg_on != "projected" or not projections):  # else it is 0
                    pairs = {"projected": (g, p), "raw": (f_g, f_p), "relu": (g.relu(), p.relu())}
                    pairs["cos"] = F.normalize(f_g), F.normalize(f_p)
                    loss = loss + lam * torch.linalg.vecdot(*pairs[ortho_reg_on]).abs().mean()  # eq. 11
                step(world, loss, both, generic, individual)
            trained.append(weights_of(generic))
            if individual_extractor:
                own[i] = {k: v for k, v in weights_of(individual).items() if k in own[i]}
        weights = mean(trained, world.samples(cohort))

    with torch.no_grad():
        nets = [net_of(world, weights | w).eval() for w in [{}, *own]]
        g, *p = (net.head(net.fc(net.conv(world.probe)) @ q) for net, q in zip(nets, P))
    scores = {"generic": torch.stack([g] * n), "individual": torch.stack(p)}
    scores |= {"global": scores["generic"], "personal": scores["generic"]}
    if not individual_extractor:
        del scores["individual"]
        return Outcome({"weights": weights}, [{} for _ in own], scores)
    scores["personal"] = alpha * scores["generic"] + (1 - alpha) * scores["individual"]
    return Outcome({"weights": weights}, [{"individual": w} for w in own], scores)
