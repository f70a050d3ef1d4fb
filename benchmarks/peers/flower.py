"""Flower on a workload: its simulation on Ray, two client actors with one CPU each, FedAvg.

Usage: PYTHON flower.py WORKLOAD DATA OUT ROUNDS (``engine.py --peer flower=PYTHON`` calls it), where PYTHON
is the interpreter of an environment with ``pip install "flwr[simulation]" torch``. Personal layers (W4) live
in the client's ``Context``.
"""

import os
import sys
import time
from collections.abc import Iterable
from functools import cache
from typing import Any

import flwr
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor
from workload import LR, LeNet, Rounds, Task, make_net, read_data, task_from, train

ACTORS = 2
ARGUMENTS = "BENCHMARK_ARGUMENTS"  # how the actors learn the command line

client_app = ClientApp()
server_app = ServerApp()


@cache
def task() -> Task:
    return task_from(os.environ[ARGUMENTS].split("\n"))


@cache
def actors_own() -> tuple[Tensor, Tensor, LeNet, dict[str, Tensor]]:
    """Return data, net and first personal layers, once per actor."""
    x, y = read_data(task().data)
    net = make_net()
    first = {name: value.clone() for name, value in net.classifier.state_dict().items()}
    return x, y, net, first


@client_app.train()
def train_client(message: Message, context: Context) -> Message:
    workload = task().workload
    x, y, net, first = actors_own()
    shared = net.extractor if workload.personal else net
    shared.load_state_dict(message.content["arrays"].to_torch_state_dict())
    if workload.personal:
        own = context.state.get("classifier")
        net.classifier.load_state_dict(first if own is None else own.to_torch_state_dict())
    client = int(context.node_config["partition-id"])
    mine = slice(client * workload.samples, (client + 1) * workload.samples)
    train(net, torch.optim.SGD(net.parameters(), lr=LR), x[mine], y[mine], workload.batch_size)
    if workload.personal:
        context.state["classifier"] = ArrayRecord(net.classifier.state_dict())
    metrics = MetricRecord({"num-examples": workload.samples})
    content = RecordDict({"arrays": ArrayRecord(shared.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


class Checked(FedAvg):
    """Flower's strategy, which records the rounds and stops where a client failed."""

    def __init__(self, rounds: Rounds, **options: Any) -> None:
        super().__init__(**options)
        self.rounds = rounds

    def configure_train(self, server_round: int, *rest: Any, **more: Any) -> Iterable[Message]:
        if server_round == 1:
            self.rounds.start()
        return super().configure_train(server_round, *rest, **more)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        replies = list(replies)
        good = [reply for reply in replies if not reply.has_error()]
        if len(good) != task().workload.cohort:
            raise RuntimeError(f"{len(good)} of {task().workload.cohort} clients answered")
        result = super().aggregate_train(server_round, good)
        self.rounds.end()
        return result


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    workload = task().workload
    while len(list(grid.get_node_ids())) < workload.clients:
        time.sleep(0.05)
    net = make_net()
    strategy = Checked(
        Rounds(task().out),
        fraction_train=workload.cohort / workload.clients,
        fraction_evaluate=0.0,
        min_train_nodes=workload.cohort,
        min_available_nodes=workload.clients,
    )
    weights = ArrayRecord((net.extractor if workload.personal else net).state_dict())
    strategy.start(grid=grid, initial_arrays=weights, num_rounds=task().rounds, timeout=600)
    task().write_info(f"Flower {flwr.__version__}, {ACTORS} actors")


def simulate() -> None:
    ray = {
        "address": "local",
        "num_cpus": ACTORS,
        "_node_ip_address": "127.0.0.1",
        "include_dashboard": False,
    }
    resources = {"num_cpus": 1, "num_gpus": 0.0}
    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=task().workload.clients,
        backend_config={"client_resources": resources, "init_args": ray},
    )


if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    os.environ[ARGUMENTS] = "\n".join(sys.argv[1:])
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    os.environ["PYTHONPATH"] = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    import flower  # by its name, so that the actors import the app instead of receiving it with every message

    flower.simulate()
