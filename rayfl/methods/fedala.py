"""FedALA."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch import Tensor

from rayfl.methods.base import Method
from rayfl.settings import above, at_least, at_most
from rayfl.training import Batch, Client, Params, State
from rayfl.training.optimisers import PLAIN_STEPS

MOST_EPOCHS = 100
"""Passes after which the first learning of the weights ends, settled or not."""


class FedALA(Method):
    """Adaptive local aggregation for personalised federated learning (Zhang et al., AAAI 2023).

    The server averages as FedAvg does. Before it trains, a client mixes what it has received with its own
    model of before, number by number, with weights W in [0, 1] that it learns on a part of its data: the
    upper layers become own + (received - own) W, the lower ones are taken as received.

    Deviations from the paper: none known in the formulas; compared with the paper and the authors' public
    code. The share of the data is drawn at random, where the code takes a random slice.
    """

    eta: Annotated[float, above(0)] = 1.0
    """Learning rate of W; constant, whatever ``training.schedule`` is."""
    rand_percent: Annotated[float, above(0), at_most(100)] = 80.0
    """Per cent of the client's samples on which W is learned, two at least; s in the paper."""
    layer_idx: Annotated[int, at_least(1)] = 2
    """Entries from the end of the net, a weight or a bias each, that are mixed; p in the paper counts layers.
    """
    threshold: Annotated[float, at_least(0)] = 0.1
    """W is first learned until the losses of the last passes have a standard deviation below it."""
    num_pre_loss: Annotated[int, at_least(2)] = 10
    """Passes that this is taken over."""

    def init_client(self, client: Client) -> State:
        """Start from the common weights; W is 1 at first, which takes all as received."""
        own = self._upper_names(client.initial)
        return {"own": own, "W": own.map(torch.ones_like), "trained": False, "settled": False}

    def _upper_names(self, w: Params) -> Params:
        """Return the parameters that are mixed: the last ones of the net."""
        names = [name for name in w if name in w.train_names][-self.layer_idx :]
        return w.select(names.__contains__)

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Learn W from the second participation on, mix, and train as in FedAvg (Algorithm 1)."""
        state = dict(state)
        if state["trained"]:
            losses: list[float] = []
            while True:
                fitted = await self._learn(client, state, down["weights"], 1 + len(losses))
                state["W"] = fitted.weights["W"]
                losses.append(fitted.loss)
                if state["settled"] or self._settle_weights(losses):
                    break
            state["settled"] = True
        start = self._mix_received(state, down["weights"])
        w = (await client.fit(start, client.loss, stream=0, phase="local")).weights
        return {"weights": w}, {**state, "own": self._upper_names(w), "trained": True}

    def _settle_weights(self, losses: list[float]) -> bool:
        last = torch.tensor(losses[-self.num_pre_loss :], dtype=torch.float64)
        steady = len(losses) > self.num_pre_loss and last.std(correction=0).item() < self.threshold
        return steady or len(losses) == MOST_EPOCHS

    async def _learn(self, client: Client, state: State, received: Params, stream: int) -> Any:
        """Train W for a pass over a share of the data (eq. 6)."""
        net = client.net

        def loss(models: dict[str, Params], batch: Batch, extra: dict[str, Params]) -> Tensor:
            W, base = models["W"], extra["received"]
            mixed = {n: extra["own"][n] + (base[n] - extra["own"][n]) * W[n] for n in W}
            w = Params({**base.tensors, **models["buffers"].tensors, **mixed}, base.train_names, live=True)
            return client.loss_of(net(w, batch.x), batch)

        def keep_in_unit_range(
            gradients: dict[str, Params], models: dict[str, Params], extra: dict[str, Any]
        ) -> Any:
            """Return the gradients with which a step ends in [0, 1]."""
            W, lr = models["W"], extra["lr"]
            end = (W - lr * gradients["W"]).map(lambda t: t.clamp(0, 1))
            return {**gradients, "W": (W - end) / lr}

        buffers = Params({n: t for n, t in received.items() if n not in received.train_names}, frozenset())
        return await client.fit(
            {"W": state["W"], "buffers": buffers},
            loss,
            {"received": received, "own": state["own"], "lr": self.eta},
            after_clip=keep_in_unit_range,
            epochs=1,
            lr=self.eta,
            stream=stream,
            share=max(self.rand_percent / 100, min(1, 2 / client.samples)),  # BatchNorm needs two samples
            **PLAIN_STEPS,
        )

    def _mix_received(self, state: State, received: Params) -> Params:
        """Return the model that a client begins with (eq. 5)."""
        if not state["trained"]:
            return received
        now = self._upper_names(received)
        return received.merge(state["own"] + (now - state["own"]) * state["W"])

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        """Score what the client would begin with, and what it has received."""
        own = await client.eval(self._mix_received(state, down["weights"]), x)
        return {"personal": own, "global": await client.eval(down["weights"], x)}
