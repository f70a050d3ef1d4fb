"""Configuration files: what is no file, no YAML, no configuration, or never ends."""

import os
import socket
from pathlib import Path

from tests.hostile.harness import LONGEST, Case

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


# what is in the file -> what is said
BAD: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    # without end
    "a list within itself": ("net: &a [*a]", ("c.yaml is not valid YAML in line 1", "*a stands within")),
    "a mapping within itself": ("training: &a {lr: *a}", ("c.yaml is not valid YAML", "*a stands within")),
    "all of it within itself": ("&a\nrounds: 3\nnet: *a", ("line 3: *a stands within",)),
    "a billion values by aliases": (BILLION, ("c.yaml is not valid YAML", "more than 100,000 values")),
    "a billion values by merging": (MERGED, ("c.yaml is not valid YAML", "more than 100,000 values")),
    "a list 500 deep": (DEEP, ("c.yaml is not valid YAML", "nested more than 50 deep")),
    "a mapping 500 deep": ("a: " + "{a: " * 500 + "1" + "}" * 500, ("nested more than 50 deep",)),
    "lines 500 deep": ("\n".join(" " * k + "a:" for k in range(500)), ("nested more than 50 deep",)),
    "dashes 500 deep": ("a:\n" + "- " * 500 + "x", ("nested more than 50 deep",)),
    "2 MB": ("# " + "x" * 2_000_000, ("c.yaml cannot be read: it is larger than 1 MB",)),
    "a number of 5,000 digits": ("rounds: " + "9" * 5000, ("c.yaml is not valid YAML",)),
    "a text of 100,000 characters": ("net: " + "x" * 100_000, ("there is no net",)),
    # no text, no YAML
    "zeros": (b"\x00" * 100, ("c.yaml is not valid YAML",)),
    "bytes": (bytes(range(256)), ("c.yaml is not valid YAML: it is no text",)),
    "Latin-1": ("output: é".encode("latin-1"), ("c.yaml is not valid YAML: it is no text",)),
    "UTF-16": ("rounds: 3".encode("utf-16"), ("c.yaml is not valid YAML: it is no text",)),
    "an unfinished list": ("net: [", ("c.yaml is not valid YAML",)),
    "an unfinished text": ('net: "', ("c.yaml is not valid YAML",)),
    "a tab": ("a:\n\tb: 1", ("c.yaml is not valid YAML",)),
    "two documents": ("rounds: 1\n---\nrounds: 2", ("c.yaml is not valid YAML", "another document")),
    "a name twice": ("rounds: 1\nrounds: 2", ("c.yaml is not valid YAML", "'rounds' is there twice")),
    "an unknown alias": ("net: *a", ("c.yaml is not valid YAML",)),
    "a list for a name": ("? [a]\n: 1", ("c.yaml is not valid YAML", "unhashable")),
    "a mapping for a name": ("training: {? {a: 1} : 1}", ("c.yaml is not valid YAML", "unhashable")),
    # tags
    "a command as a tag": (
        "net: !!python/object/apply:os.system ['touch CANARY']",
        ("c.yaml is not valid YAML", "could not determine a constructor"),
    ),
    "an object as a tag": ("net: !!python/object/new:pathlib.Path [x]", ("c.yaml is not valid YAML",)),
    "a name as a tag": ("net: !!python/name:os.system", ("c.yaml is not valid YAML",)),
    "a tag of one's own": ("net: !mine x", ("c.yaml is not valid YAML",)),
    "bytes as a tag": ("net: !!binary aGVsbG8=", ("c.yaml is not valid YAML",)),
    "a set": ("net: !!set {a, b}", ("c.yaml is not valid YAML",)),
    "a number that is none": ("rounds: !!int x", ("c.yaml is not valid YAML",)),
    "a number that is empty": ('rounds: !!int ""', ("c.yaml is not valid YAML",)),
    "a truth that is none": ("quiet: !!bool maybe", ("c.yaml is not valid YAML",)),
    "merging a number": ("<<: 3", ("c.yaml is not valid YAML",)),
    # no configuration
    "a list": ("- rounds: 3", ("c.yaml is not a configuration", "holds a list")),
    "a text": ("rounds", ("c.yaml is not a configuration", "holds a str")),
    "a number": ("3", ("c.yaml is not a configuration", "holds a int")),
    "an unknown name": ("rouns: 3", ("c.yaml: there is no option rouns; did you mean rounds?",)),
    "an empty name": ('"": 3', ("c.yaml: there is no option",)),
    "a number for a name": ("3: 4", ("c.yaml: there is no option 3",)),
    "nothing for a name": ("null: 4", ("c.yaml: there is no option",)),
    "truth for a name": ("true: 4", ("c.yaml: there is no option",)),
    "control characters in a name": ('"\\e[2J\\a": 3', ("c.yaml: there is no option",)),
    "a dot at the end of a name": ('"training.": 3', ("c.yaml: there is no option",)),
    "a dot at the start of a name": ('".lr": 3', ("c.yaml: there is no option",)),
    "two dots in a name": ('"training..lr": 3', ("c.yaml: there is no option",)),
    "options of a number": ("clients: 3\nclients.x: 1", ("c.yaml: ", "clients")),
    "arguments that are a list": (
        "method: {class_path: FedProx, init_args: [1]}",
        ("c.yaml: method.init_args must map arguments to values",),
    ),
    "a class that is a number": ("method: {class_path: 3}", ("c.yaml: method.class_path must be the name",)),
    "a class that is a list": ("method: [FedProx]", ("method",)),
    "a class that is a mapping": ("method: {class_path: {a: b}}", ("method.class_path must be the name",)),
    "a partition's arguments that are a text": (
        "data: {class_path: Synthetic, init_args: {partition: {class_path: IID, init_args: x}}}",
        ("c.yaml: data.partition.init_args must map",),
    ),
    "a data set for a partition": (
        "data.partition: {class_path: rayfl.data.Synthetic}",
        ("data.partition", "does not correspond to a subclass"),
    ),
    "a value of another type": ("rounds: [1]", ("rounds is [1]: it must be a whole number",)),
    "a mapping for a number": ("rounds: {a: 1}", ("rounds is {'a': 1}: it must be a whole number",)),
    "nothing for a number": ("rounds: null", ("rounds is null",)),
    "a date": ("rounds: 2020-01-01", ("rounds is 2020-01-01: it must be a whole number",)),
    "sixty to the base": ("rounds: 1:30x", ("rounds is 1:30x",)),
    "a number of 100 bits": (f"clients: {2**100}", ("clients", "it must be a whole number")),
    "a list for training": ("training: [1]", ("c.yaml: training must map options to values",)),
    "NUL in a path": ('output: "a\\0b"', ("output is 'a\\x00b'", "without the character NUL")),
    "NUL in the data's path": (
        'data: {class_path: CIFAR10, init_args: {root: "\\0"}}',
        ("data.root is '\\x00'", "without the character NUL"),
    ),
    "half of a character": ('output: "\\ud800"', ("c.yaml is not valid YAML",)),
    "a cell without row and column": (
        "cell: {table: a}",
        ("cell Cell needs --cell.row and --cell.column",),
    ),
    "a cell of numbers": ("cell: {table: 1, row: 2, column: 3, changed: 4}", ("cell.", "it must be a")),
    "a file for training that is missing": ("training: x.yaml", ("x.yaml cannot be read: No such file",)),
    "a file for training that is this one": ("training: c.yaml", ("there is no option training.training",)),
    "a folder for training": ("training: .", (". cannot be read: Is a directory",)),
}

CASES = [
    *(
        Case(
            name, "run --engine Inline --data Synthetic --config c.yaml", says=says, files={"c.yaml": content}
        )
        for name, (content, says) in BAD.items()
    ),
    Case("a file that is not there", "run --config c.yaml", says="c.yaml cannot be read: No such file"),
    Case("a folder", "run --config .", says=". cannot be read: Is a directory"),
    Case(
        "a fifo",
        "run --config fifo",
        says="fifo cannot be read: it is not a regular file",
        prepare=lambda folder: os.mkfifo(folder / "fifo"),
    ),
    Case("a device", "run --config /dev/zero", says="/dev/zero cannot be read: it is not a regular file"),
    Case(
        "a socket", "run --config socket", says="socket cannot be read: it is not a regular", prepare=_socket
    ),
    Case(
        "a file of 1 TB",
        "run --config c.yaml",
        says="c.yaml cannot be read: it is larger than",
        prepare=_huge,
    ),
    Case(
        "a link to itself",
        "run --config c.yaml",
        says="c.yaml cannot be read: ",
        prepare=lambda folder: (folder / "c.yaml").symlink_to("c.yaml"),
    ),
    Case("somebody else's home", "run --config ~nobodyhere/c.yaml", says="~nobodyhere/c.yaml cannot be read"),
    Case(
        "a name of 5,000 characters",
        ["run", "--config", "x" * 5000],
        says="cannot be read: File name too long",
    ),
    Case("NUL in the name", ["run", "--config", "a\0b"], says="cannot be read: embedded null byte"),
    Case("a file without a name", "run --config=", says="cannot be read: Is a directory"),
    Case(
        "the second of two files",
        "run --config a.yaml --config b.yaml",
        says="b.yaml",
        files={"a.yaml": "{}"},
    ),
    Case(
        "a fifo for training",
        "run --training fifo",
        says="fifo cannot be read: it is not a regular file",
        prepare=lambda folder: os.mkfifo(folder / "fifo"),
    ),
    Case(
        "a device for training",
        "run --training=/dev/zero",
        says="/dev/zero cannot be read: it is not a regul",
    ),
    Case(
        "a fifo for training in a file",
        "run --config c.yaml",
        says="fifo cannot be read: it is not a regular file",
        files={"c.yaml": "training: fifo"},
        prepare=lambda folder: os.mkfifo(folder / "fifo"),
    ),
    Case(
        "training 500 deep",
        "run --training t.yaml",
        says=("t.yaml is not valid YAML", "50 deep"),
        files={"t.yaml": DEEP},
    ),
    Case(
        "other options for training",
        "run --training t.yaml",
        says="there is no option training.rounds",
        files={"t.yaml": "rounds: 3"},
    ),
    Case(
        "a recorded configuration without end",
        "run --resume run",
        says=("config.yaml is not valid YAML", "*a stands within"),
        files={"run/config.yaml": "net: &a [*a]"},
    ),
    Case(
        "a recorded configuration that is empty",
        "run --resume run",
        says="config.yaml has no settings",
        files={"run/config.yaml": ""},
    ),
    Case(
        "a recorded configuration that is a list, reported",
        "report run",
        says="config.yaml is not a configuration",
        files={"run/config.yaml": "- 1", "run/metrics.jsonl": ""},
    ),
    Case(
        "a recorded configuration without end, reported",
        "report run",
        says=("config.yaml is not valid YAML", "*a stands within"),
        files={"run/config.yaml": "net: &a [*a]", "run/metrics.jsonl": ""},
    ),
    Case(
        "a recorded configuration 500 deep, drawn",
        "figure rounds run --save x.png",
        says=("config.yaml is not valid YAML", "50 deep"),
        files={"run/config.yaml": DEEP, "run/metrics.jsonl": ""},
    ),
    Case(
        "options of training from a file",
        "run --config c.yaml --rounds 0",
        says="rounds is 0",  # all else is fine
        files={"c.yaml": "training: t.yaml", "t.yaml": "lr: 0.5"},
    ),
]
assert LONGEST < 5000  # so that the long ones show that values are cut
