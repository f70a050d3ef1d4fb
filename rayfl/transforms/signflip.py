"""Clients that lie."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated

import torch

from rayfl.errors import Conflict
from rayfl.randomness import generator
from rayfl.settings import above, at_least, at_most
from rayfl.training.client import Client
from rayfl.training.context import Context
from rayfl.training.state import State
from rayfl.training.sums import Reduction
from rayfl.transforms.base import Change, Transform


class SignFlip(Transform):
    """Some clients upload the opposite of their change (the sign-flipping attack of Li et al., AAAI 2019).

    Who lies is drawn by the run's seed, and stays. Liars train as everybody does, and their own state is what
    it is. BatchNorm statistics are left as they are, because a variance has no opposite.
    """

    share: Annotated[float, at_least(0), at_most(1)] = 0.2
    """Share of the clients that lie, rounded down."""
    scale: Annotated[float, above(0)] = 1.0
    """Factor on the flipped change."""

    def check(self, context: Context, uploads: Mapping[str, Reduction], down: State, expected: float) -> None:
        """Refuse a share that nobody is."""
        if self.share and not self.liars(context):
            count = context.population
            raise Conflict(
                "transforms.share", f"is {self.share}: of {count} clients that is none; set more, or 0"
            )

    def liars(self, context: Context) -> frozenset[int]:
        """Return who lies."""
        return _draw_liars(context.seed, context.population, int(self.share * context.population + 1e-9))

    def at_client(
        self, change: Change, memory: State, client: Client, received: State
    ) -> tuple[Change, State, Mapping[str, float]]:
        """Lie about the change."""
        if client.id in self.liars(client.context):
            change = {key: each.merge(-self.scale * each.trainable()) for key, each in change.items()}
        return change, memory, {}


@cache
def _draw_liars(seed: int, population: int, count: int) -> frozenset[int]:
    """Return who lies among so many clients."""
    order = torch.randperm(population, generator=generator(seed, "liars"))
    return frozenset(order[:count].tolist())
