"""A wrapper of one's own: uploads of limited size, with noise, around any method.

From this folder:

    python -m rayfl.run --method clipped.Clipped --method.of FedBN --method.norm 0.5 --method.noise 0.01
"""

from __future__ import annotations

from typing import Annotated, Any

import torch

from rayfl.methods import Wrapper
from rayfl.settings import above, at_least
from rayfl.training import Client, Context, Params, State


class Clipped(Wrapper):
    """Every client scales its change down to a norm, and adds Gaussian noise to it.

    The clipping and the noise of McMahan et al. (ICLR 2018), added by the clients; what privacy this gives is
    not computed. BatchNorm statistics are left as they are.
    """

    norm: Annotated[float, above(0)] = 1.0
    """Largest Euclidean norm of a change."""
    noise: Annotated[float, at_least(0)] = 0.0
    """Standard deviation of the noise, as a share of ``norm``."""

    def prepare(self, context: Context) -> Any:
        """Refuse methods without weights to clip."""
        self.need_changes(context)
        return super().prepare(context)

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Train as the wrapped method does, then clip and add noise."""
        up, state = await super().local_update(client, state, down)
        draw = client.generator("noise")
        changes = {
            key: self._private(change, draw) for key, change in self.change_of(client, down, up).items()
        }
        return self.with_change(client, down, up, changes), state

    def _private(self, change: Params, draw: torch.Generator) -> Params:
        trained = change.trainable()
        clipped = trained * (self.norm / trained.norm().clamp(min=self.norm))

        def noisy(t: torch.Tensor) -> torch.Tensor:
            return t + self.noise * self.norm * torch.randn(t.shape, generator=draw).to(t)

        return change.merge(clipped.map(noisy) if self.noise else clipped)
