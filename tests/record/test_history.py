"""Records read back: by hand, three clients, of which one has no samples of its own for testing."""

import numpy as np
import pytest

from rayfl.record.history import NEVER, History, Population, Scores, label_matrix, round_totals

PARTITION = {
    "domain_names": ["ink", "paper"],
    "clients": [
        {"train": 10, "val": 2, "test": 4, "domain": 1, "labels": {"train": [7, 3]}},
        {"train": 20, "val": 3, "test": 5, "domain": None, "labels": {"train": [0, 20]}},
        {"train": 30, "val": 4, "test": 0, "domain": 0, "labels": {"train": [15, 15]}},
    ],
}
KEY = ("after_aggregation", "personal", "test")


def record(round, cohort, dropped=(), **more):
    n = len(cohort)
    made = {"round": round, "cohort": cohort, "dropped": [*dropped], "samples": [10] * n, "loss": [2.0] * n}
    return made | {"up": {"weights": [8] * n}, "down": {"weights": [9] * n, "more": [1] * n}} | more


def evaluation(**score):
    return {"evaluation": {KEY[0]: {KEY[1]: {KEY[2]: score}}}}


def test_clients_listed_and_as_runs_of_equal_ones():
    listed = Population.from_partition(PARTITION)
    assert listed.domains == ("paper", None, "ink")
    assert {split: counts.tolist() for split, counts in listed.samples.items()} == {
        "train": [10, 20, 30],
        "val": [2, 3, 4],
        "test": [4, 5, 0],
    }
    runs = {
        "train": [(10, 1), (20, 2)],
        "val": [(2, 3)],
        "test": [(4, 2), (0, 1)],
        "domain": [(1, 2), (None, 1)],
    }
    found = Population.from_partition(PARTITION | {"clients": runs, "common_test": 6})
    assert (len(found), found.domains) == (3, ("paper", "paper", None))
    assert {split: counts.tolist() for split, counts in found.samples.items()} == {
        "train": [10, 20, 20],
        "val": [2, 2, 2],
        "test": [4, 4, 0],
        "common": [6, 6, 6],
    }
    assert len(Population.without_clients()) == 0


def test_labels_are_a_matrix_where_all_clients_have_them():
    np.testing.assert_array_equal(label_matrix(PARTITION), [[7, 3], [0, 20], [15, 15]])
    assert label_matrix({"clients": [*PARTITION["clients"], {"train": 1}]}) is None
    assert label_matrix({"clients": []}) is None


def test_updates_that_were_dropped_count_for_nobody():
    """Client 1 is used in both rounds, client 0 in the second, client 2 in none."""
    records = [
        record(0, [0, 1], [0]),
        record(1, [0, 1, 2], [2], **evaluation(score=[1, 2, None], loss=None)),
    ]
    history = History.build(Population.from_partition(PARTITION), records)
    assert history.times.tolist() == [1, 2, 0]
    assert history.first.tolist() == [1, 0, NEVER]
    assert {round: used.tolist() for round, used in history.used.items()} == {0: [1], 1: [0, 1]}
    assert history.untrained == {1: {}}


def test_scores_of_all_clients_and_of_some():
    """A column that names its clients leaves the others open; one null stands for all."""
    records = [
        record(0, [0], **evaluation(score=[1, 5, None], loss=None)),
        record(1, [0]),
        record(
            2,
            [0],
            not_finite=["loss.0=nan"],
            **evaluation(clients=[2, 0], score=[3, 4], loss=[0.5, 1.5], f1=[1, 0]),
        ),
    ]
    history = History.build(Population.from_partition(PARTITION), records)
    assert list(history.scores) == [KEY]
    scores, nan = history.scores[KEY], np.nan
    assert scores.rounds.tolist() == [0, 2]
    np.testing.assert_array_equal(scores.score, [[1, 5, nan], [4, nan, 3]])
    np.testing.assert_array_equal(scores.loss, [[nan] * 3, [1.5, nan, 0.5]])
    np.testing.assert_array_equal(scores.measures["f1"], [[nan] * 3, [0, nan, 1]])
    np.testing.assert_array_equal(scores.figure, [[1 / 4, 1, nan], [1, nan, nan]])  # client 2 has no samples
    assert history.not_finite == 1


def test_scores_that_do_not_count_are_open():
    made = Scores(
        np.array([3, 4]), np.ones((2, 2)), np.zeros((2, 2)), np.array([2, 2]), {"f1": np.ones((2, 2))}
    )
    found = made.where_counted(np.array([[True, False], [False, True]]))
    assert found.rounds.tolist() == [3, 4]
    for values, one in ((found.score, 1), (found.loss, 0), (found.measures["f1"], 1)):
        np.testing.assert_array_equal(values, [[one, np.nan], [np.nan, one]])


def test_views_come_in_a_fixed_order():
    """The personal one first, then the global one, then the others by name; only what has test data."""
    views = ("online", "global", "personal", "offline")
    splits = {view: {"test": {"score": [1] * 3, "loss": None}} for view in views}
    points = {"b": splits, "a": {"global": splits["global"], "late": {"val": splits["global"]["test"]}}}
    history = History.build(Population.from_partition(PARTITION), [record(0, [0], evaluation=points)])
    expected = [("a", "global"), *(("b", view) for view in ("personal", "global", "offline", "online"))]
    assert history.views() == expected


@pytest.mark.parametrize(
    ("loss", "expected"),
    [([1.0, 2.0], 1.75), ([None, 2.0], 2.0), ([float("inf"), 4.0], 4.0), ([None, None], None)],
)
def test_totals_of_a_round(loss, expected):
    """Losses are weighed by samples, 10 and 30; traffic before the round counts, too."""
    made = record(3, [0, 1], [1], samples=[10, 30], loss=loss)
    made["before_round"] = {"up": {"statistics": [100, 200]}, "down": {}}
    found = {"round": 3, "cohort": 2, "dropped": 1, "loss": expected, "up": 316, "down": 20}
    assert round_totals(made) == found
