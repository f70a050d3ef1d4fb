"""The engine without Ray: everything in this process."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch

from rayfl.data import FederatedData
from rayfl.engine.base import Engine
from rayfl.engine.plan import Plan
from rayfl.engine.server import Server
from rayfl.engine.session import SERVER, Session, Workers
from rayfl.engine.worker import Worker
from rayfl.errors import UserError


class Inline(Engine):
    """Run all clients in this process: for debugging, small runs, and machines without Ray.

    The code is the same as on actors, and so are the results, to the bit.
    """

    def resolve(self, stacks: bool = True) -> None:
        """Replace every ``auto``; see ``Engine.resolve``."""
        if self.device == "cuda" and not torch.cuda.is_available():
            raise UserError("engine.device is cuda, but torch sees no CUDA device: use auto or cpu")
        super().resolve(stacks)

    def open(self, plan: Plan, data: FederatedData) -> Session:
        """Build the server and one worker for all clients."""
        return Session(plan, data, InlineWorkers(plan, data))


class InlineWorkers(Workers):
    """A server and one worker in this process: an operation is carried out when it is called."""

    server: Server | None
    worker: Worker | None

    def __init__(self, plan: Plan, data: FederatedData) -> None:
        self._plan, self._data = plan, data
        self._threads_before = torch.get_num_threads()
        self._kernels_before = torch.get_deterministic_debug_mode()
        self.stop()

    def __len__(self) -> int:
        return int(self.worker is not None)

    def start(self, shrink: bool) -> None:
        """Build both, each with a method of its own: setting it up must not touch the user's object."""
        self.server = Server(replace(self._plan, method=deepcopy(self._plan.method)), self._data)
        self.worker = Worker(replace(self._plan, method=deepcopy(self._plan.method)), self._data)

    def call(self, k: int, name: str, *arguments: Any, returns: int = 1) -> Any:
        """Carry an operation out; its result is the reference."""
        return getattr(self.server if k == SERVER else self.worker, name)(*arguments)

    def get(self, references: Sequence[Any]) -> list[Any]:
        """Return the references: they are the results."""
        return list(references)

    def stop(self) -> None:
        """Drop both."""
        self.server = self.worker = None

    def close(self) -> None:
        """Give the process back what it had: its torch threads, and the kernels that GPUs may use."""
        self.stop()
        torch.set_num_threads(self._threads_before)
        torch.set_deterministic_debug_mode(self._kernels_before)
