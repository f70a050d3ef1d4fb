"""What methods have in common that average a part of the net and leave the rest with the clients."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal

from torch import Tensor, nn

from rayfl.methods.base import Method, is_overridden_with
from rayfl.training import Client, State
from rayfl.training.net import Cut, Net


class PartlyPersonal(Method):
    """FedAvg of the entries that ``shared`` selects; the others are trained along and stay with the client.

    A client that is not sampled keeps its part as it is, and is scored with it and the newest shared part.
    """

    views = ("personal",)

    @property
    def own_head(self) -> Cut | None:
        """Under which cut the clients' part is the head, so that samples of many share the extractor."""
        return None

    @abstractmethod
    def shared(self, name: str, module: nn.Module) -> bool:
        """Return whether an entry of the net is sent (true) or stays; see ``Method.shared``."""

    def init_client(self, client: Client) -> State:
        """Start from the common initial weights."""
        return {"own": self.personal_part(client.initial)}

    def state_for_new_clients(self, state: State) -> State:
        """New clients start from the mean of the clients' own parts."""
        return state

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Train the received part together with the own one."""
        w = (await client.fit(down["weights"].merge(state["own"]), client.loss)).weights
        return {"weights": self.shared_part(w)}, {"own": self.personal_part(w)}

    def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        """Score the shared part together with the own one."""
        return {"personal": client.net.eval(down["weights"].merge(state["own"]), x)}

    def common(self, net: Net, down: State, x: Tensor) -> dict[str, Tensor]:
        """Return the features, where the extractor is shared and the head is not."""
        assert self.own_head is not None
        return {"features": net.eval.features(down["weights"], x, self.own_head)}

    def own_scores(
        self, client: Client, state: State, down: State, common: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """Score features with the own head."""
        assert self.own_head is not None
        return {"personal": client.net.eval.head(state["own"], common["features"], self.own_head)}

    @property
    def in_common(self) -> Literal["nothing", "part", "all"]:
        """The extractor, or nothing."""
        known = self.own_head is not None and is_overridden_with(type(self), "own_head", "shared")
        return super().in_common if known else "nothing"
