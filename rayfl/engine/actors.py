"""The actors: a worker and the server, as Ray starts them."""

from __future__ import annotations

import os
import signal
from typing import Any

import ray

from rayfl.data import FederatedData
from rayfl.engine.plan import Plan
from rayfl.engine.process import cap_gpu_memory, end_with_its_gpu
from rayfl.engine.round_result import RoundResult
from rayfl.engine.server import Server
from rayfl.engine.travel import Download
from rayfl.engine.worker import Worker
from rayfl.training.sums import Accumulated, payload_bytes


class ClientActor(Worker):
    """A worker on a share of a CPU or GPU, which keeps clients' personal state between rounds.

    Args:
        plan: the federation.
        data: the data, shared by all actors of a node.
        gpu_share: the share of a GPU that this actor may fill; 0 sets no limit.
    """

    _shown = ""  # Ray also asks for it where the arguments could not be read

    def __init__(self, plan: Plan, data: FederatedData, gpu_share: float) -> None:
        end_with_its_gpu()
        if plan.device == "cuda":
            cap_gpu_memory(gpu_share)
        self._shown = plan.run
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's
        super().__init__(plan, data)

    def __repr__(self) -> str:
        return f"{self._shown} clients"  # in Ray's logs and dashboard

    def ready(self) -> dict[str, Any]:
        """Return where this actor runs."""
        return _where()

    def train(
        self, round: int, download: Download, *arguments: Any
    ) -> tuple[dict[str, Accumulated], RoundResult]:
        """Train; and count the bytes that travel for it."""
        accumulated, result = super().train(round, download, *arguments)
        result.bytes_down = payload_bytes(download.everyone)
        result.bytes_up = sum(part.nbytes for part in accumulated.values())
        return accumulated, result


class ServerActor(Server):
    """The server on an actor: it pulls accumulated uploads from the object store."""

    _shown = ""

    def __init__(self, plan: Plan, data: FederatedData) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._shown = plan.run
        super().__init__(plan, data)

    def __repr__(self) -> str:
        return f"{self._shown} server"

    def ready(self) -> dict[str, Any]:
        """Return where this actor runs."""
        return _where()


def _where() -> dict[str, Any]:
    node = ray.get_runtime_context().get_node_id()
    return {"node": node, "pid": os.getpid(), "gpus": ray.get_gpu_ids()}
