"""Text in pictures, and how they are written."""

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.text import Text

from rayfl.errors import UserError
from rayfl.shown import printable


def drawn(text: str) -> str:
    """Return a name as matplotlib draws it letter by letter: what stands between $ would be a formula."""
    return printable(text).replace("$", r"\$")


def save(figure: Figure, path: str | Path, dpi: int = 150) -> None:
    """Write a picture without starting LaTeX, which a ``matplotlibrc`` in the current folder can ask for.

    Args:
        figure: the picture.
        path: where, in a folder that is made if need be; the ending names the format.
        dpi: pixels per inch.
    """
    if not Path(path).suffix:  # matplotlib would add one, and write another file than was asked for
        raise UserError(f"{path} does not say which kind of picture it is: add an ending, such as .png")
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context({"text.usetex": False}):
            for text in figure.findobj(Text):
                assert isinstance(text, Text)
                text.set_usetex(False)
            figure.savefig(path, dpi=dpi)
    except (OSError, ValueError) as error:  # of an ending that names no format, the latter
        raise UserError(f"{path} cannot be written: {error}; choose another place") from error
