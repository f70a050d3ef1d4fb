"""What a sweep gives: the choice of the best point, tables, pictures; and the scores by which it chooses."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rayfl import evaluation
from rayfl.evaluation.metrics import Validation, measure
from rayfl.jobs.cells import Job
from rayfl.jobs.table_file import Table
from rayfl.methods import FedAvg
from rayfl.record.history import Population, read_lines
from rayfl.running.result import Result
from rayfl.tune.outcome import (
    BestPoints,
    PointResult,
    best_of,
    points_table,
    result_of,
    write_all,
    write_best,
)
from rayfl.tune.space import Dimension, SearchPoint, Space
from rayfl.tune.trial import round_score, validation_score
from tests.support.federations import small
from tests.support.records import write_run

SPACE = Space(sweep="s", base={}, search=((Dimension("mu", "choice", (1,)),),))


def result(
    values: dict[str, object], scores: list[float | None], test: float, completed: int = 9
) -> PointResult:
    """A point of nine rounds, whose searched values are settings; the test accuracies rise by 0.01 a seed."""
    label = ", ".join(f"{k}={v}" for k, v in values.items())
    cell = {"table": "s", "row": "r", "column": "base", "changed": []}
    point = SearchPoint(label, values, {"cell": cell, "method": "Ditto"} | values, 9)
    tests = [test + 0.01 * k for k in range(len(scores))]
    return PointResult(point, list(range(len(scores))), scores, tests, completed)


def test_best_is_by_validation_among_those_that_came_farthest():
    good, better_on_test = result({"mu": 0.1}, [0.5, 0.7], 0.3), result({"mu": 1.0}, [0.5, 0.6], 0.9)
    stopped = result({"mu": 2.0}, [0.9, 0.9], 0.9, completed=3)
    unscored = result({"mu": 3.0}, [0.9, None], 0.9)
    assert best_of([better_on_test, good, stopped, unscored], "max") is good
    assert best_of([better_on_test, good, stopped, unscored], "min") is better_on_test
    assert best_of([stopped, result({"mu": 4.0}, [0.99, 0.99], 0.9, completed=2)], "max") is stopped
    assert best_of([unscored], "max") is None
    short = result({"rounds": 4}, [0.8], 0.5, completed=4)
    short = replace(short, point=replace(short.point, rounds=4))
    assert best_of([good, short], "max") is short, "it has all of its fewer rounds"


def starred(results: list[PointResult], best: BestPoints) -> list[str]:
    tests = list(points_table(SPACE, results, best).columns[-1].cells)
    return [r.point.label for r, test in zip(results, tests, strict=True) if str(test).endswith(" *")]


def test_no_point_is_best_across_settings_of_the_data(tmp_path):
    """The easier data have the higher scores; each setting of them has a best point of its own."""
    results = [
        result({"clients": clients, "lr": lr}, [score], 0.5)
        for clients, lr, score in ((5, 0.1, 0.8), (5, 1.0, 0.9), (100, 0.1, 0.3), (100, 1.0, 0.2))
    ]
    best = BestPoints.from_results(results, "max", ["clients"])
    assert starred(results, best) == ["clients=5, lr=1.0", "clients=100, lr=0.1"]
    caption = str(points_table(SPACE, results, best).caption)
    assert caption == "* best by validation for each setting of clients, on which all figures depend"
    (tmp_path / "best.yaml").touch()
    points, *written = write_all(SPACE, results, best, tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([points, *written])
    assert [path.name for path in written] == ["best-clients=5.yaml", "best-clients=100.yaml"]
    tables = [Table.load(path) for path in written]
    assert [table.name for table in tables] == ["s_best_clients=5", "s_best_clients=100"]
    assert [(t.base["clients"], t.base["lr"]) for t in tables] == [(5, 1.0), (100, 0.1)]
    assert "best of 2 points of the sweep s with clients=5 by validation" in written[0].read_text()


def test_all_of_several_ties_are_starred(tmp_path):
    """Also where float64 adds the same scores up to something else; the first is in the file."""
    scores = {0.1: [0.1, 0.2, 0.3], 0.5: [0.3, 0.2, 0.1], 1.0: [0.1, 0.1, 0.3], 2.0: [0.3, 0.2, 0.1]}
    results = [result({"mu": mu}, found, 0.5) for mu, found in scores.items()]
    results[3] = replace(results[3], completed=3)
    best = BestPoints.from_results(results, "max")
    assert starred(results, best) == ["mu=0.1", "mu=0.5"]
    assert best.caption() == "* best by validation; the first of equal ones is in its file"
    _, path = write_all(replace(SPACE, seeds=(0, 1, 2)), results, best, tmp_path)
    assert Table.load(path).base["mu"] == 0.1


def test_points_of_which_each_has_other_data_have_no_best(tmp_path):
    bundles = [result({"data": name}, [score], 0.5) for name, score in (("easy", 0.9), ("hard", 0.2))]
    best = BestPoints.from_results(bundles, "max", ["data"])
    assert (starred(bundles, best), best.points) == ([], [])
    assert str(best.caption()).startswith("no best point: the points differ in data, so")
    for none in (best, BestPoints.from_results([result({"mu": 1.0}, [None], 0.5)], "max")):
        (tmp_path / "best.yaml").touch()
        write_all(SPACE, bundles, none, tmp_path)
        names = [path.name for path in tmp_path.iterdir()]
        assert names == ["points.csv"], "a point that was best before is not any more"


def outcome(*folders: Path, rounds: int = 10) -> PointResult:
    jobs = [Job("a", "base", seed, rounds, folder, {}) for seed, folder in enumerate(folders)]
    return result_of(0, SearchPoint("a", {}, {}, rounds), jobs, "figure")


def test_a_point_has_come_as_far_as_its_slowest_seed(tmp_path):
    folders = [
        write_run(tmp_path / "fast", rounds=6, seed=0),
        write_run(tmp_path / "slow", rounds=6, seed=1, stop_after=4),
        tmp_path / "not begun",
    ]
    assert outcome(*folders[:1], rounds=6).completed == 6
    found = outcome(*folders[:2], rounds=6)
    assert (found.completed, found.seeds) == (4, [0, 1])
    assert outcome(*folders, rounds=6).completed == 0


def test_seeds_are_compared_after_as_many_rounds(tmp_path):
    """One that successive halving has stopped beside one that it has not: both as they were by then."""
    folders = [write_run(tmp_path / "whole"), write_run(tmp_path / "stopped", seed=1, stop_after=4)]
    folders += [write_run(tmp_path / "short", stop_after=4)]
    whole, stopped, short = map(outcome, folders)
    both = outcome(*folders[:2])
    assert both.scores == [*short.scores, *stopped.scores]
    assert both.tests == [*short.tests, *stopped.tests]
    assert short.scores < whole.scores


@pytest.mark.parametrize(
    "protocol",
    [
        evaluation.Default(choose="best_val", average="pooled"),
        evaluation.FediOS(),
        evaluation.DCPFL(choose="last_k", k=2),
    ],
    ids=str,
)
def test_scores_are_of_the_rounds_that_the_protocol_chooses(tmp_path, protocol):
    """Scores are those of the rounds that the protocol chooses."""
    small(tmp_path / "run", method=FedAvg(), protocol=protocol).run()
    run = Result.load(tmp_path / "run")
    validation = Validation(run.history.population, run.protocol)
    records = read_lines(tmp_path / "run" / "metrics.jsonl")
    each = [round_score(validation, record, "figure") for record in records]
    chosen = run.summary["headline"]["rounds"]
    assert validation_score(run, "figure") == pytest.approx(np.mean([each[r] for r in chosen]))
    if protocol.choose == "best_val":
        assert each[chosen[0]] == max(each)


@pytest.mark.parametrize(
    ("protocol", "accuracy", "loss"),
    [
        (evaluation.Default(average="pooled"), (0.9 + 0.2) / 2, (1 + 3) / 2),
        (evaluation.FDSE(), (0.9 * 300 + 0.2 * 100) / 400, (1 * 300 + 3 * 100) / 400),
    ],
)
def test_points_are_compared_by_the_average_that_chooses_rounds(protocol, accuracy, loss):
    """Not by that of the headline, which FDSE's protocol pools. Client 2 has no score."""
    clients = [
        {"train": train, "val": val, "test": 9, "domain": None}
        for train, val in ((300, 10), (100, 40), (50, 10))
    ]
    population = Population.from_partition({"clients": clients, "domain_names": []})
    scores = np.array([9, 8, np.nan]), np.array([1.0, 3.0, np.nan])
    metrics = ("figure", "loss", "worst_decile")
    found = [measure(*scores, population, "val", protocol, metric) for metric in metrics]
    assert found == pytest.approx([accuracy, loss, 0.2])
    nothing, diverged = np.full(3, np.nan), np.array([1.0, np.nan, np.nan])
    for correct, losses in ((nothing, nothing), (scores[0], diverged)):
        assert measure(correct, losses, population, "val", protocol, "loss") is None


def test_a_run_that_ends_without_a_finite_loss_has_none(tmp_path):
    """Client 0 has a loss that is not finite in the last round; the protocol averages two rounds."""
    folder = write_run(tmp_path / "run", protocol=evaluation.Default(choose="last_k", k=2))
    assert validation_score(Result.load(folder), "loss") is not None
    *lines, last = read_lines(folder / "metrics.jsonl")
    last["evaluation"]["after_aggregation"]["personal"]["val"]["loss"][0] = None
    text = "".join(json.dumps(line) + "\n" for line in [*lines, last])
    (folder / "metrics.jsonl").write_text(text)
    assert validation_score(Result.load(folder), "loss") is None
    assert validation_score(Result.load(folder), "figure") is not None


def test_accuracies_are_shown_in_per_cent_and_losses_as_they_are():
    results = [result({"mu": 0.1, "net": "a"}, [0.5, 0.7], 0.3), result({"mu": 1.0, "net": "a"}, [0.2], 0.25)]
    table = points_table(SPACE, results, BestPoints([], [(results, results[0])]))
    first = [next(iter(column.cells)) for column in table.columns]
    assert first == ["0.1", "a", "2", "9 of 9", "60.00 ± 14.14 *", "30.50 ± 0.71 *"]
    assert [row.style for row in table.rows] == ["bold", None]
    assert [column.justify for column in table.columns] == ["left", "left", *["right"] * 4]
    results = [result({"mu": 0.1}, [0.5, 0.7], 0.3), result({"mu": 1.0}, [0.5, None], 0.3)]
    results += [result({"mu": 2.0}, [0.25], 0.3, completed=4), result({"mu": [3]}, [0.25], 0.3)]
    table = points_table(replace(SPACE, metric="loss"), results, BestPoints())
    cells = [list(column.cells) for column in table.columns]
    assert cells[0] == ["0.1", "1", "2", "[3]"]
    assert cells[2] == ["9 of 9", "9 of 9", "4 of 9", "9 of 9"]
    assert cells[3] == ["0.6000 ± 0.1414", "n/a", "0.2500", "0.2500"]
    assert str(table.columns[3].header) == "validation loss"
    assert table.caption is None


FIGURES = ("validation", "validation_std", "test", "test_std")


def test_a_file_of_points_has_its_figures_under_their_names(tmp_path):
    """A seed without a score leaves its point without one, and one seed has no deviation."""
    whole = result({"kind": {"a": 1}, "mu": [0.1]}, [0.5, 0.7, 0.9], 0.25, completed=4)
    some, single = (result({"kind": "a", "mu": 1}, scores, 0.3) for scores in ([0.5, None], [0.2]))
    assert write_all(SPACE, [whole, some, single], BestPoints(), tmp_path) == [tmp_path / "points.csv"]
    row, unscored, alone = csv.DictReader((tmp_path / "points.csv").open())
    assert list(row) == ["kind", "mu", "seeds", "rounds", *FIGURES, "best"]
    assert (json.loads(row["kind"]), json.loads(row["mu"])) == ({"a": 1}, [0.1])
    assert (row["seeds"], row["rounds"], unscored["kind"]) == ("3", "4", "a")
    assert [float(row[name]) for name in FIGURES] == pytest.approx([0.7, 0.2, 0.26, 0.01])
    assert (unscored["validation"], unscored["validation_std"], alone["test_std"]) == ("", "", "")
    assert float(unscored["test"]) == pytest.approx(0.305)


def test_the_best_point_is_written_as_a_table_of_one_cell(tmp_path):
    values = {"method.mu": 0.5, "clients": 5, "training.lr": 0.1, "seed": 4}
    found, space = result(values, [0.5, 0.7], 0.3), replace(SPACE, seeds=(7, 8))
    write_best(space, found, "s_best", "2 points of the sweep s", tmp_path / "best.yaml")
    table = Table.load(tmp_path / "best.yaml")
    assert (table.name, table.title) == ("s_best", "Best of 2 points of the sweep s")
    assert list(table.seeds) == [7, 8]
    assert table.base == {"clients": 5, "training.lr": 0.1}
    settings = table.settings("Ditto", "base")
    assert settings.pop("cell")["row"] == "Ditto"
    assert settings == {"clients": 5, "training.lr": 0.1, "method": "Ditto", "method.mu": 0.5}
    notes = [line for line in (tmp_path / "best.yaml").read_text().splitlines() if line.startswith("#")]
    assert notes[0] == f"# {found.point.label}: best of 2 points of the sweep s by validation accuracy"
    assert notes[1] == "# validation accuracy 60.00 ± 14.14, test accuracy 30.50 ± 0.71"
    bare = replace(found, point=replace(found.point, settings={"cell": found.point.settings["cell"]}))
    write_best(replace(SPACE, metric="loss"), bare, "s_best", "1", tmp_path / "bare.yaml")
    assert Table.load(tmp_path / "bare.yaml").settings("FedBN", "base")["method"] == "FedBN"
    named = replace(found.point, settings=found.point.settings | {"method": "rayfl.methods.FedCO2"})
    write_best(space, replace(found, point=named), "s_best", "1", tmp_path / "named.yaml")
    assert [*Table.load(tmp_path / "named.yaml").rows] == ["Fed-CO2"]


def test_data_of_like_names_have_files_of_their_own(tmp_path):
    noises = (0.1, 0.1000001)
    results = [result({"data.noise": noise, "lr": lr}, [0.5], 0.5) for noise in noises for lr in (1, 2)]
    best = BestPoints.from_results(results, "max", ["data.noise"])
    _, *written = write_all(SPACE, results, best, tmp_path)
    assert len(set(written)) == 2
    assert [Table.load(path).base["data.noise"] for path in written] == [*noises]
