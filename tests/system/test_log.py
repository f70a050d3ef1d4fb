"""What a run says: on standard error, and in its log."""

import logging
import os
from pathlib import Path

import pytest

from rayfl import Federation, Inline
from rayfl.data import Synthetic
from rayfl.errors import BadCode, Shortage
from rayfl.nets import CNNB, LeNet
from rayfl.system.log import RunLog, log, warnings_shown
from rayfl.system.text import warn
from tests.support.refusals import refused


def federation(path: Path, **options) -> Federation:
    data = Synthetic(train=40, test=10)
    settings = {"data": data, "net": LeNet(), "clients": 2, "rounds": 2, "engine": Inline(), "quiet": True}
    return Federation(**(settings | {"loggers": [], "output": str(path)} | options))


def messages(path: Path) -> list[str]:
    """Return level and text of every line, without its time."""
    return [line.partition(" ")[2] for line in (path / "run.log").read_text().splitlines()]


def test_a_run_tells_of_its_rounds(tmp_path):
    federation(tmp_path / "run").run()
    said = messages(tmp_path / "run")
    assert "INFO method: FedBN" in said
    assert [line[: line.index(":")] for line in said if " is done" in line] == [
        "INFO round 1 of 2 is done",
        "INFO round 2 of 2 is done",
    ]
    assert not [line for line in said if line.startswith("DEBUG")]


def test_warnings_from_before_the_folder_is_made_are_in_it(tmp_path, capsys):
    """FedBN warns, because LeNet has no BatchNorm, while data and settings are still being checked."""
    federation(tmp_path / "run", log_level="warning").run()
    (line,) = messages(tmp_path / "run")
    assert line.startswith("WARNING FedBN leaves a part of the net with the clients")
    assert capsys.readouterr().err == f"warning: {line.removeprefix('WARNING ')}\n"
    federation(tmp_path / "other", log_level="warning", net=CNNB()).run()
    assert messages(tmp_path / "other") == []


def test_debug_tells_of_times_and_checkpoints(tmp_path):
    federation(tmp_path / "run", log_level="debug").run()
    said = messages(tmp_path / "run")
    assert "DEBUG checkpoint after 2 rounds" in said
    assert len([line for line in said if "of which training" in line]) == 2


def test_a_resumed_run_goes_on_with_its_log(tmp_path):
    federation(tmp_path / "run", rounds=1).run()
    before = messages(tmp_path / "run")
    federation(tmp_path / "run").resume(tmp_path / "run").run()
    said = messages(tmp_path / "run")
    assert said[: len(before)] == before
    assert "INFO round 2 of 2 is next" in said[len(before) :]


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_a_log_that_is_no_file_is_refused(tmp_path, make):
    """A pipe would be waited for."""
    federation(tmp_path / "run", rounds=1).run()
    (tmp_path / "run" / "run.log").unlink()
    make(tmp_path / "run" / "run.log")
    with refused(Shortage, "run.log"):
        federation(tmp_path / "run").resume(tmp_path / "run").run()


def test_an_error_is_kept(tmp_path):
    with refused(BadCode, "client 2"), RunLog("info") as run_log:
        run_log.open(tmp_path / "run.log")
        raise BadCode("client 2", "is bad")
    assert messages(tmp_path) == ["ERROR BadCode: client 2 is bad"]


def test_nothing_is_left_behind(tmp_path):
    before = (log.level, list(log.handlers))
    federation(tmp_path / "run").run()
    assert (log.level, list(log.handlers)) == before


def test_a_full_disk_does_not_end_the_run(tmp_path):
    """The log alone; the records of a run say so themselves."""
    with RunLog("info") as run_log:
        run_log.open(Path("/dev/full"))
        log.info("something")


def test_warnings_are_shown_once(capsys):
    for _ in range(2):  # the second time not twice
        with warnings_shown(), warnings_shown():
            warn("careful")
        assert capsys.readouterr().err == "warning: careful\n"


def test_a_program_can_send_them_elsewhere(caplog):
    with caplog.at_level(logging.WARNING, "rayfl"):
        warn("50 % of it")
    assert caplog.messages == ["50 % of it"]
