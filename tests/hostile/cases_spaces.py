"""Tune spaces, and the command that runs sweeps."""

import os

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


# the search -> what is said
SEARCHES: dict[str, tuple[str, ...] | str] = {
    "method.mu: {grid_search: []}": "search.method.mu: grid_search must be a list of values",
    "method.mu: {gird: [1]}": "search.method.mu must be one of grid_search, choice",
    "method.mu: {grid_search: [1], choice: [2]}": "search.method.mu must be one of",
    "method.mu: 3": "search.method.mu must be one of",
    "method.mu: null": "search.method.mu must be one of",
    "method.mu: [1, 1]": "search.method.mu: grid_search has a value twice",
    "method.mu: {uniform: [1]}": "uniform must have two numbers",
    "method.mu: {uniform: [a, b]}": "uniform must have two numbers",
    "method.mu: {uniform: [2, 1]}": "the lower end must lie below the upper end",
    "method.mu: {uniform: [.nan, 1]}": "search.method.mu: uniform is [nan, 1]",
    "method.mu: {uniform: [0, .inf]}": "method.mu is Infinity",
    "method.mu: {loguniform: [0, 1]}": "the lower end must lie above 0",
    "method.mu: {loguniform: [1, .inf]}": "method.mu is Infinity",
    "method.mu: {randint: [0.5, 2]}": "the ends of randint must be whole numbers",
    "method.mu: {randint: [true, 3]}": "randint must have two numbers",
    "method.mu: {randint: [0, 99999999999999999999]}": "must be whole numbers of at most 64 bits",
    "seed: [1, 2]": "search.seed has 'seed', which the sweep decides",
    "output: [a, b]": "search.output has 'output', which the sweep decides",
    "reg: {grid_search: {a: {method.mu: 1}, b: {seed: 2}}}": "search.reg has 'seed', which the sweep decides",
    "reg: {choice: {a: {method.mu: 1}, b: {output: x}}}": "search.reg has 'output', which the sweep decides",
    "reg: {grid_search: {a: 3}}": "search.reg: grid_search must be a list of values, or map names to",
    "method.nu: [1, 2]": ("the point method.nu=1 cannot work", "Ditto has no option 'nu'"),
    "method.mu: [x, y]": ("the point method.mu=x cannot work", "method.mu is x: it must be a number"),
    "method.mu: [[1], [2]]": ("the point method.mu=[1] cannot work", "it must be a number"),
    "method.mu: [0.0, -1.0]": ("the point method.mu=-1.0 cannot work", "method.mu is -1.0"),
    "rounds: [1, 0]": ("the point rounds=0 cannot work", "rounds is 0"),
    "nosuch: [1, 2]": ("the point nosuch=1 cannot work", "--nosuch"),
    "net: [LeNet, '&a [*a]']": "its value cannot be used: *a stands within",
    "method.mu: &a [*a]": "*a stands within what it names",
}

# a line that is added -> what is said
LINES: dict[str, str] = {
    "samples: 0": "samples is 0: it must be at least 1",
    "samples: 1.5": "samples is 1.5: it must be a whole number",
    "samples: many": "samples is 'many': it must be a whole number",
    "draw_seed: -1": "draw_seed is -1: it must be at least 0",
    "metric: speed": "metric is 'speed': it must be 'accuracy' or",
    "metric: [accuracy]": "metric is ['accuracy']: it must be 'accuracy' or",
    "mode: up": "mode is 'up': it must be 'max' or 'min'",
    "best: maybe": "best is 'maybe': it must be True or False",
    "best: 1": "best is 1: it must be True or False",
    "scheduler: hyper": "scheduler is 'hyper'",
    "scheduler: [asha]": "scheduler must be a name, or a mapping with a name",
    "scheduler: {grace_period: 1}": "scheduler must be a name, or a mapping with a name",
    "scheduler: {name: asha, grace_period: 0}": "grace_period must be positive",
    "scheduler: {name: asha, grace_period: 1.5}": "scheduler.grace_period is 1.5: it must be a whole number",
    "scheduler: {name: asha, reduction_factor: 1}": "Reduction Factor not valid",
    "scheduler: {name: hyperband, reduction_factor: 1}": "scheduler hyperband cannot be made",
    "scheduler: {name: asha, nope: 1}": "scheduler asha has no option 'nope'",
    "scheduler: asha\nbest: false": "best is false",
    "searcher: luck": "searcher is 'luck'",
    "searcher: optuna": "searcher optuna and a grid exclude each other",
    "seeds: [0, 0]": "seeds must be a list of different whole numbers",
    "seeds: []": "seeds must be a list of different whole numbers",
    "seeds: 3": "seeds must be a list of different whole numbers",
    "seeds: [[0]]": "seeds must be a list of different whole numbers",
    "at_once: 0": "at_once is 0",
    "at_once: many": "at_once is 'many'",
    "nope: 1": "there is no 'nope' in a tune space",
    "sweep: again": "'sweep' is there twice",
    "title: {a: b}": "title is {'a': 'b'}: it must be a text",
}

# the base's beginning -> what is said
BASES: dict[str, str] = {
    "config: fifo": "fifo cannot be read: it is not a regular file",
    "config: x.yaml": "x.yaml cannot be read: No such file",
    'config: "a\\0b"': "cannot be read",
    "config: s.yaml": "--sweep",
    "row: A": "base names a row, and no table",
    "seed: 3": "base has 'seed', which the sweep decides",
    "output: x": "base has 'output', which the sweep decides",
    "roundz: 3": "--roundz",
}

COMMANDS: dict[str, str] = {
    "s.yaml --seeds 1000000": "--seeds is 1000000: it must be at least 1 and at most 1000",
    "s.yaml --samples 0": "--samples is 0: it must be at least 1",
    "s.yaml --at_once 0": "--at_once is 0: it must be at least 1",
    "s.yaml --rounds x": "rounds is x: it must be a whole number",
    "s.yaml --seed 3": "--seed 3: the sweep decides seed",
    "s.yaml --method.mu": "--method.mu has no value: write --method.mu VALUE",
    "s.yaml --training.lrr 3": "did you mean --training.lr?",
    "s.yaml --foo": "there is no option --foo",
    "s.yaml --data.val_fraction 0": "--data.val_fraction 0.1",
    "s.yaml --eval_every 0": "eval_every is 0",
    "s.yaml --resume x": "--resume takes the tune space from the folder",
    "s.yaml --output s.yaml": "s.yaml already exists",
    "--resume nowhere": "nowhere is not a sweep folder",
    "--resume s.yaml": "s.yaml is not a sweep folder",
    "--resume x --rounds 3": "remove --rounds",
    "--resume x --training.lr 3": "--training.lr: with --resume only engine",
    "x.yaml": "x.yaml cannot be read: No such file",
    ".": ". cannot be read: Is a directory",
    "/dev/zero": "/dev/zero cannot be read: it is not a regular file",
    "": "name a tune space",
}

CASES = [
    *(
        Case(search, "tune s.yaml --list --output out", says=says, files={"s.yaml": _searching(search)})
        for search, says in SEARCHES.items()
    ),
    *(
        Case(line, "tune s.yaml --list --output out", says=says, files={"s.yaml": f"{SPACE}{line}\n"})
        for line, says in LINES.items()
    ),
    *(
        Case(
            f"base: {base}",
            "tune s.yaml --list",
            says=says,
            files={"s.yaml": SPACE.replace("base: {", f"base: {{{base}, ")},
            prepare=lambda folder: os.mkfifo(folder / "fifo"),
        )
        for base, says in BASES.items()
    ),
    *(
        Case(f"tune {line}", f"tune {line}", says=says, files={"s.yaml": SPACE})
        for line, says in COMMANDS.items()
    ),
    Case(
        "a grid of 160,000 points",
        "tune s.yaml --output out",
        says="160,000 points with 1 seeds are 160,000 trials, more than 2,000",
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
        says="1,000,000 points with 1 seeds are 1,000,000 trials",
        files={"s.yaml": _searching("method.mu: {uniform: [0, 1]}")},
    ),
    Case(
        "many seeds of few points",
        "tune s.yaml",
        says="2 points with 3,000 seeds are 6,000 trials",
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
