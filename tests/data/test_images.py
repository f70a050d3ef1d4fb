"""Images from strangers: the formats of data sets, whatever a file is called, and nothing else."""

import ast
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from rayfl.data import ImageFolders
from rayfl.data.readers.images import FORMATS, read_image
from rayfl.errors import BadData, Damaged
from tests.support.refusals import refused

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("ignore")
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\nshowpage\n%%EOF\n"


def encoded(kind: str) -> bytes:
    """Return a small picture in a format that Pillow can write."""
    Image.init()
    file = BytesIO()
    for mode in ("RGB", "L", "1", "P", "F", "RGBA", "CMYK"):
        try:
            Image.new(mode, (32, 32)).save(file, kind)
        except Exception:  # this format has not this mode
            file = BytesIO()
        else:
            return file.getvalue()
    return b""


def test_only_the_formats_of_data_sets_are_read(tmp_path: Path) -> None:
    Image.init()
    path = tmp_path / "image.png"
    for kind in sorted(kind for kind in Image.SAVE if kind in Image.OPEN):
        if not (content := encoded(kind)):
            continue
        path.write_bytes(content)
        with Image.open(BytesIO(content)) as image:
            found = image.format
        if found in FORMATS:
            assert read_image(path).shape == (3, 32, 32)
        else:
            with refused(Damaged, path):
                read_image(path)


def scans(root: Path, values: np.ndarray, ending: str) -> Path:
    """Two classes of ten images each, all alike."""
    for name in ("ill", "well"):
        (root / name).mkdir(parents=True)
        for k in range(10):
            Image.fromarray(values + k).save(root / name / f"{k}.{ending}")
    return root


@pytest.mark.parametrize(
    ("values", "white", "ending"),
    [
        (np.full((8, 8), 32768, np.uint16), 65535.0, "png"),
        (np.full((8, 8), 0.5, np.float32), 20.0, "tiff"),
        (np.full((8, 8), 60_000, np.int32), 90_000.0, "tiff"),
    ],
)
def test_images_of_more_than_eight_bits_need_to_know_what_is_white(
    tmp_path: Path, values: np.ndarray, white: float, ending: str
) -> None:
    root, cache = scans(tmp_path / "scans", values, ending), str(tmp_path / "cache")
    with refused(BadData, f"0.{ending}") as caught:
        ImageFolders(root=str(root), image_size=8, cache=cache).load()
    assert "data.white" in str(caught.value)
    dataset = ImageFolders(root=str(root), image_size=8, white=white, cache=cache).load()
    expected = {min(255, round(255 / white * (float(values.flat[0]) + k))) for k in range(10)}
    assert {*np.unique(dataset.inputs).tolist()} == expected
    twice = ImageFolders(root=str(root), image_size=8, white=white / 2, cache=cache).load()
    assert twice.inputs.max() > dataset.inputs.max()


def test_medical_files_are_told_what_to_become(tmp_path: Path) -> None:
    (tmp_path / "scans" / "ill").mkdir(parents=True)
    (tmp_path / "scans" / "ill" / "1.dcm").write_bytes(b"DICM")
    with refused(BadData, "1.dcm"):
        ImageFolders(root=str(tmp_path / "scans")).load()


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file that is there once Ghostscript has been started."""
    (tmp_path / "bin").mkdir()
    program, mark = tmp_path / "bin" / "gs", tmp_path / "ran"
    program.write_text(f"#!/bin/sh\n/usr/bin/touch {mark} || /bin/touch {mark}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    return mark


def test_no_image_starts_a_program(tmp_path: Path, ran: Path) -> None:
    for name in ("0.png", "0.jpg", "0.tiff"):
        (tmp_path / name).write_bytes(EPS)
        with refused(Damaged, name):
            read_image(tmp_path / name)
    assert not ran.exists()
    with Image.open(tmp_path / name) as image, suppress(OSError):
        image.load()
    assert ran.exists()  # so this is how it would show


def test_an_image_of_too_many_pixels_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.png"
    Image.new("1", (100, 100)).save(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4000)  # twice as many are refused
    with refused(Damaged, path):
        read_image(path)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_that_is_cut_is_an_explained_error(tmp_path: Path, kind: str) -> None:
    content, path = encoded(kind), tmp_path / "cut"
    for end in np.linspace(0, len(content) // 2, 6).astype(int):
        path.write_bytes(content[:end])
        with refused(Damaged, path):
            read_image(path)


OPENED = ("imread", "pil_loader", "default_loader", "decode_image", "ImageFolder", "ImageFile")


def test_every_image_is_opened_in_one_place() -> None:
    """In ``open_image``; nothing else of Pillow, torchvision or matplotlib that opens images is named."""
    for path in (p for folder in ("rayfl", "examples", "benchmarks") for p in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(node, "attr", getattr(node, "id", ""))
            assert name not in OPENED, f"{path}:{node.lineno}: {name}"
            if name == "open" and ast.unparse(node) == "Image.open":
                assert path == ROOT / "rayfl" / "data" / "readers" / "images.py", f"{path}:{node.lineno}"
            if isinstance(node, ast.ImportFrom):
                names = {alias.name for alias in node.names}
                assert not (str(node.module).startswith("PIL.Image") and "open" in names), path
                assert not str(node.module).startswith("torchvision.io"), path
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "open":
                formats = "formats" in {keyword.arg for keyword in node.keywords}
                assert formats or ast.unparse(node.func) != "Image.open"
