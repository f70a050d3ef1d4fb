"""FedDyn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from rayfl.data import FederatedData
from rayfl.methods.base import Cohort, Facts, Method, Metrics
from rayfl.methods.checks import warning_of_pull
from rayfl.settings import above
from rayfl.training import Client, Context, Params, State, Training


class FedDyn(Method):
    """Federated learning with dynamic regularisation (Acar et al., ICLR 2021).

    Every client changes its objective by a linear and a quadratic term, so that a point at which all clients
    stand still is one of the global objective.

    Deviations from the paper: the terms enter as gradients, before the clip, on trainable parameters;
    BatchNorm statistics are averaged. The server's state h stands here divided by alpha.
    """

    facts = Facts(averaging="uniform")

    alpha: Annotated[float, above(0)] = 0.01
    """Weight of the quadratic term. Towards 0 this becomes FedAvg with a Nesterov momentum of 1 on the
    server, not FedAvg.
    """

    def warning(self, training: Training, data: FederatedData, metrics: Metrics) -> str | None:
        """Warn where lr alpha is above 1."""
        return warning_of_pull("method.alpha", self.alpha, training)

    def init_server(self, context: Context) -> State:
        """Start from h = 0."""
        return {"weights": context.initial, "drift": context.initial.trainable().zeros()}

    def download(self, server: State) -> State:
        """Send the model; h stays with the server."""
        return {"weights": server["weights"]}

    def init_client(self, client: Client) -> State:
        """Start from a gradient of 0."""
        return {"gradient": client.initial.trainable().zeros()}

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Minimise F(w) - <g_i, w> + alpha/2 ||w - w_t||^2 (eq. 1), then renew g_i (Algorithm 1, line 9)."""
        received: Params = down["weights"].trainable()

        def add_dynamic_term(g: Params, w: Params, extra: tuple[Params, Params]) -> Params:
            gradient, received = extra
            return g - gradient + self.alpha * (w - received)

        extra = (state["gradient"], received)
        w = (await client.fit(down["weights"], client.loss, extra, before_clip=add_dynamic_term)).weights
        return {"weights": w}, {"gradient": state["gradient"] - self.alpha * (w.trainable() - received)}

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        """Renew h and take it off the mean (lines 11 and 12): h <- h - alpha/N sum(w_i - w_t).

        By samples, w_i - w_t has the weight n_i/n of all clients in place of 1/N.
        """
        mean: Params = up["weights"]
        step = (mean - server["weights"]).trainable()
        drift: Params = server["drift"] - cohort.share * step
        return {"weights": mean.merge(mean.trainable() - drift), "drift": drift}
