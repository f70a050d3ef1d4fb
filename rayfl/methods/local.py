"""Local training, the baseline without communication."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from rayfl.methods.base import Cohort, Facts, Method
from rayfl.training import Client, Context, Reduction, State


class Local(Method):
    """Every client trains a model of its own on its own data; nothing is exchanged.

    The baseline of every paper on personalisation (SingleSet, Standalone). All clients start from the same
    initial weights. Only the clients of a round's cohort train in it: with ``participation`` below 1 each
    trains less often.
    """

    views = ("personal",)
    facts = Facts(nets="any")

    def uploads(self, context: Context) -> Mapping[str, Reduction]:
        """Return nothing."""
        return {}

    def init_server(self, context: Context) -> State:
        """The server knows nothing."""
        return {}

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        """There is nothing to aggregate."""
        return server

    def init_client(self, client: Client) -> State:
        """Start from the common initial weights."""
        return {"weights": client.initial}

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Go on training the own model."""
        w = (await client.fit(state["weights"], client.loss)).weights
        return {}, {"weights": w}

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        """Score the own model."""
        return {"personal": await client.eval(state["weights"], x)}
