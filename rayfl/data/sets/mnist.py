"""Handwritten digits: MNIST (LeCun et al., 1998) and USPS (Hull, 1994), as grey images on three channels."""

import bz2
import gzip
import math
import zlib
from abc import abstractmethod
from pathlib import Path

import numpy as np

from rayfl.data.dataset import TEST, TRAIN, Dataset
from rayfl.data.readers.files import (
    REPLACE,
    Published,
    images_and_labels,
    is_there,
    read_bytes,
    scaled,
    unreadable,
)
from rayfl.errors import Damaged


class _Digits(Published):
    """What both data sets share: grey images of digits in two files or pairs of files."""

    @abstractmethod
    def read(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the training and the test images, grey, uint8 [n, H, W], each with labels, int64 [n]."""

    def load(self) -> Dataset:
        """Read both parts, enlarge the images to 28 pixels if need be, and repeat them on three channels."""
        train, test = self.read()
        images = np.concatenate(list(scaled([train[0], test[0]], 28)))
        return Dataset(
            inputs=images,
            labels=np.concatenate([train[1], test[1]]),
            domains=np.zeros(len(images), np.int64),
            origin=np.repeat(np.array([TRAIN, TEST], np.uint8), [len(train[0]), len(test[0])]),
            class_names=tuple("0123456789"),
            domain_names=(type(self).__name__,),
            mean=(0.5, 0.5, 0.5),
            std=(0.5, 0.5, 0.5),
        )


class MNIST(_Digits):
    """MNIST: 60,000 training and 10,000 test images of handwritten digits, 3x28x28 (grey on three channels).

    Files: root/MNIST/raw/{train,t10k}-images-idx3-ubyte and {train,t10k}-labels-idx1-ubyte, or the same with
    .gz (LeCun, Bottou, Bengio and Haffner, 1998).
    """

    source = "https://yann.lecun.com/exdb/mnist/"
    size = 70_000
    # MD5 of the unpacked file and of the .gz
    _md5 = {  # noqa: RUF012
        "train-images-idx3-ubyte": ("6bbc9ace898e44ae57da46a324031adb", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        "train-labels-idx1-ubyte": ("a25bea736e30d166cdddb491f175f624", "d53e105ee54ea40749a09fcbcd1e9432"),
        "t10k-images-idx3-ubyte": ("2646ac647ad5339dbf082846283269ea", "9fb629c4189551a2d022fa330f9573f3"),
        "t10k-labels-idx1-ubyte": ("27ae3e4e09519cfbb04c329615203637", "ec29112dd5afa0611ce80d1b7f02629c"),
    }

    def files(self) -> list[str]:
        """Return the names of the unpacked files."""
        return [f"MNIST/raw/{name}" for name in self._md5]

    def read(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Read the four files."""
        folder = self.folder() / "MNIST" / "raw"
        parts = []
        for part in ("train", "t10k"):
            images = self._idx(folder / f"{part}-images-idx3-ubyte", 3)
            labels = self._idx(folder / f"{part}-labels-idx1-ubyte", 1)
            images_and_labels(folder / f"{part}-images-idx3-ubyte", images, labels, 10)
            parts.append((images, labels.astype(np.int64)))
        return parts

    def _idx(self, path: Path, dimensions: int) -> np.ndarray:
        """Read an idx file: two zeros, type (8: bytes), number of dimensions, their sizes, the values."""
        plain, packed = self._md5[path.name]
        zipped = path.with_name(path.name + ".gz")
        if not is_there(path) and is_there(zipped):
            self.check(zipped, packed)
            raw = read_bytes(zipped)
            try:
                content = gzip.decompress(raw)
            except (OSError, EOFError, zlib.error) as error:
                raise Damaged(zipped, f"cannot be unpacked ({error}): {REPLACE}") from None
            path = zipped
        else:
            self.check(path, plain)
            content = read_bytes(path)
        start = 4 + 4 * dimensions
        if content[:4] != bytes([0, 0, 8, dimensions]) or len(content) < start:
            raise Damaged(path, f"is not an idx file of bytes in {dimensions} dimensions: {REPLACE}")
        sizes = [int(n) for n in np.frombuffer(content, ">u4", dimensions, 4)]
        if len(content) - start != math.prod(sizes):
            raise Damaged(
                path,
                f"announces {' x '.join(map(str, sizes))} bytes but has {len(content) - start}: {REPLACE}",
            )
        return np.frombuffer(content, np.uint8, offset=start).reshape(sizes)


class USPS(_Digits):
    """USPS: 7,291 training and 2,007 test images of handwritten digits, enlarged from 16 to 3x28x28 (grey).

    Files: root/{usps.bz2, usps.t.bz2}, text in LIBSVM's format (Hull, 1994).
    """

    source = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass.html#usps"
    size = 9_298
    _files = (
        ("usps.bz2", "ec16c51db3855ca6c91edd34d0e9b197"),
        ("usps.t.bz2", "8ea070ee2aca1ac39742fdd1ef5ed118"),
    )

    def files(self) -> list[str]:
        """Return the names of both files."""
        return [name for name, _ in self._files]

    def fetch(self, root: Path) -> None:
        """Download both files with torchvision."""
        import torchvision

        for train in (True, False):
            torchvision.datasets.USPS(root, train=train, download=True)

    def read(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Read both files."""
        root = self.folder()
        return [self._part(root / name, md5) for name, md5 in self._files]

    def _part(self, path: Path, md5: str) -> tuple[np.ndarray, np.ndarray]:
        """Return images, uint8 [n, 16, 16], and labels 0 to 9."""
        self.check(path, md5)
        raw = read_bytes(path)
        try:
            labels, values = _libsvm(bz2.decompress(raw))
        except (OSError, EOFError, ValueError) as error:
            raise unreadable(path, error, "as bz2 of LIBSVM text") from None
        images = ((values + 1) / 2 * 255).astype(np.uint8)
        images_and_labels(path, images, labels - 1, 10)
        return images, labels - 1


def _libsvm(text: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Parse lines of ``label 1:value ... 256:value``, values from -1 to 1.

    Returns:
        labels int64 [n] from 1 to 10 and values float32 [n, 16, 16].

    Raises:
        ValueError: if a line has another form.
    """
    numbers = np.array(text.replace(b":", b" ").split(), dtype=np.float32)
    if numbers.size == 0 or numbers.size % 513:
        raise ValueError("lines need a label and 256 values")
    rows = numbers.reshape(-1, 513)
    if not (rows[:, 1::2] == np.arange(1, 257)).all():
        raise ValueError("values must be numbered from 1 to 256")
    if not np.isin(rows[:, 0], np.arange(1, 11)).all():
        raise ValueError("labels must be whole numbers from 1 to 10")
    values = rows[:, 2::2]
    if not (np.abs(values) <= 1).all():
        raise ValueError("values must lie between -1 and 1")
    return rows[:, 0].astype(np.int64), values.reshape(-1, 16, 16)
