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
        rounds: how many it will have.
        protocol: its evaluation protocol.
        population: its clients.
        engine: the line of ``engine.jsonl`` of the last round.
    """

    path: Path
    rounds: int
    protocol: Protocol
    population: Population
    engine: Mapping[str, Any]

    @abstractmethod
    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the metrics lines of all completed rounds."""

    @abstractmethod
    def save(self) -> None:
        """Write a checkpoint after the completed round, if there is none yet."""

    @abstractmethod
    def figures(self, split: str = "test") -> dict[int, float]:
        """Return client -> figure of the last evaluation, of the view that the protocol reports.

        Clients without a score are left out, so it is empty before the first evaluation.

        Args:
            split: of the data: ``test``, or ``val`` if there are validation data.
        """

    @abstractmethod
    def models(self) -> Models:
        """Return the current models of all clients; on a cluster, all states are sent here for this."""


class Callback:
    """Looks at a run after every round; override what you need, and give it to ``run``, as in
    ``federation.run(callbacks=[...])``.

    A callback is not a setting: config.yaml does not record it, so pass it again to a resumed run.
    """

    def start(self, run: Run, round: int) -> bool:
        """Handle a run that begins, is resumed, or has gone back to an earlier round.

        Args:
            run: the run.
            round: the next round; earlier ones are in ``run.records()``.

        Returns:
            Whether to end the run now, with its present rounds.
        """
        return False

    def after_round(self, run: Run, record: Mapping[str, Any]) -> bool:
        """Handle a completed round.

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
        self._patience = Patience(run.protocol.patience, run.population.figure.sign)
        self._validation = Validation(run.population, run.protocol)
        over = False
        for record in run.records():
            over = self.after_round(run, record)
        return over

    def after_round(self, run: Run, record: Mapping[str, Any]) -> bool:
        """Return whether the patience has run out."""
        return self._patience.ends_run(record["round"], self._validation.figure(record))
