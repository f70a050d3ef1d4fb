"""Mean ranks and the critical difference: by hand, and beside the numbers that Demšar prints."""

import re

import pytest

from rayfl.report.critical_difference import critical_difference, mean_ranks, ranks_chart


def test_the_critical_difference_is_that_of_the_paper() -> None:
    """Demšar (JMLR 7, 2006), section 3.2.2: q = 2.569 for four classifiers, 14 data sets, CD = 1.25."""
    assert critical_difference(4, 14) == pytest.approx(2.569 * (4 * 5 / (6 * 14)) ** 0.5, abs=1e-3)


def test_mean_ranks_by_hand() -> None:
    columns = [{"a": 3.0, "b": 2.0, "c": 1.0, "d": 9.0}, {"a": 1.0, "b": 1.0, "c": 5.0}]
    assert mean_ranks(columns) == {"a": 1.75, "c": 2.0, "b": 2.25}, "equal ones share; d is not everywhere"


def test_the_picture_needs_five_columns_and_three_rows() -> None:
    columns = [{"a": 3.0, "b": 2.0, "c": 1.0}] * 5
    assert ranks_chart(columns[:4]) is None
    assert ranks_chart([{"a": 1.0, "b": 2.0}] * 5) is None
    chart = ranks_chart(columns)
    assert chart is not None
    assert "p = 0.0067" in chart.title, "chi-squared of 10 with two degrees: exp(-5)"
    assert re.findall(r"<title>(.*?)</title>", chart.svg) == ["a: 1.00", "b: 2.00", "c: 3.00"]
    assert re.findall(r'cx="(.*?)"', chart.svg) == ["170.0", "395.0", "620.0"]
