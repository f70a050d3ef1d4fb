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
    "method.mu: [1, 1]": (BadValue, "search.method.mu"),
    "method.mu: {uniform: [1]}": (BadValue, "search.method.mu"),
    "method.mu: {uniform: [a, b]}": (BadValue, "search.method.mu"),
    "method.mu: {uniform: [2, 1]}": (BadValue, "search.method.mu"),
    "method.mu: {uniform: [.nan, 1]}": (BadValue, "search.method.mu"),
    "method.mu: {uniform: [0, .inf]}": (BadValue, "method.mu"),
    "method.mu: {loguniform: [0, 1]}": (BadValue, "search.method.mu"),
    "method.mu: {randint: [0.5, 2]}": (BadValue, "search.method.mu"),
    "method.mu: {randint: [true, 3]}": (BadValue, "search.method.mu"),
    "method.mu: {randint: [0, 99999999999999999999]}": (BadValue, "search.method.mu"),
    "output: [a, b]": (Conflict, "search.output"),
    "reg: {choice: {a: {method.mu: 1}, b: {output: x}}}": (Conflict, "search.reg"),
    "reg: {grid_search: {a: 3}}": (BadValue, "search.reg"),
    "method.nu: [1, 2]": (Unknown, "method.nu"),
    "method.mu: [[1], [2]]": (BadValue, "method.mu"),
    "rounds: [1, 0]": (BadValue, "rounds"),
    "method.mu: &a [*a]": (Damaged, "s.yaml"),
    "method.mu: 3": (BadValue, "search.method.mu"),
    "method.mu: [-1.0]": (BadValue, "method.mu"),
    "method.mu: {uniform: [1, 1]}": (BadValue, "search.method.mu"),
    "method.mu: {quniform: [0, 1]}": (BadValue, "search.method.mu"),
    "method.mu: {quniform: [0, 1, 2]}": (BadValue, "search.method.mu"),
    "engine.threads: [1, 2]": (Conflict, "search.engine.threads"),
    "a: {grid_search: {b: {engine: Ray}}}": (Conflict, "search.a"),
    "clients: {choice: [2, 3]}\nscheduler: asha": (Conflict, "scheduler"),
    "clients: [2, 3]\nsearcher: optuna": (Conflict, "searcher"),
    "method.mu: {choice: [0, 1]}\nsearcher: bohb": (Conflict, "searcher"),
}

# a line that is added -> what is wrong, and where
LINES: dict[str, tuple[type[UserError], str]] = {
    "samples: 0": (BadValue, "samples"),
    "draw_seed: -1": (BadValue, "draw_seed"),
    "metric: speed": (BadValue, "metric"),
    "metric: [accuracy]": (BadValue, "metric"),
    "mode: up": (BadValue, "mode"),
    "best: 1": (BadValue, "best"),
    "scheduler: hyper": (BadValue, "scheduler"),
    "scheduler: {grace_period: 1}": (BadValue, "scheduler"),
    "scheduler: {name: asha, grace_period: 1.5}": (BadValue, "scheduler.grace_period"),
    "scheduler: {name: asha, reduction_factor: 1}": (BadValue, "scheduler"),
    "scheduler: {name: hyperband, reduction_factor: 1}": (BadValue, "scheduler"),
    "scheduler: {name: asha, max_t: 3}": (Unknown, "scheduler.max_t"),
    "scheduler: asha\nbest: false": (Conflict, "best"),
    "scheduler: hyperband\nat_once: 2": (Conflict, "scheduler"),
    "searcher: optuna": (Conflict, "searcher"),
    "searcher: luck": (BadValue, "searcher"),
    "seeds: []": (BadValue, "seeds"),
    "seeds: [[0]]": (BadValue, "seeds"),
    "seeds: [0, 0]": (BadValue, "seeds"),
    "at_once: 0": (BadValue, "at_once"),
    "nope: 1": (Unknown, "nope"),
    "sweep: again": (Damaged, "s.yaml"),
    "title: {a: b}": (BadValue, "title"),
}

# the base's beginning -> what is wrong, and where
BASES: dict[str, tuple[type[UserError], str]] = {
    "config: fifo": (Missing, "fifo"),
    'config: "a\\0b"': (Missing, "a\x00b"),
    "config: s.yaml": (Unknown, "sweep"),
    "seed: 3": (Conflict, "base.seed"),
    "roundz: 3": (Unknown, "roundz"),
}

COMMANDS: dict[str, tuple[type[UserError], str]] = {
    "s.yaml --seeds 1000000": (BadValue, "seeds"),
    "s.yaml --samples 0": (BadValue, "samples"),
    "s.yaml --at_once 0": (BadValue, "at_once"),
    "s.yaml --seed 3": (Conflict, "seed"),
    "s.yaml --training.lrr 3": (Unknown, "training.lrr"),
    "s.yaml --foo": (Unknown, "foo"),
    "s.yaml --data.val_fraction 0": (Conflict, "best"),
    "s.yaml --resume x": (Conflict, "resume"),
    "s.yaml --output s.yaml": (InUse, "s.yaml"),
    "--resume nowhere": (Missing, "nowhere"),
    "--resume s.yaml": (Missing, "s.yaml"),
    "--resume a\0b": (Missing, "a\0b"),
    "--resume x --training.lr 3": (Conflict, "training.lr"),
    "x.yaml": (Missing, "x.yaml"),
    "": (Missing, "SPACE"),
    "large.yaml": (Conflict, "search"),
    "drawn.yaml --samples 1000000": (Conflict, "search"),
    "seeds.yaml": (Conflict, "search"),
}

FOUR = ("method.mu", "training.lr", "training.clip", "training.weight_decay")
FILES = {
    "s.yaml": SPACE,
    "large.yaml": _searching(*(f"{key}: {{grid_search: {TWENTY}}}" for key in FOUR)),
    "drawn.yaml": _searching("method.mu: {uniform: [0, 1]}"),
    "seeds.yaml": f"{SPACE}seeds: {list(range(3000))}\n",
}

CASES = [
    *(
        Case(search, "tune s.yaml --list --output out", *wrong, files={"s.yaml": _searching(search)})
        for search, wrong in SEARCHES.items()
    ),
    *(
        Case(line, "tune s.yaml --list --output out", *wrong, files={"s.yaml": f"{SPACE}{line}\n"})
        for line, wrong in LINES.items()
    ),
    *(
        Case(
            f"base: {base}",
            "tune s.yaml --list",
            *wrong,
            files={"s.yaml": SPACE.replace("base: {", f"base: {{{base}, ")},
            prepare=lambda folder: os.mkfifo(folder / "fifo"),
        )
        for base, wrong in BASES.items()
    ),
    *(Case(f"tune {line}", f"tune {line}", *wrong, files=FILES) for line, wrong in COMMANDS.items()),
]
