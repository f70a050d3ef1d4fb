"""How command lines tell of what went wrong, and of what they warn."""

import errno
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from rayfl.errors import BadValue, Conflict, Damaged, Missing, Shortage, UserError
from rayfl.run import main
from rayfl.system.error_report import MAX_LINE, exit_code, in_one_line
from tests.support.refusals import told


def raising(error: BaseException) -> Callable[[], None]:
    def command() -> None:
        raise error

    return command


FULL = "No space left on device"
DENIED = PermissionError(errno.EACCES, "Permission denied", "some/file")
ADVICE = "use less data, smaller inputs or fewer clients"


@pytest.mark.parametrize(
    ("error", "kind", "place", "says"),
    [
        (Conflict("net", "is too deep"), Conflict, "net", "net is too deep"),
        (DENIED, Missing, "some/file", "some/file: Permission denied"),
        (OSError(errno.EACCES, None, "a/b"), Missing, "a/b", "a/b: [Errno 13] None: 'a/b'"),
        (OSError(errno.ENOSPC, "", "a"), Shortage, "", f"a: {FULL}: make room; then start it again"),
        (MemoryError(), Shortage, "", f"not enough memory: {ADVICE}"),
        (MemoryError("9 GB"), Shortage, "", f"not enough memory (9 GB): {ADVICE}"),
    ],
)
def test_what_a_user_can_put_right_is_in_one_line(
    capsys: pytest.CaptureFixture[str], error: Exception, kind: type[UserError], place: str, says: str
) -> None:
    with told(kind, place):
        assert exit_code(raising(error)) == 2
    assert capsys.readouterr().err == f"rayfl: error: {says}\n"


def test_a_cause_that_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Errors of others may have an attribute of this name that is a text."""
    error = PermissionError(errno.EACCES, "Permission denied", "some/file")
    error.cause = "the rights of the file"  # type: ignore[attr-defined]
    assert exit_code(raising(error)) == 2
    assert capsys.readouterr().err == "rayfl: error: some/file: Permission denied\n"


def test_an_array_that_is_too_large(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> None:
        np.empty(2**55, np.uint8)

    assert exit_code(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("rayfl: error: not enough memory (Unable to allocate")
    with told(Shortage):
        assert exit_code(lambda: print(torch.empty(2**55))) == 2


@pytest.mark.parametrize("error", [ValueError("a mistake"), ConnectionError("lost"), OSError("whatever")])
def test_mistakes_of_ours_are_not_hidden(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)):
        exit_code(raising(error))


def test_what_code_of_the_users_own_raises_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line names it; a message that it has for people stands alone."""
    (tmp_path / "users_net.py").write_text(
        "from rayfl import UserError\n"
        "def net(shape, classes):\n"
        "    return shape[7]\n"
        "def other(shape, classes):\n"
        "    raise UserError('use another')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    tiny = ["--engine", "Inline", "--data", "Synthetic", "--data.train", "60", "--data.test", "20", "--net"]
    assert main([*tiny, "users_net.net"]) == 2
    line, title, *trace = capsys.readouterr().err.splitlines()
    assert line.startswith("rayfl: error: net users_net.net does not work for")
    assert line.endswith("IndexError: tuple index out of range")
    assert title == "Traceback (most recent call last):"
    assert trace[-1] == "  IndexError: tuple index out of range"
    assert any("return shape[7]" in text for text in trace)
    assert main([*tiny, "users_net.other"]) == 2
    assert capsys.readouterr().err == "rayfl: error: use another\n"


def test_a_message_is_one_line_of_a_bounded_length() -> None:
    assert in_one_line("a\n  b\x1b[2J\udcff ± c") == "a b\\x1b[2J\\udcff ± c"
    assert in_one_line("x" * MAX_LINE) == "x" * MAX_LINE
    assert len(in_one_line("x" * 10_000)) == MAX_LINE


def test_a_warning_about_data_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    options = "--data.train 60 --data.test 20 --data.domains 3 --data.partition DomainPerClient --clients 2"
    command = f"--data Synthetic {options} --engine Inline --rounds 1 --net no.net --quiet true"
    assert main(command.split()) == 2
    warned, refused = capsys.readouterr().err.splitlines()
    assert warned.startswith("warning: DomainPerClient: ")
    assert refused.startswith("rayfl: error: ")


def test_a_folder_of_data_that_is_closed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = Path.is_dir
    refused = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "closed"))
    # As to everyone but root; by a part of Python, because what this file raises is code of the user's own.
    closed = Mock(side_effect=refused)
    monkeypatch.setattr(
        Path, "is_dir", property(lambda path: closed if path.name == "closed" else partial(usual, path))
    )
    root = tmp_path / "closed"
    assert main(["--engine", "Inline", "--data", "PACS", "--data.root", str(root)]) == 2
    assert capsys.readouterr().err == f"rayfl: error: {root}: Permission denied\n"


def test_an_error_keeps_kind_and_place_between_processes() -> None:
    made = BadValue("training.lr", "is 0", "it must be above 0").within("a.yaml")
    error = pickle.loads(pickle.dumps(made))
    assert type(error) is BadValue
    assert (error.place, error.problem) == ("training.lr", "is 0")
    assert (error.remedy, error.context) == ("it must be above 0", "a.yaml")
    assert str(error) == "a.yaml: training.lr is 0: it must be above 0"
    assert str(Damaged("a.yaml", ": no YAML", "Restore it")) == "a.yaml: no YAML. Restore it"
    assert str(Damaged("a.yaml", "is cut", "; mend it")) == "a.yaml is cut; mend it"
    assert BadValue("nothing").place == ""
    assert BadValue("--rounds", "is 0").place == "rounds"


def test_an_error_that_is_found_in_something_keeps_kind_and_place() -> None:
    error = BadValue("training.lr", "is 0").within("a.yaml")
    assert (type(error), error.place, str(error)) == (BadValue, "training.lr", "a.yaml: training.lr is 0")
    assert Damaged("no YAML").within("a.yaml").place == "a.yaml"
    outer = error.within("the sweep")
    assert (outer.place, str(outer)) == ("training.lr", "the sweep: a.yaml: training.lr is 0")
    assert str(error) == "a.yaml: training.lr is 0"
    moved = BadValue("method.mu", "is 0").within(place="method.of.mu")
    assert (moved.place, str(moved)) == ("method.of.mu", "method.of.mu is 0")
    other = Missing("net", "is gone").within("method.meme", "method.meme")
    assert (other.place, str(other)) == ("method.meme", "method.meme: net is gone")


class Own(UserError):
    """With a constructor of its own."""

    def __init__(self, name: str) -> None:
        super().__init__("net", f"is {name}")


def test_an_error_of_the_users_own_travels_between_processes() -> None:
    error = pickle.loads(pickle.dumps(Own("odd"))).within("a.yaml")
    assert (type(error), str(error)) == (Own, "a.yaml: net is odd")
