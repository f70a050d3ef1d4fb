"""What all callbacks have in common, what they see of a run, and the shortest: early stopping."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rayfl.engine.models import Models
from rayfl.evaluation.metrics import Patience, Validation
from rayfl.evaluation.protocol import Protocol
from rayfl.record.history import Population


class Run(ABC):
    """A run as its callbacks see it.

    Attributes:
        path: its folder.
        rounds: how many it is to have.
        protocol: its evaluation protocol.
        population: its clients.
    """

    path: Path
    rounds: int
    protocol: Protocol
    population: Population

    @abstractmethod
    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the metrics lines of all rounds that are over."""

    @abstractmethod
    def save(self) -> None:
        """Write a checkpoint of the round that is over, if there is none yet."""

    @abstractmethod
    def accuracies(self, split: str = "test") -> dict[int, float]:
        """Return client -> accuracy in [0, 1] of the last evaluation, of the view that the protocol reports.

        Clients without a score are left out; before the first evaluation nobody has one.

        Args:
            split: of the data: ``test``, or ``val`` where there are validation data.
        """

    @abstractmethod
    def models(self) -> Models:
        """Return the models of all clients as they are now; on a cluster all states travel here for that."""


class Callback:
    """Looks at a run after every round; override what you need, and give it to ``run``, as in
    ``federation.run(callbacks=[...])``.

    A callback is no setting: config.yaml does not record it, and a resumed run has only those that it is
    given again.
    """

    def start(self, run: Run, round: int) -> bool:
        """Take up a run that begins, is resumed, or has gone back to an earlier round.

        Args:
            run: the run.
            round: the one that comes next; earlier ones are in ``run.records()``.

        Returns:
            Whether the run is over, with the rounds that it has.
        """
        return False

    def after_round(self, run: Run, record: Mapping[str, Any]) -> bool:
        """Take in a round.

        Args:
            run: the run.
            record: the line of ``metrics.jsonl``.

        Returns:
            Whether the run ends with this round, with a checkpoint.
        """
        return False

    def end(self) -> None:
        """Let go of what the callback holds: the run has ended, in whatever way."""


class EarlyStopping(Callback):
    """Ends a run when the protocol's patience has run out.

    It goes by the records alone, so that a resumed run ends where one that was never stopped does.
    """

    def start(self, run: Run, round: int) -> bool:
        """Read the rounds so far."""
        self._patience = Patience(run.protocol.patience)
        self._validation = Validation(run.population, run.protocol)
        over = False
        for record in run.records():
            over = self.after_round(run, record)
        return over

    def after_round(self, run: Run, record: Mapping[str, Any]) -> bool:
        """Say whether the patience has run out."""
        return self._patience.ends(record["round"], self._validation.accuracy(record))
