"""From samples as somebody has them, in arrays of many kinds, to a checked `Dataset`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

from rayfl.data.base import Data, carve
from rayfl.data.dataset import TEST, TRAIN, VAL, ClientData, Dataset, check_finite
from rayfl.data.partitions.by_user import ByUser
from rayfl.data.partitions.partition import Partition
from rayfl.data.task import NOT_ASKED, TASKS, Kind, named_task
from rayfl.errors import BadData
from rayfl.randomness import numpy_generator
from rayfl.settings import at_least, below
from rayfl.system.memory import check_memory
from rayfl.system.text import short_repr

_PART_NAMES = {TRAIN: "training", VAL: "validation", TEST: "test"}
_IDS = 10_000_000  # more than that are a mistake
_LIKE_A_QUANTITY = 20  # classes without names of which one remarks that they may be a quantity


@dataclass(frozen=True)
class NamedLabels:
    """Labels that count the classes of their own part of the data: another part may count them otherwise.

    Attributes:
        numbers: whole numbers [n].
        names: of the classes for which 0, 1, ... stand.
    """

    numbers: Any
    names: Sequence[str]


@dataclass(frozen=True)
class Samples:
    """The training, validation or test samples, not checked yet.

    Attributes:
        x: inputs [n, ...].
        y: what is learned, [n, ...], or `NamedLabels`.
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
        class_names: of all classes, in the order of the training samples' numbers; by default their own
            names, or else their numbers. Of other targets the names of a net's outputs.
        task: what is learned, see :func:`named_task`; None: as the targets say.
        test_fraction: share of the samples that are for testing where there are no test samples.
        mean, std: of uint8 images, see :class:`rayfl.data.Dataset`; 0 and 1 by default.
        remarks, warnings: on the samples, see there, too.
        test_by: of the training samples: the last of every user by it are for testing; by default drawn ones.
        test_groups: whether ``test_by`` names groups, which are for testing as a whole.
    """

    name: str
    class_names: Sequence[str] | None = None
    test_fraction: float = 0.2
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    remarks: Sequence[str] = ()
    warnings: Sequence[str] = ()
    task: str | None = None
    test_by: np.ndarray | None = None
    test_groups: bool = False


class SampleData(Data):
    """Data of somebody's own; classes below it have the option ``users``, which says whose each sample is."""

    names: Sequence[str] | None = None
    """Names of the classes, for labels from 0; the labels by default. Of other targets, of outputs."""
    task: str | None = None
    """What is learned: ``classes``, ``numbers``, ``labels``, ``positions``, or the import path of a class of
    your own, see :class:`rayfl.data.task.Task`; by default as the targets say.
    """
    test_fraction: Annotated[float, at_least(0), below(1)] = 0.2
    """If nothing says what is for testing: the share of every user's samples, or of all samples, that is.
    These are the same samples for every seed.
    """

    def default_partition(self) -> Partition:
        """Return a client per user where the samples have users, else IID."""
        return super().default_partition() if getattr(self, "users", None) is None else ByUser()


def dataset_of(train: Samples, test: Samples | None, form: Form, val: Samples | None = None) -> Dataset:
    """Check samples, and return them as a dataset: first those for training, last those for testing.

    Without test samples, ``form.test_fraction`` of every user's training samples are, or of all where there
    are no users: of each class by the same fraction if possible, at random, but the same for every seed.

    Raises:
        UserError: they are not what can be classified, or do not go together.
    """
    name = form.name
    origins = {TRAIN: train} | ({VAL: val} if val else {}) | ({TEST: test} if test else {})
    parts = [*origins.values()]
    what = [f"{name}: the {_PART_NAMES[origin]} samples" for origin in origins]
    inputs = [_as_inputs(which, part.x) for which, part in zip(what, parts)]
    inputs, told = zip(*(_form_of_images(name, x) for x in inputs))
    sizes = [len(x) for x in inputs]
    given = [_plain_targets(which, part.y) for which, part in zip(what, parts)]
    learned, remarks = _learned(name, what, given, sizes, form)
    if len(kinds := dict.fromkeys(f"{x.dtype} {list(x.shape[1:])}" for x in inputs)) > 1:
        raise BadData(name, f": one sample is {', and another '.join(kinds)}", "use one form")
    users, user_names = _as_groups(name, "users", parts, sizes)
    domains, domain_names = _as_groups(name, "domains", parts, sizes)
    if len(inputs) > 1:
        check_memory(sum(x.nbytes for x in inputs), f"{name}: the samples", "use fewer samples")
    x = inputs[0] if len(inputs) == 1 else np.concatenate(inputs)
    channels = x.shape[1] if x.dtype == np.uint8 else 0
    dataset = Dataset(
        inputs=x,
        **learned,
        domains=np.zeros(len(x), np.int64) if domains is None else domains,
        origin=np.repeat(np.array([*origins], np.uint8), sizes),
        domain_names=domain_names or (name,),
        mean=tuple(map(float, form.mean or (0.0,) * channels)),
        std=tuple(map(float, form.std or (1.0,) * channels)),
        users=users,
        user_names=user_names,
        remarks=(*form.remarks, *remarks, *told[0]),
        warnings=tuple(form.warnings),
    )
    if test is None and form.test_fraction:
        _hold_out(dataset, form)
    return dataset


def _learned(
    name: str, what: Sequence[str], given: Sequence[Any], sizes: Sequence[int], form: Form
) -> tuple[dict[str, Any], list[str]]:
    """Return what a dataset has of targets, and what is to be said of them.

    Args:
        name: of the data set.
        what: names of its parts.
        given: their targets.
        sizes: samples of the parts.
        form: what they become.
    """
    for which, y, size in zip(what, given, sizes):
        if len(y.numbers if isinstance(y, NamedLabels) else y) != size:
            problem = f"are {size} in x and {len(y)} in y"
            raise BadData(which, problem, "x and y must have the same number")
    task, (first, *_) = named_task(form.task), given
    kind = task.kind if task else _kind_of(what[0], first)
    if kind != "classes":
        targets = np.concatenate([_as_targets(which, y, kind) for which, y in zip(what, given)])
        task = task or TASKS[kind]
        strata, strata_names = task.strata(targets)
        learned = {"targets": targets, "target_names": tuple(form.class_names or ()), "task": task}
        remark = f"what is learned: {kind}, {targets.dtype} {list(targets.shape)}"
        return {"labels": strata, "class_names": strata_names, **learned}, [remark]
    own = [*first.names] if isinstance(first, NamedLabels) else []
    # For people; parts know the classes by those of the training samples.
    names: Sequence[str] = form.class_names or own
    known = [*own, *names[len(own) :]][: len(names)]
    labels = [_as_labels(which, y, known) for which, y in zip(what, given)]
    classes, class_names, remarks = classes_of(name, labels, known)
    if len(class_names) >= _LIKE_A_QUANTITY and not names and labels[0].dtype.kind == "i" and remarks:
        remarks = [f"{remarks[0]}. If y is a quantity, --data.task numbers learns it as one"]
    return {"labels": classes, "class_names": tuple(names or class_names), "task": task}, remarks


def _plain_targets(what: str, given: Any) -> Any:
    """Return targets as an array or `NamedLabels`; columns of pandas may have categories in order."""
    kind: Any = getattr(given, "dtype", None)
    if getattr(kind, "categories", None) is not None:
        codes, names = np.asarray(getattr(given, "cat", given).codes), [str(each) for each in kind.categories]
        if empty := int((codes < 0).sum()):
            raise BadData(what, f"have {empty} empty entries in y", "leave such rows out")
        if not kind.ordered:  # as texts would be: of those that there are
            there = sorted({names[code] for code in np.unique(codes)})
            places = np.array([there.index(name) if name in there else -1 for name in names])
            codes, names = places[codes], there
        return NamedLabels(codes, names)
    if isinstance(given, NamedLabels):
        return given
    y = _list_as_array(given.to_numpy() if hasattr(given, "to_numpy") else given)
    if y is None:
        raise BadData(what, f"have y of {short_repr(given)}", "give an array, or a list without gaps")
    return y[:, 0] if y.ndim == 2 and y.shape[1] == 1 and y.dtype.kind in "iuUb" else y


def _kind_of(what: str, y: Any) -> Kind:
    """Return of which kind targets are, by their type and form."""
    if isinstance(y, NamedLabels) or y.dtype.kind in "U" or (y.dtype.kind in "iub" and y.ndim == 1):
        return "classes"
    if y.dtype.kind == "f":
        return "classes" if y.ndim == 1 and set(np.unique(y[:_IDS]).tolist()) <= {0.0, 1.0} else "numbers"
    if y.dtype.kind == "b" and y.ndim == 2:
        return "labels"
    if y.dtype.kind in "iu" and y.ndim == 2 and y.size and {*np.unique(y).tolist()} <= {0, 1}:
        problem = f"have y of {y.dtype} {list(y.shape)} with 0 and 1 alone"
        raise BadData(what, problem, "give truth values, or data.task=labels, for several labels a sample")
    if y.dtype.kind in "iu" and y.ndim >= 2:
        return "positions"
    known = (
        "whole numbers or texts [N] are classes, floats [N, k] numbers, truth values [N, k] several labels, "
        "whole numbers [N, ...] classes of positions"
    )
    raise BadData(what, f"have y of {y.dtype} {list(y.shape)}", known)


def _as_targets(what: str, y: Any, kind: Kind) -> np.ndarray:
    """Return targets that are no classes of samples as they are learned."""
    kinds = {"numbers": "fiub", "labels": "biuf", "positions": "iu"}[kind]
    if isinstance(y, NamedLabels) or y.dtype.kind not in kinds or (y.ndim > 2 and kind != "positions"):
        found = "names" if isinstance(y, NamedLabels) else f"{y.dtype} {list(y.shape)}"
        raise BadData(what, f"have y of {found}, and data.task is {kind}", "give others, or another task")
    y = y[:, None] if y.ndim == 1 else y
    check_finite(what, "y", y)
    if kind == "numbers":
        return y.astype(np.float32)
    if kind == "labels":
        if not np.isin(y, (0, 1)).all():
            raise BadData(what, "have labels other than 0 and 1", "each label is there or not")
        return y.astype(bool)
    if ((y < 0) & (y != NOT_ASKED)).any():
        raise BadData(what, "have classes of positions below 0", f"only {NOT_ASKED} may be: not asked for")
    return y.astype(np.int64)


UserSamples = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""The inputs and the labels of every user, by name."""


def dataset_of_users(place: object, train: UserSamples, test: UserSamples, form: Form) -> Dataset:
    """Check the samples of users, and return them as a dataset, user after user; see ``dataset_of``.

    Args:
        place: where the samples come from, for messages.
        train: for training, of at least one user.
        test: for testing, likewise; users may be in one of the two alone.
        form: what they become.
    """
    users = {name: number for number, name in enumerate(dict.fromkeys((*train, *test)))}
    kinds = {(x.dtype.name, x.shape[1:]) for part in (train, test) for x, _ in part.values()}
    if len(kinds) > 1:
        what = " and ".join(f"{kind} of the shape {list(shape)}" for kind, shape in sorted(kinds)[:2])
        raise BadData(place, f"has samples of several kinds, such as {what}", "they must be alike")
    samples = []
    for part in (train, test):
        x, y = (np.concatenate(arrays) for arrays in zip(*part.values()))
        numbers = [users[name] for name in part]
        samples.append(Samples(x, y, np.repeat(numbers, [len(labels) for _, labels in part.values()])))
    return replace(dataset_of(samples[0], samples[1], form), user_names=tuple(users))


def _hold_out(dataset: Dataset, form: Form) -> None:
    """Make test samples of some, in place: of drawn ones, of each user's last, or of whole groups."""
    groups = np.zeros(len(dataset), np.int64) if dataset.users is None else dataset.users
    train = dataset.indices(TRAIN)
    order = train[np.argsort(groups[train], kind="stable")]
    rng = numpy_generator(0, "test samples")
    none = np.zeros(0, np.int64)
    for mine in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
        if form.test_by is None:
            held = carve(dataset, ClientData(mine, none, none), form.test_fraction, rng).val
        else:
            ranks = np.argsort(np.argsort(form.test_by[mine], kind="stable"))
            if form.test_groups:
                ranks = np.unique(form.test_by[mine], return_inverse=True)[1]
                ranks = rng.permutation(ranks.max() + 1)[ranks]
            n = int(ranks.max()) + 1
            size = min(max(round(form.test_fraction * n), 1), n - 1)
            held = mine[ranks >= n - size]
        dataset.origin[held] = TEST


def as_array(given: Any) -> np.ndarray | None:
    """Return a NumPy array, or a PyTorch tensor as one; None for anything else."""
    if isinstance(given, np.ndarray):
        if np.ma.is_masked(given):
            raise BadData(f"an array {list(given.shape)} has masked values: fill them in, array.filled(...)")
        return np.asarray(given)
    if type(given).__module__.partition(".")[0] != "torch" or not hasattr(given, "detach"):
        return None
    import torch

    tensor = given.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _list_as_array(given: Any) -> np.ndarray | None:
    """Return a list, too, as an array, texts as texts; None where it has lists of different lengths in it."""
    try:
        array = np.asarray(given) if isinstance(given, list | tuple) else as_array(given)
    except ValueError:
        return None
    if array is not None and array.dtype.kind == "O" and all(isinstance(v, str) for v in array.flat):
        room = 4 * array.size * max(map(len, array.flat), default=0)  # each has that of the longest
        check_memory(room, "texts of labels or users", "use shorter ones")
        return array.astype(str)
    return array


def _as_inputs(what: str, given: Any) -> np.ndarray:
    """Return inputs as uint8 images, float32, or int64 token ids."""
    x = as_array(given)
    images = x is not None and x.dtype == np.uint8 and x.ndim in (3, 4)
    if x is None or x.dtype.kind not in "fiu" or x.ndim < 2 or (x.dtype == np.uint8 and not images):
        found = short_repr(given) if x is None else f"{x.dtype} {list(x.shape)}"
        known = "images, uint8 [N, C, H, W], floats [N, ...] or whole numbers (token ids) [N, ...]"
        raise BadData(what, f"have x of {found}", f"give an array or a tensor of {known}")
    if not x.size:
        raise BadData(what, f"have an empty x, {list(x.shape)}", "give at least one sample")
    if images:
        return x
    if x.dtype.kind == "f":
        with np.errstate(over="ignore"):
            x = x.astype(np.float32, copy=False)
        check_finite(what, "x", x)
        return x
    if x.min() < 0 or x.max() >= _IDS:
        known = f"ids are 0 to {_IDS - 1:,}; other numbers must be float"
        raise BadData(what, f"have token ids from {x.min()} to {x.max()}", known)
    return x.astype(np.int64, copy=False)


def _form_of_images(name: str, x: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Return images as [N, C, H, W], and what is to be said of another form; other inputs as they are."""
    if x.dtype != np.uint8:
        return x, []
    if x.ndim == 3:
        return x[:, None], [f"{name}: x of {list(x.shape)} is read as images of one channel"]
    if x.shape[1] > 4 and x.shape[3] in (1, 3, 4):
        told = f"{name}: x of {list(x.shape)} is read as images whose {x.shape[3]} channels come last"
        return np.ascontiguousarray(x.transpose(0, 3, 1, 2)), [told]
    return x, []


def _as_labels(what: str, given: Any, known: Sequence[str]) -> np.ndarray:
    """Return labels as int64, texts or booleans: texts where their part counts other classes than known."""
    own = given.names if isinstance(given, NamedLabels) else known
    y = np.asarray(given.numbers) if isinstance(given, NamedLabels) else given
    if y.dtype.kind == "f" and (y == np.round(y)).all():
        y = y.astype(np.int64)
    if y.ndim != 1 or y.dtype.kind not in "iuUb":
        raise BadData(what, f"have y of {y.dtype} {list(y.shape)}, and not whole numbers or texts [N]")
    if y.dtype.kind == "u" and y.max(initial=0) >= 2**63:
        raise BadData(what, f"have a label {y.max()}", "labels must be below 2**63")
    y = y.astype(np.int64) if y.dtype.kind in "iu" else y
    if y.dtype.kind == "U" or [*own] == [*known]:
        return y
    names = dict(enumerate(own))
    return np.array([names.get(label, str(label)) for label in y.tolist()])


def classes_of(
    name: str, parts: Sequence[np.ndarray], names: Sequence[str] | None = None
) -> tuple[np.ndarray, tuple[str, ...], list[str]]:
    """Return labels as int64 from 0 without gaps, the names of their classes, and what is to be said of them.

    Labels that are texts, or for which names are known, are of the classes of the training samples alone.

    Args:
        name: of the data set.
        parts: labels [n] of each part, those for training first; whole numbers, texts or booleans.
        names: of all classes, in the order of their numbers, where they are known.
    """
    found, numbers = zip(*(np.unique(part, return_inverse=True) for part in parts))
    own, remarks = tuple(names or ()), list[str]()
    places: dict[Any, int] = {k: k for k in range(len(own))} | {each: k for k, each in enumerate(own)}
    if not names:
        if texts := any(values.dtype.kind == "U" for values in found):
            found = [values.astype(str) for values in found]
        known = np.unique(found[0] if texts else np.concatenate(found))
        own, places = tuple(map(str, known)), {value: k for k, value in enumerate(known.tolist())}
        if known.dtype.kind != "i" or not np.array_equal(known, np.arange(len(known))):
            order = ", ".join(own[:10]) + ", ..." * (len(own) > 10)
            remarks = [f"the labels are names of classes, {len(own)} in this order: {order}"]
    classes = [np.array([places.get(value, -1) for value in values.tolist()]) for values in found]
    if odd := [value for values, where in zip(found, classes) for value in values[where < 0]]:
        problem = f": a label is {odd[-1]}, and the classes of the training samples are {', '.join(own[:10])}"
        raise BadData(name, problem, "leave such samples out, or name classes alike in all parts")
    return np.concatenate([where[number] for where, number in zip(classes, numbers)]), own, remarks


def _as_groups(
    name: str, field: str, parts: Sequence[Samples], sizes: Sequence[int]
) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Return the number of each sample's user or domain, int64 [N], and the names of all in order."""
    given = [getattr(part, field) for part in parts]
    if all(values is None for values in given):
        return None, ()
    arrays = [array for values in given if (array := _list_as_array(values)) is not None]
    fine = all(array.ndim == 1 and array.dtype.kind in "iuU" for array in arrays)
    if not fine or [*map(len, arrays)] != sizes:
        raise BadData(name, f": {field} must be whole numbers or texts [N], one for every sample")
    found, numbers = np.unique(np.concatenate(arrays), return_inverse=True)
    return numbers.astype(np.int64), tuple(map(str, found))
