"""How many clients a second a GPU trains in a loop, and stacked: 8, 32 and 128 of them in one vmapped call.

    python benchmarks/stacked.py
    python benchmarks/stacked.py --nets LeNet CNNB --stacks 8 32
    python benchmarks/stacked.py --precision float32 tf32 bfloat16

One process, no Ray (``Inline``); each client has 10 batches of 32. The loop trains client after client, so
its rate does not depend on their number, and is measured with 8.
"""

import argparse
import itertools
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from rayfl import Federation, Inline, Training
from rayfl.data import IID, Synthetic
from rayfl.methods import FedAvg
from rayfl.nets import NETS

SHAPES = {"LeNet": (3, 32, 32), "CNNB": (3, 32, 32), "DigitModel": (3, 28, 28), "ResNet18": (3, 32, 32)}
BATCH = 32
BATCHES = 10
WARMUP = 2
ROUNDS = 5
IN_LOOP = 8


def clients_per_second(net: str, clients: int, execution: str, device: str, precision: Any) -> float:
    """Train all clients in every round, and return the median rate after the warm-up."""
    with tempfile.TemporaryDirectory(prefix="rayfl-benchmark-") as scratch:
        run = Path(scratch) / "run"
        Federation(
            method=FedAvg(),
            data=Synthetic(
                train=clients * BATCH * BATCHES, test=clients, shape=SHAPES[net], partition=IID(), seed=0
            ),
            net=NETS[net](),
            clients=clients,
            participation=1.0,
            rounds=WARMUP + ROUNDS,
            training=Training(epochs=1, batch_size=BATCH, lr=0.01, precision=precision),
            engine=Inline(device=device, execution=execution, stack=clients),
            eval_every=0,
            checkpoint_every=0,
            output=str(run),
            loggers=[],
            quiet=True,
        ).run()
        lines = (run / "engine.jsonl").read_text().splitlines()
    return clients / statistics.median(json.loads(line)["seconds"] for line in lines[WARMUP:])


def rate(net: str, clients: int, execution: str, device: str, precision: Any) -> float | None:
    """Return the rate, or None where the memory does not suffice."""
    try:
        return clients_per_second(net, clients, execution, device, precision)
    except torch.OutOfMemoryError:
        return None
    finally:
        if device == "cuda":
            torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nets", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--stacks", nargs="+", type=int, default=[8, 32, 128], help="clients in a stack")
    parser.add_argument("--device", default="cuda", help="cpu shows that stacking is for GPUs")
    parser.add_argument("--precision", nargs="+", default=["float32"], help="of training, each timed alone",
                        choices=["float32", "tf32", "bfloat16"])  # fmt: skip
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("This benchmark needs a CUDA device, and torch sees none; --device cpu tries it without.")
        return
    name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}: clients per second (of loop)")
    heads = "".join(f"{f'{k} stacked':>20}" for k in options.stacks)
    print(f"{'net':12}{'precision':10}{'loop':>10}{heads}")
    for net, precision in itertools.product(options.nets, options.precision):
        loop = rate(net, IN_LOOP, "loop", options.device, precision)
        row = f"{net:12}{precision:10}" + (f"{loop:10.1f}" if loop else f"{'no memory':>10}")
        for k in options.stacks:
            stacked = rate(net, k, "stacked", options.device, precision)
            times = f" ({stacked / loop:.2f}x)" if stacked and loop else ""
            row += f"{f'{stacked:.1f}{times}' if stacked else 'no memory':>20}"
        print(row, flush=True)


if __name__ == "__main__":
    sys.exit(main())
