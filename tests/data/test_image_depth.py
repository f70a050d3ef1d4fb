"""Images of more than 8 bits, and files that are no images."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rayfl.data import ImageFolders
from rayfl.errors import BadData
from tests.support.refusals import refused


def folder(root: Path, values: np.ndarray, ending: str) -> Path:
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
    ],
)
def test_images_of_more_than_eight_bits_need_to_know_what_is_white(
    tmp_path: Path, values: np.ndarray, white: float, ending: str
) -> None:
    root, cache = folder(tmp_path / "scans", values, ending), str(tmp_path / "cache")
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
