"""FedRep."""

from __future__ import annotations

from typing import Annotated, Any

from torch import Tensor, nn

from rayfl.methods.partly_personal import PartlyPersonal
from rayfl.settings import at_least
from rayfl.training import Batch, Client, Params, State
from rayfl.training.net import Cut, Net


class FedRep(PartlyPersonal):
    """Shared representations (Collins et al., ICML 2021).

    Clients keep their classifiers, and train the two parts in turn: first the classifier on the received
    representation, then the representation below the new classifier.

    Deviations from the paper: clients start from a common classifier. While the classifier is trained, the
    BatchNorm layers of the representation use their running statistics.
    """

    personal: Cut = "last_layer"
    """``last_layer`` keeps the last linear layer with the client; ``fc_stack`` all after the flatten."""
    head_epochs: Annotated[int, at_least(1)] = 10
    """Epochs of the classifier in a round, tau in the paper; the representation has ``training.epochs``."""

    def shared(self, net: Net, name: str, module: nn.Module) -> bool:
        """Share the representation."""
        return name not in net.names(self.personal, "head")

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Train the classifier, then the representation (Algorithm 1, lines 7 to 10)."""
        net, cut = client.net, self.personal

        def of_head(head: Params, batch: Batch, base: Params) -> Tensor:
            z = net.eval.features(base, batch.x, cut).detach()
            return client.loss_of(net.head(head, z, cut), batch)

        def of_base(base: Params, batch: Batch, head: Params) -> Tensor:
            z = net.features(base, batch.x, cut)
            return client.loss_of(net.eval.head(head, z, cut), batch)

        head = (await client.fit(state["own"], of_head, down["weights"], epochs=self.head_epochs)).weights
        base = (await client.fit(down["weights"], of_base, head)).weights
        return {"weights": base}, {"own": head}
