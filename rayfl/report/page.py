"""``report.html``: a page about a run, a table or a sweep, which needs no network: its parts.

The charts are our own small SVG, and not matplotlib's, because a page is written again and again while a run
goes on, in some hundredths of a second, and because they follow the light or dark colours of the reader.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfl.report.svg import Line, line_chart
from rayfl.report.text import number, percent
from rayfl.system.files import write_file
from rayfl.system.text import one_line, warn

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

PAGE = "report.html"


@dataclass(frozen=True)
class Cell:
    """A cell of a sheet.

    Attributes:
        text: what it shows.
        number: by which its column is sorted, None if it is unknown.
        href: where it leads.
        best: whether it is the best of its column.
    """

    text: str
    number: float | None
    href: str = ""
    best: bool = False


Row = Sequence[str | Cell]
"""A line of a sheet."""


@dataclass(frozen=True)
class Sheet:
    """A table of a page.

    Attributes:
        caption: what it shows.
        heads: of the columns.
        rows: texts and cells.
        search: whether rows can be searched.
    """

    caption: str
    heads: Sequence[str]
    rows: Sequence[Row]
    search: bool = False


@dataclass(frozen=True)
class Picture:
    """A chart of a page, with the names in its legend."""

    title: str
    svg: Markup
    names: Sequence[str] = field(default=())


def write_page(folder: Path, content: Callable[[], str]) -> bool:
    """Write a page into a folder; what goes wrong is a warning, because the records are what counts.

    Args:
        folder: of a run, a table or a sweep.
        content: returns the page.

    Returns:
        Whether it is written.
    """
    path = folder / PAGE
    try:
        write_file(path, content())
    except Exception as error:
        warn(f"{path} could not be written: {error}; the records are intact")
        return False
    return True


def render(template: str, **content: Any) -> str:
    """Return a page: everything in ``content`` is escaped, but for charts."""
    written = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return _templates().get_template(template).render(written=written, **content)


@cache
def _templates() -> Environment:
    from jinja2 import (
        Environment,
        PackageLoader,
        StrictUndefined,
    )  # runs that are not over should not wait for it

    loader = PackageLoader("rayfl.report", "templates")
    return Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )


def line_picture(title: str, lines: Sequence[Line], unit: str) -> Picture | None:
    """Return a chart over rounds; None where no line has a point."""
    lines = [line for line in lines if np.isfinite(np.asarray(line.y, float)).any()]
    if not lines:
        return None
    names = [one_line(line.name) for line in lines]
    ends = (f"{name} ends at {number(_last(line))}" for name, line in zip(names, lines))
    svg = line_chart(lines, f"{title}: {'; '.join(ends)}", "completed rounds", unit)
    return Picture(title, svg, names)


def _last(line: Line) -> float:
    values = np.asarray(line.y, float)
    return float(values[np.isfinite(values)][-1])


def percent_cell(value: float | None) -> Cell:
    """Return an accuracy in [0, 1] in per cent."""
    return Cell(percent(value), None if value is None else 100 * value)


def number_cell(value: float | None) -> Cell:
    """Return a number, or a dash where there is none."""
    return Cell("–" if value is None else number(value), value)
