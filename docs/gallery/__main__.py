"""The notebooks of the gallery: ``python -m docs.gallery [NAME ...]`` makes them anew, all by default.

Each script ``NAME.py`` has cells in the percent format. They are executed in a notebook, ``NAME.ipynb``;
``NAME.png`` is its last picture, made small.
"""

import base64
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from PIL import Image, ImageOps

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
NAMES = sorted(path.stem for path in FOLDER.glob("[!_]*.py"))
SMALL = (480, 300)
"""Width and height of a small picture in pixels."""


def cells_of(script: str) -> Iterator[tuple[str, str]]:
    """Yield the kind (``markdown`` or ``code``) and the text of each cell; ``# !`` begins a command."""
    for part in re.split(r"^# %%", script, flags=re.MULTILINE)[1:]:
        kind, _, text = part.partition("\n")
        if kind.strip() == "[markdown]":
            yield "markdown", re.sub(r"^# ?", "", text.strip(), flags=re.MULTILINE)
        else:
            yield "code", re.sub(r"^# !", "!", text.strip(), flags=re.MULTILINE)


def new_notebook(cells: Iterable[tuple[str, str]]) -> Any:
    """Return a notebook without outputs, of the kinds and texts of its cells."""
    made = []
    for number, (kind, text) in enumerate(cells):
        new = nbformat.v4.new_code_cell if kind == "code" else nbformat.v4.new_markdown_cell
        made.append(new(text, id=f"cell-{number}"))  # by default an id is random
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.v4.new_notebook(cells=made, metadata={"kernelspec": kernel})


def execute(notebook: Any) -> None:
    """Run all cells in a new folder, with this rayfl, and put their outputs into the notebook."""
    own = {"PATH": f"{Path(sys.executable).parent}", "PYTHONPATH": f"{ROOT}"}
    first = {name: os.pathsep.join([path, os.environ.get(name, "")]) for name, path in own.items()}
    with tempfile.TemporaryDirectory() as folder:
        place = {"metadata": {"path": folder}}
        client = NotebookClient(notebook, timeout=600, record_timing=False, resources=place)
        client.execute(env=os.environ | first)
    notebook.metadata.pop("language_info", None)  # the version of Python
    for data in (output.get("data", {}) for output in outputs_of(notebook)):
        if "image/png" in data:
            data["image/png"] = base64.b64encode(few_colours(base64.b64decode(data["image/png"]))).decode()


def few_colours(png: bytes, size: tuple[int, int] | None = None) -> bytes:
    """Return a picture as a small file; if a size is given, of this width and height, on white."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    if size:
        image = ImageOps.pad(image, size, color="white")
    image.quantize(64).save(file := io.BytesIO(), "png", optimize=True)
    return file.getvalue()


def outputs_of(notebook: Any) -> list[Any]:
    """Return what the cells of a notebook have shown, in their order."""
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def save_small_picture(notebook: Any, path: Path) -> None:
    """Write the last picture of a notebook as a small PNG file; nothing if it has none."""
    shown = [output.get("data", {}).get("image/png") for output in outputs_of(notebook)]
    if pictures := list(filter(None, shown)):
        path.write_bytes(few_colours(base64.b64decode(pictures[-1]), SMALL))


def main(names: Sequence[str]) -> None:
    """Execute examples, and write their files."""
    for name in names or NAMES:
        notebook = new_notebook(cells_of((FOLDER / f"{name}.py").read_text()))
        execute(notebook)
        nbformat.write(notebook, FOLDER / f"{name}.ipynb")
        save_small_picture(notebook, FOLDER / f"{name}.png")
        print(f"{name}: written")


if __name__ == "__main__":
    main(sys.argv[1:])
