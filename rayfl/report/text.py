"""Numbers and names as people read them."""

from collections.abc import Iterable, Mapping
from typing import Any

from rich import box
from rich.table import Table

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


def spoken(name: str) -> str:
    """Return an identifier as words."""
    return name.replace("_", " ")


def averaged(entries: Iterable[Mapping[str, Any]]) -> str:
    """Return how many evaluations ``last_k`` has averaged in some views: "5", "3 to 5"."""
    counts = sorted({len(entry["last_k"]["rounds"]) for entry in entries if entry["last_k"]})
    if not counts:
        return "0"
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def plain_table(title: str) -> Table:
    """Return a table without columns in the style of all that is printed."""
    return Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
