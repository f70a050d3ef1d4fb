"""Cases of bad input as data, and the one way in which all of them are carried out.

A case is a command line, or a call from Python, in a folder of its own. What is asserted of each: the exit
code; one error of the expected kind and place, told in one line; no traceback; nothing written; no command
run; a timely end.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from shutil import copytree
from types import FrameType
from typing import Any

import pytest
import ray

from rayfl.commands import figure, report, run, table, tune
from rayfl.errors import UserError
from rayfl.system.error_report import exit_code
from tests.support import refusals
from tests.support.federations import small

SECONDS = 20  # until a case counts as one that hangs; no case takes one
MAX_LINE = 2000  # characters of a line of error
CANARY = "CANARY"
"""What a command that must not run would make: a file of this name in the case's folder."""

COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "run": run.main,
    "table": table.main,
    "tune": tune.main,
    "report": report.main,
    "figure": figure.main,
}


@dataclass(frozen=True)
class Case:
    """A bad input, and what has to be said of it.

    Attributes:
        name: what the test is called.
        do: a command line (``run --rounds 0``, split at spaces unless it is a list), or a call that is handed
            the case's folder, which is the current one.
        kind: of the error; None where ``code`` is 0.
        place: of the error, as :func:`tests.support.refusals.refused` takes it.
        says: words that the line of error has, or the output.
        code: the exit code: 2 for an error of the user's.
        files: name -> content of files that are there before; folders above them are made.
        prepare: called with the folder, once the files are there.
        traceback: whether the user's own code has raised, whose traceback follows the line.
        writes: whether the case may write into its folder.
    """

    name: str
    do: str | list[str] | Callable[[Path], Any]
    kind: type[UserError] | None = None
    place: str = ""
    says: str = ""
    code: int = 2
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    prepare: Callable[[Path], Any] | None = None
    traceback: bool = False
    writes: bool = False


class Late(BaseException):
    """A case takes far too long."""


class Commands:
    """The commands that Python was asked to run while this was switched on."""

    EVENTS = (
        "subprocess.Popen",
        "os.system",
        "os.exec",
        "os.posix_spawn",
        "os.spawn",
        "os.fork",
        "os.forkpty",
    )
    ALLOWED = ("git", "uname")  # for environment.json, and by Python's platform
    OF_RAY = os.path.dirname(ray.__file__)  # its daemons, where a case is the first that starts it

    def __init__(self) -> None:
        self.on = False
        self.seen: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.on and (event in self.EVENTS or event.startswith(("webbrowser.", "pty."))):
            text = " ".join(map(str, arguments))
            allowed = os.path.basename(str(arguments[0] if arguments else "")) in self.ALLOWED
            if not allowed and self.OF_RAY not in text:
                self.seen.append(f"{event} {text}")


@cache
def _commands() -> Commands:
    return Commands()  # an audit hook stays for good


def put_run(folder: Path, name: str = "run", **changes: Any) -> Path:
    """Copy a finished run of two rounds with its checkpoints into a case's folder.

    Args:
        folder: of the case.
        name: of the run folder.
        changes: arguments of the federation that are to be others.
    """
    copytree(_run_once(tuple(sorted(changes.items()))), folder / name)
    return folder / name


_made = tempfile.TemporaryDirectory(prefix="hostile-")


@cache
def _run_once(changes: tuple[tuple[str, Any], ...]) -> Path:
    path = Path(_made.name, f"run-{len(os.listdir(_made.name))}")
    settings = {"rounds": 2, "checkpoint_every": 1, "clients": 4, **dict(changes)}
    small(path, **settings).run()
    return path


def carry_out(
    case: Case, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Carry out a case in a folder, and assert all that holds of every case."""
    for name, content in case.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    if case.prepare is not None:
        case.prepare(folder)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))  # where a user's own modules lie
    monkeypatch.setenv("RAYFL_CACHE", str(folder.parent / f"{folder.name}-cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    modules = set(sys.modules)
    before = _state(folder)
    capsys.readouterr()
    commands = _commands()
    commands.seen.clear()
    told = refusals.listen(monkeypatch)
    with _in_time():
        commands.on = True
        try:
            code = _code(case, folder)
        finally:
            commands.on = False
            for name in set(sys.modules) - modules:  # another case has another module of this name
                if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
                    del sys.modules[name]
    said = capsys.readouterr()
    assert not commands.seen, f"commands were run: {commands.seen}"
    assert not (folder / CANARY).exists(), "a command was run"
    assert code == case.code, f"code {code}, not {case.code}: {said.out}\n{said.err}"
    _check_said(case, said.out, said.err)
    if case.kind is not None:
        assert len(told) == 1, f"{len(told)} errors were told of"
        refusals.check(told[0], case.kind, case.place)
    if not case.writes:
        assert _state(folder) == before, "something was written, or is gone"


def _code(case: Case, folder: Path) -> Any:
    do = case.do
    if callable(do):
        return exit_code(lambda: do(folder) and None)
    command, *arguments = do.split() if isinstance(do, str) else do
    try:
        return COMMANDS[command](arguments)
    except SystemExit as end:  # --help and the like
        return end.code


def _check_said(case: Case, out: str, err: str) -> None:
    lines = [line for line in err.splitlines() if not line.startswith("warning: ")]
    if case.traceback:
        assert lines[1].startswith("Traceback"), err
        lines, text = lines[:1], lines[0]
    else:
        assert "Traceback" not in out + err, f"a traceback: {err}"
        text = "\n".join(lines)
    if case.code == 2:
        assert len(lines) == 1, f"not one line: {err}"
        assert lines[0].startswith("rayfl: error: "), err
        assert lines[0].isprintable(), f"control characters: {lines[0]!r}"
        assert len(lines[0]) <= MAX_LINE, f"{len(lines[0])} characters"
    else:
        text = out + err
    assert case.says in text, f"{case.says!r} is not in {text!r}"


@contextmanager
def _in_time() -> Iterator[None]:
    def late(number: int, frame: FrameType | None) -> None:
        raise Late(f"not over after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _state(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Return what lies in a folder and below, with mode, size and, of all but folders, time of change."""
    found = {}
    for above, folders, files in os.walk(folder):
        for name in folders + files:
            path = os.path.join(above, name)
            status = os.lstat(path)
            size_and_time = (0, 0) if name in folders else (status.st_size, status.st_mtime_ns)
            found[path] = (status.st_mode, *size_and_time)
    return found
