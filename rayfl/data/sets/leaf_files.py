"""`LEAFFiles`: data of users in the JSON that LEAF's scripts write."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from rayfl.arguments import shown
from rayfl.data.base import Data
from rayfl.data.dataset import TEST, TRAIN, Dataset
from rayfl.data.partitions.by_user import ByUser
from rayfl.data.partitions.partition import Partition
from rayfl.data.readers.samples import classes_of
from rayfl.data.sets.stdlib_text import character_names, encoded
from rayfl.errors import BadData, BadValue, Missing
from rayfl.files import read_json, reading
from rayfl.memory import check_memory

_BYTES = 12  # of memory that a byte of JSON needs at most, as text, numbers and arrays
_MEND = "write it again with LEAF's preprocess.sh"
_FORM = '{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [...], "y": [...]}}}'

Samples = tuple[np.ndarray, np.ndarray]
"""Inputs and labels of one user."""


class LEAFFiles(Data):
    """Data of users as LEAF (Caldas et al., 2018) divides them: root/train/*.json and root/test/*.json.

    rayfl reads files in which every sample is a list of equally many numbers with a whole number as label
    (FEMNIST, Synthetic), or a text of equal length with the next character as label (Shakespeare): float32
    inputs, or int64 characters in the classes of ``StdlibText``. Lists of words and names of pictures
    (Sent140, Reddit, CelebA) are refused. A client per user (or several) is the default partition. Users that
    are in the test files alone, as with LEAF's ``-t user``, have no training samples, so no client has them.
    """

    root: str | None = None
    """Folder with the folders train and test, such as data/femnist/data; it must be given."""
    shape: tuple[int, ...] | None = None
    """Shape of an input of numbers, such as [1, 28, 28] of FEMNIST; as in the files if not given."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shape is not None and (not self.shape or min(self.shape) < 1):
            raise BadValue("data.shape", f"is {list(self.shape)}: its numbers must be at least 1")

    def default_partition(self) -> Partition:
        """Return a client per user, or several users per client."""
        return ByUser()

    def load(self) -> Dataset:
        """Read all files."""
        parts = {origin: self._part(name) for origin, name in ((TRAIN, "train"), (TEST, "test"))}
        users = {name: number for number, name in enumerate(dict.fromkeys((*parts[TRAIN], *parts[TEST])))}
        every = [(origin, users[name], *s) for origin, part in parts.items() for name, s in part.items()]
        kinds = {(inputs.dtype.name, inputs.shape[1:]) for _, _, inputs, _ in every}
        if len(kinds) != 1:
            what = " and ".join(f"{kind} of the shape {list(shape)}" for kind, shape in sorted(kinds)[:2])
            raise BadData(self.root, f"has samples of several kinds, such as {what}: they must be alike")
        inputs = np.concatenate([inputs for _, _, inputs, _ in every])
        labels = np.concatenate([labels for *_, labels in every])
        class_names: tuple[str, ...] = character_names()
        remarks: tuple[str, ...] = ()
        if inputs.dtype != np.int64:  # no text
            labels, class_names, remarks = classes_of(type(self).__name__, [labels])
        sizes = [len(labels) for *_, labels in every]
        return Dataset(
            inputs=inputs,
            labels=labels,
            domains=np.zeros(len(labels), np.int64),
            origin=np.repeat(np.array([o for o, *_ in every], np.uint8), sizes),
            class_names=class_names,
            domain_names=(type(self).__name__,),
            users=np.repeat(np.array([user for _, user, *_ in every], np.int64), sizes),
            user_names=tuple(users),
            remarks=remarks,
        )

    def _part(self, name: str) -> dict[str, Samples]:
        """Return the samples of every user in one of the folders."""
        if self.root is None:
            raise Missing("data.root", "is not given: LEAFFiles needs the folder that holds its files")
        folder = Path(os.path.expanduser(self.root)) / name
        with reading(folder):
            files = sorted(entry for entry in os.listdir(folder) if entry.endswith(".json"))
        if not files:
            raise Missing(folder, "has no files of LEAF (*.json): set root to the folder that holds it")
        samples: dict[str, Samples] = {}
        for file in files:
            path = folder / file
            with reading(path):
                size = path.stat().st_size
            check_memory(_BYTES * size, f"the samples in {path}", "use fewer users in a file")
            with reading(path, _MEND):
                content = read_json(path)
                for user, given in _users(content):
                    if user in samples:
                        raise ValueError(f"user {shown(user)} is there twice")
                    found = _samples(user, given, self.shape)
                    if len(found[0]):
                        samples[user] = found
        if not samples:
            raise BadData(folder, "has no samples: use a smaller sampling in LEAF's preprocess.sh")
        return samples


def _users(content: Any) -> list[tuple[str, Any]]:
    """Return every user's entry in a file."""
    users = content.get("users") if isinstance(content, dict) else None
    data = content.get("user_data") if isinstance(content, dict) else None
    if not isinstance(users, list) or not isinstance(data, dict):
        raise ValueError(f"it must be like {_FORM}, and is {shown(content)}")
    if odd := [user for user in users if not isinstance(user, str) or user not in data]:
        raise ValueError(f"user {shown(odd[0])} has no 'user_data'")
    return [(user, data[user]) for user in users]


def _samples(user: str, given: Any, shape: tuple[int, ...] | None) -> Samples:
    """Return a user's samples as arrays."""
    inputs, labels = (given.get(name) if isinstance(given, dict) else None for name in ("x", "y"))
    if not isinstance(inputs, list) or not isinstance(labels, list) or len(inputs) != len(labels):
        raise ValueError(f"user {shown(user)} must have lists 'x' and 'y' of the same length")
    if not inputs:
        return np.zeros(0), np.zeros(0)
    if all(isinstance(each, str) for each in inputs):
        return _texts(user, inputs, labels)
    if odd := [label for label in labels if type(label) is not int or not 0 <= label < 2**63]:
        raise ValueError(f"user {shown(user)} has the label {shown(odd[0])}, and it must be 0 or above")
    try:
        array = np.array(inputs)
    except ValueError:  # of lengths that differ
        array = np.zeros(0)
    with np.errstate(over="ignore"):
        numbers = array.astype(np.float32) if array.dtype.kind in "iuf" else np.zeros(0, np.float32)
    if numbers.ndim < 2 or not numbers.size or not np.isfinite(numbers).all():
        raise ValueError(
            f"user {shown(user)} has samples such as {shown(inputs[0])}, and rayfl reads lists of equally "
            "many numbers, and text of equal length"
        )
    if shape is not None:
        if np.prod(shape) != numbers[0].size:
            raise ValueError(
                f"user {shown(user)} has {numbers[0].size} numbers per sample, not the shape {list(shape)}"
            )
        numbers = numbers.reshape(-1, *shape)
    return numbers, np.array(labels, np.int64)


def _texts(user: str, inputs: list[str], labels: list[Any]) -> Samples:
    """Return the characters of texts, and those that follow, as classes."""
    length = len(inputs[0])
    if not length or any(len(text) != length for text in inputs):
        raise ValueError(f"user {shown(user)} has texts of different lengths, or empty ones")
    if odd := [label for label in labels if not isinstance(label, str) or len(label) != 1]:
        raise ValueError(f"user {shown(user)} has the label {shown(odd[0])} of a text, no single character")
    return encoded("".join(inputs)).reshape(-1, length), encoded("".join(labels))
