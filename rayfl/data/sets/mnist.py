"""Handwritten digits: MNIST (LeCun et al., 1998) and USPS (Hull, 1994), as grey images on three channels."""

import io
from abc import abstractmethod
from pathlib import Path

import numpy as np

from rayfl.data.dataset import TEST, TRAIN, Dataset
from rayfl.data.readers.files import REPLACE, Published, Read, images_and_labels, is_there, read_packed
from rayfl.data.readers.images import scale_images
from rayfl.data.sets.digits import Part, digit_dataset, join_labels
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
        arrays = join_labels([Part(*train, 0, TRAIN), Part(*test, 0, TEST)])
        return digit_dataset(images, arrays, (type(self).__name__,))


class MNIST(_Digits):
    """MNIST: 60,000 training and 10,000 test images of handwritten digits, 3x28x28 (grey on three channels).

    Files: root/MNIST/raw/{train,t10k}-images-idx3-ubyte and {train,t10k}-labels-idx1-ubyte, or the same with
    .gz (LeCun, Bottou, Bengio and Haffner, 1998).
    """

    source = "https://yann.lecun.com/exdb/mnist/"
    size = 70_000
    md5 = {  # noqa: RUF012
        "MNIST/raw/train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "MNIST/raw/train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "MNIST/raw/train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "MNIST/raw/train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "MNIST/raw/t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "MNIST/raw/t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "MNIST/raw/t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
        "MNIST/raw/t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    }

    def read(self) -> list[Read]:
        """Read the four files."""
        root = self.folder()
        parts = []
        for part in ("train", "t10k"):
            file = f"MNIST/raw/{part}-images-idx3-ubyte"
            images = self._idx(root, file, 3)
            labels = self._idx(root, f"MNIST/raw/{part}-labels-idx1-ubyte", 1)
            parts.append(images_and_labels(root / file, images, labels))
        return parts

    def _idx(self, root: Path, file: str, dimensions: int) -> np.ndarray:
        """Read an idx file: two zeros, type (8: bytes), number of dimensions, their sizes, the values."""
        packed = not is_there(root / file) and is_there(root / f"{file}.gz")
        path = self.check(root, f"{file}.gz" if packed else file)
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
    md5 = {  # noqa: RUF012
        "usps.bz2": "ec16c51db3855ca6c91edd34d0e9b197",
        "usps.t.bz2": "8ea070ee2aca1ac39742fdd1ef5ed118",
    }

    def read(self) -> list[Read]:
        """Read both files."""
        root = self.folder()
        return [self._part(root, file) for file in self.md5]

    def _part(self, root: Path, file: str) -> Read:
        """Return images, uint8 [n, 16, 16], and labels 0 to 9."""
        path = self.check(root, file)
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
