"""What a person sees of a run: a header, progress, and a table at the end; everything on standard output."""

import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

from rich import box
from rich import progress as bar
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rayfl.record.metrics import RoundFigures
from rayfl.record.protocol import protocol
from rayfl.shown import one_line
from rayfl.terminal import Terminal

AVERAGE_NAMES = {
    "mean_clients": "mean over clients",
    "pooled": "pooled",
    "weighted": "weighted by training size",
}
"""What people call the averages over clients."""

CHOICE_NAMES = {
    "last": "last round",
    "best_val": "best round by validation",
    "last_k": "mean of the last evaluations",
    "window": "mean of the window",
}
"""What people call the choices of rounds."""


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
        """Show that a round is done (see :func:`rayfl.record.metrics.round_figures`)."""
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


def clock(seconds: float) -> str:
    """Return a duration as h:mm:ss."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}"


def percent(accuracy: float | None, std: float | None = None) -> str:
    """Return an accuracy in [0, 1] as a percentage with two decimals, with its deviation if there is one."""
    if accuracy is None:
        return "n/a"
    return f"{100 * accuracy:.2f}" + (f" ± {100 * std:.2f}" if std is not None else "")


def size(count: float) -> str:
    """Return a number of bytes in the largest decimal unit that leaves at least 1."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.2f} {unit}"


def print_start(facts: Mapping[str, str], console: Console | None = None) -> None:
    """Print what is about to run, one fact per line; a long path can be copied in one piece."""
    console = console or Terminal()
    width = max(map(len, facts))
    for name, text in facts.items():
        console.print(Text.assemble((name.ljust(width), "bold"), "  ", one_line(text)), soft_wrap=True)


def choice_name(choice: str, summary: Mapping[str, Any], entries: Iterable[Mapping[str, Any]] = ()) -> str:
    """Return what people call a choice of rounds, as a table heading of two lines.

    Args:
        choice: the choice.
        summary: of the run.
        entries: the views in the table, whose ``last_k`` may have fewer evaluations than ``k``; all of the
            summary by default.
    """
    window = min(protocol(summary["protocol"]).length, summary["completed"])
    names = {
        "last": "last\nround",
        "best_val": "best by\nvalidation",
        "last_k": f"mean of\nlast {averaged(entries or summary['views'])}",
        "window": f"mean of\nlast {window}",
    }
    return names[choice]


def averaged(entries: Iterable[Mapping[str, Any]]) -> str:
    """Return how many evaluations ``last_k`` has averaged in some views: "5", "3 to 5"."""
    counts = sorted({len(entry["last_k"]["rounds"]) for entry in entries if entry["last_k"]})
    if not counts:
        return "0"
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def final_table(summary: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the accuracies of a run, as ``summary.json`` holds them, in per cent.

    A table per evaluation point with a row per view and average and a column per choice of rounds; then the
    same per domain for the view of the headline; then the headline.
    """
    console = console or Terminal()
    views = summary["views"]
    if not views:
        console.print("No evaluation took place.")
    for point in dict.fromkeys(entry["point"] for entry in views):
        console.print(_view_table(summary, point))
    headline = summary["headline"]
    if headline is not None:
        shown = next(v for v in views if (v["point"], v["view"]) == (headline["point"], headline["view"]))
        if len(shown["last"]["domains"]) > 1:
            console.print(_domain_table(summary, shown))
    for line in remarks(summary):
        console.print(Text(line), soft_wrap=True)


def _choices(summary: Mapping[str, Any]) -> list[str]:
    return [c for c in ("last", "best_val", "last_k", "window") if c in summary["views"][0]]


def _view_table(summary: Mapping[str, Any], point: str) -> Table:
    choices = _choices(summary)
    title = f"Test accuracy in %, {spoken(point)}"
    entries = [v for v in summary["views"] if v["point"] == point]
    table = _table(title, ["view", "average"], [choice_name(c, summary, entries) for c in choices])
    names = {"mean": "mean over clients", "pooled": "pooled", "worst_decile": "worst tenth"}
    for entry in entries:
        if table.row_count:
            table.add_section()
        for name, text in names.items():
            cells = [percent(entry[c][name] if entry[c] else None) for c in choices]
            table.add_row(entry["view"] if name == "mean" else "", text, *cells)
    return table


def _domain_table(summary: Mapping[str, Any], entry: Mapping[str, Any]) -> Table:
    choices = _choices(summary)
    title = f"Test accuracy in % per domain, {entry['view']}, mean over clients"
    table = _table(title, ["domain", "clients"], [choice_name(c, summary, [entry]) for c in choices])
    means: dict[str, list[float]] = {c: [] for c in choices}
    for name, domain in entry["last"]["domains"].items():
        cells = []
        for choice in choices:
            mean = entry[choice]["domains"][name]["mean"] if entry[choice] else None
            cells.append(percent(mean))
            if mean is not None:
                means[choice].append(mean)
        table.add_row(name, str(domain["clients"]), *cells)
    table.add_section()
    found = [sum(m) / len(m) if m else None for m in means.values()]
    table.add_row("mean of domains", "", *map(percent, found))
    return table


def plain_table(title: str) -> Table:
    """Return a table without columns in the style of all that is printed."""
    return Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)


def _table(title: str, labels: list[str], numbers: list[str]) -> Table:
    table = plain_table(title)
    for label in labels:
        table.add_column(label, vertical="bottom")
    for number in numbers:
        table.add_column(number, justify="right", no_wrap=True)
    return table


def spoken(name: str) -> str:
    """Return an identifier as words."""
    return name.replace("_", " ")


def remarks(summary: Mapping[str, Any]) -> list[str]:
    """Return the headline of a run and what one should know about its numbers, one sentence per line."""
    lines = []
    headline = summary["headline"]
    if headline is None:
        lines.append(f"Protocol {summary['protocol']}: n/a, no score that it counts.")
    else:
        accuracy = percent(headline["accuracy"], headline["std"])
        lines.append(f"Protocol {summary['protocol']}: {accuracy} %, {headline_source(headline)}.")
        if headline["left_out"]:
            lines.append(
                f"{headline['left_out']} clients without data or score are left out of every figure."
            )
    lines.append(f"Sent by clients {size(summary['up'])}, received {size(summary['down'])}.")
    if summary["dropped"]:
        lines.append(f"{summary['dropped']} updates were dropped; metrics.jsonl names their clients.")
    if summary["not_finite"]:
        lines.append(f"{summary['not_finite']} values were NaN or infinite; metrics.jsonl names them.")
    if summary["completed"] < summary["rounds"]:
        why = "Ended early, by the protocol's patience" if summary["early"] else "Incomplete"
        lines.append(f"{why}: {summary['completed']} of {summary['rounds']} rounds.")
    return lines


def headline_source(headline: Mapping[str, Any]) -> str:
    """Say where a headline comes from; rounds are counted from 1 here, as in all that is printed."""
    first, last = headline["rounds"][0] + 1, headline["rounds"][-1] + 1
    if len(headline["rounds"]) > 1:
        when = f"mean ± std over {len(headline['rounds'])} evaluations of rounds {first} to {last}"
    elif headline["choose"] == "best_val":
        when = f"round {last}, best by validation"
    else:
        when = f"round {last}"
    return f"{headline['view']}, {spoken(headline['point'])}, {AVERAGE_NAMES[headline['average']]}, {when}"
