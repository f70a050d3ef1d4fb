import json
import math
import platform
import re
import resource
import subprocess
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import rayfl
from rayfl.errors import BadValue, Damaged, InUse, Missing, Shortage
from rayfl.record import folder as records
from rayfl.record.folder import RunFolder, check_unused
from rayfl.record.history import read_history, read_lines
from rayfl.running.result import finish_records
from rayfl.settings.description import changes_experiment, config_of
from rayfl.system import files
from tests.support.records import partition, record, write_run
from tests.support.refusals import refused


@pytest.fixture
def folder(tmp_path):
    made = RunFolder.create(tmp_path / "run", "rounds: 5\n")
    made.write_partition(partition(4))
    return made


def lines(path):
    return list(read_lines(path))


def test_a_finished_run_leaves_these_files(tmp_path):
    run = write_run(tmp_path / "run")
    kept = {"config.yaml", "environment.json", "metrics.jsonl", "engine.jsonl", "partition.json"}
    assert {p.name for p in run.iterdir()} == {*kept, "clients.parquet", "summary.json"}
    assert json.loads((run / "partition.json").read_text()) == partition(6)
    assert (run / "config.yaml").read_text().startswith("method:\n")


def test_an_empty_folder_is_used_and_a_used_one_refused(tmp_path):
    """Only a run is offered for resuming."""
    run, other = tmp_path / "empty", tmp_path / "other"
    for folder in (run, other):
        folder.mkdir()
    RunFolder.create(run, "rounds: 1\n")
    (other / "letter.txt").write_text("")
    (other / "letter.txt").chmod(0o700)  # may be written and run, and is no folder
    for used in (tmp_path, run, run / "config.yaml", other, other / "letter.txt"):
        with refused(InUse, used) as caught:
            check_unused(used)
        assert str(caught.value).endswith(f"the run that is there with --resume {run}") == (used == run)
        assert ("--resume" in str(caught.value)) == (used == run)
        with refused(InUse, used):
            RunFolder.create(used, "rounds: 2\n")
    assert (run / "config.yaml").read_text() == "rounds: 1\n"
    with refused(BadValue, "other/letter.txt/run"):
        check_unused(other / "letter.txt" / "run")
    check_unused(tmp_path / "new" / "run")


@pytest.mark.parametrize("kind", ["table", "sweep"])
def test_a_folder_of_another_kind(tmp_path, kind):
    """A folder holds a run, a table or a sweep; nothing is put into a run folder."""
    (tmp_path / records.KIND_FILES[kind][0]).write_text("{}")
    with refused(InUse, tmp_path):
        check_unused(tmp_path)
    RunFolder.create(tmp_path / "cell", "rounds: 1\n")  # as tables and sweeps do
    for wanted in ("table", "sweep"):
        with refused(InUse, "cell"):
            records.check_folder_kind(tmp_path / "cell", wanted)
        with refused(InUse, "cell/a/b"):
            records.check_folder_kind(tmp_path / "cell" / "a" / "b", wanted)
    with refused(InUse, "cell/run"):
        check_unused(tmp_path / "cell" / "run")
    records.check_folder_kind(tmp_path, kind)


def test_a_folder_without_a_configuration_is_free(tmp_path):
    """A folder is free where a run ended before its configuration was written."""
    with no_room_beyond(20_000), refused(Shortage, "run/config.yaml"):
        RunFolder.create(tmp_path / "run", "#" * 30_000)
    left = {"environment.json", "metrics.jsonl", "engine.jsonl"}
    assert {p.name for p in (tmp_path / "run").iterdir()} == left
    RunFolder.create(tmp_path / "run", "rounds: 1\n")
    assert (tmp_path / "run" / "config.yaml").read_text() == "rounds: 1\n"


def test_a_folder_is_on_the_disk_before_its_configuration(tmp_path, monkeypatch):
    run, done = tmp_path / "run", []
    config = run / "config.yaml"
    monkeypatch.setattr(files.disk, "sync_folder", lambda path: done.append((path, config.exists())))
    folder = RunFolder.create(run, "rounds: 1\n")
    assert done == [(run, False), (tmp_path, False), (run, True)]
    folder.sync()
    assert done[3:] == [(run, True)]


def test_seeds_engines_and_measures_make_no_other_experiment():
    names = ["seed", "data.seed", "data.root", "engine.device", "metrics", "rounds", "data.noise"]
    assert [name for name in names if changes_experiment(name)] == ["rounds", "data.noise"]
    assert config_of(rayfl.Federation())["net"] == {
        "class_path": "rayfl.nets.CNNB",
        "init_args": {"weights": None},
    }


def test_the_environment_holds_versions_but_no_variables(tmp_path, monkeypatch):
    """The environment holds versions and the command but no variables."""
    monkeypatch.setenv("RAYFL_TEST_SECRET", "hunter2 in plain sight")
    RunFolder.create(tmp_path / "run", "rounds: 1\n")
    text = (tmp_path / "run" / "environment.json").read_text()
    found = json.loads(text)
    assert found["packages"]["rayfl"] == rayfl.__version__
    assert found.keys() >= {"python", "platform", "cpus", "git_commit", "command"}
    kinds = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    model, capability, *libraries, set_here = records.processor().split(", ")
    assert (set_here, "oneDNN" in libraries) == ("MKL_CBWR=AVX2", torch.backends.mkldnn.is_available())
    assert ("MKL" in libraries) == torch.backends.mkl.is_available()
    assert model in (kinds or [platform.machine(), platform.processor()])
    assert capability == torch.backends.cpu.get_cpu_capability()
    assert "hunter2" not in text
    assert "RAYFL_TEST_SECRET" not in text


def test_git_is_asked_for_the_commit_and_runs_nothing_of_the_folder(tmp_path, monkeypatch):
    def git(*arguments):
        call = ["git", "-c", "user.name=n", "-c", "user.email=e", *arguments]
        return subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=True)

    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    assert records.describe_environment()["git_commit"] is None
    git("init", "--quiet")
    git("commit", "--quiet", "--allow-empty", "--message", "first")
    commit = git("rev-parse", "HEAD").stdout.strip()
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\ncat\n")
    hook.chmod(0o755)
    with (tmp_path / ".git" / "config").open("a") as config:
        config.write(f"[core]\n\tfsmonitor = {hook}\n\tpager = {hook}\n\thooksPath = {tmp_path}\n")
    assert records.describe_environment()["git_commit"] == commit
    assert not (tmp_path / "ran").exists()
    monkeypatch.setenv("PATH", str(tmp_path))  # without git
    assert records.describe_environment()["git_commit"] is None


def test_lines_are_compact_sorted_and_on_disk_at_once(folder):
    folder.append_engine({"seconds": np.float32(0.5), "round": np.int64(0), "bytes": np.arange(3)})
    written = (folder.path / "engine.jsonl").read_bytes()
    assert written == b'{"bytes":[0,1,2],"round":0,"seconds":0.5}\n'


def test_values_that_are_not_finite_become_null_and_are_named(folder):
    assert read_history(folder.path).rounds == []
    made = record(0, partition(4)) | {"loss": [math.nan, np.float32("inf")]}
    made["evaluation"]["after_aggregation"]["personal"]["test"]["loss"][3] = -math.inf
    folder.append_metrics(made)
    (found,) = lines(folder.path / "metrics.jsonl")
    assert found["loss"] == [None, None]
    assert found["not_finite"] == [
        "evaluation.after_aggregation.personal.test.loss.3=-inf",
        "loss.0=nan",
        "loss.1=inf",
    ]
    folder.append_metrics(record(1, partition(4)))
    assert "not_finite" not in lines(folder.path / "metrics.jsonl")[1]
    result = finish_records(folder)
    assert math.isnan(result.rounds["loss"][0])
    assert result.history.not_finite == 3


@pytest.mark.parametrize("torn", [b'{"cohort":[1,2],"ro', None])
def test_truncate_removes_the_round_later_ones_and_a_torn_line(tmp_path, torn):
    """A last line without its end is torn even if it reads well."""
    run = write_run(tmp_path / "run", rounds=10, stop_after=7)
    before = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    content = b"".join([*before, torn] if torn else [*before])
    (run / "metrics.jsonl").write_bytes(content if torn else content[:-1])
    assert [line["round"] for line in lines(run / "metrics.jsonl")] == [*range(7 if torn else 6)]
    with (run / "engine.jsonl").open("ab") as file:
        file.write(b'{"event":"actor lost"}\n{"round":7')
    for place, problem in ((tmp_path, Missing), (run / "metrics.jsonl", Damaged)):
        with refused(problem, place):
            RunFolder.resume(run if problem is Damaged else tmp_path, 9)
    folder = RunFolder.resume(run, 5)
    assert (run / "metrics.jsonl").read_bytes() == b"".join(before[:5])
    assert [line.get("round") for line in lines(run / "engine.jsonl")] == [0, 1, 2, 3, 4, None]
    folder.append_metrics(record(5, partition(6), evaluate=True))
    assert len(lines(run / "metrics.jsonl")) == 6


def test_a_resumed_run_has_the_bytes_of_a_whole_one(tmp_path):
    """A resumed run has the bytes of one that was never stopped."""
    whole = write_run(tmp_path / "whole")
    run = write_run(tmp_path / "stopped", stop_after=7)
    config = (run / "config.yaml").read_text()
    folder = RunFolder.resume(run, 4, config=config.replace("rounds: 10", "rounds: 12"))
    folder.write_partition(partition(6))
    for r in range(4, 10):
        folder.append_metrics(record(r, partition(6), evaluate=r % 2 == 1))
    finish_records(folder)
    for name in ("metrics.jsonl", "partition.json", "clients.parquet"):
        assert (run / name).read_bytes() == (whole / name).read_bytes()
    assert "rounds: 12" in (run / "config.yaml").read_text()
    (again,) = json.loads((run / "environment.json").read_text())["resumed"]
    assert again["round"] == 4


def test_a_longer_run_loses_the_evaluations_of_other_rounds(tmp_path):
    """With what is said of them; what is said of the round stays."""
    run = write_run(tmp_path / "run", rounds=5, eval_every=5, stop_after=1)
    folder = RunFolder.resume(run, 1)
    odd = record(1, partition(6)) | {
        "loss": [math.nan, 1.0, 1.0],
        "untrained": {"clients": [], "unlisted": []},
    }
    odd["evaluation"]["after_aggregation"]["personal"]["test"]["loss"][2] = math.inf
    for each in (odd, record(2, partition(6))):
        folder.append_metrics(each)
    before = lines(run / "metrics.jsonl")
    folder.keep_evaluations(lambda round: round == 2)
    _, first, second = lines(run / "metrics.jsonl")
    assert first == {k: v for k, v in before[1].items() if k not in ("evaluation", "untrained")} | {
        "not_finite": ["loss.0=nan"]
    }
    assert (second, "evaluation" in second) == (before[2], True)


def test_code_that_shows_during_a_run_is_beside_what_was_known(tmp_path):
    folder = RunFolder.create(tmp_path / "run", "rounds: 1\n", code={"mine": "1", "other": "2"})
    before = records.read_environment(folder.path)
    folder.add_code({"late": "3", "other": "4"})
    assert records.read_environment(folder.path) == before | {
        "code": {"mine": "1", "other": "4", "late": "3"}
    }


def test_a_summary_is_there_when_the_run_is_over(tmp_path):
    run = write_run(tmp_path / "run", rounds=4)
    assert records.read_summary(run)["rounds"] == 4
    (run / "summary.json").write_text("[]")
    with refused(Damaged, run / "summary.json") as caught:
        records.read_summary(run)
    assert "goes on from its checkpoint" in str(caught.value)
    (run / "summary.json").unlink()
    assert records.read_summary(run) == {}


def test_a_damaged_line_in_the_middle_is_named(tmp_path, monkeypatch):
    """Or one without an end."""
    run = write_run(tmp_path / "run", stop_after=3)
    content = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(content[0] + b"\x00\x00\n" + content[2])
    with refused(Damaged, "metrics.jsonl") as caught:
        RunFolder.resume(run, 2)
    assert "line 2" in str(caught.value)
    monkeypatch.setattr("rayfl.record.history.LONGEST_LINE", 10_000)
    (run / "metrics.jsonl").write_bytes(content[0] + bytes(20_000))
    with refused(Damaged, "metrics.jsonl"):
        lines(run / "metrics.jsonl")


@contextmanager
def no_room_beyond(size):
    """Let no file grow beyond this size, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_names_the_file_and_leaves_what_was_there(folder):
    folder.append_metrics(record(0, partition(4)))
    path, divided = folder.path / "metrics.jsonl", (folder.path / "partition.json").read_bytes()
    before = path.read_bytes()
    with no_room_beyond(len(before) + 50), refused(Shortage, path):
        folder.append_metrics(record(1, partition(4)))
    with no_room_beyond(40), refused(Shortage, "partition.json"):
        folder.write_partition(partition(50))
    assert path.read_bytes() == before
    assert (folder.path / "partition.json").read_bytes() == divided
    assert not list(folder.path.glob("*.tmp"))
    folder.append_metrics(record(1, partition(4)))
    assert [line["round"] for line in lines(path)] == [0, 1]


def test_the_parquet_table_is_the_table_of_the_result(folder):
    for r in range(3):
        folder.append_metrics(record(r, partition(4), evaluate=r != 1))
    result = finish_records(folder)
    pd.testing.assert_frame_equal(pd.read_parquet(folder.path / "clients.parquet"), result.clients)
    summary = json.loads((folder.path / "summary.json").read_text())
    assert summary.pop("rayfl") == {"version": rayfl.__version__, "sources": records.software()["rayfl"]}
    assert summary == result.summary


def test_the_digest_of_the_sources_sees_every_change(tmp_path):
    """Of content, of names, and of files alone; not of what Python leaves beside them."""
    found = []
    for name, text in (("a.py", "1"), ("a.py", "2"), ("b/c.py", ""), ("b/c.pyc", "3")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        found.append(records.sources_in(tmp_path))
    assert len(set(found)) == 3
    assert found[2] == found[3]


def test_a_path_that_is_no_run_folder(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "first", rounds=1)
    for path in (tmp_path / "nowhere", run / "config.yaml", tmp_path / "runs"):
        with refused(Missing, path) as caught:
            records.check_is(path, "run", "config.yaml")
        assert str(caught.value) == f"{path} is not a run folder: it has no config.yaml"
    records.check_is(run, "run")
