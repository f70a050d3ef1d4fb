"""Check what the hooks of a method return, except uploads, which ``training.sums`` adds up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch.utils import _pytree as pytree

from rayfl.errors import BadCode
from rayfl.methods import Method
from rayfl.system.text import shown
from rayfl.training.params import Params
from rayfl.training.state import State, take_apart

Spec = dict[str, Any]
"""What must stay the same in a state: its keys, and of tensors the type and all but the first dimension."""


def spec(state: State) -> Spec:
    """Return what must stay the same in a state: the first dimension of tensors may grow.

    Raises:
        TypeError: it holds what no state may hold.
    """
    _, tensors = take_apart(state)
    kinds = {path: (str(t.dtype), t.ndim, *t.shape[1:]) for path, t in tensors.items()}
    return dict.fromkeys(f"state/{key}" for key in state) | kinds


def lost(first: Spec, now: Spec) -> str | None:
    """Return what is missing in a state, or has another form than at first; None if nothing.

    Values that were None, numbers or empty dicts at first may be anything now.
    """
    return next(
        (at for at, kind in first.items() if at not in now or kind not in (None, now[at])),
        None,
    )


def check_state(call: str, found: Any, when: str, first: Spec | None = None) -> State:
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
        raise BadCode(call, f"has returned {shown(found)}, {when}: a state is a dict")
    state = dict(found)
    try:
        now = spec(state)
    except TypeError as error:
        raise BadCode(call, f"has returned what no state holds, {when}: {error}") from error
    numbers = (leaf for leaf in pytree.tree_leaves(state) if isinstance(leaf, float))
    if first is None and not all(map(math.isfinite, numbers)):  # what comes later is looked at as an update
        raise BadCode(
            call, f"has returned NaN or infinity, {when}, which no checkpoint holds: begin with None"
        )
    if at := lost(first or {}, now):
        raise BadCode(
            call,
            f"has returned a state whose {at.removeprefix('state/')!r} is gone, or of another kind than at "
            f"first, {when}: others read it, and a resumed run needs it. Return all keys, as in "
            "{**state, 'own': w}; weights keep their names, tensors their type and all but the first "
            "dimension; what is to become anything else is None at first",
        )
    return state


def check_update(call: str, both: Any, when: str, first: Spec) -> tuple[Mapping[str, Any], State]:
    """Return the upload and the next state that a client's update has returned; see ``check_state``.

    A client may also keep nothing.
    """
    if not isinstance(both, tuple) or len(both) != 2 or not isinstance(both[0], Mapping):
        raise BadCode(
            call,
            f"has returned {shown(both)}, {when}: it must return two mappings, the upload and the next state",
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
