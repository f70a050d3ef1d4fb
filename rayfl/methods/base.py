"""What a federated method is: a class of functions from explicit values to explicit values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from rayfl.training.client import Client
from rayfl.training.net import Net
from rayfl.training.params import Params
from rayfl.training.reduce import Mean, Reduction, payload_bytes
from rayfl.training.state import State

Averaging = Literal["samples", "uniform"]


@dataclass(frozen=True)
class Cohort:
    """The clients whose uploads are aggregated in a round.

    Attributes:
        ids: their numbers, ascending.
        samples: their training samples, n_i, in the same order.
        population: the number of all clients, N.
        round: the round, from 0.
    """

    ids: tuple[int, ...]
    samples: tuple[int, ...]
    population: int
    round: int


class Method(ABC):
    """Base of all methods: override what differs from FedAvg.

    A method has no memory of its own. What a client keeps is the state that ``init_client`` and
    ``local_update`` return; what the server keeps is the state that ``init_server`` and ``aggregate`` return.
    States are nested dicts of Params, tensors, numbers, bools and None. Values handed in are never changed.

    ``weights`` in the defaults below is the shared part of the net, as ``shared`` decides.

    Attributes:
        averaging: the weights of means that do not fix their own: by ``samples`` or ``uniform``. The
            default of the class; a run may set another.
        views: the models that ``scores`` evaluates. ``personal`` is what the client would use; ``global`` is
            the server's model where there is one; further names are components.
        views_without_loss: views whose scores are not logits.
        net: the net, set when a run is built, as are ``population`` (the number of all clients) and ``seed``.
    """

    averaging: Averaging = "samples"
    views: ClassVar[tuple[str, ...]] = ("personal", "global")
    views_without_loss: frozenset[str] = frozenset()
    net: Net
    population: int
    seed: int

    def bind(self, net: Net, population: int, seed: int) -> None:
        """Take up the facts of the run, and refuse what the method cannot do with them.

        Called once per process, and before any is started, ahead of everything else.

        Args:
            net: the net; which of its entries are shared is worked out here.
            population: the number of all clients, N.
            seed: the run's seed, for randomness that client and server have in common.

        Raises:
            UserError: the method cannot work with this net or this number of clients.
        """
        self.net = net
        self.population = population
        self.seed = seed
        self._shared = frozenset(n for n, module in net.modules_of.items() if self.shared(n, module))

    # ---- what is exchanged

    @property
    def uploads(self) -> Mapping[str, Reduction]:
        """Upload key -> how the server combines it."""
        return {"weights": Mean(self.averaging)}

    def shared(self, name: str, module: nn.Module) -> bool:
        """Say whether an entry of the net travels (true) or stays with the client.

        Args:
            name: the entry, such as ``conv.1.running_mean``.
            module: the layer it belongs to.
        """
        return True

    def shared_part(self, w: Params) -> Params:
        """Return the entries that travel."""
        return w.select(self._shared.__contains__)

    def personal_part(self, w: Params) -> Params:
        """Return the entries that stay with the client."""
        return w.select(lambda name: name not in self._shared)

    def traffic(
        self, client: Client, down: State, up: Mapping[str, Any]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Return the bytes of this client's own download and upload by key, as if it travelled alone."""
        return (
            {key: payload_bytes(value) for key, value in down.items()},
            {key: payload_bytes(value) for key, value in up.items()},
        )

    # ---- server

    def init_server(self, initial: Params) -> State:
        """Return the server's state before the first round.

        Args:
            initial: the run's initial weights of the whole net.
        """
        return {"weights": self.shared_part(initial)}

    def download(self, server: State) -> State:
        """Return what every client of a round receives."""
        return server

    def download_for(self, server: State, client: int) -> State:
        """Return what one client receives besides, by keys that ``download`` does not use."""
        return {}

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        """Return the server's next state.

        Args:
            server: its state.
            up: upload key -> combined payload; a key that nobody uploaded is absent.
            cohort: whose uploads they are.
        """
        return {**server, **up}

    # ---- client

    def init_client(self, client: Client) -> State:
        """Return the client's personal state before its first participation."""
        return {}

    @abstractmethod
    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Train; return the upload and the next personal state.

        Args:
            client: whose ``fit`` is awaited, once per phase.
            state: the client's personal state.
            down: what the server sent.
        """

    def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        """Return the scores, [B, classes], of every view for images x, [B, C, H, W].

        Args:
            client: gives ``client.net.eval``.
            state: the client's personal state, which may be old if the client was not sampled lately.
            down: what the server would send now; right after training, what ``trained`` returns.
            x: images.
        """
        scores = client.net.eval(down["weights"], x)
        return {"personal": scores, "global": scores}

    def trained(self, down: State, up: Mapping[str, Any]) -> State:
        """Return ``down`` with the client's own upload in place: what it predicts with after training."""
        return {**down, **{key: value for key, value in up.items() if key in down}}
