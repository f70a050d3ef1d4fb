"""COPA, as a baseline of Fed-CO2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from rayfl.methods.base import Cohort, Facts, Method
from rayfl.settings import at_least
from rayfl.training import Batch, Client, Context, Gather, Mean, Params, Reduction, State
from rayfl.training.net import Net


class COPA(Method):
    """Collaborative optimisation and aggregation (Wu and Gong, ICCV 2021), in the form in which Fed-CO2 (Cai
    et al., NeurIPS 2023) compares with it.

    A shared extractor has to serve the heads of all clients: every client trains it through its own head and
    through the frozen heads of the others, and all heads together predict.

    Deviations from the paper: normalisation layers are those of the net; the paper's mixture of batch and
    instance normalisation is not in Fed-CO2's baseline. The head is the last linear layer.
    """

    facts = Facts(averaging="uniform", reads_losses=True, tasks=("classes", "numbers", "labels"))

    w_foreign: Annotated[float, at_least(0)] = 1.0
    """Weight of the losses through the others' heads. With 0 extractor and heads are those of FedPer with
    uniform means; still all heads together predict.
    """
    foreign: Literal["sum", "mean"] = "sum"
    """Whether these losses enter by their ``sum``, which grows with the number of clients, or ``mean``."""

    def shared(self, net: Net, name: str, module: nn.Module) -> bool:
        """Share the extractor; heads are collected, not averaged."""
        return name not in net.names("last_layer", "head")

    def uploads(self, context: Context) -> Mapping[str, Reduction]:
        """Return the extractor and the own head."""
        return {"weights": Mean(), "head": Gather()}

    def init_server(self, context: Context) -> State:
        """Start with the initial head for every client, all in one: [N, ...]."""
        heads = context.personal_part(context.initial).map(lambda t: torch.stack([t] * context.population))
        return {"weights": context.shared_part(context.initial), "heads": heads}

    def init_client(self, client: Client) -> State:
        """Start from the common initial head."""
        return {"own": client.personal_part(client.initial)}

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Train extractor and own head; the gradient of the others' heads reaches the extractor alone."""
        net = client.net

        def loss(w: Params, batch: Batch, others: dict[str, Any]) -> Tensor:
            """CE(H_i z) + sum over j of CE(H_j z), j other than i."""
            z = net.features(w, batch.x)
            own = client.loss_of(net.head(w, z), batch)
            scores = through_all(others["heads"], z)  # [N, B, classes]
            targets = batch.y.expand(len(scores), *batch.y.shape)
            each = client.losses_of(scores.flatten(0, 1), batch._replace(y=targets.flatten(0, 1)))
            return own + (each.view(scores.shape[:2]).mean(1) * others["weight"]).sum()

        ids = torch.arange(client.context.population, device=state["own"]["head.weight"].device)
        weight = self.w_foreign * (ids != client.id).to(state["own"]["head.weight"])
        if self.foreign == "mean":
            weight = weight / max(1, client.context.population - 1)
        start = down["weights"].merge(state["own"])
        w = (await client.fit(start, loss, {"heads": down["heads"], "weight": weight})).weights
        own = client.personal_part(w)
        return {"weights": client.shared_part(w), "head": own}, {"own": own}

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        """Average the extractors, and put the new heads in the places of the old ones."""
        heads = server["heads"].clone()
        for i, head in up["head"].items():
            for name, tensor in head.items():
                heads[name][i] = tensor
        return {"weights": up["weights"], "heads": heads}

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        """Score the mean of all heads' logits, the mean head's; ``personal`` has the newest own head."""
        heads, own = down["heads"], state["own"]
        mean = personal = heads.map(lambda t: t.mean(0))
        if client.id < client.context.population:  # a new client has no head among them
            personal = mean + (own - heads.map(lambda t: t[client.id])) / client.context.population
        net = client.net.eval
        z = await client.features(down["weights"], x)
        return {"personal": net.head(personal, z), "global": net.head(mean, z)}

    def communication_bytes(
        self, client: Client, down: State, up: Mapping[str, Any]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Count the foreign heads only: a client has its own."""
        received, sent = super().communication_bytes(client, down, up)
        own = received["heads"] // client.context.population
        return {**received, "heads": received["heads"] - own}, sent


def through_all(heads: Params, z: Tensor) -> Tensor:
    """Return the logits of features z, [B, d], of many heads, [N, B, classes]."""
    scores: Tensor = torch.einsum("bd,ncd->nbc", z, heads["head.weight"])
    return scores if "head.bias" not in heads else scores + heads["head.bias"][:, None]
