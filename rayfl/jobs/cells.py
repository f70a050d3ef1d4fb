"""Cells of a table: one run each, several at once, each in a process of its own.

A cell is an ordinary run folder beside its log. Progress is read from the folders only, so a table may be
interrupted in any way: finished cells are not repeated, and an interrupted cell goes on from its last
checkpoint. A running process holds a lock on its log; other commands skip a locked cell.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from rayfl.errors import Conflict, UserError
from rayfl.federation import federation_of
from rayfl.record.folder import read_config, read_environment, read_summary
from rayfl.record.history import CONFIG, METRICS, engine_lines, read_lines
from rayfl.settings.description import RESUMABLE
from rayfl.settings.reader import DottedSettings
from rayfl.settings.yaml_file import yaml_text
from rayfl.system.files import lock_descriptor, lock_folder, write_file
from rayfl.system.memory import available_memory, count_cpus
from rayfl.system.own_code import changed_code
from rayfl.system.signals import handle_signals
from rayfl.system.text import counted

POLL = 0.2  # seconds between two looks at running processes


@dataclass(frozen=True, eq=False)
class Job:
    """A cell with one seed, to be run.

    Attributes:
        row: name of the row.
        column: name of the column.
        seed: of the run.
        rounds: of the run.
        folder: the run folder.
        settings: options of ``rayfl.run``, without the folder.
    """

    row: str
    column: str
    seed: int
    rounds: int
    folder: Path
    settings: DottedSettings

    def __str__(self) -> str:
        return f"{self.row}, {self.column}, seed {self.seed}"

    @property
    def log(self) -> Path:
        """The file with the output of the process."""
        return self.folder.with_name(self.folder.name + ".log")

    @property
    def is_finished(self) -> bool:
        """Whether all rounds are done and the summary is written."""
        summary = read_summary(self.folder)
        return bool(summary and (summary["completed"] >= self.rounds or summary.get("early")))

    @property
    def ended_before_first_round(self) -> bool:
        """Whether the folder holds a run of this cell that ended before its first round."""
        if not (self.folder / CONFIG).is_file():
            return False
        config, metrics = read_config(self.folder), self.folder / METRICS
        there, wanted = config.get("cell") or {}, self.settings.get("cell")
        own = isinstance(wanted, dict) and all(there.get(k) == wanted[k] for k in ("table", "row", "column"))
        kept = any((self.folder / "checkpoints").glob("manifest-*"))
        begun = kept or (metrics.exists() and any(True for _ in read_lines(metrics)))
        return bool(own and config.get("seed", 0) == self.seed and not begun)

    def round_seconds(self) -> list[float]:
        """Return the duration of every recorded round."""
        return list({line["round"]: float(line["seconds"]) for line in engine_lines(self.folder)}.values())

    def prepare_command(self) -> list[str]:
        """Write the settings beside the folder; return the command that runs or resumes the cell."""
        if (self.folder / CONFIG).is_file():
            kept = {k: v for k, v in self.settings.items() if k.partition(".")[0] in (*RESUMABLE, "cell")}
            given, settings = ["--resume", str(self.folder)], kept | {"rounds": self.rounds}
        else:
            given, settings = ["--output", str(self.folder)], self.settings | {"seed": self.seed}
        file = self.folder.with_name(f"{self.folder.name}.yaml")
        write_file(file, yaml_text(settings))
        return [sys.executable, "-m", "rayfl.run", "--config", str(file), *given]


def check_code(folders: Iterable[Path], several: Iterable[DottedSettings], remove: bool = False) -> None:
    """Refuse or remove runs that were made with other code.

    Args:
        folders: of the runs; those that have not begun do not exist.
        several: the settings of all of them.
        remove: whether to remove runs of other code, so that they start again.
    """
    for folder, other in code_changes(folders, several).items():
        if not remove:
            raise Conflict(
                folder,
                f"was run with other code: {', '.join(other)}",
                "Restore it, let what it has made begin anew by --code changed, or choose another --output",
            )
        with lock_folder(folder):
            shutil.rmtree(folder)


def code_of(several: Iterable[DottedSettings]) -> dict[str, str]:
    """Return what decides the numbers of runs besides their settings and data; see ``RunSettings.code``."""
    return {name: digest for each in several for name, digest in federation_of(each).code().items()}


def code_changes(folders: Iterable[Path], several: Iterable[DottedSettings]) -> dict[Path, list[str]]:
    """Return what code of runs is another one here, for those with such code; see :func:`check_code`."""
    there = code_of(several)
    found = {each: changed_code(read_environment(each).get("code", {}), there) for each in folders}
    return {folder: other for folder, other in found.items() if other}


@dataclass
class RunningCell:
    """A running cell."""

    job: Job
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    slot: int


@dataclass
class TableOutcome:
    """The outcome of a table's cells.

    Attributes:
        failed: cell -> reason.
        elsewhere: cells that another process is running.
        signals: that have stopped the table.
    """

    failed: dict[Job, str] = field(default_factory=dict)
    elsewhere: list[Job] = field(default_factory=list)
    signals: list[int] = field(default_factory=list)


class CellRunner:
    """Runs cells, several at once.

    Args:
        jobs: how many at once; None for as many as CPUs (or GPUs, where there are some) and memory allow.
        tell: called with a line about every cell that starts, ends or fails.
        shown: called regularly with the cells that run and those that wait.
        keep_checkpoints: whether finished cells keep their checkpoints.
    """

    def __init__(
        self,
        jobs: int | None,
        tell: Callable[[str], None],
        shown: Callable[[Sequence[Job], Sequence[Job]], None],
        keep_checkpoints: bool = True,
    ) -> None:
        self.limit = jobs or automatic_jobs()
        self._watch_memory = jobs is None
        self._tell, self._shown = tell, shown
        self._keep_checkpoints = keep_checkpoints
        self._running: list[RunningCell] = []
        self._largest = 0
        self._outcome = TableOutcome()

    def run(self, cells: Sequence[Job]) -> TableOutcome:
        """Run all cells that are not finished; if one fails, the others still run.

        The first SIGINT, SIGTERM or SIGHUP lets running cells end their round and write a checkpoint; the
        second one kills them.

        Raises:
            KeyboardInterrupt: after a second signal.
        """
        self._outcome = TableOutcome()
        waiting = [cell for cell in cells if not cell.is_finished]
        for cell in set(cells).difference(waiting):
            self._remove_checkpoints(cell)
        try:
            with handle_signals(self._stop_cells):
                while self._running or (waiting and not self._outcome.signals):
                    while waiting and not self._outcome.signals and self._has_room():
                        self._start_cell(waiting.pop(0))
                    time.sleep(POLL)
                    for running in [r for r in self._running if r.process.poll() is not None]:
                        self._running.remove(running)
                        self._finish_cell(running)
                    self._shown([r.job for r in self._running], waiting)
        finally:
            for running in self._running:  # only if this process has failed
                running.process.terminate()
        if len(self._outcome.signals) > 1:
            raise KeyboardInterrupt
        return self._outcome

    def _has_room(self) -> bool:
        if len(self._running) >= self.limit:
            return False
        if not self._running or not self._watch_memory:
            return True
        self._largest = max([self._largest, *(_peak_memory(r.process.pid) for r in self._running)])
        known = all(r.job.round_seconds() for r in self._running)  # memory grows until the first round ends
        return known and available_memory() > 1.25 * self._largest

    def _start_cell(self, job: Job) -> None:
        job.folder.parent.mkdir(parents=True, exist_ok=True)
        log = job.log.open("ab")
        if not lock_descriptor(log.fileno()):
            log.close()
            self._outcome.elsewhere.append(job)
            self._tell(f"{job}: being run by another process")
            return
        if job.is_finished:  # by another process, in the meantime
            log.close()
            return
        if job.ended_before_first_round:  # the user may have corrected its settings
            # Not while the user runs it by hand.
            with contextlib.suppress(UserError), lock_folder(job.folder):
                shutil.rmtree(job.folder)
        resumed = f" after {counted(len(done), 'round')}" if (done := job.round_seconds()) else ""
        slot = min(set(range(self.limit)) - {r.slot for r in self._running})
        # In its own session: Ctrl-C reaches this process only, which then asks the cell to stop.
        process = subprocess.Popen(
            job.prepare_command(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=_process_environment(slot),
            start_new_session=True,
        )
        self._running.append(RunningCell(job, process, log, slot))
        if self._outcome.signals:  # one came before the process was in the list
            process.terminate()
        self._tell(f"{job}: started{resumed}")

    def _finish_cell(self, running: RunningCell) -> None:
        running.log.close()
        job, code = running.job, running.process.returncode
        if job.is_finished:
            self._remove_checkpoints(job)
            self._tell(f"{job}: finished")
        elif self._outcome.signals:
            self._tell(f"{job}: stopped after {counted(len(job.round_seconds()), 'round')}")
        else:
            self._outcome.failed[job] = why = _failure_reason(job.log, code)
            self._tell(f"{job}: FAILED: {why} (all of it in {job.log})")

    def _remove_checkpoints(self, finished: Job) -> None:
        """Remove the checkpoints of a cell, unless another process runs it for more rounds."""
        if not self._keep_checkpoints:
            with finished.log.open("ab") as log:
                if lock_descriptor(log.fileno()):
                    shutil.rmtree(finished.folder / "checkpoints", ignore_errors=True)

    def _stop_cells(self, number: int) -> None:
        self._outcome.signals.append(number)
        first = len(self._outcome.signals) == 1
        if first:
            self._tell("Stopping: running cells end their round; once more to stop at once.")
        for running in self._running:
            running.process.send_signal(signal.SIGTERM if first else signal.SIGKILL)


def automatic_jobs() -> int:
    """Return how many cells to run at once: one per GPU, or one per CPU without GPUs."""
    import torch

    return torch.cuda.device_count() or count_cpus()


def _process_environment(slot: int) -> dict[str, str]:
    """Return a process's environment: one thread by default, and a GPU of its own if possible."""
    import torch

    found = {"OMP_NUM_THREADS": "1", **os.environ}
    if (gpus := torch.cuda.device_count()) > 1:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = visible.split(",") if visible else [str(k) for k in range(gpus)]
        found["CUDA_VISIBLE_DEVICES"] = names[slot % gpus]
    return found


def _peak_memory(pid: int) -> int:
    """Return the most memory that a process has used so far, in bytes; 0 if that is unknown."""
    with contextlib.suppress(OSError):
        if found := re.search(r"VmHWM:\s*(\d+)", Path(f"/proc/{pid}/status").read_text()):
            return 1024 * int(found[1])
    return 0


def _failure_reason(log: Path, code: int) -> str:
    """Return why a process has failed, from the end of its log."""
    if code < 0:  # the last lines of the log may be an earlier process's
        hint = "; too little memory?" if code == -signal.SIGKILL else ""
        return f"killed by {signal.Signals(-code).name}{hint}"
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    said = [line.removeprefix("rayfl: error: ") for line in lines[-3:] if line.startswith("rayfl: error: ")]
    if said:
        return said[-1]
    return f"ended with code {code}: {lines[-1] if lines else 'no output'}"


def remaining_seconds(cells: Sequence[Job], jobs: int, left: Collection[Job] | None = None) -> float | None:
    """Estimate the remaining seconds of a table from its rounds so far; None if unknown.

    A cell without a round is estimated from its row and column, else from its column, else from all cells.

    Args:
        cells: all cells of the table.
        jobs: how many run at once.
        left: running and waiting cells; all by default. Others have failed, or a scheduler has stopped them.
    """
    import pandas as pd  # slow to import, and not needed before a table runs

    spent = [cell.round_seconds() for cell in cells]
    means = [sum(seconds) / len(seconds) if seconds else None for seconds in spent]
    places = {"row": [cell.row for cell in cells], "column": [cell.column for cell in cells]}
    table = pd.DataFrame({**places, "mean": pd.Series(means, dtype=float)})
    each = table["mean"]
    for keys in (["row", "column"], ["column"]):
        each = each.fillna(table.groupby(keys)["mean"].transform("mean"))
    known = dict(zip(cells, zip(spent, each.fillna(table["mean"].mean()))))
    work = [
        max(0, cell.rounds - len(known[cell][0])) * known[cell][1]
        for cell in (cells if left is None else left)
        if not cell.is_finished and cell.rounds > len(known[cell][0])
    ]
    return None if any(map(math.isnan, work)) else max([sum(work) / jobs, *work], default=0.0)
