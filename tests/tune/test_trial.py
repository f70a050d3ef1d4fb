"""Trials: what Ray Tune is told of the rounds."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")

from rayfl.engine import Ray
from rayfl.errors import Conflict, Missing
from rayfl.methods import FedProx
from rayfl.tune import sweep
from rayfl.tune.space import SearchPoint, Space
from rayfl.tune.trial import SweepContext, run_trial
from tests.support.own_modules import SCALED, OwnModules
from tests.support.processes import rounds_of
from tests.support.refusals import refused
from tests.support.sweeps import write


class Broken(FedProx):
    """Has a mistake in its code."""

    def aggregate(self, *given: Any) -> Any:
        """Divide by nothing."""
        return 1 / 0


class Told:
    """Stands for Ray Tune: what it is told, and the checkpoint that it gives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reports: list[dict[str, Any]] = []
        self.round: int | None = None
        self.code: dict[str, str] = {}  # that of the sweep
        tune = SimpleNamespace(
            get_checkpoint=lambda: self.round and SimpleNamespace(as_directory=self.directory),
            report=self.report,
            Checkpoint=SimpleNamespace(from_directory=lambda place: int(Path(place, "round").read_text())),
        )
        monkeypatch.setattr("rayfl.tune.trial.tune", tune)
        monkeypatch.setattr(sys, "orig_argv", sys.orig_argv)

    def report(self, metrics: dict[str, Any], checkpoint: int | None = None) -> None:
        """Take in what is told."""
        self.reports.append(metrics)
        assert checkpoint in (None, metrics["round"])

    @contextmanager
    def directory(self) -> Iterator[str]:
        """Lay out the checkpoint."""
        Path(self.place, "round").write_text(str(self.round))
        yield self.place

    def run(self, folder: Path, mu: float = 0.0, **changes: str) -> SearchPoint:
        """Run a trial; return its point."""
        self.reports.clear()
        self.place = str(folder)
        space = Space.load(write(folder, **changes))
        config = {"search": 0, "method.mu": mu}
        run_trial(config | {"seed": 4}, SweepContext(space, folder, {}, ("a", "b"), self.code))
        return space.point_of(config) if mu >= 0 else SearchPoint("", {}, {}, 0)

    @property
    def rounds(self) -> list[int]:
        """The rounds that were told."""
        return [told["round"] for told in self.reports]


def test_what_a_trial_reports_when_it_runs_goes_on_or_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round once, also those that an earlier session has recorded; errors with the worst score."""
    told = Told(monkeypatch)
    job = told.run(tmp_path).trial_job(4, tmp_path)
    assert told.rounds == [1, 2, 3]
    assert "a b" in next(job.folder.glob("environment.json")).read_text()
    scores = [report["score"] for report in told.reports]
    told.run(tmp_path)
    assert [report["score"] for report in told.reports] == scores
    assert (told.rounds, rounds_of(job.folder)) == ([1, 2, 3], 3)
    told.run(tmp_path, -1e30)
    (failed,) = told.reports
    assert (failed["round"], failed["score"]) == (0, -1e30)
    assert "method.mu is -1" in failed["failed"]
    job.folder.with_name("seed-4.stopped").touch()
    told.run(tmp_path)
    assert told.rounds == [1, 2]


def test_a_trial_that_was_paused_goes_on_after_what_it_has_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under HyperBand every report has a checkpoint, which says after how many rounds it is."""
    told, told_round = Told(monkeypatch), 2
    hyperband, some = "scheduler: hyperband", "{rounds: 3, eval_every: 1, checkpoint_every: 100}"
    told.run(tmp_path, scheduler=hyperband, more=some)
    assert told.rounds == [1, 2, 3]
    told.round = told_round
    told.run(tmp_path, scheduler=hyperband, more=some)
    assert told.rounds == [3]


def test_an_error_of_the_users_code_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch)
    told.run(tmp_path, more="{method: tests.tune.test_trial.Broken}")
    assert told.rounds == [0]
    assert "raised ZeroDivisionError" in told.reports[-1]["failed"]


@pytest.mark.parametrize("name", ["rayfl", "mine"])
def test_a_trial_compares_its_code_with_the_sweeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_modules: OwnModules, name: str
) -> None:
    own_modules.load("mine", f"{SCALED}\nclass Mine(Mine):\n    mu: float = 0.0\n")
    told = Told(monkeypatch)
    told.code = {name: "another", "of another trial": "1", "processor": "abacus"}
    told.run(tmp_path, more="{method: mine.Mine}")
    assert told.rounds == [0]
    assert f"{name} is another one" in told.reports[-1]["failed"]


def test_a_trial_on_actors_stays_in_its_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process is in the cluster already, and its actors go into the trial's placement group."""
    seen: list[tuple[str | None, bool]] = []

    def start(engine: Ray, run: str, quiet: bool, in_group: bool) -> None:
        seen.append((engine.address, in_group))
        raise Missing("a cluster")

    monkeypatch.setattr(Ray, "start_in_background", start)
    told = Told(monkeypatch)
    told.run(tmp_path, more="{engine: Ray, engine.address: '192.0.2.1:6379'}")
    assert (seen, told.rounds) == ([(None, True)], [0])


def test_a_sweep_goes_on_with_other_code_only_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_modules: OwnModules
) -> None:
    """Its trials of other code, and what was chosen by their scores, are then gone."""
    text = f"{SCALED}\nclass Mine(Mine):\n    mu: float = 0.0\n"
    own_modules.load("mine", text)
    folder = Told(monkeypatch).run(tmp_path, more="{method: mine.Mine}").trial_job(4, tmp_path).folder
    space = Space.load(tmp_path / "space.yaml")
    space.save(tmp_path)
    left = [folder, folder.with_name("seed-4.stopped"), tmp_path / "searcher-0.jsonl"]
    for path in left[1:]:
        path.touch()
    monkeypatch.setattr(sweep, "_run_trials", lambda *given: None)
    sweep.run(space, tmp_path, resume=True)
    own_modules.load("mine", text.replace("1.0", "0.1"))
    with refused(Conflict, folder):
        sweep.run(space, tmp_path, resume=True)
    assert all(path.exists() for path in left)
    sweep.run(space, tmp_path, resume=True, code="changed")
    assert not any(path.exists() for path in left)
