"""The server and the workers of a federation, wherever they run: the interface of all engines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from rayfl.errors import Shortage

SERVER = -1
"""The number by which the server is called."""


class Lost(Shortage):
    """Processes of a federation have died, and their state is lost."""


class Gone(Shortage):
    """The cluster of a federation is gone, so no process can be started again."""


class Workers(ABC):
    """The server and the workers of a federation, as a session reaches them.

    Attributes:
        recoveries: how many losses a session survives without another checkpoint in between.
        hosts: what the hosts of a cluster have that decides numbers, by their names; see ``engine.hosts``.
    """

    recoveries = 0
    hosts: Mapping[str, Mapping[str, str | None]] = {}

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of workers; 0 before the start and after a stop."""

    @abstractmethod
    def start(self, shrink: bool) -> None:
        """Start the server and the workers that do not run.

        Args:
            shrink: whether fewer workers than requested will do if no more fit.
        """

    @abstractmethod
    def call(self, k: int, name: str, *arguments: Any, returns: int = 1) -> Any:
        """Start an operation of a worker; return a reference to its result.

        Args:
            k: the worker's number, or ``SERVER``.
            name: the operation's method of ``Worker`` or ``Server``.
            arguments: its arguments, which may be references.
            returns: the number of values that it returns; if several, there is a reference to each.
        """

    @abstractmethod
    def get(self, references: Sequence[Any]) -> list[Any]:
        """Wait for the results that references stand for, and return them.

        Args:
            references: as ``call`` has returned them.

        Raises:
            Lost: processes have died.
        """

    def host(self, k: int) -> Any:  # noqa: B027 - only some have several
        """Return the host of a worker, or of the ``SERVER``; here all are on one."""

    def grow(self) -> None:  # noqa: B027 - only some can
        """Add workers for which there is room now; the others keep their numbers."""

    def check(self) -> None:  # noqa: B027 - only processes of their own can lose what they run on
        """Check that the cluster of the processes is alive.

        Raises:
            Gone: it is not.
        """

    @abstractmethod
    def stop(self) -> None:
        """Stop the server and the workers, so that others can be started."""

    def survive(self) -> None:
        """Keep the processes that are alive after a loss; here none."""
        self.stop()

    @abstractmethod
    def close(self) -> None:
        """Stop everything, for good."""
