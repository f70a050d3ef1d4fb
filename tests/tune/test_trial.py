"""Trials: what a copy takes over, and what Ray Tune is told of the rounds."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from rayfl.experiments.cells import Job
from rayfl.methods import Ditto
from rayfl.record.checkpoint import Checkpoints
from rayfl.record.protocol import protocol
from rayfl.tune.schedule import begin, read_schedule
from rayfl.tune.scores import RoundScores
from rayfl.tune.trial import reporter, snapshot, take_over
from tests.conftest import rounds_of, small


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
    federation.after_round = reporter(job, RoundScores(folder, protocol("default"), "accuracy"), interval)
    result = federation.run()
    means = result.rounds["val/after_aggregation/personal"].tolist()
    assert [(number, score) for number, score, _ in told] == [
        (k + 1, pytest.approx(means[k])) for k in range(3)
    ]
    assert [number for number, _, copied in told if copied] == saved
    assert all("manifest-000002.json" in copied for _, _, copied in told if copied)
