"""DC-PFL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from rayfl.methods.base import Cohort, Facts, Method
from rayfl.methods.prototypes import class_means, head_step
from rayfl.settings import above, at_least
from rayfl.training import Batch, Client, Context, Gather, Params, Reduction, State, Sum

EPSILON = 1e-12
"""Added under the square root of the norm in eq. 3, whose gradient at distance 0 would be infinite."""
ROUNDING = 1e-10
"""Share of the sum of eigenvalues of a covariance below which one is taken for the rounding error of a 0."""


class DCPFL(Method):
    """Dual calibration: different extractors, one classifier (Tang et al., IJCAI 2024).

    Clients keep their extractors, which may have different architectures, and train them together with a
    copy of the global classifier. Features are drawn to the global mean of their class (auxiliary loss). What
    travels are, for each class of a client, the number, mean and covariance of its features. The server
    trains the classifier on the means, client by client, and calibrates it on virtual features, drawn from
    the Gaussian of each class over all clients.

    Deviations from the paper: the pooled covariance is exact, where eq. 11 as printed is not
    (``cov_formula=printed``). Where it is silent: 0.1 for lambda; one gradient step of the server per client,
    in an order drawn anew in each round; calibration by 10 epochs with batches of 64; features of the
    statistics come from a pass in eval mode; a class that nobody in a cohort has keeps its global mean, and
    is not calibrated. The convergence bound of the paper's section 5 is not computed.
    """

    views = ("personal",)
    facts = Facts(nets="equal_features", tasks=("classes",))

    lam: Annotated[float, at_least(0)] = 0.1
    """Weight of the distance to the global class mean, lambda in the paper. It is a norm, not a square, so
    that it pulls with the same force at every distance: large values keep the model from learning.
    """
    num_virtual: Annotated[int, at_least(1), "calibrate=False leaves it out"] = 1000
    """Virtual features that the server draws per round, M in the paper."""
    server_lr: Annotated[float, above(0)] = 0.01
    """Learning rate of the server's steps on class means; constant, whatever ``training.schedule`` is."""
    server_steps: Annotated[int, at_least(1)] = 1
    """Steps of the server on the class means of each client."""
    calibrate: bool = True
    """Whether the classifier is calibrated. Otherwise no covariances are sent."""
    calib_epochs: Annotated[int, at_least(1), "calibrate=False leaves it out"] = 10
    """Passes over the virtual features."""
    calib_batch: Annotated[int, at_least(1)] = 64
    """Virtual features per step."""
    calib_lr: Annotated[float, above(0)] = 0.01
    """Learning rate of the calibration; constant, whatever ``training.schedule`` is."""
    calib_steps: Annotated[int, at_least(1)] | None = None
    """Steps of the calibration, in place of those of ``calib_epochs``; they do not depend on the number of
    virtual features then.
    """
    clamp_virtual: bool = False
    """Whether virtual features are cut off at 0, as features after a ReLU are."""
    cov_formula: Literal["pooled", "printed"] = "pooled"
    """``pooled`` is the covariance over all clients; ``printed`` weighs the clients' covariances by n instead
    of n - 1, as eq. 11 does.
    """
    absent: Literal["skip", "reuse", "mask"] = "skip"
    """What becomes of classes that nobody in a cohort has: ``skip`` draws no virtual features of them;
    ``reuse`` draws them from what was last known; ``mask`` skips them, and leaves their scores out of the
    loss of the calibration, which would otherwise unlearn them.
    """
    min_class_count: Annotated[int, at_least(1)] = 1
    """Smallest number of samples of a class of which a client sends statistics."""
    eval_head: Literal["local", "global"] = "local"
    """Clients are scored with the classifier that they have trained (``local``), or with the newest
    ``global`` one.
    """
    init: Literal["common", "independent"] = "common"
    """Extractors of one architecture start from common weights (``common``), or each from its own
    (``independent``).
    """

    # ---- what is exchanged

    def uploads(self, context: Context) -> Mapping[str, Reduction]:
        """Return class means, which the server needs one by one, and each class's centred second moments.

        With the means at hand, sums of the moments make the covariances: no client's own is needed.
        """
        classes = context.net.module.head.out_features if self.calibrate else 0
        return {"means": Gather(replaces=False), **{_scatter_of(c): Sum() for c in range(classes)}}

    def communication_bytes(
        self, client: Client, down: State, up: Mapping[str, Any]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Count the known global means, and numbers, means and (symmetric) covariances of the own classes.

        All at the width of the weights; the server pools in float64.
        """
        d, width = down["means"].shape[1], down["means"].element_size()
        owned, known = len(up["means"]["classes"]), int(down["known"].sum())
        received = {"head": width * down["head"].numel(), "means": width * known * d}
        sent = {"counts": width * owned, "means": width * owned * d}
        if self.calibrate:
            sent["covariances"] = width * owned * d * (d + 1) // 2
        return received, sent

    # ---- client

    def init_client(self, client: Client) -> State:
        """Start the extractor from the common weights, or from its own."""
        return {"weights": client.initial if self.init == "common" else client.random_weights()}

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Train extractor and classifier from the global classifier; compute the class statistics."""
        net = client.net

        def loss(w: Params, batch: Batch, target: dict[str, Tensor]) -> Tensor:
            """Eq. 3: cross-entropy + lambda * distance, which is 0 for classes without a global mean."""
            z = net.features(w, batch.x)
            square = (z - target["means"][batch.y]).square().sum(1)
            distance = (square + EPSILON).sqrt() * target["known"][batch.y]
            return client.loss_of(net.head(w, z), batch) + self.lam * distance.mean()

        def centred_moments(w: Params, batch: Batch, mean: Tensor) -> Tensor:
            z = net.eval.features(w, batch.x).double() - mean
            return z.T @ z

        target = {"means": down["means"], "known": down["known"]}
        w = (await client.fit(state["weights"].merge(down["head"]), loss, target)).weights

        counts = client.class_counts
        classes = (counts >= self.min_class_count).nonzero().flatten()
        mean = await class_means(client, w, net.eval.features, torch.float64)  # eq. 6
        n = counts[classes]
        up: dict[str, Any] = {"means": {"classes": classes, "counts": n, "mean": mean[classes]}}
        if self.calibrate:
            for c, share in zip(classes.tolist(), self._moment_weight(n).tolist(), strict=True):
                moments = await client.total(centred_moments, w, mean[c], of_class=c)  # eq. 7
                up[_scatter_of(c)] = share * pack_symmetric(moments)
        return up, {"weights": w}

    def _moment_weight(self, n: Tensor) -> Tensor:
        """Return what a client's centred second moments count in the pooled ones; of one sample, nothing."""
        n = n.double()
        return n / (n - 1).clamp(min=1) * (n > 1) if self.cov_formula == "printed" else (n > 1).double()

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        """Score the own extractor with its classifier."""
        w = state["weights"] if self.eval_head == "local" else state["weights"].merge(down["head"])
        return {"personal": await client.eval(w, x)}

    # ---- server

    def init_server(self, context: Context) -> State:
        """Start from the common classifier, without class means."""
        head = context.head_part(context.initial)
        means = torch.zeros_like(head["head.weight"])  # [classes, d], as many as the head has inputs
        known = torch.zeros(len(means), dtype=torch.bool)
        server: State = {"head": head, "means": means, "known": known}
        return server | ({"statistics": {}} if self.calibrate and self.absent == "reuse" else {})

    def download(self, server: State) -> State:
        """Send the classifier and the class means."""
        return {key: server[key] for key in ("head", "means", "known")}

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        """Train the classifier on the clients' means, pool the statistics, calibrate (Algorithm 1)."""
        head = self._train_on_means(server["head"], list(up["means"].values()), cohort)
        statistics = pool_statistics(up)
        means, known = server["means"].clone(), server["known"].clone()
        for c, of_class in statistics.items():
            means[c], known[c] = of_class["mean"].to(means.dtype), True
        if not self.calibrate:
            return {"head": head, "means": means, "known": known}
        masked = known.new_ones(len(known))
        masked[list(statistics)] = False
        kept: State = {}
        if self.absent == "reuse":
            statistics = dict(sorted({**server["statistics"], **statistics}.items()))
            kept = {"statistics": statistics}
        if statistics:
            head = self._calibrate(head, statistics, masked if self.absent == "mask" else None, cohort)
        return {"head": head, "means": means, "known": known, **kept}

    def _train_on_means(self, head: Params, sent: Sequence[dict[str, Tensor]], cohort: Cohort) -> Params:
        """Train on one client's class means after the other (eq. 8 and 9)."""
        order = torch.randperm(len(sent), generator=cohort.context.generator("order", cohort.round))
        for k in order.tolist():
            classes, means = sent[k]["classes"], sent[k]["mean"].to(head["head.weight"].dtype)
            for _ in range(self.server_steps if len(classes) else 0):
                head = head_step(cohort.context.net, head, means, classes, self.server_lr)
        return head

    def _calibrate(
        self, head: Params, statistics: dict[int, State], masked: Tensor | None, cohort: Cohort
    ) -> Params:
        """Train on virtual features of all classes (eq. 12)."""
        context, round = cohort.context, cohort.round
        z, y = self.virtual_features(statistics, context.generator("virtual", round))
        z = z.to(head["head.weight"].dtype)
        steps = self.calib_steps or self.calib_epochs * -(-len(y) // self.calib_batch)
        for some in islice(
            _endless_batches(len(y), self.calib_batch, context.generator("calibration", round)), steps
        ):
            head = head_step(context.net, head, z[some], y[some], self.calib_lr, masked)
        return head

    def virtual_features(self, statistics: dict[int, State], draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw features from the Gaussian of each class, as many as the class has its share of samples.

        Args:
            statistics: as ``pool_statistics`` returns them.
            draw: what they are drawn from.

        Returns:
            Features, float64 [M, d], and classes, int64 [M].
        """
        sizes = largest_remainder(self.num_virtual, [s["count"] for s in statistics.values()])
        features = []
        for of_class, size in zip(statistics.values(), sizes, strict=True):
            mean = of_class["mean"]
            if size:
                noise = torch.randn(size, len(mean), generator=draw, dtype=torch.float64)
                root = symmetric_root(unpack_symmetric(of_class["covariance"], len(mean)))
                features.append(mean + noise @ root)
        z = torch.cat(features)
        y = torch.tensor(list(statistics)).repeat_interleave(torch.tensor(sizes))
        return z.clamp(min=0) if self.clamp_virtual else z, y


def _scatter_of(c: int) -> str:
    """Return the upload key of a class's centred second moments."""
    return f"scatter/{c}"


def _endless_batches(n: int, size: int, order: torch.Generator) -> Iterator[Tensor]:
    """Yield the batches of epoch after epoch, each in a new order, without end."""
    while True:
        yield from torch.randperm(n, generator=order).split(size)


def pool_statistics(up: Mapping[str, Any]) -> dict[int, State]:
    """Return the statistics of every class over all clients' samples (eq. 11, made exact).

        (n - 1) Sigma = sum_k S_k + sum_k n_k (mu_k - mu)(mu_k - mu)^T

    with S_k the centred second moments of client k's samples. Nothing in it cancels.

    Args:
        up: the combined uploads; without second moments there are no covariances.

    Returns:
        Class, ascending -> ``count``, ``mean`` [d], and the upper triangle of ``covariance``,
        [d (d + 1) / 2], in float64; the covariance of a single sample is 0.
    """
    rows: dict[int, list[tuple[int, Tensor]]] = {}
    for sent in up["means"].values():
        for c, n, mean in zip(sent["classes"].tolist(), sent["counts"].tolist(), sent["mean"], strict=True):
            rows.setdefault(c, []).append((n, mean))
    pooled: dict[int, State] = {}
    for c in sorted(rows):
        n_k = torch.tensor([n for n, _ in rows[c]], dtype=torch.float64)
        mu_k = torch.stack([mean for _, mean in rows[c]])
        count = sum(n for n, _ in rows[c])
        mu = n_k @ mu_k / count
        pooled[c] = {"count": count, "mean": mu}
        if _scatter_of(c) in up:
            between = pack_symmetric((n_k[:, None] * (mu_k - mu)).T @ (mu_k - mu))
            pooled[c]["covariance"] = (up[_scatter_of(c)] + between * (count > 1)) / max(1, count - 1)
    return pooled


def largest_remainder(total: int, counts: Sequence[int]) -> list[int]:
    """Divide a whole in proportion to counts; ties of the largest remainder go to the earlier one."""
    every = sum(counts)
    sizes = [total * n // every for n in counts]
    left = total - sum(sizes)
    for k in sorted(range(len(counts)), key=lambda k: -(total * counts[k] % every))[:left]:
        sizes[k] += 1
    return sizes


def symmetric_root(covariance: Tensor) -> Tensor:
    """Return the symmetric positive semi-definite square root of such a matrix, [d, d].

    A root that used the eigenvectors alone would depend on their signs, which are arbitrary. Rows without
    variance, of units that are never active, are left out of the decomposition: that is exact, and most are.
    Eigenvalues that are 0 but for ``ROUNDING`` count as 0: their roots would be far larger than the rounding.
    """
    active = (covariance.diagonal() > 0).nonzero()
    values, vectors = torch.linalg.eigh(covariance[active, active.T])
    values = values.where(values > ROUNDING * values.sum(), 0)
    root = torch.zeros_like(covariance)
    root[active, active.T] = (vectors * values.sqrt()) @ vectors.T
    return root


def pack_symmetric(matrices: Tensor) -> Tensor:
    """Return the upper triangles, [..., d (d + 1) / 2], of symmetric matrices, [..., d, d]."""
    d = matrices.shape[-1]
    i, j = torch.triu_indices(d, d, device=matrices.device)
    return matrices[..., i, j]


def unpack_symmetric(triangle: Tensor, d: int) -> Tensor:
    """Return the symmetric matrix, [d, d], of an upper triangle."""
    i, j = torch.triu_indices(d, d)
    matrix = triangle.new_zeros(d, d)
    matrix[i, j] = triangle
    matrix[j, i] = triangle
    return matrix
