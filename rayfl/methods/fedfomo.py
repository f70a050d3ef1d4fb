"""FedFomo."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from rayfl.methods.base import Cohort, Facts
from rayfl.methods.local import Local
from rayfl.randomness import generator
from rayfl.settings import at_least, at_most
from rayfl.training import Batch, Client, Context, Gather, Params, Reduction, State

LEAST_DISTANCE = 1e-5
"""What the public code of PFLlib adds to the distance of two models below the fraction line."""


class FedFomo(Local):
    """First-order model optimisation (Zhang et al., ICLR 2021).

    A client receives some other clients' models. From the model with which its last training began it moves
    towards these, and towards its own newest one, by how much better each is on the client's validation data.

    Deviations from the paper: a client mixes when it trains next, so that it is scored with what it has
    trained last. A client without validation data goes by its training data.
    """

    facts = Facts(validation="preferred", reads_losses=True)

    models: Annotated[int, at_least(1)] = 5
    """How many models compete, M in the paper; the own newest one is among them, and need not travel."""
    epsilon: Annotated[float, at_least(0), at_most(1)] = 0.3
    """Share of the models that are drawn at random, and not chosen by affinity."""
    epsilon_decay: Annotated[float, at_least(0)] = 0.05
    """By how much this share falls from round to round."""
    own: Literal["always", "affinity"] = "always"
    """With ``always`` the own newest model competes in every round, and a client for which no model is better
    goes back to where its last training began (authors' code). With ``affinity`` the own model is chosen as
    the others are, with 1 to begin with, and is kept where nothing is better (PFLlib).
    """

    def uploads(self, context: Context) -> Mapping[str, Reduction]:
        """Return every client's model, and the weights that it has given to others'."""
        return {"model": Gather(replaces=False), "gains": Gather(replaces=False)}

    def init_client(self, client: Client) -> State:
        """Start from the common initial weights; ``start`` is where the last training began."""
        return {"weights": client.initial, "start": client.initial}

    def init_server(self, context: Context) -> State:
        """Start without models."""
        return {"models": {}, "affinity": {}, "epsilon": 0.0, "draw": 0}

    def download(self, server: State) -> State:
        """All that a client receives is its own."""
        return {}

    def download_for(self, server: State, client: int) -> State:
        """Send the models of highest affinity, which is 0 for those never asked for, and some at random.

        Of equal ones those are sent whose numbers come next after the client's.
        """
        affinity = server["affinity"].get(client, {client: 1.0})
        left = [j for j in server["models"] if j != client or self.own == "affinity"]
        left.sort(key=lambda j: (-affinity.get(j, 0.0), j <= client, j))
        count = min(len(left), self.models - (self.own == "always"))
        draws = generator(server["draw"], "models", client)
        at_random = torch.rand(count, generator=draws) < server["epsilon"]
        chosen = [left.pop(int(torch.randint(len(left), (), generator=draws)) if r else 0) for r in at_random]
        return {"models": {j: server["models"][j] for j in chosen}}

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Mix the models that compete into the one that training began with, and train."""
        start, own = state["start"], state["weights"]
        models: dict[int, Params] = dict(down["models"])
        if self.own == "always":
            models[client.id] = own
        loss = await self._mean_loss(client, start)
        gains = {}
        for j, model in models.items():
            distance = float((model - start).trainable().norm()) + LEAST_DISTANCE
            gain = (loss - await self._mean_loss(client, model)) / distance  # the weight of the paper
            if math.isfinite(gain):  # a model of others may overflow on the client's data
                gains[j] = gain
        whole = sum(max(gain, 0.0) for gain in gains.values())
        mixed: Params = start if whole or self.own == "always" else own
        for j, gain in gains.items():
            if gain > 0:
                mixed = mixed + (gain / whole) * (models[j] - start)
        w = (await client.fit(mixed, client.loss)).weights
        return {"model": w, "gains": gains}, {"weights": w, "start": mixed}

    async def _mean_loss(self, client: Client, w: Params) -> float:
        """Return a model's loss on the client's validation data, or else on its training data."""
        net = client.net.eval

        def loss(w: Params, batch: Batch, extra: None) -> Tensor:
            return client.losses_of(net(w, batch.x), batch).sum()

        count, split = (client.val_samples, "val") if client.val_samples else (client.samples, "train")
        return float(await client.total(loss, w, split=split)) / count  # type: ignore[arg-type]

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        """Keep the models, add up the affinities, and draw for the choices of the next round."""
        affinity = dict(server["affinity"])
        for i, gains in up["gains"].items():
            mine = affinity.get(i, {i: 1.0})
            affinity[i] = mine | {j: mine.get(j, 0.0) + gain for j, gain in gains.items()}
        draws = cohort.context.generator("models", cohort.round)
        return {
            "models": dict(sorted({**server["models"], **up["model"]}.items())),
            "affinity": affinity,
            "epsilon": max(0.0, self.epsilon - self.epsilon_decay * (cohort.round + 1)),
            "draw": int(torch.randint(2**31, (), generator=draws)),
        }
