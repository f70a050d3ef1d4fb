"""FedAMP."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

from rayfl.data import FederatedData
from rayfl.methods.base import Cohort, Facts, Metrics
from rayfl.methods.checks import warning_of_pull
from rayfl.methods.local import Local
from rayfl.settings import above, at_least
from rayfl.training import Client, Context, Gather, Params, Reduction, State, Training


class FedAMP(Local):
    """Attentive message passing (Huang et al., AAAI 2021).

    The server has a cloud model for each client: a mixture of all clients' models in which similar ones weigh
    more. The client's own model is drawn to it. ``alpha`` must be so small that the weights of the others add
    up to less than 1.

    Deviations from the paper: instead of minimising its objective a client makes the epochs of the run, from
    its own last model. Clients that were not sampled are in the mixtures with their last models. BatchNorm
    statistics are the client's own.
    """

    facts = Facts()  # unlike those of Local, nets must be equal

    alpha: Annotated[float, above(0)] = 1.0
    """Step size of the mixture, alpha_k in the paper."""
    sigma: Annotated[float, above(0)] = 1.0
    """Scale of the squared distance of two models in A(d) = 1 - exp(-d / sigma)."""
    lam: Annotated[float, at_least(0)] = 1.0
    """Weight of the pull towards the cloud model, lambda in the paper."""

    def warning(self, training: Training, data: FederatedData, metrics: Metrics) -> str | None:
        """Warn where lr lam / alpha is above 1, or where the others can weigh more than 1 in a mixture."""
        others = self.alpha / self.sigma * (data.seen - 1)
        if others > 1:
            return (
                f"method.alpha / method.sigma times the number of other clients is {others:g}, above 1, so "
                "that a mixture of similar models may go beyond them: choose a smaller method.alpha, or a "
                "larger method.sigma"
            )
        return warning_of_pull("method.lam / method.alpha", self.lam / self.alpha, training)

    def uploads(self, context: Context) -> Mapping[str, Reduction]:
        """Return every client's model."""
        return {"model": Gather(replaces=False)}

    def init_server(self, context: Context) -> State:
        """Start without models."""
        return {"models": {}}

    def download(self, server: State) -> State:
        """All that a client receives is its own."""
        return {}

    def download_for(self, server: State, client: int) -> State:
        """Send the cloud model, a step down A: u_i = w_i + alpha sum_j A'(|w_i - w_j|^2) (w_j - w_i)."""
        if client not in server["models"]:
            return {}
        own: Params = server["models"][client].trainable()
        cloud = own
        for j, model in server["models"].items():
            if j != client:
                off = model.trainable() - own
                cloud = cloud + self.alpha * math.exp(-float(off.sq_norm()) / self.sigma) / self.sigma * off
        return {"cloud": cloud}

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Train the own model, drawn to the cloud model: F_i(w) + lambda / (2 alpha) |w - u_i|^2 (eq. 6)."""
        own: Params = state["weights"]
        pull = self.lam / self.alpha
        w = await client.fit(
            own,
            client.loss,
            down.get("cloud", own.trainable()),
            before_clip=lambda g, w, cloud: g + pull * (w - cloud),
        )
        return {"model": w.weights}, {"weights": w.weights}

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        """Keep the newest models."""
        return {"models": dict(sorted({**server["models"], **up["model"]}.items()))}
