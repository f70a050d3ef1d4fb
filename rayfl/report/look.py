"""What pictures have in common: their size, their words, their grid of panels and their legend."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rayfl.errors import Unknown
from rayfl.report.pictures import Picture, drawn
from rayfl.settings import at_least, at_most
from rayfl.settings.arguments import checked
from rayfl.settings.description import class_name

SIZES = {"column": 3.35, "page": 7.0}
"""Widths in inches: a column of a paper with two columns, and the whole text."""
WIDTH = 3.4
"""Of a panel, in inches, where no size was asked for."""
_POINTS = 8  # of letters in a picture of a given size; printed as it is, it stands beside text of 9 or 10
_IN_A_ROW = 4  # panels
_NARROWEST = 1.5  # inches of a panel
_LABELLED = 2.2  # inches of a panel that has labels of its own

Size = str | Sequence[float] | None
_INCHES = Annotated[float, at_least(0.5), at_most(100)]
_SIZE = Literal["column", "page"] | tuple[_INCHES, _INCHES] | None


@dataclass(frozen=True)
class Look:
    """How a picture looks.

    Attributes:
        size: ``column`` or ``page``, or width and height in inches; None for screens.
        names: what is written in the place of a name of the legend, of a domain or of a data set.
        title: above the picture.
    """

    size: Size = None
    names: Mapping[str, str] = field(default_factory=dict)
    title: str = ""
    _seen: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checked("size", self.size, _SIZE)
        checked("names", self.names, dict[str, str])

    @property
    def width(self) -> float | None:
        """Inches; None for as many as the panels need."""
        return SIZES[self.size] if isinstance(self.size, str) else None if self.size is None else self.size[0]

    @property
    def height(self) -> float | None:
        """Inches; None for as many as the panels need."""
        return None if self.size is None or isinstance(self.size, str) else self.size[1]

    def name(self, text: str, otherwise: str | None = None) -> str:
        """Return what stands for a name: what was asked for, or ``otherwise``, or the name itself."""
        self._seen[text] = None
        otherwise = self.names.get(class_name(text), text if otherwise is None else otherwise)
        return str(self.names.get(text, otherwise))

    def drawn(self, text: str, otherwise: str | None = None) -> str:
        """Return what stands for a name as matplotlib draws it."""
        return drawn(self.name(text, otherwise))

    @contextmanager
    def letters(self) -> Iterator[None]:
        """Make letters as large as the size wants them."""
        with matplotlib.rc_context({} if self.size is None else {"font.size": _POINTS}):
            yield

    def beside(self, panels: int) -> int:
        """Return how many of some panels with labels of their own stand beside each other."""
        return panels if self.width is None else max(1, min(panels, int(self.width / _LABELLED)))

    @staticmethod
    def wrapped(text: str, figure: Figure, columns: int) -> str:
        """Return a small title in as many lines as it needs above one of so many panels in a row."""
        room = 0.7 * figure.get_figwidth() / columns
        return "\n".join(textwrap.wrap(text, max(12, int(room / _letter()))))

    @staticmethod
    def turned(names: Sequence[str], width: float) -> dict[str, Any]:
        """Return how names stand below a panel of so many inches: turned if they would touch each other."""
        fit = max(map(len, names)) * _letter() < 0.85 * width / len(names)
        return {"rotation": 0, "ha": "center"} if fit else {"rotation": 30, "ha": "right"}

    def grid(
        self,
        panels: int,
        width: float | None = None,
        height: float = 3.2,
        polar: bool = False,
        columns: int = 0,
    ) -> tuple[Figure, list[Axes]]:
        """Return a figure with so many panels, four in a row, or as many as the width has room for.

        Args:
            panels: how many.
            width: of the figure in inches, if it does not follow from the panels.
            height: of a row in inches, where no size was asked for.
            polar: whether they are round.
            columns: panels in a row.
        """
        wide = self.width
        room = _IN_A_ROW if wide is None else max(1, int(wide / _NARROWEST))
        columns = columns or min(_IN_A_ROW, room, panels)
        rows = -(-panels // columns)
        columns = -(-panels // rows)  # rows of nearly equal length
        if wide is not None:
            height = min(height, max(1.6, (1.0 if polar else 0.72) * wide / columns))
        size = (wide or width or max(2, columns) * WIDTH, self.height or height * rows)
        figure = Figure(figsize=size, layout="constrained")
        kwargs = {"projection": "polar"} if polar else None
        grid = figure.subplots(rows, columns, squeeze=False, subplot_kw=kwargs).ravel()
        for unused in grid[panels:]:
            unused.set_visible(False)
        return figure, list(grid[:panels])

    def finished(self, figure: Figure, axes: Sequence[Axes], lines: bool = True) -> Picture:
        """Put the title above all panels and one legend below them; letters of ticks get their size.

        Args:
            figure: the figure.
            axes: its panels.
            lines: whether panels have a grid of thin lines.
        """
        for name in self.names:
            if name not in self._seen and name not in map(class_name, self._seen):
                raise Unknown("names", f'has "{name}", which is not drawn; there are {", ".join(self._seen)}')
        handles: dict[str, Any] = {}
        for ax in axes:
            for handle, name in zip(*ax.get_legend_handles_labels()):
                handles.setdefault(name, handle)
            if lines:
                ax.grid(alpha=0.3)
                ax.set_axisbelow(True)
            if ax.name != "polar":
                ax.spines[["top", "right"]].set_visible(not lines)
        if self.title:
            figure.suptitle(drawn(self.title), fontsize="large")
        if handles:
            self._legend(figure, handles)
        return Picture(figure, list(axes))

    def _legend(self, figure: Figure, handles: Mapping[str, Any]) -> None:
        letter = _letter()
        longest = max(map(len, handles))
        room = int(figure.get_figwidth() / (6 * letter + letter * longest))
        columns = max(1, min(_IN_A_ROW, room, len(handles)))
        rows = math.ceil(len(handles) / columns)
        columns = math.ceil(len(handles) / rows)  # rows of equal length
        if self.height is None:
            figure.set_figheight(figure.get_figheight() + 2.4 * letter * rows + 0.1)
        figure.legend(
            handles.values(),
            handles.keys(),
            loc="outside lower center",
            ncols=columns,
            frameon=False,
            fontsize="small",
        )


def _letter() -> float:
    """Return how wide a small letter is, on the mean, in inches."""
    return 0.0078 * float(matplotlib.rcParams["font.size"])
