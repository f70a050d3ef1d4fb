"""Draw samples of a data set, domain by domain and class by class, to look at them.

``rayfl data sheet digits.png --data EmbeddedDigits``
"""

from typing import Annotated, Literal

import numpy as np

from rayfl.data import EmbeddedDigits
from rayfl.data.base import Data
from rayfl.data.dataset import SPLITS, Dataset
from rayfl.errors import BadData
from rayfl.settings import at_least
from rayfl.settings.arguments import convert_value

_COLUMNS = 20
_TILE_SIDE = 64  # pixels; larger images are shown smaller


def contact_sheet(output: str, data: Data | None = None, split: str = "train", rows: int = 4) -> None:
    """Write a picture with a block of samples per domain; the columns are the classes.

    Args:
        output: PNG file to write.
        data: the data set.
        split: "train", "val" or "test" of the published division.
        rows: rows of samples per domain.
    """
    import matplotlib.figure

    from rayfl.report.look import drawn, save

    convert_value("split", split, Literal[SPLITS])
    convert_value("rows", rows, Annotated[int, at_least(1)])
    dataset = (data or EmbeddedDigits()).load()
    if len(dataset.shape) != 3:
        raise BadData("data", "have no images, which a contact sheet shows", "choose another data set")
    if not len(dataset.indices(origin := SPLITS.index(split))):
        raise BadData("data", f"have no {split} samples")
    shown = min(dataset.classes, _COLUMNS)
    each, domains = _COLUMNS // shown, range(len(dataset.domain_names))
    blocks = [_block(dataset, domain, origin, shown, each, rows) for domain in domains]
    names = [drawn(n.replace("_", " ")) for n in dataset.class_names[:shown]]
    turned = max(map(len, names)) > 10
    height, width, _ = blocks[0].shape
    figure = matplotlib.figure.Figure(figsize=(8, len(blocks) * (8 * height / width + 0.35) + turned))
    axes = figure.subplots(len(blocks), squeeze=False)[:, 0]
    middles = [width / shown * (c + 0.5) - 0.5 for c in range(shown)]
    for axis, block, name in zip(axes, blocks, dataset.domain_names):
        axis.imshow(block, interpolation="nearest")
        axis.set_title(drawn(name), loc="left", fontsize=8, pad=2)
        axis.set_yticks([])
        written = names if axis is axes[-1] or not turned else [""] * shown  # long names below the last block
        axis.set_xticks(middles, written, fontsize=6, rotation=90 if turned else 0)
        axis.tick_params(length=0, pad=1)
    figure.tight_layout(pad=0.3, h_pad=0.3)
    save(figure, output, dpi=120)


def _block(dataset: Dataset, domain: int, origin: int, shown: int, each: int, rows: int) -> np.ndarray:
    """Return [rows * h, shown * each * w, 3], 0 to 1: evenly spaced samples of each class, else blank."""
    channels, height, width = dataset.shape
    coarse = max(1, min(height, width) // _TILE_SIDE)  # pixels to each side that become one
    height, width = height // coarse, width // coarse
    bytes_of_pixels = dataset.inputs.dtype == np.uint8
    low, high = (0.0, 255.0) if bytes_of_pixels else np.percentile(dataset.inputs[:500], (1, 99))
    those = (dataset.domains == domain) & (dataset.origin == origin)
    tiles = np.ones((shown, rows * each, channels, height, width))
    for c in range(shown):
        mine = np.flatnonzero(those & (dataset.labels == c))
        some = np.unique(np.linspace(0, len(mine) - 1, rows * each).round().astype(int))[: len(mine)]
        cut = dataset.inputs[mine[some], :, : height * coarse, : width * coarse]
        parts = ((cut - low) / (high - low)).reshape(-1, channels, height, coarse, width, coarse)
        tiles[c, : len(some)] = parts.mean(axis=(3, 5)).clip(0, 1)
    sheet = tiles.reshape(shown, rows, each, channels, height, width).transpose(1, 4, 0, 2, 5, 3)
    sheet = sheet.reshape(rows * height, shown * each * width, channels)
    return sheet[..., :3] if channels >= 3 else np.repeat(sheet[..., :1], 3, axis=2)
