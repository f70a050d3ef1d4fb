"""A run on the terminal: a header, then progress; everything on standard output."""

import time
from collections.abc import Iterable, Mapping
from typing import Any

from rich import progress as bar
from rich.console import Console
from rich.text import Text

from rayfl.callbacks.callback import Callback, Run
from rayfl.data.task import Figure
from rayfl.evaluation.metrics import round_figure
from rayfl.record.history import round_totals
from rayfl.report.text import clock
from rayfl.settings.imports import is_installed
from rayfl.system.log import log
from rayfl.system.terminal import Terminal
from rayfl.system.text import one_line


class Progress(Callback):
    """Shows the progress of a run: a bar on a terminal or in a notebook, plain lines elsewhere.

    A notebook needs ipywidgets for the bar.

    Args:
        interval: least seconds between two plain lines; the first and the last round always have one.
        console: where to print; standard output by default.
    """

    def __init__(self, interval: float = 2.0, console: Console | None = None) -> None:
        self.interval = interval
        self.console = console or Terminal()
        self._figures: list[float | None] = []
        self._printed: float | None = None
        self._bar: bar.Progress | None = None

    def start(self, run: Run, round: int) -> bool:
        """Show the completed rounds."""
        self._rounds, self._start = run.rounds, round
        self._began = time.monotonic()
        notebook = self.console.is_jupyter and is_installed("ipywidgets")
        if (self.console.is_terminal or notebook) and self._bar is None:
            self._bar = bar.Progress(
                bar.TextColumn("round {task.completed}/{task.total}"),
                bar.BarColumn(bar_width=None),
                bar.TextColumn("{task.fields[figures]}", markup=False),
                bar.TextColumn("ETA"),
                bar.TimeRemainingColumn(elapsed_when_finished=False),
                console=self.console,
                refresh_per_second=4,
                # In a notebook, a thread that refreshes the bar would overwrite what others print.
                auto_refresh=not notebook,
                # Long enough for rounds that take hours: the estimate needs two rounds.
                speed_estimate_period=7 * 24 * 3600,
                expand=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=run.rounds, completed=round, figures="")
        elif self._bar is not None:
            self._bar.update(self._task, completed=round)
        return False

    def after_round(self, run: Run, record: Mapping[str, Any]) -> bool:
        """Show a completed round."""
        figures = _figures(run, record)
        self._figures = self._figures if figures[0] is None else figures
        parts = in_words(record, self._figures, run.population.figure)
        done = record["round"] + 1
        if self._bar is not None:
            self._bar.update(self._task, completed=done, figures="  ".join(parts))
            if self.console.is_jupyter and self._is_due(done, 0.25):
                self._bar.refresh()
        else:
            self._line(done, parts)
        return False

    def end(self) -> None:
        """Stop the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _is_due(self, done: int, interval: float) -> bool:
        """Return whether to show a round: the first, the last, and others with some seconds between them."""
        now = time.monotonic()
        if done != self._rounds and self._printed is not None and now - self._printed < interval:
            return False
        self._printed = now
        return True

    def _line(self, done: int, parts: list[str]) -> None:
        if not self._is_due(done, self.interval):
            return
        seconds = (time.monotonic() - self._began) / (done - self._start)
        parts = [f"round {done:>{len(str(self._rounds))}}/{self._rounds}", *parts]
        if done < self._rounds:
            parts.append(f"ETA {clock(seconds * (self._rounds - done))}")
        self.console.print("  ".join(parts), soft_wrap=True, markup=False)


class LogRounds(Callback):
    """Writes a line for every round to the run's log."""

    def start(self, run: Run, round: int) -> bool:
        """Log the round that comes first."""
        log.info("round %d of %d is next", round + 1, run.rounds)
        return False

    def after_round(self, run: Run, record: Mapping[str, Any]) -> bool:
        """Log a completed round."""
        words = ", ".join(in_words(record, _figures(run, record), run.population.figure))
        log.info("round %d of %d is done: %s", record["round"] + 1, run.rounds, words)
        return False


def _figures(run: Run, record: Mapping[str, Any]) -> list[float | None]:
    """Return the figures of a round on clients' own test data and on a common test set."""
    return [round_figure(record, run.population, run.protocol, split) for split in ("test", "common")]


def in_words(record: Mapping[str, Any], figures: Iterable[float | None], kind: Figure) -> list[str]:
    """Return what is told of a round as text; the figures may be those of an earlier round."""
    totals = round_totals(record)
    parts = [f"cohort {totals['cohort']}"]
    if totals["dropped"]:
        parts.append(f"dropped {totals['dropped']}")
    parts.append("loss n/a" if totals["loss"] is None else f"loss {totals['loss']:.4f}")
    known = zip((kind.name, "common test"), figures)
    parts += [f"{name} {kind.shown(value)}{kind.unit}" for name, value in known if value is not None]
    return [*parts, f"epsilon {totals['epsilon']:.4g}"] if "epsilon" in totals else parts


def print_start(facts: Mapping[str, str], console: Console | None = None) -> None:
    """Print what is about to run, one fact per line; long paths are not broken, so they can be copied."""
    console = console or Terminal()
    width = max(map(len, facts))
    lines = [Text.assemble((name.ljust(width), "bold"), "  ", one_line(text)) for name, text in facts.items()]
    console.print(Text("\n").join(lines), soft_wrap=True)
