"""From samples as somebody has them, in arrays of many kinds, to a checked `Dataset`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rayfl.arguments import shown
from rayfl.data.base import carve
from rayfl.data.dataset import TEST, TRAIN, VAL, ClientData, Dataset, not_finite
from rayfl.errors import BadData, BadValue, Conflict
from rayfl.memory import check_memory
from rayfl.randomness import numpy_generator

_IDS = 10_000_000  # more than that are a mistake


@dataclass(frozen=True)
class Samples:
    """The training, validation or test samples, not checked yet.

    Attributes:
        x: inputs [n, ...].
        y: labels [n].
        users: the user of each sample [n], numbers or texts.
        domains: the domain of each sample [n], numbers or texts.
    """

    x: Any
    y: Any
    users: Any = None
    domains: Any = None


@dataclass(frozen=True)
class Form:
    """What samples become.

    Attributes:
        name: of the data set, for messages, and of its domain where samples have none.
        class_names: of all classes; their numbers by default.
        test_fraction: share of the samples that are for testing where there are no test samples.
        mean, std: of uint8 images, see :class:`rayfl.data.Dataset`; 0 and 1 by default.
        remarks, warnings: on the samples, see there, too.
    """

    name: str
    class_names: Sequence[str] | None = None
    test_fraction: float = 0.2
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    remarks: Sequence[str] = ()
    warnings: Sequence[str] = ()


def own_names(names: Sequence[str] | None) -> None:
    """Refuse names of classes of which two are the same: nobody could tell these classes apart."""
    for name, count in Counter(names or ()).most_common(1):
        if count > 1:
            raise BadValue("data.names", f": {count} classes have the name {name!r}: give each its own")


def dataset_of(train: Samples, test: Samples | None, form: Form, val: Samples | None = None) -> Dataset:
    """Check samples, and return them as a dataset: first those for training, last those for testing.

    Without test samples, ``form.test_fraction`` of every user's training samples are, or of all where there
    are no users: of each class by the same fraction if possible, at random, but the same for every seed.

    Raises:
        UserError: they are not what can be classified, or do not go together.
    """
    name = form.name
    given: Sequence[tuple[int, str, Samples | None]] = (
        (TRAIN, "training", train),
        (VAL, "validation", val),
        (TEST, "test", test),
    )
    origins = [origin for origin, _, samples in given if samples]
    named = [(part, samples) for _, part, samples in given if samples]
    inputs = [_inputs(f"{name}: the {part} samples", samples.x) for part, samples in named]
    labels = [_labels(f"{name}: the {part} samples", s.y, len(x)) for (part, s), x in zip(named, inputs)]
    kinds = {f"{x.dtype} {list(x.shape[1:])}": part for (part, _), x in zip(named, inputs)}
    if len(kinds) > 1:
        these = ", and ".join(f"a {part} sample is {kind}" for kind, part in kinds.items())
        raise BadData(name, f": {these}: use one form")
    classes, class_names, remarks = classes_of(name, labels, form.class_names)
    users, user_names = _groups(name, "users", named, inputs)
    domains, domain_names = _groups(name, "domains", named, inputs)
    count = sum(map(len, inputs))
    if len(inputs) > 1:
        check_memory(sum(x.nbytes for x in inputs), f"{name}: the samples", "use fewer samples")
    x = inputs[0] if len(inputs) == 1 else np.concatenate(inputs)
    channels = x.shape[1] if x.dtype == np.uint8 else 0
    for option in ("mean", "std"):
        if (values := getattr(form, option)) is not None and len(values) != channels:
            raise Conflict(
                f"data.{option}",
                f"has {len(values)} values, not {channels or 'none'}: one for each channel of uint8 images",
            )
    if form.std is not None and not all(value > 0 for value in form.std):
        raise BadValue("data.std", f"is {list(form.std)}: its numbers must be above 0")
    last = []
    if x.dtype == np.uint8 and x.shape[1] > 4 and x.shape[3] in (1, 3, 4):
        last = [
            f"{name}: x of {list(x.shape)} is read as [N, C, H, W], images of {channels} channels and "
            f"{x.shape[2]} x {x.shape[3]} pixels: if the channels come last, give x.transpose(0, 3, 1, 2)"
        ]
    dataset = Dataset(
        inputs=x,
        labels=classes,
        domains=np.zeros(count, np.int64) if domains is None else domains,
        origin=np.repeat(np.array(origins, np.uint8), [len(x) for x in inputs]),
        class_names=class_names,
        domain_names=domain_names or (name,),
        mean=tuple(map(float, form.mean or (0.0,) * channels)),
        std=tuple(map(float, form.std or (1.0,) * channels)),
        users=users,
        user_names=user_names,
        remarks=(*form.remarks, *remarks),
        warnings=(*form.warnings, *last),
    )
    if test is None:
        _hold_out(dataset, form)
    return dataset


def _hold_out(dataset: Dataset, form: Form) -> None:
    """Make test samples of some, in place."""
    if not form.test_fraction:
        raise BadData(form.name, "has no test samples: give them, or a test_fraction above 0")
    groups = np.zeros(len(dataset), np.int64) if dataset.users is None else dataset.users
    train = dataset.indices(TRAIN)
    order = train[np.argsort(groups[train], kind="stable")]
    rng = numpy_generator(0, "test samples")
    none = np.zeros(0, np.int64)
    for mine in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
        held = carve(dataset, ClientData(mine, none, none), form.test_fraction, rng)
        dataset.origin[held.val] = TEST
    if not len(dataset.indices(TEST)):
        whose = "nobody has" if dataset.users is not None else "there are not"
        raise BadData(form.name, f"has no test samples: {whose} two samples to divide; give x_test or test")


def as_array(given: Any) -> np.ndarray | None:
    """Return a NumPy array, or a PyTorch tensor as one; None for anything else."""
    if isinstance(given, np.ndarray):
        if np.ma.is_masked(given):
            raise BadData(
                f"an array {list(given.shape)} has masked values: leave out such samples, or fill in values, "
                "array.filled(...)"
            )
        return np.asarray(given)
    if type(given).__module__.partition(".")[0] != "torch" or not hasattr(given, "detach"):
        return None
    import torch

    tensor = given.detach().cpu()
    if tensor.layout != torch.strided:
        raise BadData(f"a tensor {list(tensor.shape)} is sparse: give tensor.to_dense()")
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _listed(given: Any) -> np.ndarray | None:
    """Return a list, too, as an array, texts as texts; None where it has lists of different lengths in it."""
    try:
        array = np.asarray(given) if isinstance(given, list | tuple) else as_array(given)
    except ValueError:
        return None
    if array is not None and array.dtype.kind == "O" and all(isinstance(v, str) for v in array.flat):
        return array.astype(str)
    return array


def _inputs(what: str, given: Any) -> np.ndarray:
    """Return inputs as uint8 images, float32, or int64 token ids."""
    x = as_array(given)
    if x is None:
        raise BadValue(what, f"have as x {shown(given)}: it must be a NumPy array or a PyTorch tensor")
    images = x.dtype == np.uint8 and x.ndim == 4
    if x.dtype.kind not in "fiu" or x.ndim < 2 or (x.dtype == np.uint8 and not images):
        raise BadData(
            what,
            f"have x of {x.dtype} {list(x.shape)}: it must be images, uint8 [N, C, H, W], or floats or whole "
            "numbers (token ids) [N, ...]",
        )
    if not x.size:
        raise BadData(what, f"have an empty x, {list(x.shape)}: give at least one sample")
    if images:
        return x
    if x.dtype.kind == "f":
        with np.errstate(over="ignore"):
            x = x.astype(np.float32, copy=False)
        if (first := not_finite(x)) is not None:
            raise BadData(
                what, f"have NaN or infinity in x, first in sample {first} (from 0): leave such samples out"
            )
        return x
    if x.min() < 0 or x.max() >= _IDS:
        raise BadData(
            what,
            f"have token ids from {x.min()} to {x.max()}, not 0 to {_IDS - 1:,}; other numbers must be float",
        )
    return x.astype(np.int64, copy=False)


def _labels(what: str, given: Any, count: int) -> np.ndarray:
    """Return labels as int64, texts or booleans."""
    y = _listed(given)
    if y is None:
        raise BadValue(
            what,
            f"have as y {shown(given)}: it must be whole numbers or texts [N], an array, a tensor or a list",
        )
    if y.ndim != 1 or y.dtype.kind not in "iuUb":
        raise BadData(
            what,
            f"have y of {y.dtype} {list(y.shape)}, not whole numbers or texts [N]: rayfl has no regression",
        )
    if len(y) != count:
        raise BadData(what, f"are {count} in x and {len(y)} in y: x and y must have the same number")
    return y.astype(np.int64) if y.dtype.kind in "iu" else y


def classes_of(
    name: str, parts: Sequence[np.ndarray], names: Sequence[str] | None = None
) -> tuple[np.ndarray, tuple[str, ...], tuple[str, ...]]:
    """Return labels as int64 from 0 without gaps, the names of their classes, and what is to be said of them.

    Args:
        name: of the data set.
        parts: labels [n] of each part, whole numbers, texts or booleans.
        names: of all classes, in the order of their numbers, where they are known.
    """
    labels, found, own = _unique(name, "y", parts)
    if names:
        known = {each: number for number, each in enumerate(names)}
        texts = found.dtype.kind == "U"
        places = np.array([known.get(v, -1) for v in own] if texts else found, np.int64)
        if len(odd := found[(places < 0) | (places >= len(names))]):
            raise BadData(
                name, f": a label is {odd[-1]}, which is neither one of the names nor in 0..{len(names) - 1}"
            )
        return places[labels], tuple(names), ()
    if found.dtype.kind == "i" and np.array_equal(found, np.arange(len(found))):
        return labels, own, ()
    order = ", ".join(own[:10]) + ", ..." * (len(own) > 10)
    return labels, own, (f"the labels are names of classes, {len(own)} in this order: {order}",)


def _unique(
    name: str, field: str, parts: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Return which value each one is, int64 [N], all values in order, and their texts."""
    if len({array.dtype.kind == "U" for array in parts}) > 1:
        raise BadData(name, f": {field} must be numbers throughout, or texts throughout")
    found, numbers = np.unique(np.concatenate(parts), return_inverse=True)
    names = tuple(map(str, found))
    for each in names:
        try:
            each.encode()
        except UnicodeEncodeError:
            raise BadData(name, f": {field} have {each!a}, which is no text in UTF-8") from None
    return numbers.astype(np.int64), found, names


def _groups(
    name: str, field: str, named: Sequence[tuple[str, Samples]], inputs: Sequence[np.ndarray]
) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Return the number of each sample's user or domain, int64 [N], and the names of all in order."""
    parts = []
    for (part, given), x in zip(named, inputs):
        values = getattr(given, field)
        if values is None:
            continue
        array = _listed(values)
        if array is None or array.ndim != 1 or array.dtype.kind not in "iuU":
            raise BadData(
                name,
                f": {field} of the {part} samples are {shown(values)}: they must be integers or texts [N]",
            )
        if len(array) != len(x):
            raise BadData(
                name, f": there are {len(x)} {part} samples, and {len(array)} {field} of them: give as many"
            )
        parts.append(array)
    if not parts:
        return None, ()
    if len(parts) < len(named):
        raise BadData(name, f": {field} must be given for all samples, or of none")
    numbers, _, names = _unique(name, field, parts)
    return numbers, names
