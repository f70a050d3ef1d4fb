"""Callbacks see every round of a run and may end it, with a checkpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import rayfl
from rayfl import Inline, Ray
from rayfl.callbacks.callback import Callback, Run
from rayfl.engine import BadUpdate
from rayfl.errors import Unknown
from rayfl.methods import FedPer
from rayfl.record.checkpoint import Checkpoints
from tests.support.federations import Poisoned, bytes_of_run, small
from tests.support.refusals import refused


class Notes(Callback):
    """Notes what a run tells, and ends it after a round."""

    def __init__(self, last: int) -> None:
        self.told: list[Any] = []
        self._last = last

    def start(self, run: Run, round: int) -> bool:
        self.told.append(("start", round, len(list(run.records()))))
        return False

    def after_round(self, run: Run, record: Mapping[str, Any]) -> bool:
        assert [line["round"] for line in run.records()] == list(range(record["round"] + 1))
        self.told.append(record["round"])
        return bool(record["round"] == self._last)

    def end(self) -> None:
        self.told.append("end")


class Sees(Callback):
    """Notes the accuracies that a run has before its first round, and after each."""

    def __init__(self) -> None:
        self.seen: list[dict[int, float]] = []

    def start(self, run: Run, round: int) -> bool:
        self.seen.append(run.figures())
        return False

    def after_round(self, run: Run, record: Mapping[str, Any]) -> bool:
        self.seen.append(run.figures())
        return False


def test_a_callback_ends_a_run_with_a_checkpoint_and_sees_what_comes_after(tmp_path: Path) -> None:
    settings = {"rounds": 4, "eval_every": 2, "checkpoint_every": 3}
    result = small(tmp_path / "run", **settings).run([notes := Notes(last=1), Sees()])
    assert notes.told == [("start", 0, 0), 0, 1, "end"]
    assert (result.summary["completed"], result.complete) == (2, False)
    manifest, damage = Checkpoints(tmp_path / "run" / "checkpoints").newest_intact()
    assert not damage
    assert manifest is not None
    assert manifest.round == 2
    going_on = small(tmp_path / "elsewhere", **settings).resume(tmp_path / "run")
    assert going_on.run([notes := Notes(last=9), then := Sees()]).complete
    assert notes.told == [("start", 2, 2), 2, 3, "end"]
    small(tmp_path / "whole", **settings).run([whole := Sees()])
    assert bytes_of_run(tmp_path / "run") == bytes_of_run(tmp_path / "whole")
    assert whole.seen[:2] == [{}, {}]
    assert whole.seen[2]
    assert then.seen == whole.seen[2:]


class Misspelt(Callback):
    def after_rounds(self, run: Any, record: Any) -> bool:
        return True


def test_a_misspelt_hook_is_refused(tmp_path: Path) -> None:
    federation = small(tmp_path / "run")
    with refused(Unknown, "Misspelt.after_rounds"):
        federation.run([Misspelt()])
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_is_written_once_a_round(tmp_path: Path, monkeypatch: Any) -> None:
    class Saves(Callback):
        def after_round(self, run: Run, record: Mapping[str, Any]) -> bool:
            run.save()
            return False

    committed: list[int] = []
    commit = Checkpoints.commit
    monkeypatch.setattr(
        Checkpoints, "commit", lambda self, m, best: (committed.append(m.round), commit(self, m, best))
    )
    federation = small(tmp_path / "run", rounds=3, checkpoint_every=2)
    federation.run([Saves()])
    assert committed == [1, 2, 3]


def test_after_a_callback_that_raises_the_run_goes_on(tmp_path: Path) -> None:
    class Broken(rayfl.Callback):
        def after_round(self, run: Run, record: Mapping[str, Any]) -> bool:
            return bool(record["round"] == 1 and record["no such key"])

    federation = small(tmp_path / "run", rounds=3, checkpoint_every=1)
    with pytest.raises(KeyError, match="no such key"):
        federation.run([Broken()])
    small(tmp_path / "elsewhere", rounds=3, checkpoint_every=1).resume(tmp_path / "run").run()
    small(tmp_path / "whole", rounds=3, checkpoint_every=1).run()
    assert bytes_of_run(tmp_path / "run") == bytes_of_run(tmp_path / "whole")


# ---- what callbacks see


class Looks(Callback):
    """Keeps what it sees of scores and models."""

    def __init__(self) -> None:
        self.accuracies: list[dict[int, float]] = []
        self.validation: list[dict[int, float]] = []
        self.scores: list[torch.Tensor] = []

    def after_round(self, run: Run, record: Mapping[str, Any]) -> bool:
        self.accuracies.append(run.figures())
        self.validation.append(run.figures("val"))
        models = run.models()
        assert models.round == record["round"] + 1
        self.scores.append(models.scores(3, models.batch(3)[0])["personal"])
        return False


class Clumsy(Callback):
    def end(self) -> None:
        raise OSError("no such printer")


def test_after_a_callback_that_raises_at_the_end_others_end(tmp_path: Path) -> None:
    federation = small(tmp_path / "run", rounds=1)
    with pytest.raises(OSError, match="no such printer"):
        federation.run([Clumsy(), notes := Notes(last=9)])
    assert notes.told == [("start", 0, 0), 0, "end"]
    assert small(tmp_path / "else", rounds=1).resume(tmp_path / "run").run().complete
    bad = small(tmp_path / "bad", method=Poisoned(), participation=1.0)
    with refused(BadUpdate, "client 2"):  # which is not hidden
        bad.run([Clumsy()])


@pytest.mark.parametrize("engine", [Inline(), Ray(actors=2)], ids=["inline", "ray"])
def test_callbacks_see_scores_and_models(tmp_path: Path, kept_actors: None, engine: Any) -> None:
    """The accuracies of the last evaluation, and models that score as this evaluation has.

    Looking changes nothing.
    """
    settings = {"rounds": 3, "eval_every": 2, "method": FedPer()}
    result = small(tmp_path / "run", **settings, engine=engine).run([looks := Looks()])
    small(tmp_path / "plain", **settings).run()
    assert bytes_of_run(tmp_path / "run") == bytes_of_run(tmp_path / "plain")
    table = result.clients.query("view == 'personal'")
    for split, found in (("test", looks.accuracies), ("val", looks.validation)):
        for round, expected in enumerate(({}, 1, 2)):
            if isinstance(expected, int):
                rows = table[(table["round"] == expected) & (table["part"] == split)]
                expected = dict(zip(rows["client"], rows["figure"], strict=True))
            assert found[round] == expected
    models = rayfl.load_models(tmp_path / "run")
    assert torch.equal(looks.scores[-1], models.scores(3, models.batch(3)[0])["personal"])
    assert not torch.equal(looks.scores[0], looks.scores[1])
