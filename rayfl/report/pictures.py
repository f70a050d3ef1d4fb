"""Text in pictures, and how they are written."""

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.text import Text

from rayfl.files import writing
from rayfl.shown import printable


def drawn(text: str) -> str:
    """Return a name as matplotlib draws it letter by letter: what stands between $ would be a formula."""
    return printable(text).replace("$", r"\$")


def save(figure: Figure, path: str | Path, **options: Any) -> None:
    """Write a picture without starting LaTeX, which a ``matplotlibrc`` in the current folder can ask for.

    Args:
        figure: the picture.
        path: where, in a folder that is made if need be; the ending names the format.
        options: as ``savefig`` takes them.
    """
    with writing(path), matplotlib.rc_context({"text.usetex": False}):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        for text in figure.findobj(Text):
            assert isinstance(text, Text)
            text.set_usetex(False)
        figure.savefig(path, **options)
