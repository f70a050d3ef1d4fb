"""Loggers: what they write, each round once, over a resume and over their own failures."""

import dataclasses
import json
import logging
import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from rayfl import resumed
from rayfl.callbacks import loggers
from rayfl.callbacks.callback import Callback, Run
from rayfl.callbacks.loggers import LOGGERS, Logger, MLflow, TensorBoard, WandB
from rayfl.errors import Missing
from rayfl.evaluation import Protocol
from rayfl.running.result import Result
from rayfl.settings.imports import is_installed
from tests.support.federations import bytes_of_run, small
from tests.support.records import MadeUpRun, partition, record, write_run
from tests.support.refusals import refused

ACCURACY = "accuracy/test/after_aggregation/personal"


@pytest.fixture
def run(tmp_path: Path) -> MadeUpRun:
    """Four rounds, of which every second one is evaluated."""
    return MadeUpRun(write_run(tmp_path / "run", rounds=4, eval_every=2), rounds=4)


def resume_twice(make: Any, run: MadeUpRun) -> None:
    """Log three rounds, go back to the third as after a crash, then log it again, and the fourth."""
    whole = list(run.records())
    for start, end in ((0, 3), (2, 4)):
        logger = make()
        lines = [json.dumps(line) + "\n" for line in whole]
        (run.path / "metrics.jsonl").write_text("".join(lines[:start]))
        assert not logger.start(run, start)
        for number in range(start, end):
            (run.path / "metrics.jsonl").write_text("".join(lines[: number + 1]))
            assert not logger.after_round(run, whole[number])
        logger.end()


# ---- numbers


def test_distributions_by_hand(run: MadeUpRun) -> None:
    """Client i has 20 + i test samples; those without a score or without samples do not count."""
    made = record(0, partition(6))
    made["loss"] = [0.5, None, 2.0]
    score = made["evaluation"]["after_aggregation"]["personal"]["test"]
    score["score"] = [10, None, 11, None, 24, 5]
    score["f1"] = [0.5, None, 0.25, None, None, 1.0]
    found = loggers.distributions(made, run.population, run.protocol)
    assert found["train/loss"].tolist() == [0.5, 2.0]
    np.testing.assert_allclose(found[ACCURACY], [10 / 20, 11 / 22, 24 / 24, 5 / 25])
    assert found["f1/test/after_aggregation/personal"].tolist() == [0.5, 0.25, 1.0]


def test_attackers_are_logged_where_the_protocol_counts_them(run: MadeUpRun) -> None:
    """Client 1 attacks; the last two have no score."""
    made = record(0, partition(6))
    score = made["evaluation"]["after_aggregation"]["personal"]["test"]
    score["score"], score["f1"] = [10, 21, 11, 23, None, None], [0.5, 1.0, 0.25, 0.25, None, None]
    run.population = dataclasses.replace(run.population, attackers=(1,))
    for clients, figures, f1 in (("honest", [0.5, 0.5, 1], 1 / 3), ("all", [0.5, 1, 0.5, 1], 0.5)):
        counted = run.population, Protocol(clients=clients)
        np.testing.assert_allclose(loggers.distributions(made, *counted)[ACCURACY], figures)
        assert loggers.scalars(made, *counted)[f"{ACCURACY}/mean"] == pytest.approx(np.mean(figures))
        assert loggers.scalars(made, *counted)["f1/test/after_aggregation/personal/mean"] == pytest.approx(f1)


def test_figures_and_losses_that_are_no_numbers_are_left_out(run: MadeUpRun) -> None:
    """Read again, those that were not finite are null."""
    made = record(0, partition(6))
    for nothing in (None, float("nan"), float("inf")):
        made["loss"] = [1.0, nothing, *[1.0] * (len(made["cohort"]) - 2)]
        made["figures"] = {"one": nothing, "two": 3.0, "some": [1.0, nothing, 2.0], "none": [nothing]}
        found = loggers.scalars(made, run.population, run.protocol)
        ends = {"figures/some/mean": 1.5, "figures/some/min": 1.0, "figures/some/max": 2.0}
        assert {tag: found[tag] for tag in found if "figures" in tag} == {"figures/two": 3.0} | ends
        assert found["train/loss"] == 1.0


# ---- TensorBoard, MLflow, and Weights & Biases


def events_of(run: MadeUpRun) -> Any:
    """What TensorBoard reads of a run."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    return accumulator.EventAccumulator(
        str(run.path / "tensorboard"), {"scalars": 0, "histograms": 0}
    ).Reload()


def test_tensorboard_has_every_round_once(run: MadeUpRun) -> None:
    resume_twice(TensorBoard, run)
    found, expected = events_of(run), Result.load(run.path).rounds["test/after_aggregation/personal"].dropna()
    others = {"train/loss", "bytes/up", "bytes/down", "accuracy/val/after_aggregation/global/pooled"}
    assert set(found.Tags()["scalars"]) >= {f"{ACCURACY}/mean", *others}
    assert [event.step for event in found.Scalars("train/loss")] == [0, 1, 2, 3]
    values = {event.step: event.value for event in found.Scalars(f"{ACCURACY}/mean")}
    assert values == pytest.approx(dict(expected), rel=1e-6)
    histograms = [(event.step, event.histogram_value.num) for event in found.Histograms(ACCURACY)]
    assert histograms == [(step, 6) for step in expected.index]


def test_a_resume_writes_the_rounds_that_the_log_lacks(run: MadeUpRun) -> None:
    """As after a run that was killed, or went on without the logger for some rounds."""
    whole, first, second = list(run.records()), TensorBoard(), TensorBoard()
    first.start(run, 0)
    for made in whole[:2]:
        first.after_round(run, made)
    first.end()
    assert not second.start(run, 4)
    second.end()
    assert [event.step for event in events_of(run).Scalars("train/loss")] == [0, 1, 2, 3]


def test_mlflow_has_every_round_once(run: MadeUpRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a store of files."""
    mlflow = pytest.importorskip("mlflow", reason="MLflow is an extra: pip install 'rayfl[mlflow]'")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (run.path.parent / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "")  # so that it is as before in the end
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY")
    resume_twice(MLflow, run)
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"  # its thread draws from Python's generator
    client = mlflow.MlflowClient()
    (found,) = client.search_runs([client.get_experiment_by_name("rayfl").experiment_id])
    assert (found.info.status, found.info.run_name) == ("FINISHED", "run")
    assert found.data.params["data.partition.alpha"] == "0.3"
    history = client.get_metric_history(found.info.run_id, f"{ACCURACY}/mean")
    expected = Result.load(run.path).rounds["test/after_aggregation/personal"].dropna()
    assert [(point.step, point.value) for point in history] == list(expected.items())
    history = client.get_metric_history(found.info.run_id, "train/loss")
    assert [point.step for point in history] == [0, 1, 2, 3]


def test_wandb_has_every_round_once(run: MadeUpRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline."""
    wandb = pytest.importorskip("wandb", reason="Weights & Biases is an extra: pip install 'rayfl[wandb]'")
    settings = {"MODE": "offline", "DIR": str(run.path.parent), "ERROR_REPORTING": "false"}
    for name, value in settings.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    sent: list[tuple[str, int, Mapping[str, Any]]] = []
    log = wandb.Run.log

    def noted(self: Any, values: Mapping[str, Any], step: int) -> None:
        sent.append((self.id, step, values))
        log(self, values, step=step)

    monkeypatch.setattr(wandb.Run, "log", noted)
    resume_twice(WandB, run)
    assert [step for _, step, _ in sent] == [0, 1, 2, 3]
    for (_, _, values), made in zip(sent, run.records(), strict=True):
        assert values.items() >= loggers.scalars(made, run.population, run.protocol).items()
        assert sum(values["train/loss/clients"].histogram) == len(made["loss"])
    (name,) = {name for name, _, _ in sent}
    # Two folders; the second of one second has a number after the name.
    written = list((run.path.parent / "wandb").glob(f"offline-run-*-{name}*/run-{name}.wandb"))
    assert [file.stat().st_size > 0 for file in written] == [True, True]


# ---- failures


class Failing(Logger):
    """Cannot write."""

    name = "failing"

    def open(self, run: Run, round: int) -> int:
        return round

    def write(self, run: Run, record: Mapping[str, Any]) -> None:
        raise OSError("no \x1b such\ndisk")

    def close(self) -> None:
        raise OSError("not said")


def test_a_logger_that_fails_warns_once(tmp_path: Path, monkeypatch: Any, caplog: Any) -> None:
    """Also a real one, of a damaged file; and a run is the same with loggers and without."""
    caplog.set_level(logging.WARNING, "rayfl")
    monkeypatch.setitem(LOGGERS, "mlflow", Failing)
    monkeypatch.setattr("rayfl.callbacks.loggers.is_installed", lambda name: True)

    class Damages(Callback):
        def start(self, run: Run, round: int) -> bool:
            (run.path / "tensorboard").touch()
            return False

    federation = small(tmp_path / "run", rounds=2, loggers=["tensorboard", "mlflow"])
    assert federation.run([Damages()]).complete
    first, second = sorted(entry.message for entry in caplog.records)
    goes_on = "has failed, and the run goes on without it"
    assert first == rf"the logger failing {goes_on}: OSError: no \x1b such\ndisk"
    assert second.startswith(f"the logger tensorboard {goes_on}: FileExists")
    assert resumed(tmp_path / "run", {"rounds": 3, "loggers": []}).run().complete
    small(tmp_path / "plain", rounds=3).run()
    assert bytes_of_run(tmp_path / "run") == bytes_of_run(tmp_path / "plain")
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["loggers"] == []


def test_a_missing_package_is_named_before_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mlflow", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
        with refused(Missing, "loggers") as caught:
            small(tmp_path / "run", loggers=["tensorboard", name]).run()
        assert f"pip install 'rayfl[{name}]'" in str(caught.value)
    assert not (tmp_path / "run").exists()
    loggers.check_loggers(["tensorboard"])


def test_a_folder_is_no_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "offline_runs").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert find_spec("offline_runs") is not None
    assert not is_installed("offline_runs")
    assert is_installed("tensorboard")
