"""Tests over seeds: paired, corrected, and left out where there are too few seeds."""

import pytest
from scipy.stats import t, ttest_rel

from rayfl.report.significance import describe_tests, differences, holm, interval, p_of_pairs, ranks


def test_the_p_of_pairs_by_hand():
    """Differences 1, 2, 3: mean 2, deviation 1, t = 2 sqrt(3); with 2 degrees p = 1 - t / sqrt(t^2 + 2)."""
    assert p_of_pairs([2.0, 4.0, 6.0], [1.0, 2.0, 3.0]) == pytest.approx(1 - (12 / 14) ** 0.5)
    assert p_of_pairs([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]) == 1.0
    assert p_of_pairs([1.1, 2.1, 3.1], [1.0, 2.0, 3.0]) == 1.0, "what float64 adds is no deviation"
    values = [0.3, 0.5, 0.1, 0.7], [0.2, 0.1, 0.4, 0.3]
    assert p_of_pairs(*values) == pytest.approx(ttest_rel(*values).pvalue)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([[0.6, 0.5], [0.01, 0.3]]).tolist() == [[1.0, 1.0], [0.02, 0.3]]
    assert holm([]).tolist() == []


def test_intervals_of_95_percent():
    assert interval(2.0, 3) == pytest.approx(2 * t.ppf(0.975, 2) / 3**0.5)
    assert interval(None, 1) is None


def test_rows_are_tested_against_the_reference_whatever_is_best():
    column = {
        "a": {0: 80.0, 1: 81.0, 2: 82.0},
        "b": {0: 70.0, 1: 71.1, 2: 71.9, 3: 99.0},
        "c": {0: 79.0, 5: 80.0},
        "d": {},
    }
    places = {"x": column, "y": {"a": {0: 1.0, 1: 2.0, 2: 3.0}, "b": {2: 2.0, 1: 1.5, 0: 1.0}}, "z": column}
    found = differences(places, {"x": "b", "y": "b", "z": "none"})
    assert [(d.place, d.reference, d.row, d.seeds) for d in found] == [
        ("x", "b", "a", [0, 1, 2]),
        ("y", "b", "a", [0, 1, 2]),
    ]
    assert found[0].difference == pytest.approx(10.0)
    alone = p_of_pairs([80.0, 81.0, 82.0], [70.0, 71.1, 71.9])
    assert found[0].p == pytest.approx(2 * alone), "two tests"
    assert [d.significant for d in found] == [True, False]
    star, left = describe_tests(places, found, "b")
    assert "paired t-test over seeds, p < 0.05 after Holm's correction for 2 tests" in star
    assert left.startswith("Not tested: ")


def test_too_few_seeds_are_told_of():
    places = {"x": {"a": {0: 1.0, 1: 2.0}, "b": {0: 1.0, 1: 3.0}}}
    assert differences(places, {"x": "a"}) == []
    (left,) = describe_tests(places, [], "a")
    assert left.startswith("Not tested: ")
    assert describe_tests({"x": {"a": {0: 1.0}}}, [], "a") == [], "there is nothing to compare"


def test_ranks():
    assert ranks({"a": 1.0, "b": 3.001, "c": 2.0, "d": 3.004, "e": None}) == {
        "b": "best",
        "d": "best",
        "c": "second",
    }
    assert ranks({"a": 1.0, "b": None}) == ranks({"a": 1.0, "b": 1.001}) == {}
