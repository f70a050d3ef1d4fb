"""A data set as arrays (`Dataset`), and one client's share of it (`ClientData`)."""

import hashlib
import io
import json
import zlib
from dataclasses import dataclass
from typing import Literal

import numpy as np

TRAIN, VAL, TEST = 0, 1, 2
UNUSED = 3  # in none of the splits
_CHUNK = 1000  # images that are read together


@dataclass(frozen=True)
class Dataset:
    """Everything a data set has, in one place; NumPy arrays, so that processes can share them without copies.

    Attributes:
        inputs: ``[N, C, H, W]``, uint8 (scaled to [0, 1] and normalised when batches are made) or float32,
            which is used as it is.
        labels: int64 ``[N]``, class of each image.
        domains: int64 ``[N]``, index into ``domain_names``.
        origin: uint8 ``[N]``, the published division: `TRAIN`, `VAL`, `TEST` or `UNUSED`.
        class_names: name of each class.
        domain_names: name of each domain.
        mean: per channel, of uint8 images scaled to [0, 1].
        std: per channel, of uint8 images scaled to [0, 1].
        superclasses: int64 ``[N]``, a coarser label of each image, for data sets that have one.
        subclasses: int64 ``[N]``, a finer label of each image, for data sets that have one.
        augment: how training images are changed at random when batches are made: ``none``, ``fedbn`` (flip
            and turn) or ``fedgh`` (flip, erase and crop).
        val_augment: whether validation images are changed likewise when they are scored.
    """

    inputs: np.ndarray
    labels: np.ndarray
    domains: np.ndarray
    origin: np.ndarray
    class_names: tuple[str, ...]
    domain_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    superclasses: np.ndarray | None = None
    subclasses: np.ndarray | None = None
    augment: Literal["none", "fedbn", "fedgh"] = "none"
    val_augment: bool = False

    def __post_init__(self) -> None:
        n = len(self.inputs)
        if self.inputs.ndim != 4 or self.inputs.dtype not in (np.uint8, np.float32):
            raise ValueError(
                f"images must be uint8 or float32 [N, C, H, W], not {self.inputs.dtype} {self.inputs.shape}"
            )
        kinds: dict[str, type[np.generic]] = {"labels": np.int64, "domains": np.int64, "origin": np.uint8}
        kinds |= {"superclasses": np.int64, "subclasses": np.int64}
        for name, kind in kinds.items():
            array = getattr(self, name)
            if array is not None and (array.shape != (n,) or array.dtype != kind):
                raise ValueError(
                    f"{name} must be {np.dtype(kind)} [{n}], not {array.dtype} {list(array.shape)}"
                )
        if n and not (self.labels.min() >= 0 and self.labels.max() < self.classes):
            raise ValueError(f"labels must lie in 0..{self.classes - 1}")
        if n and not (self.domains.min() >= 0 and self.domains.max() < len(self.domain_names)):
            raise ValueError(f"domains must lie in 0..{len(self.domain_names) - 1}")
        if len(self.mean) != self.inputs.shape[1] or len(self.std) != self.inputs.shape[1]:
            raise ValueError("mean and std must have one value per channel")

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape ``(C, H, W)`` of one image."""
        _, channels, height, width = self.inputs.shape
        return channels, height, width

    def digest(self) -> str:
        """Return a SHA-256, in hexadecimal, of what the dataset holds.

        It covers images (by their CRC-32), labels, domains, the division, names and normalisation.
        A billion bytes of images take a third of a second; images in a cache file have their checksum there.
        """
        arrays = (self.labels, self.domains, self.origin, self.superclasses, self.subclasses)
        facts = [
            _crc(self.inputs),
            [None if a is None else zlib.crc32(a.astype("<i8").tobytes()) for a in arrays],
            [self.inputs.shape, self.inputs.dtype.name, self.class_names, self.domain_names],
            [self.mean, self.std],
        ]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def sizes(self) -> dict[str, int]:
        """Return how many images each domain has, in whatever split."""
        counts = np.bincount(self.domains, minlength=len(self.domain_names))
        return dict(zip(self.domain_names, counts.tolist()))

    def indices(self, origin: int) -> np.ndarray:
        """Return the int64 indices of one part of the published division, ascending."""
        return np.flatnonzero(self.origin == origin)


def _crc(images: np.ndarray) -> int:
    """Return the CRC-32 of images as an .npy file would hold them, as a cache file does."""
    known: int | None = getattr(images, "crc", None)
    if known is not None:
        return known
    head = io.BytesIO()
    kind = np.lib.format.dtype_to_descr(images.dtype)
    np.lib.format.write_array_header_2_0(head, {"descr": kind, "fortran_order": False, "shape": images.shape})
    crc = zlib.crc32(head.getvalue())
    for start in range(0, len(images), _CHUNK):
        crc = zlib.crc32(np.ascontiguousarray(images[start : start + _CHUNK]).data, crc)
    return crc


@dataclass(frozen=True)
class ClientData:
    """One client's data: int64 index arrays into the dataset, disjoint between splits and between clients.

    Attributes:
        train: indices of the training samples.
        val: indices of the validation samples, possibly none.
        test: indices of the test samples.
        domain: the client's domain where all its data has the same one, else None.
    """

    train: np.ndarray
    val: np.ndarray
    test: np.ndarray
    domain: int | None = None

    def split(self, name: str) -> np.ndarray:
        """Return the indices of ``"train"``, ``"val"`` or ``"test"``."""
        return {"train": self.train, "val": self.val, "test": self.test}[name]
