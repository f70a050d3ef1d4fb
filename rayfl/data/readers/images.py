"""Reading pictures of strangers: the formats of data sets, whatever a file is called, and nothing else."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image

from rayfl.errors import BadData
from rayfl.system.files import explain_decode_errors, open_file
from rayfl.system.memory import check_memory

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""What images may be, whatever a file is called: some of the others that Pillow knows start programs."""
_BILINEAR = Image.Resampling.BILINEAR
_READ = 64  # images that are decoded together
_SCALED = 1000  # images that are scaled together


def open_image(place: object, file: IO[bytes], white: float | None = None) -> Image.Image:
    """Open an image in one of the formats that are read; nothing else in rayfl opens images.

    Args:
        place: where the image is, for messages.
        file: what it is in.
        white: the value that becomes 255, of images of more than 8 bits; None: they are refused.
    """
    image: Image.Image = Image.open(file, formats=FORMATS)
    if image.mode[0] in "IF" and white is not None:
        values = np.asarray(image, np.float64) * (255 / white)
        return Image.fromarray(values.round().clip(0, 255).astype(np.uint8))
    _check_depth(place, image)
    return image


def _check_depth(place: object, image: Image.Image) -> None:
    if image.mode[0] in "IF":  # "I", "I;16" and "F": Pillow would cut their values off at 255
        problem = f"has the mode {image.mode}, more than 8 bits per value"
        raise BadData(place, problem, "ImageFolders reads such with data.white, the value that is white")


def pixels(place: object, image: Image.Image) -> np.ndarray:
    """Return an image as uint8 [3, H, W], or [1, H, W] where it is grey."""
    _check_depth(place, image)
    values = np.asarray(image if image.mode in ("L", "RGB") else image.convert("RGB"))
    return values[None] if values.ndim == 2 else values.transpose(2, 0, 1)


def read_image(
    path: Path, side: int | None = None, grey_unless_rgb: bool = False, white: float | None = None
) -> np.ndarray:
    """Read the file of an image as RGB.

    Args:
        path: the file.
        side: pixels of the square to which it is scaled, with antialiasing; as it is by default.
        grey_unless_rgb: whether an image that has not three channels loses its colours, if it has any.
        white: see :func:`open_image`.

    Returns:
        uint8 [3, H, W].
    """
    advice = f"replace it by a fresh copy; images may be {', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
    with explain_decode_errors(path, advice), open_file(path) as file, open_image(path, file, white) as image:
        grey = grey_unless_rgb and len(image.getbands()) != 3
        rgb = (image.convert("L") if grey else image).convert("RGB")
    return np.moveaxis(np.asarray(rgb if side is None else rgb.resize((side, side), _BILINEAR)), 2, 0)


def in_chunks(read: Callable[[Path], np.ndarray], files: Sequence[Path]) -> Iterator[np.ndarray]:
    """Read images in threads (decoding leaves Python's lock alone); yield some of them at a time."""
    with ThreadPoolExecutor() as threads:
        for start in range(0, len(files), _READ):
            yield np.stack(list(threads.map(read, files[start : start + _READ])))


def stack_all(what: object, inputs: Iterable[np.ndarray], count: int) -> np.ndarray:
    """Return the inputs of so many samples, at least one, as one array."""
    x = np.empty(0)
    for i, each in enumerate(inputs):
        if i == 0:
            check_memory(count * each.nbytes, f"{what}: {count:,} samples", "use fewer samples")
            x = np.empty((count, *each.shape), each.dtype)
        if each.shape != x.shape[1:] or each.dtype != x.dtype:
            there, first = (f"{array.dtype} {list(array.shape)}" for array in (each, x[0]))
            problem = f": sample {i} is {there}, and sample 0 {first}"
            raise BadData(what, problem, "use one type and shape; a transform can do that")
        x[i] = each
    return x


def scale_images(parts: Sequence[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """Yield images, uint8 [n, 3, size, size], some at a time.

    Args:
        parts: images of one size each, uint8 [n, H, W] or [n, H, W, 3]; grey ones get three channels.
        size: side to which they are scaled, bilinear with antialiasing.
    """
    for images in parts:
        for start in range(0, len(images), _SCALED):
            chunk = images[start : start + _SCALED]
            if chunk.shape[1:3] != (size, size):
                chunk = np.stack(
                    [
                        np.asarray(Image.fromarray(i).resize((size, size), _BILINEAR))
                        for i in np.ascontiguousarray(chunk)
                    ]
                )
            yield np.repeat(chunk[:, None], 3, axis=1) if chunk.ndim == 3 else chunk.transpose(0, 3, 1, 2)
