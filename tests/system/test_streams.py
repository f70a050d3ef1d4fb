"""Standard output and error that are closed or full do not end what writes to them."""

import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayfl.system.error_report import exit_code
from rayfl.system.streams import lasting_output
from tests.support.federations import small
from tests.support.processes import rounds_of


def take(monkeypatch: pytest.MonkeyPatch, file: int, name: str = "stdout") -> None:
    """Make a file the process's own standard output (or error)."""
    stream = io.TextIOWrapper(io.FileIO(file, "w"), encoding="utf-8")
    monkeypatch.setattr(sys, name, stream)
    monkeypatch.setattr(sys, f"__{name}__", stream)


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


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Where to read, without waiting, and where to write."""
    reads, writes = os.pipe()
    os.set_blocking(reads, False)
    yield reads, writes
    os.close(reads)


def test_what_is_written_arrives_in_order(monkeypatch: pytest.MonkeyPatch, pipe: tuple[int, int]) -> None:
    take(monkeypatch, pipe[1])
    print("before", end=" ")
    with lasting_output() as lost:
        print("first", end=" ", flush=True)
        sys.stdout.buffer.write(b"second ")
        sys.stdout.flush()
        print("third: ± and \udcff")
        assert lost() is None
        assert not sys.stdout.isatty()
    assert os.read(pipe[0], 1000).decode() == "before first second third: ± and \\udcff\n"


def test_characters_that_an_encoding_lacks_are_escaped(
    monkeypatch: pytest.MonkeyPatch, pipe: tuple[int, int]
) -> None:
    take(monkeypatch, pipe[1])
    sys.stdout.reconfigure(encoding="ascii")  # type: ignore[union-attr]
    with lasting_output():
        print("±")
    assert os.read(pipe[0], 1000) == b"\\xb1\n"


def test_a_run_goes_on_where_nobody_reads(
    tmp_path: Path, closed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(monkeypatch, closed)
    assert small(tmp_path / "run", quiet=False, rounds=3).run().complete
    assert rounds_of(tmp_path / "run") == 3
    assert isinstance(sys.stdout, io.TextIOWrapper)
    assert sys.stdout.fileno() == closed, "standard output has not been given back"


def test_a_run_goes_on_where_the_disk_is_full(
    tmp_path: Path, full: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(monkeypatch, full)
    assert exit_code(lambda: int(not small(tmp_path / "run", quiet=False, rounds=3).run().complete)) == 0
    assert rounds_of(tmp_path / "run") == 3


def show() -> None:
    for _ in range(10_000):  # more than buffers hold
        print("a line")


def test_a_report_that_nobody_reads_is_no_error(closed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    told = io.StringIO()
    monkeypatch.setattr(sys, "stderr", told)
    take(monkeypatch, closed)
    assert exit_code(show, shows=True) == 0
    assert told.getvalue() == ""


def test_a_report_that_is_lost_is_an_error(full: int, monkeypatch: pytest.MonkeyPatch) -> None:
    told = io.StringIO()
    monkeypatch.setattr(sys, "stderr", told)
    take(monkeypatch, full)
    assert exit_code(show, shows=True) == 2
    assert told.getvalue() == (
        "warning: standard output cannot be written: No space left on device\n"
        "rayfl: error: standard output: No space left on device\n"
    )
    assert exit_code(show) == 0


def test_standard_error_that_is_full(full: int, monkeypatch: pytest.MonkeyPatch) -> None:
    take(monkeypatch, full)
    take(monkeypatch, os.open("/dev/full", os.O_WRONLY), "stderr")

    def warn() -> None:
        print("warning: something", file=sys.stderr, flush=True)
        print("something", flush=True)

    assert exit_code(warn) == 0


def test_streams_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    with lasting_output() as lost:
        print("something")
        assert sys.stdout.isatty() is False
        assert lost() is None
    assert sys.stdout is None


def test_streams_of_others_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = io.StringIO()
    monkeypatch.setattr(sys, "stdout", notebook)
    with lasting_output():
        assert sys.stdout is notebook
