"""Configuration files: what is no file, no YAML, no configuration, or never ends."""

import os
import socket
from pathlib import Path

from rayfl.errors import BadValue, Conflict, Damaged, Missing, Unknown, UserError
from tests.hostile.harness import MAX_LINE, Case

BILLION = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{here}: &{here} [{', '.join([f'*{before}'] * 10)}]\n" for before, here in zip("abcdefgh", "bcdefghi")
)


def _socket(folder: Path) -> None:
    here = os.open(".", os.O_RDONLY)
    os.chdir(folder)  # because the whole path may be too long for a socket
    made = socket.socket(socket.AF_UNIX)
    made.bind("socket")
    made.close()
    os.fchdir(here)
    os.close(here)


def _huge(folder: Path) -> None:
    with (folder / "c.yaml").open("wb") as file:
        file.truncate(10**12)  # without taking any room


# what is in the file, which is damaged
DAMAGED: dict[str, str | bytes] = {
    # without end
    "a list within itself": "net: &a [*a]",
    "a billion values by aliases": BILLION,
    "a mapping 500 deep": "a: " + "{a: " * 500 + "1" + "}" * 500,
    "2 MB": "# " + "x" * 2_000_000,
    "a number of 5,000 digits": "rounds: " + "9" * 5000,
    # no text, no YAML
    "zeros": b"\x00" * 100,
    "bytes": bytes(range(256)),
    "a tab": "a:\n\tb: 1",
    "two documents": "rounds: 1\n---\nrounds: 2",
    "a name twice": "rounds: 1\nrounds: 2",
    "an unknown alias": "net: *a",
    "a list for a name": "? [a]\n: 1",
    # tags
    "a command as a tag": "net: !!python/object/apply:os.system ['touch CANARY']",
    "bytes as a tag": "net: !!binary aGVsbG8=",
    "a truth that is none": "quiet: !!bool maybe",
    # no configuration
    "a number": "3",
    "half of a character": 'output: "\\ud800"',
}

# what is in the file -> what is wrong, and where
BAD: dict[str, tuple[str, type[UserError], str]] = {
    "a text of 100,000 characters": ("net: " + "x" * 100_000, Unknown, "net"),
    "an empty name": ('"": 3', Unknown, "an empty name"),
    "a number for a name": ("3: 4", Unknown, "3"),
    "control characters in a name": ('"\\e[2J\\a": 3', Unknown, "\x1b[2J\x07"),
    "a dot at the end of a name": ('"training.": 3', Unknown, "training."),
    "options of a number": ("clients: 3\nclients.x: 1", Conflict, "clients.x"),
    "a list for options": ("method: {class_path: FedProx, init_args: [1]}", BadValue, "method.init_args"),
    "a class that is a list": ("method: [FedProx]", BadValue, "method"),
    "a class that is a mapping": ("method: {class_path: {a: b}}", BadValue, "method.class_path"),
    "a date": ("rounds: 2020-01-01", BadValue, "rounds"),
    "NUL in a path": ('output: "a\\0b"', BadValue, "output"),
    "a cell without row and column": ("cell: {table: a}", Missing, "cell.row"),
    "a cell of numbers": ("cell: {table: 1, row: 2, column: 3, changed: 4}", BadValue, "cell.table"),
    "a list for options of training": ("training: [1]", BadValue, "training"),
    "a file for training that is missing": ("training: x.yaml", Missing, "x.yaml"),
    "a file for training that is this one": ("training: c.yaml", Unknown, "training.training"),
    "a folder for training": ("training: .", Missing, "."),
    "options of a file for training": ("training: t.yaml", Unknown, "training.rounds"),
    "a value beside a file for training": ("rounds: 0\ntraining: good.yaml", BadValue, "rounds"),
}
OTHERS = {"t.yaml": "rounds: 3", "good.yaml": "lr: 0.5"}

CASES = [
    *(
        Case(name, "run --engine Inline --config c.yaml", Damaged, "c.yaml", files={"c.yaml": content})
        for name, content in DAMAGED.items()
    ),
    *(
        Case(name, "run --engine Inline --config c.yaml", kind, place, files={"c.yaml": content} | OTHERS)
        for name, (content, kind, place) in BAD.items()
    ),
    Case("a fifo", "run --config f", Missing, "f", prepare=lambda folder: os.mkfifo(folder / "f")),
    Case(
        "a fifo for training",
        "run --training f",
        Missing,
        "f",
        prepare=lambda folder: os.mkfifo(folder / "f"),
    ),
    Case("a socket", "run --config socket", Missing, "socket", prepare=_socket),
    Case("a file of 1 TB", "run --config c.yaml", Damaged, "c.yaml", prepare=_huge),
    Case("somebody else's home", "run --config ~nobodyhere/c.yaml", Missing, "~nobodyhere/c.yaml"),
    Case("a name of 5,000 characters", f"run --config {'x' * 5000}", Missing, "x" * 5000),
    Case("NUL in the name", "run --config a\0b", Missing, "a\0b"),
    Case("a file without a name", "run --config=", Missing, "."),
    Case(
        "the second of two files",
        "run --config a.yaml --config b.yaml",
        Missing,
        "b.yaml",
        files={"a.yaml": "{}"},
    ),
]
assert MAX_LINE < 5000  # so that the long ones show that values are cut
