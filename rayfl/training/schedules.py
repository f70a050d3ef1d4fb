"""Schedules: what the learning rate is multiplied with in the rounds of a run."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Annotated, ClassVar

from rayfl.errors import BadCode
from rayfl.settings import Value, above, at_least, at_most, below


class Schedule(Value, ABC, place="training.schedule"):
    """Base of all schedules; a schedule of your own overrides ``factor``.

    Attributes:
        uses_rounds: whether ``factor`` uses the number of rounds; such a run cannot be resumed with another.

    Examples:
        >>> from rayfl.training import Exponential
        >>> [Exponential(decay=0.5, warmup=1).at(round, rounds=4) for round in range(4)]
        [0.5, 0.5, 0.25, 0.125]
    """

    uses_rounds: ClassVar[bool] = False

    warmup: Annotated[int, at_least(0), "0: none"] = 0
    """Rounds in which the learning rate rises: round r, from 0, has (r + 1) / (warmup + 1) of it."""

    @abstractmethod
    def factor(self, round: int, rounds: int) -> float:
        """Return the factor on ``training.lr``, above 0, as it is without warm-up.

        Args:
            round: from 0.
            rounds: how many the run has.
        """

    def at(self, round: int, rounds: int) -> float:
        """Return the factor of a round, with warm-up."""
        factor = self.factor(round, rounds)
        return factor if round >= self.warmup else factor * ((round + 1) / (self.warmup + 1))

    def check(self, rounds: int) -> None:
        """Refuse a schedule that no run of so many rounds can have."""
        for round in range(rounds):
            factor, again, other = (self.factor(round, rounds + more) for more in (0, 0, 1))
            wrong = ""
            if not math.isfinite(factor) or factor <= 0:
                wrong = f"({round}, {rounds}) is {factor!r}: it must be a number above 0"
            elif factor != again:
                wrong = " is not the same twice: it must go by round and rounds alone"
            elif factor != other and not self.uses_rounds:
                wrong = (
                    " goes by the number of rounds: set uses_rounds = True in the class, so that no run of "
                    "it is resumed with another number"
                )
            if wrong:
                raise BadCode("training.schedule", f": {type(self).__name__}.factor{wrong}")


class Constant(Schedule):
    """The same learning rate in all rounds."""

    def factor(self, round: int, rounds: int) -> float:
        """Return 1."""
        return 1.0


class Exponential(Schedule):
    """The learning rate falls by the same factor in every round."""

    decay: Annotated[float, above(0), at_most(1)]
    """The factor."""

    def factor(self, round: int, rounds: int) -> float:
        """Return decay^round."""
        return self.decay**round


class Steps(Schedule):
    """The learning rate falls in some rounds."""

    at_rounds: list[int]
    """The rounds, counted from 0, at which the rate becomes smaller."""
    by: Annotated[float, above(0), below(1)] = 0.1
    """The factor at each of them."""

    def factor(self, round: int, rounds: int) -> float:
        """Return by^(steps so far)."""
        return self.by ** sum(round >= step for step in self.at_rounds)


class Cosine(Schedule):
    """The learning rate falls along half a cosine (Loshchilov and Hutter, ICLR 2017), after the warm-up."""

    uses_rounds = True

    end: Annotated[float, at_least(0), at_most(1)] = 0.0
    """The factor that it would have after the last round."""

    def factor(self, round: int, rounds: int) -> float:
        """Return end + (1 - end) (1 + cos(pi p)) / 2 where p of the rounds after the warm-up are over."""
        over = (round - self.warmup) / max(1, rounds - self.warmup)
        return self.end + (1 - self.end) * (1 + math.cos(math.pi * min(1.0, max(0.0, over)))) / 2
