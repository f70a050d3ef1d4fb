"""What a sweep gives: the choice of the best point, tables, pictures; and the scores by which it chooses."""

import csv
from pathlib import Path

import numpy as np
import pytest

from rayfl.experiments.cells import Job
from rayfl.methods import FedAvg
from rayfl.record.history import read_lines
from rayfl.record.result import Result
from rayfl.tune.outcome import (
    PointResult,
    best_of,
    draw,
    points_table,
    result_of,
    write_hparams,
    write_points,
)
from rayfl.tune.schedule import begin, read_schedule
from rayfl.tune.scores import RoundScores, validation_score
from rayfl.tune.space import Point
from tests.conftest import small


def result(
    values: dict[str, object], scores: list[float | None], test: float, completed: int = 9
) -> PointResult:
    label = ", ".join(f"{k}={v}" for k, v in values.items())
    tests = [test + 0.01 * k for k in range(len(scores))]
    return PointResult(Point(label, values, {}, 9), list(range(len(scores))), scores, tests, completed, [])


def test_best_is_by_validation_among_those_that_came_farthest():
    good, better_on_test, stopped = (
        result({"mu": 0.1}, [0.5, 0.7], 0.3),
        result({"mu": 1.0}, [0.5, 0.6], 0.9),
        result({"mu": 2.0}, [0.9, 0.9], 0.9, completed=3),
    )
    unscored = result({"mu": 3.0}, [0.9, None], 0.9)
    assert best_of([better_on_test, good, stopped, unscored], "max") is good
    assert best_of([better_on_test, good, stopped, unscored], "min") is better_on_test
    assert best_of([stopped, result({"mu": 4.0}, [0.99, 0.99], 0.9, completed=2)], "max") is stopped
    assert best_of([unscored], "max") is None


def test_points_in_a_table_and_a_file(tmp_path):
    results = [result({"mu": 0.1, "net": "a"}, [0.5, 0.7], 0.3), result({"mu": 1.0, "net": "a"}, [0.2], 0.25)]
    table = points_table("t", results, "accuracy", results[0])
    cells = [list(column.cells) for column in table.columns]
    assert [c[0] for c in cells] == ["0.1", "a", "2", "9", "60.00 ± 14.14", "30.50 ± 0.71 *"]
    write_points(results, tmp_path / "points.csv")
    rows = list(csv.DictReader((tmp_path / "points.csv").open()))
    assert (rows[0]["mu"], rows[0]["net"], float(rows[0]["validation"])) == ("0.1", "a", pytest.approx(0.6))
    assert float(rows[0]["test_std"]) == pytest.approx(0.01 / 2**0.5)
    assert rows[1]["test_std"] == ""


def lines_of(results: list[PointResult]) -> list[dict[str, list[float]]]:
    """Per panel of the picture: the legend -> the numbers on the x axis."""
    figure = draw(results, "accuracy")
    assert figure is not None
    found = []
    for ax in figure.axes:
        panel = {bars.get_label(): list(bars.lines[0].get_xdata()) for bars in ax.containers}
        found.append(panel or {"": sorted(ax.lines[0].get_xdata())})
    return found


def test_pictures_have_a_line_for_what_the_points_have_in_common():
    curves = [
        result({"method": method, "alpha": alpha}, [None, None], 0.5)
        for method in ("FedAvg", "FedBN")
        for alpha in (1.0, 0.1)
    ]
    assert lines_of(curves) == [{"FedAvg": [0.1, 1.0], "FedBN": [0.1, 1.0]}]
    each = [result({"lam": lam, "tau": 1}, [0.5], 0.5) for lam in (0.1, 1.0)]
    each += [result({"lam": 1.0, "tau": tau}, [0.5], 0.5) for tau in (2, 3)]
    assert lines_of(each) == [{"tau=1": [0.1, 1.0]}, {"lam=1": [1, 2, 3]}]
    drawn = [result({"lam": 0.1 * k, "mu": 0.2 + k}, [0.5], 0.5) for k in range(1, 4)]
    assert [len(panel[""]) for panel in lines_of(drawn)] == [3, 3]
    early = [*curves, result({"method": "FedAvg", "alpha": 0.5}, [None, None], 0.5, completed=1)]
    assert lines_of(early) == lines_of(curves)
    assert draw([result({"method": "FedAvg"}, [0.5], 0.5)], "accuracy") is None


def test_tensorboard_has_a_table_of_hyperparameters(tmp_path):
    write_hparams([result({"mu": 0.1, "net": ["a"]}, [0.5], 0.3)], tmp_path)
    assert list(tmp_path.rglob("events.out.tfevents*"))


@pytest.mark.parametrize("protocol", ["best_val+pooled", "fedios", "dcpfl+last_2"])
def test_scores_are_those_of_the_rounds_that_the_protocol_chooses(tmp_path, protocol):
    small(tmp_path / "run", method=FedAvg(), protocol=protocol).run()
    run = Result.load(tmp_path / "run")
    scores = RoundScores(tmp_path / "run", run.protocol, "accuracy")
    each = [scores.score(record) for record in read_lines(tmp_path / "run" / "metrics.jsonl")]
    chosen = run.summary["headline"]["rounds"]
    assert validation_score(run, "accuracy") == pytest.approx(np.mean([each[r] for r in chosen]))
    if protocol.startswith("best_val"):
        assert each[chosen[0]] == max(each)
    for metric in ("loss", "worst_decile"):
        value = validation_score(run, metric)
        assert value is not None
        assert 0 <= value < (4 if metric == "loss" else 1)


def test_a_point_whose_trial_was_changed_ends_with_its_last_values(tmp_path: Path):
    folder = tmp_path / "seed-0"
    small(folder, rounds=1).run()
    assert begin(folder, "000", {"training.lr": 0.1}, copied=False) == {"training.lr": 0.1}
    assert begin(folder, "000", {"training.lr": 0.2}, copied=False) == {"training.lr": 0.1}, "started again"
    assert begin(folder, "000", {"training.lr": 0.2}, copied=True) == {"training.lr": 0.2}
    assert begin(folder, "000", {"training.lr": 0.2}, copied=True) == {"training.lr": 0.2}, "was paused"
    assert [(s["round"], s["values"]["training.lr"]) for s in read_schedule(folder)] == [(1, 0.1), (1, 0.2)]
    point = Point("lr=0.1", {"training.lr": 0.1}, {"training.lr": 0.1}, 1)
    found = result_of(point, [Job("lr=0.1", "base", 0, 1, folder, {})], "accuracy")
    assert found.point.values == found.point.settings == {"training.lr": 0.2}
    assert (found.completed, found.seeds) == (1, [0])
