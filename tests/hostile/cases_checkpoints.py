"""Checkpoints that are damaged or forged, the forged ones with the right checksums."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from rayfl.errors import Conflict, Damaged, Missing, UserError
from rayfl.methods import SCAFFOLD
from rayfl.running.saved_models import load_models
from rayfl.training import Params
from rayfl.training.state import State, take_apart
from tests.hostile.damage import into_fifo
from tests.hostile.harness import Case, put_run

RESUME = "run --resume run --rounds 3 --quiet true --loggers []"
METHOD = SCAFFOLD()  # one object, so that all cases share a run; it has state on both sides

Body = dict[str, Any]


def newest(run: Path) -> Path:
    """Return the last manifest, and remove those before it."""
    *others, last = sorted((run / "checkpoints").glob("manifest-*.json"))
    for other in others:
        other.unlink()
    return last


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:24]


def seal(path: Path, body: Any) -> None:
    text = json.dumps(body, separators=(",", ":"), sort_keys=True)
    path.write_text(json.dumps({"sha256": digest(text.encode()), "manifest": body}))


def forge(change: Callable[[Body, Path], Any]) -> Callable[[Path], None]:
    """Change the body of the manifest, and make its checksum right."""

    def prepare(folder: Path) -> None:
        path = newest(put_run(folder, method=METHOD))
        body = json.loads(path.read_text())["manifest"]
        seal(path, change(body, path.parent) or body)

    return prepare


def put(key: str, value: Any) -> Callable[[Path], None]:
    return forge(lambda body, _: body.update({key: value}))


def raw(content: bytes) -> Callable[[Path], None]:
    return lambda folder: newest(put_run(folder, method=METHOD)).write_bytes(content) and None


def state(kind: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """Change the state in the server's file or in that of the clients, and make all checksums right."""

    def forged(body: Body, folder: Path) -> None:
        from rayfl.record.checkpoint import Checkpoints

        old = body["server"] if kind == "server" else body["clients"]["0"]
        found = Checkpoints(folder).read(old)
        structure, tensors = take_apart(change(found) or found)
        copies = {path: tensor.clone() for path, tensor in tensors.items()}
        _name(body, kind, folder, safetensors.torch.save(copies, {"structure": json.dumps(structure)}))

    return forge(forged)


def file(kind: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Change the bytes of a file, and make all checksums right."""

    def forged(body: Body, folder: Path) -> None:
        old = body["server"] if kind == "server" else body["clients"]["0"]
        _name(body, kind, folder, change((folder / old).read_bytes()))

    return forge(forged)


def _name(body: Body, kind: str, folder: Path, content: bytes) -> None:
    name = f"{'server' if kind == 'server' else 'clients-00000'}-{digest(content)}.safetensors"
    (folder / name).write_bytes(content)
    if kind == "server":
        body["server"] = name
    else:
        body["clients"]["0"] = name


def structured(structure: str) -> Callable[[Path], None]:
    def change(content: bytes) -> bytes:
        return safetensors.torch.save(safetensors.torch.load(content), {"structure": structure})

    return file("server", change)


def header(text: bytes, size: int | None = None) -> Callable[[Path], None]:
    return file(
        "server", lambda _: (len(text) if size is None else size).to_bytes(8, "little") + text + b"\0" * 64
    )


def replaced(what: str, how: Callable[[Path], Any]) -> Callable[[Path], None]:
    """Put something else in the place of the manifest, the server's file or the whole folder."""

    def prepare(folder: Path) -> None:
        manifest = newest(put_run(folder, method=METHOD))
        server = json.loads(manifest.read_text())["manifest"]["server"]
        places = {"manifest": manifest, "server": manifest.with_name(server), "folder": manifest.parent}
        how(places[what])

    return prepare


def into_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("nothing")


def outside(body: Body, folder: Path) -> None:
    content = b"precious"
    (folder.parent.parent / f"mine-{digest(content)}.safetensors").write_bytes(content)
    body["server"] = f"../../mine-{digest(content)}.safetensors"


def each(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[State], State]:
    return lambda server: {**server, "weights": server["weights"].map(change)}


def renamed(server: State) -> State:
    w = server["weights"]
    return {**server, "weights": Params({f"x.{n}": t for n, t in w.items()}, frozenset())}


def models(folder: Path) -> None:
    load_models(folder / "run").scores(0, torch.zeros(1, 3, 32, 32))


CHECKPOINTS = "run/checkpoints"
FILE = f"{CHECKPOINTS}/*.safetensors"
THERE = "the checkpoint"
MANIFEST = f"{CHECKPOINTS}/manifest-000002.json"

NAMES = (None, "..", "manifest-000002.json", "server-" + "0" * 24)

BODIES: list[tuple[str, Callable[[Path], None]]] = [
    *((f"round {value!r:.20}", put("round", value)) for value in (True, 1, 1.5)),
    *((f"server {value!r:.30}", put("server", value)) for value in NAMES),
    ("server outside of the folder", forge(outside)),
    ("the server as client file", forge(lambda b, f: b.update(clients={"0": b["server"]}))),
    *((f"clients {value!r:.20}", put("clients", value)) for value in (None, {"0": 5})),
    *((f"stateless {value!r:.20}", put("stateless", value)) for value in (None, [[0]])),
    *((f"settings {value!r:.20}", put("settings", value)) for value in ([], {"code": 5})),
    ("a list", forge(lambda b, f: [b])),
    ("nested lists", raw(b"[" * 100_000 + b"]" * 100_000)),
    ("no text", raw(b"\xff\xfe\0")),
    ("a number", raw(b"5")),
    ("a fifo", replaced("manifest", into_fifo)),
]

DEEP = '{"dict":[["a",' * 5000 + '{"value":1}' + "]]}" * 5000

STATES: list[tuple[str, Callable[[Path], None]]] = [
    ("no safetensors", file("server", lambda _: b"x")),
    ("a header beyond the end", header(b"{}", 2**62)),
    ("tensors beyond the end", header(b'{"a":{"dtype":"F32","shape":[1000000],"data_offsets":[0,4000000]}}')),
    ("a structure that is no JSON", structured("{")),
    ("a structure nested deeply", structured(DEEP)),
    ("a structure with other names", structured('{"params":["nothing"],"train":[]}')),
    ("a structure with NaN", structured('{"value":NaN}')),
]


FITTING: list[tuple[str, Callable[[Path], None]]] = [
    ("weights of other shapes", state("server", each(lambda t: t[..., :1].contiguous()))),
    ("weights of another type", state("server", each(lambda t: t.double()))),
    ("weights of other names", state("server", renamed)),
    ("a server without weights", state("server", lambda s: {"control": s["control"]})),
    ("a number for weights", state("server", lambda s: {**s, "weights": 1})),
    ("a server without anything", structured('{"dict":[]}')),
]

OTHERS: list[tuple[str, type[UserError], str, Callable[[Path], None]]] = [
    ("the format 99", Conflict, MANIFEST, put("format", 99)),
    ("a server file as fifo", Damaged, CHECKPOINTS, replaced("server", into_fifo)),
    ("checkpoints as file", Missing, CHECKPOINTS, replaced("folder", into_file)),
]

CASES = [
    *(
        Case(f"manifest: {name}", RESUME, Damaged, CHECKPOINTS, f"{MANIFEST} is damaged", prepare=prepare)
        for name, prepare in BODIES
    ),
    *(Case(f"file: {name}", RESUME, Damaged, FILE, prepare=prepare) for name, prepare in STATES),
    *(Case(f"file: {name}", RESUME, Conflict, THERE, prepare=prepare) for name, prepare in FITTING),
    *(Case(f"models: {name}", models, Conflict, THERE, prepare=prepare) for name, prepare in FITTING[:1]),
    *(Case(name, RESUME, kind, place, prepare=prepare) for name, kind, place, prepare in OTHERS),
    Case("models: a server outside", models, Damaged, CHECKPOINTS, prepare=forge(outside)),
]
