"""Mean ranks of rows over the columns of a table, and by how much they must differ (Demšar, JMLR 7, 2006)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element, SubElement, tostring

import numpy as np
from markupsafe import Markup

from rayfl.report.page import RIGHT, WIDTH, Chart, ticks
from rayfl.report.significance import LEVEL
from rayfl.system.text import one_line

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
    height = _STEP * (len(ranks) + 2)
    alt = "; ".join(f"{one_line(row)} {rank:.2f}" for row, rank in ranks.items())
    look = {"class": "chart", "viewBox": f"0 0 {WIDTH} {height}", "role": "img"}
    root = Element("svg", look | {"aria-label": f"{title}: {alt}"})

    def place(rank: float) -> float:
        return _NAMES + (WIDTH - RIGHT - _NAMES) * (rank - 1) / (len(ranks) - 1)

    def write(text: str, x: float, y: float, anchor: str) -> None:
        SubElement(root, "text", {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor}).text = text

    for value in ticks(1, len(ranks), whole=True):
        x = f"{place(value):.1f}"
        SubElement(root, "line", {"class": "grid", "x1": x, "x2": x, "y1": "0", "y2": f"{height - _STEP}"})
        write(f"{value:g}", place(value), height - 4, "middle")
    for k, (row, rank) in enumerate(ranks.items()):
        y = _STEP * (k + 0.7)
        low, high = max(rank - width / 2, 1), min(rank + width / 2, len(ranks))
        write(one_line(row)[:26], _NAMES - 10, y + 4, "end")
        points = f"{place(low):.1f},{y:.1f} {place(high):.1f},{y:.1f}"
        SubElement(root, "polyline", {"class": "line colour0", "points": points})
        at = {"cx": f"{place(rank):.1f}", "cy": f"{y:.1f}", "r": "4"}
        dot = SubElement(root, "circle", {"class": "dot colour0", **at})
        SubElement(dot, "title").text = f"{one_line(row)}: {rank:.2f}"
    return Chart(title, Markup(tostring(root, encoding="unicode")))
