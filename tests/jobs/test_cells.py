"""Cells in processes of their own: several at once, interrupted in every way, none twice."""

import fcntl
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rayfl.errors import Conflict
from rayfl.federation import federation_of
from rayfl.jobs import cells
from rayfl.jobs.cells import CellRunner, Job, TableOutcome, check_code, remaining_seconds
from rayfl.record.folder import read_config
from tests.support.cells import record, run_here
from tests.support.federations import Poisoned, bytes_of_run
from tests.support.refusals import refused

SETTINGS = {
    "data": "Synthetic",
    "data.train": 400,
    "data.test": 60,
    "net": "LeNet",
    "method": "Ditto",
    "clients": 6,
    "participation": 0.5,
    "training.batch_size": 20,
    "checkpoint_every": 3,
    "loggers": [],
    "engine": "Inline",
}
ROUNDS = 24
POISONED = f"{Poisoned.__module__}.Poisoned"


def job(folder: Path, **changes: object) -> Job:
    settings = SETTINGS | {"rounds": ROUNDS} | changes
    return Job("Ditto", "even", 4, int(str(settings["rounds"])), folder, settings)


class Watch:
    """Does something once, when the running cells have so many rounds, and keeps what was told."""

    def __init__(self, rounds: int = 0, act: object = None) -> None:
        self.rounds, self.act = rounds, act
        self.told: list[str] = []
        self.most = 0

    def show(self, running: list[Job], waiting: list[Job]) -> None:
        self.most = max(self.most, len(running))
        if self.act and running and all(len(job.round_seconds()) >= self.rounds for job in running):
            act, self.act = self.act, None
            act()  # type: ignore[operator]


def run(jobs: list[Job], watch: Watch, at_once: int | None = 2) -> TableOutcome:
    runner = CellRunner(at_once, watch.told.append, watch.show)
    if watch.act == "kill":
        watch.act = lambda: runner._running[0].process.kill()
    return runner.run(jobs)


def send(*numbers: signal.Signals, rounds: int = 0) -> Watch:
    return Watch(rounds, lambda: [os.kill(os.getpid(), number) for number in numbers])


def test_signals_stop_cells_or_kill_them(tmp_path: Path, monkeypatch) -> None:
    start = cells.subprocess.Popen
    monkeypatch.setattr(cells.subprocess, "Popen", lambda _, **options: start(["sleep", "100"], **options))
    one = job(tmp_path / "cells" / "one")
    outcome = run([one], watch := send(signal.SIGTERM))
    assert outcome == TableOutcome(signals=[signal.SIGTERM])
    assert watch.told[-1] == f"{one}: stopped after 0 rounds"
    with pytest.raises(KeyboardInterrupt):
        run([one], send(signal.SIGTERM, signal.SIGINT))
    outcome = run([one], Watch(0, "kill"))
    assert outcome == TableOutcome(failed={one: "killed by SIGKILL; too little memory?"})


@pytest.mark.slow
def test_stopped_and_killed_and_finished_to_the_same_bytes(tmp_path: Path) -> None:
    one = job(tmp_path / "cells" / "one")
    assert run([one], send(signal.SIGTERM, rounds=2)).signals
    stopped_after = len(one.round_seconds())
    assert 2 <= stopped_after < ROUNDS
    assert run([one], Watch(stopped_after + 2, "kill")).failed
    assert run([one], Watch()) == TableOutcome()
    assert one.is_finished
    whole = {**SETTINGS, "rounds": ROUNDS, "seed": 4, "quiet": True, "output": str(tmp_path / "whole")}
    federation_of(whole).run()
    assert bytes_of_run(one.folder) == bytes_of_run(tmp_path / "whole")


def test_one_fails_the_others_go_on_and_nothing_is_repeated(tmp_path: Path, monkeypatch) -> None:
    fine = job(tmp_path / "fine", rounds=2)
    bad = job(tmp_path / "bad", rounds=3, method=POISONED)
    (tmp_path / "fine").mkdir()  # as a process leaves it that is killed right at its start
    (tmp_path / "fine" / "environment.json").write_text("{}")
    watch = Watch()
    outcome = run([bad, fine], watch)
    assert list(outcome.failed) == [bad]
    assert "client 2" in outcome.failed[bad]
    assert watch.most == 2
    assert fine.is_finished

    def refused(*arguments: object, **more: object) -> None:
        raise AssertionError("a finished cell was started")

    monkeypatch.setattr(cells.subprocess, "Popen", refused)
    before = (fine.folder / "metrics.jsonl").stat().st_mtime_ns
    assert run([fine], Watch()) == TableOutcome()
    CellRunner(1, print, print)._start_cell(fine)  # another process has finished it just now
    assert (fine.folder / "metrics.jsonl").stat().st_mtime_ns == before


def test_a_cell_goes_on_with_the_changes_of_its_table(tmp_path: Path, monkeypatch) -> None:
    """A table that was tried with one round and then has those of its file has changed none."""
    run_here(monkeypatch)
    cell = {"table": "t", "row": "Ditto", "column": "even", "changed": ["rounds=1"]}
    assert run([job(tmp_path / "cell", rounds=1, cell=cell)], Watch()) == TableOutcome()
    whole = job(tmp_path / "cell", rounds=2, cell=cell | {"changed": []})
    watch = Watch()
    assert run([whole], watch) == TableOutcome()
    assert watch.told[0].endswith("started after 1 round")
    assert read_config(whole.folder)["cell"]["changed"] == []


def test_a_cell_of_another_process_is_left_to_it(tmp_path: Path) -> None:
    mine = job(tmp_path / "cell")
    with mine.log.open("ab") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        outcome = run([mine], Watch())
    assert outcome == TableOutcome(elsewhere=[mine])


def test_finished_cells_may_lose_their_checkpoints(tmp_path: Path, monkeypatch) -> None:
    run_here(monkeypatch)
    mine, watch = job(tmp_path / "cell", rounds=1), Watch()
    runner = CellRunner(1, watch.told.append, watch.show, keep_checkpoints=False)
    assert runner.run([mine]) == TableOutcome()
    assert not (mine.folder / "checkpoints").exists()
    (mine.folder / "checkpoints").mkdir()  # of a cell that an earlier command has finished
    with mine.log.open("ab") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        assert runner.run([mine]) == TableOutcome()
        assert (mine.folder / "checkpoints").exists(), "another process goes on with it"
    assert runner.run([mine]) == runner.run([mine]) == TableOutcome()
    assert not (mine.folder / "checkpoints").exists()


def test_runs_of_other_code_are_refused_or_removed(tmp_path: Path) -> None:
    (run := tmp_path / "run").mkdir()
    (run / "environment.json").write_text(json.dumps({"code": {Poisoned.__module__: "other"}}))
    folders, settings = [run, tmp_path / "not begun"], [SETTINGS | {"method": POISONED}]
    with refused(Conflict, run):
        check_code(folders, settings)
    check_code(folders, settings, remove=True)
    assert not run.exists()


def test_memory_decides_how_many_run_at_once(tmp_path: Path, monkeypatch) -> None:
    runner = CellRunner(None, print, print)
    runner.limit = 3
    assert runner._has_room()
    running = job(tmp_path / "cell")
    running.folder.mkdir()
    process: Any = SimpleNamespace(pid=0)
    runner._running = [cells.RunningCell(running, process, process, 0)]
    assert 10**7 < cells._peak_memory(os.getpid()) < 10**12
    assert cells._peak_memory(2**22 + 1) == 0, "there is no such process"
    monkeypatch.setattr(cells, "_peak_memory", lambda pid: 800)
    monkeypatch.setattr(cells, "available_memory", lambda: 1001.0)
    assert not runner._has_room(), "before its first round nobody knows how much it takes"
    record(running, [1.0])
    assert runner._has_room()
    monkeypatch.setattr(cells, "available_memory", lambda: 999.0)
    assert not runner._has_room()
    runner._watch_memory = False  # the user has said how many
    assert runner._has_room()
    runner.limit = 1
    assert not runner._has_room()
    assert cells.available_memory() > 0


def test_remaining_time(tmp_path: Path) -> None:
    def cell(name: str, row: str, column: str) -> Job:
        return Job(row, column, 0, 10, tmp_path / name, {})

    done, begun = cell("a", "FedAvg", "large"), cell("b", "Ditto", "large")
    alike, new = cell("c", "FedBN", "large"), cell("d", "FedBN", "small")
    assert remaining_seconds([done, begun], 2) is None
    record(done, [2.0] * 10, finished=True)
    record(begun, [6.0, 4.0, 5.0, 5.0])
    assert remaining_seconds([done], 2) == 0
    # 6 rounds of 5 s; 10 of (2 + 5) / 2 s, the mean of the column; 10 of the same, the mean of all
    assert remaining_seconds([done, begun, alike, new], 2) == (6 * 5 + 10 * 3.5 + 10 * 3.5) / 2
    assert remaining_seconds([done, begun], 8) == 6 * 5, "one cell is not divided"
    assert remaining_seconds([done, begun, new], 1, [new]) == 10 * 3.5, "one that was stopped does not go on"


def test_why_a_process_has_failed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("round 1/2\nrayfl: error: data.root is missing\n")
    assert cells._failure_reason(log, 2) == "data.root is missing"
    assert cells._failure_reason(log, -signal.SIGKILL) == "killed by SIGKILL; too little memory?"
    log.write_text("Traceback\n  File\nValueError: no\n\n")
    assert cells._failure_reason(log, 1) == "ended with code 1: ValueError: no"
    assert cells._failure_reason(log, -signal.SIGTERM) == "killed by SIGTERM"
    log.write_text("")
    assert cells._failure_reason(log, 3) == "ended with code 3: no output"


def test_each_gpu_gets_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert cells.automatic_jobs() == 2
    assert [cells._process_environment(slot)["CUDA_VISIBLE_DEVICES"] for slot in (0, 1, 2)] == ["3", "5", "3"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert "CUDA_VISIBLE_DEVICES" not in cells._process_environment(0)
    assert cells.automatic_jobs() >= 1
