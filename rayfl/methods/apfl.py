"""APFL."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch import Tensor
from torch.func import grad

from rayfl.methods.base import Method
from rayfl.settings import at_least, at_most
from rayfl.training import Batch, Client, Params, State


class APFL(Method):
    """Adaptive personalised federated learning (Deng, Kamani and Mahdavi, arXiv 2003.13461, 2020).

    A client predicts with a mixture of the global model w and a model v of its own, alpha v + (1 - alpha) w,
    and may learn the weight alpha.

    Deviations from the paper: all clients of a cohort train both models for the same epochs; alpha moves once
    a round, by the gradient on the round's first batch at the received model. BatchNorm statistics of the
    mixture are those of v, which are renewed under the mixture. The mean is weighted by samples
    (``averaging``), where the paper's is uniform.
    """

    alpha: Annotated[float, at_least(0), at_most(1)] = 0.5
    """Weight of the own model; if it is not learned, 1 is local training, 0 FedAvg."""
    adaptive: bool = True
    """Whether every client learns its alpha, from ``alpha`` on."""

    def init_client(self, client: Client) -> State:
        """Start the own model from the common initial weights."""
        return {"own": client.initial, "alpha": torch.tensor(self.alpha, dtype=torch.float64)}

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Move alpha, then train w, and v within the mixture (Algorithm 1)."""
        net, alpha = client.net, state["alpha"]

        def alpha_slope(nets: dict[str, Params], batch: Batch, alpha: Tensor) -> Tensor:
            """Return the derivative of the mixture's loss by alpha (eq. 11)."""

            def loss(alpha: Tensor) -> Tensor:
                mixed = mix_models(alpha, nets["own"], nets["received"])
                return client.loss_of(net.eval(mixed, batch.x), batch)

            derivative: Tensor = grad(loss)(alpha)
            return derivative

        def both_losses(nets: dict[str, Params], batch: Batch, alpha: Tensor) -> Tensor:
            """Return F(w) + F(alpha v + (1 - alpha) w), of which v gets the second gradient only (line 8)."""
            w = nets["received"].map(torch.detach)
            mixed = mix_models(alpha, nets["own"], w)
            return client.loss(nets["received"], batch) + client.loss(mixed, batch)

        nets = {"received": down["weights"], "own": state["own"]}
        if self.adaptive:
            moved = alpha - client.lr * await client.total(alpha_slope, nets, alpha, batches=1)
            alpha = moved.clamp(0, 1)
        nets = (await client.fit(nets, both_losses, alpha, stream=0)).weights
        return {"weights": nets["received"]}, {"own": nets["own"], "alpha": alpha}

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        """Score the mixture and the global model."""
        mixed = mix_models(state["alpha"], state["own"], down["weights"])
        return {"personal": await client.eval(mixed, x), "global": await client.eval(down["weights"], x)}


def mix_models(alpha: Tensor, v: Params, w: Params) -> Params:
    """Return alpha v + (1 - alpha) w, with the BatchNorm statistics of v itself.

    Args:
        alpha: a number, in a tensor without dimensions.
        v: the own model.
        w: the global model.
    """
    mixed = {n: alpha.to(v[n]) * v[n] + (1 - alpha).to(v[n]) * w[n] for n in v.trainable()}
    return Params({**v.tensors, **mixed}, v.train_names, v.live)
