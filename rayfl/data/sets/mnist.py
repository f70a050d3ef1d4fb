"""Handwritten digits: MNIST (LeCun et al., 1998) and USPS (Hull, 1994), as grey images on three channels."""

import io
from abc import abstractmethod
from pathlib import Path

import numpy as np

from rayfl.data.dataset import TEST, TRAIN, Dataset
from rayfl.data.readers.files import REPLACE, Published, Read, images_and_labels, is_there, read_packed
from rayfl.data.readers.images import scale_images
from rayfl.system.files import explain_decode_errors, explain_read_errors


class _Digits(Published):
    """What both data sets share: grey images of digits in two files or pairs of files."""

    @abstractmethod
    def read(self) -> list[Read]:
        """Return the training and the test images, grey, uint8 [n, H, W], each with labels, int64 [n]."""

    def load(self) -> Dataset:
        """Read both parts, enlarge the images to 28 pixels if need be, and repeat them on three channels."""
        train, test = self.read()
        images = np.concatenate(list(scale_images([train[0], test[0]], 28)))
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

    def read(self) -> list[Read]:
        """Read the four files."""
        folder = self.folder() / "MNIST" / "raw"
        parts = []
        for part in ("train", "t10k"):
            images = self._idx(folder / f"{part}-images-idx3-ubyte", 3)
            labels = self._idx(folder / f"{part}-labels-idx1-ubyte", 1)
            parts.append(images_and_labels(folder / f"{part}-images-idx3-ubyte", images, labels))
        return parts

    def _idx(self, path: Path, dimensions: int) -> np.ndarray:
        """Read an idx file: two zeros, type (8: bytes), number of dimensions, their sizes, the values."""
        md5, packed = self._md5[path.name]
        zipped = path.with_name(path.name + ".gz")
        if not is_there(path) and is_there(zipped):
            path, md5 = zipped, packed
        self.check(path, md5)
        content = read_packed(path)
        with explain_read_errors(path, REPLACE):
            if content[:4] != bytes([0, 0, 8, dimensions]):
                raise ValueError(f"it is no idx file of bytes in {dimensions} dimensions")
            sizes = np.frombuffer(content, ">u4", dimensions, 4).tolist()
            return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(sizes)


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

    def read(self) -> list[Read]:
        """Read both files."""
        root = self.folder()
        return [self._part(root / name, md5) for name, md5 in self._files]

    def _part(self, path: Path, md5: str) -> Read:
        """Return images, uint8 [n, 16, 16], and labels 0 to 9."""
        self.check(path, md5)
        text = read_packed(path)
        with explain_decode_errors(path, REPLACE):
            labels, values = _libsvm(text)
        images = ((values + 1) / 2 * 255).astype(np.uint8)
        return images_and_labels(path, images, labels - 1)


def _libsvm(text: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return labels, int64 [n], and values from -1 to 1, float32 [n, 16, 16], of text in LIBSVM's format.

    Raises:
        ValueError: it has another form.
    """
    from sklearn.datasets import load_svmlight_file  # a second that is seldom needed

    rows, labels = load_svmlight_file(io.BytesIO(text), n_features=256, dtype=np.float32, zero_based=False)
    if rows.nnz != 256 * len(labels) or not np.isin(labels, np.arange(1, 11)).all():
        raise ValueError("lines need a label, a whole number from 1 to 10, and 256 values")
    if not (np.abs(rows.data) <= 1).all():
        raise ValueError("values must lie between -1 and 1")
    return labels.astype(np.int64), rows.toarray().reshape(-1, 16, 16)
