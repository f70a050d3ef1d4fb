"""What a method may know of the run: with a client as on the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from rayfl.errors import BadCode
from rayfl.randomness import generator
from rayfl.training.net import Cut, Net
from rayfl.training.params import Params
from rayfl.training.sums import Mean, Reduction

Averaging = Literal["samples", "uniform"]


@dataclass(frozen=True, eq=False)
class Context:
    """The facts of a run, the same in all its processes.

    Attributes:
        net: the net, or the first one where clients have different nets.
        initial: its initial weights, the same for every client with this net; on the CPU, where the
            client's are on the device.
        shared: the names of its entries that travel, as ``Method.shared`` decides.
        population: the number of all clients, N.
        seed: the run's seed, for randomness that client and server have in common.
        averaging: how means are weighted that do not say it themselves.
        nets: the method's further nets by option, and its own modules by name.
        nets_differ: whether clients have different nets.
        total_rounds: how many rounds the run has; None where the method's facts do not say ``uses_rounds``.
        prepared: what ``Method.prepare`` has returned.
    """

    net: Net
    initial: Params
    shared: frozenset[str]
    population: int
    seed: int
    averaging: Averaging
    nets: Mapping[str, Net]
    nets_differ: bool
    total_rounds: int | None
    prepared: Any = None

    @property
    def rounds(self) -> int:
        """The number of rounds of the run, in methods whose facts say ``uses_rounds``."""
        if self.total_rounds is None:
            raise BadCode(
                "context.rounds",
                "is read by the method: set uses_rounds=True in its facts, so that no run of it is resumed "
                "with another number of rounds",
            )
        return self.total_rounds

    def shared_part(self, w: Params) -> Params:
        """Return the entries that travel."""
        return w.select(self.shared.__contains__)

    def personal_part(self, w: Params) -> Params:
        """Return the entries that stay with the client."""
        return w.select(lambda name: name not in self.shared)

    def head_part(self, w: Params, cut: Cut = "last_layer") -> Params:
        """Return the entries of the head: of the last linear layer, or of all that follows the flatten."""
        return w.select(self.net.names(cut, "head").__contains__)

    def initial_of(self, option: str) -> Params:
        """Return the initial weights of a further net or module, from a stream of its own, on the CPU."""
        return self.nets[option].initial(self.seed, 0, 1 + [*self.nets].index(option))

    def generator(self, purpose: str, round: int) -> torch.Generator:
        """Return a fresh CPU generator of the server's for what it draws in a round."""
        return generator(self.seed, f"server {purpose}", round)

    def reductions(self, uploads: Mapping[str, Reduction], before: bool = False) -> dict[str, Reduction]:
        """Return how uploads are combined: means that do not say it are weighted as the run's.

        Args:
            uploads: what ``Method.uploads`` declares.
            before: whether to return those before the round's training, or the others.
        """
        return {
            key: replace(how, by=self.averaging) if isinstance(how, Mean) and how.by == "run" else how
            for key, how in uploads.items()
            if how.before == before
        }


@dataclass(frozen=True)
class Cohort:
    """The clients whose uploads are aggregated in a round.

    Attributes:
        ids: their numbers, ascending.
        samples: their training samples, n_i, in the same order.
        round: the round, from 0.
        population_samples: the training samples of all clients, n.
        context: the facts of the run.
        expected: how many clients a round has on average, where a transform goes by that; else None.
    """

    ids: tuple[int, ...]
    samples: tuple[int, ...]
    round: int
    population_samples: int
    context: Context
    expected: float | None = None

    @property
    def share(self) -> float:
        """The cohort's part of the weight that all clients have in the run's means, above 0 and up to 1."""
        if self.expected is not None:
            return self.expected / self.context.population
        if self.context.averaging == "uniform":
            return len(self.ids) / self.context.population
        return sum(self.samples) / self.population_samples
