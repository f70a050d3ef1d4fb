"""The command line of sweeps, with trials that run one after the other in this process."""

from pathlib import Path

import pytest

pytest.importorskip("ray")

from rayfl.experiments import Table
from rayfl.record.result import Result
from rayfl.tune.command import main
from rayfl.tune.sweep import Plan
from rayfl.tune.trial import federation_of
from tests.tune.made_up import write


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """What the command line has asked Ray Tune for."""
    asked: list[Plan] = []

    def run(plan: Plan, *others: object) -> bool:
        asked.append(plan)
        for job in plan.jobs.values():
            federation_of(job, {}).run()
        return True

    monkeypatch.setattr("rayfl.tune.sweep.run", run)
    return asked


@pytest.mark.parametrize(("metric", "best"), [("loss", 0.2), ("accuracy", 0.2), ("loss\nmode: max", 1e-7)])
def test_the_best_point_is_that_of_the_mode(
    tmp_path: Path, plans: list[Plan], metric: str, best: float
) -> None:
    space = write(tmp_path, metric=f"metric: {metric}", search="search: {training.lr: [0.0000001, 0.2]}")
    assert main([space, "--output", str(tmp_path / "out"), "--rounds", "2", "--set", "data.noise=0.3"]) == 0
    (plan,) = plans
    assert plan.mode == ("min" if metric == "loss" else "max")
    losses = []
    for job in plan.jobs.values():
        run = Result.load(job.folder)
        losses.append(run.history.scores["after_aggregation", "personal", "val"].loss[-1].mean())
    assert losses[1] < losses[0] - 0.01
    assert Table.load(tmp_path / "out" / "best.yaml").base["training.lr"] == best
