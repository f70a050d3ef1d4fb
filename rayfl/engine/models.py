"""The models that a run has trained, to be looked at."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor

from rayfl.data import FederatedData
from rayfl.engine.plan import Plan
from rayfl.engine.server import Server
from rayfl.engine.worker import Worker
from rayfl.errors import UserError
from rayfl.training.state import as_tensor


def bench(plan: Plan, data: FederatedData) -> tuple[Worker, Server]:
    """Return a worker and a server in this process, on the CPU, before any round.

    Setting up a method ties it to one net, so that each has a method of its own.
    """
    here = replace(plan, device="cpu", execution="loop", threads=torch.get_num_threads(), metrics=())
    worker = Worker(replace(here, method=deepcopy(plan.method)), data)
    return worker, Server(replace(here, method=deepcopy(plan.method)), data)


class Models:
    """The models of all clients after a round, as :func:`rayfl.load_models` and callbacks give them.

    What they predict is what an evaluation after this round's aggregation scores: what the server would send
    a client now, together with what the client has kept.

    Attributes:
        data: the data set and each client's part of it.
        round: rounds that had been completed.
        views: the models of a client, by the names under which records have them: ``personal``...

    Args:
        worker: with the states of all clients that have one.
        server: with its state.
        round: rounds that have been completed.
    """

    def __init__(self, worker: Worker, server: Server, round: int) -> None:
        self.data = worker.data
        self.round = round
        self._worker, self._server = worker, server
        self.views = tuple(worker.method.views)

    def __len__(self) -> int:
        """Return the number of clients that may train: those of an unseen domain have no models."""
        return self.data.seen

    def batch(self, client: int, split: str = "test") -> tuple[Tensor, Tensor]:
        """Return a client's data as nets take them: inputs [n, ...], images normalised, and labels int64 [n].

        Args:
            client: its number.
            split: ``train``, ``val`` or ``test``.
        """
        self._check(client)
        return self._worker.examples.batch(as_tensor(self.data.clients[client].split(split)))

    def scores(self, client: int, x: Tensor) -> dict[str, Tensor]:
        """Return the scores, [B, classes], of every view of a client for inputs [B, ...].

        They are differentiable by the inputs.
        """
        self._check(client)
        seen = self._worker.client(client, self.round)
        down = self._server.download([client]).of(client)
        state = self._worker.state(client, seen)
        return self._worker.method.scores(seen, state, down, x)

    def features(self, client: int, x: Tensor) -> dict[str, Tensor]:
        """Return what enters the last layer, [B, d], for inputs [B, ...], by view.

        A view is absent if its scores are not the output of a single last layer: sums of two models, or
        distances to prototypes.
        """
        self._check(client)
        passed: list[tuple[Tensor, Tensor]] = []
        head = self._worker.client(client, self.round).net.eval.module.head
        hook = head.register_forward_hook(lambda _, inputs, output: passed.append((inputs[0], output)))
        try:
            scores = self.scores(client, x)
        finally:
            hook.remove()
        return {v: z for v, score in scores.items() for z, output in passed if output is score}

    def _check(self, client: int) -> None:
        if not 0 <= client < len(self):
            raise UserError(f"there is no client {client}: clients are numbered from 0 to {len(self) - 1}")
