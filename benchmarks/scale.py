"""Fed-CO2 on CIFAR-10 with 100 to 1,000 clients: seconds per sampled client, and memory.

    python benchmarks/scale.py --root DATA
    python benchmarks/scale.py --clients 100 300 --rounds 2        # a quick look

Two nets ``CNNB`` a client (Algorithm 2: no transfer within or between clients), two classes a client, 5 % of
the clients a round. Without the files of CIFAR-10 it takes synthetic images of the same shape and number. The
time per image and the memory should stay flat: a client costs its own training, and its personal state.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import torch
from measure import HERE, Run, launch, wait_for_quiet
from rich.console import Console
from rich.table import Table
from workload import WARMUP

from rayfl import Federation, Ray, Training
from rayfl.data import CIFAR10, Data, Pathological, Synthetic
from rayfl.methods import FedCO2
from rayfl.nets import CNNB

TRAIN = 50_000
PARTICIPATION = 0.05
MEMORY_ROUNDS = 2


def data(root: str | None, verify: bool) -> Data:
    """Return CIFAR-10 where its files are, else synthetic images like it."""
    partition = Pathological(classes_per_client=2)
    if root and (Path(root) / "cifar-10-batches-py").is_dir():
        return CIFAR10(root=root, partition=partition, verify=verify)
    return Synthetic(train=TRAIN, test=10_000, dtype="uint8", partition=partition)


def federate(clients: int, rounds: int, images: Data, out: Path) -> None:
    """Run one federation in this process."""
    Federation(
        method=FedCO2(intra="none", inter="none"),
        data=images,
        net=CNNB(),
        clients=clients,
        participation=PARTICIPATION,
        rounds=rounds,
        training=Training(epochs=1, batch_size=64, lr=0.01, momentum=0.9, weight_decay=1e-5),
        engine=Ray(actors=2),
        eval_every=0,
        checkpoint_every=0,
        output=str(out),
    ).run()
    (out / "info.json").write_text(json.dumps({"name": "rayfl", "torch": torch.__version__}))


def measure(clients: int, rounds: int, source: list[str], folder: Path) -> tuple[Run, Run]:
    """Run a federation in a process of its own for the time, and once more for the memory."""
    both = []
    for memory in (False, True):
        own = folder / f"{clients}-{'memory' if memory else 'time'}"
        count = WARMUP + (MEMORY_ROUNDS if memory else rounds)
        script = [sys.executable, str(HERE / "scale.py"), "--clients", str(clients), "--rounds", str(count)]
        script += ["--only", str(own / "run"), *source]
        wait_for_quiet()
        both.append(launch(script, own, memory))
    return both[0], both[1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 300, 500, 1000])
    parser.add_argument("--rounds", type=int, default=10, help="timed rounds")
    parser.add_argument("--root", default=os.environ.get("RAYFL_DATA"), help="folder with CIFAR-10's files")
    parser.add_argument("--verify", action=argparse.BooleanOptionalAction, default=True,
                        help="whether to check the files' checksums")  # fmt: skip
    parser.add_argument("--only", type=Path, help=argparse.SUPPRESS)  # one federation, in this process
    options = parser.parse_args()
    images = data(options.root, options.verify)
    if options.only:
        federate(options.clients[0], options.rounds, images, options.only)
        return
    source = ["--root", str(Path(options.root).resolve())] if options.root else []
    source += ["--verify" if options.verify else "--no-verify"]
    table = Table(title=f"Fed-CO2, {type(images).__name__}, {PARTICIPATION:.0%} of the clients a round")
    for column in (
        "clients",
        "sampled",
        "s/round",
        "s/sampled client",
        "ms/trained image",
        "peak PSS MB",
        "Ray MB",
    ):
        table.add_column(column, justify="right")
    with tempfile.TemporaryDirectory(prefix="rayfl-benchmark-") as scratch:
        for clients in options.clients:
            time, memory = measure(clients, options.rounds, source, Path(scratch))
            sampled = round(PARTICIPATION * clients)
            images = TRAIN / clients
            table.add_row(
                str(clients),
                str(sampled),
                f"{time.round:.3f}",
                f"{time.round / sampled:.4f}",
                f"{time.round / sampled / images * 1e3:.3f}",
                f"{memory.peak:.0f}",
                f"{memory.daemons:.0f}",
            )
            print(f"{clients} clients: {time.round:.3f} s/round", file=sys.stderr, flush=True)
    Console(width=None if sys.stdout.isatty() else 120).print(table)


if __name__ == "__main__":
    main()
