"""Fed-CO2 on CIFAR-10 with 100 to 1,000 clients: seconds per sampled client, and memory.

    python benchmarks/scale.py --root DATA
    python benchmarks/scale.py --clients 100 300 --rounds 2        # a quick look
    python benchmarks/scale.py --registered 100000 1000000         # many clients, of whom few train
    python benchmarks/scale.py --scored 10000                      # scoring clients of one test sample
    python benchmarks/scale.py --evaluated 10000 30000 100000      # and their records: linear in clients
    python benchmarks/scale.py --states 0 1                        # shares of the states that stay in memory

Two nets ``CNNB`` a client (Algorithm 2: no transfer within or between clients), two classes a client, 5 % of
the clients a round. Without the files of CIFAR-10 it takes synthetic images of the same shape and number. The
time per image and the memory should stay flat: a client costs its own training, and its personal state.

``--registered`` runs FedAvg with LeNet on clients of five samples of 1x16x16, 1,000 of whom train in a round
(100 of 100,000), without evaluation: the time from the command to the end of the first round, the memory, and
the bytes that a client takes beyond its samples. ``--scored`` measures, in this process and in seconds of its
processor time, which others on the machine do not change much, one evaluation of clients of one test sample;
and one of W1's 100 clients of 100 test samples beside the bare forward pass over these 10,000 images.
``--evaluated`` measures an evaluation of each population with its record, and what the process grows by.
``--states`` runs Fed-CO2 (again Algorithm 2) with AlexNet, whose offline model has 228 MB, on 12 clients
(``--stateful``) of 8 samples of 3x64x64, all of whom train in a round, with shares of their states in memory,
the others on disk: the time of a round, and the memory.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from measure import HERE, Run, launch, wait_for_quiet
from rich.console import Console
from rich.table import Table
from workload import WARMUP
from workload import LeNet as RawLeNet

from rayfl import Federation, Inline, Ray, Training
from rayfl.data import CIFAR10, IID, Data, Pathological, Synthetic
from rayfl.engine.inline import InlineWorkers
from rayfl.engine.session import Session
from rayfl.evaluation.latest import LatestScores
from rayfl.evaluation.score import CALL
from rayfl.methods import Ditto, FedAvg, FedCO2, FedPer, Method
from rayfl.nets import CNNB, AlexNet, LeNet

TRAIN = 50_000
PARTICIPATION = 0.05
MEMORY_ROUNDS = 2
STATE = 228e6  # bytes of a state of AlexNet
TURNS = 3


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


def register(clients: int, out: Path) -> None:
    """Run a federation of many clients, of whom few train, in this process."""
    Federation(
        method=FedAvg(),
        data=Synthetic(train=5 * clients, test=10_000, shape=(1, 16, 16), dtype="uint8"),
        net=LeNet(),
        clients=clients,
        participation=min(0.001, 1_000 / clients),
        rounds=WARMUP,
        training=Training(batch_size=5),
        engine=Ray(actors=2),
        eval_every=0,
        checkpoint_every=0,
        loggers=[],
        quiet=True,
        output=str(out),
    ).run()
    (out / "info.json").write_text(json.dumps({"name": "rayfl", "torch": torch.__version__}))


def registered(populations: list[int]) -> Table:
    """Measure how long federations of many clients take to their first round, and how much memory."""
    table = Table(title="Registered clients, of whom few train")
    columns = (
        "clients",
        "first round after s",
        "s/round",
        "peak PSS MB",
        "Ray MB",
        "bytes/client",
        "record MB",
    )
    for column in columns:
        table.add_column(column, justify="right")
    with tempfile.TemporaryDirectory(prefix="rayfl-benchmark-") as scratch:
        for clients in populations:
            own = Path(scratch, str(clients))
            script = [
                sys.executable,
                str(HERE / "scale.py"),
                "--registered",
                str(clients),
                "--only",
                str(own / "run"),
            ]
            wait_for_quiet()
            run = launch(script, own, memory=True)
            held = (
                Synthetic(train=5 * clients, test=10, shape=(1, 1, 1), dtype="uint8")
                .federate(clients, 0)
                .held
            )
            size = sum(a.nbytes for a in (*held.ends.values(), held.domains)) / clients
            records = sum(file.stat().st_size for file in (own / "run").iterdir()) / 1e6
            row = (clients, run.ready, run.round, run.peak or 0.0, run.daemons or 0.0, size, records)
            table.add_row(*(f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" for value in row))
    return table


def evaluation_times(method: Method, clients: int, test: int, turns: int) -> list[float]:
    """Return the seconds of processor time that evaluations of all clients take, after one to warm up."""
    divided = Synthetic(train=clients, test=test, partition=IID()).federate(clients, 0)
    federation = Federation(method=method, net=LeNet(), clients=clients, engine=Inline().resolve())
    plan, times = federation.plan(), []
    with Session(plan, divided, InlineWorkers(plan, divided)) as session:
        session.restore(Path(), None)
        for turn in range(turns + 1):
            began = time.process_time()
            session.evaluate(0, range(clients if turn else min(clients, 500)), ("test",))
            times.append(time.process_time() - began)
    return times[1:]


def bare_times(images: int, turns: int) -> list[float]:
    """Return the seconds of processor time of forward passes in the best layout, after one to warm up."""
    x = torch.rand(images, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    y = torch.zeros(images, dtype=torch.int64)
    net = RawLeNet().to(memory_format=torch.channels_last)
    times = []
    for _ in range(turns + 1):
        began = time.process_time()
        with torch.no_grad():
            for inputs, labels in zip(x.split(CALL), y.split(CALL), strict=True):
                scores = net(inputs)
                int((scores.argmax(1) == labels).sum())
                torch.nn.functional.cross_entropy(scores, labels).item()
        times.append(time.process_time() - began)
    return times[1:]


def evaluated(populations: list[int]) -> Table:
    """Measure an evaluation of clients of one test sample and its record, in processor time, and memory."""
    table = Table(title="An evaluation of clients of one test sample, FedAvg, with its record")
    for column in ("clients", "s", "s per 10,000", "MB"):
        table.add_column(column, justify="right")
    for clients in populations:
        data = Synthetic(train=clients, test=clients, shape=(1, 16, 16), dtype="uint8", partition=IID())
        divided = data.federate(clients, 0)
        federation = Federation(method=FedAvg(), net=LeNet(), clients=clients, engine=Inline().resolve())
        plan, latest, before = federation.plan(), LatestScores(divided, {}), resident_megabytes()
        with Session(plan, divided, InlineWorkers(plan, divided)) as session:
            session.restore(Path(), None)
            began = time.process_time()
            record = latest.evaluation(session.evaluate(0, range(clients), ("test",)), after_training=False)
            seconds, grown = time.process_time() - began, resident_megabytes() - before
        assert len(record["after_aggregation"]["personal"]["test"]["score"]) == clients
        table.add_row(f"{clients:,}", f"{seconds:.2f}", f"{seconds / clients * 1e4:.2f}", f"{grown:,.0f}")
    return table


def resident_megabytes() -> float:
    """Return the memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def scored_beside_forward() -> Table:
    """Measure how far an evaluation of W1's clients is from the bare forward pass over the same images."""
    table = Table(title="Scoring W1's 100 clients on 10,000 images: of the bare forward pass")
    for column in ("method", "x"):
        table.add_column(column, justify="right")
    for method in (FedAvg(), FedPer(), Ditto()):
        bare = bare_times(10_000, TURNS)
        ours = evaluation_times(method, 100, 10_000, TURNS)
        table.add_row(type(method).__name__, f"{statistics.median(ours) / statistics.median(bare):.2f}")
    return table


def scored(clients: int) -> Table:
    """Measure one evaluation of clients of one test sample."""
    table = Table(title=f"Scoring {clients:,} clients of one test sample, s of one processor")
    for column in ("method", "s"):
        table.add_column(column, justify="right")
    for method in (FedAvg(), FedPer(), Ditto()):
        (seconds,) = evaluation_times(method, clients, clients, 1)
        table.add_row(type(method).__name__, f"{seconds:.2f}")
    return table


def keep(clients: int, share: float, rounds: int, out: Path) -> None:
    """Run a federation of clients with large states in this process, a share of which stays in memory."""
    Federation(
        method=FedCO2(intra="none", inter="none"),
        data=Synthetic(
            train=8 * clients, test=2 * clients, shape=(3, 64, 64), dtype="uint8", partition=IID()
        ),
        net=AlexNet(),
        clients=clients,
        rounds=rounds,
        training=Training(epochs=1, batch_size=8, lr=0.001),
        engine=Inline(state_memory=share * clients * STATE / 1e9),
        eval_every=0,
        checkpoint_every=0,
        loggers=[],
        quiet=True,
        output=str(out),
    ).run()
    (out / "info.json").write_text(json.dumps({"name": "rayfl", "torch": torch.__version__}))


def kept(clients: int, shares: list[float], rounds: int) -> Table:
    """Measure what it costs that a part of the clients' states is on disk: in turn, to be compared."""
    table = Table(title=f"{clients} clients with states of {STATE / 1e6:.0f} MB")
    for column in ("in memory", "s/round", "x of all in memory", "peak PSS MB"):
        table.add_column(column, justify="right")
    times: dict[float, list[float]] = {share: [] for share in shares}
    peaks: dict[float, float] = {}
    with tempfile.TemporaryDirectory(prefix="rayfl-benchmark-") as scratch:
        for turn in range(TURNS):
            for share in shares:
                own = Path(scratch, f"{share}-{turn}")
                script = [sys.executable, str(HERE / "scale.py"), "--states", str(share)]
                script += ["--stateful", str(clients), "--rounds", str(WARMUP + rounds)]
                script += ["--only", str(own / "run")]
                wait_for_quiet()
                run = launch(script, own, memory=turn == TURNS - 1)
                times[share].append(run.round)
                peaks[share] = run.peak or 0.0
    for share, found in times.items():
        all_in_memory = times[max(shares)]
        ratio = statistics.median(a / b for a, b in zip(found, all_in_memory, strict=True))
        table.add_row(
            f"{share:.0%}", f"{statistics.median(found):.2f}", f"{ratio:.2f}", f"{peaks[share]:,.0f}"
        )
    return table


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
    parser.add_argument("--registered", type=int, nargs="+", help="populations of whom few train")
    parser.add_argument("--scored", type=int, help="clients of one test sample to be scored")
    parser.add_argument("--evaluated", type=int, nargs="+", help="populations to be scored and recorded")
    parser.add_argument("--states", type=float, nargs="+", help="shares of clients' states to keep in memory")
    parser.add_argument("--stateful", type=int, default=12, help="clients of --states")
    options = parser.parse_args()
    if options.states and options.only:
        keep(options.stateful, options.states[0], options.rounds, options.only)
        return
    if options.registered and options.only:
        register(options.registered[0], options.only)
        return
    if options.registered or options.scored or options.states or options.evaluated:
        tables = [registered(options.registered)] if options.registered else []
        tables += [scored(options.scored), scored_beside_forward()] if options.scored else []
        tables += [evaluated(options.evaluated)] if options.evaluated else []
        tables += [kept(options.stateful, options.states, options.rounds)] if options.states else []
        for each in tables:
            Console(width=None if sys.stdout.isatty() else 120).print(each)
        return
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
