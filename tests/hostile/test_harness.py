"""The harness itself: what a case must not do is seen."""

import os
import sys
import webbrowser
from collections.abc import Callable
from pathlib import Path

import pytest

from rayfl.errors import BadValue, Conflict
from tests.hostile import harness
from tests.hostile.harness import CANARY, Case, Late, carry_out


def refuse(place: str = "mine") -> None:
    raise BadValue(place, "is wrong")


def conflict(folder: Path) -> None:
    raise Conflict("mine", "is wrong")


def say(arguments: list[str]) -> int:
    print(f"rayfl: error: {arguments[0]}", file=sys.stderr)
    return 2


def write(folder: Path) -> None:
    (folder / "new").touch()
    refuse()


def browse(folder: Path) -> None:
    webbrowser.register("none", None, webbrowser.GenericBrowser("true"), preferred=True)
    webbrowser.open("about:blank")
    refuse()


def leave(folder: Path) -> None:
    os.system(f"touch {CANARY}")
    refuse()


def remove(folder: Path) -> None:
    (folder / "mine").unlink()
    refuse()


@pytest.mark.parametrize(
    ("do", "fault"),
    [
        (lambda folder: refuse(), None),
        (lambda folder: refuse("another"), "at 'another', not 'mine'"),
        (conflict, "Conflict, not BadValue"),
        (["say", "wrong"], "0 errors were told of"),
        (["say", "wrong\nand more"], "not one line"),
        (["say", "wrong \x1b[2J"], "control characters"),
        (["say", "wrong " * 1000], "characters"),
        (["say", "wrong\nTraceback"], "a traceback"),
        (lambda folder: None, "code 0, not 2"),
        (write, "something was written"),
        (remove, "something was written, or is gone"),
        (browse, "commands were run"),
        (leave, "commands were run"),
    ],
)
def test_what_a_case_must_not_do_is_seen(
    do: Callable[[Path], None] | list[str],
    fault: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(harness.COMMANDS, "say", say)
    case = Case("made up", do, BadValue, "mine", files={"mine": "precious"})
    if fault is None:
        carry_out(case, tmp_path, monkeypatch, capsys)
    else:
        with pytest.raises(AssertionError, match=fault):
            carry_out(case, tmp_path, monkeypatch, capsys)


def hang(folder: Path) -> None:
    os.mkfifo(folder / "fifo")
    (folder / "fifo").read_text()


def test_words_that_are_not_said_and_a_case_that_hangs_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(harness.COMMANDS, "say", say)
    carry_out(Case("made up", "say wrong", says="wrong"), tmp_path, monkeypatch, capsys)
    with pytest.raises(AssertionError, match="'right' is not in"):
        carry_out(Case("made up", "say wrong", says="right"), tmp_path, monkeypatch, capsys)
    monkeypatch.setattr(harness, "SECONDS", 0.01)
    with pytest.raises(Late):
        carry_out(Case("made up", hang), tmp_path, monkeypatch, capsys)
