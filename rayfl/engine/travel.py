"""What goes between the processes of a federation, and what hooks of a method may return for that.

States pack themselves on the way. Uploads are for ``training.sums``, which adds them up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from torch.utils import _pytree as pytree

from rayfl.engine.base import ClientGroup
from rayfl.errors import BadCode
from rayfl.evaluation.score import ClientScores
from rayfl.methods import Method
from rayfl.system.text import short_repr
from rayfl.training.context import Context
from rayfl.training.params import Params
from rayfl.training.state import Packed, State, pack, take_apart, unpack


class Download(NamedTuple):
    """What clients receive; packed into one buffer per dtype when it travels, without repetitions.

    Attributes:
        everyone: what all clients receive.
        each: client -> what it receives besides.
        transforms: what server halves of transforms keep, for the client halves.
    """

    everyone: State
    each: dict[int, State]
    transforms: State = {}  # noqa: RUF012, never changed

    def for_client(self, id: int) -> State:
        """Return all that one client receives."""
        own = self.each.get(id, {})
        if both := sorted(own.keys() & self.everyone.keys()):
            raise BadCode("download_for", f"has the key {both[0]!r}, as download has", "choose another")
        return {**self.everyone, **own} if own else self.everyone

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack_download, (pack(self._asdict()),)


EMPTY_DOWNLOAD = Download({}, {})


class States(dict[int, State]):
    """Client -> personal state; packed into one buffer per dtype when they travel."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack_states, (pack(self),)


def _unpack_download(packed: Packed) -> Download:
    return Download(**unpack(packed))


def _unpack_states(packed: Packed) -> States:
    return States(unpack(packed))


Hook = Literal["local_update", "before_round", "personalise"]
"""What of a method trains; the last one for an evaluation."""


@dataclass
class RoundResult:
    """What a round tells about the clients that were trained; small, and the only thing the driver sees.

    All lists are parallel to ``ids``; ``up`` and ``down`` are bytes by payload key. ``bad`` says what is
    wrong with an update, or why there is none (its loss is None then, and it counts no steps and no bytes);
    ``idle`` are clients whose fits took no step: their uploads have no weight. ``keeps`` are the clients
    that have a personal state, ``largest_state`` the bytes of the largest of these,
    ``bytes_down`` and ``bytes_up`` what has travelled between processes.
    """

    ids: list[int] = field(default_factory=list)
    loss: list[float | None] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    up: dict[str, list[int]] = field(default_factory=dict)
    down: dict[str, list[int]] = field(default_factory=dict)
    bad: dict[int, str] = field(default_factory=dict)
    idle: set[int] = field(default_factory=set)
    scores: dict[int, ClientScores] = field(default_factory=dict)
    seconds: dict[ClientGroup, float] = field(default_factory=dict)
    keeps: set[int] = field(default_factory=set)
    largest_state: int = 0
    bytes_down: int = 0
    bytes_up: int = 0

    def merge(self, other: RoundResult) -> None:
        """Add another process's part."""
        for mine, theirs in ((self.up, other.up), (self.down, other.down)):
            for key in {**mine, **theirs}:
                column = mine.setdefault(key, [0] * len(self.ids))
                column.extend(theirs.get(key, [0] * len(other.ids)))
        for name in ("ids", "loss", "steps"):
            getattr(self, name).extend(getattr(other, name))
        self.largest_state = max(self.largest_state, other.largest_state)
        for name in ("bad", "idle", "scores", "seconds", "keeps"):
            getattr(self, name).update(getattr(other, name))

    def sort(self) -> None:
        """Put the clients in the order of their numbers."""
        order = sorted(range(len(self.ids)), key=self.ids.__getitem__)
        columns: list[list[Any]] = [self.ids, self.loss, self.steps, *self.up.values(), *self.down.values()]
        for column in columns:
            column[:] = [column[k] for k in order]

    def add(self, id: int, loss: float | None, steps: int, down: dict[str, int], up: dict[str, int]) -> None:
        """Add a client."""
        sent, received = ({key: [count] for key, count in each.items()} for each in (up, down))
        self.merge(RoundResult([id], [loss], [steps], sent, received))


BEFORE = "before"
"""Key of the server's state for what clients have uploaded before a round's training."""
StateSpec = dict[str, Any]
"""What must stay the same in a state: its keys, and of tensors the type and all but the first dimension."""


def state_spec(state: State) -> StateSpec:
    """Return what must stay the same in a state: the first dimension of tensors may grow.

    Raises:
        TypeError: it holds what no state may hold.
    """
    _, tensors = take_apart(state)
    kinds = {path: (str(t.dtype), t.ndim, *t.shape[1:]) for path, t in tensors.items()}
    return dict.fromkeys(f"state/{key}" for key in state) | kinds


def first_missing(first: StateSpec, now: StateSpec) -> str | None:
    """Return what is missing in a state, or has another form than at first; None if nothing.

    Values that were None, numbers or empty dicts at first may be anything now.
    """
    return next(
        (at for at, kind in first.items() if at not in now or kind not in (None, now[at])),
        None,
    )


def check_state(call: str, found: Any, when: str, first: StateSpec | None = None) -> State:
    """Return the state that a hook has returned, of a client or the server.

    Args:
        call: the hook, for messages.
        found: what it has returned.
        when: for messages.
        first: the spec of its first state, if there was one.

    Raises:
        UserError: it is none, or no run could be resumed from it.
    """
    if not isinstance(found, Mapping) or isinstance(found, Params):
        raise BadCode(call, f"has returned {short_repr(found)}, {when}: a state is a dict")
    state = dict(found)
    try:
        now = state_spec(state)
    except TypeError as error:
        raise BadCode(call, f"has returned what no state holds, {when}: {error}") from error
    numbers = (leaf for leaf in pytree.tree_leaves(state) if isinstance(leaf, float))
    if first is None and not all(map(math.isfinite, numbers)):  # what comes later is looked at as an update
        raise BadCode(
            call, f"has returned NaN or infinity, {when}, which no checkpoint holds", "begin with None"
        )
    if at := first_missing(first or {}, now):
        raise BadCode(
            call,
            f"has returned a state whose {at.removeprefix('state/')!r} is gone, or of another kind than at "
            f"first, {when}: others read it, and a resumed run needs it. Return all keys, as in "
            "{**state, 'own': w}; weights keep their names, tensors their type and all but the first "
            "dimension; what is to become anything else is None at first",
        )
    return state


def first_server_state(method: Method, context: Context) -> Any:
    """Return the server's state before the first round, with room for what ``before_round`` uploads."""
    state = method.init_server(context)
    wanted = method.overrides("before_round") and isinstance(state, Mapping)
    return {BEFORE: {}, **state} if wanted else state


def check_update(call: str, both: Any, when: str, first: StateSpec) -> tuple[Mapping[str, Any], State]:
    """Return the upload and the next state that a client's update has returned; see ``check_state``.

    A client may also keep nothing.
    """
    if not isinstance(both, tuple) or len(both) != 2 or not isinstance(both[0], Mapping):
        raise BadCode(
            call,
            f"has returned {short_repr(both)}, {when}",
            "it must return two mappings, the upload and the next state",
        )
    return both[0], check_state(call, both[1], when, first if both[1] else None)


def check_views(method: Method, found: Mapping[str, Any]) -> None:
    """Refuse scores of other views than those that a method declares."""
    if found.keys() != set(method.views):
        returned, declared = (", ".join(map(repr, names)) or "none" for names in (found, method.views))
        raise BadCode(
            f"{type(method).__name__}.scores",
            f"returns the views {returned}, but `views` of the method has {declared}: both must be the same",
        )
