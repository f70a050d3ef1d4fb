"""Pictures as Python has them, text in them, and how they are written."""

import io
from pathlib import Path
from typing import NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from rayfl.errors import BadValue
from rayfl.system.files import writing
from rayfl.system.text import printable


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
        _write(self.figure, file, dpi=100, format="png")
        return file.getvalue()


def drawn(text: str) -> str:
    """Return a name as matplotlib draws it letter by letter: what stands between $ would be a formula."""
    return printable(text).replace("$", r"\$")


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
        with writing(path, "choose another place"):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            _write(figure, path, dpi)
    except ValueError as error:
        raise BadValue(path, "names no format of pictures", "end it in .png, .pdf or .svg") from error


_FORMATS = {"text.usetex": False, "pdf.fonttype": 42, "ps.fonttype": 42, "svg.hashsalt": "rayfl"}
"""Publishers want TrueType, not the Type 3 of matplotlib's default; the salt gives an SVG the same names."""
_UNDATED = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


def _write(figure: Figure, file: str | Path | io.BytesIO, dpi: int, format: str | None = None) -> None:
    ending = Path(file).suffix[1:].lower() if isinstance(file, str | Path) else ""
    with matplotlib.rc_context(_FORMATS):
        for text in figure.findobj(Text):
            assert isinstance(text, Text)
            text.set_usetex(False)
        figure.savefig(file, dpi=dpi, format=format, metadata=_UNDATED.get(ending))
