"""The personal states of a worker's clients: as many in memory as fit, and the others in a file on disk."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterable, Iterator, MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import torch
from torch import Tensor

from rayfl.errors import Shortage
from rayfl.memory import available_memory
from rayfl.training.state import State, put_together, take_apart
from rayfl.training.sums import payload_bytes

UNASKED = 256 * 2**20
"""Bytes of states that are kept without asking how much memory is free."""
ON_THEIR_WAY = 64 * 2**20
"""Bytes that may be on their way to the disk, and as many from there, unless one state is larger."""


@dataclass(frozen=True)
class _Place:
    """Where a state is in the file, and what is needed to build it again."""

    start: int
    size: int
    structure: Any
    layout: list[tuple[str, torch.dtype, tuple[int, ...]]]


class ClientStates(MutableMapping[int, State]):
    """Client -> personal state. It is used as a dict, and a state may have to come from the disk first.

    Whose turn comes, ``expect`` says; their states are read while others train. Gives way to the others: the
    state that was used last, because federations go round and its turn is the farthest away; and if all are
    still to have their turn, the one whose turn comes last. A state that was only read is not written again.

    The file has no name, so it goes with the process however that ends. It is where ``TMPDIR`` says, or in
    ``/var/tmp``, which unlike ``/tmp`` is never in memory.

    Args:
        memory: bytes of states that stay in memory, for all workers of this machine together; None for half
            of what is free when they have become many. Up to two more may be on their way.
    """

    def __init__(self, memory: float | None = None) -> None:
        self._memory, self._workers = memory, 1
        self._limit: float | None = None
        self._here: dict[int, tuple[State, int]] = {}  # with their bytes; the one used last is the last
        self._bytes = 0  # of these
        self._places: dict[int, _Place] = {}  # of states that the file has, or soon will have
        self._leaving: dict[int, tuple[State, int, Future[None]]] = {}
        self._coming: dict[int, tuple[Future[State], int]] = {}
        self._turns: dict[int, None] = {}  # whose turn is still to come
        self._ahead: Iterator[int] = iter(())  # of these, whose state has not been asked for
        self._last: list[int] = []  # of these, who may have to give way, the last turn at the end
        self._disk: _Disk | None = None

    def shared_by(self, workers: int) -> None:
        """Say how many workers share this machine's memory."""
        self._workers, self._limit = workers, None

    def expect(self, ids: Iterable[int]) -> None:
        """Say whose states will be asked for, in this order."""
        self._turns = dict.fromkeys(ids)
        self._ahead, self._last = iter(list(self._turns)), list(self._turns)
        self._read_ahead()

    # ---- as a dict

    def __len__(self) -> int:
        return len(self._here.keys() | self._places.keys())

    def __iter__(self) -> Iterator[int]:
        return iter([*self._here, *(i for i in self._places if i not in self._here)])

    def __contains__(self, id: object) -> bool:
        return id in self._here or id in self._places

    def __getitem__(self, id: int) -> State:
        self._turns.pop(id, None)
        if id in self._here:
            state, size = self._here.pop(id)
            self._here[id] = state, size
        elif id in self._leaving:
            state = self._leaving[id][0]
        elif id in self._places:
            if id not in self._coming:
                self._read(id)
            found, size = self._coming.pop(id)
            state = found.result()
            self._keep(id, state, size)
        else:
            raise KeyError(id)
        self._read_ahead()
        return state

    def __setitem__(self, id: int, state: State) -> None:
        self._forget(id)
        self._keep(id, state, payload_bytes(state))

    def __delitem__(self, id: int) -> None:
        if id not in self:
            raise KeyError(id)
        self._forget(id)

    def clear(self) -> None:
        """Forget all states."""
        for id in list(self):
            self._forget(id)

    # ---- in memory

    def _keep(self, id: int, state: State, size: int) -> None:
        self._here[id] = state, size
        self._bytes += size
        while self._bytes > self._most() and (leaves := self._who_leaves()) is not None:
            self._let_go(leaves)

    def _most(self) -> float:
        """Return how many bytes may stay."""
        if self._limit is None:
            if self._memory is not None:
                self._limit = self._memory / self._workers
            elif self._bytes <= UNASKED:
                return UNASKED
            else:
                self._limit = max(UNASKED, (available_memory() / self._workers + self._bytes) / 2)
        return self._limit

    def _who_leaves(self) -> int | None:
        """Return whose state gives way; never the last one's, which is in use."""
        if len(self._here) < 2:
            return None
        last, before = islice(reversed(self._here), 2)
        if before not in self._turns:
            return before
        while self._last:
            id = self._last.pop()
            if id in self._here and id in self._turns and id != last:
                return id
        return next(iter(self._here))

    def _let_go(self, id: int) -> None:
        state, size = self._here.pop(id)
        self._bytes -= size
        if id not in self._places:
            self._write(id, state, size)

    def _forget(self, id: int) -> None:
        if id in self._here:
            self._bytes -= self._here.pop(id)[1]
        self._leaving.pop(id, None)
        self._coming.pop(id, None)
        if (place := self._places.pop(id, None)) is not None and self._disk is not None:
            self._disk.free(place.start, place.size)

    # ---- to and from the disk, which happens in the order in which it is asked for

    def _write(self, id: int, state: State, size: int) -> None:
        if self._disk is None:
            self._disk = _Disk()
        structure, tensors = take_apart(state)
        layout = [(path, t.dtype, tuple(t.shape)) for path, t in tensors.items()]
        length = sum(t.nbytes for t in tensors.values())
        place = _Place(self._disk.room(length), length, structure, layout)
        self._places[id] = place
        self._leaving[id] = state, size, self._disk.write(place, [*tensors.values()])
        while len(self._leaving) > 1 and sum(size for _, size, _ in self._leaving.values()) > ON_THEIR_WAY:
            next(iter(self._leaving.values()))[2].result()
            self._forget_written()

    def _forget_written(self) -> None:
        """Let go of states that have arrived on the disk.

        Raises:
            UserError: one could not be written.
        """
        for id, (_, _, written) in list(self._leaving.items()):
            if not written.done():
                return
            written.result()
            del self._leaving[id]

    def _read(self, id: int) -> None:
        assert self._disk is not None
        place = self._places[id]
        self._coming[id] = self._disk.read(place), place.size

    def _read_ahead(self) -> None:
        """Have the states read whose turn comes next."""
        if self._disk is None:
            return
        self._forget_written()
        while not self._coming or sum(size for _, size in self._coming.values()) < ON_THEIR_WAY:
            if (id := next(self._ahead, None)) is None:
                return
            at_hand = id in self._here or id in self._leaving or id in self._coming
            if id in self._turns and id in self._places and not at_hand:
                self._read(id)


class _Disk:
    """A file without a name, which one thread writes and reads.

    Raises:
        UserError: there is no room for it.
    """

    def __init__(self) -> None:
        self._folder = overflow()
        try:
            self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115, it lives on
        except OSError as error:
            raise self._told(error) from error
        self._end = 0
        self._free: dict[int, list[int]] = {}  # size -> where parts begin that nobody uses any more
        self._thread = ThreadPoolExecutor(1, "client states")

    def room(self, size: int) -> int:
        """Return where so many bytes may be written."""
        if self._free.get(size):
            return self._free[size].pop()
        self._end += size
        return self._end - size

    def free(self, start: int, size: int) -> None:
        """Let a part be used again, after all that has been asked for until now."""
        self._free.setdefault(size, []).append(start)

    def write(self, place: _Place, tensors: list[Tensor]) -> Future[None]:
        """Write the tensors of a state, one after the other."""
        return self._thread.submit(self._write, place, tensors)

    def read(self, place: _Place) -> Future[State]:
        """Read a state."""
        return self._thread.submit(self._read, place)

    def _write(self, place: _Place, tensors: list[Tensor]) -> None:
        at = place.start
        try:
            for tensor in tensors:
                content = _bytes_of(tensor.detach().contiguous())
                while len(content):
                    done = os.pwrite(self._file.fileno(), content, at)
                    at, content = at + done, content[done:]
        except OSError as error:
            raise self._told(error) from error

    def _read(self, place: _Place) -> State:
        at = place.start
        tensors: dict[str, Tensor] = {}
        try:
            for path, dtype, shape in place.layout:
                tensors[path] = torch.empty(shape, dtype=dtype)
                content = _bytes_of(tensors[path])
                while len(content):
                    done = os.preadv(self._file.fileno(), [content], at)
                    if not done:
                        raise OSError(errno.EIO, "it has become shorter")
                    at, content = at + done, content[done:]
        except OSError as error:
            raise self._told(error) from error
        state: State = put_together(place.structure, tensors)
        return state

    def _told(self, error: OSError) -> Shortage:
        return Shortage(
            self._folder,
            "has no room for the clients' states, which do not fit into memory (engine.state_memory): "
            f"{error.strerror}. Make room there, or name a folder on a larger disk by TMPDIR, then resume",
        )


def overflow() -> Path:
    """Return where states are kept, and what Ray spills: on a disk, as ``/var/tmp`` always is."""
    lasting = Path("/var/tmp")
    return lasting if "TMPDIR" not in os.environ and os.access(lasting, os.W_OK) else Path(gettempdir())


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data
