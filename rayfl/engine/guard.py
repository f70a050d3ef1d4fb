"""Refuse methods with memory or draws of their own: results must not depend on the processes."""

from __future__ import annotations

import functools
import itertools
import random
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rayfl.errors import BadCode
from rayfl.system.own_code import is_own
from rayfl.training.params import Params

MEMORY_ADVICE = (
    "A method has no memory of its own: other processes do not see the change, and a resumed run has lost "
    "it. What a client has to remember belongs into the state that local_update returns, the server's into "
    "aggregate's"
)
"""What a method should do instead of changing itself."""
DRAW_ADVICE = (
    "Draw with client.generator(purpose) or, on the server, with cohort.context.generator(purpose, round); "
    "inside a loss by rayfl.training.noise with batch.key"
)
"""What a method should draw from."""
GENERATORS = ("PyTorch", "NumPy", "Python", "PyTorch's CUDA")
RAY_START_LOCK = threading.Lock()
"""Held while a thread of this process starts or joins Ray. Ray draws from Python's generator then, and the
guard could not tell its draws from a method's."""


class Guard:
    """The attributes of a method, or of something else that has no memory, and the global generators.

    They are compared with what they were before a call.

    Args:
        thing: the method.
        device: of the weights.
        call: what is called, such as ``local_update``.
        when: for messages, such as ``round 3``.
        memory: what to do instead of changing attributes.
        draw: what to draw from instead of global generators.
    """

    def __init__(
        self,
        thing: Any,
        device: torch.device,
        call: str,
        when: str,
        memory: str = MEMORY_ADVICE,
        draw: str = DRAW_ADVICE,
    ) -> None:
        self._thing, self._device = thing, device
        self._call, self._when = f"{type(thing).__name__}.{call}", when
        self._memory, self._draw = memory, draw
        self._public_attributes, self._drawn = _public_attributes(thing), _generator_states(device)
        self._inside = Snapshot(**{name: [value] for name, value in self._public_attributes.items()})

    def check(self) -> None:
        """Refuse changes and draws since."""
        before, now = self._public_attributes, _public_attributes(self._thing)
        others = (name for name in {**before, **now} if before.get(name, self) is not now.get(name, self))
        if changed := next(others, None) or self._inside.first_change():
            raise BadCode(self._call, f"has changed {changed} ({self._when}). {self._memory}")
        for generator, before, after in zip(
            GENERATORS, self._drawn, _generator_states(self._device), strict=False
        ):
            if before != after and None not in (before, after):
                raise BadCode(
                    self._call,
                    f"has drawn from {generator}'s global generator ({self._when}), so that results depend "
                    f"on which process computes what. {self._draw}",
                )

    def check_unchanged(self, handed: Snapshot, whose: str = "") -> None:
        """Refuse changes of what was handed out.

        Args:
            handed: what it was before.
            whose: for messages, such as ``client 3``.
        """
        if place := handed.first_change():
            when = f"{whose} in {self._when}" if whose else self._when
            raise BadCode(
                self._call,
                f"has changed in place what it was handed: {place} ({when}). Others use it, too",
                "Make something new instead, as `a + b` and `t.clone()` do, and return it",
            )


@contextmanager
def guard_call(
    thing: Any, device: torch.device, call: str, when: str, **handed: Sequence[Any]
) -> Iterator[None]:
    """Refuse draws in the body, and changes of the thing or of what it is handed."""
    guard, before = Guard(thing, device, call, when), Snapshot(**handed)
    yield
    guard.check()
    guard.check_unchanged(before)


class Snapshot:
    """The arguments of a method, as they are before a call.

    Args:
        trees: name -> nests of mappings, Params and tensors, which go by this name.
    """

    def __init__(self, **trees: Sequence[Any]) -> None:
        self._trees = trees
        self._nodes: list[tuple[Any, Collection[Any], list[Any]]] = []
        self._versions: list[tuple[Tensor, int]] = []
        open_ = [tree for nest in trees.values() for tree in nest]
        seen: set[int] = set()
        while open_:
            node = open_.pop()
            if isinstance(node, Params):
                node = node.tensors
            if isinstance(node, Tensor):
                self._versions.append((node, node._version))
            elif isinstance(node, dict | list | tuple | set) and id(node) not in seen:
                seen.add(id(node))  # most arguments are the same for all clients
                values = node.values() if isinstance(node, dict) else node  # a view: it shows changes
                self._nodes.append((node, values, list(values)))
                open_ += values

    def first_change(self) -> str | None:
        """Return where something has changed since; None if nothing has."""
        changed = {id(t) for t, version in self._versions if t._version != version}
        for node, values, held in self._nodes:
            if len(values) != len(held) or any(a is not b for a, b in zip(values, held, strict=True)):
                changed.add(id(node))
        if not changed:
            return None
        places = (_changed_places(tree, changed, name) for name, nest in self._trees.items() for tree in nest)
        return next(itertools.chain.from_iterable(places))


def _public_attributes(thing: Any, prefix: str = "self.") -> dict[str, Any]:
    """Return public attributes."""
    found, cls = dict[str, Any](), thing.__class__
    for owner in (*_own_classes(cls), thing):
        found |= {prefix + name: value for name, value in vars(owner).items() if not name.startswith("_")}
    return found


@functools.cache
def _own_classes(cls: type) -> list[type]:
    """Return the class and those below it whose attributes may change: the user's own."""
    return [each for each in cls.__mro__ if is_own(each)]


def _changed_places(tree: Any, changed: set[int], place: str) -> Iterator[str]:
    """Yield the places of changed values in a nest, as Python expressions."""
    if isinstance(tree, Params):
        tree = tree.tensors
    if id(tree) in changed:
        yield place
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from _changed_places(value, changed, f"{place}[{key!r}]")
    elif isinstance(tree, list | tuple):
        for number, value in enumerate(tree):
            yield from _changed_places(value, changed, f"{place}[{number}]")


def _generator_states(device: torch.device) -> list[Any]:
    """Return the states of ``GENERATORS``; None for one from which others draw, too."""
    state = np.random.get_state(legacy=False)["state"]  # noqa: NPY002, it is others that must not use it
    numpys = (state["pos"], state["key"].tobytes())
    pythons = None if RAY_START_LOCK.locked() else random.getstate()
    states: list[Any] = [torch.get_rng_state().numpy().tobytes(), numpys, pythons]
    return [*states, torch.cuda.get_rng_state(device).numpy().tobytes()] if device.type == "cuda" else states
