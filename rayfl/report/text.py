"""Numbers and names as text for readers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from rayfl.evaluation.protocol import CHOSEN_ON_TEST

AVERAGE_NAMES = {
    "mean_clients": "mean over clients",
    "pooled": "pooled",
    "weighted": "weighted by training size",
}
"""Names of the averages over clients."""


CHOICE_NAMES = {
    "last": "last round",
    "best_val": "best round by validation",
    "last_k": "mean of the last evaluations",
    "window": "mean of the window",
    "best_test": f"best round by test data ({CHOSEN_ON_TEST})",
}
"""Names of the choices of rounds."""


def clock(seconds: float) -> str:
    """Return a duration as h:mm:ss."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}"


def mean_and_std(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Return mean and sample deviation: both None if a value is missing; no deviation of one value."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None, None
    return float(np.mean(known)), float(np.std(known, ddof=1)) if len(known) > 1 else None


def number(mean: float | None, std: float | None = None, decimals: int = 2) -> str:
    """Return a number as text, with its deviation if there is one; n/a: no number."""
    if mean is None:
        return "n/a"
    return f"{mean:.{decimals}f}" + (f" ± {std:.{decimals}f}" if std is not None else "")


def size(count: float | None) -> str:
    """Return a number of bytes in the largest decimal unit that leaves at least 1; n/a: no number."""
    if count is None:
        return "n/a"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.2f} {unit}"


def as_text(name: str) -> str:
    """Return an identifier as words."""
    return name.replace("_", " ")


def choice_headings(entries: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return choice of rounds -> its heading of two lines above figures of some views."""
    counts = [len(entry["last_k"]["rounds"]) for entry in entries if entry["last_k"]]
    last_k = f"mean of\nlast {range_text(counts, str) or 0}"
    return {"last": "last\nround", "best_val": "best by\nvalidation", "last_k": last_k}


def range_text(values: Iterable[float | None], text: Callable[[float], str] = "{:,}".format) -> str:
    """Return the least and the largest of what runs have needed: "12", "12 to 15", "12, 1 of 3 not reached".

    Args:
        values: of each run; None: it has not reached the target.
        text: returns a value as text.
    """
    every = list(values)
    known = sorted(value for value in every if value is not None)
    missing = len(every) - len(known)
    found = " to ".join(dict.fromkeys(map(text, known[:1] + known[-1:])))
    if not missing:
        return found
    return f"{found}, {missing} of {len(every)} not reached" if known else "not reached"


def fit_table(table: Table, console: Console) -> tuple[Table, list[str]]:
    """Return a table whose rows fit the console, and the headings of the columns that it lacks.

    Columns of numbers but the headline's may go, from the right; texts are shortened to 24 letters, and to 8
    if even so there is no room. A table that is still too wide keeps its width.
    """
    table, dropped = deepcopy(table), list[str]()

    def excess() -> int:
        width = console.measure(table, options=console.options.update(max_width=10_000)).maximum
        return width - console.width

    for least in (24, 8):
        for column in (each for each in table.columns if each.justify == "left"):
            texts = (column.header, *column.cells)
            width = min(column.max_width or 10_000, max(cell_len(str(text)) for text in texts))
            if (over := excess()) > 0 and width > least:
                column.no_wrap, column.overflow, column.max_width = True, "ellipsis", max(least, width - over)
        while excess() > 0 and (last := table.columns[-1]).justify == "right" and last.header != "headline":
            dropped.insert(0, str(table.columns.pop().header).replace("\n", " "))
    return table, dropped


def plain_table(title: str, texts: Iterable[str] = (), numbers: Iterable[str] = (), **more: Any) -> Table:
    """Return a table without rows in the style of all printed tables.

    Args:
        title: of the table.
        texts: headings of the columns on the left.
        numbers: those of the columns of numbers.
        more: options of the columns of numbers.
    """
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in texts:
        table.add_column(heading)
    for heading in numbers:
        table.add_column(heading, justify="right", **more)
    return table
