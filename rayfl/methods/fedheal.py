"""FedHEAL."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import add
from typing import Annotated, Any

import torch

from rayfl.methods.base import Cohort
from rayfl.methods.fedavg import FedAvg
from rayfl.settings import at_least, at_most
from rayfl.training import Context, Gather, Params, Reduction, State


class FedHEAL(FedAvg):
    """Fair federated learning under domain skew (Chen et al., CVPR 2024): FedAvg with another aggregation.

    The server leaves out numbers of an update whose sign has not been consistent over the client's rounds,
    and gives weight to clients whose updates are large.

    Deviations from the paper: none known; it is equal to the authors' public code. BatchNorm statistics are
    treated as the weights are.
    """

    tau: Annotated[float, at_most(1)] = 0.3
    """Consistency, the share of a client's rounds with the sign of now, up to which a number is left out;
    negative to leave none out.
    """
    beta: Annotated[float, at_least(0), at_most(1)] = 0.4
    """How fast the clients' weights follow the size of their updates; with 0 they stay equal,
    as long as all rounds have as many clients.
    """

    def uploads(self, context: Context) -> Mapping[str, Reduction]:
        """Return models one by one: the weights of the mean depend on all of them."""
        return {"weights": Gather()}

    def init_server(self, context: Context) -> State:
        """Start without histories; a client's weight and its momentum are in one mapping each."""
        return {"weights": context.initial, "history": {}, "rounds": {}, "p": {}, "delta": {}}

    def download(self, server: State) -> State:
        """Send the model."""
        return {"weights": server["weights"]}

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        """Mask the updates, renew the clients' weights, and take the mean number by number."""
        before: Params = server["weights"]
        steps = {i: w - before for i, w in up["weights"].items()}
        history, rounds = dict(server["history"]), dict(server["rounds"])
        masks = {}
        for i, step in steps.items():
            rises = step.map(lambda t: (t >= 0).to(t))
            r = rounds.get(i, 0)
            if r == 0:
                masks[i], history[i] = rises.map(torch.ones_like), rises
            else:
                consistency = history[i] * rises + (1.0 + -history[i]) * (1.0 + -rises)
                masks[i] = consistency.map(lambda t: (t > self.tau).to(t))
                history[i] = (history[i] * r + rises) / (r + 1)
            rounds[i] = r + 1
        masked = {i: masks[i] * step for i, step in steps.items()}

        distance = {i: sum(t.norm().item() for t in step.trainable().values()) for i, step in masked.items()}
        every = sum(distance.values())
        p, delta = dict(server["p"]), dict(server["delta"])
        for i, d in distance.items():
            share = d / every if every else 1 / len(distance)
            delta[i] = (1 - self.beta) * delta.get(i, 0.0) + self.beta * share
            p[i] = p.get(i, 1 / len(cohort.ids)) + delta[i]
        whole = sum(p[i] for i in masked)
        weight = {i: p[i] / whole for i in masked}

        held = reduce(add, (weight[i] * masks[i] for i in masked))  # per number; 0 where all are masked
        moved = reduce(add, (weight[i] * step for i, step in masked.items()))
        mean = moved / held.map(lambda t: t.where(t > 0, 1))
        return {"weights": before + mean, "history": history, "rounds": rounds, "p": p, "delta": delta}

    def server_metrics(self, context: Context, server: State) -> dict[str, float | list[float]]:
        """Record the clients' weights, of those that have taken part."""
        whole = sum(server["p"].values())
        return {"p": [server["p"][i] / whole for i in sorted(server["p"])]}
