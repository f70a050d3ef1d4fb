"""``report.html``: a page about a run, a table or a sweep, which needs no network: its parts and its charts.

The charts are SVG of our own, not matplotlib's: a page is written many times during a run, within some
hundredths of a second, and the charts follow the reader's light or dark colours.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree.ElementTree import Element, SubElement, tostring

import numpy as np
from markupsafe import Markup, escape
from PIL import Image

from rayfl.data.task import Figure
from rayfl.report.method_looks import COLOURS
from rayfl.report.text import number
from rayfl.system.files import write_file
from rayfl.system.text import one_line, warn

if TYPE_CHECKING:
    import jinja2

PAGE = "report.html"
LONG = 60
"""Characters from which on a text may be broken into lines."""


@dataclass(frozen=True)
class SheetCell:
    """A cell of a sheet.

    Attributes:
        text: what it shows.
        number: the value by which its column is sorted; None: unknown.
        href: the address that it links to.
        best: whether it is the best of its column.
    """

    text: str
    number: float | None
    href: str = ""
    best: bool = False

    @property
    def is_number(self) -> bool:
        """Whether it stands under a column of numbers."""
        return self.number is not None or not self.href


Row = Sequence[str | SheetCell]
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

    @classmethod
    def of_columns(
        cls, caption: str, columns: Mapping[str, Iterable[str | SheetCell]], search: bool = False
    ) -> Sheet:
        """Return the table with these columns: heading -> cells."""
        return cls(caption, list(columns), list(map(list, zip(*columns.values()))), search)

    def body(self) -> Markup:
        """Return the lines as HTML: a macro of Jinja's, called for each cell, takes far longer."""
        tags = 'th scope="row"', *["td"] * len(self.heads)
        lines = ("".join(map(_cell_markup, row, tags)) for row in self.rows)
        return Markup("\n".join(f"<tr>{line}</tr>" for line in lines))


def _cell_markup(cell: str | SheetCell, tag: str) -> str:
    if isinstance(cell, str):
        look, text = ' class="long"' if len(cell) > LONG else "", escape(cell)
    else:
        look, text = ' class="number"' if cell.is_number else "", escape(cell.text)
        look += "" if cell.number is None else f' data-value="{cell.number}"'
        if cell.href:
            text = Markup('<a href="{}">{}</a>').format(cell.href, cell.text)
        elif cell.best:
            text = Markup("<strong>{}</strong>").format(cell.text)
    return f"<{tag}{look}>{text}</{tag[:2]}>"


@dataclass(frozen=True)
class Chart:
    """A chart of a page, with the names and the looks in its legend."""

    title: str
    svg: Markup
    names: Sequence[tuple[str, str]] = field(default=())


def write_page(folder: Path, content: Callable[[], str]) -> bool:
    """Write a page into a folder; a failure is only a warning, because the records are intact.

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
    """Return a page: everything in ``content`` is escaped, except charts."""
    written = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return _templates().get_template(template).render(written=written, **content)


@cache
def _templates() -> jinja2.Environment:
    import jinja2  # runs that are not over should not wait for it

    return jinja2.Environment(
        loader=jinja2.PackageLoader("rayfl.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def figure_cell(value: float | None, kind: Figure) -> SheetCell:
    """Return a recorded figure as it is printed."""
    return SheetCell(kind.shown(value), None if value is None else kind.scale * value)


def number_cell(value: float | None, decimals: int = 2) -> SheetCell:
    """Return a number, or a dash where there is none."""
    return SheetCell("–" if value is None else number(value, decimals=decimals), value)


def count_cell(count: int) -> SheetCell:
    """Return how many things there are."""
    return SheetCell(f"{count:,}", float(count))


WIDTH, HEIGHT = 640, 280
LEFT, RIGHT, TOP, BOTTOM = 72, 20, 12, 40
MOST_POINTS = 300
"""Points of a line at most; longer ones are thinned out."""
ROUNDS = "completed rounds"


@dataclass(frozen=True)
class Line:
    """A line of a chart.

    Attributes:
        name: for the legend.
        x: float [points], ascending.
        y: float [points].
        look: see :func:`rayfl.report.method_looks.looks_of`; None: that of its place.
    """

    name: str
    x: Sequence[float] | np.ndarray
    y: Sequence[float] | np.ndarray
    look: int | None = None

    def classes(self, place: int) -> str:
        """Return its look in the style sheet, in the legend or in the drawing."""
        kind, colour = divmod(place if self.look is None else self.look, COLOURS)
        return f"colour{colour} dash{kind % 4}"


def line_chart(
    title: str, lines: Sequence[Line], unit: str, text: Callable[[float], str] = number, over: str = ROUNDS
) -> Chart | None:
    """Return lines, mostly over rounds.

    Args:
        title: what the chart shows.
        lines: what is drawn; points that are not finite are left out.
        unit: what the vertical axis shows.
        text: of a value.
        over: what the horizontal axis shows.

    Returns:
        None where no line has a point.
    """
    thinned = [(line, *_thin_points(line)) for line in lines]
    drawn = [(one_line(line.name), line.classes(k), x, y) for k, (line, x, y) in enumerate(thinned) if len(x)]
    if not drawn:
        return None
    xs, ys = (np.concatenate([points[axis] for points in drawn]) for axis in (2, 3))
    ends = "; ".join(f"{name} ends at {text(float(y[-1]))}" for name, _, _, y in drawn)
    margin = 0.05 * np.ptp(ys)
    heights = (ys.min() - margin, ys.max() + margin)
    picture = _Picture(f"{title}: {ends}", (xs.min(), xs.max()), heights, over, unit)
    for name, look, x, y in drawn:
        places = " ".join(f"{picture.x(a):.1f},{picture.y(b):.1f}" for a, b in zip(x, y))
        drawn_line = SubElement(picture.root, "polyline", {"class": f"line {look}", "points": places})
        SubElement(drawn_line, "title").text = f"{name}: {text(float(y[-1]))} at the end"
        if len(x) == 1:
            at = {"cx": f"{picture.x(x[0]):.1f}", "cy": f"{picture.y(y[0]):.1f}", "r": "4"}
            SubElement(picture.root, "circle", {"class": f"dot {look}", **at})
    return Chart(title, picture.markup(), [(name, look) for name, look, _, _ in drawn])


def histogram(title: str, figures: np.ndarray, kind: Figure, bins: int = 20) -> Chart:
    """Return how many clients have a printed figure in each of some equal parts of their range."""
    ends = (0.0, 100.0) if kind.percent else (float(figures.min()), float(figures.max()))
    counts, edges = np.histogram(figures, bins, ends)
    heights = (0, max(1, int(counts.max())))
    picture = _Picture(title, (edges[0], edges[-1]), heights, f"test {kind.title}", "clients", "y")
    for count, low, high in zip(counts, edges, edges[1:]):
        if count:
            place = {"x": f"{picture.x(low) + 1:.1f}", "y": f"{picture.y(count):.1f}"}
            width, height = picture.x(high) - picture.x(low) - 2, picture.y(0) - picture.y(count)
            sides = {"width": f"{width:.1f}", "height": f"{height:.1f}"}
            bar = SubElement(picture.root, "rect", {"class": "bar", **place, **sides})
            SubElement(bar, "title").text = f"{low:g} to {high:g}{kind.unit}: {count}"
    return Chart(title, picture.markup())


def heat_map(matrix: np.ndarray) -> str:
    """Return a matrix as a picture in a ``data:`` address, a pixel per number; the largest is opaque."""
    most = max(1.0, float(matrix.max(initial=0)))
    opacity = (255 * np.sqrt(matrix / most)).round().astype(np.uint8)  # small counts stay visible
    pixels = np.empty((*matrix.shape, 4), dtype=np.uint8)
    pixels[..., :3], pixels[..., 3] = (31, 119, 212), opacity
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


class _Picture:
    """A drawing with axes; ``x`` and ``y`` give the places of values, ``whole`` axes have whole numbers."""

    def __init__(
        self,
        alt: str,
        x: tuple[float, float],
        y: tuple[float, float],
        x_label: str,
        y_label: str,
        whole: str = "x",
    ) -> None:
        (self._x0, self._x1), (self._y0, self._y1) = (_widen_range(*x), _widen_range(*y))
        box = f"0 0 {WIDTH} {HEIGHT}"
        self.root = Element(
            "svg", {"class": "chart", "viewBox": box, "role": "img", "aria-label": one_line(alt)}
        )
        for value in ticks(self._y0, self._y1, "y" in whole):
            place = f"{self.y(value):.1f}"
            ends = {"x1": str(LEFT), "x2": str(WIDTH - RIGHT), "y1": place, "y2": place}
            SubElement(self.root, "line", {"class": "grid", **ends})
            self._text(f"{value:g}", LEFT - 6, self.y(value) + 4, "end")
        for value in ticks(self._x0, self._x1, "x" in whole):
            self._text(f"{value:g}", self.x(value), HEIGHT - BOTTOM + 16, "middle")
        self._text(x_label, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, "middle")
        middle = (TOP + HEIGHT - BOTTOM) / 2
        self._text(y_label, 12, middle, "middle", transform=f"rotate(-90 12 {middle:g})")

    def x(self, value: float) -> float:
        """Return the place of a value on the horizontal axis."""
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - self._x0) / (self._x1 - self._x0)

    def y(self, value: float) -> float:
        """Return the place of a value on the vertical axis."""
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - self._y0) / (self._y1 - self._y0)

    def _text(self, text: str, x: float, y: float, anchor: str, **more: str) -> None:
        place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor}
        SubElement(self.root, "text", {**place, **more}).text = one_line(text)

    def markup(self) -> Markup:
        """Return the drawing for a page; texts in it are escaped."""
        return Markup(tostring(self.root, encoding="unicode"))


def ticks(low: float, high: float, whole: bool = False) -> list[float]:
    """Return up to seven round numbers between two values, on request only whole ones."""
    step = 10.0 ** math.floor(math.log10(high - low))
    step = next(step * part for part in (0.1, 0.2, 0.25, 0.5, 1, 2) if (high - low) / (step * part) <= 7)
    first = math.ceil(low / step - 1e-9)
    found = [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]
    return [value for value in found if not whole or value == round(value)]


def _thin_points(line: Line) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(line.x, float), np.asarray(line.y, float)
    x, y = x[np.isfinite(y)], y[np.isfinite(y)]
    if len(x) <= MOST_POINTS:
        return x, y
    kept = np.unique(np.linspace(0, len(x) - 1, MOST_POINTS).round().astype(int))
    return x[kept], y[kept]


def _widen_range(low: float, high: float) -> tuple[float, float]:
    """Return a range that has some width, also among numbers in which 0.5 would be lost."""
    least = 1e-9 * max(abs(low), abs(high))
    margin = max(0.5, least)
    return (low, high) if high - low > least else (low - margin, low + margin)
