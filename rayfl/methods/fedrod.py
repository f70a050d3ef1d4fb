"""FedRoD."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rayfl.methods.base import Facts, Method
from rayfl.training import Batch, Client, Context, Params, State
from rayfl.training.losses import log_counts
from rayfl.training.net import Cut


class FedRoD(Method):
    """Robust decoupling of a generic and a personal model (Chen and Chao, ICLR 2022), in its linear version.

    Below one extractor, a generic head learns all classes alike, by a loss that takes the client's class
    counts out of it, and a personal head learns what is left for the client's own classes. Extractor and
    generic head are averaged.

    Deviations from the paper: personal heads are trained, not made by a hyper-network; they start as the
    initial generic head. Of the balanced losses, the balanced softmax.
    """

    facts = Facts(tasks=("classes",))

    balanced: bool = True
    """Whether the generic head has the balanced loss; without it, the plain cross-entropy."""
    head: Cut = "last_layer"
    """What a head is: ``last_layer``, or ``fc_stack``, everything after the flatten, with its BatchNorm."""

    def init_client(self, client: Client) -> State:
        """Start the personal head as the generic one."""
        return {"own": client.context.head_part(client.initial, self.head)}

    def state_for_new_clients(self, context: Context, state: State) -> State:
        """New clients start from the mean of the personal heads."""
        return state

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Train the generic model, and the personal head on its features."""
        net, cut = client.net, self.head

        def loss(w: dict[str, Params], batch: Batch, prior: Tensor) -> Tensor:
            """The balanced loss of the generic model, and the cross-entropy of both heads together."""
            z = net.features(w["generic"], batch.x, cut)
            generic = net.head(w["generic"], z, cut)
            personal = generic.detach() + net.head(w["own"], z.detach(), cut)
            return client.loss_of(generic + prior, batch) + client.loss_of(personal, batch)

        prior = log_counts(client.class_counts, like=state["own"]["head.weight"]) * self.balanced
        start = {"generic": down["weights"], "own": state["own"]}
        w = (await client.fit(start, loss, prior)).weights
        return {"weights": w["generic"]}, {"own": w["own"]}

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        """Score both heads together, and the generic one alone."""
        net = client.net.eval
        z = await client.features(down["weights"], x, self.head)
        generic = net.head(down["weights"], z, self.head)
        return {"personal": generic + net.head(state["own"], z, self.head), "global": generic}
