"""Whether a difference over seeds is more than chance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rayfl.system.text import counted

FEWEST = 3
"""Seeds that two rows must share for a test."""
REFERENCE = "FedAvg"
"""The row that others are tested against where nothing else is said."""
LEVEL = 0.05
"""Corrected p below which a difference counts."""

BySeed = Mapping[Any, float]
"""The figure of each seed."""
Scores = Mapping[str, BySeed]
"""Figures of rows that may be compared with each other."""


@dataclass(frozen=True)
class Difference:
    """A row against the row of reference, over the seeds that both have.

    Attributes:
        place: where they are compared, such as a column.
        reference: the row of reference.
        row: the other one.
        seeds: those that both have.
        difference: mean of the row minus the reference's.
        p: of the paired t-test, after Holm's correction for all tests made together.
    """

    place: str
    reference: str
    row: str
    seeds: list[Any]
    difference: float
    p: float

    @property
    def significant(self) -> bool:
        """Whether it is more than chance."""
        return self.p < LEVEL


def p_of_pairs(first: npt.ArrayLike, second: npt.ArrayLike) -> np.ndarray:
    """Return the two-sided p of paired t-tests.

    It is 1 where all pairs have one difference: accuracies come in steps of a sample, so that this is no rare
    chance, and nothing is known of their spread.

    Args:
        first: float [..., seeds].
        second: likewise, for the same seeds.

    Returns:
        float64 [...].
    """
    from scipy.special import stdtr  # takes a while, and most tables have one seed

    differences = np.round(np.subtract(first, second), 9)  # without what float64 adds
    seeds = differences.shape[-1]
    alike = np.ptp(differences, axis=-1) == 0
    error = np.where(alike, 1.0, differences.std(axis=-1, ddof=1)) / seeds**0.5
    p = 2 * stdtr(seeds - 1, -np.abs(differences.mean(axis=-1)) / error)
    return np.where(alike, 1.0, p)


def holm(p: npt.ArrayLike) -> np.ndarray:
    """Return p values, float [..., tests], after Holm's correction for the tests of the last axis.

    It is that of Scandinavian Journal of Statistics 6, 1979.
    """
    p = np.asarray(p, np.float64)
    order = np.argsort(p, axis=-1, kind="stable")
    stepped = np.take_along_axis(p, order, axis=-1) * np.arange(p.shape[-1], 0, -1)
    corrected = np.empty_like(p)
    np.put_along_axis(corrected, order, np.minimum(1.0, np.maximum.accumulate(stepped, axis=-1)), axis=-1)
    return corrected


def differences(places: Mapping[str, Scores], references: Mapping[str, str]) -> list[Difference]:
    """Test in every place each row against the row of reference, where they share enough seeds.

    Args:
        places: what is compared.
        references: place -> its row of reference; without one, or where it has no figure, there is no test.
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
            mean = float(np.mean(np.subtract(first, second)))
            found.append(Difference(place, reference, row, shared, mean, float(p_of_pairs(first, second))))
    corrected = holm([each.p for each in found])
    return [replace(each, p=float(p)) for each, p in zip(found, corrected)]


def said(places: Mapping[str, Scores], found: Sequence[Difference], reference: str) -> list[str]:
    """Say what the tests were, and that there is none of some rows; nothing where none stands beside another.

    Args:
        places: what was compared.
        found: the tests.
        reference: what the row of reference is called.
    """
    counts = [sum(map(bool, rows.values())) for rows in places.values()]
    left = sum(count - 1 for count in counts if count) - len(found)
    text = []
    if found:
        tests = counted(len(found), "test")
        how = f"paired t-test over seeds, p < {LEVEL} after Holm's correction for {tests}"
        text.append(f"* differs from {reference} ({how}).")
    if left:
        text.append(f"Not tested: figures without {FEWEST} seeds that {reference} has, too.")
    return text


def interval(std: float | None, seeds: int) -> float | None:
    """Return what is ± beside a mean over seeds for its 95 % interval; None where there is no deviation."""
    from scipy.special import stdtrit

    return None if std is None else std * float(stdtrit(seeds - 1, 1 - LEVEL / 2)) / seeds**0.5


def intervals_said(seeds: Iterable[int]) -> list[str]:
    """Say how wide 95 % intervals are, by the numbers of seeds of the means that are shown."""
    widths = [f"{interval(1.0, count):.2f} with {count} seeds" for count in sorted(set(seeds) - {1})]
    return [f"The 95 % interval of a mean is its ± times {', '.join(widths)}."] if widths else []


def ranks(values: Mapping[str, float | None]) -> dict[str, str]:
    """Return which keys have the "best" and the "second" value.

    Values count as they are shown, in two decimals. Equal values share a rank. There is none where all
    values are equal, or only one is known.
    """
    shown = {key: round(value, 2) for key, value in values.items() if value is not None}
    levels = sorted(set(shown.values()), reverse=True)
    if len(levels) < 2:
        return {}
    names = dict(zip(levels, ("best", "second")))
    return {key: names[value] for key, value in shown.items() if value in names}
