"""The progress display of a running table."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich import progress as bar
from rich.console import Console

from rayfl.jobs.cells import Job, remaining_seconds
from rayfl.report.text import clock
from rayfl.system.terminal import Terminal

REFRESH = 5.0  # seconds between two looks at the records of all cells


@dataclass(eq=False)
class TableProgress:
    """Shows the progress of a table: bars on a terminal, plain lines elsewhere.

    Args:
        cells: all cells of the table.
        jobs: how many run at once.
        interval: seconds between two plain lines.
        console: where to print; standard output by default.
        items: the word for cells in the output.
    """

    cells: Sequence[Job]
    jobs: int
    interval: float = 30.0
    console: Console = field(default_factory=Terminal)
    items: str = "cells"
    _looked: float = field(default_factory=time.monotonic, init=False)
    _printed: float = field(default=-math.inf, init=False)  # the first line comes at once
    _left: list[Job] | None = field(default=None, init=False)
    _bar: bar.Progress | None = field(default=None, init=False)
    _tasks: dict[Job, bar.TaskID] = field(default_factory=dict, init=False)

    def __enter__(self) -> TableProgress:
        if self.console.is_terminal:
            self._bar = bar.Progress(
                bar.TextColumn("{task.description}", markup=False),
                bar.BarColumn(bar_width=None),
                bar.TextColumn("{task.completed:.0f}/{task.total:.0f} rounds"),
                bar.TextColumn("{task.fields[eta]}"),
                console=self.console,
                refresh_per_second=2,
                expand=True,
            )
            self._bar.start()
            self._all = self._bar.add_task(
                f"all {self.items}", total=sum(c.rounds for c in self.cells), eta=""
            )
            self._update_bars([])
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def print_line(self, text: str) -> None:
        """Print a line."""
        self.console.print(text, soft_wrap=True, markup=False)

    def show_jobs(self, running: Sequence[Job], waiting: Sequence[Job]) -> None:
        """Show running and waiting cells, at most once per interval."""
        now = time.monotonic()
        self._left = [*running, *waiting]
        if self._bar is not None and now - self._looked >= REFRESH:
            self._looked = now
            self._update_bars(running)
        elif self._bar is None and now - self._printed >= self.interval:
            self._printed = now
            finished = sum(cell.is_finished for cell in self.cells)
            parts = [f"{finished}/{len(self.cells)} {self.items} finished"]
            parts += [f"{job}: round {len(job.round_seconds())}/{job.rounds}" for job in running]
            self.print_line("; ".join([*parts, self._eta_text()]))

    def _update_bars(self, running: Sequence[Job]) -> None:
        assert self._bar is not None
        done = sum(c.rounds if c.is_finished else len(c.round_seconds()) for c in self.cells)
        finished = sum(cell.is_finished for cell in self.cells)
        self._bar.update(
            self._all,
            completed=done,
            description=f"{finished}/{len(self.cells)} {self.items}",
            eta=self._eta_text(),
        )
        for job in [job for job in self._tasks if job not in running]:
            self._bar.remove_task(self._tasks.pop(job))
        for job in running:
            if job not in self._tasks:
                self._tasks[job] = self._bar.add_task(str(job), total=job.rounds, eta="")
            self._bar.update(self._tasks[job], completed=len(job.round_seconds()))

    def _eta_text(self) -> str:
        left = remaining_seconds(self.cells, self.jobs, self._left)
        return "ETA unknown" if left is None else f"ETA {clock(left)}"
