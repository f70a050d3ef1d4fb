"""Data sets of torchvision's form, from Python (`from_torchvision`), and some of its own by name."""

import inspect
from typing import Annotated, Any, cast

import numpy as np
from PIL import Image

from rayfl.arguments import shown
from rayfl.data.base import Data
from rayfl.data.dataset import Dataset
from rayfl.data.readers.samples import Form, Samples, as_array, dataset_of
from rayfl.data.sets.arrays import Arrays
from rayfl.data.sets.folders import of_bytes
from rayfl.errors import BadData, BadValue, Missing, Unknown
from rayfl.memory import check_memory
from rayfl.settings import at_least, below

KNOWN = ("FakeData", "FashionMNIST", "KMNIST", "QMNIST", "STL10", "SVHN")
"""What a configuration may name: they neither unpickle files nor open pictures of any format."""


def from_torchvision(train_set: Any, test_set: Any = None, val_set: Any = None, **options: Any) -> Arrays:
    """Return data whose samples are those of torchvision's data sets, or of any others with (input, class).

    Args:
        train_set: has a length, and gives (input, class) by index; an input is a picture of Pillow's, an
            array or a tensor, all of the same shape. Its own transforms are applied, once.
        test_set: likewise; with none, a part of the training samples is for testing.
        val_set: likewise, for validation; there may be none.
        **options: of :class:`Arrays`, such as ``mean``, ``std``, ``users`` or ``partition``.
    """
    parts = {}
    for name, what, given in (("test", "test_set", test_set), ("val", "val_set", val_set)):
        if given is not None:
            parts[f"x_{name}"], parts[f"y_{name}"] = _stacked(what, given)
    train = _stacked("train_set", train_set)
    return Arrays(*train, **({"names": _names(train_set)} | parts | options))


class TorchvisionData(Data):
    """A data set of torchvision's by its name, from files that are there: nothing is downloaded.

    FakeData, FashionMNIST, KMNIST, QMNIST, STL10 or SVHN; any other from Python, with ``from_torchvision``.
    Images are uint8, scaled to [0, 1] and not normalised.
    """

    path: str = "torchvision.datasets.FakeData"
    """The class, with or without ``torchvision.datasets``."""
    root: str | None = None
    """Folder of the files; FakeData needs none."""
    arguments: dict[str, Any] | None = None
    """Further arguments of the class, such as the size of FakeData."""
    test_fraction: Annotated[float, at_least(0), below(1)] = 0.2
    """Share of the samples that are for testing where the data set has no test samples, as FakeData."""

    def load(self) -> Dataset:
        """Make the data set, and read all samples."""
        import torchvision

        name = self.path.removeprefix("torchvision.datasets.")
        if name not in KNOWN:
            raise Unknown(
                "data.path",
                f"is {shown(self.path)}, none of {', '.join(KNOWN)}: for others, rayfl.data.from_torchvision",
            )
        cls = getattr(torchvision.datasets, name)
        known = inspect.signature(cls).parameters
        given = dict(self.arguments or {})
        if set(given) & {"root", "train", "split", "download", "transform", "target_transform", "transforms"}:
            raise BadValue("data.arguments", "cannot set root, train, split, download or transforms")
        if "root" in known and name != "FakeData":
            if self.root is None:
                raise Missing("data.root", f"is not given: {name} needs the folder that holds its files")
            given["root"] = self.root
        parts: list[dict[str, Any]] = [{}]
        if "split" in known:
            parts = [{"split": "train"}, {"split": "test"}]
        elif name != "FakeData":
            parts = [{"train": True}, {"train": False}]
        try:
            sets = [cls(**given, **part) for part in parts]
        except Exception as error:  # files that are missing or damaged can raise nearly anything
            raise BadData(f"torchvision.datasets.{name}", f"cannot be made ({error})") from None
        samples = [Samples(*_stacked(name, each)) for each in sets]
        names = _names(sets[0])
        return dataset_of(samples[0], samples[1] if sets[1:] else None, Form(name, names, self.test_fraction))


def _names(given: Any) -> list[str] | None:
    """Return the names of the classes, where a data set has them."""
    names = getattr(given, "classes", None)
    if isinstance(names, list | tuple) and names and all(isinstance(name, str) for name in names):
        return list(names)
    return None


def _stacked(what: str, given: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return all inputs and all classes of a data set."""
    try:
        count = len(given)
    except TypeError:
        raise BadValue(what, f"is {shown(given)}: it must be a data set with a length") from None
    if not hasattr(given, "__getitem__"):  # such as a DataLoader, which gives batches
        raise BadValue(what, f"is {shown(given)}: it must be a data set that gives samples by index")
    if not count:
        raise BadData(what, "is empty: give at least one sample")
    x: np.ndarray | None = None
    labels = []
    for i in range(count):
        item = given[i]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise BadData(what, f": sample {i} is {shown(item)}: it must be (input, class)")
        array, label = _array(item[0]), np.asarray(item[1])
        if array is None:
            raise BadData(
                what,
                f": sample {i} is {shown(item[0])}: it must be a picture of 8 bits, an array or a tensor",
            )
        if label.ndim or label.dtype.kind not in "iu":
            raise BadData(what, f": the class of sample {i} is {shown(item[1])}: it must be a whole number")
        if x is None:
            check_memory(count * array.nbytes, f"{what}: {count:,} samples", "use fewer samples")
            x = np.empty((count, *array.shape), array.dtype)
        if array.shape != x.shape[1:] or array.dtype != x.dtype:
            raise BadData(
                what,
                f": sample {i} is {array.dtype} {list(array.shape)}, and sample 0 {x.dtype} "
                f"{list(x.shape[1:])}: they must have the same type and shape; a transform can do that",
            )
        x[i] = array
        labels.append(int(label))
    return cast(np.ndarray, x), np.array(labels)


def _array(thing: Any) -> np.ndarray | None:
    """Return an input as an array: pictures as uint8 [C, H, W], of one channel where they are grey.

    None for what is neither, and for pictures of more than 8 bits.
    """
    if isinstance(thing, Image.Image):
        if not of_bytes(thing):
            return None
        pixels = np.asarray(thing if thing.mode in ("L", "RGB") else thing.convert("RGB"))
        return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    return as_array(thing)
