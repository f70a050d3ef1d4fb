"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009) from the files for Python, in torchvision's layout."""

from abc import abstractmethod
from pathlib import Path
from typing import Any

import numpy as np

from rayfl.data.files import REPLACE, Published, images_and_labels, unpickle
from rayfl.data.partition import Partition
from rayfl.data.pool import TEST, TRAIN, Pool
from rayfl.errors import UserError


class _Cifar(Published):
    """What both data sets share: pickled batches of rows of 3,072 bytes."""

    source = "https://www.cs.toronto.edu/~kriz/cifar.html"
    _folder: str
    _files: tuple[tuple[str, str, int], ...]  # name, MD5, origin
    _meta: tuple[str, str]  # name, MD5
    _mean: tuple[float, ...]
    _std: tuple[float, ...]

    @property
    @abstractmethod
    def _keys(self) -> tuple[str, str]:
        """Names of the labels in a batch and of the class names in the meta file."""

    def files(self) -> list[str]:
        """Return the names of the meta file and of the batches."""
        return [f"{self._folder}/{name}" for name, *_ in (self._meta, *self._files)]

    def load(self) -> Pool:
        """Read all batches."""
        folder = self.folder() / self._folder
        label_key, names_key = self._keys
        meta_name, meta_md5 = self._meta
        names = self._content(folder / meta_name, meta_md5, names_key)
        batches = [self._batch(folder / file, md5, label_key, len(names)) for file, md5, _ in self._files]
        images = np.concatenate([b for b, _ in batches])
        return Pool(
            images=images,
            labels=np.concatenate([labels for _, labels in batches]),
            domains=np.zeros(len(images), np.int64),
            origin=np.concatenate(
                [np.full(len(b), o, np.uint8) for (b, _), (*_, o) in zip(batches, self._files)]
            ),
            class_names=tuple(names),
            domain_names=(type(self).__name__,),
            mean=self._mean,
            std=self._std,
        )

    def _content(self, path: Path, md5: str, key: str) -> Any:
        self.check(path, md5)
        content = unpickle(path)
        if key not in content:
            raise UserError(f'{path} has no entry "{key}": {REPLACE}')
        return content[key]

    def _batch(self, path: Path, md5: str, label_key: str, classes: int) -> tuple[np.ndarray, np.ndarray]:
        """Return images uint8 [n, 3, 32, 32] and labels int64 [n]."""
        self.check(path, md5)
        content = unpickle(path)
        rows, labels = content.get("data"), content.get(label_key)
        if not (isinstance(rows, np.ndarray) and rows.dtype == np.uint8 and rows.shape[1:] == (3072,)):
            raise UserError(f'{path} has no entry "data" of rows of 3,072 bytes: {REPLACE}')
        if not isinstance(labels, list) or not all(isinstance(label, int) for label in labels):
            raise UserError(f'{path} has no entry "{label_key}" with a list of whole numbers: {REPLACE}')
        images, numbers = rows.reshape(-1, 3, 32, 32), np.array(labels, np.int64)
        images_and_labels(path, images, numbers, classes)
        return images, numbers


class CIFAR10(_Cifar):
    """CIFAR-10: 50,000 training and 10,000 test images of 3x32x32 in 10 classes (Krizhevsky, 2009).

    Files: root/cifar-10-batches-py/{batches.meta, data_batch_1 to 5, test_batch}.
    """

    _folder = "cifar-10-batches-py"
    _files = (
        ("data_batch_1", "c99cafc152244af753f735de768cd75f", TRAIN),
        ("data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec", TRAIN),
        ("data_batch_3", "54ebc095f3ab1f0389bbae665268c751", TRAIN),
        ("data_batch_4", "634d18415352ddfa80567beed471001a", TRAIN),
        ("data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb", TRAIN),
        ("test_batch", "40351d587109b95175f43aff81a1287e", TEST),
    )
    _meta = ("batches.meta", "5ff9c542aee3614f3951f8cda6e48888")
    _mean = (0.4914, 0.4822, 0.4465)
    _std = (0.2023, 0.1994, 0.2010)

    @property
    def _keys(self) -> tuple[str, str]:
        return "labels", "label_names"


class CIFAR100(_Cifar):
    """CIFAR-100: 50,000 training and 10,000 test images of 3x32x32 in 100 classes, or 20 superclasses.

    Files: root/cifar-100-python/{meta, train, test} (Krizhevsky, 2009).
    """

    _folder = "cifar-100-python"
    _files = (
        ("train", "16019d7e3df5f24257cddd939b257f8d", TRAIN),
        ("test", "f0ef6b0ae62326f3e7ffdfab6717acfc", TEST),
    )
    _meta = ("meta", "7973b15100ade9c7d40fb424638fde48")
    _mean = (0.5071, 0.4865, 0.4409)
    _std = (0.2673, 0.2564, 0.2762)

    def __init__(
        self,
        root: str | None = None,
        partition: Partition | None = None,
        val_fraction: float = 0.0,
        seed: int | None = None,
        verify: bool = True,
        download: bool = False,
        labels: str = "fine",
    ) -> None:
        """Keep and check the settings.

        Args:
            root: folder that holds cifar-100-python.
            partition: how samples are divided among clients; IID by default.
            val_fraction: fraction of every client's training samples that becomes its validation part.
            seed: seed of the partition and the validation part; the run's seed if not given.
            verify: whether files must have the published checksums.
            download: whether missing files are fetched into root (by torchvision).
            labels: "fine" (100 classes) or "coarse" (20 superclasses).

        Raises:
            UserError: if a value is out of its range.
        """
        super().__init__(root, partition, val_fraction, seed, verify, download)
        if labels not in ("fine", "coarse"):
            raise UserError(f'CIFAR100: labels must be "fine" or "coarse", not "{labels}"')
        self.labels = labels

    @property
    def _keys(self) -> tuple[str, str]:
        return f"{self.labels}_labels", f"{self.labels}_label_names"
