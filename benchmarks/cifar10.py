"""The CIFAR-10 benchmark of pfl-research (Granqvist et al., NeurIPS 2024), by rayfl and by its authors' tool.

    python benchmarks/cifar10.py --root DATA                                            # rayfl alone
    python benchmarks/cifar10.py --root DATA --peer $HOME/pfl/bin/python --rounds 150 --seeds 3
    python benchmarks/cifar10.py --root DATA --device cuda --rounds 1500 --seeds 3

FedAvg with equal weights; 1,000 clients of 50 images, divided at random, 50 of them a round; one epoch of SGD
at a rate of 0.1, in batches of 10; images normalised by mean and deviation of the training images; accuracy
on all 10,000 test images after every tenth round. rayfl trains on two actors of one thread, or with
``--device cuda`` in one process that stacks the whole cohort. The time is that of all rounds, with their
evaluations. The contenders take turns, seed by seed.
"""

import argparse
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from measure import HERE, launch, wait_for_quiet
from rich.console import Console
from rich.table import Table

from rayfl import Federation, Inline, Ray, Training
from rayfl.data import CIFAR10, IID
from rayfl.methods import FedAvg
from rayfl.nets import PFLResearchCNN
from rayfl.report.text import mean_and_std

CLIENTS, COHORT, BATCH, LR, EVERY = 1000, 50, 10, 0.1, 10


@dataclass(frozen=True)
class Outcome:
    """What a run came to: seconds of all rounds, and the accuracy on the test images after the last one."""

    seconds: float
    accuracy: float
    name: str


def federate(out: Path, root: str, verify: bool, device: str, rounds: int, seed: int) -> None:
    """Run rayfl in this process."""
    cpu = device == "cpu"
    result = Federation(
        method=FedAvg(),
        data=CIFAR10(root=root, verify=verify, partition=IID()),
        net=PFLResearchCNN(),
        clients=CLIENTS,
        participation=COHORT / CLIENTS,
        averaging="uniform",
        rounds=rounds,
        training=Training(epochs=1, batch_size=BATCH, lr=LR),
        engine=Ray(actors=2) if cpu else Inline(device=device, execution="stacked", stack=COHORT),
        seed=seed,
        eval_every=EVERY,
        checkpoint_every=0,
        loggers=[],
        quiet=True,
        output=str(out),
    ).run()
    scores = result.clients
    last = scores[(scores["round"] == rounds - 1) & (scores["view"] == "global")]
    accuracy = float(last["score"].sum() / last["samples"].sum())
    info = {"name": f"rayfl, {'2 actors' if cpu else torch.cuda.get_device_name()}"}
    (out / "info.json").write_text(json.dumps(info | {"torch": torch.__version__, "figure": accuracy}))


def write_data(root: str, verify: bool, folder: Path) -> None:
    """Write the normalised images for the peer, as float32 [N, 3, 32, 32], and the labels."""
    data = CIFAR10(root=root, verify=verify, partition=IID()).federate(CLIENTS, 0)
    folder.mkdir()
    parts = {
        part: np.concatenate([getattr(client, part) for client in data.clients]) for part in ("train", "test")
    }
    images = {part: data.dataset.inputs[indices].astype(np.float32) for part, indices in parts.items()}
    mean, std = (getattr(images["train"], name)((0, 2, 3), keepdims=True) for name in ("mean", "std"))
    for part, indices in parts.items():
        np.save(folder / f"{part}_x.npy", (images[part] - mean) / std)
        np.save(folder / f"{part}_y.npy", data.dataset.labels[indices])


def outcome(command: list[str], folder: Path) -> Outcome:
    """Run one contender in a process of its own."""
    wait_for_quiet()
    run = launch([*command, "--out", str(folder / "run")], folder)
    info = json.loads((folder / "run" / "info.json").read_text())
    made = Outcome(sum(run.seconds), float(info["figure"]), f"{info['name']}, torch {info['torch']}")
    print(f"{made.name}: {made.seconds:.1f} s, {made.accuracy:.2%}", file=sys.stderr, flush=True)
    return made


def shown(found: dict[str, list[Outcome]], rounds: int) -> Table:
    """Return the table of all runs; ratios are taken within a seed."""
    table = Table(title=f"pfl-research's CIFAR-10 benchmark, {rounds:,} rounds")
    for column in ("", "seconds", "of rayfl", "test accuracy in %"):
        table.add_column(column, justify="left" if column == "" else "right")
    for own in found.values():
        seconds = [each.seconds for each in own]
        ratios = [each.seconds / ours.seconds for each, ours in zip(own, found["rayfl"], strict=True)]
        mean, std = mean_and_std([100 * each.figure for each in own])
        table.add_row(
            own[0].name,
            ", ".join(f"{s:.1f}" for s in seconds),
            ", ".join(f"{r:.2f}" for r in ratios),
            f"{mean:.2f}" + ("" if std is None else f" ± {std:.2f}"),
        )
    return table


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", default=os.environ.get("RAYFL_DATA"), help="folder with CIFAR-10's files")
    parser.add_argument("--verify", action=argparse.BooleanOptionalAction, default=True,
                        help="whether to check the files' checksums")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=150, help="the whole benchmark has 1500 (150)")
    parser.add_argument("--seeds", type=int, default=1, help="runs of every contender (1)")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--peer", help="the interpreter of an environment with pfl-research")
    parser.add_argument("--only", type=int, help=argparse.SUPPRESS)  # the seed of a run in this process
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.root or options.rounds % EVERY:
        parser.error(f"--root or RAYFL_DATA must name a folder, and --rounds a multiple of {EVERY}")
    return options


def main() -> None:
    options = parse()
    root = str(Path(options.root).resolve())
    if options.only is not None:
        federate(options.out, root, options.verify, options.device, options.rounds, options.only)
        return
    with tempfile.TemporaryDirectory(prefix="rayfl-benchmark-") as scratch:
        settings = ["--rounds", str(options.rounds)]
        own = [sys.executable, str(HERE / "cifar10.py"), "--root", root, "--device", options.device]
        own += ["--verify" if options.verify else "--no-verify", *settings]
        commands = {"rayfl": [*own, "--only"]}
        if options.peer:
            data = Path(scratch, "data")
            write_data(root, options.verify, data)
            script = str(HERE / "cifar10_pfl_research.py")
            commands["pfl-research"] = [options.peer, script, "--data", str(data), *settings, "--seed"]
        found: dict[str, list[Outcome]] = {name: [] for name in commands}
        for seed in range(options.seeds):
            for name in list(commands) if seed % 2 == 0 else reversed(list(commands)):
                command = [*commands[name], str(seed)]
                found[name].append(outcome(command, Path(scratch, f"{name}-{seed}")))
        Console(width=None if sys.stdout.isatty() else 120).print(shown(found, options.rounds))


if __name__ == "__main__":
    main()
