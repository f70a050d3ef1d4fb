"""SCAFFOLD."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from rayfl.methods.base import Cohort, Facts, Method
from rayfl.settings import above
from rayfl.training import Client, Context, Mean, Params, Reduction, State, Sum


class SCAFFOLD(Method):
    """Stochastic controlled averaging (Karimireddy et al., ICML 2020), option II of its Algorithm 1.

    Server and clients keep control variates, estimates of the global and of each client's own gradient; the
    difference corrects every local step, so that clients do not drift towards their own optima.

    Deviations from the paper: with SGD momentum the number of local steps K in the update of the control is
    replaced by the sum of the weights with which gradients have entered the result (with plain K the method
    diverges). Gradients are clipped, where asked, before the correction. Controls exist for trainable
    parameters; BatchNorm statistics are averaged like the weights. With ``averaging`` by samples the server's
    control is the mean of the clients' by samples, as the model is.
    """

    # the control is the change of the weights by the sum of the steps
    facts = Facts(averaging="uniform", works_with={"optimiser": "SGD", "optimiser_state": "fresh"})

    server_lr: Annotated[float, above(0)] = 1.0
    """Step size of the server, eta_g in the paper; constant, whatever ``training.schedule`` is."""

    def uploads(self, context: Context) -> Mapping[str, Reduction]:
        """Return the change of the model and the change of the control (line 13)."""
        how = Sum if context.averaging == "uniform" else Mean
        return {"step": Mean(adds_to="weights"), "control": how(adds_to="control")}

    def init_server(self, context: Context) -> State:
        """Start from c = 0."""
        return {"weights": context.initial, "control": context.initial.trainable().zeros()}

    def init_client(self, client: Client) -> State:
        """Start from c_i = 0."""
        return {"control": client.initial.trainable().zeros()}

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Train with corrected steps, then renew the control."""
        received: Params = down["weights"]
        drift: Params = down["control"] - state["control"]  # c - c_i

        fitted = await client.fit(
            received, client.loss, drift, after_clip=lambda g, w, drift: g + drift
        )  # line 10: y <- y - eta_l (g(y) - c_i + c)
        step: Params = fitted.weights - received
        if not fitted.steps:
            return {"step": step, "control": drift.zeros()}, state
        passed = fitted.effective_steps * client.lr
        control = -step.trainable() / passed - drift  # line 12, (ii): c_i+ = c_i - c + (x - y) / (K eta_l)
        return {"step": step, "control": control - state["control"]}, {"control": control}

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        """Take the server's step (lines 16 and 17): x + eta_g mean(y_i - x), c + sum(c_i+ - c_i) / N."""
        step: Params = up["step"]
        moved = server["weights"].trainable() + self.server_lr * step.trainable()
        parts = cohort.context.population if cohort.context.averaging == "uniform" else 1 / cohort.share
        return {
            "weights": (server["weights"] + step).merge(moved),  # BatchNorm statistics: the mean
            "control": server["control"] + up["control"] / parts,
        }
