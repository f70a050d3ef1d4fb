"""The server and the workers of a federation, wherever they are: how they are started, called and lost."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from rayfl.errors import Shortage

SERVER = -1
"""The number by which the server is called."""


class Lost(Shortage):
    """Processes of a federation are gone, and with them the state that they held."""


class Gone(Shortage):
    """What a federation's processes run on is gone itself, so that none can be started again."""


class Workers(ABC):
    """The server and the workers of a federation, as a session reaches them.

    Attributes:
        recoveries: how many losses in a row, without another checkpoint in between, a session survives.
        hosts: what the hosts of a cluster have that decides numbers, by their names; see ``engine.hosts``.
    """

    recoveries = 0
    hosts: Mapping[str, Mapping[str, str | None]] = {}

    @abstractmethod
    def __len__(self) -> int:
        """Return how many workers there are; none before the start and after a stop."""

    @abstractmethod
    def start(self, shrink: bool) -> None:
        """Start the server and the workers, those that do not run.

        Args:
            shrink: whether to make do with fewer than asked for where there is no room for more.
        """

    @abstractmethod
    def call(self, k: int, name: str, *arguments: Any, returns: int = 1) -> Any:
        """Start an operation of a worker; return a reference to what it returns.

        Args:
            k: the worker's number, or ``SERVER``.
            name: the operation's method of ``Worker`` or ``Server``.
            arguments: its arguments, of which each may be a reference.
            returns: of an operation that returns several values, how many: a reference to each is returned.
        """

    @abstractmethod
    def get(self, references: Sequence[Any]) -> list[Any]:
        """Wait for what is referred to, and return it.

        Args:
            references: as ``call`` has returned them.

        Raises:
            Lost: processes are gone.
        """

    def host(self, k: int) -> Any:  # noqa: B027 - only some have several
        """Return what names the host of a worker, or of the ``SERVER``; here all are on one."""

    def grow(self) -> None:  # noqa: B027 - only some can
        """Take in workers that have found room since the start; the others keep their numbers."""

    def check(self) -> None:  # noqa: B027 - only processes of their own can lose what they run on
        """See that what the processes run on is there.

        Raises:
            Gone: it is not.
        """

    @abstractmethod
    def stop(self) -> None:
        """Stop the server and the workers, so that others can be started."""

    def survive(self) -> None:
        """Keep those that live after a loss, which may first have to end what they do; here none."""
        self.stop()

    @abstractmethod
    def close(self) -> None:
        """Stop everything, for good."""
