"""`Table`: rows of numbers and texts, in files or as a frame of pandas."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np

from rayfl.data.dataset import SPLITS, TEST, TRAIN, VAL, Dataset
from rayfl.data.federated import FederatedData
from rayfl.data.readers.encoding import Encoding, MissingValues, Standardise, as_texts
from rayfl.data.readers.samples import Form, SampleData, Samples, dataset_of
from rayfl.data.readers.tables import read_frame
from rayfl.data.readers.texts import token_ids
from rayfl.errors import BadData, Conflict, Missing, Unknown
from rayfl.settings import at_least
from rayfl.system.text import counted, did_you_mean

if TYPE_CHECKING:
    import pandas as pd

FILE = "file"
"""As ``users``: every file has the rows of one client."""
MOST_TEXTS = 100
"""Different texts of a column that are inputs without a question."""
_PARTS_BY_WORD = {"train": TRAIN, "val": VAL, "valid": VAL, "validation": VAL, "test": TEST}
_PART = "part of the data"
_DROP = "data.drop: "
_DATE = r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d.*)?"


class Table(SampleData):
    """Rows of a table: .csv, .tsv, .jsonl or .parquet files, a frame of pandas, or a table of Arrow.

    Numbers and truth values are inputs as they are, texts and categories one input for each value. What is
    filled in, scaled and told apart goes by training rows alone, after the rows have been divided among
    clients; the run records it. A whole number or a text in ``y`` is a class, another number is learned as
    one.
    """

    _unrecorded: ClassVar[tuple[str, ...]] = ("frame",)

    frame: Any = field(default=None, kw_only=False)
    """The rows, from Python; of a run that is resumed the same ones, as with :class:`Arrays`."""
    train: str | list[str] | None = None
    """File or pattern of files with the rows, such as ``schools/*.csv``."""
    test: str | list[str] | None = None
    """Likewise with test rows; by default some of the rows are for testing."""
    val: str | list[str] | None = None
    """Likewise with validation rows."""
    y: str | list[str] = "y"
    """Column of what is learned, or several."""
    x: list[str] | None = None
    """Columns of the inputs; by default all that have no other use."""
    text: str | None = None
    """Column of texts that are the only inputs, as token ids; needs ``rayfl[text]``."""
    tokenizer: str | None = None
    """Folder with the tokenizer of ``text``, mostly that of the net; nothing is fetched."""
    length: Annotated[int, at_least(1)] = 128
    """Most tokens of a text, which is cut there."""
    drop: Sequence[str] = ()
    """Columns that are left out."""
    users: str | None = None
    """Column of the user of each row, or ``file`` where each file is a user's."""
    domains: str | None = None
    """Column of the domain of each row."""
    split: str | None = None
    """Column that says ``train``, ``val`` or ``test`` of each row."""
    test_by: str | None = None
    """Column by which the last rows of a user are for testing, such as a time."""
    test_group: str | None = None
    """Column of groups of rows, such as sessions, that are for testing as a whole."""
    missing: MissingValues = "error"
    """What stands for missing values: their ``mean`` (of texts nothing), ``zero``; or ``drop``, which leaves
    such rows out.
    """
    standardise: Standardise = "all"
    """Whether numbers get mean 0 and deviation 1: by the training rows of ``all`` clients, as sums of a
    federation would give them, or of each ``client`` (new clients by those of all).
    """
    sha256: str | None = None
    """Digest that the data must have."""

    def __post_init__(self) -> None:
        super().__post_init__()
        ways = ("test_by", "test_group", "split", "test", "test_share", "val_fraction")
        named = [name for name in ways if getattr(self, name)]
        if (self.test_by or self.test_group) and len(named) > 1:
            raise Conflict(f"data.{named[0]}", f"is given, and data.{named[1]}, too", "leave one of them out")
        if (self.text is None) != (self.tokenizer is None) or (
            self.text and (self.x or self.text in self._used)
        ):
            raise Conflict(
                "data.text", "and data.tokenizer go together, without data.x, and with another data.y"
            )

    # ---- rows

    def load(self) -> Dataset:
        """Read the rows; inputs are numbers, and of texts the places of their values, until ``encode``."""
        frame = self._rows()
        inputs = self._inputs(frame)
        kept = self._without_gaps(frame, inputs)
        gaps = frame[self._used].isna().any(axis=None)
        told = [] if self.text else [f"inputs: {', '.join(_use_of(inputs[name]) for name in inputs)}"]
        if unused := [str(name) for name in frame if name not in (*inputs, *self._used, _PART)]:
            told.append(f"columns that are left out: {', '.join(unused)}")
        if len(kept) < len(frame):
            told.append(f"{len(frame) - len(kept)} of {len(frame)} rows have missing values and are left out")
        frame, inputs = (each.iloc[kept].reset_index(drop=True) for each in (frame, inputs))
        for name in self._used:
            if gaps and frame[name].dtype.kind == "f" and (frame[name] % 1 == 0).all():
                frame[name] = frame[name].astype(np.int64)  # that they had gaps had made floats of them
        if self.text and self.tokenizer:
            texts = inputs[self.text].fillna("").astype(str).tolist()
            raw, cut = token_ids(texts, self.tokenizer, self.length)
            told.append(f"inputs: {raw.shape[1]} tokens of {self.text}; {cut} of {len(raw)} texts are cut")
        else:
            raw = np.stack([_codes(inputs[name]) for name in inputs], axis=1).astype(np.float32)
        parts = {part: frame[frame[_PART] == part] for part in (TRAIN, TEST, VAL)}
        if not len(parts[TRAIN]):
            raise BadData("data", "has no training rows", "let data.train or data.split name some")
        train, test, val = (self._samples(part) if len(part) else None for part in parts.values())
        assert train is not None
        last = self.test_group or self.test_by
        by = parts[TRAIN][last].to_numpy(str if self.test_group else None) if last else None
        form = Form("Table", self.names, self.test_fraction, remarks=told, task=self.task, test_by=by)
        form = replace(form, test_groups=self.test_group is not None)
        vars(self)["_raw"] = inputs
        made = replace(dataset_of(train, test, form, val), inputs=raw)
        if self.sha256 not in (None, made.digest()):
            raise Conflict("data.sha256", f"is {self.sha256}, and these rows have the digest {made.digest()}")
        return made

    def encode(self, data: FederatedData) -> FederatedData:
        """Return data whose inputs are encoded by the training rows of the clients that train."""
        if self.text:
            return data
        held, n, raw = data.held, len(data.dataset), vars(self)["_raw"]
        rows = [held.split(i, "train") for i in range(data.seen)]
        encoding = Encoding.fit(raw, rows, self.missing, self.standardise)
        if self.standardise == "client" and any(data.shared.values()):
            raise Conflict("data.standardise", "is client, and clients share rows", "choose all")
        whose = np.full(n, -1)
        for split in SPLITS:
            owners = np.repeat(np.arange(len(data)), held.counts(split))
            whose[held.indices[split]] = np.where(owners < data.seen, owners, -1)
        inputs = encoding.encode(raw, whose)
        return replace(data, dataset=replace(data.dataset, inputs=inputs), encoding=encoding)

    @property
    def _used(self) -> list[str]:
        """The columns that have another use than as inputs."""
        targets = [self.y] if isinstance(self.y, str) else self.y
        named = (self.users, self.domains, self.split, self.test_by, self.test_group)
        return [*targets, *(name for name in named if name)]

    def _rows(self) -> pd.DataFrame:
        """Return all rows in the order of a dataset: training, validation, test; ``_PART`` says which."""
        import pandas as pd

        frame = self.frame.to_pandas() if hasattr(self.frame, "to_pandas") else self.frame
        given = [] if frame is None else [(TRAIN, "", frame)]
        for part, named in ((TRAIN, self.train), (TEST, self.test), (VAL, self.val)):
            for name in [named] if isinstance(named, str) else named or ():
                paths = sorted(glob.glob(str(Path(name).expanduser()))) or [name]
                stems = [Path(path).stem for path in paths]
                users = stems if len({*stems}) == len(stems) else paths
                given += [(part, user, read_frame(Path(path))) for user, path in zip(users, paths)]
        if not any(part == TRAIN for part, _, _ in given):
            raise Missing("data.train", "is not given: Table needs files, or a frame in Python")
        tables = [rows.assign(**{_PART: part}) for part, _, rows in given]
        if self.users == FILE and not any(FILE in rows for _, _, rows in given):
            tables = [rows.assign(**{FILE: name}) for rows, (_, name, _) in zip(tables, given)]
        frame = pd.concat(tables, ignore_index=True).rename(columns=str)
        if not len(frame):
            raise BadData("data", "has no rows")
        if odd := [
            name
            for name in (*self._used, *self.drop, *(self.x or ()), *([self.text] if self.text else ()))
            if name not in frame
        ]:
            there = [name for name in frame if name != _PART]
            near = did_you_mean(odd[0], there)
            raise Unknown("data", f"have no column {odd[0]!r}{near} There are {', '.join(there[:20])}")
        if self.split:
            words = frame[self.split].astype(str).str.lower()
            if odd := sorted({*words} - _PARTS_BY_WORD.keys()):
                raise BadData(f"column {self.split!r}", f"has {odd[0]!r}", "it must say train, val or test")
            frame[_PART] = words.map(_PARTS_BY_WORD)
        order = frame[_PART].map({TRAIN: 0, VAL: 1, TEST: 2}).argsort(kind="stable")
        return frame.iloc[order].reset_index(drop=True)

    def _inputs(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the columns of inputs: numbers as floats, others as texts, None where nothing is known."""
        import pandas as pd

        if self.text:
            return frame[[self.text]].astype(object).where(frame[[self.text]].notna(), None)
        others = {*self._used, *self.drop, _PART}
        names = self.x or [str(name) for name in frame if name not in others]
        if not names:
            raise BadData("data", "has no columns for inputs", "name some in data.x")
        found = {name: _numbers_or_texts(name, frame[name]) for name in names}
        for name, column in found.items():
            if not self.x and column.dtype.kind == "O" and (count := column.nunique()) > MOST_TEXTS:
                problem = f"has {count} different texts, of which each would be an input"
                remedy = f"leave it out ({_DROP}[{name}]), or name data.x, or it as data.text"
                raise BadData(f"column {name!r}", problem, remedy)
        return pd.DataFrame(found)

    def _without_gaps(self, frame: pd.DataFrame, inputs: pd.DataFrame) -> np.ndarray:
        """Return which rows are used; refuse missing values of which nobody has said a word."""
        import pandas as pd

        gaps = frame[self._used].isna()
        if self.missing in ("error", "drop"):
            gaps = pd.concat([gaps, inputs.isna()], axis=1)
        if self.missing != "drop" and (some := [name for name in gaps if gaps[name].any()]):
            name, empty = some[0], gaps[some[0]].to_numpy()
            count, first = counted(int(empty.sum()), "missing value"), int(empty.argmax())
            fills = "" if name in self._used else "; mean or zero fill them in"
            remedy = f"data.missing=drop leaves such rows out{fills}"
            raise BadData(f"column {name!r}", f"has {count}, first in row {first} (from 0)", remedy)
        return np.flatnonzero(~gaps.any(axis=1)) if self.missing == "drop" else np.arange(len(frame))

    def _samples(self, frame: pd.DataFrame) -> Samples:
        """Return rows with a place for their inputs."""
        y = frame[self.y] if isinstance(self.y, str) else frame[self.y].to_numpy()
        if y.ndim == 2 and y.dtype.kind != "b":
            y = y.astype(np.float64)  # several columns are numbers or labels, no positions
        of = (name and frame[name].astype(str).to_numpy() for name in (self.users, self.domains))
        return Samples(np.zeros((len(frame), 1), np.float32), y, *of)


def _numbers_or_texts(name: str, column: pd.Series) -> pd.Series:
    """Return a column of inputs: numbers as floats, others as texts, None where nothing is known."""
    import pandas as pd

    if pd.api.types.is_bool_dtype(column) or pd.api.types.is_numeric_dtype(column):
        return column.astype("float64").replace([np.inf, -np.inf], np.nan)
    known = column.dropna()
    if pd.api.types.is_datetime64_any_dtype(column) or (
        len(known) and known.astype(str).str.fullmatch(_DATE).all()
    ):
        remedy = f"make numbers of them, such as days since the first, or leave it out ({_DROP}[{name}])"
        raise BadData(f"column {name!r}", "has dates, which are no inputs", remedy)
    if not known.map(lambda value: isinstance(value, str | bool | int | float)).all():
        raise BadData(f"column {name!r}", f"holds {type(known.iloc[0]).__name__}", "give numbers or texts")
    return as_texts(column).where(column.notna(), None)


def _codes(column: pd.Series) -> np.ndarray:
    """Return numbers, or the places of texts among all of the column, -1 where nothing is known."""
    if column.dtype.kind == "f":
        return column.to_numpy()
    values = {value: place for place, value in enumerate(sorted(column.dropna().unique()))}
    return column.map(values).fillna(-1).to_numpy(np.float64)


def _use_of(column: pd.Series) -> str:
    """Return a column's name and how it is used."""
    if column.dtype.kind == "f":
        return f"{column.name} (number)"
    values = sorted(column.dropna().unique())
    return f"{column.name} ({', '.join(values[:5])}{', ...' * (len(values) > 5)})"
