"""`LEAFFiles`: data of users in the JSON that LEAF's scripts write."""

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from typing_extensions import TypedDict  # pydantic asks for this one below Python 3.12

from rayfl.data.dataset import Dataset
from rayfl.data.partitions.by_user import ByUser
from rayfl.data.readers.files import FolderData
from rayfl.data.readers.samples import Form, dataset_of_users
from rayfl.errors import BadData, Conflict, Missing
from rayfl.settings import at_least
from rayfl.system.files import (
    convert_content,
    explain_decode_errors,
    explain_read_errors,
    folder_entries,
    read_json,
)
from rayfl.system.text import short_repr

CHARACTERS = ("\n", *map(chr, range(32, 127)))
"""The characters that have a class of their own in texts, in the order of the classes."""
_LEAF_REMEDY = "write it again with LEAF's preprocess.sh"


class _User(TypedDict):
    x: list[Any]
    y: list[Any]


class _LeafFile(TypedDict):
    users: list[str]
    user_data: dict[str, _User]


class LEAFFiles(FolderData):
    """Data of users as LEAF (Caldas et al., 2018) divides them: root/train/*.json and root/test/*.json.

    rayfl reads files in which every sample is a list of equally many numbers with a whole number as label
    (FEMNIST, Synthetic), or a text of equal length with the next character as label (Shakespeare): float32
    inputs, or int64 characters in the classes of
    :data:`CHARACTERS`, and one more for all others. Lists of words and names of pictures
    (Sent140, Reddit, CelebA) are refused. A client per user (or several) is the default partition. Users that
    are in the test files alone, as with LEAF's ``-t user``, have no training samples, so no client has them.
    """

    _natural = ByUser

    shape: tuple[Annotated[int, at_least(1)], ...] | None = None
    """Shape of an input of numbers, such as [1, 28, 28] of FEMNIST; as in the files if not given."""
    task: Literal["classes", "positions"] = "classes"
    """Of texts, what is learned: the character after a text (``classes``), or after each of its characters
    (``positions``).
    """

    def load(self) -> Dataset:
        """Read all files."""
        folder = self.folder()
        train, test = (self._part(folder / name) for name in ("train", "test"))
        texts = any(x.dtype == np.int64 for x, _ in train.values())
        form = Form(type(self).__name__, character_names() if texts else None, task=self.task)
        return dataset_of_users(folder, train, test, form)

    def _part(self, folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Return the inputs and the labels of every user in one of the folders."""
        with explain_read_errors(folder):
            files = [Path(entry) for entry in folder_entries(folder) if entry.name.endswith(".json")]
        if not files:
            raise Missing(folder, "has no files of LEAF (*.json)", "set root to the folder that holds it")
        samples = {}
        for path in files:
            with explain_decode_errors(path, _LEAF_REMEDY):
                content = convert_content(_LeafFile, read_json(path))
                for user in content["users"]:
                    if user in samples:
                        raise ValueError(f"user {short_repr(user)} is there twice")
                    given = content["user_data"][user]
                    if given["x"]:
                        who = f"{path}: user {short_repr(user)}"
                        samples[user] = self._samples(who, given["x"], given["y"])
        if not samples:
            raise BadData(folder, "has no samples", "use a smaller sampling in LEAF's preprocess.sh")
        return samples

    def _samples(self, who: str, inputs: list[Any], labels: list[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Return a user's samples as arrays."""
        if len(inputs) != len(labels):
            raise ValueError(f"{who} has {len(inputs)} x and {len(labels)} y")
        if isinstance(inputs[0], str):
            convert_content(list[str], [*inputs, *labels])
            if len({*map(len, inputs)}) > 1 or {*map(len, labels)} != {1}:
                raise BadData(who, "has texts of different lengths, or labels that are no single characters")
            x, last = encoded("".join(inputs)).reshape(len(inputs), -1), encoded("".join(labels))
            return x, last if self.task == "classes" else np.column_stack([x[:, 1:], last])
        x, y = np.array(inputs), np.array(labels)
        if x.dtype.kind not in "iuf" or x.ndim < 2:
            known = "rayfl reads lists of equally many numbers, and texts of equal length"
            raise BadData(who, f"has samples such as {short_repr(inputs[0])}", known)
        if y.dtype.kind not in "iuf" or (y != np.round(y)).any() or (np.abs(y) >= 2**63).any():
            raise BadData(who, f"has labels such as {short_repr(labels[0])}, and rayfl reads whole numbers")
        if self.shape and math.prod(self.shape) != x[0].size:
            problem = f"is {list(self.shape)}, and samples have {x[0].size} numbers: {who}"
            raise Conflict("data.shape", problem)
        with np.errstate(over="ignore"):  # infinity is refused with all other samples
            x = x.astype(np.float32).reshape(len(x), *(self.shape or x.shape[1:]))
        return x, y.astype(np.int64)


def encoded(text: str) -> np.ndarray:
    """Return the class of every character, int64 [characters]."""
    codes = np.frombuffer(text.encode("utf-32-le", "replace"), "<u4")
    classes = np.where((codes >= 32) & (codes < 127), codes.astype(np.int64) - 31, len(CHARACTERS))
    return np.where(codes == ord("\n"), 0, classes)


def character_names() -> tuple[str, ...]:
    """Return the name of every class."""
    spoken = {"\n": "line end", " ": "space"}
    return (*(spoken.get(character, character) for character in CHARACTERS), "other")
