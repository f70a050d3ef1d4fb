"""A federation gives the same bytes inline and on any number of actors, wherever its clients are placed."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from rayfl import Inline, Ray, evaluation
from rayfl.data import Dirichlet, Synthetic
from rayfl.methods import METHODS
from rayfl.nets import CNNB, LeNet
from rayfl.training import Training
from tests.methods.cases import net_of
from tests.support.federations import INLINE_AND_RAY, bytes_of_run, records_of, same_bytes, small

LENIENT = Training(lr=0.05, batch_size=20, bn_single="eval")
pytestmark = pytest.mark.usefixtures("kept_actors")


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_method_inline_and_on_two_actors(tmp_path: Path, name: str) -> None:
    same_bytes(tmp_path, *INLINE_AND_RAY, method=METHODS[name](), net=net_of(name, LeNet()), rounds=3)


def test_one_and_three_actors(tmp_path: Path) -> None:
    engines = Inline(), Ray(actors=1), Ray(actors=3)
    same_bytes(tmp_path, *engines, method=METHODS["FedCO2"](), net=CNNB(), rounds=2)


@pytest.mark.parametrize("execution", ["loop", "stacked"])
def test_unequal_work(tmp_path: Path, execution: Any) -> None:
    """The start's line names what keeps its epochs."""
    training = Training(lr=0.05, batch_size=20, epochs=3, work_range=(0, 1))
    how: dict[str, Any] = {"execution": execution, "stack": 3}
    engines = Inline(**how), Ray(actors=1, **how), Ray(actors=2, **how)
    method = METHODS["FedRep"](head_epochs=1)
    folder, *_ = same_bytes(tmp_path, *engines, method=method, training=training, rounds=2)
    said = "local work: 0 to 1 times training.epochs, drawn for each client and round; unchanged: method.head"
    assert said in (folder / "run.log").read_text()
    for round, record in enumerate(records_of(folder)):
        epochs = [1 + training.work_of(client, round, 0, 3) for client in record["cohort"]]
        batches = [math.ceil(n / 20) for n in record["samples"]]
        assert record["steps"] == [n * k for n, k in zip(epochs, batches, strict=True)]
        assert len({*epochs}) > 1


@pytest.mark.parametrize(
    "name", ["FedCO2", *(pytest.param(name, marks=pytest.mark.slow) for name in ("SCAFFOLD", "DCPFL"))]
)
def test_clients_without_training_samples(tmp_path: Path, name: str) -> None:
    """They take no step and have no score, and a round in which nobody has any changes nothing."""
    data = Synthetic(train=120, test=60, partition=Dirichlet(alpha=0.05, min_samples=0))
    federated = data.federate(100, 0)
    empty = {i for i in range(100) if not len(federated.clients[i].train)}
    settings = {"data": data, "clients": 100, "participation": 0.01, "rounds": 8, "training": LENIENT}
    settings |= {"method": METHODS[name](), "net": net_of(name, LeNet())}
    folder, _ = same_bytes(tmp_path, *INLINE_AND_RAY, **settings)
    records = records_of(folder)
    cohorts = [set(small(tmp_path, **settings).cohort(round)) for round in range(8)]
    assert [set(record["cohort"]) for record in records] == [cohort - empty for cohort in cohorts]
    idle = [round for round in range(1, 8) if cohorts[round] <= empty]
    assert idle
    for round in idle:
        assert records[round]["evaluation"] == records[round - 1]["evaluation"]
    for view in records[-1]["evaluation"]["after_aggregation"].values():
        assert {i for i, correct in enumerate(view["test"]["score"]) if correct is None} >= empty
    summary = json.loads((folder / "summary.json").read_text())
    untested = {i for i in range(100) if not len(federated.clients[i].test)}
    assert summary["headline"]["left_out"] == len(empty | untested)


def test_another_seed_gives_other_bytes(tmp_path: Path) -> None:
    for seed in (0, 1):
        small(tmp_path / str(seed), seed=seed, rounds=1).run()
    assert bytes_of_run(tmp_path / "0")["metrics.jsonl"] != bytes_of_run(tmp_path / "1")["metrics.jsonl"]


def test_after_training_scores_of_unsampled_clients_are_kept(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"protocol": evaluation.FediOS(), "participation": 0.2, "rounds": 3}
    stacked: dict[str, Any] = {"execution": "stacked", "stack": 2}
    engines = Inline(**stacked), Ray(actors=2, **stacked)
    folder, _ = same_bytes(tmp_path, *engines, method=METHODS["Ditto"](), **settings)
    assert "after_training" in (folder / "metrics.jsonl").read_text()
