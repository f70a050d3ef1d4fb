"""Records of a run that are damaged or made up: metrics, partition, configuration, environment."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from rayfl.evaluation.result import Result
from tests.hostile.damage import into_fifo, into_folder, into_loop
from tests.hostile.harness import Case, put_run

RESUME = "run --resume run --rounds 3 --quiet true --loggers []"
HUGE = 10**400


def load(folder: Path) -> None:
    result = Result.load(folder / "run")
    assert len(result.clients) + len(result.rounds)


def line(*path: Any) -> Callable[[Path], None]:
    """Set a value in the first line of ``metrics.jsonl``; a function changes what is there."""

    def change(text: bytes) -> bytes:
        first, *others = text.splitlines(keepends=True)
        record = json.loads(first)
        _set(record, *path)
        return b"".join([json.dumps(record).encode() + b"\n", *others])

    return file("metrics.jsonl", change)


def division(*path: Any) -> Callable[[Path], None]:
    def change(text: bytes) -> bytes:
        content = json.loads(text)
        _set(content, *path)
        return json.dumps(content).encode()

    return file("partition.json", change)


def setting(name: str, value: Any) -> Callable[[Path], None]:
    return file("config.yaml", lambda text: yaml.safe_dump(yaml.safe_load(text) | {name: value}).encode())


def _set(content: Any, *path: Any) -> None:
    *above, last, value = path
    for key in above:
        content = content[key]
    content[last] = value(content[last]) if callable(value) else value


def file(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        path = put_run(folder) / name
        path.write_bytes(change(path.read_bytes()))

    return prepare


def replaced(name: str, how: Callable[[Path], Any]) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        how(put_run(folder) / name)

    return prepare


def away(path: Path) -> None:
    shutil.move(path, path.absolute().parents[1] / "elsewhere")
    path.symlink_to(path.absolute().parents[1] / "elsewhere")


METRICS = "run/metrics.jsonl"
FIT = ("run/metrics.jsonl does not fit partition.json beside it", "line 1:")
TEST = ("evaluation", "after_aggregation", "global", "test")
N = 4

LINES: list[tuple[str, Callable[[Path], None]]] = [
    *((f"round {v!r:.20}", line("round", v)) for v in (None, "x", [], True, -1, 1.5, HUGE)),
    *(
        (f"{key} {v!r:.20}", line(key, v))
        for key in (
            "cohort",
            "samples",
            "loss",
            "steps",
            "dropped",
            "up",
            "evaluation",
            "untrained",
            "figures",
        )
        for v in (None, "x", 5)
    ),
    ("a client that there is not", line("cohort", lambda c: [*c[:-1], 99])),
    ("a negative client", line("cohort", lambda c: [-1, *c[1:]])),
    ("a client twice", line("cohort", lambda c: [c[0], *c[:-1]])),
    ("clients in nests", line("cohort", lambda c: [[i] for i in c])),
    ("clients as truth values", line("cohort", lambda c: [False, True])),
    ("fewer clients than losses", line("cohort", lambda c: c[:-1])),
    ("a dropped client of no cohort", line("dropped", [99])),
    ("negative samples", line("samples", lambda s: [-x for x in s])),
    ("other samples", line("samples", lambda s: [x + 1 for x in s])),
    ("far too many samples", line("samples", lambda s: [HUGE for _ in s])),
    ("losses as text", line("loss", lambda x: ["1.0" for _ in x])),
    ("losses too large for sums", line("loss", lambda x: [1e308 for _ in x])),
    ("losses too large for floats", line("loss", lambda x: [HUGE for _ in x])),
    ("negative bytes", line("up", lambda up: {k: [-1 for _ in v] for k, v in up.items()})),
    ("bytes of fewer clients", line("up", lambda up: {k: v[1:] for k, v in up.items()})),
    ("bytes as text", line("up", lambda up: {k: ["1" for _ in v] for k, v in up.items()})),
    ("an unknown point", line("evaluation", lambda e: {"nowhere": e["after_aggregation"]})),
    ("views as list", line("evaluation", "after_aggregation", [])),
    ("parts as text", line(*TEST[:3], "x")),
    ("an unknown part", line(*TEST[:3], lambda parts: {"all": parts["test"]})),
    ("a score as text", line(*TEST, "x")),
    *(
        (f"correct {v!r:.20}", line(*TEST, "correct", v))
        for v in (
            *(None, 3, [1], [1] * 9, ["a"] * N, [-1] * N, [10**6] * N, [0.5] * N, [HUGE] * N, [[1]] * N),
            [True] * N,
        )
    ),
    *(
        (f"evaluated loss {v!r:.20}", line(*TEST, "loss", v))
        for v in (3, [1], ["a"] * N, [HUGE] * N, [[1]] * N, [1e308] * N)
    ),
    ("correct without a loss", line(*TEST, lambda score: {"correct": score["correct"]})),
    ("what was not finite as number", line("not_finite", 5)),
    ("figures as text", line("figures", {"a": "b"})),
    ("figures in nests", line("figures", {"a": [[1]]})),
]


def lines(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[Path], None]:
    return file("metrics.jsonl", lambda text: b"".join(change(text.splitlines(keepends=True))))


def sub(pattern: bytes, new: bytes) -> Callable[[Path], None]:
    return file("metrics.jsonl", lambda text: re.sub(pattern, new, text, count=1))


NO_JSON = "run/metrics.jsonl is damaged: line 1 is not a JSON object"
FILES: list[tuple[str, Callable[[Path], None], str]] = [
    ("a round twice", lines(lambda found: [found[0], found[0]]), "line 2 has round 0"),
    ("rounds in another order", lines(lambda found: found[::-1]), "line 1 has round 1"),
    ("no first round", lines(lambda found: found[1:]), "line 1 has round 1"),
    (
        "more rounds than there are to run",
        lines(lambda found: [*found, found[1].replace(b'"round":1,', b'"round":2,')]),
        "has 3 rounds, and config.yaml beside it says rounds: 2",
    ),
    ("NaN", sub(rb'"loss":\[[\d.]+', b'"loss":[NaN'), NO_JSON),
    ("infinity", sub(rb'"loss":\[[\d.]+', b'"loss":[-Infinity'), NO_JSON),
    ("1e999", sub(rb'"loss":\[[\d.]+', b'"loss":[1e999'), "must be numbers that can be added up"),
    ("no UTF-8", sub(b'"round"', b'"ro\xffund"'), NO_JSON),
    ("UTF-16", file("metrics.jsonl", lambda text: text.decode().encode("utf-16") + b"\n{}\n"), "is damaged"),
    ("a mark of byte order", file("metrics.jsonl", lambda text: b"\xef\xbb\xbf" + text), NO_JSON),
    ("zeros", file("metrics.jsonl", lambda text: b"\0" * 4096 + text), NO_JSON),
    ("an empty line", file("metrics.jsonl", lambda text: b"\n" + text), NO_JSON),
    ("a list", file("metrics.jsonl", lambda text: b"[]\n" + text), NO_JSON),
    ("nested lists", file("metrics.jsonl", lambda text: b"[" * 100_000 + b"\n" + text), NO_JSON),
    (
        "nested mappings",
        file("metrics.jsonl", lambda text: b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"\n" + text),
        NO_JSON,
    ),
    ("5000 digits", sub(b'"round":0', b'"round":' + b"9" * 5000), NO_JSON),
    ("half a character", sub(b'"global"', b'"\\\\ud800"'), NO_JSON),
    ("a folder", replaced("metrics.jsonl", into_folder), "it has no metrics.jsonl"),
    ("a fifo", replaced("metrics.jsonl", into_fifo), "it has no metrics.jsonl"),
    ("a link to elsewhere", replaced("metrics.jsonl", away), "is a link that leads out of"),
]

PARTITION = "run/partition.json is damaged"
PARTITIONS: list[tuple[str, Callable[[Path], None], str]] = [
    *(
        (f"{key} {v!r:.20}", division(key, v), PARTITION)
        for key in ("clients", "domain_names", "pool")
        for v in (None, "x", 5)
    ),
    *(
        (f"a client's {key} {v!r:.20}", division("clients", 0, key, v), PARTITION)
        for key, values in {
            "train": (None, "x", -1, 1.5, True, HUGE, 2**63),
            "test": (None, [1], -1),
            "domain": ("x", 99, -1, True),
            "labels": (None, "x", {}, {"train": [1]}, {"train": [-1] * 10}, {"train": ["a"] * 10}),
        }.items()
        for v in values
    ),
    ("a client that is none", division("clients", 0, None), PARTITION),
    ("domains that are no texts", division("domain_names", [{"a": 1}]), PARTITION),
    ("fewer clients", division("clients", lambda c: c[:-1]), METRICS),
    ("no mapping", file("partition.json", lambda _: b"[1]"), PARTITION),
    ("nested", file("partition.json", lambda _: b"[" * 100_000), PARTITION),
    ("no text", file("partition.json", lambda _: b"\xff\xfe"), PARTITION),
    ("nothing", file("partition.json", lambda _: b""), PARTITION),
    ("a fifo", replaced("partition.json", into_fifo), "it is not a regular file"),
    ("a loop of links", replaced("partition.json", into_loop), "Too many levels"),
]

CONFIG = "run/config.yaml is damaged"
BOMB = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (98 + i, 98 + i, b",".join([b"*%c" % (97 + i)] * 9)) for i in range(8)
)
CONFIGS: list[tuple[str, Callable[[Path], None], str]] = [
    *(
        (f"{key} {v!r:.20}", setting(key, v), CONFIG)
        for key, values in {
            "rounds": (None, "2", [], True, -1, 0, 1.5, 10**20),
            "seed": (None, "x", [1], {}, 1.5, 10**30),
            "clients": ("x", 0),
            "protocol": (None, ["default"], {}, 5),
            "method": (None, 5, {"class_path": 5}, {"class_path": "x", "init_args": "y"}),
            "net": (None, 5, {}),
            "training": (None, 5),
            "cell": ("x", [1], {"table": "a"}, {"table": "a", "row": 1, "column": "b"}),
        }.items()
        for v in values
    ),
    ("a number for a name", file("config.yaml", lambda text: text + b"5: 1\n"), CONFIG),
    ("infinite rounds", setting("rounds", float("inf")), CONFIG),
    (
        "nested lists",
        file("config.yaml", lambda text: text + b"x: " + b"[" * 500 + b"]" * 500),
        "nested more than 50 deep",
    ),
    ("itself", file("config.yaml", lambda text: text + b"x: &x [*x]\n"), "*x stands within"),
    ("a billion values", file("config.yaml", lambda text: BOMB + text), "more than 100,000 values"),
    (
        "an object",
        file("config.yaml", lambda text: text + b"x: !!python/object/apply:os.system ['touch CANARY']\n"),
        "is not valid YAML",
    ),
    ("no text", file("config.yaml", lambda text: b"\xff\xfe\0" + text), "is not valid YAML"),
    ("a link to elsewhere", replaced("config.yaml", away), "is a link that leads out of"),
]

RESUMED: list[tuple[str, Callable[[Path], None], str]] = [
    (
        "environment.json nested",
        file("environment.json", lambda _: b"[" * 100_000),
        "environment.json is damaged",
    ),
    ("environment.json as list", file("environment.json", lambda _: b"[1]"), "environment.json is damaged"),
    (
        "a resumed number",
        file("environment.json", lambda _: b'{"resumed": 5}'),
        "environment.json is damaged",
    ),
    ("environment.json as fifo", replaced("environment.json", into_fifo), "it is not a regular file"),
    ("engine.jsonl as fifo", replaced("engine.jsonl", into_fifo), "it is not a regular file"),
    ("engine.jsonl elsewhere", replaced("engine.jsonl", away), "is a link that leads out of"),
    (
        "engine.jsonl without its end",
        file("engine.jsonl", lambda text: b"[\n" + text),
        "engine.jsonl is damaged",
    ),
    (
        "a round as text",
        file("engine.jsonl", lambda text: b'{"round": "x"}\n' + text),
        "engine.jsonl is damaged",
    ),
]

CASES = [
    *(Case(f"load: {name}", load, says=FIT, prepare=prepare) for name, prepare in LINES),
    *(Case(f"resume: {name}", RESUME, says=FIT, prepare=prepare) for name, prepare in LINES[::8]),
    *(Case(f"load: metrics: {name}", load, says=says, prepare=prepare) for name, prepare, says in FILES),
    *(
        Case(f"report: {name}", "report run", says=says, prepare=prepare)
        for name, prepare, says in FILES[::4]
    ),
    *(
        Case(f"load: partition: {name}", load, says=says, prepare=prepare)
        for name, prepare, says in PARTITIONS
    ),
    *(
        Case(f"labels: {name}", "figure labels run --save p.png", says=says, prepare=prepare)
        for name, prepare, says in PARTITIONS
        if "labels" in name
    ),
    *(Case(f"load: config: {name}", load, says=says, prepare=prepare) for name, prepare, says in CONFIGS),
    *(
        Case(f"resume: config: {name}", RESUME, says=says, prepare=prepare)
        for name, prepare, says in CONFIGS[::3]
    ),
    *(Case(f"resume: {name}", RESUME, says=says, prepare=prepare) for name, prepare, says in RESUMED),
]
