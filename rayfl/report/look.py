"""Size, font size, names, grid of panels and legend of all pictures."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from rayfl.errors import BadValue, Unknown
from rayfl.settings import at_least, at_most
from rayfl.settings.arguments import convert_value
from rayfl.settings.description import class_name
from rayfl.system.files import explain_write_errors
from rayfl.system.text import escape_hidden


class Picture(NamedTuple):
    """A figure of matplotlib and the axes of its panels: ``figure, axes = result.plot.rounds()``.

    A notebook shows it where it is the last line of a cell.

    Attributes:
        figure: all of it.
        axes: the panels, row by row.
    """

    figure: Figure
    axes: list[Axes]

    def save(self, path: str | Path, dpi: int = 200) -> None:
        """Write a file: PNG, PDF or SVG, as the ending says (see :func:`save`)."""
        save(self.figure, path, dpi)

    def _repr_png_(self) -> bytes:
        """Return what notebooks show."""
        file = io.BytesIO()
        _save_figure(self.figure, file, dpi=100, format="png")
        return file.getvalue()


def drawn(text: str) -> str:
    """Return a name as matplotlib draws it letter by letter: what stands between $ would be a formula."""
    return escape_hidden(text).replace("$", r"\$")


def save(figure: Figure, path: str | Path, dpi: int = 150) -> None:
    """Write a picture; PDF files hold their letters as TrueType, and no file holds the time.

    LaTeX is not started, which a ``matplotlibrc`` in the current folder can ask for.

    Args:
        figure: the picture.
        path: where, in a folder that is made if need be; the ending names the format.
        dpi: pixels per inch.
    """
    if not Path(path).suffix:  # matplotlib would add one, and write another file than was asked for
        raise BadValue(path, "does not say which kind of picture it is", "add an ending, such as .png")
    try:
        with explain_write_errors(path, "choose another place"):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            _save_figure(figure, path, dpi)
    except ValueError as error:
        raise BadValue(path, "names no format of pictures", "end it in .png, .pdf or .svg") from error


_FORMATS = {"text.usetex": False, "pdf.fonttype": 42, "ps.fonttype": 42, "svg.hashsalt": "rayfl"}
"""Publishers want TrueType, not the Type 3 of matplotlib's default; the salt gives an SVG the same names."""
_UNDATED = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


def _save_figure(figure: Figure, file: str | Path | io.BytesIO, dpi: int, format: str | None = None) -> None:
    ending = Path(file).suffix[1:].lower() if isinstance(file, str | Path) else ""
    with matplotlib.rc_context(_FORMATS):
        for text in figure.findobj(Text):
            assert isinstance(text, Text)
            text.set_usetex(False)
        figure.savefig(file, dpi=dpi, format=format, metadata=_UNDATED.get(ending))


SIZES = {"column": 3.35, "page": 7.0}
"""Widths in inches: a column of a paper with two columns, and the whole text."""
WIDTH = 3.4
"""Width of a panel in inches, if no size is given."""
_POINTS = 8  # font size in a picture of a given size: the text of papers has 9 or 10
_IN_A_ROW = 4  # most panels in a row
_NARROWEST = 1.5  # least inches of a panel
_LABELLED = 2.2  # least inches of a panel with labels of its own

Size = str | Sequence[float] | None
_INCHES = Annotated[float, at_least(0.5), at_most(100)]
_SIZE = Literal["column", "page"] | tuple[_INCHES, _INCHES] | None


@dataclass(frozen=True)
class Look:
    """How a picture looks.

    Attributes:
        size: ``column`` or ``page``, or width and height in inches; None: for screens.
        names: name of a line, a domain or a data set -> the name to show instead.
        title: shown above the picture.
    """

    size: Size = None
    names: Mapping[str, str] = field(default_factory=dict)
    title: str = ""
    _seen: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        convert_value("size", self.size, _SIZE)
        convert_value("names", self.names, dict[str, str])

    @property
    def width(self) -> float | None:
        """Inches; None for as many as the panels need."""
        return SIZES[self.size] if isinstance(self.size, str) else None if self.size is None else self.size[0]

    @property
    def height(self) -> float | None:
        """Inches; None for as many as the panels need."""
        return None if self.size is None or isinstance(self.size, str) else self.size[1]

    def label(self, text: str, otherwise: str | None = None) -> str:
        """Return what stands for a name, from ``names``, or ``otherwise``, or the name itself."""
        self._seen[text] = None
        otherwise = self.names.get(class_name(text), text if otherwise is None else otherwise)
        return drawn(self.names.get(text, otherwise))

    @classmethod
    @contextmanager
    def of(cls, **options: Any) -> Iterator[Look]:
        """Return a look for the body of a ``with``, in which letters are as large as the size wants them."""
        look = cls(**options)
        with matplotlib.rc_context({} if look.size is None else {"font.size": _POINTS}):
            yield look

    def columns_that_fit(self, panels: int) -> int:
        """Return how many of some panels with labels of their own stand beside each other."""
        return panels if self.width is None else max(1, min(panels, int(self.width / _LABELLED)))

    @staticmethod
    def wrap_title(text: str, figure: Figure, columns: int) -> str:
        """Return a small title in as many lines as it needs above one of so many panels in a row."""
        room = 0.7 * figure.get_figwidth() / columns
        return "\n".join(textwrap.wrap(text, max(12, int(room / _letter_width()))))

    @staticmethod
    def tick_rotation(names: Sequence[str], width: float) -> dict[str, Any]:
        """Return how names stand below a panel of so many inches: turned if they would touch each other."""
        fit = max(map(len, names)) * _letter_width() < 0.85 * width / len(names)
        return {"rotation": 0, "ha": "center"} if fit else {"rotation": 30, "ha": "right"}

    def grid(
        self,
        panels: int,
        width: float | None = None,
        height: float = 3.2,
        polar: bool = False,
        columns: int = 0,
    ) -> tuple[Figure, list[Axes]]:
        """Return a figure with a grid of panels: four in a row, or as many as fit the width.

        Args:
            panels: number of panels.
            width: of the figure in inches; by default from the number of panels.
            height: of a row in inches, if no size is given.
            polar: whether the axes are polar.
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

    def add_legend(
        self, figure: Figure, axes: Sequence[Axes], ylabel: str = "", lines: bool = True
    ) -> Picture:
        """Put the title above all panels and one legend below them.

        Args:
            figure: the figure.
            axes: its panels.
            ylabel: stands at the panels on the left of each row.
            lines: whether panels have grid lines.
        """
        for name in self.names:
            if name not in self._seen and name not in map(class_name, self._seen):
                raise Unknown("names", f'has "{name}", which is not drawn; there are {", ".join(self._seen)}')
        handles: dict[str, Any] = {}
        for ax in axes:
            for handle, name in zip(*ax.get_legend_handles_labels()):
                handles.setdefault(name, handle)
            place = ax.get_subplotspec()
            if ylabel and (place is None or place.is_first_col()):
                ax.set_ylabel(ylabel)
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
        letter = _letter_width()
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


def _letter_width() -> float:
    """Return how wide a small letter is, on the mean, in inches."""
    return 0.0078 * float(matplotlib.rcParams["font.size"])


# Okabe and Ito's colours, which people with any colour vision tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (6, 1.5, 1.5, 1.5)))
MARKERS = "osD^vP*X"
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "---", "++", "oo")
"""Lines and bars differ by these too, for readers and printers that see no colours."""
LINE_WIDTH = 1.4
"""In points."""
_MARKS = 8  # on a line


def style(look: int) -> dict[str, Any]:
    """Return colour and dashes of a line, see :func:`rayfl.report.method_looks.looks_of`."""
    kind, color = divmod(look, len(COLOURS))
    return {"color": COLOURS[color], "linestyle": DASHES[kind % len(DASHES)]}


def marker(look: int) -> dict[str, Any]:
    """Return the markers of a line, in the size that goes with the letters."""
    size = 0.4 * float(matplotlib.rcParams["font.size"])
    return {"marker": MARKERS[sum(divmod(look, len(COLOURS))) % len(MARKERS)], "markersize": size}


def scale_axis(ax: Axes, values: Sequence[float]) -> None:
    """Scale the axis of a key so that its values stand apart, and write them where there is room for all.

    It is logarithmic from tenfold values on, and linear between 0 and the smallest if there is a 0.

    Args:
        ax: where something is drawn.
        values: of the key, ascending.
    """
    sizes = sorted(abs(value) for value in values if value)
    if sizes and sizes[-1] / sizes[0] >= 10:
        if values[0] > 0:
            ax.set_xscale("log")
        else:
            ax.set_xscale("symlog", linthresh=sizes[0])
    places = ax.xaxis.get_transform().transform(np.array(values, dtype=float))
    if np.all(np.diff(places) >= 0.05 * np.ptp(places)):
        ax.set_xticks(values, [f"{value:.4g}" for value in values], rotation=45 if len(values) > 6 else 0)
        ax.minorticks_off()


def draw_band(ax: Axes, rounds: np.ndarray, values: np.ndarray, label: str, look: int) -> None:
    """Draw the mean over seeds, and a band of one deviation.

    Args:
        ax: where.
        rounds: [evaluations]; nothing is drawn if there are none.
        values: of each seed, [seeds, evaluations].
        label: for the legend.
        look: its colour, dashes and marker.
    """
    if not len(rounds):
        return
    mean = values.mean(axis=0)
    step = max(1, round(len(rounds) / _MARKS))
    ax.plot(
        rounds,
        mean,
        label=label,
        markevery=(look % step, step),  # lines that lie on each other have their marks at other rounds
        linewidth=LINE_WIDTH,
        **style(look),
        **marker(look),
    )
    if len(values) > 1:
        std = values.std(axis=0, ddof=1)
        ax.fill_between(rounds, mean - std, mean + std, color=style(look)["color"], alpha=0.18, linewidth=0)
