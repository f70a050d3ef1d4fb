"""A data set as arrays (`Dataset`), and what one client (`ClientData`) or many (`Clients`) have of it."""

from __future__ import annotations

import hashlib
import io
import json
import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, overload

import numpy as np

from rayfl.data.task import Classes, Task, task_of
from rayfl.errors import BadData, BadValue, Conflict
from rayfl.settings.base import DisplayMixin, UnquotedText

SPLITS = ("train", "val", "test")
"""Names of the splits, in records, too."""


TRAIN, VAL, TEST = 0, 1, 2
UNUSED = 3  # in none of the splits
Augmentation = Literal["none", "fedbn", "fedgh", "reflect"]
"""How training images are changed."""
AUGMENTATIONS: tuple[str, ...] = get_args(Augmentation)
_INPUTS_AT_ONCE = 1000  # inputs that are read together


@dataclass(frozen=True, repr=False)
class Dataset(DisplayMixin):
    """Everything a data set has, in one place; NumPy arrays, so that processes can share them without copies.

    Attributes:
        inputs: ``[N, C, H, W]``, uint8: images, scaled to [0, 1] and normalised when batches are made; or
            ``[N, ...]``, float32 (of any shape) or int64 (token ids), which are used as they are.
        labels: int64 ``[N]``, by which partitions, splits and pictures tell samples apart: the class of each,
            or what the task makes of other targets, see :meth:`rayfl.data.task.Task.strata`.
        domains: int64 ``[N]``, index into ``domain_names``.
        origin: uint8 ``[N]``, the published division: `TRAIN`, `VAL`, `TEST` or `UNUSED`.
        class_names: name of each label.
        domain_names: name of each domain.
        mean: per channel, of uint8 images scaled to [0, 1]; of other inputs it may be left out.
        std: per channel, of uint8 images scaled to [0, 1]; of other inputs it may be left out.
        superclasses: int64 ``[N]``, a coarser label of each image, for data sets that have one.
        subclasses: int64 ``[N]``, a finer label of each image, for data sets that have one.
        users: int64 ``[N]``, index into ``user_names``, for data sets that say of which user each sample is.
        user_names: name of each user.
        augment: how training images are changed at random when batches are made: ``none``, ``fedbn`` (flip
            and turn), ``fedgh`` (flip, erase and crop) or ``reflect`` (flip, and shift with reflected edges).
        val_augment: whether validation images are changed likewise when they are scored.
        remarks: what a run's user has to know of the data, a line each.
        warnings: likewise, where numbers may be wrong.
        targets: what is learned, see :class:`rayfl.data.task.Task`; the labels if not given.
        target_names: name of each output of a net, where the task does not say how many there are.
        task: decided by the targets if not given.
    """

    inputs: np.ndarray
    labels: np.ndarray
    domains: np.ndarray
    origin: np.ndarray
    class_names: tuple[str, ...]
    domain_names: tuple[str, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    superclasses: np.ndarray | None = None
    subclasses: np.ndarray | None = None
    users: np.ndarray | None = None
    user_names: tuple[str, ...] = ()
    augment: Augmentation = "none"
    val_augment: bool = False
    remarks: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    targets: np.ndarray = None  # type: ignore[assignment]
    target_names: tuple[str, ...] = ()
    task: Task = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        found = task_of(self.labels if self.targets is None else self.targets)
        vars(self)["task"] = self.task or found
        if self.task.kind == "classes":
            vars(self)["targets"] = self.labels
        n, kind, images = len(self), self.inputs.dtype, self.inputs.ndim == 4
        if self.inputs.ndim < 2 or not (kind in (np.float32, np.int64) or (kind == np.uint8 and images)):
            raise ValueError(
                "inputs must be images, uint8 [N, C, H, W], or float32 or int64 [N, ...], not "
                f"{kind} {list(self.inputs.shape)}"
            )
        if kind == np.int64 and self.inputs.min(initial=0) < 0:
            raise ValueError("token ids must be at least 0")
        if self.augment not in AUGMENTATIONS or (self.augment != "none" and not images):
            raise ValueError(f"augment={self.augment!r} is none of {AUGMENTATIONS}, or inputs are no images")
        channels = self.inputs.shape[1] if kind == np.uint8 or self.mean or self.std else 0
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != channels:
                problem = f"has {len(values)} values, not {channels}: one for each channel of uint8 images"
                raise Conflict(f"data.{name}", problem)
        if not all(0 < value < math.inf for value in self.std):
            raise BadValue("data.std", f"is {list(self.std)}", "its numbers must be finite and above 0")
        for name, of_kind, count in (
            ("labels", np.int64, self.classes),
            ("domains", np.int64, len(self.domain_names)),
            ("origin", np.uint8, UNUSED + 1),
            ("superclasses", np.int64, math.inf),
            ("subclasses", np.int64, math.inf),
            ("users", np.int64, len(self.user_names)),
        ):
            array = getattr(self, name)
            if array is None:
                continue
            if array.shape != (n,) or array.dtype != of_kind:
                raise ValueError(
                    f"{name} must be {np.dtype(of_kind)} [{n}], not {array.dtype} {list(array.shape)}"
                )
            if n and not (array.min() >= 0 and array.max() < count):
                raise ValueError(f"{name} must lie in 0..{count - 1}")
        if len(self.targets) != n or self.targets.dtype not in (np.int64, np.float32, np.bool_):
            raise ValueError(f"targets must be int64, float32 or bool [{n}, ...], not {self.targets.dtype}")

    @property
    def largest(self) -> int | None:
        """The largest token id; None where inputs are no token ids."""
        return int(self.inputs.max(initial=0)) if self.inputs.dtype == np.int64 else None

    def __len__(self) -> int:
        return len(self.inputs)

    def _repr_line_(self) -> dict[str, Any]:
        inputs = UnquotedText(f"{self.inputs.dtype} {list(self.inputs.shape)}")
        learned: dict[str, Any] = {self.task.kind: self.outputs}
        return {"inputs": inputs, **learned, "domains": len(self.domain_names)}

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def outputs(self) -> int:
        """Number of outputs of a net, of positions at each."""
        if self.task.kind == "classes":
            return self.classes
        return len(self.target_names) or self.task.outputs(self.targets)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input, ``(C, H, W)`` of images."""
        return self.inputs.shape[1:]

    @property
    def scaling(self) -> tuple[np.ndarray, np.ndarray]:
        """What bytes of images are multiplied by, and what is added then, float32 [C, 1, 1] each."""
        scale = np.array([1 / (255 * s) for s in self.std], np.float32)
        shift = np.array([-m / s for m, s in zip(self.mean, self.std)], np.float32)
        return scale[:, None, None], shift[:, None, None]

    def digest(self) -> str:
        """Return a SHA-256, in hexadecimal, of what the dataset holds.

        It covers inputs (by their CRC-32), labels, domains, users, the division, names and normalisation.
        A billion bytes of inputs take a third of a second; images in a cache file have their checksum there.
        """
        arrays = (self.labels, self.domains, self.origin, self.superclasses, self.subclasses)
        facts: list[Any] = [
            _crc(self.inputs),
            [None if a is None else zlib.crc32(a.astype("<i8").tobytes()) for a in arrays],
            [self.inputs.shape, self.inputs.dtype.name, self.class_names, self.domain_names],
            [self.mean, self.std],
        ]
        if self.users is not None:
            facts.append([zlib.crc32(self.users.astype("<i8").tobytes()), self.user_names])
        if type(self.task) is not Classes:
            facts.append([_crc(self.targets), self.target_names, type(self.task).__qualname__])
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def sizes(self) -> dict[str, int]:
        """Return how many samples each domain has, in whatever split."""
        counts = np.bincount(self.domains, minlength=len(self.domain_names))
        return dict(zip(self.domain_names, counts.tolist()))

    def indices(self, origin: int, domain: int | None = None) -> np.ndarray:
        """Return the int64 indices of a part of the published division, of one domain or all, ascending."""
        mine = self.origin == origin
        return np.flatnonzero(mine if domain is None else mine & (self.domains == domain))


def check_finite(place: str, name: str, x: np.ndarray) -> None:
    """Refuse floats [N, ...], which the place has by some name, with NaN or infinity."""
    for start in range(0, len(x) if x.dtype.kind == "f" else 0, _INPUTS_AT_ONCE):
        bad = ~np.isfinite(x[start : start + _INPUTS_AT_ONCE]).all(axis=tuple(range(1, x.ndim)))
        if bad.any():
            problem = f": NaN or infinity in {name}, first in sample {start + bad.argmax()} (from 0)"
            raise BadData(place, problem, "leave such samples out")


def _crc(images: np.ndarray) -> int:
    """Return the CRC-32 of images as an .npy file would hold them, as a cache file does."""
    known: int | None = getattr(images, "crc", None)
    if known is not None:
        return known
    head = io.BytesIO()
    kind = np.lib.format.dtype_to_descr(images.dtype)
    np.lib.format.write_array_header_2_0(head, {"descr": kind, "fortran_order": False, "shape": images.shape})
    crc = zlib.crc32(head.getvalue())
    for start in range(0, len(images), _INPUTS_AT_ONCE):
        crc = zlib.crc32(np.ascontiguousarray(images[start : start + _INPUTS_AT_ONCE]).data, crc)
    return crc


@dataclass(frozen=True, repr=False)
class ClientData(DisplayMixin):
    """One client's data: int64 index arrays into the dataset, disjoint between splits.

    They are disjoint between clients, too, unless the partition lets clients share samples.

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

    def _repr_line_(self) -> dict[str, Any]:
        return {**{name: len(self.split(name)) for name in SPLITS}, "domain": self.domain}

    def split(self, name: str) -> np.ndarray:
        """Return the indices of ``"train"``, ``"val"`` or ``"test"``."""
        return {"train": self.train, "val": self.val, "test": self.test}[name]


_SEVERAL = -1
"""Stands for clients whose samples are of several domains."""


class Clients(Sequence[ClientData]):
    """The clients' data in the order of their numbers; each is made when it is asked for.

    Args:
        clients: what they are made of.

    Attributes:
        indices: per split int64, the indices of all clients, one after the other.
        ends: per split int64 [clients + 1], where each client's indices end; the first is 0.
        domains: int32 [clients], -1 for clients with several.
    """

    def __init__(self, clients: Iterable[ClientData]) -> None:
        held = list(clients)
        self.indices: dict[str, np.ndarray] = {}
        self.ends: dict[str, np.ndarray] = {}
        for split in SPLITS:
            parts = [each.split(split) for each in held]
            self.indices[split] = np.concatenate([np.zeros(0, np.int64), *parts])
            self.ends[split] = np.cumsum([0, *map(len, parts)])
        self.domains = np.array([_SEVERAL if c.domain is None else c.domain for c in held], np.int32)

    def __len__(self) -> int:
        return len(self.domains)

    @overload
    def __getitem__(self, number: int) -> ClientData: ...

    @overload
    def __getitem__(self, number: slice) -> tuple[ClientData, ...]: ...

    def __getitem__(self, number: int | slice) -> ClientData | tuple[ClientData, ...]:
        """Return a client's data, or those of several."""
        if isinstance(number, slice):
            return tuple(self[i] for i in range(*number.indices(len(self))))
        i = number + len(self) if number < 0 else number
        if not 0 <= i < len(self):
            raise IndexError(f"there is no client {number}: there are {len(self)}")
        domain = int(self.domains[i])
        train, val, test = (self.split(i, split) for split in SPLITS)
        return ClientData(train, val, test, None if domain == _SEVERAL else domain)

    def split(self, number: int, name: str) -> np.ndarray:
        """Return the indices of a client's ``"train"``, ``"val"`` or ``"test"``."""
        ends = self.ends[name]
        return self.indices[name][ends[number] : ends[number + 1]]

    def counts(self, name: str) -> np.ndarray:
        """Return how many samples of a split each client has: int64 [clients]."""
        return np.diff(self.ends[name])

    def matrix(self, values: np.ndarray, kinds: int, name: str) -> np.ndarray:
        """Return how many samples of each kind each client has in a split: int64 [clients, kinds].

        Args:
            values: int64 [N], the kind of every sample of the data set.
            kinds: how many there are.
            name: of the split.
        """
        owners = np.repeat(np.arange(len(self)), self.counts(name))
        cells = owners * kinds + values[self.indices[name]]
        return np.bincount(cells, minlength=len(self) * kinds).reshape(len(self), kinds)
