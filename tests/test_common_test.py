"""Clients that are also scored on one test set for all: its samples, its scores, and what is made of them."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from rich.console import Console

from rayfl import Inline, Ray, Result, Training, evaluation, load_models
from rayfl.data import TEST, Arrays, Dirichlet, DomainPerClient, FromFile, Pathological, Synthetic
from rayfl.errors import Conflict, Damaged
from rayfl.evaluation.finetune import Finetune
from rayfl.evaluation.metrics import summarise
from rayfl.methods import Ditto
from rayfl.record.history import History, Population
from rayfl.report.compare import Comparison, group_runs
from rayfl.report.summary import final_table, sentences
from tests.evaluation.test_metrics import line
from tests.support.federations import records_of, same_bytes, small
from tests.support.refusals import refused

SMALL: dict[str, Any] = {"train": 300, "test": 90, "shape": (1, 16, 16)}
DATA = Synthetic(**SMALL, partition=Dirichlet(alpha=1.0), val_fraction=0.2)
BOTH: dict[str, Any] = {"data": DATA, "rounds": 2, "checkpoint_every": 1, "common_test": True}
ALL: dict[str, Any] = BOTH | {"eval_points": "both", "unseen_clients": 2.0, "finetune": Finetune(epochs=1)}


def parts(folder: Path) -> dict[tuple[str, str, str], dict[str, Any]]:
    """(point, view, part) -> the columns of the last evaluation."""
    found = records_of(folder)[-1]["evaluation"].items()
    return {
        (p, v, part): score for p, views in found for v, by in views.items() for part, score in by.items()
    }


# ---- which samples


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({}, {}),
        ({"test_from": "training"}, {}),
        ({"domains": 3, "partition": DomainPerClient()}, {"clients": 3, "unseen": "domain1"}),
    ],
)
def test_it_is_the_test_part_of_the_data_set(tmp_path: Path, options: Any, settings: Any) -> None:
    """With ``training`` nobody has it, and without the option there is no such set."""
    data = Synthetic(**SMALL, **options)
    found = small(tmp_path, data=data, common_test=True, **settings).federated_data()
    assert found.common.tolist() == data.load().indices(TEST).tolist()
    assert np.isin(found.held.indices["test"], found.common).all() == ("test_from" not in options)
    assert found.counts("common").tolist() == [90] * len(found)
    assert (found.test_splits, found.describe()["common_test"]) == (("test", "common"), 90)
    without = small(tmp_path, data=data, **settings).federated_data()
    assert (without.test_splits, "common_test" in without.describe()) == (("test",), False)
    assert without.digest() == found.digest()


def test_it_is_no_data_that_clients_learn_from(tmp_path: Path) -> None:
    division = tmp_path / "division.json"
    clients = [{"train": [300, 1], "val": [], "test": [2]}, {"train": [3], "val": [4], "test": [5]}]
    division.write_text(json.dumps({"clients": clients}))
    for data in (
        Synthetic(**SMALL, test_from="pooled"),
        Synthetic(**SMALL, partition=Pathological(split="pooled", classes_per_client=5)),
        Synthetic(**SMALL, partition=FromFile(path=str(division))),  # 300 is the first sample of the test
        Arrays(x=np.zeros((40, 3), np.float32), y=np.arange(40) % 2, test_from="training", test_fraction=0.0),
    ):
        with refused(Conflict, "common_test"):
            small(tmp_path / "run", data=data, clients=2, common_test=True).run()
    assert not (tmp_path / "run").exists()


# ---- how they are scored


def test_every_client_and_view_is_scored_on_it(tmp_path: Path) -> None:
    training = Training(lr=0.05, batch_size=20, precision="float64")
    small(tmp_path, method=Ditto(), training=training, **BOTH).run()
    models, found = load_models(tmp_path), parts(tmp_path)
    dataset = models.data.dataset
    x, y = (torch.from_numpy(each[models.data.common]) for each in (dataset.inputs, dataset.labels))
    for one in models:
        for view, scores in models.scores(one.client, models.preprocess(x).double()).items():
            score = found["after_aggregation", view, "common"]
            assert score["score"][one.client] == int((scores.argmax(1) == y).sum())
            assert score["loss"][one.client] == pytest.approx(float(F.cross_entropy(scores, y)), rel=1e-12)


def test_it_changes_no_other_score(tmp_path: Path) -> None:
    small(tmp_path / "with", **ALL).run()
    small(tmp_path / "without", **(ALL | {"common_test": False})).run()
    found, other = parts(tmp_path / "with"), parts(tmp_path / "without")
    assert {key: score for key, score in found.items() if key[2] != "common"} == other
    assert {key[:2] for key in found if key[2] == "common"} == {key[:2] for key in other}
    for (point, view, part), score in found.items():
        if part == "common":  # also those without own test data
            scored = [i for i, correct in enumerate(score["score"]) if correct is not None]
            assert scored == ([10, 11] if point == "unseen" else [*range(10)]), (point, view)


@pytest.mark.usefixtures("kept_actors")
def test_the_same_bytes_on_actors_and_in_resumed_runs(tmp_path: Path) -> None:
    same_bytes(tmp_path, Inline(), Ray(actors=3), resumed_after=1, **ALL)


def test_some_clients_and_an_evaluation_now_and_then(tmp_path: Path) -> None:
    small(tmp_path, **BOTH, eval_clients=4.0, eval_every=2).run()
    assert ["evaluation" in record for record in records_of(tmp_path)] == [False, True]
    found = parts(tmp_path)
    own, common = (found["after_aggregation", "global", part] for part in ("test", "common"))
    assert own["clients"] == common["clients"]
    assert len(common["score"]) == 4
    told = (tmp_path / "run.log").read_text()
    assert "common test: 4 clients x 90 samples = 360 forward passes" in told
    assert "in each of 1 evaluation\n" in told


# ---- what is made of the scores


def people(test: list[int], train: tuple[int, int] = (100, 100)) -> Population:
    """Two clients of a domain each, which are also scored on 40 common samples."""
    clients = [{"train": train[i], "val": 10, "test": test[i], "domain": i} for i in range(2)]
    split = {"domain_names": ["ink", "print"], "clients": clients, "common_test": 40}
    return Population.from_partition(split)


def test_figures_by_hand() -> None:
    """Own accuracies 8/10 and 10/20, on the common set 10/40 and 30/40; in the round before 4/40 and 8/40."""
    population = people([10, 20], train=(100, 300))
    made = [line(0, [2, 2]), line(1, [8, 10])]
    for record, correct in zip(made, ([4, 8], [10, 30]), strict=True):
        part = {"score": correct, "loss": [1.0, 3.0], "f1": [0.5, None]}
        record["evaluation"]["after_aggregation"]["personal"]["common"] = part
    history = History.build(population, made)
    expected = {"mean_clients": 0.5, "pooled": 0.5, "weighted": 0.625}
    for average, value in expected.items():
        headline = summarise(history, evaluation.Default(average=average), 2)["headline"]  # type: ignore[arg-type]
        counts = {"clients": 2, "left_out": 0}
        assert headline["common"] == {"figure": pytest.approx(value), "std": None, **counts}
    assert headline["figure"] == pytest.approx((100 * 0.8 + 300 * 0.5) / 400)
    summary = summarise(history, evaluation.Default(choose="last_k", k=2), 2)
    found = summary["views"][0]["last_k"]["common"]
    common = summary["headline"]["common"]
    assert (common["figure"], common["std"]) == (pytest.approx(0.325), pytest.approx(0.175))
    assert found["domains"]["print"]["mean"] == pytest.approx(0.475)
    assert (found["rounds"], found["measures"]["f1"]["mean"]) == ([0, 1], 0.5)
    assert summary["views"][0]["each"]["common"]["mean"] == pytest.approx([0.15, 0.5])
    trained = summarise(history, evaluation.Default(trained_only=True), 2)["headline"]
    assert trained["common"]["figure"] == pytest.approx(0.25)  # client 0 alone


def test_what_is_reported_says_of_how_many_clients_it_is() -> None:
    """A client without test samples of its own is scored on the common ones."""
    record = line(0, [8, 0])
    views = record["evaluation"]["after_aggregation"]["personal"]
    views["common"] = {"score": [10, 30], "loss": [1.0, 3.0]}
    summary = summarise(History.build(people([10, 0]), [record]), evaluation.Default(), 1)
    (told,) = [each for each in sentences(summary) if "(G)" in each]
    assert "80.00 %, 1 client;" in told
    assert "50.00 %, 2 clients." in told
    assert any("left out of P: 1" in each for each in sentences(summary))


def test_reports_show_both_where_both_are_known(tmp_path: Path) -> None:
    runs = [small(tmp_path / str(known), **BOTH | {"common_test": known}).run() for known in (True, False)]
    both = runs[0].summary["headline"]
    texts = [f"{100 * value:.2f}" for value in (both["figure"], both["common"]["figure"])]
    (told,) = [each for each in sentences(runs[0].summary) if "(G)" in each]
    assert [text in told for text in texts] == [True, True]
    console = Console(file=io.StringIO(), width=200)
    for run, known in zip(runs, (True, False), strict=True):
        final_table(run.summary, console)
        assert ("(G)" in (run.folder / "report.html").read_text()) == known
        assert ("common" in (run.folder / "run.log").read_text()) == known
        assert ("common/after_aggregation/personal" in run.rounds) == known
        assert ("common" in set(run.clients["part"])) == known
        groups = group_runs([run])
        headers = " ".join(str(column.header) for column in Comparison(groups).table().columns)
        assert ("common\ntest (G)" in headers) == known
        assert ("common" in Comparison(groups).records()[0]) == known
    (group,) = group_runs(runs)  # which differ in what was measured alone
    assert Comparison([group]).records()[0]["common"] is None
    assert Comparison(group_runs(runs[:1])).records()[0]["common"] == pytest.approx(
        100 * both["common"]["figure"]
    )
    path = tmp_path / "True" / "partition.json"
    content = json.loads(path.read_text())
    for size in (0, 1):  # no set, or one with fewer samples than are recorded as correct
        path.write_text(json.dumps(content | {"common_test": size}))
        with refused(Damaged, "metrics.jsonl"):
            Result.load(tmp_path / "True")
