"""DC-PFL: Tang et al., IJCAI 2024, Algorithm 1."""

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.methods.forms.world import Outcome, World, net_of, score, sgd, step, weights_of

Statistics = tuple[int, Tensor, Tensor]  # number n, mean [d] and covariance [d, d] of features of a class


def statistics(z: Tensor, y: Tensor, smallest: int) -> dict[int, Statistics]:
    """Return the statistics of every class of a client, eq. 6 and 7."""
    own = {c: z[y == c] for c in y.unique().tolist() if (y == c).sum() >= smallest}
    around = {c: f - f.mean(0) for c, f in own.items()}
    return {c: (len(f), own[c].mean(0), f.T @ f / max(len(f) - 1, 1)) for c, f in around.items()}


def pool(each: list[Statistics], formula: str) -> Statistics:
    """Return the statistics of the samples of several clients together, eq. 10 and 11."""
    n = sum(k for k, _, _ in each)
    mean = sum(k * m for k, m, _ in each) / n
    own = sum((k - (formula == "pooled")) * v for k, _, v in each)
    return n, mean, (own + sum(k * torch.outer(m - mean, m - mean) for k, m, _ in each)) / max(n - 1, 1)


def virtual(known: dict[int, Statistics], noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return features from the Gaussians of the classes, in proportion to their samples, and labels."""
    n, total = len(noise), sum(k for k, _, _ in known.values())
    whole = [c for c in known for _ in range(n * known[c][0] // total)]  # then by largest remainder
    others = sorted(known, key=lambda c: (-(n * known[c][0] % total), c))[: n - len(whole)]
    y = torch.tensor(sorted(whole + others))
    z = torch.empty_like(noise)
    for c, (_, mean, covariance) in known.items():
        values, U = torch.linalg.eigh(covariance)
        roots = torch.where(values > 1e-10 * values.sum(), values, 0).clamp(min=0).sqrt()
        z[y == c] = mean + noise[y == c] @ (U * roots) @ U.T
    return z, y


def run(
    world: World,
    *,
    lam: float = 0.1,
    server_lr: float = 0.01,
    server_steps: int = 1,
    calibrate: bool = True,
    calib_epochs: int = 10,
    calib_batch: int = 64,
    calib_lr: float = 0.01,
    cov_formula: str = "pooled",
    absent: str = "skip",
    min_class_count: int = 1,
    eval_head: str = "local",
) -> Outcome:
    """Train extractors with a common classifier that the server calibrates.

    Draws, all at (0, round, 0, step): "order", step 0, the order of a round's cohort as places in it [S];
    "virtual", step 0, standard normal [M, d], by class ascending, with M the page's ``num_virtual``;
    "shuffle", step e, the order of the virtual features in epoch e [M]. Fit 0.
    """
    own, head = [weights_of(world.make())] * len(world.clients), weights_of(world.make().head)
    known: dict[int, Statistics] = {}
    for round, cohort in enumerate(world.cohorts):
        sent = []
        for i in cohort:
            net = net_of(world, own[i] | {f"head.{k}": v for k, v in head.items()})
            optimiser, data = sgd(world, net), world.clients[i]
            for batch in world.batches(i, round):
                z, y = net.fc(net.conv(data.x[batch])), data.y[batch]
                pairs = [(f, known[c][1]) for f, c in zip(z, y.tolist()) if c in known]
                pulls = sum(torch.sqrt(((f - mu) ** 2).sum() + 1e-12) for f, mu in pairs)  # eq. 3
                step(world, world.loss(net.head(z), y) + lam * pulls / len(y), optimiser, net)
            own[i] = weights_of(net)
            with torch.no_grad():
                z = net.eval().fc(net.conv(data.x))
            sent.append(statistics(z, data.y, min_class_count))
        g = world.make().head
        g.load_state_dict(head)
        optimiser = torch.optim.SGD(g.parameters(), server_lr)
        for k in world.draw("order", 0, round, 0, 0).tolist():
            for _ in range(server_steps if sent[k] else 0):  # eq. 8 and 9
                means = torch.stack([mean for _, mean, _ in sent[k].values()])
                step(world, F.cross_entropy(g(means), torch.tensor(list(sent[k]))), optimiser)
        present = {c: pool([s[c] for s in sent if c in s], cov_formula) for c in {c for s in sent for c in s}}
        known |= present
        if calibrate and present:
            z, y = virtual(known if absent == "reuse" else present, world.draw("virtual", 0, round, 0, 0))
            columns = torch.tensor(sorted(present)) if absent == "mask" else torch.arange(world.classes)
            optimiser = torch.optim.SGD(g.parameters(), calib_lr)
            orders = [world.draw("shuffle", 0, round, 0, e) for e in range(calib_epochs)]
            for batch in (b for order in orders for b in order.split(calib_batch)):  # eq. 12
                labels = torch.searchsorted(columns, y[batch])
                step(world, F.cross_entropy(g(z[batch])[:, columns], labels), optimiser)
        head = weights_of(g)
    newest = {f"head.{k}": v for k, v in head.items()} if eval_head == "global" else {}
    scores = torch.stack([score(net_of(world, w | newest), world.probe) for w in own])
    means = {str(c): known[c][1] for c in sorted(known)}
    return Outcome({"head": head, "means": means}, [{"personal": w} for w in own], {"personal": scores})
