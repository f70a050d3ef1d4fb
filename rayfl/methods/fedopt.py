"""FedOpt: FedAvgM, FedAdagrad, FedAdam and FedYogi."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch

from rayfl.methods.base import Cohort
from rayfl.methods.fedavg import FedAvg
from rayfl.settings import above, at_least, below
from rayfl.training import Context, Params, State


class FedOpt(FedAvg):
    """Adaptive federated optimisation (Reddi et al., ICLR 2021), and FedAvg with server momentum (Hsu, Qi and
    Brown, arXiv 1909.06335, 2019).

    The server takes the clients' mean change of the model for a gradient and gives it to an optimiser of its
    own.

    Deviations from the papers: BatchNorm statistics are averaged and do not pass through the optimiser. The
    mean change is weighted by samples (``averaging``); Algorithm 2 of Reddi et al. has a uniform one. It has
    no bias correction either.
    """

    rule: Literal["momentum", "adagrad", "adam", "yogi"] = "adam"
    """The server's optimiser: ``momentum`` is FedAvgM, and with ``beta1`` 0 and ``server_lr`` 1 FedAvg; the
    others are FedAdagrad, FedAdam and FedYogi.
    """
    server_lr: Annotated[float, above(0)] = 0.01
    """Step size of the server, eta in the paper; constant, whatever ``training.schedule`` is."""
    beta1: Annotated[float, at_least(0), below(1)] = 0.9
    """How much of the mean change of before is kept."""
    beta2: Annotated[float, at_least(0), below(1)] = 0.99
    """How much of the mean squared change of before is kept by ``adam`` and ``yogi``."""
    tau: Annotated[float, above(0)] = 1e-3
    """Degree of adaptivity: what is added to the root of the mean squared change."""

    def init_server(self, context: Context) -> State:
        """Start from a change of 0, and a squared change of tau^2."""
        zeros = context.initial.trainable().zeros()
        state: State = {"weights": context.initial, "change": zeros}
        return state if self.rule == "momentum" else {**state, "square": zeros + self.tau**2}

    def download(self, server: State) -> State:
        """Send the model; the optimiser's state stays with the server."""
        return {"weights": server["weights"]}

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        """Take the optimiser's step (Algorithm 2) from x by the mean change D."""
        mean: Params = up["weights"]
        x, target, before = server["weights"].trainable(), mean.trainable(), server["change"]
        if self.rule == "momentum":  # v <- beta1 v + D, x <- x + eta v
            kept = self.beta1 * before
            change = kept + (target - x)
            stepped = _step_towards(x, target, self.server_lr) + self.server_lr * kept
            return {"weights": mean.merge(stepped), "change": change}
        change = self.beta1 * before + (1 - self.beta1) * (target - x)  # line 10
        square = self._squared_change(server["square"], (target - x) * (target - x))
        scaled = change / (square.map(torch.sqrt) + self.tau)
        return {
            "weights": mean.merge(x + self.server_lr * scaled),  # line 14
            "change": change,
            "square": square,
        }

    def _squared_change(self, v: Params, new: Params) -> Params:
        """Return v_t of v_(t-1) and the squared change (lines 11 to 13)."""
        if self.rule == "adagrad":
            return v + new
        if self.rule == "adam":
            return self.beta2 * v + (1 - self.beta2) * new
        return v - (1 - self.beta2) * (new * (v - new).map(torch.sign))


def _step_towards(x: Params, target: Params, step: float) -> Params:
    """Return x + step (target - x), and for a step of 1 the target itself, to the bit."""
    return Params({n: torch.lerp(t, target[n], step) for n, t in x.tensors.items()}, x.train_names)
