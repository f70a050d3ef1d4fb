"""Columns of a table as the numbers that nets take: filled, scaled and told apart by training rows alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from pydantic import TypeAdapter

if TYPE_CHECKING:
    import pandas as pd  # at run time where there is a table

MissingValues = Literal["error", "mean", "zero", "drop"]
Standardise = Literal["all", "client", "none"]
Scale = tuple[float, float]
"""What is subtracted from a number, and by what it is divided then."""


@dataclass(frozen=True)
class InputColumn:
    """A column of inputs.

    Attributes:
        name: of the column.
        values: of texts and categories, of which each gets an input that is 1 or 0; None: a number.
        fill: what stands for a missing number.
        scale: of all clients' training rows; None: the number is used as it is.
        scales: of each client's own, where clients have their own.
    """

    name: str
    values: list[str] | None = None
    fill: float = 0.0
    scale: Scale | None = None
    scales: list[Scale | None] | None = None

    def encode(self, given: pd.Series, clients: np.ndarray | None = None) -> np.ndarray:
        """Return inputs, float32 [n, values] or [n, 1].

        Args:
            given: [n].
            clients: int64 [n], whose row each is, -1 for nobody's; None: nobody's.
        """
        if self.values is not None:
            return (as_texts(given).to_numpy()[:, None] == np.array(self.values, object)).astype(np.float32)
        x = given.fillna(self.fill).to_numpy(np.float64)
        if self.scale is not None:
            known = [each or self.scale for each in self.scales or []]
            shift, size = np.array([*known, self.scale]).T  # the last is nobody's
            whose = np.full(len(x), -1) if clients is None or not known else clients
            x = (x - shift[whose]) / size[whose]
        return x.astype(np.float32)[:, None]


@dataclass(frozen=True)
class Encoding:
    """How the columns of a table become inputs.

    Attributes:
        columns: in the order of the inputs.
    """

    columns: tuple[InputColumn, ...]

    @classmethod
    def fit(
        cls, frame: pd.DataFrame, rows: Sequence[np.ndarray], fill: MissingValues, standardise: Standardise
    ) -> Self:
        """Return the encoding that training rows make.

        Args:
            frame: all rows: numbers, and texts, None where nothing is known.
            rows: of each client that trains.
            fill: what stands for missing numbers: their ``mean``, or ``zero``.
            standardise: by what numbers get mean 0 and deviation 1.
        """
        of_all = np.unique(np.concatenate(rows))
        train = frame.iloc[of_all]
        columns = []
        for name in frame.columns:
            if frame[name].dtype.kind == "O":
                columns.append(InputColumn(name, sorted(train[name].dropna().unique().tolist())))
                continue
            mean = train[name].mean()
            empty = 0.0 if fill == "zero" or np.isnan(mean) else float(mean)
            whole = frame[name].fillna(empty)
            scale, scales = None, None
            if standardise != "none":
                scale = _scale_of(whole.iloc[of_all]) or (0.0, 1.0)
                scales = [_scale_of(whole.iloc[own]) for own in rows] if standardise == "client" else None
            columns.append(InputColumn(name, None, empty, scale, scales))
        return cls(tuple(columns))

    @classmethod
    def from_record(cls, record: Sequence[Mapping[str, Any]]) -> Self:
        """Return an encoding that a run has recorded."""
        return cls(tuple(TypeAdapter(InputColumn).validate_python(column) for column in record))

    def record(self) -> list[dict[str, Any]]:
        """Return the encoding as JSON values."""
        return [asdict(column) for column in self.columns]

    def encode(self, frame: pd.DataFrame, clients: np.ndarray | None = None) -> np.ndarray:
        """Return inputs, float32 [n, d], of a table's rows; see :meth:`InputColumn.encode`."""
        return np.concatenate([column.encode(frame[column.name], clients) for column in self.columns], axis=1)


def as_texts(column: pd.Series) -> pd.Series:
    """Return values as texts; missing ones as they are."""
    return column.astype(object).where(column.isna(), column.astype(str))


def _scale_of(values: pd.Series) -> Scale | None:
    """Return mean and deviation (population) of numbers; None where there are none."""
    if not len(values):
        return None
    deviation = float(values.std(ddof=0))
    return float(values.mean()), deviation if deviation > 0 else 1.0
