"""What a federated method is: a class of functions from explicit values to explicit values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

from torch import Tensor, nn

from rayfl.data import FederatedData
from rayfl.errors import Conflict
from rayfl.nets import Architecture
from rayfl.settings import Settings
from rayfl.settings.arguments import arguments_of
from rayfl.training.client import Client
from rayfl.training.context import Averaging, Context
from rayfl.training.net import Net
from rayfl.training.settings import Training
from rayfl.training.state import State
from rayfl.training.sums import Mean, Reduction, payload_bytes


def _union_types(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the type itself if it is no union."""
    return get_args(kind) or (kind,)


@dataclass(frozen=True)
class Cohort:
    """The clients whose uploads are aggregated in a round.

    Attributes:
        ids: their numbers, ascending.
        samples: their training samples, n_i, in the same order.
        round: the round, from 0.
        population_samples: the training samples of all clients, n.
        context: the facts of the run.
    """

    ids: tuple[int, ...]
    samples: tuple[int, ...]
    round: int
    population_samples: int
    context: Context

    @property
    def share(self) -> float:
        """The cohort's part of the weight that all clients have in the run's means, above 0 and up to 1."""
        if self.context.averaging == "uniform":
            return len(self.ids) / self.context.population
        return sum(self.samples) / self.population_samples


class Method(Settings, ABC, place="method"):
    """Base of all methods: override what differs from FedAvg, which is no more than this::

        class FedAvg(Method):
            async def local_update(self, client, state, down):
                fitted = await client.fit(down["weights"], client.loss)
                return {"weights": fitted.weights}, state

    Members come in groups: what a method *must* have, what it *often* overrides, and what it *rarely* does.

    A method is its options, which do not change, and has no memory of its own: the facts of the run come with
    the hooks, as ``client`` and as ``context``. What a client keeps is the state that ``init_client`` and
    ``local_update`` return; what the server keeps is the state that ``init_server`` and ``aggregate`` return.
    States are nested dicts of Params, tensors, numbers, bools and None. Values handed in are never changed.

    ``weights`` in the defaults below is the shared part of the net, as ``shared`` decides.

    What a class annotates are its options; see :mod:`rayfl.settings`. One of type ``Architecture | str |
    None`` is a further net: it is built for the data, and is ``nets[option]`` of the context and of clients.

    Attributes:
        averaging: the weights of means that do not fix their own: by ``samples`` or ``uniform``. The
            default of the class; a run may set another.
        heterogeneous: whether clients may have different nets; the weights of such nets have no mean.
        uses_validation: whether every client that trains needs validation data, for
            ``client.total(..., split="val")``; a run without them is refused.
        prefers_validation: whether the method goes by a client's validation data, and by its training data
            where it has none; a run warns of such clients.
        works_with: settings of ``training`` with which alone the method's formulas hold, or without which
            they would be ignored; other values are refused. ``SGD`` stands for every optimiser that is
            linear. A method that reads ``Fitted.effective_steps`` needs
            ``{"optimiser": "SGD", "optimiser_state": "fresh"}``.
        uses_rounds: whether the method reads ``context.rounds``, for a schedule over the run, say. Such a run
            cannot be resumed with another number of rounds.
    """

    averaging: ClassVar[Averaging] = "samples"
    heterogeneous: ClassVar[bool] = False
    uses_validation: ClassVar[bool] = False
    prefers_validation: ClassVar[bool] = False
    uses_rounds: ClassVar[bool] = False
    works_with: ClassVar[Mapping[str, str | float]] = {}

    # ---- must

    @abstractmethod
    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Train; return the upload and the next personal state.

        Args:
            client: whose ``fit`` is awaited, once per phase.
            state: the client's personal state.
            down: what the server sent.
        """

    # ---- often

    def shared(self, net: Net, name: str, module: nn.Module) -> bool:
        """Return whether an entry of the net is sent (true) or stays with the client.

        Args:
            net: the net.
            name: the entry, such as ``conv.1.running_mean``.
            module: the layer it belongs to.
        """
        return True

    def uploads(self, context: Context) -> Mapping[str, Reduction]:
        """Return upload key -> how the server combines it."""
        return {"weights": Mean()}

    def init_client(self, client: Client) -> State:
        """Return the client's personal state before its first participation."""
        return {}

    def init_server(self, context: Context) -> State:
        """Return the server's state before the first round.

        Args:
            context: has the run's ``initial`` weights of the whole net.
        """
        return {"weights": context.shared_part(context.initial)}

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        """Return the server's next state.

        Args:
            server: its state.
            up: upload key -> combined payload; a key that no client uploaded is absent.
            cohort: whose uploads they are.
        """
        return {**server, **up}

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        """Return the scores, [B, classes], of every view for inputs x, [B, ...].

        Args:
            client: whose ``eval`` and ``features`` are awaited: inputs of many clients that wait for the same
                weights go into one call.
            state: the client's personal state, which may be old if the client was not sampled lately.
            down: what the server would send now; right after training, what ``trained`` returns.
            x: inputs.
        """
        scores = await client.eval(down["weights"], x)
        return {"personal": scores, "global": scores}

    @property
    def views(self) -> tuple[str, ...]:
        """The models that ``scores`` evaluates.

        ``personal`` is what the client would use; ``global`` is the server's model where there is one;
        further names are components.
        """
        return ("personal", "global")

    # ---- rarely

    @property
    def fallback(self) -> str | None:
        """The view by which a client counts that has never trained, in the place of ``personal``.

        ``global`` where there is one. None stands for ``personal`` with the state of a new client: see
        ``state_for_new_clients``.
        """
        return "global" if "global" in self.views else None

    def prepare(self, context: Context) -> Any:
        """Return what a process works out once, as ``context.prepared``; refuse a run that cannot be done.

        Called before any process is started, and then once in each.
        """

    def check_nets(self, nets: Mapping[str, Net]) -> None:
        """Refuse clients with different nets where the method cannot work with these.

        Called before ``prepare``, where there are at least two.

        Args:
            nets: name -> net.
        """
        if not self.heterogeneous:
            raise Conflict(
                "net",
                f"names {len(nets)}: {', '.join(nets)}, and {type(self).__name__} combines weights of the "
                "clients' nets, so that all need the same",
                "Give one net, or choose a method for different ones",
            )

    def download(self, server: State) -> State:
        """Return what every client of a round receives."""
        return server

    def download_for(self, server: State, client: int) -> State:
        """Return what one client receives in addition, by keys that ``download`` does not use."""
        return {}

    def trained(self, down: State, up: Mapping[str, Any]) -> State:
        """Return ``down`` with the client's own upload in place: what it predicts with after training."""
        return {**down, **{key: value for key, value in up.items() if key in down}}

    def communication_bytes(
        self, client: Client, down: State, up: Mapping[str, Any]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Return the bytes of this client's own download and upload by key, as if it travelled alone."""
        return (
            {key: payload_bytes(value) for key, value in down.items()},
            {key: payload_bytes(value) for key, value in up.items()},
        )

    def server_metrics(self, context: Context, server: State) -> dict[str, float | list[float]]:
        """Return numbers of the server's state to be recorded every round, such as weights of clients."""
        return {}

    def caution(self, training: Training, data: FederatedData) -> str | None:
        """Return a warning before a run of which these settings or data make something else than is meant.

        Args:
            training: how clients train.
            data: all clients' data.
        """
        return None

    def warning(self, metrics: Mapping[str, float | list[float]]) -> str | None:
        """Return a warning if the metrics at a run's end say that a part of the method did nothing."""
        return None

    @property
    def views_without_loss(self) -> frozenset[str]:
        """Views whose scores are not logits."""
        return frozenset()

    def state_for_new_clients(self, context: Context, state: State) -> State:
        """Return what of a client's state serves new clients, who start from the uniform mean of these."""
        return {}

    async def adapt(self, client: Client, state: State, down: State, moves: bool) -> State:
        """Adapt to a client that has never trained, by its inputs alone; return its state.

        Args:
            client: its training data are the inputs to adapt to; all labels are -1.
            state: its state as a new client: ``init_client``'s with what others give.
            down: what the server would send.
            moves: whether parameters move; if not, steps have length 0, and only what is not learned by
                gradients, such as running statistics, is renewed: the control.
        """
        return state

    def changes(self, context: Context) -> Mapping[str, str | None]:
        """Return what wrappers compress, clip or disturb: upload key of weights -> the download's key of
        those from which the client started, or None where a change is uploaded already.
        """
        return {"weights": "weights"} if "weights" in self.uploads(context) else {}

    # ---- what follows

    @property
    def architectures(self) -> Mapping[str, Architecture | str | None]:
        """What describes the method's further nets, by option; None stands for the run's net."""
        kinds = arguments_of(type(self))
        return {name: getattr(self, name) for name in kinds if Architecture in _union_types(kinds[name])}

    @property
    def chooses_parts(self) -> bool:
        """Whether the method decides what of a net travels."""
        return type(self).shared is not Method.shared

    @property
    def one_download(self) -> bool:
        """Whether all clients receive the same."""
        return type(self).download_for is Method.download_for

    @property
    def adapts(self) -> bool:
        """Whether the method can adapt to a client's inputs without their labels."""
        return type(self).adapt is not Method.adapt
