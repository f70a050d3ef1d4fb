"""The actors: a worker and the server, as Ray starts them."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from pathlib import Path
from socket import gethostname
from typing import Any

import ray

from rayfl.data import FederatedData
from rayfl.engine.base import Plan
from rayfl.engine.process import cap_gpu_memory, exit_on_gpu_failure, torch_defaults
from rayfl.engine.server import Server
from rayfl.engine.travel import Download, RoundResult
from rayfl.engine.worker import Worker
from rayfl.training.sums import Accumulated, payload_bytes

READ_SECONDS = 0.5
"""Seconds in which an actor has written where it is; also in C++ code it can."""


class _Actor:
    """What both have: a name in Ray's logs and dashboard, and the same state of PyTorch."""

    _shown = ""  # Ray also asks for it where the arguments could not be read

    def _set_up_process(self, shown: str) -> None:
        self._shown = shown
        if sys.platform == "linux":  # else nobody can read it from outside
            self._stack = os.fdopen(os.memfd_create("stack"), "w")
            faulthandler.register(signal.SIGUSR1, self._stack, all_threads=False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's
        self._defaults = torch_defaults()  # kept, for it would end with the context
        self._defaults.__enter__()

    def __repr__(self) -> str:
        return self._shown

    def report_location(self) -> dict[str, Any]:
        """Return where this actor runs."""
        node = ray.get_runtime_context().get_node_id()
        stack = self._stack.fileno() if hasattr(self, "_stack") else None
        return {
            "node": node,
            "host": gethostname(),
            "pid": os.getpid(),
            "gpus": ray.get_gpu_ids(),
            "stack": stack,
        }


def read_stack(pid: int, file: int) -> list[str]:
    """Return the lines of code in which an actor on this host is, innermost first.

    Args:
        pid: of the actor.
        file: to which it writes them, by its number there.
    """
    os.kill(pid, signal.SIGUSR1)
    time.sleep(READ_SECONDS)
    written = Path(f"/proc/{pid}/fd/{file}").read_text().rpartition("(most recent call first):")[2]
    return [line.strip() for line in written.splitlines() if line.strip()]


class ClientActor(_Actor, Worker):
    """A worker on a share of a CPU or GPU, which keeps clients' personal state between rounds.

    Args:
        run: the run's name.
        plan: the federation.
        data: the data, shared by all actors of a node.
        gpu_share: the share of a GPU that this actor may fill; 0 sets no limit.
    """

    def __init__(self, run: str, plan: Plan, data: FederatedData, gpu_share: float) -> None:
        self._set_up_process(f"{run} clients")
        exit_on_gpu_failure()
        if plan.engine.device == "cuda":
            cap_gpu_memory(gpu_share)
        super().__init__(plan, data)

    def train(
        self, round: int, download: Download, *arguments: Any
    ) -> tuple[dict[str, Accumulated], RoundResult]:
        """Train, and count the bytes that are sent for it."""
        accumulated, result = super().train(round, download, *arguments)
        result.bytes_down = payload_bytes(download.everyone)
        result.bytes_up = sum(part.nbytes for part in accumulated.values())
        return accumulated, result


class ServerActor(_Actor, Server):
    """The server on an actor: it pulls accumulated uploads from the object store."""

    def __init__(self, run: str, plan: Plan, data: FederatedData) -> None:
        self._set_up_process(f"{run} server")
        super().__init__(plan, data)
