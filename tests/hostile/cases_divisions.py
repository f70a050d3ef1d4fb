"""Files of divisions that are damaged, forged, of other data or of other programs."""

import json
from typing import Any

from tests.hostile.damage import into_fifo, into_folder, into_loop
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


FILES: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "d.json is damaged"),
    "no JSON": ("PK\x03\x04", "d.json is damaged"),
    "no text": (b"\xff\xfe\x00", "d.json is damaged"),
    "cut": (clients(GOOD, GOOD)[:-5], "d.json is damaged"),
    "nested": ("[" * 100_000, "nested too deeply"),
    "a list": ("[[1], [2]]", "holds no division, but [[1], [2]]"),
    "a number": ("3", "holds no division, but 3"),
    "nothing": ("{}", "'clients' is None"),
    "clients by name": ('{"clients": {"a": [1]}}', "'clients' is {'a': [1]}"),
    "clients as lists": (clients([1], [2]), "'clients' is [[1], [2]]"),
    "no clients": (clients(), "has 0 clients, not 2"),
    "too many clients": (clients(*[{}] * 3), "has 3 clients, not 2"),
    "nothing to train on": (clients({}, {}), "no client has training samples"),
    "another key": (clients(GOOD, GOOD, client=[]), "it has 'client', where there are only dataset, clients"),
    "another split": (clients({"valid": [1]}, GOOD), "client 0 has 'valid', where there are only train, val"),
    "a name with escapes": (clients({"\x1b[31m": [1]}, GOOD), "client 0 has '\\x1b[31m'"),
    "indices as text": (clients(GOOD, {"train": "12"}), "client 1 has '12' where a list of indices"),
    "an index as text": (clients(GOOD, {"train": ["1"]}), "client 1 has the index '1', which is no whole"),
    "a fraction": (clients(GOOD, {"train": [1.5]}), "the index 1.5, which is no whole number"),
    "true": (clients(GOOD, {"train": [True]}), "the index True, which is no whole number"),
    "null": (clients(GOOD, {"train": None}), "client 1 has None where a list of indices"),
    "NaN": ('{"clients": [{"train": [NaN]}, {}]}', "NaN is no number in JSON"),
    "a negative index": (clients(GOOD, {"train": [-1]}), "the index -1, and there are 0 to 29"),
    "an index that is too large": (clients(GOOD, {"train": [30]}), "the index 30, and there are 0 to 29"),
    "an index without end": (clients(GOOD, {"train": [10**30]}), "there are 0 to 29"),
    "a number of 5000 digits": ('{"clients": [{"train": [' + "9" * 5000 + "]}, {}]}", "d.json is damaged"),
    "an index twice": (clients(GOOD, {"train": [4, 5, 4]}), "client 1 has sample 4 twice"),
    "in two splits": (clients(GOOD, {"train": [4], "test": [4]}), "client 1 has sample 4 twice"),
    "in two clients": (clients(GOOD, GOOD), "client 1 has sample 0 and client 0 has it, too"),
    "data without digest": (clients(GOOD, {}, dataset={"name": "x"}), "must have 'name' and 'sha256'"),
    "data as text": (clients(GOOD, {}, dataset="CIFAR10"), "'dataset' is 'CIFAR10'"),
    "other data": (clients(GOOD, {}, dataset={"name": "\x1b", "sha256": "0"}), "written for '\\x1b'"),
    "LEAF": ('{"users": ["a"], "num_samples": [1], "user_data": {}}', "is a file of LEAF"),
    "PFLlib": (
        '{"num_clients": 2, "num_classes": 10, "non_iid": true}',
        "configuration of PFLlib's division",
    ),
    "FLGo: no names": (flgo(client_names=3), "'client_names' is 3"),
    "FLGo: names as numbers": (flgo(client_names=[1]), "'client_names' is [1]"),
    "FLGo: no client": (flgo(client_names=["a", "c"]), "client 'c' has neither 'data' nor 'dtrain'"),
    "FLGo: a name twice": (flgo(client_names=["a", "a"]), "client 1 has sample 0 and client 0 has it, too"),
    "FLGo: samples": (flgo(a={"data": {"x": [[1.0]], "y": [1]}}), "client 'a' has samples and no indices"),
    "FLGo: a test sample": (flgo(a={"data": [20]}), "client 0 has the index 20, and there are 0 to 19"),
    "FLGo: noise": (flgo(local_perturbation=[None, [0.5]]), "adds noise to clients' samples"),
    "FLGo: noise as number": (flgo(local_perturbation=0.5), "'local_perturbation' is 0.5"),
}

CASES = [
    *(
        Case(f"division: {name}", RUN, says=says, files={"d.json": content})
        for name, (content, says) in FILES.items()
    ),
    Case("division: no file", RUN, says="d.json cannot be read: No such file"),
    Case(
        "division: a folder",
        RUN,
        says="d.json",
        files={"d.json": ""},
        prepare=lambda f: into_folder(f / "d.json"),
    ),
    Case(
        "division: a fifo",
        RUN,
        says="d.json",
        files={"d.json": ""},
        prepare=lambda f: into_fifo(f / "d.json"),
    ),
    Case(
        "division: a loop",
        RUN,
        says="d.json",
        files={"d.json": ""},
        prepare=lambda f: into_loop(f / "d.json"),
    ),
    Case(
        "division: a file without end",
        RUN,
        says="GB of memory",
        files={"d.json": ""},
        prepare=lambda folder: (folder / "d.json").open("r+b").truncate(1 << 42),
    ),
    Case("division: no path", RUN.replace(" --data.partition.path d.json", ""), says="path"),
    Case("division: NUL", [*RUN.split()[:-1], "a\0b"], says="without the character NUL"),
]
