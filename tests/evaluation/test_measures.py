"""Metrics besides accuracy and loss: their values by hand, what is refused, and where they are recorded."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from torch import Tensor

from rayfl import Federation, Inline, Result, UserError, resumed
from rayfl.callbacks.loggers import scalars
from rayfl.commands.figure import main as figure
from rayfl.commands.report import report_runs
from rayfl.data import Dirichlet, Pathological, Synthetic
from rayfl.errors import BadCode, BadValue, Conflict, Missing, Unknown
from rayfl.evaluation import FediOS, Protocol
from rayfl.evaluation.measures import measures
from rayfl.methods import FedProto
from rayfl.report.summary import sentences
from tests.support.datasets import of_classes
from tests.support.federations import INLINE_AND_RAY, bytes_of_run, records_of, same_bytes, small
from tests.support.refusals import refused

pytest.importorskip("torchmetrics")

BY_HAND = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0], [1.0, 0.0, 0.5], [0.0, 2.0, 1.0]])
LABELS = torch.tensor([0, 1, 1, 0])
ALL = ["f1", "auroc", "calibration_error", "tests.support.metrics.brier"]


def value(name: str, scores: Tensor = BY_HAND, labels: Tensor = LABELS, logits: bool = True) -> Any:
    (measure,) = measures([name], of_classes(scores.shape[1]))
    return measure.value(scores, labels, logits)


# ---- values


def test_f1_by_hand() -> None:
    """Predicted 0, 1, 0, 1 of 0, 1, 1, 0: both classes have one true positive, one false of each kind."""
    assert value("f1") == pytest.approx(0.5)
    assert value("f1", labels=torch.tensor([0, 1, 0, 0])) == pytest.approx((4 / 5 + 2 / 3) / 2)
    assert value("f1", labels=torch.tensor([0, 1, 2, 1])) == pytest.approx((2 / 3 + 1 + 0) / 3)
    assert value("f1", logits=False) == pytest.approx(0.5)


def test_auroc_by_hand() -> None:
    """Of the pairs of a sample of the class and one of another, the share with the higher probability first.

    Probabilities of class 0 are 0.67, 0.04, 0.51, 0.09, so of 4 pairs 3 are in order; of class 1 they are
    0.24, 0.84, 0.19, 0.67 with 2 of 4 in order. Class 2 does not occur, and does not count.
    """
    assert value("auroc") == pytest.approx((3 / 4 + 2 / 4) / 2)
    assert value("auroc", labels=torch.zeros(4, dtype=torch.int64)) is None
    assert value("auroc", logits=False) is None


def test_calibration_error_by_hand() -> None:
    """Probabilities 0.5 and 0.75 of the predicted class, each right once in two samples."""
    scores = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.75, 0.25], [0.75, 0.25]]).log()
    labels = torch.tensor([0, 1, 0, 1])
    assert value("calibration_error", scores, labels) == pytest.approx((0.0 + 0.25) / 2, abs=1e-6)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_scores_that_are_no_numbers_have_no_metric(name: str, bad: float) -> None:
    """A model that has diverged has no area under a curve of 1/2. F1 goes by the largest score."""
    found = value(name, torch.where(BY_HAND == 3, bad, BY_HAND))
    assert found is None if name != "f1" or bad != bad else found == pytest.approx(0.5)


def test_torchmetrics_by_import_path() -> None:
    """Functions and classes get the number of classes; kappa is (p - e) / (1 - e) with p = e = 1/2 here."""
    path = "torchmetrics.functional.classification.multiclass_accuracy"
    assert value(path) == pytest.approx(0.5)
    kappa = "torchmetrics.classification.MulticlassCohenKappa"
    assert value(kappa) == pytest.approx(0.0)
    (measure,) = measures([kappa], of_classes(3))
    right = torch.tensor([0, 1, 0, 1])
    assert [measure.value(BY_HAND, right), measure.value(BY_HAND, LABELS)] == pytest.approx([1.0, 0.0])


def test_own_functions_spoil_nothing_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = BY_HAND.clone()
    assert value("tests.support.metrics.scaled", scores) == 0.5
    assert torch.equal(scores, BY_HAND)
    assert value("tests.support.metrics.infinite") is None
    monkeypatch.setattr("rayfl.evaluation.measures.LARGEST_VALUE", 0.5)
    assert value("tests.support.metrics.scaled") == 0.5  # the largest of all is still a number


# ---- refused


@pytest.mark.parametrize(
    ("name", "kind", "word"),
    [
        ("f2", Unknown, ""),
        ("no_such_module.f", Unknown, ""),
        ("tests.support.metrics.nothing", Unknown, ""),
        ("tests.support.metrics.CONSTANT", BadCode, ""),
        ("tests.support.nets.Net", BadCode, ""),
        ("os.system", BadValue, ""),
        (3, BadValue, ""),
        ("tests.support.metrics.raises", BadCode, "ZeroDivisionError"),
        ("tests.support.metrics.leaves", BadCode, "SystemExit"),
        ("tests.support.metrics.vector", BadCode, "a number"),
        ("tests.support.metrics.text", BadCode, "a number"),
        ("tests.support.metrics.remembers", BadCode, "not the same twice"),
        ("torchmetrics.functional.f1_score", BadCode, "TypeError"),
    ],
)
def test_bad_metrics_are_refused_before_anything_starts(
    tmp_path: Path, name: Any, kind: type[UserError], word: str
) -> None:
    with refused(kind, f"metric {name}" if word else "metrics") as caught:
        small(tmp_path / "run", metrics=[name]).run()
    assert word in str(caught.value)
    assert not word or "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_the_trial_has_the_labels_of_the_clients(tmp_path: Path) -> None:
    """What cannot do with one class is refused where a client has only one, and there alone."""
    name = "tests.support.metrics.of_several_classes"
    one_class = Synthetic(train=400, test=200, partition=Pathological(classes_per_client=1))
    with refused(BadCode, "metric tests.support.metrics.of_several_classes"):
        small(tmp_path / "run", data=one_class, clients=10, metrics=[name]).run()
    two = Synthetic(train=400, test=200, partition=Pathological(classes_per_client=2))
    federation = small(tmp_path / "run", data=two, clients=10, metrics=[name])
    federation.check(federation.federated_data())


def test_the_start_names_what_counts_classes_that_a_client_lacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With two classes of ten, what counts all is 0.2 for perfect scores: eight count as 0."""

    def check(name: str, classes: int) -> None:
        data = Synthetic(train=400, test=200, partition=Pathological(classes_per_client=classes))
        federation = small(tmp_path / "run", data=data, clients=10, metrics=[name])
        federation.check(federation.federated_data())

    of_torchmetrics = "torchmetrics.functional.classification.multiclass_"
    check(f"{of_torchmetrics}auroc", 10)
    check(f"{of_torchmetrics}accuracy", 2)
    assert "counts classes" not in caplog.text
    check("tests.support.metrics.of_all_classes", 2)
    assert "get 0.2 for it" in caplog.text
    with refused(Conflict, f"metric {of_torchmetrics}auroc"):
        check(f"{of_torchmetrics}auroc", 2)


def test_torchmetrics_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torchmetrics", None)
    with refused(Missing, "metrics"):
        measures(["f1"], of_classes(10))
    assert measures(["tests.support.metrics.brier"], of_classes(10))


# ---- in runs


def measured(output: Path, **changes: Any) -> Federation:
    return small(output, **({"metrics": ALL, "rounds": 3, "checkpoint_every": 1} | changes))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return measured(tmp_path_factory.mktemp("measured") / "run").run()


def stripped(folder: Path, names: list[str]) -> Any:
    """Return a run's records without these metrics, which all scores have."""
    found = records_of(folder)
    for record in found:
        for view in record["evaluation"]["after_aggregation"].values():
            for score in view.values():
                assert set(score) == {"score", "loss", *names}
                assert {len(score.pop(name)) for name in names} == {12}
    return found


def test_metrics_stand_beside_loss_and_change_nothing_else(run: Result, tmp_path: Path) -> None:
    small(tmp_path / "plain", rounds=3).run()
    assert stripped(run.folder, ALL) == records_of(tmp_path / "plain")
    assert '"measures"' not in (tmp_path / "plain" / "summary.json").read_text()
    for folder, metrics in (("loop", []), ("stacked", ["f1"])):
        stack = Inline(execution="stacked")
        small(tmp_path / folder, rounds=1, metrics=metrics, engine=stack).run()
    assert stripped(tmp_path / "stacked", ["f1"]) == records_of(tmp_path / "loop")


def test_metrics_are_in_tables_and_logged(run: Result) -> None:
    table = run.clients
    assert list(table.columns[-5:]) == ["loss", *sorted(ALL)]
    last = table[(table["round"] == 2) & (table["part"] == "test")]
    means, logged = (
        run.rounds.iloc[-1],
        scalars(records_of(run.folder)[-1], run.history.population, Protocol()),
    )
    for name in ALL:
        assert means[f"{name}/test/after_aggregation/global"] == pytest.approx(last[name].mean())
    assert logged["f1/test/after_aggregation/global/mean"] == pytest.approx(
        last[last["view"] == "global"]["f1"].mean()
    )
    assert Result.load(run.folder).clients.equals(table)
    assert list(pd.read_parquet(run.folder / "clients.parquet").columns) == list(table.columns)


def test_undefined_values_are_null_and_in_no_mean(tmp_path: Path) -> None:
    """Clients of one class have no AUROC; the mean is over the others, and nothing is 'not finite'."""
    data = Synthetic(train=900, test=240, partition=Dirichlet(alpha=0.05))
    found = small(tmp_path / "run", data=data, rounds=1, metrics=["auroc"]).run()
    (record,) = records_of(tmp_path / "run")
    score = record["evaluation"]["after_aggregation"]["global"]["test"]
    known = [x for x in score["auroc"] if x is not None]
    assert 0 < len(known) < sum(x is not None for x in score["score"])
    assert "not_finite" not in record
    mean = found.rounds.iloc[0]["auroc/test/after_aggregation/global"]
    assert mean == pytest.approx(sum(known) / len(known))


def test_views_that_are_no_logits_have_f1_alone(tmp_path: Path) -> None:
    small(tmp_path / "run", method=FedProto(), rounds=1, metrics=["f1", "auroc"]).run()
    score = records_of(tmp_path / "run")[0]["evaluation"]["after_aggregation"]["personal"]["test"]
    assert set(score["auroc"]) == {None}
    assert any(x is not None for x in score["f1"])


def test_metrics_after_training_are_kept(tmp_path: Path) -> None:
    """Of clients that were not sampled the latest ones stay, also over a resume."""
    measured(tmp_path / "whole", protocol=FediOS(), rounds=2).run()
    measured(tmp_path / "cut", protocol=FediOS(), rounds=1).run()
    with pytest.raises(UserError, match="metrics"):
        resumed(tmp_path / "cut", {"rounds": 2, "metrics": ["f1"]}).run()
    resumed(tmp_path / "cut", {"rounds": 2}).run()
    assert bytes_of_run(tmp_path / "cut") == bytes_of_run(tmp_path / "whole")
    score = records_of(tmp_path / "cut")[-1]["evaluation"]["after_training"]["personal"]["test"]
    assert [x is None for x in score["f1"]] == [x is None for x in score["score"]]


@pytest.mark.usefixtures("kept_actors")
def test_the_same_bytes_on_actors(tmp_path: Path) -> None:
    same_bytes(tmp_path, *INLINE_AND_RAY, rounds=1, metrics=["tests.support.metrics.brier"])


def test_a_run_of_before_goes_on(tmp_path: Path) -> None:
    """Without ``metrics`` in its configuration."""
    small(tmp_path / "run", rounds=1, checkpoint_every=1).run()
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert config.pop("metrics") == []
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(config))
    assert resumed(tmp_path / "run", {"rounds": 2}).run().complete


# ---- reports and pictures


def test_reports_and_pictures_show_a_metric(
    run: Result, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report_runs([str(run.folder)], measure="f1")
    shown = capsys.readouterr().out
    assert "Test f1" in shown
    assert f"{run.rounds.iloc[-1]['f1/test/after_aggregation/global']:.4f}" in shown
    known = r"--measure kappa: no run has recorded .*auroc, calibration_error, f1"
    with pytest.raises(UserError, match=known):
        report_runs([str(run.folder)], measure="kappa")
    save = str(tmp_path / "rounds.png")
    assert figure(["rounds", str(run.folder), "--quantity", "auroc", "--save", save]) == 0
    assert (tmp_path / "rounds.png").stat().st_size > 1000
    assert figure(["rounds", str(run.folder), "--quantity", "kappa", "--save", save]) == 2
    assert "figure, loss, auroc" in capsys.readouterr().err


def test_metrics_in_the_summary(run: Result) -> None:
    """The means over clients of the last evaluation, and of the last five, recomputed from the records."""
    summary = json.loads((run.folder / "summary.json").read_text())
    (entry,) = (v for v in summary["views"] if (v["point"], v["view"]) == ("after_aggregation", "global"))
    each, samples = [], run.history.population.samples["test"]
    for record in records_of(run.folder):
        f1 = record["evaluation"]["after_aggregation"]["global"]["test"]["f1"]
        each.append([(x, n) for x, n in zip(f1, samples, strict=True) if x is not None and n])
    means = [np.mean([x for x, _ in found]) for found in each]
    pooled = [sum(x * n for x, n in found) / sum(n for _, n in found) for found in each]
    assert list(entry["last"]["measures"]) == sorted(ALL)
    assert entry["last"]["measures"]["f1"]["mean"] == pytest.approx(means[-1])
    assert entry["last"]["measures"]["f1"]["pooled"] == pytest.approx(pooled[-1])
    assert entry["last_k"]["measures"]["f1"]["mean"] == pytest.approx(np.mean(means[-5:]))
    headline = summary["headline"]
    assert headline["measures"].keys() == set(ALL)
    said = [line for line in sentences(summary) if line.startswith("Further metrics")]
    assert f", f1 {headline['measures']['f1']:.4f}, " in said[0]
