"""What a round of each method costs beside FedAvg's on the same clients: compute, server, bytes.

    python benchmarks/costs.py
    python benchmarks/costs.py --cases small --rounds 3      # a quick look
    python benchmarks/costs.py --methods FedCO2 Ditto --save costs.json

Everything runs in this process with one thread (``Inline``, client after client). The contenders of a case
take turns round by round, in reversed order every second turn, and a ratio is taken within a turn.
"""

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import torch
from engine import spread
from measure import wait_for_quiet
from rich.console import Console
from rich.table import Table
from torch.utils.flop_counter import FlopCounterMode
from workload import SEED

from rayfl import Inline, Training, UserError
from rayfl.data import IID, FederatedData, Synthetic
from rayfl.engine.base import Plan
from rayfl.engine.inline import InlineWorkers
from rayfl.engine.session import Session
from rayfl.methods import METHODS
from rayfl.nets import (
    CNNB,
    DSECNN,
    AlexNet,
    Architecture,
    DigitModel,
    FDSEAlexNet,
    FedFACNN,
    FedGHCNN,
    FedSRCNN,
    LeNet,
    MobileNetV2,
    ResNet18,
)

WARMUP = 2  # the first rounds of some methods do less: there is nothing to learn from yet
OWN: dict[str, Architecture] = {"FDSE": DSECNN(), "FedFA": FedFACNN(), "FedSR": FedSRCNN()}
"""Method -> the net that it needs."""


@dataclass(frozen=True)
class Case:
    """Clients, and who is compared on them."""

    what: str
    contenders: tuple[tuple[str, Architecture], ...]
    """Method and net; the first is what the others are compared with."""
    precisions: tuple[Literal["float32", "bfloat16"], ...] = ("float32",)
    """``training.precision``; every contender runs in each of them."""
    shape: tuple[int, int, int] = (3, 32, 32)
    classes: int = 10
    clients: int = 5
    samples: int = 320
    """Training samples of each client."""
    batch_size: int = 32
    rounds: int = 10
    """Timed rounds, after ``WARMUP`` others."""


CASES = {
    "small": Case(
        "every method on one net, or on the one that it needs",
        (("FedAvg", CNNB()), *((name, OWN.get(name, CNNB())) for name in METHODS if name != "FedAvg")),
    ),
    "digits": Case(
        "what every method sends: the digits net of FedBN and Fed-CO2, or the one that the method needs",
        (("FedAvg", DigitModel()), *((n, OWN.get(n, DigitModel())) for n in METHODS if n != "FedAvg")),
        shape=(3, 28, 28),
        samples=20,
        batch_size=10,
        rounds=1,
    ),
    "fdse": Case(
        "FDSE on its AlexNet, the others of its table of costs on the plain one",
        (
            ("FedAvg", AlexNet(width=1024)),
            ("FedBN", AlexNet(width=1024)),
            ("Ditto", AlexNet(width=1024)),
            ("FedAvg", FDSEAlexNet()),
            ("FDSE", FDSEAlexNet()),
        ),
        shape=(3, 96, 96),
        clients=6,
        samples=100,
        batch_size=50,
        rounds=5,
    ),
    "fdse-100": Case(
        "the server step of FDSE with 100 clients, which have next to nothing to train",
        (("FedAvg", FDSEAlexNet()), ("FDSE", FDSEAlexNet())),
        shape=(3, 64, 64),
        clients=100,
        samples=4,
        batch_size=4,
        rounds=1,
    ),
    "dcpfl": Case(
        "DC-PFL with 100 classes on the net of its paper",
        (("FedAvg", FedGHCNN(number=1)), ("DCPFL", FedGHCNN(number=1))),
        classes=100,
        clients=10,
        samples=500,
        batch_size=50,
        rounds=3,
    ),
}

CASES |= {
    f"bfloat16-{type(net).__name__.lower()}": Case(
        f"{net} in bfloat16 beside float32",
        (("FedAvg", net),),
        precisions=("float32", "bfloat16"),
        shape=(3, side, side),
        clients=1,
        samples=128,
        batch_size=64,
        rounds=5,
    )
    for net, side in (
        (LeNet(), 32),
        (CNNB(), 32),
        (ResNet18(), 32),
        (MobileNetV2(), 32),
        (AlexNet(width=1024), 64),
    )
}


@dataclass
class Figures:
    """What a contender has cost, round by round."""

    method: str
    net: str
    precision: str
    clients: list[float] = field(default_factory=list)
    """Seconds of the clients' own work in each timed round."""
    server: list[float] = field(default_factory=list)
    """Seconds of everything else: combining, the method's server step."""
    flops: int = 0
    """Floating-point operations of a round in matrix products and convolutions, 2 per multiply-accumulate."""
    up: float = 0.0
    """Bytes that a client sends in a round, on average."""
    down: float = 0.0


class Contender:
    """A method with its running federation."""

    def __init__(
        self,
        method: str,
        net: Architecture,
        precision: Literal["float32", "bfloat16"],
        case: Case,
        data: FederatedData,
        stack: ExitStack,
    ) -> None:
        self.figures = Figures(method, str(net), precision)
        engine = Inline(execution="loop", device="cpu").resolve()
        plan = Plan(
            method=METHODS[method](),
            net=net,
            training=Training(epochs=1, batch_size=case.batch_size, lr=0.01, precision=precision),
            seed=SEED,
            engine=engine,
            rounds=WARMUP + case.rounds + 1,
        )
        self._session = stack.enter_context(Session(plan, data, InlineWorkers(plan, data)))
        self._groups = engine.groups(range(case.clients))
        self._round = 0
        if plan.method.overrides("before_round"):  # once before the first round, which is not timed
            self._session.exchange(0, self._groups)

    def round(self, timed: bool) -> None:
        """Run a round; note its time, and the bytes that it moves."""
        began = time.perf_counter()
        result = self._session.train(self._round, self._groups)
        seconds = time.perf_counter() - began
        self._round += 1
        if timed:
            busy = sum(self._session.system_metrics.busy)
            self.figures.clients.append(busy)
            self.figures.server.append(seconds - busy)
        self.figures.up, self.figures.down = (
            sum(map(sum, moved.values())) / len(result.ids) for moved in (result.up, result.down)
        )

    def count(self) -> None:
        """Run a round whose operations are counted, which takes longer."""
        with FlopCounterMode(display=False) as counter:
            self.round(timed=False)
        self.figures.flops = counter.get_total_flops()


def compare(case: Case) -> list[Figures]:
    """Run the contenders of a case in turns."""
    data = Synthetic(
        train=case.clients * case.samples,
        test=case.clients * case.classes,
        shape=case.shape,
        classes=case.classes,
        partition=IID(),
    ).federate(case.clients, SEED)
    contenders = []
    with ExitStack() as stack:
        for (method, net), precision in itertools.product(case.contenders, case.precisions):
            try:
                contenders.append(Contender(method, net, precision, case, data, stack))
            except UserError as error:
                print(f"note: {method} is left out: {error}", file=sys.stderr)
        wait_for_quiet()
        for turn in range(WARMUP + case.rounds):
            print(f"turn {turn + 1} of {WARMUP + case.rounds}", file=sys.stderr, flush=True)
            for contender in contenders if turn % 2 == 0 else reversed(contenders):
                contender.round(timed=turn >= WARMUP)
        for contender in contenders:
            contender.count()
        return [contender.figures for contender in contenders]


def table_of(case: Case, found: list[Figures]) -> Table:
    """Return the table of a case; "x" is a multiple of the first contender's."""
    table = Table(
        title=f"{case.what}: {case.clients} clients x {case.samples}, batches of {case.batch_size}, "
        f"{case.shape[1]} px, {case.classes} classes",
        title_justify="left",
    )
    columns = ["clients ms", "x", "FLOPs x", "server ms", "of the round", "up MB", "x", "down MB", "x"]
    for column in ["method", "net", "precision"]:
        table.add_column(column)
    for column in columns:
        table.add_column(column, justify="right")
    reference = found[0]
    for own in found:
        ratios = [mine / other for mine, other in zip(own.clients, reference.clients)]
        shares = [s / (c + s) for c, s in zip(own.clients, own.server)]
        table.add_row(
            own.method,
            own.net,
            own.precision,
            f"{1e3 * statistics.median(own.clients):.0f}",
            "1.00" if own is reference else spread(ratios, 2),
            f"{own.flops / reference.flops:.2f}",
            f"{1e3 * statistics.median(own.server):.1f}",
            f"{statistics.median(shares):.1%}",
            *traffic(own.up, reference.up),
            *traffic(own.down, reference.down),
        )
    return table


def traffic(own: float, reference: float) -> tuple[str, str]:
    """Return bytes in MB, and as a multiple."""
    return f"{own / 1e6:.3f}", f"{own / reference:.2f}"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), help="beside the first of a case")
    parser.add_argument("--rounds", type=int, help="timed rounds instead of the case's own number")
    parser.add_argument("--save", type=Path, help="write all figures to this JSON file")
    return parser.parse_args()


def main() -> None:
    options = parse()
    torch.set_num_threads(1)
    console = Console(width=None if sys.stdout.isatty() else 160)
    figures: dict[str, Any] = {"torch": torch.__version__}
    for name in options.cases:
        case = CASES[name]
        first, *others = case.contenders
        kept = [other for other in others if other[0] in (options.methods or METHODS)]
        case = replace(case, contenders=(first, *kept), rounds=options.rounds or case.rounds)
        found = compare(case)
        figures[name] = {"case": asdict(case), "figures": [asdict(own) for own in found]}
        console.print(table_of(case, found))
        console.print()
    if options.save:
        options.save.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
