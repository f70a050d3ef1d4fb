"""Whether a difference over seeds is more than chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

FEWEST = 3
"""Seeds that two rows must share for a test."""
LEVEL = 0.05
"""Corrected p below which a difference counts."""
TEST = "paired t-test over seeds"

BySeed = Mapping[Any, float]
"""The figure of each seed."""
Scores = Mapping[str, BySeed]
"""Figures of rows that may be compared with each other."""


@dataclass(frozen=True)
class Difference:
    """The row with the best mean against another row, over the seeds that both have.

    Attributes:
        place: where they are compared, such as a column.
        best: the row with the best mean.
        row: the other one.
        seeds: those that both have.
        difference: mean of the best minus the other's.
        p: of the paired t-test, after Holm's correction for all tests made together.
    """

    place: str
    best: str
    row: str
    seeds: list[Any]
    difference: float
    p: float

    @property
    def significant(self) -> bool:
        """Whether it is more than chance."""
        return self.p < LEVEL


def p_of_pairs(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the two-sided p of a paired t-test; 1 for equal values, 0 for one difference in all pairs."""
    from scipy.stats import ttest_rel  # takes a while, and most tables have one seed

    differences = np.round(np.subtract(first, second), 9)  # without what float64 adds
    if np.ptp(differences) == 0:
        return 0.0 if differences.any() else 1.0
    return float(ttest_rel(differences, np.zeros_like(differences)).pvalue)


def holm(p: Sequence[float]) -> list[float]:
    """Return p values after Holm's correction (Scandinavian Journal of Statistics 6, 1979)."""
    order = np.argsort(p, kind="stable")
    stepped = np.asarray(p)[order] * np.arange(len(p), 0, -1)
    corrected = np.empty(len(p))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(stepped))
    return corrected.tolist()


def differences(places: Mapping[str, Scores]) -> list[Difference]:
    """Test in every place the row with the best mean against each row that shares enough seeds with it."""
    found = []
    for place, rows in places.items():
        known = {row: values for row, values in rows.items() if values}
        if len(known) < 2:
            continue
        best = max(known, key=lambda row: float(np.mean(list(known[row].values()))))
        for row in known:
            shared = sorted(known[best].keys() & known[row].keys())
            if row == best or len(shared) < FEWEST:
                continue
            first, second = ([known[name][seed] for seed in shared] for name in (best, row))
            mean = float(np.mean(np.subtract(first, second)))
            found.append(Difference(place, best, row, shared, mean, p_of_pairs(first, second)))
    corrected = holm([each.p for each in found])
    return [Difference(d.place, d.best, d.row, d.seeds, d.difference, p) for d, p in zip(found, corrected)]


def said(places: Mapping[str, Scores], found: Sequence[Difference], where: str) -> list[str]:
    """Say what the tests were, or why there were none; nothing where no row stands beside another.

    Args:
        places: what was compared.
        found: the tests.
        where: what a place is called, such as "column".
    """
    rows = [[len(values) for values in rows.values() if values] for rows in places.values()]
    possible = sum(len(counts) - 1 for counts in rows if len(counts) > 1)
    if not possible:
        return []
    if not found:
        return [f"No test of differences: it takes at least {FEWEST} seeds that two rows share."]
    tests = f"{len(found)} test{'s' if len(found) > 1 else ''}"
    text = [
        f"* differs from the best of the {where} ({TEST}, p < {LEVEL} after Holm's correction for {tests})."
    ]
    if len(found) < possible:
        text.append(
            f"Not tested: {possible - len(found)} that share fewer than {FEWEST} seeds with the best."
        )
    return text


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
