"""Who trains in a round."""

from __future__ import annotations

import hashlib
import math
import operator
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch

from rayfl.engine.guard import Guard
from rayfl.errors import BadCode, Conflict
from rayfl.randomness import generator
from rayfl.settings import Settings
from rayfl.system.files import explain_read_errors, read_json
from rayfl.system.text import short_repr
from rayfl.transforms.accounting import Exposure


@dataclass(frozen=True)
class CohortDraw:
    """What the choice of a round's clients may go by.

    Attributes:
        round: from 0.
        rounds: how many the run has; see ``Sampling.uses_rounds``.
        samples: how many training samples each client has; clients are numbered by their place.
        participation: the share of the clients that is wanted.
        size: how many are wanted, ``participation`` times the clients, rounded down, at least one.
        generator: for what is drawn; it depends on the run's seed and the round.
    """

    round: int
    rounds: int
    samples: list[int]
    participation: float
    size: int
    generator: torch.Generator


class Sampling(Settings, ABC, place="sampling"):
    """Chooses who trains in a round. It has no memory: a round's choice depends on what it is given alone.

    Examples:
        >>> from rayfl import Federation
        >>> from rayfl.sampling import Cyclic
        >>> federation = Federation(clients=6, participation=0.5, sampling=Cyclic())
        >>> federation.cohort(0), federation.cohort(1)
        ([0, 1, 2], [3, 4, 5])
    """

    @abstractmethod
    def choose(self, draw: CohortDraw) -> Sequence[int]:
        """Return the numbers of some clients, each once; a round in which nobody trains passes."""

    @property
    def uses_rounds(self) -> bool:
        """Whether a choice depends on ``rounds``: such a run cannot be resumed with another number."""
        return False

    @property
    def draws_once(self) -> bool:
        """Whether all rounds draw what the first one draws: ``choose`` gets the first one's generator."""
        return False

    def check(self, clients: int, rounds: int) -> None:
        """Refuse what will not do for so many clients and rounds, before anything starts."""

    def unlisted(self, clients: int) -> set[int]:
        """Return the clients that can never be chosen."""
        return set()

    def expected(self, participation: float, clients: int) -> float:
        """Return how many of so many clients a round has on average."""
        return wanted_clients(participation, clients)

    def exposures(
        self, participation: float, clients: int, rounds: int, done: int
    ) -> tuple[Exposure, ...] | None:
        """Return how a client can have taken part, as far as something is proved of it; None: nothing is.

        Args:
            participation: the share of the clients that is wanted in a round.
            clients: how many there are.
            rounds: how many the run has.
            done: how many of these are over.
        """
        return None

    def digest(self) -> str | None:
        """Return a digest of what else decides the choice, such as a file; None if only the options do."""
        return None


class Uniform(Sampling):
    """Every client is as likely as any other; nobody is drawn twice in a round."""

    once: bool = False
    """Whether the clients are drawn once, for all rounds. The others never train."""

    @property
    def draws_once(self) -> bool:
        """Whether ``once`` is set."""
        return self.once

    def exposures(self, participation: float, clients: int, rounds: int, done: int) -> tuple[Exposure, ...]:
        """Return cohorts of one size, unless the same clients always take part."""
        if self.once or (size := wanted_clients(participation, clients)) == clients:
            return (Exposure("certain", done),)
        return (Exposure("fixed", done, size=size, clients=clients),)

    def choose(self, draw: CohortDraw) -> Sequence[int]:
        """Draw without replacement."""
        chosen: list[int] = torch.randperm(len(draw.samples), generator=draw.generator)[: draw.size].tolist()
        return chosen


class Bernoulli(Sampling):
    """Each client takes part with probability ``participation``, whoever else does.

    So the clients of a round are ``participation`` of all on average, and there may be none.
    """

    last: Literal["drawn", "all"] = "drawn"
    """Who takes part in the last round: ``drawn``: clients that are drawn as in every round; ``all`` clients.
    """

    @property
    def uses_rounds(self) -> bool:
        """Whether the last round is another one than it would be in a longer run."""
        return self.last == "all"

    def expected(self, participation: float, clients: int) -> float:
        """Return the share itself, which need not be a whole number of clients."""
        return participation * clients

    def exposures(self, participation: float, clients: int, rounds: int, done: int) -> tuple[Exposure, ...]:
        """Return rounds in which each client is drawn alone, and the last one with all."""
        whole = int(self.last == "all" and done == rounds)
        return Exposure("poisson", done - whole, participation), Exposure("certain", whole)

    def choose(self, draw: CohortDraw) -> Sequence[int]:
        """Draw a number in [0, 1) for each client: those below ``participation`` take part."""
        drawn = torch.rand(len(draw.samples), generator=draw.generator, dtype=torch.float64)
        everybody = self.last == "all" and draw.round == draw.rounds - 1
        chosen: list[int] = (drawn < (1 if everybody else draw.participation)).nonzero().flatten().tolist()
        return chosen


class BySize(Sampling):
    """Clients are drawn with probabilities in proportion to their training samples, as in FedProx's paper.

    Means should be uniform then (``averaging``): the samples count in the drawing.
    """

    replacement: bool = False
    """Whether a client may be drawn again. It trains once all the same and counts once, so that rounds have
    fewer clients.
    """

    def choose(self, draw: CohortDraw) -> Sequence[int]:
        """Draw one client after another; whole numbers are drawn, so that every machine draws the same."""
        left = torch.tensor(draw.samples, dtype=torch.int64)
        size = min(draw.size, int((left > 0).sum()))
        chosen: dict[int, None] = {}
        while len(chosen) < size:
            ends = left.cumsum(0)
            drawn = torch.randint(int(ends[-1]), (size - len(chosen),), generator=draw.generator)
            found = torch.searchsorted(ends, drawn, right=True)
            chosen |= dict.fromkeys(found.tolist())  # one that is drawn again counts as not drawn
            if self.replacement:
                break
            left[found] = 0
        return list(chosen)


class Cyclic(Sampling):
    """Clients take turns by their numbers: the first ones in the first round, the next ones in the next."""

    def exposures(self, participation: float, clients: int, rounds: int, done: int) -> tuple[Exposure, ...]:
        """Return how often it can have been a client's turn."""
        return (Exposure("certain", math.ceil(done * wanted_clients(participation, clients) / clients)),)

    def choose(self, draw: CohortDraw) -> Sequence[int]:
        """Go on after the last client of the round before."""
        return [(draw.round * draw.size + k) % len(draw.samples) for k in range(draw.size)]


class Trace(Sampling):
    """Clients are drawn uniformly among those that a file says are there.

    The file is JSON, a list of ``{"client": 3, "from": 0, "to": 10}``: client 3 is there in rounds 0 to 9.
    Without ``to`` it is there to the end. A client may have several entries.
    """

    path: str
    """The file."""

    def choose(self, draw: CohortDraw) -> Sequence[int]:
        """Draw without replacement; all available clients if these are fewer than wanted."""
        there = sorted({i for i, first, end in self._trace_entries if first <= draw.round < end})
        order = torch.randperm(len(there), generator=draw.generator)[: draw.size]
        return [there[k] for k in order.tolist()]

    def check(self, clients: int, rounds: int) -> None:
        """Read the file anew; refuse clients that do not exist, and rounds without any."""
        vars(self).pop("_trace_entries", None)  # from an earlier run
        entries = self._trace_entries
        if odd := [i for i, *_ in entries if i >= clients]:
            raise Conflict(self._file, f"has client {odd[0]}: those that train are 0 to {clients - 1}")
        changes = [0] * (rounds + 1)
        for _, first, end in entries:
            if first < rounds:
                changes[first] += 1
                changes[int(min(end, rounds))] -= 1
        there = 0
        for round in range(rounds):
            there += changes[round]
            if not there:
                raise Conflict(self._file, f"has no client for round {round} (of {rounds}, from 0)")

    def unlisted(self, clients: int) -> set[int]:
        """Return the clients without an entry."""
        return set(range(clients)) - {i for i, *_ in self._trace_entries}

    def digest(self) -> str | None:
        """Return the SHA-256 of the entries."""
        return hashlib.sha256(repr(self._trace_entries).encode()).hexdigest()

    @property
    def _file(self) -> str:
        return os.path.expanduser(self.path)

    @cached_property
    def _trace_entries(self) -> list[tuple[int, int, float]]:
        """Client, first round and end of every entry, ascending."""
        with explain_read_errors(Path(self._file), "mend it, or choose another sampling"):
            content = read_json(self._file)
            if not isinstance(content, list):
                raise ValueError(f"it holds {short_repr(content)}, and must be a list of entries")
            return sorted(_parse_entry(each) for each in content)


def _parse_entry(each: Any) -> tuple[int, int, float]:
    fine = isinstance(each, dict) and {"client", "from"} <= each.keys() <= {"client", "from", "to"}
    if fine and all(type(value) is int and value >= 0 for value in each.values()):
        end = each.get("to", math.inf)
        if each["from"] < end:
            return each["client"], each["from"], end
    raise ValueError(f'an entry is {short_repr(each)}, and must be like {{"client": 3, "from": 0, "to": 10}}')


def takes_all(sampling: Sampling, participation: float) -> bool:
    """Return whether every client is known to train in every round."""
    known = type(sampling) in (Uniform, Cyclic) or (type(sampling) is BySize and not sampling.replacement)
    return known and participation == 1


def wanted_clients(participation: float, clients: int) -> int:
    """Return how many clients a round shall have, at least one."""
    return max(1, math.floor(participation * clients + 1e-9))


def choose_cohort(
    sampling: Sampling,
    round: int,
    samples: Sequence[int],
    participation: float,
    seed: int,
    rounds: int,
) -> list[int]:
    """Return the clients that train in a round, ascending; there may be none.

    Args:
        sampling: chooses them.
        round: from 0.
        samples: how many training samples each client has that may train.
        participation: the share of them that is wanted.
        seed: the run's seed.
        rounds: how many the run has.
    """
    guard = Guard(
        sampling,
        torch.device("cpu"),
        "choose",
        f"round {round}",
        memory="A resumed run has lost it: choose by what is given alone",
        draw="Draw from the generator that is given",
    )
    draw = CohortDraw(
        round=round,
        rounds=rounds,
        # A copy: what a class changes in it must not last, because a resumed run would not have the change.
        samples=list(samples),
        participation=participation,
        size=wanted_clients(participation, len(samples)),
        generator=generator(seed, "cohort", 0 if sampling.draws_once else round),
    )
    found = sampling.choose(draw)
    guard.check()
    chosen = sorted(map(operator.index, found))
    if chosen and (len(set(chosen)) < len(chosen) or chosen[0] < 0 or chosen[-1] >= len(samples)):
        raise BadCode(
            f"{type(sampling).__name__}.choose",
            f"returns {short_repr(found)} in round {round}",
            f"it must return numbers of clients, 0 to {len(samples) - 1}, each once",
        )
    return chosen
