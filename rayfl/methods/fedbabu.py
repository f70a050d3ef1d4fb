"""FedBABU."""

from __future__ import annotations

from typing import Annotated, Any

from torch import Tensor, nn

from rayfl.methods.base import Method
from rayfl.settings import at_least
from rayfl.training import Client, Params, State
from rayfl.training.net import Cut, Net


class FedBABU(Method):
    """Body aggregation, body update (Oh et al., ICLR 2022).

    Clients train and average the body below a classifier that keeps its first values, which are the same for
    all. Before it is scored, a client tunes the whole net on its own data.

    Deviations from the paper: the tuning is repeated for every evaluation, and takes the learning rate of the
    last round.
    """

    tune_epochs: Annotated[int, at_least(0)] = 5
    """Epochs of tuning before scoring; 0 scores the global model."""
    cut: Cut = "last_layer"
    """The classifier: the last linear layer, or everything after the flatten (``fc_stack``)."""

    def shared(self, net: Net, name: str, module: nn.Module) -> bool:
        """Share the body."""
        return name not in net.names(self.cut, "head")

    @property
    def fallback(self) -> None:
        """Tune clients that have never trained, too: they keep nothing in any case."""
        return None

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Train the body alone (Algorithm 1)."""
        body = Params(client.initial.merge(down["weights"]).tensors, down["weights"].train_names)
        w = (await client.fit(body, client.loss)).weights
        return {"weights": client.shared_part(w)}, state

    async def personalise(self, client: Client, state: State, down: State) -> State:
        """Tune the received body and the first classifier."""
        whole = client.initial.merge(down["weights"])
        fitted = await client.fit(whole, client.loss, epochs=self.tune_epochs)
        return {**state, "tuned": fitted.weights}

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        """Score the tuned net, and the one that it is tuned from."""
        z = await client.features(down["weights"], x, self.cut)
        common = client.net.eval.head(client.initial, z, self.cut)
        own = await client.eval(state["tuned"], x) if "tuned" in state else common
        return {"personal": own, "global": common}
