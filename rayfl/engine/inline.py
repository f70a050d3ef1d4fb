"""The engine without Ray: everything in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

import torch

from rayfl.data import FederatedData
from rayfl.engine.base import SERVER, Engine, EngineSession, Plan, Workers
from rayfl.engine.process import cap_gpu_memory, check_gpu, reserved_gpus
from rayfl.engine.server import Server
from rayfl.engine.set_up import ignore_trial_errors
from rayfl.engine.worker import Worker
from rayfl.methods.base import has_exchange
from rayfl.training.stacked import discrepancy


class Inline(Engine):
    """Run all clients in this process: for debugging, small runs, and machines without Ray.

    The code is the same as on actors, and so are the results, to the bit.
    """

    def resolve(self) -> Self:
        """Return an engine without ``auto``; see ``Engine.resolve``."""
        if self.device == "cuda":
            check_gpu()
        return super().resolve()

    def _uses_cuda(self) -> bool:
        # Ray hides no GPU from a process that has reserved none
        return torch.cuda.is_available() and reserved_gpus() != 0

    @contextmanager
    def start_in_background(
        self, run: str, quiet: bool = True, in_group: bool = False
    ) -> Iterator[EngineSession]:
        """Start nothing: this process runs already."""
        yield InlineEngineSession()


class InlineEngineSession(EngineSession):
    """The process in which an inline federation runs."""

    def make_workers(self, plan: Plan, data: FederatedData, groups: int | None = None) -> Workers:
        """Return the server and one worker for all clients."""
        if plan.engine.device == "cuda":
            cap_gpu_memory(reserved_gpus() or 0)
        return InlineWorkers(plan, data)


def stack_difference(plan: Plan, data: FederatedData) -> str:
    """Return how training in a stack would differ from training in a loop; empty if it would not.

    Two clients of each net take the first steps of all fits of the first round, see
    :func:`rayfl.training.stacked.discrepancy`, in float64 on the CPU; in float32 where a net takes no other.

    Raises:
        UserError: the clients' training does.
    """
    names, counts = [str(net) for net in plan.nets], data.counts("train")[: data.seen]
    largest: dict[str, list[int]] = {}
    for i in sorted(counts.nonzero()[0].tolist(), key=lambda i: -counts[i]):
        some = largest.setdefault(names[i % len(names)], [])
        some += [i] if len(some) < 2 else []
    ids = [i for some in largest.values() for i in some]
    threads = torch.get_num_threads()
    loop = replace(plan.engine, execution="loop", device="cpu", threads=threads, memory_format="contiguous")
    for precision, tolerance in (("float64", 1e-8), ("float32", 1e-4)):
        training = replace(plan.training, precision=precision)  # type: ignore[arg-type]
        workers = InlineWorkers(replace(plan, engine=loop, training=training), data)
        try:
            # Unless the precision is the reason, the run in the loop raises it again.
            with ignore_trial_errors():
                workers.start(allow_fewer=False)
                download = workers.call(SERVER, "download", ids)
                if has_exchange(plan.method, 0):
                    uploads, _ = workers.call(
                        0, "train", 0, download, [tuple(ids)], (), False, "before_round"
                    )
                    workers.call(SERVER, "keep_exchange", uploads)
                    download = workers.call(SERVER, "download", ids)
                return discrepancy(workers.call(0, "updates", download, ids), tolerance)
        finally:
            workers.close()
    return ""


class InlineWorkers(Workers):
    """A server and one worker in this process: a call runs at once."""

    server: Server | None
    worker: Worker | None

    def __init__(self, plan: Plan, data: FederatedData) -> None:
        self._plan, self._data = plan, data
        self._threads_before = torch.get_num_threads()
        self._kernels_before = torch.get_deterministic_debug_mode()
        self.stop()

    def __len__(self) -> int:
        return int(self.worker is not None)

    def start(self, allow_fewer: bool) -> None:
        """Build both."""
        self.server = Server(self._plan, self._data)
        self.worker = Worker(self._plan, self._data)

    def call(self, k: int, name: str, *arguments: Any, returns: int = 1) -> Any:
        """Run an operation; its result is the reference."""
        return getattr(self.server if k == SERVER else self.worker, name)(*arguments)

    def get(self, references: Sequence[Any], usual: float | None = None) -> list[Any]:
        """Return the references: they are the results."""
        return list(references)

    def stop(self) -> None:
        """Drop both."""
        self.server = self.worker = None

    def close(self) -> None:
        """Give the process back its number of torch threads, and the kernels that GPUs may use."""
        self.stop()
        torch.set_num_threads(self._threads_before)
        torch.set_deterministic_debug_mode(self._kernels_before)
