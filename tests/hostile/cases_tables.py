"""Table files, and the command that runs them."""

import os

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


# what is replaced, by what -> what is said
BAD: dict[str, tuple[str, str, tuple[str, ...] | str]] = {
    "a seed twice": ("[0]", "[0, 0]", "t.yaml: seeds must be a list of different whole numbers, not [0, 0]"),
    "a seed twice among others": ("[0]", "[1, 2, 1]", "seeds must be a list of different whole numbers"),
    "no seeds": ("[0]", "[]", "seeds must be a list of different whole numbers"),
    "a number of seeds": ("[0]", "3", "seeds must be a list of different whole numbers, not 3"),
    "texts for seeds": ("[0]", "[a]", "seeds must be a list of different whole numbers"),
    "truth for seeds": ("[0]", "[true]", "seeds must be a list of different whole numbers"),
    "lists for seeds": ("[0]", "[[0]]", "seeds must be a list of different whole numbers"),
    "half a seed": ("[0]", "[0.5]", "seeds must be a list of different whole numbers"),
    "a row's seed": (
        "{method: FedAvg}",
        "{method: FedAvg, seed: 3}",
        "'A' has 'seed', which the table decides",
    ),
    "a row's output": (
        "{method: FedAvg}",
        "{method: FedAvg, output: x}",
        "'A' has 'output', which the table",
    ),
    "a row's config": (
        "{method: FedAvg}",
        "{method: FedAvg, config: x}",
        "'A' has 'config', which the table",
    ),
    "a row's resume": (
        "{method: FedAvg}",
        "{method: FedAvg, resume: x}",
        "'A' has 'resume', which the table",
    ),
    "a row's cell": ("{method: FedAvg}", "{method: FedAvg, cell: {}}", "'A' has 'cell', which the table"),
    "a column's seed": ("{data.partition: IID}", "{seed: 1}", "'even' has 'seed', which the table decides"),
    "the base's seed": ("clients: 4", "seed: 4", "'base' has 'seed', which the table decides"),
    "a seed at a column": (
        "{method: FedAvg}",
        "{method: FedAvg, at: {even: {seed: 3}}}",
        "'A' has 'seed', which the table decides",
    ),
    "at is a number": ("{method: FedAvg}", "{method: FedAvg, at: 3}", "'at' of row 'A' must map columns"),
    "at no column": ("{method: FedAvg}", "{method: FedAvg, at: {x: {}}}", "row 'A' has settings at 'x'"),
    "at a column a number": ("{method: FedAvg}", "{method: FedAvg, at: {even: 3}}", "'A' must map options"),
    "a row without a method": ("{method: FedAvg}", "{}", "row 'A' names no method"),
    "a row that is a number": ("{method: FedAvg}", "3", "row 'A' names no method"),
    "a row that is nothing": ("{method: FedAvg}", "null", "row 'A' names no method"),
    "a method that is a list": ("{method: FedAvg}", "{method: [FedAvg]}", "row 'A' names no method"),
    "an unknown method": (
        "{method: FedAvg}",
        "{method: FedAvgg}",
        ("t.yaml: there is no method 'FedAvgg'", "FedAvg"),
    ),
    "an unknown option": ("{method: FedAvg}", "{method: FedAvg, roundz: 3}", ("row 'A'", "--roundz")),
    "another type": ("{method: FedAvg}", "{method: FedAvg, rounds: x}", ("row 'A'", "rounds is x")),
    "a set": ("{method: FedAvg}", "{method: FedAvg, net: !!set {a}}", "t.yaml is not valid YAML"),
    "a date": ("{method: FedAvg}", "{method: FedAvg, rounds: 2020-01-01}", "rounds is 2020-01-01"),
    "NUL": ("{method: FedAvg}", '{method: FedAvg, unseen: "a\\0"}', ("row 'A'", "unseen", "NUL")),
    "a row within itself": ("{method: FedAvg}", "&a {method: FedAvg, net: *a}", "*a stands within"),
    "a row 500 deep": ("{method: FedAvg}", "[" * 500 + "]" * 500, "nested more than 50 deep"),
    "rows that are a number": ("rows:", "rows: 3\nx:", "t.yaml"),
    "rows that are one row": (
        "  A:",
        "  a: {method: FedAvg}\n  A:",
        "must differ in letters and digits",
    ),
    "a row of dots": ("  A:", '  "..":', "'..' must differ in letters and digits"),
    "a row without a name": ("  A:", '  "":', "'' must differ in letters and digits"),
    "a row of 300 characters": ("  A:", f"  {'A' * 300}:", "is too long: it names a run folder"),
    "a row of 300 bytes": ("  A:", f"  {'é' * 150}:", "is too long: it names a run folder"),
    "a column of 300 characters": ("  even:", f"  {'e' * 300}:", "is too long: it names a run folder"),
    "no columns": ("columns:\n", "columns: {}\nbase: {}\nx:\n", "t.yaml"),
    "a base that is a number": ("base: {", "title: {a: {", "t.yaml"),
    "another key": ("table: tiny", "table: tiny\nnope: 1", "t.yaml: there is no 'nope' in a table file"),
    "a table without a name": ("table: tiny", "table:", "it has no 'table'"),
    "a table of 300 characters": ("table: tiny", f"table: {'a' * 300}", "it is too long to name a folder"),
    "a table of dots": ("table: tiny", "table: ..", "table is '..': it must have letters or digits"),
    "a table that is a list": ("table: tiny", "table: [a]", "t.yaml: table is ['a']: it must be a text"),
    "a title that is a mapping": (
        "table: tiny",
        "table: tiny\ntitle: {a: b}",
        "title is {'a': 'b'}: it must",
    ),
}

# the command line behind the file -> what is said
LINES: dict[str, str] = {
    "--seeds 1000000": "--seeds is 1000000: it must be at least 1 and at most 1000",
    "--seeds 0": "--seeds is 0: it must be at least 1",
    "--seeds -1": "--seeds is -1: it must be at least 1",
    "--seeds x": "seeds is x: it must be a whole number",
    "--jobs 0": "--jobs is 0: it must be at least 1",
    "--jobs 1.5": "jobs is 1.5: it must be a whole number",
    "--rounds x": "rounds is x: it must be a whole number",
    "--rounds 0": "rounds is 0: it must be at least 1",
    "--keep_checkpoints x": "keep_checkpoints is x: it must be True or False",
    "--rows Q": "t.yaml has no row 'Q'",
    "--rows": "--rows has no value: write --rows",
    "--rowss A": "there is no option --rowss; did you mean --rows?",
    "--columns Q": "t.yaml has no column 'Q'",
    "--seed 3": "--seed 3: the table decides seed",
    "--cell x": "the table decides cell",
    "--config x": "there is no option --config",
    "--resume x": "there is no option --resume",
    "--output": "--output has no value: write --output",
    "--data.verify": "--data.verify has no value: write --data.verify VALUE",
    "--data.verify --list": "--data.verify has no value: write --data.verify VALUE",
    "--data.verfy false": "data",
    "--training.lrr 3": "did you mean --training.lr?",
    "--training.lr": "--training.lr has no value",
    "--training.lr x": "training.lr is x: it must be a number",
    "--method nosuch": "there is no method 'nosuch'",
    "--engine Ray --engine.actors 0": "engine.actors is 0",
    "--data.shape [1,2]": "data.shape",
    "--protocol dcpfl+best_val": "there is no protocol 'dcpfl+best_val'",
    "other.yaml": "'other.yaml' belongs to no option",
}

FINE = ["--data.noise 0.5", "--data.noise=0.5", "--net CNN --net LeNet"]

CASES = [
    *(
        Case(name, "table t.yaml --output out", says=says, files=_changed(old, new))
        for name, (old, new, says) in BAD.items()
    ),
    *(
        Case(line, f"table t.yaml {line} --list", says=says, files={"t.yaml": TABLE})
        for line, says in LINES.items()
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
    Case("no file", "table", says="FILE must be given"),
    Case("a file that is not there", "table x.yaml", says="x.yaml cannot be read: No such file"),
    Case("a folder", "table .", says=". cannot be read: Is a directory"),
    Case("a device", "table /dev/zero", says="/dev/zero cannot be read: it is not a regular file"),
    Case(
        "a fifo",
        "table fifo",
        says="fifo cannot be read: it is not a regular file",
        prepare=lambda folder: os.mkfifo(folder / "fifo"),
    ),
    Case(
        "a configuration",
        "table t.yaml",
        says="t.yaml: there is no 'rounds' in a table file",
        files={"t.yaml": "rounds: 3"},
    ),
    Case("an empty file", "table t.yaml", says="t.yaml: it is not a table file", files={"t.yaml": ""}),
    Case(
        "a file in the place of the folder",
        "table t.yaml --output out --rows A --columns even",
        says="out",
        files={"t.yaml": TABLE, "out": ""},
    ),
    Case(
        "NUL in the folder's name",
        ["table", "t.yaml", "--output", "a\0b"],
        says="NUL",
        files={"t.yaml": TABLE},
    ),
    Case(
        "a cell that is not there",
        "run --config t.yaml --row Q --column even",
        says="t.yaml has no row 'Q'",
        files={"t.yaml": TABLE},
    ),
    Case(
        "a table without a cell",
        "run --config t.yaml",
        says="t.yaml is a table: choose one cell of it with --row (A, P)",
        files={"t.yaml": TABLE},
    ),
]
