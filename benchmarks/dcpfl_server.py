"""DC-PFL's server step at the size of CIFAR-100, beside one client's round.

    python benchmarks/dcpfl_server.py
    python benchmarks/dcpfl_server.py --classes-per-client 100 --epochs 1

100 classes, CNN-1 (500 features), 10 clients that each send the statistics of their classes. The server step
is everything from the folded uploads to the next download: training on class means, pooling, roots of the
covariances, virtual features, calibration. A client's round is its training and its statistics. One process,
one thread. Images are synthetic, and 480 of a client's by default, a tenth of what CIFAR-100 gives it: the
seconds of a full client are extrapolated, linearly in its samples.
"""

import argparse
import statistics
import sys
import time

import torch

from rayfl import Training
from rayfl.data import FederatedData, Pathological, Synthetic
from rayfl.engine.host import Host, Plan
from rayfl.engine.server import Server
from rayfl.methods import DCPFL, Cohort

CLASSES, CLIENTS, FULL = 100, 10, 4800


def plan(epochs: int) -> Plan:
    """Return the federation, with the batch size and optimiser of the paper's protocol."""
    training = Training(epochs=epochs, batch_size=64, lr=0.01, momentum=0.9, weight_decay=1e-3)
    return Plan(DCPFL(), "CNN-1", training, seed=0, channels_last=True)


def measure(data: FederatedData, epochs: int, rounds: int) -> tuple[list[float], list[float], float]:
    """Return the seconds of clients' rounds and of server steps, and the megabytes that reach the server."""
    host, server = Host(plan(epochs), data), Server(plan(epochs), data)
    samples = tuple(len(shard.train) for shard in data.shards)
    trained: list[float] = []
    aggregated: list[float] = []
    megabytes = 0.0
    for round in range(rounds):
        down, each = server.download(range(CLIENTS))
        parts, report = host.train(round, down, each, [(i,) for i in range(CLIENTS)])
        trained += report.seconds.values()
        megabytes = sum(folded.nbytes for folded in parts.values()) / 1e6
        began = time.perf_counter()
        server.aggregate(Cohort(tuple(range(CLIENTS)), samples, CLIENTS, round), [parts])
        aggregated.append(time.perf_counter() - began)
    return trained, aggregated, megabytes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--classes-per-client", type=int, default=10)
    parser.add_argument("--samples", type=int, default=480, help="training samples per client")
    parser.add_argument("--epochs", type=int, default=10, help="local epochs")
    parser.add_argument("--rounds", type=int, default=3, help="the first of them warms up")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds must be at least 2")
    source = Synthetic(
        train=options.samples * CLIENTS,
        test=CLASSES * CLIENTS * 10,  # of no use here, but a client without any would be refused
        classes=CLASSES,
        partition=Pathological(options.classes_per_client),
    )
    data = source.federate(CLIENTS, seed=0)
    trained, aggregated, megabytes = measure(data, options.epochs, options.rounds)
    client, server = statistics.median(trained[CLIENTS:]), statistics.median(aggregated[1:])
    mean = sum(len(shard.train) for shard in data.shards) / CLIENTS
    full = client * FULL / mean
    print(f"torch {torch.__version__}, {CLASSES} classes, {options.classes_per_client} per client, CNN-1")
    print(f"server step, {CLIENTS} clients, {DCPFL().num_virtual} virtual features: {server:.2f} s")
    print(f"uploads of the round, folded: {megabytes:.0f} MB")
    print(f"one client's round, {mean:.0f} samples, {options.epochs} epochs: {client:.2f} s")
    print(
        f"the same with {FULL} samples, extrapolated: {full:.1f} s; "
        f"the server step is {server / full:.1%} of it"
    )


if __name__ == "__main__":
    sys.exit(main())
