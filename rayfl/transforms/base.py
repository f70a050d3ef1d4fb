"""What a transform of uploads is: frozen options, a half for clients and a half for the server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch

from rayfl.settings import Settings
from rayfl.training.client import Client
from rayfl.training.context import Cohort, Context
from rayfl.training.params import Params
from rayfl.training.state import State
from rayfl.training.sums import Reduction

Change = Mapping[str, Params]
"""Upload key -> by how much a client has changed the weights that it received: together one vector."""


class Transform(Settings, ABC, place="transforms"):
    """Base of all transforms: what clients send goes through the client half, what it sums to through the
    server half. A run may have several; clients apply them in their order, the server in reverse::

        class Rounded(Transform):
            def at_client(self, change, memory, client, received):
                halved = {key: each.map(lambda t: t.bfloat16().to(t)) for key, each in change.items()}
                return halved, memory, {}

    A transform sees the *change* of the weights, of all upload keys together, whatever the method; what else
    a method uploads goes past it. It has no memory of its own: it keeps what the halves return.
    """

    sums: ClassVar[tuple[str, ...]] = ()
    """Names of numbers that the client half returns besides, and that are summed exactly over the cohort."""
    divisor: ClassVar[Literal["cohort", "expected"]] = "cohort"
    """``cohort``: changes are combined as the method declares, by weighted means. ``expected``: they are
    summed, a mean is that sum by the number of clients that a round has on average, and the server takes its
    step also after a round without anybody.
    """

    last: ClassVar[bool] = False
    """Whether no transform may come after this one, because it would undo what this one gives."""

    def check(self, context: Context, uploads: Mapping[str, Reduction], down: State, expected: float) -> None:
        """Refuse a run with which the transform does not do what it says.

        Args:
            context: the facts of the run.
            uploads: how the method combines what clients upload, also before a round.
            down: what clients receive in the first round.
            expected: how many clients a round has on average.
        """

    @abstractmethod
    def at_client(
        self, change: Change, memory: State, client: Client, received: State
    ) -> tuple[Change, State, Mapping[str, float]]:
        """Return what the client sends, what it keeps until it takes part again, and its ``sums``.

        Args:
            change: of the weights, after the transforms before this one.
            memory: what it has kept; empty at first.
            client: draws with ``client.generator``.
            received: what the server half keeps, which travels with the download.
        """

    def init_server(self, context: Context) -> State:
        """Return what the server half keeps before the first round; every client receives it."""
        return {}

    def at_server(
        self,
        combined: Change,
        memory: State,
        sums: Mapping[str, float],
        cohort: Cohort,
        generator: torch.Generator,
    ) -> tuple[Change, State]:
        """Return the change that the server makes, and what it keeps for the next round.

        Args:
            combined: the cohort's changes, combined; with the divisor ``expected`` their sums.
            memory: what it has kept.
            sums: of the cohort, by the names in ``sums``.
            cohort: whose changes they are.
            generator: for what is drawn, from the run's seed, the transform's place, and the round.
        """
        return combined, memory

    def upload_bytes(self, change: Change, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the bytes of what the client half has sent, by upload key.

        Args:
            change: what it has sent.
            sizes: the bytes before this transform, by upload key.
        """
        return dict(sizes)
