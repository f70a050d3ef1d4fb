"""FedDBE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from torch import Tensor

from rayfl.methods.base import Facts, Method
from rayfl.settings import above, at_least, at_most
from rayfl.training import Batch, Client, Context, Mean, Params, Reduction, State


class FedDBE(Method):
    """Eliminating domain bias in representation space (Zhang et al., NeurIPS 2023), on FedAvg.

    A memory of the client's own, which is added to the features below the classifier, takes up what is
    particular in a client's features. Their mean is drawn to the mean over all clients, which these exchange
    once, before the first round.

    Deviations from the paper: the distance of the means is halved, as in the public code. Where the paper is
    silent: the clients' means before the first round come from one local update of plain FedAvg, which is
    thrown away; running means start from 0 in each round, as in the public code.
    """

    facts = Facts(before="once", tasks=("classes", "numbers", "labels"))

    kappa: Annotated[float, at_least(0)] = 1.0
    """Weight of the mean regularisation."""
    momentum: Annotated[float, above(0), at_most(1)] = 0.1
    """Share of a batch in the running mean of the features, mu in the paper."""

    def uploads(self, context: Context) -> Mapping[str, Reduction]:
        """Return the model, and before the first round the mean of a client's features."""
        return {"weights": Mean(), "mean": Mean(before=True)}

    def init_client(self, client: Client) -> State:
        """Start with an empty memory."""
        return {"memory": Params({"bias": _zeros(client)}, frozenset({"bias"}))}

    async def before_round(self, client: Client, state: State, down: State) -> dict[str, Any]:
        """Train once as FedAvg does, to collect the mean of the own features."""
        net = client.net

        def loss(w: dict[str, Params], batch: Batch, extra: None) -> Tensor:
            z = net.features(w["net"], batch.x)
            self._running_mean(w["seen"], z)
            return client.loss_of(net.head(w["net"], z), batch)

        w = (await client.fit({"net": down["weights"], "seen": _unseen(client)}, loss)).weights
        return {"mean": w["seen"]["mean"]}

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Train model and memory on L(h(z + memory)) + kappa / 2 MSE(own mean, mean of all)."""
        net = client.net

        def loss(w: dict[str, Params], batch: Batch, target: Tensor) -> Tensor:
            z = net.features(w["net"], batch.x)
            off = (self._running_mean(w["seen"], z) - target).square().mean()
            scores = net.head(w["net"], z + w["memory"]["bias"])
            return client.loss_of(scores, batch) + 0.5 * self.kappa * off

        start = {"net": down["weights"], "memory": state["memory"], "seen": _unseen(client)}
        w = (await client.fit(start, loss, down["before"]["mean"])).weights
        return {"weights": w["net"]}, {"memory": w["memory"]}

    def _running_mean(self, seen: Params, z: Tensor) -> Tensor:
        """Return the running mean of features [B, d], and carry it on in place; the past has no gradient."""
        mean = (1 - self.momentum) * seen["mean"] + self.momentum * z.mean(0)
        seen["mean"].copy_(mean.detach())
        return mean

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        """Score the model with the own memory, and without."""
        w, head = down["weights"], client.net.eval.head
        z = await client.features(w, x)
        return {"personal": head(w, z + state["memory"]["bias"]), "global": head(w, z)}


def _zeros(client: Client) -> Tensor:
    """Return a vector of zeros like a sample's features."""
    return torch.zeros_like(client.initial["head.weight"][0])


def _unseen(client: Client) -> Params:
    """Return the running mean before the first batch; it is no parameter."""
    return Params({"mean": _zeros(client)}, frozenset())
