"""What runs must give again after a change: ``python -m tests.support.digests FOLDER [--against FILE]``.

Runs go into the folder, and ``FOLDER/digests.json`` says of each what its files hold. With ``--against``, a
file that another version of rayfl has written, every difference is listed, and the exit code is 1 if there is
one.
"""

import argparse
import hashlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save_file

from rayfl import Federation, Inline, Ray, Training
from rayfl.commands.export import export
from rayfl.data import DomainPerClient, Synthetic
from rayfl.evaluation.finetune import Finetune
from rayfl.methods import METHODS
from rayfl.nets import CNNB, LeNet
from tests.methods.cases import net_of
from tests.support.every_method import run_every_method
from tests.support.federations import small

BYTES = ("checkpoints/*.safetensors", "models/*.safetensors")
VALUES = ("metrics.jsonl", "config.yaml", "partition.json", "summary.json", "checkpoints/manifest-*.json")
CLOSE = 1e-6
"""How far losses of evaluations may be apart, of their size: their last bits depend on the size of calls."""
GONE: tuple[str, ...] = ("scoring",)
"""Settings that were taken away since, which may be in one of two files."""
NEW = (
    *("training: loss", "settings: training.loss", "settings: training.loss.label_smoothing"),
    *("test_from", "test_share", "test_by_class"),
    *("unseen_clients", "common_test", "checkpoint_keep"),
    *("sampling: init_args", "settings: sampling.once"),
)
"""Settings that one of two files may lack, by the ends of their places."""
ELSEWHERE = ("code", "engine", "output", "rayfl", "sha256")
"""Keys of values that depend on where and by which version of the program a run was carried out."""

DOMAINS = Synthetic(
    train=240, test=90, shape=(3, 16, 16), domains=3, partition=DomainPerClient(), val_fraction=0.2
)
KEPT = Training(lr=0.05, batch_size=20, momentum=0.5, optimiser_state="kept")
FEW: dict[str, dict[str, Any]] = {
    "uploads": {"method": METHODS["FedCO2"](), "net": CNNB(), "metrics": ["f1"]},
    "states": {"method": METHODS["SCAFFOLD"]()},
    "kept": {"method": METHODS["Ditto"](), "training": KEPT},
    "several nets": {"method": METHODS["FML"](meme=CNNB()), "net": [LeNet(), CNNB()]},
    "gathered": {"method": METHODS["FedProto"](), "eval_points": "both"},
    "unseen": {
        "method": METHODS["FDSE"](),
        "net": net_of("FDSE", CNNB()),
        "data": DOMAINS,
        "clients": 3,
        "participation": 1.0,
        "unseen": "domain1",
    },
    "module": {
        "method": METHODS["FedPer"](),
        "net": "tests.support.modules.Plain",
        "finetune": Finetune(epochs=2),
    },
}
ENGINES = {
    "inline": Inline(),
    "one actor": Ray(actors=1),
    "three actors": Ray(actors=3),
    "stacked": Inline(execution="stacked", stack=3),
}


def digests(folder: Path) -> dict[str, Any]:
    """Return what the files of a run hold: digests of bytes, and values where only those count."""
    found: dict[str, Any] = {}
    for pattern in BYTES:
        for path in sorted(folder.glob(pattern)):
            name = str(path.relative_to(folder))
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    for pattern in VALUES:
        for path in sorted(folder.glob(pattern)):
            name = str(path.relative_to(folder))
            lines = path.read_text().splitlines() if path.suffix == ".jsonl" else None
            content = yaml.safe_load(path.read_text()) if lines is None else list(map(json.loads, lines))
            found[name] = _values(content)
    return found


def _values(content: Any) -> Any:
    """Return a value without what depends on the place; 1 and 1.0 are equal in it, as they are in Python."""
    if isinstance(content, dict):
        return {key: _values(value) for key, value in content.items() if key not in (*ELSEWHERE, *GONE)}
    return [_values(each) for each in content] if isinstance(content, list) else content


def carry_out(folder: Path) -> dict[str, Any]:
    """Run all methods in this process, and a few federations on every engine; return their digests."""
    run_every_method(folder / "every method")
    for name, settings in FEW.items():
        for engine, made in ENGINES.items():
            federation: Federation = small(folder / name / engine, engine=made, **settings)
            federation.run()
            if name == "module":
                _export(folder / name / engine)
    return {
        str(path.parent.relative_to(folder)): digests(path.parent)
        for path in sorted(folder.rglob("summary.json"))
    }


def _export(folder: Path) -> None:
    """Write a client's weights, and what its exported program makes of inputs, into the folder ``models``."""
    export(folder, 1, folder / "models")
    program = torch.export.load(export(folder, 1, folder / "models", format="torch"))
    inputs = torch.rand(5, 3, 20, 20, generator=torch.Generator().manual_seed(0))
    save_file({"scores": program.module()(inputs).detach()}, folder / "models" / "scores.safetensors")


def differences(before: Any, after: Any, place: str = "") -> list[str]:
    """Return where two values differ, such as ``states/inline: config.yaml: rounds``."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [
            each
            for key in sorted({*before, *after})
            for each in differences(before.get(key), after.get(key), f"{place}: {key}" if place else key)
        ]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [each for k, pair in pairs for each in differences(*pair, f"{place}: {k}")]
    if before == after or (before is None and place.endswith(NEW)):
        return []
    numbers = isinstance(before, float) and isinstance(after, float)
    if numbers and "loss" in place and math.isclose(before, after, rel_tol=CLOSE):
        return []
    return [f"{place}: {str(before)[:80]} is now {str(after)[:80]}"]


def main() -> int:
    """Write the digests, and compare them with others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--against", type=Path)
    asked = parser.parse_args()
    found = carry_out(asked.folder)
    (asked.folder / "digests.json").write_text(json.dumps(found, indent=1, sort_keys=True))
    if asked.against is None:
        return 0
    differing = differences(json.loads(asked.against.read_text()), json.loads(json.dumps(found)))
    print("\n".join(differing) or f"{len(found)} runs are equal")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
