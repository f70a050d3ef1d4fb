"""MR-MTL."""

from __future__ import annotations

from typing import Annotated, Any

from torch import Tensor

from rayfl.data import FederatedData
from rayfl.methods.base import Method, Metrics
from rayfl.methods.checks import warning_of_pull
from rayfl.settings import at_least
from rayfl.training import Client, State, Training


class MRMTL(Method):
    """Mean-regularised multi-task learning (Evgeniou and Pontil, KDD 2004; among clients Liu et al., "On
    privacy and personalization in cross-silo federated learning", NeurIPS 2022).

    Every client has a model of its own, which is pulled towards the mean of all of them; nothing else is
    shared. Between Local (``lam`` 0) and one model for all.

    Deviations from the paper: none known in training without noise. Means are weighted by samples
    (``averaging``) where its Algorithm A1 takes uniform ones. BatchNorm statistics are each client's own, and
    the mean has their mean.
    """

    lam: Annotated[float, at_least(0)] = 1.0
    """Weight of the pull, lambda in the paper. With 0 models are trained locally."""

    def warning(self, training: Training, data: FederatedData, metrics: Metrics) -> str | None:
        """Warn where lr lam is above 1."""
        return warning_of_pull("method.lam", self.lam, training)

    def init_client(self, client: Client) -> State:
        """Start the own model from the common initial weights."""
        return {"own": client.initial}

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Minimise F_k(w_k) + lam/2 ||w_k - mean||^2, the mean of the round before (Algorithm A1)."""
        fitted = await client.fit(
            state["own"],
            client.loss,
            down["weights"].trainable(),
            before_clip=lambda g, w, mean: g + self.lam * (w - mean),
        )
        return {"weights": fitted.weights}, {"own": fitted.weights}

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        """Score the own model and the mean."""
        own = await client.eval(state["own"], x)
        return {"personal": own, "global": await client.eval(down["weights"], x)}
