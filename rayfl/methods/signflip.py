"""Clients that lie."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

import torch

from rayfl.errors import Conflict
from rayfl.methods.wrapper import Wrapper
from rayfl.randomness import generator
from rayfl.settings import above, at_least, at_most
from rayfl.training import Client, Context, State


class SignFlip(Wrapper):
    """Some clients upload the opposite of their change (the sign-flipping attack of Li et al., AAAI 2019).

    Who lies is drawn by the run's seed, and stays. Liars train as everybody does, and their own state is what
    it is. Around any method whose clients upload weights; BatchNorm statistics are left as they are, because
    a variance has no opposite.
    """

    share: Annotated[float, at_least(0), at_most(1)] = 0.2
    """Share of the clients that lie, rounded down."""
    scale: Annotated[float, above(0)] = 1.0
    """Factor on the flipped change."""

    def prepare(self, context: Context) -> Any:
        """Refuse methods without weights to flip, and a share that nobody is."""
        self.need_changes(context)
        if self.share and not self.liars(context):
            count = context.population
            raise Conflict(
                "method.share", f"is {self.share}: of {count} clients that is none; set more, or 0"
            )
        return super().prepare(context)

    def liars(self, context: Context) -> frozenset[int]:
        """Return who lies."""
        return _draw_liars(context.seed, context.population, int(self.share * context.population + 1e-9))

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Train as the wrapped method does; lie about it."""
        up, kept = await super().local_update(client, state, down)
        if client.id in self.liars(client.context):
            changes = self.change_of(client, down, up)
            flipped = {key: c.merge(-self.scale * c.trainable()) for key, c in changes.items()}
            up = self.with_change(client, down, up, flipped)
        return up, kept


@cache
def _draw_liars(seed: int, population: int, count: int) -> frozenset[int]:
    """Return who lies among so many clients."""
    order = torch.randperm(population, generator=generator(seed, "liars"))
    return frozenset(order[:count].tolist())
