"""Tune spaces, and the command that runs sweeps."""

import os

from rayfl.errors import BadValue, Conflict, Damaged, InUse, Missing, Unknown, UserError
from tests.hostile.harness import Case

SPACE = """\
sweep: tiny
base: {method: Ditto, data: Synthetic, data.train: 200, data.test: 60, data.val_fraction: 0.2, net: LeNet,
  clients: 4, rounds: 2, loggers: [], engine: Inline}
search:
  method.mu: {grid_search: [0.0, 1.0]}
"""
SEARCH = "method.mu: {grid_search: [0.0, 1.0]}"
TWENTY = [float(k) for k in range(1, 21)]


def _searching(*searches: str) -> str:
    return SPACE.replace(SEARCH, "\n  ".join(searches))


# the search -> what is wrong, and where
SEARCHES: dict[str, tuple[type[UserError], str]] = {
    "method.mu: {grid_search: []}": (BadValue, "search.method.mu"),
    "method.mu: {gird: [1]}": (BadValue, "search.method.mu"),
    "method.mu: {grid_search: [1], choice: [2]}": (BadValue, "search.method.mu"),
    "method.mu: 3": (BadValue, "search.method.mu"),
    "method.mu: null": (BadValue, "search.method.mu"),
    "method.mu: [1, 1]": (BadValue, "search.method.mu"),
    "method.mu: {uniform: [1]}": (BadValue, "search.method.mu"),
    "method.mu: {uniform: [a, b]}": (BadValue, "search.method.mu"),
    "method.mu: {uniform: [2, 1]}": (BadValue, "search.method.mu"),
    "method.mu: {uniform: [.nan, 1]}": (BadValue, "search.method.mu"),
    "method.mu: {uniform: [0, .inf]}": (BadValue, "method.mu"),
    "method.mu: {loguniform: [0, 1]}": (BadValue, "search.method.mu"),
    "method.mu: {loguniform: [1, .inf]}": (BadValue, "method.mu"),
    "method.mu: {randint: [0.5, 2]}": (BadValue, "search.method.mu"),
    "method.mu: {randint: [true, 3]}": (BadValue, "search.method.mu"),
    "method.mu: {randint: [0, 99999999999999999999]}": (BadValue, "search.method.mu"),
    "seed: [1, 2]": (Conflict, "search.seed"),
    "output: [a, b]": (Conflict, "search.output"),
    "reg: {grid_search: {a: {method.mu: 1}, b: {seed: 2}}}": (Conflict, "search.reg"),
    "reg: {choice: {a: {method.mu: 1}, b: {output: x}}}": (Conflict, "search.reg"),
    "reg: {grid_search: {a: 3}}": (BadValue, "search.reg"),
    "method.nu: [1, 2]": (Unknown, "method.nu"),
    "method.mu: [x, y]": (BadValue, "method.mu"),
    "method.mu: [[1], [2]]": (BadValue, "method.mu"),
    "method.mu: [0.0, -1.0]": (BadValue, "method.mu"),
    "rounds: [1, 0]": (BadValue, "rounds"),
    "nosuch: [1, 2]": (Unknown, "nosuch"),
    "net: [LeNet, '&a [*a]']": (Unknown, "net"),
    "method.mu: &a [*a]": (Damaged, "s.yaml"),
}

# a line that is added -> what is wrong, and where
LINES: dict[str, tuple[type[UserError], str]] = {
    "samples: 0": (BadValue, "samples"),
    "samples: 1.5": (BadValue, "samples"),
    "samples: many": (BadValue, "samples"),
    "draw_seed: -1": (BadValue, "draw_seed"),
    "metric: speed": (BadValue, "metric"),
    "metric: [accuracy]": (BadValue, "metric"),
    "mode: up": (BadValue, "mode"),
    "best: maybe": (BadValue, "best"),
    "best: 1": (BadValue, "best"),
    "scheduler: hyper": (BadValue, "scheduler"),
    "scheduler: [asha]": (BadValue, "scheduler"),
    "scheduler: {grace_period: 1}": (BadValue, "scheduler"),
    "scheduler: {name: asha, grace_period: 0}": (BadValue, "scheduler"),
    "scheduler: {name: asha, grace_period: 1.5}": (BadValue, "scheduler.grace_period"),
    "scheduler: {name: asha, reduction_factor: 1}": (BadValue, "scheduler"),
    "scheduler: {name: hyperband, reduction_factor: 1}": (BadValue, "scheduler"),
    "scheduler: {name: asha, nope: 1}": (Unknown, "scheduler.nope"),
    "scheduler: asha\nbest: false": (Conflict, "best"),
    "searcher: luck": (BadValue, "searcher"),
    "searcher: optuna": (Conflict, "searcher"),
    "seeds: [0, 0]": (BadValue, "seeds"),
    "seeds: []": (BadValue, "seeds"),
    "seeds: 3": (BadValue, "seeds"),
    "seeds: [[0]]": (BadValue, "seeds"),
    "at_once: 0": (BadValue, "at_once"),
    "at_once: many": (BadValue, "at_once"),
    "nope: 1": (Unknown, "nope"),
    "sweep: again": (Damaged, "s.yaml"),
    "title: {a: b}": (BadValue, "title"),
}

# the base's beginning -> what is wrong, and where
BASES: dict[str, tuple[type[UserError], str]] = {
    "config: fifo": (Missing, "fifo"),
    "config: x.yaml": (Missing, "x.yaml"),
    'config: "a\\0b"': (Missing, "a\x00b"),
    "config: s.yaml": (Unknown, "sweep"),
    "row: A": (Missing, "base.config"),
    "seed: 3": (Conflict, "base.seed"),
    "output: x": (Conflict, "base.output"),
    "roundz: 3": (Unknown, "roundz"),
}

COMMANDS: dict[str, tuple[type[UserError], str]] = {
    "s.yaml --seeds 1000000": (BadValue, "seeds"),
    "s.yaml --samples 0": (BadValue, "samples"),
    "s.yaml --at_once 0": (BadValue, "at_once"),
    "s.yaml --rounds x": (BadValue, "rounds"),
    "s.yaml --seed 3": (Conflict, "seed"),
    "s.yaml --method.mu": (Missing, "method.mu"),
    "s.yaml --training.lrr 3": (Unknown, "training.lrr"),
    "s.yaml --foo": (Unknown, "foo"),
    "s.yaml --data.val_fraction 0": (Conflict, "best"),
    "s.yaml --eval_every 0": (Conflict, "eval_every"),
    "s.yaml --resume x": (Conflict, "resume"),
    "s.yaml --output s.yaml": (InUse, "s.yaml"),
    "--resume nowhere": (Missing, "nowhere"),
    "--resume s.yaml": (Missing, "s.yaml"),
    "--resume x --rounds 3": (Conflict, "resume"),
    "--resume x --training.lr 3": (Conflict, "training.lr"),
    "x.yaml": (Missing, "x.yaml"),
    ".": (Missing, "."),
    "/dev/zero": (Missing, "/dev/zero"),
    "": (Missing, "SPACE"),
}

CASES = [
    *(
        Case(search, "tune s.yaml --list --output out", kind, place, files={"s.yaml": _searching(search)})
        for search, (kind, place) in SEARCHES.items()
    ),
    *(
        Case(line, "tune s.yaml --list --output out", kind, place, files={"s.yaml": f"{SPACE}{line}\n"})
        for line, (kind, place) in LINES.items()
    ),
    *(
        Case(
            f"base: {base}",
            "tune s.yaml --list",
            kind,
            place,
            files={"s.yaml": SPACE.replace("base: {", f"base: {{{base}, ")},
            prepare=lambda folder: os.mkfifo(folder / "fifo"),
        )
        for base, (kind, place) in BASES.items()
    ),
    *(
        Case(f"tune {line}", f"tune {line}", kind, place, files={"s.yaml": SPACE})
        for line, (kind, place) in COMMANDS.items()
    ),
    Case(
        "a grid of 160,000 points",
        "tune s.yaml --output out",
        Conflict,
        "search",
        files={
            "s.yaml": _searching(
                *(
                    f"{key}: {{grid_search: {TWENTY}}}"
                    for key in ("method.mu", "training.lr", "training.clip", "training.weight_decay")
                )
            )
        },
    ),
    Case(
        "a million draws",
        "tune s.yaml --samples 1000000",
        Conflict,
        "search",
        files={"s.yaml": _searching("method.mu: {uniform: [0, 1]}")},
    ),
    Case(
        "many seeds of few points",
        "tune s.yaml",
        Conflict,
        "search",
        files={"s.yaml": f"{SPACE}seeds: {list(range(3000))}\n"},
    ),
    Case(
        "taken: options of a federation",
        "tune s.yaml --list --data.noise 0.5 --training.lr 0.2",
        says="method.mu: grid_search [0.0, 1.0]",
        code=0,
        files={"s.yaml": SPACE},
    ),
]
