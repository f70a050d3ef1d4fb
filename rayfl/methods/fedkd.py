"""FedKD."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rayfl.methods.base import Facts, Method
from rayfl.nets import Architecture
from rayfl.randomness import generator
from rayfl.settings import above, at_most
from rayfl.training import Batch, Client, Context, Mean, Params, Reduction, State

LEAST_LOSS = 0.01
"""Least sum of cross-entropies that distillation is divided by: confident models would make it infinite."""


class FedKD(Method):
    """Communication-efficient federated learning via knowledge distillation (Wu et al., Nature Communications
    13:2032, 2022).

    Every client has a mentor of its own, and trains it together with a shared mentee: each learns from the
    labels, from what the other predicts, and from its features. Mentees are averaged; what a client has
    changed of its mentee travels as truncated singular value decompositions.

    Deviations from the paper: it distils attention maps of transformers besides, which other nets have not;
    it compresses what the server sends, too. Kernels of convolutions are matrices (out, in x height x width).
    """

    facts = Facts(averaging="uniform", nets="any", uses_rounds=True)

    T_start: Annotated[float, above(0), at_most(1)] = 0.95
    """Share of the energy (sum of squared singular values) of a matrix that is sent in the first round."""
    T_end: Annotated[float, above(0), at_most(1)] = 0.98
    """Share in the last round; between them it grows evenly."""
    mentee: Architecture | str | None = None
    """The net of the mentee; that of the clients if not given, the first one where they have several."""

    def uploads(self, context: Context) -> Mapping[str, Reduction]:
        """Return the mentee as the server rebuilds it, and the ranks of what was sent of its matrices."""
        return {"weights": Mean(), "ranks": Mean("uniform")}

    def init_server(self, context: Context) -> State:
        """Start from the common weights of the mentee's net."""
        return {"weights": context.initial if self.mentee is None else context.initial_of("mentee")}

    def download(self, server: State) -> State:
        """Send the mentee."""
        return {"weights": server["weights"]}

    def init_client(self, client: Client) -> State:
        """Start the mentor and the map from the mentee's features to the mentor's from its own numbers."""
        own, common = (net.module.head.in_features for net in (client.net, client.nets["mentee"]))
        draw = generator(client.context.seed, "mentee to mentor", client.id)
        numbers = (2 * torch.rand(own, common, generator=draw) - 1) / math.sqrt(common)
        mapping = Params({"weight": numbers.to(next(iter(client.initial.values())))}, frozenset({"weight"}))
        return {"mentor": client.random_weights(), "map": mapping}

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Train mentor and mentee by each other (eq. 1 to 6), and compress what the mentee has changed."""
        net, mentee_net = client.net, client.nets["mentee"]

        def loss(w: dict[str, Params], batch: Batch, extra: None) -> Tensor:
            z = net.features(w["mentor"], batch.x)
            z_mentee = mentee_net.features(w["mentee"], batch.x)
            own, common = net.head(w["mentor"], z), mentee_net.head(w["mentee"], z_mentee)
            task, task_mentee = client.loss_of(own, batch), client.loss_of(common, batch)
            # The worse both are, the less they teach.
            unsure = (task + task_mentee).detach().clamp(min=LEAST_LOSS)
            mapping = w["map"]["weight"].T
            taught = client.task.divergence(common, own) + F.mse_loss(z, z_mentee.detach() @ mapping)
            taught_mentee = client.task.divergence(own, common) + F.mse_loss(z_mentee @ mapping, z.detach())
            return task + task_mentee + (taught + taught_mentee) / unsure

        start = {"mentor": state["mentor"], "mentee": down["weights"], "map": state["map"]}
        w = (await client.fit(start, loss)).weights
        energy = self._energy_share(client.round, client.context.rounds)
        change, ranks = {}, []
        for name, moved in matrices_of(w["mentee"] - down["weights"]).items():
            low, rank = truncate_svd(moved, energy)
            change[name] = down["weights"][name] + low.view_as(w["mentee"][name])
            ranks.append(rank)
            if not is_smaller_factored(rank, moved):
                change[name] = w["mentee"][name]  # sent as it is
        up = {"weights": w["mentee"].replace(change), "ranks": torch.tensor(ranks).to(w["map"]["weight"])}
        return up, {"mentor": w["mentor"], "map": w["map"]}

    def _energy_share(self, round: int, rounds: int) -> float:
        """Return T(t) of a round, from ``T_start`` to ``T_end`` (eq. 8)."""
        return self.T_start + (self.T_end - self.T_start) * round / max(1, rounds - 1)

    def communication_bytes(
        self, client: Client, down: State, up: Mapping[str, Any]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Count the factors of the matrices that are sent as such: r (o + i + 1) numbers instead of o i."""
        received, sent = super().communication_bytes(client, down, up)
        for rank, matrix in zip(up["ranks"].tolist(), matrices_of(up["weights"]).values(), strict=True):
            if is_smaller_factored(rank, matrix):
                saved = matrix.numel() - int(rank) * (sum(matrix.shape) + 1)
                sent["weights"] -= saved * matrix.element_size()
        return received, sent

    def server_metrics(self, context: Context, server: State) -> dict[str, float | list[float]]:
        """Return the mean ranks of the last uploads, matrix by matrix."""
        return {"ranks": server["ranks"].tolist()} if "ranks" in server else {}

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        """Score the mentor and the mentee."""
        mentee = await client.eval(down["weights"], x, "mentee")
        return {"personal": await client.eval(state["mentor"], x), "global": mentee}


def matrices_of(w: Params) -> dict[str, Tensor]:
    """Return the entries with at least two dimensions as matrices [out, everything else], by name."""
    return {name: t.reshape(len(t), -1) for name, t in w.trainable().items() if t.dim() > 1}


def is_smaller_factored(rank: float, matrix: Tensor) -> bool:
    """Return whether a matrix [o, i] of rank r is smaller as factors: r (o + i + 1) < o i."""
    return rank * (sum(matrix.shape) + 1) < matrix.numel()


def truncate_svd(matrix: Tensor, energy: float) -> tuple[Tensor, int]:
    """Return the sum of the fewest singular terms of a matrix with a share of its energy, and their number.

    Args:
        matrix: [o, i].
        energy: the share, from 0 to 1; with 1 it is the matrix, to rounding.
    """
    if not matrix.isfinite().all():
        return matrix, len(matrix)  # sent as it is, so that the run sees that it has diverged
    u, sigma, v = torch.linalg.svd(matrix, full_matrices=False)
    squares = sigma.cpu().double().square().cumsum(0)  # of floats a GPU has no deterministic kernel
    if squares[-1] == 0:
        return torch.zeros_like(matrix), 0
    rank = min(int((squares < energy * squares[-1]).sum()) + 1, len(sigma))
    return (u[:, :rank] * sigma[:rank]) @ v[:rank], rank
