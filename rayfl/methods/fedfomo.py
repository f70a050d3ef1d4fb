"""FedFomo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from torch import Tensor

from rayfl.methods.base import Cohort, Facts
from rayfl.methods.local import Local
from rayfl.settings import at_least
from rayfl.training import Batch, Client, Context, Gather, Params, Reduction, State

LEAST_DISTANCE = 1e-5
"""What the public code of PFLlib adds to the distance of two models below the fraction line."""


class FedFomo(Local):
    """First-order model optimisation (Zhang et al., ICLR 2021).

    A client receives some other clients' models, and mixes them into its own by how much better than its own
    each is on the client's validation data.

    Deviations from the paper: models are asked for by the affinity of earlier rounds alone, without the share
    of random ones. A client without validation data goes by its training data.
    """

    facts = Facts(validation="preferred")

    models: Annotated[int, at_least(1)] = 5
    """How many models a client receives, M in the paper; its own may be among them."""

    def uploads(self, context: Context) -> Mapping[str, Reduction]:
        """Return every client's model, and the weights that it has given to others'."""
        return {"model": Gather(replaces=False), "gains": Gather(replaces=False)}

    def init_server(self, context: Context) -> State:
        """Start without models."""
        return {"models": {}, "affinity": {}}

    def download(self, server: State) -> State:
        """All that a client receives is its own."""
        return {}

    def download_for(self, server: State, client: int) -> State:
        """Send the models of highest affinity, which for the own one begins with 1, for others with 0.

        Of equal ones those are sent whose numbers come next after the client's.
        """
        affinity, models = server["affinity"].get(client, {client: 1.0}), server["models"]
        order = sorted(models, key=lambda j: (-affinity.get(j, 0.0), j < client, j))
        return {"models": {j: models[j] for j in order[: self.models]}}

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Mix the received models into the own one (eq. 3 and 4), and train."""
        own: Params = state["weights"]
        loss = await self._mean_loss(client, own)
        gains = {}
        for j, model in down["models"].items():
            distance = float((model - own).trainable().norm()) + LEAST_DISTANCE
            gains[j] = (loss - await self._mean_loss(client, model)) / distance  # eq. 3
        whole = sum(max(gain, 0.0) for gain in gains.values())
        mixed = own
        for j, gain in gains.items():
            if gain > 0:
                mixed = mixed + (gain / whole) * (down["models"][j] - own)  # eq. 4
        w = (await client.fit(mixed, client.loss)).weights
        return {"model": w, "gains": gains}, {"weights": w}

    async def _mean_loss(self, client: Client, w: Params) -> float:
        """Return a model's loss on the client's validation data, or else on its training data."""
        net = client.net.eval

        def loss(w: Params, batch: Batch, extra: None) -> Tensor:
            return client.losses_of(net(w, batch.x), batch).sum()

        count, split = (client.val_samples, "val") if client.val_samples else (client.samples, "train")
        return float(await client.total(loss, w, split=split)) / count  # type: ignore[arg-type]

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        """Keep the models, and add up the affinities."""
        affinity = dict(server["affinity"])
        for i, gains in up["gains"].items():
            mine = affinity.get(i, {i: 1.0})
            affinity[i] = mine | {j: mine.get(j, 0.0) + gain for j, gain in gains.items()}
        return {"models": dict(sorted({**server["models"], **up["model"]}.items())), "affinity": affinity}
