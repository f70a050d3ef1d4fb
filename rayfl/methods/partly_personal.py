"""What methods have in common that average a part of the net and leave the rest with the clients."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, get_args

from torch import Tensor, nn

from rayfl.methods.base import Method
from rayfl.training import Client, Context, State
from rayfl.training.net import Cut, Net


class PartlyPersonal(Method):
    """FedAvg of the entries that ``shared`` selects; the others are trained along and stay with the client.

    A client that is not sampled keeps its part as it is, and is scored with it and the newest shared part.
    """

    views = ("personal",)

    @abstractmethod
    def shared(self, net: Net, name: str, module: nn.Module) -> bool:
        """Return whether an entry of the net is sent (true) or stays; see ``Method.shared``."""

    def init_client(self, client: Client) -> State:
        """Start from the common initial weights."""
        return {"own": client.personal_part(client.initial)}

    def state_for_new_clients(self, context: Context, state: State) -> State:
        """New clients start from the mean of the clients' own parts."""
        return state

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Train the received part together with the own one."""
        w = (await client.fit(down["weights"].merge(state["own"]), client.loss)).weights
        return {"weights": client.shared_part(w)}, {"own": client.personal_part(w)}

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        """Score the shared part together with the own one."""
        cuts: tuple[Cut, ...] = get_args(Cut)
        cut = next((cut for cut in cuts if client.net.names(cut, "head") == state["own"].keys()), None)
        if cut is None:
            return {"personal": await client.eval(down["weights"].merge(state["own"]), x)}
        z = await client.features(down["weights"], x, cut)
        return {"personal": client.net.eval.head(state["own"], z, cut)}
