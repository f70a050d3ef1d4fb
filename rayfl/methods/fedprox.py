"""FedProx."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from rayfl.data import FederatedData
from rayfl.methods.base import Method, Metrics
from rayfl.methods.checks import warning_of_pull
from rayfl.settings import at_least
from rayfl.training import Client, Params, State, Training


class FedProx(Method):
    """FedAvg with a proximal term (Li et al., "Federated Optimization in Heterogeneous
    Networks", MLSys 2020).

    The term keeps a client's model close to the server's: its gradient is added to that of the loss, before
    the clip, on the trainable parameters.

    Deviations from the paper: clients make a fixed number of epochs instead of solving their problem to a
    given inexactness, and are sampled uniformly and weighted by samples (or uniformly, see ``averaging``)
    instead of being sampled by samples and weighted uniformly.
    """

    mu: Annotated[float, at_least(0)] = 0.01
    """Weight of the proximal term; 0 is FedAvg."""
    norm: Literal["squared", "l2"] = "squared"
    """``squared`` adds mu/2 ||w - w_t||^2 to the loss, as in the paper; ``l2`` adds mu/2 ||w - w_t||, as some
    public code does: a pull of constant strength.
    """

    def warning(self, training: Training, data: FederatedData, metrics: Metrics) -> str | None:
        """Warn where lr mu is above 1."""
        return warning_of_pull("method.mu", self.mu, training) if self.norm == "squared" else None

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Minimise h(w; w_t) = F(w) + mu/2 ||w - w_t||^2 from w_t (eq. 2)."""
        received = down["weights"]
        fitted = await client.fit(received, client.loss, received.trainable(), before_clip=self._add_proximal)
        return {"weights": fitted.weights}, state

    def _add_proximal(self, g: Params, w: Params, received: Params) -> Params:
        """Add the gradient of the proximal term; that of ``l2`` counts as zero at w = w_t."""
        step = w - received
        if self.norm == "squared":
            return g + self.mu * step
        return g + self.mu / 2 * (step / step.norm().clamp(min=1e-12))
