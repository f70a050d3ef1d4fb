import numpy as np
import pytest
from PIL import Image

from rayfl.commands.data import main
from rayfl.data import Synthetic, WriterDigits
from rayfl.errors import BadData, BadValue
from rayfl.report.contact_sheet import contact_sheet
from tests.support.refusals import refused


@pytest.mark.parametrize(
    "options",
    [
        {"domains": 3, "dtype": "uint8"},
        {"shape": (1, 9, 5), "classes": 40, "train": 80},
        {"shape": (3, 150, 130), "train": 40},
    ],
)
def test_a_picture_is_written(tmp_path, options):
    path = tmp_path / "new" / "sheet.png"
    contact_sheet(str(path), Synthetic(**({"train": 120, "test": 40, "shape": (3, 8, 8)} | options)))
    with Image.open(path) as image:
        picture = np.asarray(image.convert("RGB"))
    assert picture.shape[1] > 800
    assert len(np.unique(picture)) > 50


@pytest.mark.parametrize(
    ("name", "options", "kind", "place"),
    [
        ("x.png", {"split": "all"}, BadValue, "split"),
        ("x.png", {"rows": 0}, BadValue, "rows"),
        ("x.png", {"split": "val"}, BadData, "data"),
        ("x", {}, BadValue, "x"),
        ("x.txt", {}, BadValue, "x.txt"),
    ],
)
def test_wrong_options_are_refused(tmp_path, name, options, kind, place):
    with refused(kind, place):
        contact_sheet(str(tmp_path / name), Synthetic(train=20, test=20, shape=(1, 4, 4)), **options)
    with refused(BadData, "data"):
        contact_sheet(str(tmp_path / "x.png"), WriterDigits())
    assert list(tmp_path.iterdir()) == []


def test_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("RAYFL_DATA", raising=False)
    path = str(tmp_path / "sheet.png")
    assert main(["sheet", path, "--data", "Synthetic", "--data.train", "30"]) == 0
    assert capsys.readouterr().out == f"Written: {path}\n"
    with Image.open(path) as picture:
        assert picture.format == "PNG"
    assert main(["sheet", path, "--data", "USPS"]) == 2
    assert "USPS needs the folder" in capsys.readouterr().err
