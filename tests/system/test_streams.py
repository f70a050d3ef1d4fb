"""Standard output that is closed or full ends a command, without a traceback."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rayfl.system.error_report import exit_code
from tests.support.federations import small

Capture = pytest.CaptureFixture[str]


def take(monkeypatch: pytest.MonkeyPatch, file: int, encoding: str = "utf-8") -> None:
    """Make a file the process's own standard output."""
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(io.FileIO(file, "w")), encoding))


@pytest.fixture
def closed() -> int:
    """A pipe that nobody reads any more, as after `| head -1`."""
    reads, writes = os.pipe()
    os.close(reads)
    return writes


@pytest.fixture
def full() -> int:
    """A file on a full disk."""
    return os.open("/dev/full", os.O_WRONLY)


def say(lines: int, folder: Path) -> int:
    """Print lines; of 0 a run prints what it has to say."""
    for _ in range(lines):
        print("a line")
    return 0 if lines else int(not small(folder, quiet=False, rounds=1).run().complete)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_characters_that_an_encoding_lacks_are_escaped(
    monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    reads, writes = os.pipe()
    take(monkeypatch, writes, encoding)
    assert exit_code(lambda: print("± and \udcff")) == 0
    shown = {"utf-8": "± and \\udcff\n", "ascii": "\\xb1 and \\udcff\n"}[encoding]
    assert os.read(reads, 1000).decode() == shown
    os.close(reads)


@pytest.mark.parametrize("lines", [1, 10_000, 0])  # less and more than buffers hold
def test_nobody_reads(
    tmp_path: Path, closed: int, capsys: Capture, monkeypatch: pytest.MonkeyPatch, lines: int
) -> None:
    take(monkeypatch, closed)
    assert exit_code(lambda: say(lines, tmp_path)) == 141
    assert capsys.readouterr().err == ""
    sys.stdout.flush()  # as the interpreter does at its end


@pytest.mark.parametrize("lines", [1, 10_000, 0])
def test_the_disk_is_full(
    tmp_path: Path, full: int, capsys: Capture, monkeypatch: pytest.MonkeyPatch, lines: int
) -> None:
    take(monkeypatch, full)
    assert exit_code(lambda: say(lines, tmp_path)) == 2
    assert capsys.readouterr().err == "rayfl: error: standard output: No space left on device\n"
    sys.stdout.flush()


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_process_ends_with_these_codes(closed: int, full: int, unbuffered: str) -> None:
    env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-m", "rayfl", "--help"]
    for output, code, says in ((closed, 141, 0), (full, 2, 1)):
        ended = subprocess.run(command, stdout=output, env=env, stderr=subprocess.PIPE, text=True)
        assert (ended.returncode, len(ended.stderr.splitlines())) == (code, says), ended.stderr
        os.close(output)


def test_streams_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert exit_code(lambda: print("something")) == 0


def test_streams_of_others_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = io.StringIO()
    monkeypatch.setattr(sys, "stdout", notebook)
    assert exit_code(lambda: print("something")) == 0
    assert notebook.getvalue() == "something\n"
