"""Trials: what a copy takes over, and what Ray Tune is told of the rounds."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")

from rayfl import Ray, evaluation
from rayfl.jobs.cells import Job
from rayfl.methods import Ditto
from rayfl.record.checkpoint import Checkpoints
from rayfl.tune.schedule import begin, read_schedule
from rayfl.tune.scores import RoundScores
from rayfl.tune.space import Space
from rayfl.tune.trial import Order, Reporter, federation_of, run_trial, snapshot, take_over
from tests.support.federations import small
from tests.support.processes import rounds_of
from tests.support.sweeps import write


def test_a_copy_has_all_of_its_donor_and_nothing_of_its_own(tmp_path: Path) -> None:
    """Also where its own trial has come farther, with other clients."""
    donor, copy = tmp_path / "donor" / "seed-0", tmp_path / "copy" / "seed-0"
    for folder, rounds, seed in ((donor, 2, 0), (copy, 4, 1)):
        begin(folder, folder.parent.name, {"training.lr": 0.1 + seed}, copied=False)
        small(folder, method=Ditto(), clients=4, rounds=rounds, seed=seed, eval_every=0).run()
    with snapshot(donor, 2) as copied:
        take_over(copied, copy)
    assert not copied.exists()
    for name in ("metrics.jsonl", "engine.jsonl", "partition.json"):
        assert (copy / name).read_bytes() == (donor / name).read_bytes()
    found, damage = Checkpoints(copy / "checkpoints").newest()
    assert found == Checkpoints(donor / "checkpoints").after(2)
    assert not damage
    files = {"manifest-000002.json", found.server, *found.clients.values()}
    assert {path.name for path in (copy / "checkpoints").iterdir()} == files
    assert not (copy / "summary.json").exists()
    assert read_schedule(copy) == read_schedule(donor)
    assert rounds_of(copy) == 2


@pytest.mark.parametrize(("interval", "saved"), [(None, []), (2, [2])])
def test_every_round_but_the_last_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interval: int | None, saved: list[int]
) -> None:
    """The last one is when all is written; after every ``interval`` rounds there is something to copy."""
    told: list[tuple[Any, ...]] = []

    def report(metrics: dict[str, Any], checkpoint: Any = None) -> None:
        copied = None if checkpoint is None else sorted(path.name for path in Path(checkpoint.path).iterdir())
        told.append((metrics["round"], metrics["score"], copied))

    monkeypatch.setattr("rayfl.tune.trial.tune.report", report)
    folder = tmp_path / "seed-0"
    begin(folder, "000", {}, copied=False)
    federation = small(folder, method=Ditto(), clients=4, checkpoint_every=0)
    job = Job("a", "base", 0, 4, folder, {})
    federation.callbacks = [Reporter(job, RoundScores(folder, evaluation.Default(), "accuracy"), interval)]
    result = federation.run()
    means = result.rounds["val/after_aggregation/personal"].tolist()
    assert [(number, score) for number, score, _ in told] == [
        (k + 1, pytest.approx(means[k])) for k in range(3)
    ]
    assert [number for number, _, copied in told if copied] == saved
    assert all("manifest-000002.json" in copied for _, _, copied in told if copied)


def job_of(folder: Path, name: str = "trial", **changes: str) -> Job:
    """Return the first point of the tiny space as a trial."""
    point = Space.load(write(folder, **changes)).points()[0]
    return Job(point.label, "base", 4, point.rounds, folder / name / "seed-4", point.settings)


def test_the_federation_of_a_trial(tmp_path: Path) -> None:
    """Changed values win over the point's, and what the sweep decides over both."""
    job = job_of(tmp_path, more="{engine: Ray, engine.address: 'auto', quiet: false}")
    federation = federation_of(replace(job, settings=job.settings | {"seed": 9}), {"method.mu": 3.0})
    assert federation.method.mu == 3.0
    assert (federation.seed, federation.quiet, federation.output) == (4, True, str(job.folder))
    assert isinstance(federation.engine, Ray)
    assert (federation.engine.in_group, federation.engine.address) == (True, None)
    assert not federation.resumes
    job.folder.mkdir(parents=True)
    (job.folder / "config.yaml").touch()
    assert federation_of(job, {}).resumes


class Told:
    """Stands for Ray Tune: what it is told, and the checkpoint that it gives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reports: list[dict[str, Any]] = []
        self.copied: Path | None = None
        tune = SimpleNamespace(
            get_context=lambda: SimpleNamespace(get_trial_name=lambda: "000"),
            get_checkpoint=lambda: self.copied and SimpleNamespace(as_directory=self.directory),
            report=lambda metrics, checkpoint=None: self.reports.append(metrics),
            Checkpoint=SimpleNamespace(from_directory=lambda path: path),
        )
        monkeypatch.setattr("rayfl.tune.trial.tune", tune)
        monkeypatch.setattr(sys, "orig_argv", sys.orig_argv)

    @contextmanager
    def directory(self) -> Iterator[str]:
        """Lay out the checkpoint."""
        yield str(self.copied)

    def run(self, job: Job, values: dict[str, Any], **order: Any) -> list[Any]:
        """Run a trial; return the rounds that it reports, or why it has failed."""
        self.reports.clear()
        settings: dict[str, Any] = {"interval": None, "replays": False, "command": ("a", "b")}
        run_trial({"values": values}, Order({"000": job}, "accuracy", **(settings | order)))
        return [told.get("round", told.get("failed")) for told in self.reports]


def test_what_a_trial_reports_when_it_runs_goes_on_or_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round once; what an earlier session has done only to a scheduler that asks for it."""
    told, job = Told(monkeypatch), job_of(tmp_path)
    assert told.run(replace(job, rounds=3), {}) == [1, 2, 3]
    scores = [report["score"] for report in told.reports]
    assert "a b" in next(job.folder.glob("environment.json")).read_text()
    assert told.run(job, {}) == [3]
    assert told.reports[0]["score"] == scores[2]
    assert told.run(job, {}, replays=True) == [1, 2, 3, 3]
    assert [report["score"] for report in told.reports] == [*scores, scores[2]]
    assert rounds_of(job.folder) == 3
    (why,) = told.run(job_of(tmp_path, "other"), {"method.mu": -1.0})
    assert "method.mu is -1" in why


def test_a_copy_goes_on_with_values_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its donor's checkpoint; and a run that is over does not report its last round to be copied."""
    told, donor, copy = Told(monkeypatch), job_of(tmp_path, "donor"), job_of(tmp_path, "copy")
    assert told.run(donor, {"training.lr": 0.1}, interval=2) == [1, 2]
    with snapshot(donor.folder, 2) as told.copied:
        assert told.run(copy, {"training.lr": 0.2}, interval=2) == []
    lines = [(job.folder / "metrics.jsonl").read_text().splitlines() for job in (donor, copy)]
    assert lines[0][:2] == lines[1][:2]
    assert lines[0][2] != lines[1][2]
    stages = [(s["round"], s["values"]) for s in read_schedule(copy.folder)]
    assert stages == [(0, {"training.lr": 0.1}), (2, {"training.lr": 0.2})]
    assert Checkpoints(copy.folder / "checkpoints").newest()[0].settings["training.lr"] == 0.2
