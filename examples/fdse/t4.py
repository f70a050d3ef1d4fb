"""What FDSE costs beside FedBN and Ditto: Table 4 of Wang et al. (CVPR 2025), measured and as printed.

    python examples/fdse/t4.py [--images 250] [--image_size 256]

Parameters; the size of the model, running statistics included; what a client sends per round; the
multiply-accumulates of one forward pass of a batch of 50 (MACs; what the paper calls FLOPs) and FLOPs at two
per MAC; and the seconds of one local epoch of one client on this machine, in one thread.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass
from importlib import resources

import torch
import yaml
from rich.table import Table
from torch.utils.flop_counter import FlopCounterMode

from rayfl import Federation, Inline, Method, Training
from rayfl.data import Synthetic
from rayfl.methods import FDSE, Ditto, FedBN
from rayfl.nets import AlexNet, Architecture, FDSEAlexNet, build
from rayfl.system.terminal import Terminal

BATCH = 50
MIB = 2**20


@dataclass(frozen=True)
class Cost:
    """What a method costs; ``None`` where the paper prints nothing."""

    parameters: float
    model_mib: float
    sent_mib: float | None
    macs: float
    seconds: float


def cost(method: Method, net: Architecture, images: int, image_size: int) -> Cost:
    """Measure a method on one client.

    Args:
        method: the method.
        net: its net.
        images: training images of the client.
        image_size: their side, in pixels.
    """
    shape = (3, image_size, image_size)
    model = build(net, shape, classes=10).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(BATCH, *shape))
    parameters = sum(p.numel() for p in model.parameters())
    floats = parameters + sum(b.numel() for b in model.buffers())
    sent, seconds = _one_epoch(method, net, shape, images)
    return Cost(parameters, 4 * floats / MIB, sent / MIB, counter.get_total_flops() / 2, seconds)


def _one_epoch(
    method: Method, net: Architecture, shape: tuple[int, int, int], images: int
) -> tuple[int, float]:
    """Return the bytes that a client sends, and the seconds of its local training in the second round."""
    with tempfile.TemporaryDirectory() as folder:
        result = Federation(
            method=method,
            data=Synthetic(train=images, test=10, shape=shape),
            net=net,
            clients=1,
            rounds=2,  # the first one warms up
            training=Training(batch_size=BATCH, lr=0.05, weight_decay=1e-3, clip=10.0),
            engine=Inline(device="cpu"),
            eval_every=0,
            checkpoint_every=0,
            loggers=[],
            quiet=True,
            output=f"{folder}/run",
        ).run()
        lines = (result.folder / "engine.jsonl").read_text().splitlines()
        times = [e["train_seconds"] for e in map(json.loads, lines) if e.get("round") == 1]
        return int(result.rounds["up"].iloc[-1]), times[-1]


def printed() -> dict[str, Cost]:
    """Return what the paper prints."""
    text = resources.files("rayfl.report").joinpath("papers", "fdse.yaml").read_text()
    return {
        name: Cost(c["parameters"], c["MiB"], None, c["MACs"], c["seconds"])
        for name, c in yaml.safe_load(text)["costs"].items()
    }


def main(arguments: list[str] | None = None) -> dict[str, Cost]:
    """Measure, print the table, and return what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--images", type=int, default=250, help="training images of the client")
    parser.add_argument("--image_size", type=int, default=256, help="their side in pixels")
    given = parser.parse_args(arguments)
    methods: dict[str, tuple[Method, Architecture]] = {
        "FedBN": (FedBN(), AlexNet(width=1024)),
        "Ditto": (Ditto(), AlexNet(width=1024)),
        "FDSE": (FDSE(share_every=0), FDSEAlexNet()),
    }
    found = {
        name: cost(method, net, given.images, given.image_size) for name, (method, net) in methods.items()
    }
    table = Table(title=f"One client, {given.images} images of {given.image_size} pixels, batches of {BATCH}")
    headings = ("", "parameters", "model, MiB", "sent, MiB", "MACs", "FLOPs", "seconds per epoch")
    for heading in headings:
        table.add_column(heading, justify="left" if not heading else "right")
    for name, measured in found.items():
        for label, c in ((name, measured), (f"{name}, printed", printed()[name])):
            sent = "" if c.sent_mib is None else f"{c.sent_mib:.2f}"
            flops = f"{2 * c.macs:.2e}" if c is measured else ""
            table.add_row(
                label,
                f"{c.parameters:,.0f}",
                f"{c.model_mib:.2f}",
                sent,
                f"{c.macs:.2e}",
                flops,
                f"{c.seconds:.2f}",
            )
    Terminal(width=110).print(table)
    return found


if __name__ == "__main__":
    main()
