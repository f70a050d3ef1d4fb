"""``report.html``: a page about a run, a table or a sweep, which needs no network: its parts and its charts.

The charts are SVG of our own, not matplotlib's: a page is written many times during a run, within some
hundredths of a second, and the charts follow the reader's light or dark colours.
"""

from __future__ import annotations

import base64
import io
import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
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
from rayfl.report.text import clock, number, size
from rayfl.system.files import write_file
from rayfl.system.text import one_line, warn

if TYPE_CHECKING:
    import jinja2

PAGE = "report.html"
LONG = 60
"""Characters from which on a text may be broken into lines."""
RANKED = {"best": "<strong>{}</strong>", "second": "<u>{}</u>"}
"""How a figure shows its rank."""


@dataclass(frozen=True)
class SheetCell:
    """A cell of a sheet.

    Attributes:
        text: what it shows.
        number: the value by which its column is sorted; None: unknown.
        href: the address that it links to.
        rank: in its column: "best", "second" or none.
    """

    text: str
    number: float | None
    href: str = ""
    rank: str = ""

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
        elif cell.rank:
            text = Markup(RANKED[cell.rank]).format(cell.text)
    return f"<{tag}{look}>{text}</{tag[:2]}>"


@dataclass(frozen=True)
class Chart:
    """A chart of a page.

    Attributes:
        title: what it shows.
        svg: the drawing; of several panels the first.
        names: and looks in its legend.
        panels: a drawing for each of the names, where they are too many for one.
    """

    title: str
    svg: Markup
    names: Sequence[tuple[str, str]] = ()
    panels: Sequence[Markup] = ()


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

    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("rayfl.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {"clock": clock, "size": size}
    templates.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return templates


def figure_cell(value: float | None, kind: Figure) -> SheetCell:
    """Return a recorded figure as it is printed."""
    return SheetCell(kind.shown(value), None if value is None else kind.scale * value)


def number_cell(value: float | None, decimals: int = 2) -> SheetCell:
    """Return a number, or a dash where there is none."""
    return SheetCell("–" if value is None else number(value, decimals=decimals), value)


def count_cell(count: int) -> SheetCell:
    """Return how many things there are."""
    return SheetCell(f"{count:,}", float(count))


WHOLE = WIDTH, HEIGHT = 640, 280
PANEL = 320, 200
"""Width and height of a drawing, and of one of several."""
LEFT, RIGHT, TOP, BOTTOM = 72, 20, 12, 44
MOST_LINES = 8
"""Lines of a chart at most; of more, each has a panel of its own."""
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
    margin = 0.05 * np.ptp(ys)
    ranges = (xs.min(), xs.max()), (ys.min() - margin, ys.max() + margin)
    ends = [f"{name} ends at {text(float(y[-1]))}" for name, _, _, y in drawn]
    names, size = [(name, look) for name, look, _, _ in drawn], WHOLE if len(drawn) <= MOST_LINES else PANEL
    picture = _Picture(f"{title}: {'; '.join(ends)}", *ranges, over, unit, size=size)
    shapes = [picture.line(look, x, y, end) for (_, look, x, y), end in zip(drawn, ends)]
    if size == WHOLE:
        picture.root.extend(shapes)
        return Chart(title, picture.markup(), names)
    panels, every = list[Markup](), {"id": f"lines-{zlib.crc32(title.encode())}", "class": "others"}
    behind = Element("g", every)
    behind.extend(shapes)
    for shape, end in zip(shapes, ends):
        panel = _Picture(f"{title}: {end}", *ranges, over, unit, size=size)
        panel.root.extend([Element("use", {"href": f"#{every['id']}"}) if panels else behind, shape])
        panels.append(panel.markup())
    return Chart(title, panels[0], names, panels)


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
        size: tuple[int, int] = WHOLE,
    ) -> None:
        (self._x0, self._x1), (self._y0, self._y1) = (_widen_range(*x), _widen_range(*y))
        self._right, self._bottom = size[0] - RIGHT, size[1] - BOTTOM
        look = {"class": "chart", "viewBox": f"0 0 {size[0]} {size[1]}", "role": "img"}
        known = {"aria-label": one_line(alt), "data-range": f"{self._x0:g} {self._x1:g}"}
        self.root = Element("svg", look | known)
        for value in ticks(self._y0, self._y1, "y" in whole):
            place = f"{self.y(value):.1f}"
            ends = {"x1": str(LEFT), "x2": str(self._right), "y1": place, "y2": place}
            SubElement(self.root, "line", {"class": "grid", **ends})
            self._text(f"{value:g}", LEFT - 6, self.y(value) + 4, "end")
        for value in ticks(self._x0, self._x1, "x" in whole):
            self._text(f"{value:g}", self.x(value), self._bottom + 16, "middle")
        self._text(x_label, (LEFT + self._right) / 2, size[1] - 6, "middle")
        middle = (TOP + self._bottom) / 2
        self._text(y_label, 12, middle, "middle", transform=f"rotate(-90 12 {middle:g})")

    def x(self, value: float) -> float:
        """Return the place of a value on the horizontal axis."""
        return LEFT + (self._right - LEFT) * (value - self._x0) / (self._x1 - self._x0)

    def y(self, value: float) -> float:
        """Return the place of a value on the vertical axis."""
        return self._bottom - (self._bottom - TOP) * (value - self._y0) / (self._y1 - self._y0)

    def line(self, look: str, x: np.ndarray, y: np.ndarray, title: str) -> Element:
        """Return the drawing of a line, or of a dot where it has one point."""
        places = [(f"{self.x(a):.1f}", f"{self.y(b):.1f}") for a, b in zip(x, y)]
        shape = Element("polyline", {"class": f"line {look}", "points": " ".join(map(",".join, places))})
        if len(places) == 1:
            shape = Element("circle", {"class": f"dot {look}", **dict(zip(("cx", "cy"), *places)), "r": "4"})
        SubElement(shape, "title").text = title
        return shape

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
    kept = thin_places(len(x), MOST_POINTS)
    return x[kept], y[kept]


def thin_places(count: int, most: int) -> np.ndarray:
    """Return which of so many things to show, with the first and the last: at most ``most``."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def _widen_range(low: float, high: float) -> tuple[float, float]:
    """Return a range that has some width, also among numbers in which 0.5 would be lost."""
    least = 1e-9 * max(abs(low), abs(high))
    margin = max(0.5, least)
    return (low, high) if high - low > least else (low - margin, low + margin)
