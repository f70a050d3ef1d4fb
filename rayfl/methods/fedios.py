"""FediOS."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from rayfl.data import FederatedData
from rayfl.errors import Conflict
from rayfl.methods.base import Cohort, Method, Metrics
from rayfl.randomness import generator
from rayfl.settings import at_least, at_most
from rayfl.training import Batch, Client, Context, Mean, Params, Reduction, State, Training

Nets = dict[str, Params]
Basis = Literal["qr", "uniform", "identity"]
DEAD = 0.01
"""How near ln C the mean individual cross-entropy of a round is where the extractors count as dead."""
DEAD_ROUNDS = 3
"""For how many rounds in a row they must be dead at the end of a run for it to be reported."""


class FediOS(Method):
    """Two extractors on orthogonal subspaces, one head (Gao et al., arXiv 2311.18559, 2023).

    Every client has a generic extractor, which is averaged together with the head as in FedAvg, and an
    individual one, which never leaves it. Fixed projections onto mutually orthogonal subspaces of the feature
    space, one for the generic extractor and one for each client, keep apart what the two may say. Both
    projected features and their mixture pass through the one head H, and the three cross-entropies are
    minimised together (Algorithm 1).

    Deviations from the paper: its eq. 6 cannot hold for square matrices; the projections are P_j = O_j O_j^T
    for orthonormal bases O_j, [d, r], that are orthogonal to each other. With them the regulariser of eq. 11
    is zero identically, and so is its gradient; ``ortho_reg_on`` offers variants that are not. Each extractor
    is clipped by its own norm, the generic one together with the head.
    """

    alpha: Annotated[float, at_least(0), at_most(1)] = 0.5
    """Share of the generic features in the mixture."""
    lam: Annotated[float, at_least(0)] = 0.1
    """Weight of the regulariser, lambda in the paper."""
    basis: Basis = "qr"
    """The orthonormal matrix whose columns span the subspaces: from the QR decomposition of Gaussian numbers
    (``qr``) or of numbers from U(0, 1) (``uniform``), or the ``identity``.
    """
    rank: Annotated[int, at_least(1)] | None = None
    """Dimensions r of each subspace; d / (N + 1), rounded down, if not given."""
    overflow: Literal["error", "reuse"] = "error"
    """What to do if N + 1 subspaces do not fit into d dimensions: an ``error``, or ``reuse`` them, so that
    clients share subspaces, while the generic one stays apart.
    """
    projections: bool = True
    """Whether to project at all; without, the regulariser of eq. 11 is not zero."""
    individual_extractor: bool = True
    """Whether clients have an individual extractor beside the generic one."""
    ortho_reg_on: Literal["projected", "cos", "raw", "relu"] = "projected"
    """The features between which the regulariser takes the absolute inner product: after projection
    (``projected``, eq. 11), before it (``raw``), after projection and ReLU (``relu``), or before projection
    and divided by their norms (``cos``).
    """
    schedule: Literal["joint", "alternating"] = "joint"
    """One step on everything per batch (``joint``), or epochs on the generic extractor and the head that
    alternate with epochs on the individual extractor (``alternating``), which use neither mixture nor
    regulariser.
    """

    def __post_init__(self) -> None:
        if self.ortho_reg_on == "relu" and self.basis == "identity" and self.projections:
            raise Conflict(
                "method.ortho_reg_on",
                "is relu: it is zero with method.basis=identity, whose subspaces share no coordinate",
                "choose another basis, or ortho_reg_on=cos",
            )

    @property
    def views(self) -> tuple[str, ...]:
        """The models with both extractors, and each extractor alone."""
        views = ("personal", "global", "generic")
        return (*views, "individual") if self.individual_extractor else views

    # ---- projections

    def prepare(self, context: Context) -> Subspaces | None:
        """Return the subspaces; refuse a rank or a number of clients that does not fit."""
        if not self.projections:
            return None
        d = context.net.module.head.in_features
        rank, count = self._divide_dimensions(d, context.population)
        return Subspaces(self.basis, d, rank, count, context.seed)

    def _divide_dimensions(self, d: int, clients: int) -> tuple[int, int]:
        """Return the rank of each subspace and how many subspaces there are, the generic one included."""
        rank = self.rank or max(1, d // (clients + 1))
        if (clients + 1) * rank <= d:
            return rank, clients + 1
        if self.overflow == "error":
            raise Conflict(
                "method.rank",
                f"is {rank}: {clients} clients and the generic extractor need {clients + 1} orthogonal "
                f"subspaces of that rank, {(clients + 1) * rank} dimensions, but the net's features have {d}",
                "choose a smaller one, fewer clients, a net with more features, or method.overflow=reuse",
            )
        if d // rank < 2:
            raise Conflict(
                "method.rank",
                f"is {rank}: the net's features have {d} dimensions, which leaves no subspace beside the "
                f"generic one; choose a rank of at most {d // 2}",
            )
        return rank, d // rank

    # ---- what is exchanged

    def uploads(self, context: Context) -> Mapping[str, Reduction]:
        """Return the generic extractor with the head, and what is measured for the records."""
        weights: dict[str, Reduction] = {"weights": Mean()}
        return {**weights, "figures": Mean("uniform")} if self.individual_extractor else weights

    def communication_bytes(
        self, client: Client, down: State, up: Mapping[str, Any]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Count what the method needs; the figures are for the records alone."""
        return super().communication_bytes(client, down, {key: up[key] for key in up if key != "figures"})

    # ---- server

    def download(self, server: State) -> State:
        """Send the generic extractor and the head."""
        return {"weights": server["weights"]}

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        """Average, and count the latest rounds in which the individual extractors said nothing."""
        if not self.individual_extractor:
            return {"weights": up["weights"]}
        chance = math.log(len(up["weights"]["head.weight"]))
        dead = abs(up["figures"]["individual_loss"] - chance) < DEAD
        figures = {**up["figures"], "dead_rounds": server["figures"]["dead_rounds"] + 1 if dead else 0}
        return {"weights": up["weights"], "figures": figures}

    def init_server(self, context: Context) -> State:
        """Start from the common weights."""
        figures = {"figures": {"dead_rounds": 0}} if self.individual_extractor else {}
        return {"weights": context.initial, **figures}

    def server_metrics(self, context: Context, server: State) -> dict[str, float | list[float]]:
        """Return CE(H phi^p) and L_re, means over the round, and for how many rounds the former was ln C."""
        return dict(server.get("figures", {}))

    def warning(self, training: Training, data: FederatedData, metrics: Metrics) -> str | None:
        """Report that the individual extractors are dead, if they have been for the last rounds."""
        rounds = metrics.get("dead_rounds", 0)
        if not isinstance(rounds, int | float) or rounds < DEAD_ROUNDS:
            return None
        return (
            f"the individual extractors of FediOS are dead: in the last {rounds:g} rounds their "
            f"cross-entropy was within {DEAD} of ln C, that of guessing. Try a smaller method.lam, "
            "method.ortho_reg_on=cos, or more or larger steps"
        )

    # ---- client

    def init_client(self, client: Client) -> State:
        """Start the individual extractor as a copy of the generic one."""
        if not self.individual_extractor:
            return {}
        return {"own": client.initial.select(client.net.names("last_layer", "features").__contains__)}

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Train both extractors and the head (Algorithm 1)."""
        net, in_head = client.net, client.net.names("last_layer", "head")

        def generic_loss(w: Nets, batch: Batch, bases: dict[str, Tensor | None]) -> Tensor:
            """CE(H phi^g)."""
            phi = project_onto(net.features(w["generic"], batch.x), bases["generic"])
            return client.loss_of(net.head(w["generic"], phi), batch)

        def individual_loss(w: Nets, batch: Batch, bases: dict[str, Tensor | None]) -> Tensor:
            """CE(H phi^p) with H frozen."""
            phi = project_onto(net.features(w["individual"], batch.x), bases["individual"])
            frozen = w["generic"].select(in_head.__contains__).map(torch.detach)
            loss = client.loss_of(net.eval.head(frozen, phi), batch)
            w["measured"]["individual_loss"].add_(loss.detach())
            return loss

        def joint_loss(w: Nets, batch: Batch, bases: dict[str, Tensor | None]) -> Tensor:
            """CE(H phi^f) + CE(H phi^g) + CE(H phi^p) + lambda L_re."""
            a, b = (net.features(w[m], batch.x) for m in ("generic", "individual"))
            phi_g, phi_p = project_onto(a, bases["generic"]), project_onto(b, bases["individual"])
            mixed = self.alpha * phi_g + (1 - self.alpha) * phi_p
            fused, shared, own = (
                client.loss_of(net.head(w["generic"], phi), batch) for phi in (mixed, phi_g, phi_p)
            )
            overlap = self._overlap_loss(a, b, phi_g, phi_p)
            w["measured"]["individual_loss"].add_(own.detach())
            w["measured"]["overlap"].add_(overlap.detach())
            return fused + shared + own + self.lam * overlap

        bases = bases_of(client, down["weights"]["head.weight"])
        if not self.individual_extractor:
            nets = (await client.fit({"generic": down["weights"]}, generic_loss, bases)).weights
            return {"weights": nets["generic"]}, {}
        alternates = self.schedule == "alternating"
        zero = down["weights"]["head.weight"].new_zeros(())
        names = ("individual_loss",) if alternates else ("individual_loss", "overlap")
        measured = Params(dict.fromkeys(names, zero), frozenset())
        start = {"generic": down["weights"], "individual": state["own"], "measured": measured}
        fitted = await client.fit(start, (generic_loss, individual_loss) if alternates else joint_loss, bases)
        nets, steps = fitted.weights, max(1, fitted.steps // (2 if alternates else 1))
        figures = {name: value.item() / steps for name, value in nets["measured"].items()}
        return {"weights": nets["generic"], "figures": figures}, {"own": nets["individual"]}

    def _overlap_loss(self, a: Tensor, b: Tensor, phi_g: Tensor, phi_p: Tensor) -> Tensor:
        """Return L_re of features [B, d] before (a, b) and after projection: eq. 11 or a variant."""
        if self.ortho_reg_on == "cos":
            return F.cosine_similarity(a, b, dim=1).abs().mean()
        if self.ortho_reg_on == "raw":
            return (a * b).sum(1).abs().mean()
        if self.ortho_reg_on == "relu":
            phi_g, phi_p = phi_g.relu(), phi_p.relu()
        overlap = (phi_g * phi_p).sum(1).abs().mean()
        if self.ortho_reg_on == "projected" and self.projections:
            return overlap.detach()  # zero but for rounding, and so should its gradient be
        return overlap

    # ---- inference

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        """Score H phi^f, H phi^g and H phi^p; the global model is H phi^g."""
        net, w = client.net.eval, down["weights"]
        bases = bases_of(client, w["head.weight"])
        phi_g = project_onto(await client.features(w, x), bases["generic"])
        generic = net.head(w, phi_g)
        if not self.individual_extractor:
            return {"personal": generic, "global": generic, "generic": generic}
        phi_p = project_onto(await client.features(state["own"], x), bases["individual"])
        personal = net.head(w, self.alpha * phi_g + (1 - self.alpha) * phi_p)
        individual = net.head(w, phi_p)
        return {"personal": personal, "global": generic, "generic": generic, "individual": individual}


class Subspaces:
    """Orthogonal subspaces of the features, which follow from seed, N, d and r alone: nothing has to be sent.

    Args:
        basis: how they are drawn.
        d: dimensions of the features.
        rank: dimensions r of each.
        count: how many there are, the generic one included.
        seed: of the run.
    """

    def __init__(self, basis: Basis, d: int, rank: int, count: int, seed: int) -> None:
        self._draw = partial(orthonormal_matrix, basis, d, seed)
        self.rank, self.count = rank, count
        self._drawn: list[Tensor] = []  # once they are needed

    def bases(self, client: int, like: Tensor) -> dict[str, Tensor | None]:
        """Return the bases O, [d, r], of the generic and of a client's subspace.

        Args:
            client: its number.
            like: a tensor of the wanted dtype on the wanted device.
        """
        if not self._drawn:
            columns = self._draw().to(like)[:, : self.count * self.rank]
            self._drawn = [part.contiguous() for part in columns.split(self.rank, dim=1)]
        return {"generic": self._drawn[0], "individual": self._drawn[1 + client % (self.count - 1)]}


def bases_of(client: Client, like: Tensor) -> dict[str, Tensor | None]:
    """Return the bases of the generic and of a client's subspace; None where P = I."""
    subspaces: Subspaces | None = client.context.prepared
    return {"generic": None, "individual": None} if subspaces is None else subspaces.bases(client.id, like)


def project_onto(z: Tensor, basis: Tensor | None) -> Tensor:
    """Return the projection of features z, [B, d], onto the span of a basis, [d, r]: P z with P = O O^T."""
    return z if basis is None else z @ basis @ basis.mT


def orthonormal_matrix(basis: Basis, d: int, seed: int) -> Tensor:
    """Return an orthonormal matrix, float64 [d, d], the same in every process.

    Args:
        basis: ``qr`` of Gaussian numbers, ``uniform`` (QR of numbers from U(0, 1)) or ``identity``.
        d: its size.
        seed: the run's seed.
    """
    if basis == "identity":
        return torch.eye(d, dtype=torch.float64)
    draw = torch.randn if basis == "qr" else torch.rand
    random = draw(d, d, dtype=torch.float64, generator=generator(seed, "projections"))
    q, r = torch.linalg.qr(random)
    return q * r.diagonal().sign()  # the one decomposition whose R has a positive diagonal
