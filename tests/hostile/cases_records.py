"""Records of a run that are damaged or made up: metrics, partition, configuration, environment."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from rayfl.errors import Damaged, Missing
from rayfl.running.result import Result
from tests.hostile.damage import into_fifo, into_loop
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


METRICS = "run/metrics.jsonl"
TEST = ("evaluation", "after_aggregation", "global", "test")
N = 4
KEYS = ("round", "cohort", "samples", "loss", "steps", "dropped", "up", "down", "evaluation", "untrained")

LINES: list[tuple[str, Callable[[Path], None]]] = [
    *((f"{key} as text", line(key, "x")) for key in KEYS),
    *((f"round {v!r:.20}", line("round", v)) for v in (None, True, -1, 1.5, HUGE)),
    ("a client that there is not", line("cohort", lambda c: [*c[:-1], 99])),
    ("a negative client", line("cohort", lambda c: [-1, *c[1:]])),
    ("a client twice", line("cohort", lambda c: [c[0], *c[:-1]])),
    ("a dropped client of no cohort", line("dropped", [99])),
    ("an untrained client that there is not", line("untrained", {"clients": [99], "unlisted": []})),
    ("an unlisted client that has trained", line("untrained", {"clients": [0], "unlisted": [1]})),
    ("other samples", line("samples", lambda s: [x + 1 for x in s])),
    ("losses too large for sums", line("loss", lambda x: [1e308 for _ in x])),
    ("negative bytes", line("up", lambda up: {k: [-1 for _ in v] for k, v in up.items()})),
    ("bytes of fewer clients", line("up", lambda up: {k: v[1:] for k, v in up.items()})),
    ("an unknown point", line("evaluation", lambda e: {"nowhere": e["after_aggregation"]})),
    ("an unknown part", line(*TEST[:3], lambda parts: {"all": parts["test"]})),
    ("a part that was not recorded", line(*TEST[:3], lambda parts: {**parts, "common": parts["test"]})),
    *((f"score {v!r:.20}", line(*TEST, "score", v)) for v in (None, [1], [-1] * N, [10**6] * N, ["1"] * N)),
    *((f"evaluated loss {v!r:.20}", line(*TEST, "loss", v)) for v in ([1], ["a"] * N, [1e308] * N)),
    ("score without a loss", line(*TEST, lambda score: {"score": score["score"]})),
    *((f"metric {v!r:.20}", line(*TEST, "f1", v)) for v in ([0.5], "0.5", ["x"] * N, [1e300] * N)),
    *((f"scores of {v}", line(*TEST, "clients", v)) for v in ([0, 1, 2, 99], [1, 0, 2, 3], [0])),
]


def lines(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[Path], None]:
    return file("metrics.jsonl", lambda text: b"".join(change(text.splitlines(keepends=True))))


def sub(pattern: bytes, new: bytes) -> Callable[[Path], None]:
    return file("metrics.jsonl", lambda text: re.sub(pattern, new, text, count=1))


FILES: list[tuple[str, Callable[[Path], None]]] = [
    ("a round twice", lines(lambda found: [found[0], found[0]])),
    ("no first round", lines(lambda found: found[1:])),
    (
        "more rounds than there are to run",
        lines(lambda found: [*found, found[1].replace(b'"round":1,', b'"round":2,')]),
    ),
    ("NaN", sub(rb'"loss":\[[\d.]+', b'"loss":[NaN')),
    ("1e999", sub(rb'"loss":\[[\d.]+', b'"loss":[1e999')),
    ("no UTF-8", sub(b'"round"', b'"ro\xffund"')),
    ("a list", file("metrics.jsonl", lambda text: b"[]\n" + text)),
    ("nested lists", file("metrics.jsonl", lambda text: b"[" * 100_000 + b"\n" + text)),
    ("half a character", sub(b'"global"', b'"\\\\ud800"')),
]

PARTITION = "run/partition.json"
PARTITIONS: list[tuple[str, Callable[[Path], None]]] = [
    *((f"{key} {v!r:.20}", division(key, v)) for key in ("clients", "domain_names") for v in (None, "x")),
    *(
        (f"a client's {key} {v!r:.20}", division("clients", 0, key, v))
        for key, values in {
            "train": (None, "x", -1, 1.5, True, 2**63),
            "domain": ("x", 99, -1),
            "labels": (None, {}, {"train": [-1] * 10}, {"train": ["a"] * 10}),
        }.items()
        for v in values
    ),
    ("no mapping", file("partition.json", lambda _: b"[1]")),
    ("nested", file("partition.json", lambda _: b"[" * 100_000)),
    ("no text", file("partition.json", lambda _: b"\xff\xfe")),
    ("other inputs", division("pool", {"images": 1})),
]

CONFIG = "run/config.yaml"
CONFIGS: list[tuple[str, Callable[[Path], None]]] = [
    *(
        (f"{key} {v!r:.20}", setting(key, v))
        for key, values in {
            "rounds": (None, True, 0, 1.5, 10**20),
            "seed": ("x", 1.5, 10**30),
            "clients": ("x", 0),
            "protocol": (None, ["default"]),
            "method": (None, {"class_path": 5}),
            "net": (None, {}),
            "training": (None, 5),
            "cell": ("x", [1], {"table": "a"}, {"table": "a", "row": 1, "column": "b"}),
        }.items()
        for v in values
    ),
    ("itself", file("config.yaml", lambda text: text + b"x: &x [*x]\n")),
    ("a list", file("config.yaml", lambda _: b"- 1")),
    ("no YAML", file("config.yaml", lambda _: b"a: [")),
    (
        "an object",
        file("config.yaml", lambda text: text + b"x: !!python/object/apply:os.system ['touch CANARY']\n"),
    ),
]

RESUMED: dict[str, list[tuple[str, Callable[[bytes], bytes]]]] = {
    "environment.json": [
        ("nested", lambda _: b"[" * 100_000),
        ("as list", lambda _: b"[1]"),
        ("with a number of resumptions", lambda _: b'{"resumed": 5}'),
    ],
    "engine.jsonl": [("without its end", lambda text: b"[\n" + text)],
}

CASES = [
    *(Case(f"load: {name}", load, Damaged, METRICS, prepare=prepare) for name, prepare in [*LINES, *FILES]),
    *(
        Case(f"load: partition: {name}", load, Damaged, PARTITION, prepare=prepare)
        for name, prepare in PARTITIONS
    ),
    *(Case(f"load: config: {name}", load, Damaged, CONFIG, prepare=prepare) for name, prepare in CONFIGS),
    *(
        Case(f"resume: {prepared[0][0]}", RESUME, Damaged, place, prepare=prepared[0][1])
        for place, prepared in ((METRICS, LINES), (CONFIG, CONFIGS))
    ),
    Case("report: a round twice", "report run", Damaged, METRICS, prepare=FILES[0][1]),
    Case("load: fewer clients", load, Damaged, METRICS, prepare=division("clients", lambda c: c[:-1])),
    *(
        Case(f"resume: {name} {what}", RESUME, Damaged, f"run/{name}", prepare=file(name, change))
        for name, changes in RESUMED.items()
        for what, change in changes
    ),
    *(
        Case(f"{place} {how.__name__}", do, Missing, place, prepare=replaced(name, how))
        for do, name, place, how in (
            (load, "metrics.jsonl", "run", into_fifo),
            *((load, name, "run", Path.unlink) for name in ("config.yaml", "metrics.jsonl")),
            (load, "partition.json", PARTITION, Path.unlink),
            (load, "partition.json", PARTITION, into_fifo),
            (load, "partition.json", PARTITION, into_loop),
            (RESUME, "environment.json", "run/environment.json", into_fifo),
            (RESUME, "engine.jsonl", "run/engine.jsonl", into_fifo),
        )
    ),
]
