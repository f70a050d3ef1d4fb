"""Clients that lie."""

from __future__ import annotations

from typing import Annotated, Any

import torch

from rayfl.errors import Conflict
from rayfl.methods.wrapper import Wrapper
from rayfl.randomness import generator
from rayfl.settings import above, at_least, at_most
from rayfl.training import Client, State
from rayfl.training.net import Net


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

    def setup(self, net: Net, population: int, seed: int) -> None:
        """Draw the liars; refuse methods without weights to flip."""
        super().setup(net, population, seed)
        self.need_changes()
        order = torch.randperm(population, generator=generator(seed, "liars"))
        self.liars = frozenset(order[: int(self.share * population + 1e-9)].tolist())
        if self.share and not self.liars:
            raise Conflict(
                "method.share", f"is {self.share}: of {population} clients that is none; set more, or 0"
            )

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Train as the wrapped method does; lie about it."""
        up, kept = await super().local_update(client, state, down)
        if client.id in self.liars:
            changes = self.change_of(down, up)
            flipped = {key: c.merge(-self.scale * c.trainable()) for key, c in changes.items()}
            up = self.with_change(down, up, flipped)
        return up, kept
