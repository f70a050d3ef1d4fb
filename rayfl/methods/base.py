"""What a federated method is: a class of functions from explicit values to explicit values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

from torch import Tensor, nn

from rayfl.data import FederatedData
from rayfl.data.task import Kind
from rayfl.nets import Architecture
from rayfl.settings import Settings
from rayfl.settings.arguments import arguments_of, union_members
from rayfl.training.client import Client
from rayfl.training.context import Averaging, Cohort, Context
from rayfl.training.net import Net
from rayfl.training.settings import Training
from rayfl.training.state import State
from rayfl.training.sums import Mean, Reduction, payload_bytes

Metrics = Mapping[str, float | list[float]]
"""Numbers of the server's state by name; a list has one for each client, say."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the engine, the checks before a run and ``rayfl.testing`` need to know of a method.

    Attributes:
        averaging: the weights of means that do not fix their own: by ``samples`` or ``uniform``. A run may
            set another.
        nets: what the clients' nets must have in common: all (``equal``), the size of their features, the
            inputs of the last layer (``equal_features``), or nothing (``any``). Of different nets, only
            entries that are alike in all of them have a mean; see ``Method.shared``.
        validation: ``needed`` where every client that trains must have validation data, for
            ``client.total(..., split="val")``; ``preferred`` where the method goes by a client's training
            data if it has none, of which a run warns.
        works_with: settings of ``training`` with which alone the method's formulas hold, or without which
            they would be ignored: one value, or some; others are refused. ``SGD`` stands for every
            optimiser that is linear. A method that reads ``Fitted.effective_steps`` needs
            ``{"optimiser": "SGD", "optimiser_state": "fresh"}``.
        uses_rounds: whether the method reads ``context.rounds``, for a schedule over the run, say. Such a run
            cannot be resumed with another number of rounds.
        without_loss: views whose scores are not logits.
        before: who uploads what ``before_round`` returns: the cohort of every ``round``, or all clients
            ``once``.
        unchecked: checks of ``rayfl.testing`` that do not hold for the method -> why.
        tasks: the kinds of targets for which the method's formulas have a meaning.
        reads_losses: whether the method reads losses of single samples, ``client.losses_of``.
    """

    averaging: Averaging = "samples"
    nets: Literal["equal", "equal_features", "any"] = "equal"
    validation: Literal["unused", "preferred", "needed"] = "unused"
    works_with: Mapping[str, str | float | tuple[str, ...]] = field(default_factory=dict)
    uses_rounds: bool = False
    without_loss: frozenset[str] = frozenset()
    before: Literal["round", "once"] = "round"
    unchecked: Mapping[str, str] = field(default_factory=dict)
    tasks: tuple[Kind, ...] = get_args(Kind)
    reads_losses: bool = False


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
    """

    facts: ClassVar[Facts] = Facts()
    """What the method declares; a property where it depends on the options."""

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

    async def before_round(self, client: Client, state: State, down: State) -> dict[str, Any]:
        """Return what a client uploads before the round's training: the uploads with ``before=True``.

        What they combine to is ``server["before"]``, upload key -> value, when the round's download is made;
        until the first such exchange it is empty. Everybody in the cohort is asked in every round, or all
        clients once, before the first round (``facts.before``).

        Args:
            client: whose ``fit`` may be awaited; it draws otherwise than in the round's training.
            state: the client's personal state, which stays as it is.
            down: what the server would send now.
        """
        return {}

    async def personalise(self, client: Client, state: State, down: State) -> State:
        """Return the state with which a client is scored in this evaluation alone: it is not kept.

        Not asked for clients without training data, right after training, and for models without their
        data: ``scores`` then finds the ordinary state, and falls back on ``down``.

        Args:
            client: whose ``fit`` is awaited on its training data; it draws otherwise than in training.
            state: its personal state.
            down: what the server would send now.
        """
        return state

    def modules(self, net: Net) -> Mapping[str, Callable[[], nn.Module]]:
        """Return modules of the method's own, such as projections of features: name -> what builds one.

        Each takes one tensor. They are in ``context.nets`` and ``client.nets`` beside further nets, their
        weights are ``Params`` (with names that begin with ``conv.``), and ``context.initial_of(name)`` draws
        the initial ones.

        Args:
            net: the first net, whose ``module.head.in_features`` is the number of features.
        """
        return {}

    def prepare(self, context: Context) -> Any:
        """Return what a process works out once, as ``context.prepared``; refuse a run that cannot be done.

        Called before any process is started, and then once in each.
        """

    def download(self, server: State) -> State:
        """Return what every client of a round receives."""
        return server

    def download_for(self, server: State, client: int) -> State:
        """Return what one client receives in addition, by keys that ``download`` does not use."""
        return {}

    def trained(self, client: Client, down: State, up: Mapping[str, Any]) -> State:
        """Return ``down`` with the client's own upload in place, as ``uploads`` say: what it predicts with
        right after training.
        """
        own = dict(down)
        for key, how in self.uploads(client.context).items():
            base = how.base(key)
            if key in up and base in down:
                own[base] = down[base] + up[key] if how.adds_to else up[key]
        return own

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

    def warning(self, training: Training, data: FederatedData, metrics: Metrics) -> str | None:
        """Return a warning if a run makes something else of the method than is meant.

        Asked before the run, without metrics, and at its end, with those of the last round.

        Args:
            training: how clients train.
            data: all clients' data.
            metrics: what ``server_metrics`` returns.
        """
        return None

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

    # ---- what follows

    def overrides(self, hook: str) -> bool:
        """Return whether the method's class has a member of its own in the place of the default."""
        return getattr(type(self), hook) is not getattr(Method, hook)


def has_exchange(method: Method, round: int) -> bool:
    """Return whether clients upload before the training of a round (from 0); see ``Method.before_round``."""
    return method.overrides("before_round") and (round == 0 or method.facts.before == "round")


def further_nets(method: Method) -> dict[str, Architecture | str | None]:
    """Return what describes a method's further nets, by option; None stands for the run's net."""
    kinds = arguments_of(type(method))
    return {name: getattr(method, name) for name in kinds if Architecture in union_members(kinds[name])}
