"""What a run records of its rounds, and what it says at its start and when it is stopped."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rayfl import Result, Training
from rayfl.callbacks.callback import Callback, Run
from rayfl.federation import resumed
from rayfl.methods import FedHEAL
from rayfl.running.checks import _last_batch
from rayfl.sampling import Bernoulli
from tests.support.federations import records_of, small


class Ends(Callback):
    """Is interrupted after some rounds, as by a second signal."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def after_round(self, run: Run, record: Mapping[str, Any]) -> bool:
        if record["round"] + 1 == self.rounds:
            raise KeyboardInterrupt
        return False


class Accuracies(Callback):
    """Keeps what each evaluation, also one of an earlier process, says of the clients."""

    def start(self, run: Run, round: int) -> bool:
        self.found = run.figures()
        return True


def test_figures_of_the_server_are_recorded_where_there_are_some(tmp_path: Path) -> None:
    for method, there in ((FedHEAL(), True), (None, False)):
        folder = tmp_path / str(there)
        small(folder, rounds=1, **({"method": method} if method else {})).run()
        assert ["figures" in record for record in records_of(folder)] == [there]


@pytest.mark.parametrize(("every", "kept"), [(1, "after 1 round "), (0, "from the start")])
def test_what_is_stopped_at_once_says_what_it_goes_on_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], every: int, kept: str
) -> None:
    with pytest.raises(KeyboardInterrupt):
        small(tmp_path / "run", checkpoint_every=every).run([Ends(2)])
    shown = capsys.readouterr().out
    assert kept in shown
    assert f"--resume {tmp_path / 'run'}" in shown.replace("\n", "")


def test_the_start_says_how_many_train_in_a_round(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small(tmp_path / "run", rounds=1, quiet=False, sampling=Bernoulli()).run()
    assert "12, 6 in a round on average" in capsys.readouterr().out


def test_a_callback_has_the_accuracies_of_an_earlier_process(tmp_path: Path) -> None:
    run, asked = tmp_path / "run", Accuracies()
    small(run, rounds=2).run()
    resumed(run, {"rounds": 3, "quiet": True}).run([asked])
    rows = Result.load(run).clients.query("round == 1 and part == 'test'")
    assert asked.found == dict(zip(rows["client"], rows["figure"], strict=True))


def test_before_the_first_evaluation_no_client_has_a_figure(tmp_path: Path) -> None:
    seen = Accuracies()
    small(tmp_path / "run", rounds=1).run([seen])
    assert seen.found == {}


def test_some_clients_are_scored(tmp_path: Path) -> None:
    small(tmp_path / "run", rounds=1, eval_clients=3).run()
    (record,) = records_of(tmp_path / "run")
    scored = record["evaluation"]["after_aggregation"]["personal"]["test"]
    assert len(scored["clients"]) == len(scored["score"]) == 3


def test_a_run_that_is_over_is_shown_again_without_a_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "run"
    small(run, rounds=2, checkpoint_every=0).run()
    before = (run / "metrics.jsonl").stat().st_mtime_ns
    again = resumed(run, {"quiet": True}).run()
    assert again.summary["completed"] == 2
    assert (run / "metrics.jsonl").stat().st_mtime_ns == before
    assert len(resumed(run, {"rounds": 3, "quiet": True}).run().rounds) == 3


def test_the_last_batch_by_hand() -> None:
    keeps, drops = Training(batch_size=8), Training(batch_size=8, last_batch="drop")
    assert [[_last_batch(each, n) for n in (7, 8, 17)] for each in (keeps, drops)] == [[7, 0, 1], [7, 0, 0]]
