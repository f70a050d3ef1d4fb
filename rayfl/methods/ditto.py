"""Ditto."""

from __future__ import annotations

from typing import Annotated, Any

from torch import Tensor

from rayfl.data import FederatedData
from rayfl.methods.base import Method, Metrics
from rayfl.methods.checks import warning_of_pull
from rayfl.settings import at_least
from rayfl.training import Client, State, Training


class Ditto(Method):
    """A personal model beside FedAvg's, pulled towards it (Li et al., ICML 2021).

    FedAvg runs as ever on the global model w; every client also trains a model v of its own, which is
    regularised towards the w that it has received in the round.

    Deviations from the paper: means are weighted by samples (``averaging``) where its Algorithm 1 takes
    uniform ones. Both models make the same number of epochs over the same batches. BatchNorm layers of v are
    wholly personal, the pull acts on trainable parameters.
    """

    mu: Annotated[float, at_least(0)] = 1.0
    """Weight of the pull, lambda in the paper. With 0 the personal model is trained locally."""

    def warning(self, training: Training, data: FederatedData, metrics: Metrics) -> str | None:
        """Warn where lr mu is above 1."""
        return warning_of_pull("method.mu", self.mu, training)

    def init_client(self, client: Client) -> State:
        """Start the personal model from the common initial weights."""
        return {"own": client.initial}

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Train w by FedAvg, and v to minimise h(v; w_t) = F(v) + mu/2 ||v - w_t||^2 (Algorithm 1)."""
        received = down["weights"]
        w = await client.fit(received, client.loss, stream=0)
        v = await client.fit(
            state["own"],
            client.loss,
            received.trainable(),
            before_clip=lambda g, v, received: g + self.mu * (v - received),
            stream=0,  # the batches of w
        )
        return {"weights": w.weights}, {"own": v.weights}

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        """Score v and w."""
        own = await client.eval(state["own"], x)
        return {"personal": own, "global": await client.eval(down["weights"], x)}
