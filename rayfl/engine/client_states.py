"""The personal states of a worker's clients: as many in memory as fit, and the others in a file on disk."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import torch
from torch import Tensor

from rayfl.errors import Shortage
from rayfl.system.memory import available_memory
from rayfl.training.state import State, put_together, take_apart
from rayfl.training.sums import payload_bytes

ALWAYS_KEPT_BYTES = 256 * 2**20
"""Bytes of states that are kept in memory however little is free."""
READ_AHEAD_STATES = 8
"""States that the system is asked to read before their turn."""


@dataclass(frozen=True)
class _Place:
    """Where a state is in the file, and how to rebuild it."""

    start: int
    size: int
    structure: Any
    layout: list[tuple[str, torch.dtype, tuple[int, ...]]]


class ClientStates(MutableMapping[int, State]):
    """Client -> personal state. It is used as a dict, and a state may have to come from the disk first.

    A state stays in memory if there is room when it is set. Otherwise it is in the file, of which the system
    caches what memory allows. Federations use all states in turn, so the states that have stayed first are
    as good as any others.

    The file has no name, so it goes with the process however that ends. It is where ``TMPDIR`` says, or in
    ``/var/tmp``, which unlike ``/tmp`` is never in memory.

    Args:
        memory: bytes of states that stay in memory, for all workers of this machine together; None for half
            of what is free when they have become many.
    """

    def __init__(self, memory: float | None = None) -> None:
        self._memory, self._workers = memory, 1
        self._limit: float | None = None
        self._here: dict[int, tuple[State, int]] = {}  # with their bytes
        self._bytes = 0  # of these
        self._places: dict[int, _Place] = {}  # of the others
        self._ahead: Iterator[int] = iter(())  # whom the system has not been asked to read yet
        self._disk: _StateFile | None = None

    def set_worker_count(self, workers: int) -> None:
        """Set how many workers share this machine's memory."""
        self._workers, self._limit = workers, None

    def expect_reads(self, ids: Iterable[int]) -> None:
        """Announce whose states will be read, in this order: the system reads some of them ahead."""
        self._ahead = iter([i for i in ids if i in self._places])
        self._read_ahead(READ_AHEAD_STATES)

    def _read_ahead(self, count: int) -> None:
        for id in islice(self._ahead, count):
            if self._disk is not None and id in self._places:
                self._disk.will_read(self._places[id])

    def __len__(self) -> int:
        return len(self._here) + len(self._places)

    def __iter__(self) -> Iterator[int]:
        return chain(self._here, self._places)

    def __contains__(self, id: object) -> bool:
        return id in self._here or id in self._places

    def __getitem__(self, id: int) -> State:
        if id in self._here:
            return self._here[id][0]
        place = self._places[id]
        assert self._disk is not None
        self._read_ahead(1)
        return self._disk.read(place)

    def __setitem__(self, id: int, state: State) -> None:
        if id in self:
            del self[id]
        size = payload_bytes(state)
        if not self._here or self._bytes + size <= self._memory_limit(size):
            self._here[id] = state, size
            self._bytes += size
        else:
            self._disk = self._disk or _StateFile()
            self._places[id] = self._disk.write(state)

    def __delitem__(self, id: int) -> None:
        if id in self._here:
            self._bytes -= self._here.pop(id)[1]
        elif (place := self._places.pop(id)) and self._disk is not None:
            self._disk.free.setdefault(place.size, []).append(place.start)

    def _memory_limit(self, more: int) -> float:
        """Return how many bytes may stay in memory when ``more`` are added."""
        if self._limit is None:
            if self._memory is not None:
                self._limit = self._memory / self._workers
            elif self._bytes + more <= ALWAYS_KEPT_BYTES:
                return ALWAYS_KEPT_BYTES
            else:
                self._limit = max(ALWAYS_KEPT_BYTES, (available_memory() / self._workers + self._bytes) / 2)
        return self._limit


class _StateFile:
    """A file without a name.

    Attributes:
        free: size -> where unused parts begin.

    Raises:
        UserError: there is no room for it.
    """

    def __init__(self) -> None:
        self._folder = spill_folder()
        try:
            self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115, it lives on
        except OSError as error:
            raise self._disk_shortage(error) from error
        self._end = 0
        self.free: dict[int, list[int]] = {}

    def will_read(self, place: _Place) -> None:
        """Ask the system to read a state into its cache, if it offers that."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._file.fileno(), place.start, place.size, os.POSIX_FADV_WILLNEED)

    def write(self, state: State) -> _Place:
        """Write the tensors of a state, one after the other."""
        structure, tensors = take_apart(state)
        layout = [(path, t.dtype, tuple(t.shape)) for path, t in tensors.items()]
        size = sum(t.nbytes for t in tensors.values())
        start = self.free[size].pop() if self.free.get(size) else self._end
        at = start
        try:
            for tensor in tensors.values():
                content = _bytes_of(tensor.detach().contiguous())
                while len(content):
                    done = os.pwrite(self._file.fileno(), content, at)
                    at, content = at + done, content[done:]
        except OSError as error:
            raise self._disk_shortage(error) from error
        self._end = max(self._end, at)
        return _Place(start, size, structure, layout)

    def read(self, place: _Place) -> State:
        """Read a state."""
        at, tensors = place.start, dict[str, Tensor]()
        try:
            for path, dtype, shape in place.layout:
                tensors[path] = torch.empty(shape, dtype=dtype)
                content = _bytes_of(tensors[path])
                while len(content):
                    if not (done := os.preadv(self._file.fileno(), [content], at)):
                        raise OSError(errno.EIO, "it has become shorter")
                    at, content = at + done, content[done:]
        except OSError as error:
            raise self._disk_shortage(error) from error
        state: State = put_together(place.structure, tensors)
        return state

    def _disk_shortage(self, error: OSError) -> Shortage:
        return Shortage(
            self._folder,
            "has no room for the clients' states, which do not fit into memory (engine.state_memory): "
            f"{error.strerror}. Make room there, or name a folder on a larger disk by TMPDIR, then resume",
        )


def spill_folder() -> Path:
    """Return the folder of states and of what Ray spills: on a disk, as ``/var/tmp`` always is."""
    lasting = Path("/var/tmp")
    return lasting if "TMPDIR" not in os.environ and os.access(lasting, os.W_OK) else Path(gettempdir())


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data
