"""The actors: a host of clients, and the server, as Ray sees them.

They only translate between Ray's object store and the plain classes that do the work.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
import torch

from rayfl.data import FederatedData
from rayfl.engine.plan import Block, Plan
from rayfl.engine.round_result import Report, Scores
from rayfl.engine.server import Server
from rayfl.engine.worker import Host
from rayfl.methods import Cohort
from rayfl.record.checkpoint import Checkpoints
from rayfl.training.state import Packed, State, pack, unpack
from rayfl.training.sums import Folded

Download = tuple[Packed, dict[int, Packed]]
"""What all clients receive, and what single clients receive besides."""


class ClientActor:
    """Hosts clients on a share of a CPU or GPU, and keeps their personal state in memory between rounds.

    Args:
        plan: the federation.
        data: the data, shared by all actors of a node.
        gpu_share: the share of a GPU that this actor may fill; 0 sets no limit.
    """

    def __init__(self, plan: Plan, data: FederatedData, gpu_share: float) -> None:
        if plan.device == "cuda" and 0 < gpu_share < 1 and torch.cuda.is_available():
            torch.cuda.set_per_process_memory_fraction(gpu_share)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's
        self.host = Host(plan, data)

    def ready(self) -> dict[str, Any]:
        """Return where this actor runs."""
        return _where()

    def train(
        self,
        round: int,
        download: Download,
        blocks: Sequence[Block],
        score_parts: Sequence[str],
        drop: bool,
        *arrivals: Packed,
    ) -> tuple[dict[str, Folded], tuple[Report, bool, int, int]]:
        """Take in the clients that moved here, then train the blocks.

        Returns:
            The folded uploads, for the server; and for the driver: the report, whether clients keep any
            state, and the bytes of the download and of the folded uploads.
        """
        for rows in arrivals:
            self.host.put(unpack(rows))
        down, each = _unpacked(download)
        folded, report = self.host.train(round, down, each, blocks, score_parts, drop)
        keeps = any(i in self.host.states for i in report.ids)
        return folded, (report, keeps, download[0].nbytes, sum(f.nbytes for f in folded.values()))

    def evaluate(
        self, round: int, download: Download, ids: Sequence[int], parts: Sequence[str]
    ) -> dict[int, Scores]:
        """Score clients that are hosted here or have no state yet."""
        down, each = _unpacked(download)
        return self.host.evaluate(round, down, each, ids, parts)

    def offer(self, ids: Sequence[int]) -> dict[str, Folded]:
        """Fold what clients that are hosted here offer to newcomers."""
        return self.host.offer(ids)

    def unseen(
        self, round: int, download: Download, ids: Sequence[int], *offered: dict[str, Folded]
    ) -> dict[str, dict[int, Scores]]:
        """Score clients that never train, with what all actors' clients offer."""
        down, each = _unpacked(download)
        return self.host.unseen(round, down, each, ids, list(offered))

    def take(self, ids: Sequence[int]) -> Packed:
        """Hand over clients that move to another actor."""
        return pack(self.host.take(ids))

    def rows(self, ids: Sequence[int]) -> Packed:
        """Return a copy of the state of clients, for the actor that writes their file."""
        return pack(self.host.rows(ids))

    def save(self, folder: str, number: int, ids: Sequence[int], *others: Packed) -> str | None:
        """Write a client file: the state of ``ids``, which are hosted here, and what other actors sent."""
        rows: dict[int, State] = self.host.rows(ids)
        for packed in others:
            rows |= unpack(packed)
        return Checkpoints(Path(folder)).write_clients(number, rows)

    def restore(self, folder: str, names: Sequence[str]) -> list[int]:
        """Host all clients of some client files; return their numbers."""
        checkpoints = Checkpoints(Path(folder))
        restored: dict[int, State] = {}
        for name in names:
            restored |= checkpoints.read(name)
        self.host.restore(restored)
        return list(restored)


class ServerActor:
    """Holds the server state, pulls folded uploads from the object store and aggregates them.

    Args:
        plan: the federation.
        data: for the shape of the net.
    """

    def __init__(self, plan: Plan, data: FederatedData) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.server = Server(plan, data)

    def ready(self) -> dict[str, Any]:
        """Return where this actor runs."""
        return _where()

    def download(self, ids: Sequence[int]) -> Download:
        """Return what clients receive; Ray keeps it in the object store once for all actors of a node."""
        down, each = self.server.download(ids)
        return pack(down), {i: pack(extra) for i, extra in each.items()}

    def figures(self) -> dict[str, float | list[float]]:
        """Return what the method records of its state."""
        return self.server.figures()

    def aggregate(self, cohort: Cohort, *parts: dict[str, Folded]) -> tuple[None, Download | None]:
        """Take the server step with the folded uploads of all actors.

        Returns:
            A sign for the driver, and for the actors the next download, if it is one for all clients.
        """
        self.server.aggregate(cohort, list(parts))
        return None, self.download(()) if self.server.method.one_download else None

    def save(self, folder: str) -> str:
        """Write the server's file; return its name."""
        return Checkpoints(Path(folder)).write_server(self.server.state)

    def restore(self, folder: str, name: str) -> None:
        """Take up the server state in a file."""
        self.server.restore(Checkpoints(Path(folder)).read(name))


def _where() -> dict[str, Any]:
    node = ray.get_runtime_context().get_node_id()
    return {"node": node, "pid": os.getpid(), "gpus": ray.get_gpu_ids()}


def _unpacked(download: Download) -> tuple[State, dict[int, State]]:
    down, each = download
    return unpack(down), {i: unpack(extra) for i, extra in each.items()}
