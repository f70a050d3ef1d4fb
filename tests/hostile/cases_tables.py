"""Table files, and the command that runs them."""

import os

from rayfl.errors import BadValue, Conflict, Damaged, Missing, Shortage, Unknown, UserError
from tests.hostile.harness import Case

TABLE = """\
table: tiny
seeds: [0]
base: {data: Synthetic, data.train: 200, data.test: 60, net: LeNet, clients: 4, rounds: 1, loggers: []}
columns:
  even: {data.partition: IID}
  other: {data.partition: Dirichlet}
rows:
  A: {method: FedAvg}
  P: {method: FedProx, method.mu: 0.1}
"""


def _changed(old: str, new: str) -> dict[str, str]:
    assert old in TABLE
    return {"t.yaml": TABLE.replace(old, new, 1)}


# what is replaced, by what -> what is wrong, and where
BAD: dict[str, tuple[str, str, type[UserError], str]] = {
    "a seed twice": ("[0]", "[0, 0]", BadValue, "seeds"),
    "a seed twice among others": ("[0]", "[1, 2, 1]", BadValue, "seeds"),
    "no seeds": ("[0]", "[]", BadValue, "seeds"),
    "a number of seeds": ("[0]", "3", BadValue, "seeds"),
    "texts for seeds": ("[0]", "[a]", BadValue, "seeds"),
    "truth for seeds": ("[0]", "[true]", BadValue, "seeds"),
    "lists for seeds": ("[0]", "[[0]]", BadValue, "seeds"),
    "half a seed": ("[0]", "[0.5]", BadValue, "seeds"),
    "a row's seed": (
        "{method: FedAvg}",
        "{method: FedAvg, seed: 3}",
        Conflict,
        "rows.A.seed",
    ),
    "a row's output": (
        "{method: FedAvg}",
        "{method: FedAvg, output: x}",
        Conflict,
        "rows.A.output",
    ),
    "a row's config": (
        "{method: FedAvg}",
        "{method: FedAvg, config: x}",
        Conflict,
        "rows.A.config",
    ),
    "a row's resume": (
        "{method: FedAvg}",
        "{method: FedAvg, resume: x}",
        Conflict,
        "rows.A.resume",
    ),
    "a row's cell": ("{method: FedAvg}", "{method: FedAvg, cell: {}}", Conflict, "rows.A.cell"),
    "a column's seed": ("{data.partition: IID}", "{seed: 1}", Conflict, "columns.even.seed"),
    "the base's seed": ("clients: 4", "seed: 4", Conflict, "base.seed"),
    "a seed at a column": (
        "{method: FedAvg}",
        "{method: FedAvg, at: {even: {seed: 3}}}",
        Conflict,
        "rows.A.at.even.seed",
    ),
    "at is a number": ("{method: FedAvg}", "{method: FedAvg, at: 3}", BadValue, "rows.A.at"),
    "at no column": ("{method: FedAvg}", "{method: FedAvg, at: {x: {}}}", Unknown, "rows.A.at"),
    "at a column a number": (
        "{method: FedAvg}",
        "{method: FedAvg, at: {even: 3}}",
        BadValue,
        "rows.A.at.even",
    ),
    "a row without a method": ("{method: FedAvg}", "{}", Missing, "rows.A"),
    "a row that is a number": ("{method: FedAvg}", "3", Missing, "rows.A"),
    "a row that is nothing": ("{method: FedAvg}", "null", Missing, "rows.A"),
    "a method that is a list": ("{method: FedAvg}", "{method: [FedAvg]}", Missing, "rows.A"),
    "an unknown method": (
        "{method: FedAvg}",
        "{method: FedAvgg}",
        Unknown,
        "method",
    ),
    "an unknown option": ("{method: FedAvg}", "{method: FedAvg, roundz: 3}", Unknown, "roundz"),
    "another type": ("{method: FedAvg}", "{method: FedAvg, rounds: x}", BadValue, "rounds"),
    "a set": ("{method: FedAvg}", "{method: FedAvg, net: !!set {a}}", Damaged, "t.yaml"),
    "a date": ("{method: FedAvg}", "{method: FedAvg, rounds: 2020-01-01}", BadValue, "rounds"),
    "NUL": ("{method: FedAvg}", '{method: FedAvg, unseen: "a\\0"}', BadValue, "unseen"),
    "a row within itself": ("{method: FedAvg}", "&a {method: FedAvg, net: *a}", Damaged, "t.yaml"),
    "a row 500 deep": ("{method: FedAvg}", "[" * 500 + "]" * 500, Damaged, "t.yaml"),
    "rows that are a number": ("rows:", "rows: 3\nx:", Unknown, "x"),
    "rows that are one row": (
        "  A:",
        "  a: {method: FedAvg}\n  A:",
        Conflict,
        "t.yaml",
    ),
    "a row of dots": ("  A:", '  "..":', Conflict, "t.yaml"),
    "a row without a name": ("  A:", '  "":', Conflict, "t.yaml"),
    "a row of 300 characters": ("  A:", f"  {'A' * 300}:", BadValue, "t.yaml"),
    "a row of 300 bytes": ("  A:", f"  {'é' * 150}:", BadValue, "t.yaml"),
    "a column of 300 characters": ("  even:", f"  {'e' * 300}:", BadValue, "t.yaml"),
    "no columns": ("columns:\n", "columns: {}\nbase: {}\nx:\n", Damaged, "t.yaml"),
    "a base that is a number": ("base: {", "title: {a: {", Damaged, "t.yaml"),
    "another key": ("table: tiny", "table: tiny\nnope: 1", Unknown, "nope"),
    "a table without a name": ("table: tiny", "table:", BadValue, "table"),
    "a table of 300 characters": ("table: tiny", f"table: {'a' * 300}", BadValue, "table"),
    "a table of dots": ("table: tiny", "table: ..", BadValue, "table"),
    "a table that is a list": ("table: tiny", "table: [a]", BadValue, "table"),
    "a title that is a mapping": (
        "table: tiny",
        "table: tiny\ntitle: {a: b}",
        BadValue,
        "title",
    ),
}

# the command line behind the file -> what is wrong, and where
LINES: dict[str, tuple[type[UserError], str]] = {
    "--seeds 1000000": (BadValue, "seeds"),
    "--seeds 0": (BadValue, "seeds"),
    "--seeds -1": (BadValue, "seeds"),
    "--seeds x": (BadValue, "seeds"),
    "--jobs 0": (BadValue, "jobs"),
    "--jobs 1.5": (BadValue, "jobs"),
    "--rounds x": (BadValue, "rounds"),
    "--rounds 0": (BadValue, "rounds"),
    "--keep_checkpoints x": (BadValue, "keep_checkpoints"),
    "--rows Q": (Unknown, "row"),
    "--rows": (Missing, "rows"),
    "--rowss A": (Unknown, "rowss"),
    "--columns Q": (Unknown, "column"),
    "--seed 3": (Conflict, "seed"),
    "--cell x": (Conflict, "cell"),
    "--config x": (Unknown, "config"),
    "--resume x": (Unknown, "resume"),
    "--output": (Missing, "output"),
    "--data.verify": (Missing, "data.verify"),
    "--data.verify --list": (Missing, "data.verify"),
    "--data.verfy false": (Unknown, "data.verfy"),
    "--training.lrr 3": (Unknown, "training.lrr"),
    "--training.lr": (Missing, "training.lr"),
    "--training.lr x": (BadValue, "training.lr"),
    "--method nosuch": (Unknown, "method"),
    "--engine Ray --engine.actors 0": (BadValue, "engine.actors"),
    "--data.shape [1,2]": (BadValue, "data.shape"),
    "--protocol dcpfl+best_val": (Unknown, "protocol"),
    "other.yaml": (Unknown, "other.yaml"),
}

FINE = ["--data.noise 0.5", "--data.noise=0.5", "--net CNN --net LeNet"]

CASES = [
    *(
        Case(name, "table t.yaml --output out", kind, place, files=_changed(old, new))
        for name, (old, new, kind, place) in BAD.items()
    ),
    *(
        Case(line, f"table t.yaml {line} --list", kind, place, files={"t.yaml": TABLE})
        for line, (kind, place) in LINES.items()
    ),
    *(
        Case(
            f"taken: {line}",
            f"table t.yaml {line} --list",
            says="A, even, seed 0",
            code=0,
            files={"t.yaml": TABLE},
        )
        for line in FINE
    ),
    Case(
        "taken: an option before the file",
        "table --data.noise 0.5 t.yaml --list",
        says="4 cells",
        code=0,
        files={"t.yaml": TABLE},
    ),
    Case("no file", "table", Missing, "FILE"),
    Case("a file that is not there", "table x.yaml", Missing, "x.yaml"),
    Case("a folder", "table .", Missing, "."),
    Case("a device", "table /dev/zero", Missing, "/dev/zero"),
    Case(
        "a fifo",
        "table fifo",
        Missing,
        "fifo",
        prepare=lambda folder: os.mkfifo(folder / "fifo"),
    ),
    Case(
        "a configuration",
        "table t.yaml",
        Unknown,
        "rounds",
        files={"t.yaml": "rounds: 3"},
    ),
    Case("an empty file", "table t.yaml", Missing, "table", files={"t.yaml": ""}),
    Case(
        "a file in the place of the folder",
        "table t.yaml --output out --rows A --columns even",
        Shortage,
        "out/table.yaml",
        files={"t.yaml": TABLE, "out": ""},
    ),
    Case(
        "a cell that is not there",
        "run --config t.yaml --row Q --column even",
        Unknown,
        "row",
        files={"t.yaml": TABLE},
    ),
    Case(
        "a table without a cell",
        "run --config t.yaml",
        Missing,
        "row",
        files={"t.yaml": TABLE},
    ),
]
