"""MOON."""

from __future__ import annotations

from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rayfl.methods.base import Facts, Method
from rayfl.settings import above, at_least
from rayfl.training import Batch, Client, Params, State


class MOON(Method):
    """Model-contrastive federated learning (Li, He and Song, CVPR 2021).

    FedAvg whose clients draw the features of their model to those of the received one, and away from those of
    their own model of before.

    Deviations from the paper: features are the input of the last linear layer, whatever the net; a projection
    head is part of the net (``MOONCNN``). The two frozen models are in eval mode. A client's model of before
    its first participation is the initial one.
    """

    facts = Facts(tasks=("classes", "numbers", "labels"))

    mu: Annotated[float, at_least(0)] = 1.0
    """Weight of the contrastive loss; 0 is FedAvg."""
    tau: Annotated[float, above(0)] = 0.5
    """Temperature of the contrastive loss."""

    def init_client(self, client: Client) -> State:
        """Start with the initial model as the previous one."""
        return {"previous": client.initial}

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Minimise both losses from the received model; keep the result."""
        net, mu, tau = client.net, self.mu, self.tau

        def loss(w: Params, batch: Batch, frozen: dict[str, Params]) -> Tensor:
            """Eq. 3: -log of the softmax of the similarities to both, at the received model."""
            z = net.features(w, batch.x)
            supervised = client.loss_of(net.head(w, z), batch)
            alike = [
                F.cosine_similarity(z, net.eval.features(other, batch.x).detach(), dim=1)
                for other in (frozen["received"], frozen["previous"])
            ]
            contrastive = -(torch.stack(alike, 1) / tau).log_softmax(1)[:, 0].mean()
            return supervised + mu * contrastive

        received: Params = down["weights"]
        frozen = {"received": received, "previous": state["previous"]}
        w = (await client.fit(received, loss if mu else client.loss, frozen)).weights
        return {"weights": w}, {"previous": w}
