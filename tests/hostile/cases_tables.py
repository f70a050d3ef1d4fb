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
ROW = "{method: FedAvg}"

# what is replaced, by what -> what is wrong, and where
BAD: dict[str, tuple[str, str, type[UserError], str]] = {
    "a seed twice among others": ("[0]", "[1, 2, 1]", BadValue, "seeds"),
    "no seeds": ("[0]", "[]", BadValue, "seeds"),
    "truth for seeds": ("[0]", "[true]", BadValue, "seeds"),
    "a row's cell": (ROW, "{method: FedAvg, cell: {}}", Conflict, "rows.A.cell"),
    "a column's seed": ("{data.partition: IID}", "{seed: 1}", Conflict, "columns.even.seed"),
    "the base's seed": ("clients: 4", "seed: 4", Conflict, "base.seed"),
    "at decides what to go on with": (
        ROW,
        "{method: FedAvg, at: {even: {resume: x}}}",
        Conflict,
        "rows.A.at.even.resume",
    ),
    "no such reference": ("table: tiny", "table: tiny\nreference: B", Unknown, "reference"),
    "at is a number": (ROW, "{method: FedAvg, at: 3}", BadValue, "rows.A.at"),
    "at no column": (ROW, "{method: FedAvg, at: {x: {}}}", Unknown, "rows.A.at"),
    "at a column a number": (ROW, "{method: FedAvg, at: {even: 3}}", BadValue, "rows.A.at.even"),
    "a row without a method": (ROW, "{}", Missing, "rows.A"),
    "an unknown method": (ROW, "{method: FedAvgg}", Unknown, "method"),
    "an unknown option": (ROW, "{method: FedAvg, roundz: 3}", Unknown, "roundz"),
    "another type": (ROW, "{method: FedAvg, rounds: x}", BadValue, "rounds"),
    "a set": (ROW, "{method: FedAvg, net: !!set {a}}", Damaged, "t.yaml"),
    "NUL": (ROW, '{method: FedAvg, unseen: "a\\0"}', BadValue, "unseen"),
    "rows that are one row": ("  A:", "  a: {method: FedAvg}\n  A:", Conflict, "t.yaml"),
    "a row of dots": ("  A:", '  "..":', BadValue, "t.yaml"),
    "a row without a name": ("  A:", '  "":', BadValue, "t.yaml"),
    "a row of 300 bytes": ("  A:", f"  {'é' * 150}:", BadValue, "t.yaml"),
    "a column of 300 characters": ("  even:", f"  {'e' * 300}:", BadValue, "t.yaml"),
    "no columns": ("columns:\n", "columns: {}\nbase: {}\nx:\n", Damaged, "t.yaml"),
    "another key": ("table: tiny", "table: tiny\nnope: 1", Unknown, "nope"),
    "a table without a name": ("table: tiny", "table:", BadValue, "table"),
    "a table of 300 characters": ("table: tiny", f"table: {'a' * 300}", BadValue, "table"),
    **{f"a table called {x}": ("table: tiny", f"table: '{x}'", BadValue, "table") for x in ("..", "/", "-")},
    "a title that is a mapping": ("table: tiny", "table: tiny\ntitle: {a: b}", BadValue, "title"),
}

# the command line behind the file -> what is wrong, and where
LINES: dict[str, tuple[type[UserError], str]] = {
    "--seeds 1000000": (BadValue, "seeds"),
    "--seeds 0": (BadValue, "seeds"),
    "--seeds x": (BadValue, "seeds"),
    "--jobs 0": (BadValue, "jobs"),
    "--rounds 0": (BadValue, "rounds"),
    "--keep_checkpoints x": (BadValue, "keep_checkpoints"),
    "--rows Q": (Unknown, "row"),
    "--rows": (Missing, "rows"),
    "--rowss A": (Unknown, "rowss"),
    "--columns Q": (Unknown, "column"),
    "--seed 3": (Conflict, "seed"),
    "--data.verify --list": (Missing, "data.verify"),
    "--training.lrr 3": (Unknown, "training.lrr"),
    "--engine Ray --engine.actors 0": (BadValue, "engine.actors"),
    "other.yaml": (Unknown, "other.yaml"),
}

# a whole command line -> what is wrong, and where
COMMANDS: dict[str, tuple[type[UserError], str]] = {
    "table": (Missing, "FILE"),
    "table x.yaml": (Missing, "x.yaml"),
    "table fifo": (Missing, "fifo"),
    "table c.yaml": (Unknown, "rounds"),
    "table empty.yaml": (Missing, "table"),
    "table t.yaml --output empty.yaml --rows A --columns even": (Shortage, "empty.yaml/table.yaml"),
    "run --config t.yaml --row Q --column even": (Unknown, "row"),
    "run --config t.yaml": (Missing, "row"),
    "run --config t.yaml --row A": (Missing, "column"),
    "run --config t.yaml --row A --column odd": (Unknown, "column"),
    "run --config t.yaml --config x.yaml --row A --column even": (Conflict, "config"),
}
FILES = {"t.yaml": TABLE, "c.yaml": "rounds: 3", "empty.yaml": ""}

CASES = [
    *(
        Case(name, "table t.yaml --output out", kind, place, files={"t.yaml": TABLE.replace(old, new, 1)})
        for name, (old, new, kind, place) in BAD.items()
    ),
    *(Case(line, f"table t.yaml {line} --list", *wrong, files=FILES) for line, wrong in LINES.items()),
    *(
        Case(line, line, *wrong, files=FILES, prepare=lambda folder: os.mkfifo(folder / "fifo"))
        for line, wrong in COMMANDS.items()
    ),
    *(
        Case(f"taken: {line}", f"table {line} --list", says="A, even, seed 0", code=0, files=FILES)
        for line in ("--data.noise 0.5 t.yaml", "t.yaml --data.noise=0.5", "t.yaml --net CNN --net LeNet")
    ),
]
assert all(TABLE.count(old) for old, *_ in BAD.values())
