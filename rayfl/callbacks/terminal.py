"""What a person sees of a run while it goes on: a header, then progress; everything on standard output."""

import time
from collections.abc import Mapping
from types import TracebackType

from rich import progress as bar
from rich.console import Console
from rich.text import Text

from rayfl.evaluation.metrics import RoundFigures
from rayfl.report.text import clock, percent
from rayfl.shown import one_line
from rayfl.terminal import Terminal


class Progress:
    """Shows how far a run has come: a bar on a terminal, plain lines anywhere else.

    Use it as a context manager around the rounds and call :meth:`update` after each of them.

    Args:
        rounds: rounds of the run.
        start: rounds that are done already (a resumed run).
        quiet: print nothing at all.
        interval: least number of seconds between two plain lines; the first and the last round always get
            one.
        console: where to print; standard output by default.
    """

    def __init__(
        self,
        rounds: int,
        start: int = 0,
        quiet: bool = False,
        interval: float = 2.0,
        console: Console | None = None,
    ) -> None:
        self.rounds = rounds
        self.start = start
        self.interval = interval
        self.console = console or Terminal(quiet=quiet)
        self._accuracy: float | None = None
        self._began = time.monotonic()
        self._printed: float | None = None
        self._bar: bar.Progress | None = None
        self._task = bar.TaskID(0)

    def __enter__(self) -> "Progress":
        self._began = time.monotonic()
        if self.console.is_terminal:
            self._bar = bar.Progress(
                bar.TextColumn("round {task.completed}/{task.total}"),
                bar.BarColumn(bar_width=None),
                bar.TextColumn("{task.fields[figures]}", markup=False),
                bar.TextColumn("ETA"),
                bar.TimeRemainingColumn(elapsed_when_finished=False),
                console=self.console,
                refresh_per_second=4,
                # Long enough for rounds that take hours: the estimate needs two of them.
                speed_estimate_period=7 * 24 * 3600,
                expand=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=self.rounds, completed=self.start, figures="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def update(self, figures: RoundFigures) -> None:
        """Show that a round is done (see :func:`rayfl.evaluation.metrics.round_figures`)."""
        if figures.accuracy is not None:
            self._accuracy = figures.accuracy
        parts = [f"cohort {figures.cohort}"]
        if figures.dropped:
            parts.append(f"dropped {figures.dropped}")
        parts.append(f"loss {figures.loss:.4f}" if figures.loss is not None else "loss n/a")
        if self._accuracy is not None:
            parts.append(f"accuracy {percent(self._accuracy)} %")
        done = figures.round + 1
        if self._bar is not None:
            self._bar.update(self._task, completed=done, figures="  ".join(parts))
        else:
            self._line(done, parts)

    def go_back(self, start: int) -> None:
        """Show that the run goes on from an earlier round."""
        self.start = start
        self._began = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, completed=start)

    def _line(self, done: int, parts: list[str]) -> None:
        now = time.monotonic()
        due = self._printed is None or now - self._printed >= self.interval
        if not due and done != self.rounds:
            return
        self._printed = now
        seconds = (now - self._began) / (done - self.start)
        parts = [f"round {done:>{len(str(self.rounds))}}/{self.rounds}", *parts]
        if done < self.rounds:
            parts.append(f"ETA {clock(seconds * (self.rounds - done))}")
        self.console.print("  ".join(parts), soft_wrap=True, markup=False)


def print_start(facts: Mapping[str, str], console: Console | None = None) -> None:
    """Print what is about to run, one fact per line; a long path can be copied in one piece."""
    console = console or Terminal()
    width = max(map(len, facts))
    for name, text in facts.items():
        console.print(Text.assemble((name.ljust(width), "bold"), "  ", one_line(text)), soft_wrap=True)
