"""Data sets of torchvision's form, from Python (`from_torchvision`), and some of its own by name."""

from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
from PIL import Image
from torch.utils.data import Subset

from rayfl.data.dataset import Dataset
from rayfl.data.readers.files import FolderData
from rayfl.data.readers.images import pixels, stack_all
from rayfl.data.readers.samples import Form, NamedLabels, Samples, as_array, dataset_of
from rayfl.data.sets.arrays import Arrays
from rayfl.errors import BadData, BadValue, Unknown
from rayfl.settings import at_least, below
from rayfl.system.text import short_repr

_TRAIN = ({"train": True}, {"train": False})
_SPLIT = ({"split": "train"}, {"split": "test"})
KNOWN: dict[str, tuple[dict[str, Any], ...]] = {
    "FakeData": ({},),
    "FashionMNIST": _TRAIN,
    "KMNIST": _TRAIN,
    "QMNIST": _TRAIN,
    "STL10": _SPLIT,
    "SVHN": _SPLIT,
}
"""What a configuration may name, and arguments that choose the training and the test samples.

They neither unpickle files nor open pictures of any format.
"""


def from_torchvision(train_set: Any, test_set: Any = None, val_set: Any = None, **options: Any) -> Arrays:
    """Return data whose samples are those of torchvision's data sets, or of any others with (input, class).

    Args:
        train_set: has a length, and gives (input, class) by index; an input is a picture of Pillow's, an
            array or a tensor, all of the same shape. Its own transforms are applied, once.
        test_set: likewise; with none, a part of the training samples is for testing.
        val_set: likewise, for validation; there may be none.
        **options: of :class:`Arrays`, such as ``mean``, ``std``, ``users`` or ``partition``.
    """
    parts: dict[str, Any] = {}
    for name, what, given in (("test", "test_set", test_set), ("val", "val_set", val_set)):
        if given is not None:
            parts[f"x_{name}"], parts[f"y_{name}"] = _stack_samples(what, given)
    train = _stack_samples("train_set", train_set)
    return Arrays(*train, **({"names": _class_names(train_set)} | parts | options))


class TorchvisionData(FolderData):
    """A data set of torchvision's by its name, from files that are there: nothing is downloaded.

    FakeData, FashionMNIST, KMNIST, QMNIST, STL10 or SVHN; any other from Python, with ``from_torchvision``.
    Images are uint8, scaled to [0, 1] and not normalised.
    """

    path: str = "torchvision.datasets.FakeData"
    """The class, with or without ``torchvision.datasets``."""
    arguments: dict[str, Any] | None = None
    """Further arguments of the class, such as the size of FakeData."""
    test_fraction: Annotated[float, at_least(0), below(1)] = 0.2
    """Share of the samples that are for testing where the data set has no test samples, as FakeData."""

    def load(self) -> Dataset:
        """Make the data set, and read all samples."""
        import torchvision

        name = self.path.removeprefix("torchvision.datasets.")
        if name not in KNOWN:
            problem = f"is {short_repr(self.path)}, none of {', '.join(KNOWN)}"
            raise Unknown("data.path", problem, "for others, rayfl.data.from_torchvision")
        given = dict(self.arguments or {})
        if set(given) & {"root", "train", "split", "download", "transform", "target_transform", "transforms"}:
            raise BadValue("data.arguments", "cannot set root, train, split, download or transforms")
        if name != "FakeData":
            given["root"] = str(self.folder())
        cls = getattr(torchvision.datasets, name)
        try:
            sets = [cls(**given, **part) for part in KNOWN[name]]
        except Exception as error:  # files that are missing or damaged can raise nearly anything
            raise BadData(f"torchvision.datasets.{name}", f"cannot be made ({error})") from None
        samples = [Samples(*_stack_samples(name, each)) for each in sets]
        form = Form(name, None, self.test_fraction)
        return dataset_of(samples[0], samples[1] if sets[1:] else None, form)


def _class_names(given: Any) -> list[str] | None:
    """Return the names of the classes, where a data set has them, or the one that it is a part of."""
    while isinstance(given, Subset):
        given = given.dataset
    names = getattr(given, "classes", None)
    if isinstance(names, list | tuple) and names and all(isinstance(name, str) for name in names):
        return list(names)
    return None


def _stack_samples(what: str, given: Any) -> tuple[np.ndarray, np.ndarray | NamedLabels]:
    """Return all inputs and all classes of a data set, with their names where it has them."""
    labels = []

    def inputs() -> Iterator[np.ndarray]:
        for i in range(len(given)):
            x, label = given[i]
            labels.append(np.asarray(label))
            place = f"{what}: sample {i}"
            array = pixels(place, x) if isinstance(x, Image.Image) else as_array(x)
            if array is None:
                raise BadData(place, f"is {short_repr(x)}", "it must be a picture, an array or a tensor")
            yield array

    x, names = stack_all(what, inputs(), len(given)), _class_names(given)
    return x, NamedLabels(np.array(labels), names) if names else np.array(labels)
