"""Many clients' data in a few arrays: a million clients take some bytes each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np

from rayfl.data.dataset import ClientData
from rayfl.data.splits import SPLITS

_SEVERAL = -1
"""Stands for clients whose samples are of several domains."""


class Clients(Sequence[ClientData]):
    """The clients' data in the order of their numbers; each is made when it is asked for.

    Args:
        clients: what they are made of.

    Attributes:
        indices: per split int64, the indices of all clients, one after the other.
        ends: per split int64 [clients + 1], where each client's indices end; the first is 0.
        domains: int32 [clients], -1 for clients with several.
    """

    def __init__(self, clients: Iterable[ClientData]) -> None:
        held = list(clients)
        self.indices: dict[str, np.ndarray] = {}
        self.ends: dict[str, np.ndarray] = {}
        for split in SPLITS:
            parts = [each.split(split) for each in held]
            self.indices[split] = np.concatenate([np.zeros(0, np.int64), *parts])
            self.ends[split] = np.cumsum([0, *map(len, parts)])
        self.domains = np.array([_SEVERAL if c.domain is None else c.domain for c in held], np.int32)

    def __len__(self) -> int:
        return len(self.domains)

    @overload
    def __getitem__(self, number: int) -> ClientData: ...

    @overload
    def __getitem__(self, number: slice) -> tuple[ClientData, ...]: ...

    def __getitem__(self, number: int | slice) -> ClientData | tuple[ClientData, ...]:
        """Return a client's data, or those of several."""
        if isinstance(number, slice):
            return tuple(self[i] for i in range(*number.indices(len(self))))
        i = number + len(self) if number < 0 else number
        if not 0 <= i < len(self):
            raise IndexError(f"there is no client {number}: there are {len(self)}")
        domain = int(self.domains[i])
        train, val, test = (self.split(i, split) for split in SPLITS)
        return ClientData(train, val, test, None if domain == _SEVERAL else domain)

    def __iter__(self) -> Iterator[ClientData]:
        return (self[i] for i in range(len(self)))

    def split(self, number: int, name: str) -> np.ndarray:
        """Return the indices of a client's ``"train"``, ``"val"`` or ``"test"``."""
        ends = self.ends[name]
        return self.indices[name][ends[number] : ends[number + 1]]

    def counts(self, name: str) -> np.ndarray:
        """Return how many samples of a split each client has: int64 [clients]."""
        return np.diff(self.ends[name])

    def matrix(self, values: np.ndarray, kinds: int, name: str) -> np.ndarray:
        """Return how many samples of each kind each client has in a split: int64 [clients, kinds].

        Args:
            values: int64 [N], the kind of every sample of the data set.
            kinds: how many there are.
            name: of the split.
        """
        owners = np.repeat(np.arange(len(self)), self.counts(name))
        cells = owners * kinds + values[self.indices[name]]
        return np.bincount(cells, minlength=len(self) * kinds).reshape(len(self), kinds)
