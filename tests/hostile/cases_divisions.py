"""Files of divisions that are damaged, forged, of other data or of other programs."""

import json
from pathlib import Path
from typing import Any

from rayfl.errors import BadData, BadValue, Conflict, Damaged, Missing, Shortage, UserError
from tests.hostile.harness import Case

RUN = (
    "run --engine Inline --data Synthetic --data.train 20 --data.test 10 --data.shape [1,8,8] --net LeNet "
    "--rounds 1 --clients 2 --output out --data.partition FromFile --data.partition.path d.json"
)
GOOD = {"train": [0, 1], "test": [25]}


def clients(*given: Any, **more: Any) -> str:
    return json.dumps({"clients": list(given), **more})


def flgo(**given: Any) -> str:
    return json.dumps({"client_names": ["a", "b"], "a": {"data": [0]}, "b": {"data": [1]}, **given})


DAMAGED: dict[str, str | bytes] = {
    "empty": "",
    "no text": b"\xff\xfe\x00",
    "nested": "[" * 100_000,
    "a list": "[[1], [2]]",
    "clients as lists": clients([1], [2]),
    "another key": clients(GOOD, GOOD, client=[]),
    "another split": clients({"valid": [1]}, GOOD),
    "an index as text": clients(GOOD, {"train": ["1"]}),
    "true": clients(GOOD, {"train": [True]}),
    "NaN": '{"clients": [{"train": [NaN]}, {}]}',
    "a negative index": clients(GOOD, {"train": [-1]}),
    "an index that is too large": clients(GOOD, {"train": [30]}),
    "an index without end": clients(GOOD, {"train": [10**30]}),
    "in two splits": clients(GOOD, {"train": [4], "test": [4]}),
    "in two clients": clients(GOOD, GOOD),
    "in two clients that share test samples": clients(GOOD, GOOD, shares="test"),
    "trained on and tested on": clients(GOOD, {"train": [25]}, shares="all"),
    "shares of another kind": clients(GOOD, {}, shares="some"),
    "FLGo: no names": flgo(client_names=3),
    "FLGo: no client": flgo(client_names=["a", "c"]),
    "FLGo: a name twice": flgo(client_names=["a", "a"]),
    "FLGo: samples": flgo(a={"data": {"x": [[1.0]], "y": [1]}}),
    "FLGo: a test sample": flgo(a={"data": [20]}),
    "FLGo: noise": flgo(local_perturbation=[None, [0.5]]),
}

FILES: dict[str, tuple[str, type[UserError], str]] = {
    "too many clients": (clients(*[{}] * 3), Conflict, "d.json"),
    "nothing to train on": (clients({}, {}), BadData, "data.partition"),
    "other data": (clients(GOOD, {}, dataset={"name": "\x1b", "sha256": "0"}), Conflict, "d.json"),
}


def endless(folder: Path) -> None:
    with (folder / "d.json").open("wb") as file:
        file.truncate(1 << 42)


CASES = [
    *(
        Case(f"division: {name}", RUN, Damaged, "d.json", files={"d.json": content})
        for name, content in DAMAGED.items()
    ),
    *(
        Case(f"division: {name}", RUN, kind, place, files={"d.json": content})
        for name, (content, kind, place) in FILES.items()
    ),
    Case("division: a folder", RUN, Missing, "d.json", prepare=lambda folder: (folder / "d.json").mkdir()),
    Case("division: a file without end", RUN, Shortage, prepare=endless),
    Case("division: no path", RUN.rpartition(" --")[0], Missing, "data.partition.path"),
    Case("division: NUL", f"{RUN}a\0b", BadValue, "data.partition.path"),
]
