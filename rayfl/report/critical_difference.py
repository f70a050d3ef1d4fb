"""Mean ranks of rows over the columns of a table, and by how much they must differ (Demšar, JMLR 7, 2006)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from rayfl.report.page import RIGHT, WIDTH, Chart, ticks
from rayfl.report.parallel import svg_chart
from rayfl.report.significance import LEVEL

FEWEST_COLUMNS = 5
"""Columns below which the tests say nothing."""
_NAMES, _STEP = 170, 18  # width of names, and height of a row in the drawing


def mean_ranks(columns: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean rank of each row that has a score in every column, the best first.

    Args:
        columns: row -> score, of each column. Higher ones are better; equal ones share their ranks.
    """
    from scipy.stats import rankdata

    rows = [row for row in columns[0] if all(row in column for column in columns)]
    scores = np.array([[column[row] for row in rows] for column in columns])
    found = rankdata(-scores, axis=1).mean(axis=0)
    return {rows[k]: float(found[k]) for k in np.argsort(found, kind="stable")}


def critical_difference(rows: int, columns: int) -> float:
    """Return by how much two mean ranks must differ: Nemenyi's test."""
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(1 - LEVEL, rows, math.inf)) / math.sqrt(2)
    return q * math.sqrt(rows * (rows + 1) / (6 * columns))


def ranks_chart(columns: Sequence[Mapping[str, float]]) -> Chart | None:
    """Return a picture of mean ranks, see :func:`mean_ranks`; None for too few columns or rows."""
    from scipy.stats import friedmanchisquare

    if len(columns) < FEWEST_COLUMNS or len(ranks := mean_ranks(columns)) < 3:
        return None
    p = float(friedmanchisquare(*([column[row] for column in columns] for row in ranks)).pvalue)
    width = critical_difference(len(ranks), len(columns))
    title = (
        f"Mean ranks over {len(columns)} columns; Friedman's test of all rows: p = {p:.2g}. Rows whose "
        f"lines do not overlap differ by more than {width:.2f}, the critical difference of Nemenyi's test "
        f"(p < {LEVEL})"
    )
    return svg_chart(
        "ranks.svg",
        title,
        alt=f"{title}: {'; '.join(f'{row} {rank:.2f}' for row, rank in ranks.items())}",
        values=ticks(1, len(ranks), whole=True),
        place=lambda rank: _NAMES + (WIDTH - RIGHT - _NAMES) * (rank - 1) / (len(ranks) - 1),
        height=_STEP * (len(ranks) + 2),
        step=_STEP,
        names=_NAMES,
        ranks=ranks,
        difference=width,
    )
