"""Configuration files: what is no file, no YAML, no configuration, or never ends."""

import os
import socket
from pathlib import Path

from rayfl.errors import BadValue, Conflict, Damaged, Missing, Unknown, UserError
from tests.hostile.harness import MAX_LINE, Case

BILLION = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{here}: &{here} [{', '.join([f'*{before}'] * 10)}]\n" for before, here in zip("abcdefgh", "bcdefghi")
)
MERGED = "a: &a {x: 1}\n" + "".join(
    f"{here}: &{here} {{<<: [{', '.join([f'*{before}'] * 10)}]}}\n"
    for before, here in zip("abcdefgh", "bcdefghi")
)
DEEP = "net: " + "[" * 500 + "]" * 500


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


# what is in the file -> what is wrong, and where
BAD: dict[str, tuple[str | bytes, type[UserError], str]] = {
    # without end
    "a list within itself": ("net: &a [*a]", Damaged, "c.yaml"),
    "a mapping within itself": ("training: &a {lr: *a}", Damaged, "c.yaml"),
    "all of it within itself": ("&a\nrounds: 3\nnet: *a", Damaged, "c.yaml"),
    "a billion values by aliases": (BILLION, Damaged, "c.yaml"),
    "a billion values by merging": (MERGED, Damaged, "c.yaml"),
    "a list 500 deep": (DEEP, Damaged, "c.yaml"),
    "a mapping 500 deep": ("a: " + "{a: " * 500 + "1" + "}" * 500, Damaged, "c.yaml"),
    "lines 500 deep": ("\n".join(" " * k + "a:" for k in range(500)), Damaged, "c.yaml"),
    "dashes 500 deep": ("a:\n" + "- " * 500 + "x", Damaged, "c.yaml"),
    "2 MB": ("# " + "x" * 2_000_000, Damaged, "c.yaml"),
    "a number of 5,000 digits": ("rounds: " + "9" * 5000, Damaged, "c.yaml"),
    "a text of 100,000 characters": ("net: " + "x" * 100_000, Unknown, "net"),
    # no text, no YAML
    "zeros": (b"\x00" * 100, Damaged, "c.yaml"),
    "bytes": (bytes(range(256)), Damaged, "c.yaml"),
    "Latin-1": ("output: é".encode("latin-1"), Damaged, "c.yaml"),
    "UTF-16": ("rounds: 3".encode("utf-16"), Damaged, "c.yaml"),
    "an unfinished list": ("net: [", Damaged, "c.yaml"),
    "an unfinished text": ('net: "', Damaged, "c.yaml"),
    "a tab": ("a:\n\tb: 1", Damaged, "c.yaml"),
    "two documents": ("rounds: 1\n---\nrounds: 2", Damaged, "c.yaml"),
    "a name twice": ("rounds: 1\nrounds: 2", Damaged, "c.yaml"),
    "an unknown alias": ("net: *a", Damaged, "c.yaml"),
    "a list for a name": ("? [a]\n: 1", Damaged, "c.yaml"),
    "a mapping for a name": ("training: {? {a: 1} : 1}", Damaged, "c.yaml"),
    # tags
    "a command as a tag": (
        "net: !!python/object/apply:os.system ['touch CANARY']",
        Damaged,
        "c.yaml",
    ),
    "an object as a tag": ("net: !!python/object/new:pathlib.Path [x]", Damaged, "c.yaml"),
    "a name as a tag": ("net: !!python/name:os.system", Damaged, "c.yaml"),
    "a tag of one's own": ("net: !mine x", Damaged, "c.yaml"),
    "bytes as a tag": ("net: !!binary aGVsbG8=", Damaged, "c.yaml"),
    "a set": ("net: !!set {a, b}", Damaged, "c.yaml"),
    "a number that is none": ("rounds: !!int x", Damaged, "c.yaml"),
    "a number that is empty": ('rounds: !!int ""', Damaged, "c.yaml"),
    "a truth that is none": ("quiet: !!bool maybe", Damaged, "c.yaml"),
    "merging a number": ("<<: 3", Damaged, "c.yaml"),
    # no configuration
    "a list": ("- rounds: 3", Damaged, "c.yaml"),
    "a text": ("rounds", Damaged, "c.yaml"),
    "a number": ("3", Damaged, "c.yaml"),
    "an unknown name": ("rouns: 3", Unknown, "rouns"),
    "an empty name": ('"": 3', Unknown, "an empty name"),
    "a number for a name": ("3: 4", Unknown, "3"),
    "nothing for a name": ("null: 4", Unknown, "None"),
    "truth for a name": ("true: 4", Unknown, "True"),
    "control characters in a name": ('"\\e[2J\\a": 3', Unknown, "\x1b[2J\x07"),
    "a dot at the end of a name": ('"training.": 3', Unknown, "training."),
    "a dot at the start of a name": ('".lr": 3', Unknown, ".lr"),
    "two dots in a name": ('"training..lr": 3', Unknown, "training..lr"),
    "options of a number": ("clients: 3\nclients.x: 1", Conflict, "clients.x"),
    "arguments that are a list": (
        "method: {class_path: FedProx, init_args: [1]}",
        BadValue,
        "method.init_args",
    ),
    "a class that is a number": ("method: {class_path: 3}", BadValue, "method.class_path"),
    "a class that is a list": ("method: [FedProx]", BadValue, "method"),
    "a class that is a mapping": ("method: {class_path: {a: b}}", BadValue, "method.class_path"),
    "a partition's arguments that are a text": (
        "data: {class_path: Synthetic, init_args: {partition: {class_path: IID, init_args: x}}}",
        BadValue,
        "data.partition.init_args",
    ),
    "a data set for a partition": (
        "data.partition: {class_path: rayfl.data.Synthetic}",
        BadValue,
        "data.partition",
    ),
    "a value of another type": ("rounds: [1]", BadValue, "rounds"),
    "a mapping for a number": ("rounds: {a: 1}", BadValue, "rounds"),
    "nothing for a number": ("rounds: null", BadValue, "rounds"),
    "a date": ("rounds: 2020-01-01", BadValue, "rounds"),
    "sixty to the base": ("rounds: 1:30x", BadValue, "rounds"),
    "a number of 100 bits": (f"clients: {2**100}", BadValue, "clients"),
    "a list for training": ("training: [1]", BadValue, "training"),
    "NUL in a path": ('output: "a\\0b"', BadValue, "output"),
    "NUL in the data's path": (
        'data: {class_path: CIFAR10, init_args: {root: "\\0"}}',
        BadValue,
        "data.root",
    ),
    "half of a character": ('output: "\\ud800"', Damaged, "c.yaml"),
    "a cell without row and column": (
        "cell: {table: a}",
        Missing,
        "cell.row",
    ),
    "a cell of numbers": ("cell: {table: 1, row: 2, column: 3, changed: 4}", BadValue, "cell.table"),
    "a file for training that is missing": ("training: x.yaml", Missing, "x.yaml"),
    "a file for training that is this one": ("training: c.yaml", Unknown, "training.training"),
    "a folder for training": ("training: .", Missing, "."),
}

CASES = [
    *(
        Case(
            name,
            "run --engine Inline --config c.yaml",
            kind,
            place,
            files={"c.yaml": content},
        )
        for name, (content, kind, place) in BAD.items()
    ),
    Case("a file that is not there", "run --config c.yaml", Missing, "c.yaml"),
    Case("a folder", "run --config .", Missing, "."),
    Case(
        "a fifo",
        "run --config fifo",
        Missing,
        "fifo",
        prepare=lambda folder: os.mkfifo(folder / "fifo"),
    ),
    Case("a device", "run --config /dev/zero", Missing, "/dev/zero"),
    Case("a socket", "run --config socket", Missing, "socket", prepare=_socket),
    Case(
        "a file of 1 TB",
        "run --config c.yaml",
        Damaged,
        "c.yaml",
        prepare=_huge,
    ),
    Case(
        "a link to itself",
        "run --config c.yaml",
        Missing,
        "c.yaml",
        prepare=lambda folder: (folder / "c.yaml").symlink_to("c.yaml"),
    ),
    Case("somebody else's home", "run --config ~nobodyhere/c.yaml", Missing, "~nobodyhere/c.yaml"),
    Case(
        "a name of 5,000 characters",
        ["run", "--config", "x" * 5000],
        Missing,
        "x" * 5000,
    ),
    Case("NUL in the name", ["run", "--config", "a\0b"], Missing, "a\x00b"),
    Case("a file without a name", "run --config=", Missing, "."),
    Case(
        "the second of two files",
        "run --config a.yaml --config b.yaml",
        Missing,
        "b.yaml",
        files={"a.yaml": "{}"},
    ),
    Case(
        "a fifo for training",
        "run --training fifo",
        Missing,
        "fifo",
        prepare=lambda folder: os.mkfifo(folder / "fifo"),
    ),
    Case(
        "a device for training",
        "run --training=/dev/zero",
        Missing,
        "/dev/zero",
    ),
    Case(
        "a fifo for training in a file",
        "run --config c.yaml",
        Missing,
        "fifo",
        files={"c.yaml": "training: fifo"},
        prepare=lambda folder: os.mkfifo(folder / "fifo"),
    ),
    Case(
        "training 500 deep",
        "run --training t.yaml",
        Damaged,
        "t.yaml",
        files={"t.yaml": DEEP},
    ),
    Case(
        "other options for training",
        "run --training t.yaml",
        Unknown,
        "training.rounds",
        files={"t.yaml": "rounds: 3"},
    ),
    Case(
        "a recorded configuration without end",
        "run --resume run",
        Damaged,
        "run/config.yaml",
        files={"run/config.yaml": "net: &a [*a]"},
    ),
    Case(
        "a recorded configuration that is empty",
        "run --resume run",
        Damaged,
        "run/config.yaml",
        files={"run/config.yaml": ""},
    ),
    Case(
        "a recorded configuration that is a list, reported",
        "report run",
        Damaged,
        "run/config.yaml",
        files={"run/config.yaml": "- 1", "run/metrics.jsonl": ""},
    ),
    Case(
        "a recorded configuration without end, reported",
        "report run",
        Damaged,
        "run/config.yaml",
        files={"run/config.yaml": "net: &a [*a]", "run/metrics.jsonl": ""},
    ),
    Case(
        "a recorded configuration 500 deep, drawn",
        "figure rounds run --save x.png",
        Damaged,
        "run/config.yaml",
        files={"run/config.yaml": DEEP, "run/metrics.jsonl": ""},
    ),
    Case(
        "options of training from a file",
        "run --config c.yaml --rounds 0",
        BadValue,
        "rounds",  # all else is fine
        files={"c.yaml": "training: t.yaml", "t.yaml": "lr: 0.5"},
    ),
]
assert MAX_LINE < 5000  # so that the long ones show that values are cut
