"""What all engines have in common: the settings of execution, and the steps of a round."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch

from rayfl.data import FederatedData
from rayfl.engine.plan import Block, Plan
from rayfl.engine.round_result import Report, Scores
from rayfl.errors import UserError
from rayfl.methods import Cohort
from rayfl.record.checkpoint import CLIENTS_PER_FILE, Checkpoints, Manifest
from rayfl.record.checks import PARTS, check_scores
from rayfl.settings import Settings

LOOP_BLOCKS = 32
"""A small cohort in loop execution is cut into so many blocks at most: enough to balance 32 processes."""
LOOP_BLOCK = 32
"""A large cohort is cut into blocks of so many clients at most: each block costs a sum of all parameters."""


MOST_THREADS = 64
"""Threads that every process may have on any machine, so that runs of larger ones can be repeated on it."""

LONGEST_TIMEOUT = 10_000_000
"""Seconds, some months: the system's clocks refuse times that are far larger."""


class BadUpdate(UserError):
    """A client's update cannot be used, and the run's policy is to stop."""


class Lost(UserError):
    """Processes of a federation are gone, and with them the state that they held."""


class Gone(UserError):
    """What a federation's processes run on is gone itself, so that none can be started again."""


class Engine(Settings, ABC, place="engine"):
    """Base of the engines.

    Args:
        execution: ``loop`` trains client after client, ``stacked`` many in one call; ``auto`` is stacked on a
            GPU and loop on a CPU, where a stack is slower.
        device: ``cpu``, ``cuda``, or ``auto``: CUDA where torch sees it.
        threads: torch threads of every process, from 1 to 64, or to the number of CPUs if that is larger.
            Results depend on it in the last bits.
        memory_format: layout of images and convolution weights in training: ``channels_last``,
            ``contiguous``, or ``auto``: channels_last in a loop on the CPU, where it is faster.
        stack: clients per stacked call, at least 1.
        deterministic: whether to allow deterministic GPU kernels only.
        client_timeout: seconds that a client may take to train in a round, above 0; without a limit if not
            given. A client that takes longer has a bad update. Results then depend on time.
    """

    def __init__(
        self,
        execution: Literal["auto", "loop", "stacked"] = "auto",
        device: Literal["auto", "cpu", "cuda"] = "auto",
        threads: int = 1,
        memory_format: Literal["auto", "contiguous", "channels_last"] = "auto",
        stack: int = 32,
        deterministic: bool = False,
        client_timeout: float | None = None,
    ) -> None:
        if client_timeout is not None and not 0 < client_timeout <= LONGEST_TIMEOUT:
            raise UserError(
                f"engine.client_timeout is {client_timeout}: it must be a number of seconds above 0 and at "
                f"most {LONGEST_TIMEOUT:,}"
            )
        if threads < 1:
            raise UserError(f"engine.threads is {threads}: it must be at least 1")
        if stack < 1:
            raise UserError(f"engine.stack is {stack}: it must be at least 1")
        self.execution = execution
        self.device = device
        self.threads = threads
        self.memory_format = memory_format
        self.stack = stack
        self.deterministic = deterministic
        self.client_timeout = client_timeout

    def resolve(self) -> None:
        """Replace every ``auto`` by what it means here, so that the configuration that is kept says it.

        Raises:
            UserError: ``device`` is ``cuda``, and the engine cannot provide it; or ``threads`` are far more
                than this machine has use for.
        """
        cpus = os.cpu_count() or 1
        if self.threads > (most := max(MOST_THREADS, cpus)):
            raise UserError(
                f"engine.threads is {self.threads}, and this machine has {cpus} CPUs: it may be {most} at "
                "most, and more than a process has CPUs make it slower"
            )
        if self.device == "auto":
            self.device = "cuda" if self._uses_cuda() else "cpu"
        if self.execution == "auto":
            self.execution = "stacked" if self.device == "cuda" else "loop"
        if self.memory_format == "auto":
            plain_loop = self.device == "cpu" and self.execution == "loop"
            self.memory_format = "channels_last" if plain_loop else "contiguous"

    def _uses_cuda(self) -> bool:
        """Say what ``device: auto`` means."""
        return torch.cuda.is_available()

    def blocks(self, cohort: Sequence[int]) -> list[Block]:
        """Cut a cohort into the blocks that are trained and folded together; they never depend on placement.

        Args:
            cohort: client numbers, ascending.
        """
        if self.execution == "stacked":
            return [tuple(cohort[k : k + self.stack]) for k in range(0, len(cohort), self.stack)]
        count = min(len(cohort), max(LOOP_BLOCKS, math.ceil(len(cohort) / LOOP_BLOCK)))
        cuts = [k * len(cohort) // max(1, count) for k in range(count + 1)]
        return [tuple(cohort[start:end]) for start, end in pairwise(cuts)]

    def describe(self) -> str:
        """Return the engine in a few words, for people."""
        return f"{type(self).__name__} ({self.execution} on {self.device}, {self.threads} thread(s))"

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Do in the background what does not depend on the data, while they are loaded and checked.

        Leaving by an exception undoes it.
        """
        yield

    def share(self, data: FederatedData) -> FederatedData:
        """Return the data in memory that all processes share; the caller's copy can go before they start."""
        return data

    @abstractmethod
    def open(self, plan: Plan, data: FederatedData) -> Session:
        """Start what runs the clients.

        Raises:
            UserError: the resources asked for are not there.
        """


@dataclass
class Facts:
    """What a round cost, for ``engine.jsonl``: it may differ from run to run.

    Attributes:
        actors: clients trained per actor.
        moved: clients whose state moved to another actor.
        bytes_down: bytes of the one download object.
        bytes_up: bytes of all folded uploads.
        busy: seconds of training per actor.
        dropped: what was wrong with updates that were not used, by client.
    """

    actors: list[int] = field(default_factory=list)
    moved: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    busy: list[float] = field(default_factory=list)
    dropped: dict[int, str] = field(default_factory=dict)


class Session(ABC):
    """A federation's running processes. Use it as a context manager."""

    def __init__(self, plan: Plan, data: FederatedData) -> None:
        self.plan = plan
        self.data = data
        self.facts = Facts()
        self._changed: set[int] = set()  # clients trained since the last checkpoint
        self._files: dict[int, str] = {}  # number of the client file -> its name in the last checkpoint

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        try:
            if kind is None:
                self.settle()
        finally:
            self.close()

    def check(self) -> None:  # noqa: B027 - only sessions with processes of their own can lose what these run on
        """See that what the processes run on is there.

        Raises:
            Gone: it is not.
        """

    def settle(self) -> None:  # noqa: B027 - only sessions that do work in the background have any
        """Wait for work that is still under way, and raise what has gone wrong in it."""

    def train(
        self,
        round: int,
        blocks: Sequence[Block],
        on_bad_update: Literal["stop", "drop"] = "stop",
        score_parts: Sequence[str] = (),
    ) -> Report:
        """Run one round: download, local training, folding, aggregation.

        Args:
            round: from 0.
            blocks: the cohort, as ``Engine.blocks`` has cut it.
            on_bad_update: whether a bad update stops the run or leaves its client out of this round; and
                whether an exception in a client's training is raised, or counts as a bad update.
            score_parts: parts of the data on which each client is scored right after its training.

        Raises:
            BadUpdate: an update is not finite, has diverged or has not come in time, and the policy is to
                stop.
            Lost: processes are gone, here as in everything else that a session does.
        """
        parts, report = self._train(round, blocks, score_parts, on_bad_update == "drop")
        report.sort()
        self.facts.dropped = dict(sorted(report.bad.items()))
        if report.bad and on_bad_update == "stop":
            raise BadUpdate(_bad_update_text(round, report.bad))
        self._changed.update(i for i in report.ids if i not in report.bad)
        good = tuple(i for i in report.ids if i not in report.bad and i not in report.idle)
        samples = tuple(len(self.data.shards[i].train) for i in good)
        self._aggregate(Cohort(good, samples, self.data.seen, round), parts)
        return report

    @abstractmethod
    def _train(
        self, round: int, blocks: Sequence[Block], score_parts: Sequence[str], drop: bool
    ) -> tuple[list[Any], Report]:
        """Return what the processes have folded, and what they report; see ``Host.train``."""

    @abstractmethod
    def _aggregate(self, cohort: Cohort, parts: list[Any]) -> None:
        """Let the server take its step."""

    @abstractmethod
    def evaluate(self, round: int, ids: Sequence[int], parts: Sequence[str]) -> dict[int, Scores]:
        """Score clients with the newest server state and their own."""

    @abstractmethod
    def unseen(self, round: int) -> dict[str, dict[int, Scores]]:
        """Score clients that never train: evaluation point -> client -> scores; see ``Host.unseen``."""

    @abstractmethod
    def figures(self) -> dict[str, float | list[float]]:
        """Return what the method records of the newest server state."""

    def save(
        self, folder: Path, round: int, progress: dict[str, Any], settings: dict[str, Any] | None = None
    ) -> None:
        """Write a checkpoint of everything that rounds before ``round`` have left behind.

        Args:
            folder: the run's checkpoints.
            round: the next round.
            progress: what the driver keeps, as plain JSON.
            settings: what decides the run's numbers, see ``Manifest``.
        """
        checkpoints = Checkpoints(folder)
        stale = sorted({i // CLIENTS_PER_FILE for i in self._changed})
        server, names = self._save(folder, stale)
        self._files.update(names)
        files = {number: self._files[number] for number in sorted(self._files)}
        checkpoints.commit(Manifest(round, server, files, progress, settings))
        self._changed = set()

    @abstractmethod
    def _save(self, folder: Path, numbers: Sequence[int]) -> tuple[str, dict[int, str]]:
        """Write the server's state and the client files of these numbers; return the files' names."""

    def restore(self, folder: Path, manifest: Manifest | None) -> None:
        """Take up the state of a checkpoint, or without one the state before the first round.

        Processes that are not running are started; those that run must not have done anything yet.
        """
        self._changed = set()
        self._files = dict(manifest.clients) if manifest else {}
        if manifest:
            _check_progress(folder, manifest, self.data)
            self._restore(folder, manifest)

    def clear(self, lost: Lost) -> None:
        """Stop what is left after a loss, so that ``restore`` can start anew.

        Raises:
            UserError: this has happened too often.
        """
        raise lost

    @abstractmethod
    def _restore(self, folder: Path, manifest: Manifest) -> None:
        """Load the server's and the clients' state."""

    @abstractmethod
    def close(self) -> None:
        """Stop the processes."""


def clients_of(number: int) -> range:
    """Return the client numbers whose state is kept in a client file."""
    return range(number * CLIENTS_PER_FILE, (number + 1) * CLIENTS_PER_FILE)


def _check_progress(folder: Path, manifest: Manifest, data: FederatedData) -> None:
    """Refuse a checkpoint whose scores are not those of the clients."""
    try:
        check_scores(manifest.progress.get("after_training", {}), {part: data.counts(part) for part in PARTS})
    except ValueError as error:
        raise UserError(
            f"the checkpoint after {manifest.round} rounds in {folder} is damaged (its scores: {error}): "
            "restore it from a copy, or start the run anew with another --output"
        ) from error


def _bad_update_text(round: int, bad: dict[int, str]) -> str:
    first, *others = sorted(bad)
    more = f" ({len(others)} more clients have bad updates: {others[:10]})" if others else ""
    return (
        f"round {round}: client {first}: {bad[first]}{more}. The run stops, with its records and checkpoints "
        "intact. on_bad_update=drop leaves such updates out; where training has diverged, try a smaller "
        "training.lr or training.clip"
    )
