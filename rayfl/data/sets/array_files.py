"""`ArrayFiles`: samples in files of NumPy's or Parquet's format."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np

from rayfl.data.dataset import Dataset
from rayfl.data.readers.samples import Form, SampleData, Samples, dataset_of
from rayfl.data.readers.tables import read_arrays, read_parquet
from rayfl.errors import BadData, Missing
from rayfl.settings import at_least, below
from rayfl.system.files import explain_decode_errors

_MEND = "write it again"
_UNNAMED = re.compile(r"|Unnamed: \d+|__index_level_\d+__")
"""Names that pandas makes for a column without one."""
_FOLD = 1000
"""Columns whose scales differ by this factor hardly learn together."""


class ArrayFiles(SampleData):
    """Samples of your own in files: an .npz file, a folder of .npy files, or a .parquet file.

    Inputs are images (uint8 [N, C, H, W]), floats [N, ...] or token ids (whole numbers), labels whole numbers
    or texts. The files of a folder (x.npy, y.npy and so on) are mapped into memory where there is one folder
    alone. Files with pickled objects are refused. With users, a client per user (or several) is the default
    partition.
    """

    root: str | None = None
    """Folder that the names of the files are relative to; the current one if not given."""
    train: str | None = None
    """File or folder with the training samples, such as train.npz; it must be given."""
    test: str | None = None
    """File or folder with the test samples; if not given, a part of the training samples is for testing."""
    val: str | None = None
    """File or folder with the validation samples, if there are any."""
    x: str | list[str] | None = None
    """Name of the inputs, or a list of columns of numbers; x by default. In a parquet file by default all
    columns of the training samples that have no other use, but for those that only number the rows.
    """
    y: str = "y"
    """Name of the labels."""
    users: str | None = None
    """Name of the array or column that has the user of each sample, as numbers or texts."""
    domains: str | None = None
    """Name of the array or column that has the domain of each sample, as numbers or texts."""
    names: list[str] | None = None
    """Names of the classes, for labels from 0; the labels by default."""
    task: str | None = None
    """What is learned: ``classes``, ``numbers``, ``labels``, ``positions``, or the import path of a class of
    your own; by default as the labels say.
    """
    test_fraction: Annotated[float, at_least(0), below(1)] = 0.2
    """If there is no test file: the share of every user's samples, or of all samples, that is for testing.
    These are the same samples for every seed.
    """
    mean: list[float] | None = None
    """Per channel, of images scaled to [0, 1]; 0 by default."""
    std: list[float] | None = None
    """Per channel, of images scaled to [0, 1]; 1 by default."""

    def load(self) -> Dataset:
        """Read the files."""
        if self.train is None:
            raise Missing("data.train", "is not given: ArrayFiles needs a file with training samples")
        train, columns, remarks, warnings = self._part(self.train)
        names = (self.test, self.val)
        test, val = (None if name is None else self._part(name, columns)[0] for name in names)
        form = Form("ArrayFiles", self.names, self.test_fraction, self.mean, self.std, remarks, warnings)
        return dataset_of(train, test, replace(form, task=self.task), val)

    def _part(
        self, name: str, columns: list[str] | None = None
    ) -> tuple[Samples, list[str] | None, list[str], list[str]]:
        """Return what a file has; of a .parquet file also the columns of its inputs, remarks and warnings.

        Args:
            name: of the file.
            columns: of the inputs in a .parquet file, where ``x`` names none: those of the training samples.
        """
        path = Path(self.root or "").expanduser() / Path(name).expanduser()
        others = [each for each in (self.y, self.users, self.domains) if each is not None]
        parquet = path.suffix.lower() == ".parquet"
        inputs = [self.x] if isinstance(self.x, str) else self.x or columns
        with explain_decode_errors(path, _MEND):
            if parquet:
                found = read_parquet(path, [*(inputs or []), *others], inputs is None, self.y)
            else:
                inputs = inputs or ["x"]
                found = read_arrays(path, [*inputs, *others])
        remarks: list[str] = []
        warnings: list[str] = []
        if inputs is None:
            every = [name for name in found if name not in others]
            inputs = [name for name in every if not (_UNNAMED.fullmatch(name) and _counts(found[name]))]
            remarks = [
                f"the column {name!r} numbers the rows: it is left out"
                for name in every
                if name not in inputs
            ]
            warnings = _warn_of_ids(found, inputs)
        groups = (found.get(n) if n else None for n in (self.users, self.domains))
        samples = Samples(_input_columns(path, found, inputs), found[self.y], *groups)
        if parquet:
            remarks = [f"the inputs are the columns {', '.join(inputs)}", *remarks]
            warnings += _scales(found, inputs)
        return samples, inputs if parquet else None, remarks, warnings


def _input_columns(path: Path, found: Mapping[str, np.ndarray], names: list[str]) -> np.ndarray:
    """Return the inputs: one array, or columns of numbers side by side."""
    if not names:
        raise BadData(path, "has no columns for inputs")
    if len(names) == 1:
        x = found[names[0]]
        return x[:, None] if x.ndim == 1 else x
    for name in names:
        if found[name].ndim > 1 or found[name].dtype.kind not in "fiu":
            raise BadData(path, f": column {name!r} is no column of numbers: choose the columns with data.x")
    with np.errstate(over="ignore"):  # infinity is refused with all other samples
        return np.stack([found[name].astype(np.float32) for name in names], axis=1)


def _counts(values: np.ndarray) -> bool:
    """Return whether a column is 0, 1, 2, ... or 1, 2, 3, ..."""
    numbers = values.ndim == 1 and values.dtype.kind in "fiu" and len(values) > 0 and values[0] in (0, 1)
    return bool(numbers and np.array_equal(values, np.arange(len(values)) + values[0]))


def _warn_of_ids(found: Mapping[str, np.ndarray], names: Sequence[str]) -> list[str]:
    """Warn of columns that nobody has chosen and that may number the rows, patients or the like."""
    odd = [
        name
        for name in names
        if found[name].ndim == 1 and found[name].dtype.kind in "fiu"
        if len(np.unique(found[name])) == len(found[name]) and (found[name] == np.round(found[name])).all()
    ]
    rest = ", ".join(name for name in names if name not in odd)
    return [
        f"the column {name!r} has a different whole number in every row, as a patient's number has: if it is "
        f"one, leave it out: --data.x '[{rest}]'"
        for name in odd
    ]


def _scales(found: Mapping[str, np.ndarray], names: Sequence[str]) -> list[str]:
    """Warn of columns side by side of which one has far larger values than another."""
    sizes = [(float(np.abs(found[name]).max(initial=0)), name) for name in names if len(names) > 1]
    sizes = sorted(each for each in sizes if each[0])
    if not sizes or sizes[-1][0] < _FOLD * sizes[0][0]:
        return []
    least, largest = sizes[0], sizes[-1]
    return [
        f"values of the column {largest[1]!r} reach {largest[0]:g}, those of {least[1]!r} {least[0]:g}: nets "
        "learn little from such different scales: give every column mean 0 and deviation 1"
    ]
