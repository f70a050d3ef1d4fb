"""The results of a round."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rayfl.engine.base import Group
from rayfl.evaluation.score import ClientScores


@dataclass
class RoundResult:
    """The results of a round for the clients that trained; small, and all that the driver sees.

    All lists are parallel to ``ids``; ``up`` and ``down`` are bytes by payload key. ``bad`` says what is
    wrong with an update, or why there is none (its loss is None then, and it counts no steps and no bytes);
    ``idle`` are clients whose fits took no step: their uploads have no weight. ``keeps`` are the clients
    that have a personal state, ``largest_state`` the bytes of the largest of these,
    ``bytes_down`` and ``bytes_up`` the bytes sent between processes.
    """

    ids: list[int] = field(default_factory=list)
    loss: list[float | None] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    up: dict[str, list[int]] = field(default_factory=dict)
    down: dict[str, list[int]] = field(default_factory=dict)
    bad: dict[int, str] = field(default_factory=dict)
    idle: set[int] = field(default_factory=set)
    scores: dict[int, ClientScores] = field(default_factory=dict)
    seconds: dict[Group, float] = field(default_factory=dict)
    keeps: set[int] = field(default_factory=set)
    largest_state: int = 0
    bytes_down: int = 0
    bytes_up: int = 0

    def merge(self, other: RoundResult) -> None:
        """Add another process's part."""
        for mine, theirs in ((self.up, other.up), (self.down, other.down)):
            for key in {**mine, **theirs}:
                column = mine.setdefault(key, [0] * len(self.ids))
                column.extend(theirs.get(key, [0] * len(other.ids)))
        for name in ("ids", "loss", "steps"):
            getattr(self, name).extend(getattr(other, name))
        self.largest_state = max(self.largest_state, other.largest_state)
        for name in ("bad", "idle", "scores", "seconds", "keeps"):
            getattr(self, name).update(getattr(other, name))

    def sort(self) -> None:
        """Put the clients in the order of their numbers."""
        order = sorted(range(len(self.ids)), key=self.ids.__getitem__)
        columns: list[list[Any]] = [self.ids, self.loss, self.steps, *self.up.values(), *self.down.values()]
        for column in columns:
            column[:] = [column[k] for k in order]

    def add(self, id: int, loss: float | None, steps: int, down: dict[str, int], up: dict[str, int]) -> None:
        """Add a client."""
        sent, received = ({key: [count] for key, count in each.items()} for each in (up, down))
        self.merge(RoundResult([id], [loss], [steps], sent, received))
