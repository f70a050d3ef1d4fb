"""FediOS: an early form of it, in a public repository of one of its authors."""

from __future__ import annotations

import sys
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest import mock

from torch import nn

from benchmarks.public.harness import ALL, Batches, Pair, case, entries, layers
from tests.methods.forms.world import Outcome, World


def run(world: World, moved: bool = False) -> Outcome:
    """Train for three rounds.

    A local step passes over the data for the individual extractor, a gate and the generic extractor with the
    head. ``moved`` brings the first behind the last, by one more step of which the others are empty.
    """
    data = import_module("util.data_util")
    data.read_client_data = lambda _, i, **__: world.clients[i].y
    server_module = import_module("algorithms.server.serverFed2")
    now = SimpleNamespace(round=-1)

    def load_train_data(client: Any) -> Batches:
        each = world.order(client.id, now.round, 0)  # generic and individual extractor take turns
        generic, individual = each[::2], each[1::2]
        if moved:
            generic, individual = [*generic, []], [[], *individual]
        passes = [epoch for i, g in zip(individual, generic, strict=True) for epoch in (i, [], g)]
        return Batches(world, client.id, passes)

    import_module("algorithms.client.client").Client.load_train_data = load_train_data
    net = world.make()
    model = nn.Sequential(layers(net.conv, "conv") | layers(net.fc, "fc"))
    whole = nn.Module()
    whole.base, whole.head = model, net.head
    with mock.patch.object(sys, "argv", ["main.py"]):
        args = import_module("options").args_parser()
    vars(args).update(
        model=whole, device="cpu", dataset="", num_classes=world.classes, num_clients=len(world.clients),
        global_rounds=len(world.cohorts) - 1, local_steps=world.epochs + moved, local_learning_rate=world.lr,
        join_ratio=1.0,
    )  # fmt: skip
    server = server_module.FedOurs2(args, 0)

    def select_clients() -> list[Any]:
        now.round += 1
        return [server.clients[i] for i in world.cohorts[now.round]]

    server.select_clients = select_clients
    server.test_generic_metric = lambda *_, **__: (0, 1, 0)
    server.evaluate = lambda: (0,) * 6
    server.rs_test_acc = [0]
    server.report_process = lambda *_: None
    server.train()
    kept = [{"individual": entries(client.p_fea)} for client in server.clients]
    return Outcome({"weights": entries(server.global_model)}, kept)


EARLY = case("FediOS", options={"basis": "identity", "schedule": "alternating"})
ABSENT = (
    "torchvision",
    "cv2",
    "pandas",
    "matplotlib",
    "PIL",
    "h5py",
    "seaborn",
    "timm",
    "opacus",
    "tensorboardX",
)
PAIRS: dict[str, Pair] = {
    "FediOS, early": Pair("FediOS", "PFed", run, EARLY, ALL, ABSENT),
    "FediOS, early, individual extractors after the generic one": Pair(
        "FediOS", "PFed", lambda world: run(world, moved=True), EARLY, ALL, ABSENT
    ),
}
