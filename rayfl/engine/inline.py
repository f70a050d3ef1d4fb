"""The engine without Ray: everything in this process."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import torch

from rayfl.data import FederatedData
from rayfl.engine.base import Engine, Facts, Session, clients_of
from rayfl.engine.plan import Block, Plan
from rayfl.engine.round_result import Report, Scores
from rayfl.engine.server import Server
from rayfl.engine.worker import Host
from rayfl.errors import UserError
from rayfl.methods import Cohort
from rayfl.record.checkpoint import Checkpoints, Manifest
from rayfl.training.sums import Folded


class Inline(Engine):
    """Run all clients in this process: for debugging, small runs, and machines without Ray.

    The code is the same as on actors, and so are the results, to the bit.
    """

    def resolve(self) -> None:
        """Replace every ``auto``; see ``Engine.resolve``."""
        if self.device == "cuda" and not torch.cuda.is_available():
            raise UserError("engine.device is cuda, but torch sees no CUDA device: use auto or cpu")
        super().resolve()

    def open(self, plan: Plan, data: FederatedData) -> Session:
        """Build the server and one host for all clients."""
        return InlineSession(plan, data)


class InlineSession(Session):
    """A server and one host in this process."""

    def __init__(self, plan: Plan, data: FederatedData) -> None:
        super().__init__(plan, data)
        if plan.client_timeout and threading.current_thread() is not threading.main_thread():
            raise UserError(
                "engine.client_timeout needs a signal, and Inline gets none outside the main thread"
            )
        self._threads_before = torch.get_num_threads()
        self._server = Server(_own(plan), data)
        self._host = Host(_own(plan), data)

    def _train(
        self, round: int, blocks: Sequence[Block], score_parts: Sequence[str], drop: bool
    ) -> tuple[list[dict[str, Folded]], Report]:
        down, each = self._server.download([i for block in blocks for i in block])
        folded, report = self._host.train(round, down, each, blocks, score_parts, drop)
        self.facts = Facts(actors=[len(report.ids)], busy=[sum(report.seconds.values())])
        return [folded], report

    def _aggregate(self, cohort: Cohort, parts: list[dict[str, Folded]]) -> None:
        self._server.aggregate(cohort, parts)

    def evaluate(self, round: int, ids: Sequence[int], parts: Sequence[str]) -> dict[int, Scores]:
        """Score clients with the newest server state and their own."""
        down, each = self._server.download(ids)
        return self._host.evaluate(round, down, each, ids, parts)

    def unseen(self, round: int) -> dict[str, dict[int, Scores]]:
        """Score clients that never train."""
        ids = range(self.data.seen, len(self.data))
        down, each = self._server.download(ids)
        offered = self._host.offer(range(self.data.seen))
        return self._host.unseen(round, down, each, ids, [offered])

    def figures(self) -> dict[str, float | list[float]]:
        """Return what the method records of the newest server state."""
        return self._server.figures()

    def _save(self, folder: Path, numbers: Sequence[int]) -> tuple[str, dict[int, str]]:
        checkpoints = Checkpoints(folder)
        written = {n: checkpoints.write_clients(n, self._host.rows(clients_of(n))) for n in numbers}
        return checkpoints.write_server(self._server.state), {n: f for n, f in written.items() if f}

    def _restore(self, folder: Path, manifest: Manifest) -> None:
        checkpoints = Checkpoints(folder)
        self._server.restore(checkpoints.read(manifest.server))
        for name in manifest.clients.values():
            self._host.restore(checkpoints.read(name))

    def close(self) -> None:
        """Give the process its torch threads back."""
        torch.set_num_threads(self._threads_before)


def _own(plan: Plan) -> Plan:
    """Return a plan with a method of its own: binding it to a net must not touch the user's object."""
    return replace(plan, method=deepcopy(plan.method))
