"""Tests of differences over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rayfl.data.task import ACCURACY, Figure
from rayfl.system.text import counted

FEWEST = 3
"""Least number of shared seeds for a test of two rows."""
REFERENCE = "FedAvg"
"""The default row that others are tested against."""
LEVEL = 0.05
"""Corrected p below which a difference counts."""

BySeed = Mapping[Any, float]
"""The figure of each seed."""
RowScores = Mapping[str, BySeed]
"""Figures of rows that may be compared with each other."""


@dataclass(frozen=True)
class Difference:
    """A row against the reference row, over the seeds that both have.

    Attributes:
        place: where they are compared, such as a column.
        reference: the reference row.
        row: the other row.
        seeds: the shared seeds.
        difference: mean of the row minus the reference's.
        interval: half the width of the 95 % interval of this mean, of paired seeds.
        p: of the paired t-test, after Holm's correction for all tests made together.
    """

    place: str
    reference: str
    row: str
    seeds: list[Any]
    difference: float
    interval: float
    p: float

    @property
    def significant(self) -> bool:
        """Whether it is significant."""
        return self.p < LEVEL


def p_of_pairs(first: npt.ArrayLike, second: npt.ArrayLike) -> np.ndarray:
    """Return the two-sided p of paired t-tests.

    It is 1 if all pairs have the same difference: this is not rare, because accuracies come in steps of one
    sample, and the spread is then unknown.

    Args:
        first: float [..., seeds].
        second: the same shape, for the same seeds.

    Returns:
        float64 [...].
    """
    from scipy.special import stdtr  # slow to import, and most tables have one seed

    differences = np.round(np.subtract(first, second), 9)  # without rounding errors of float64
    seeds = differences.shape[-1]
    alike = np.ptp(differences, axis=-1) == 0
    error = np.where(alike, 1.0, differences.std(axis=-1, ddof=1)) / seeds**0.5
    p = 2 * stdtr(seeds - 1, -np.abs(differences.mean(axis=-1)) / error)
    return np.where(alike, 1.0, p)


def holm(p: npt.ArrayLike) -> np.ndarray:
    """Return p values, float [..., tests], after Holm's correction for the tests of the last axis.

    See Scandinavian Journal of Statistics 6, 1979.
    """
    p = np.asarray(p, np.float64)
    order = np.argsort(p, axis=-1, kind="stable")
    stepped = np.take_along_axis(p, order, axis=-1) * np.arange(p.shape[-1], 0, -1)
    corrected = np.empty_like(p)
    np.put_along_axis(corrected, order, np.minimum(1.0, np.maximum.accumulate(stepped, axis=-1)), axis=-1)
    return corrected


def differences(places: Mapping[str, RowScores], references: Mapping[str, str]) -> list[Difference]:
    """Test in every place each row against the row of reference, where they share enough seeds.

    Args:
        places: what is compared.
        references: place -> its reference row; there is no test if it is missing or has no figure.
    """
    found = []
    for place, rows in places.items():
        reference = references.get(place, "")
        known = rows.get(reference, {})
        for row, values in rows.items():
            shared = sorted(known.keys() & values.keys())
            if row == reference or len(shared) < FEWEST:
                continue
            first, second = ([each[seed] for seed in shared] for each in (values, known))
            pairs, p = np.subtract(first, second), float(p_of_pairs(first, second))
            width = interval(float(pairs.std(ddof=1)), len(shared)) or 0.0
            found.append(Difference(place, reference, row, shared, float(pairs.mean()), width, p))
    corrected = holm([each.p for each in found])
    return [replace(each, p=float(p)) for each, p in zip(found, corrected)]


def describe_tests(places: Mapping[str, RowScores], found: Sequence[Difference], reference: str) -> list[str]:
    """Say what the tests were, and that there is none of some rows; nothing where none stands beside another.

    Args:
        places: what was compared.
        found: the tests.
        reference: name of the reference row.
    """
    counts = [sum(map(bool, rows.values())) for rows in places.values()]
    left = sum(count - 1 for count in counts if count) - len(found)
    text = []
    if found:
        tests = counted(len(found), "test")
        how = f"paired t-test over seeds, p < {LEVEL} after Holm's correction for {tests}"
        text.append(f"* differs from {reference} ({how}); the difference is ± half its 95 % interval.")
    if left:
        text.append(f"Not tested: figures without {FEWEST} seeds that {reference} has, too.")
    return text


def interval(std: float | None, seeds: int) -> float | None:
    """Return half the width of the 95 % interval of a mean over seeds; None: no deviation is known."""
    from scipy.special import stdtrit

    return None if std is None else std * float(stdtrit(seeds - 1, 1 - LEVEL / 2)) / seeds**0.5


def describe_intervals(seeds: Iterable[int]) -> list[str]:
    """Say how wide 95 % intervals are, by the numbers of seeds of the means that are shown."""
    widths = [f"{interval(1.0, count):.2f} with {count} seeds" for count in sorted(set(seeds) - {1})]
    return [f"The 95 % interval of a mean is its ± times {', '.join(widths)}."] if widths else []


def ranks(values: Mapping[str, float | None], kind: Figure = ACCURACY) -> dict[str, str]:
    """Return which keys have the "best" and the "second" value.

    Values are compared as shown. Equal values share a rank. There are no ranks if all
    values are equal or only one is known.
    """
    shown = {key: float(kind.text(value)) for key, value in values.items() if value is not None}
    levels = sorted(set(shown.values()), reverse=kind.higher)
    if len(levels) < 2:
        return {}
    names = dict(zip(levels, ("best", "second")))
    return {key: names[value] for key, value in shown.items() if value in names}
