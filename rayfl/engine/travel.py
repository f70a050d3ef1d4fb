"""Downloads and states, which are packed when they travel between the server and the workers."""

from __future__ import annotations

from typing import Any, NamedTuple

from rayfl.errors import BadCode
from rayfl.training.state import Packed, State, pack, unpack


class Download(NamedTuple):
    """What clients receive; packed into one buffer per dtype when it travels.

    Attributes:
        everyone: what all clients receive.
        each: client -> what it receives besides.
    """

    everyone: State
    each: dict[int, State]

    def of(self, id: int) -> State:
        """Return all that one client receives."""
        own = self.each.get(id, {})
        if both := sorted(own.keys() & self.everyone.keys()):
            raise BadCode("download_for", f"has the key {both[0]!r}, as download has: choose another")
        return {**self.everyone, **own} if own else self.everyone

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (pack(self.everyone), {i: pack(state) for i, state in self.each.items()})


NOTHING = Download({}, {})


class States(dict[int, State]):
    """Client -> personal state; packed into one buffer per dtype when they travel."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpacked, (pack(self),)


def _arrived(everyone: Packed, each: dict[int, Packed]) -> Download:
    return Download(unpack(everyone), {i: unpack(packed) for i, packed in each.items()})


def _unpacked(packed: Packed) -> States:
    return States(unpack(packed))
