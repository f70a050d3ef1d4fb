"""FedHEAL and FedDG-GA: the authors' servers, which are for clients of different domains."""

from __future__ import annotations

import contextlib
import sys
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.public.harness import ALL, Batches, Flat, Pair, case, entries
from tests.methods.forms.world import Outcome, World, score

SETTINGS = {"momentum": 0.9, "weight_decay": 1e-5, "clip": 0.0}
STEP = 0.2


def fedheal(world: World) -> Outcome:
    with contextlib.chdir(sys.path[0]):  # it looks for its modules there
        code = import_module("models.fedavgheal")
    clients, rounds = range(len(world.clients)), range(len(world.cohorts))
    args = SimpleNamespace(
        parti_num=len(clients), online_ratio=1.0, device_id=0, local_epoch=world.epochs, local_lr=world.lr,
        dataset="", structure="", wHEAL=1, beta=0.4, threshold=0.3, averaging="weight",
    )  # fmt: skip
    base = import_module("models.utils.federated_model")
    base.get_device = lambda device_id: "cpu"
    base.checkpoint_path, base.create_if_not_exists = str, (lambda _: None)
    model = code.FedAvGHEAL([Flat(world.make()) for _ in clients], args, None)
    model.increase_history = {}  # it is None in the code, which stops there
    model.online_clients_sequence = world.cohorts
    model.ini()
    for model.epoch_index in rounds:
        model.loc_update([Batches(world, i, world.order(i, model.epoch_index, 0)) for i in clients])
    return Outcome({"weights": entries(model.global_net)}, [{} for _ in clients])


def feddgga(world: World, length: Any) -> Outcome:
    """Train for three rounds; ``length(i, T)`` is the step after round i of T, as a share of the first."""
    merge, adjust = import_module("utils.fed_merge"), import_module("utils.weight_adjust")
    clients, T = range(len(world.clients)), len(world.cohorts)
    server, nets = Flat(world.make()), {i: Flat(world.make()) for i in clients}
    weights, last = {i: 1 / len(clients) for i in clients}, {}

    def accuracy(net: nn.Module, i: int) -> dict[str, float]:
        data = world.clients[i]
        return {"acc": float((score(net, data.x_val).argmax(1) == data.y_val).double().mean())}

    for round in range(T):
        for i, net in nets.items():
            optimiser = torch.optim.SGD(net.parameters(), world.lr, world.momentum, weight_decay=1e-5)
            for batch in world.batches(i, round):
                optimiser.zero_grad()
                F.cross_entropy(net(world.clients[i].x[batch]), world.clients[i].y[batch]).backward()
                optimiser.step()
        before, last = {i: accuracy(net, i) for i, net in nets.items()}, dict(weights)
        merge.FedAvg(nets, weights, server)
        merge.FedUpdate(nets, server)
        after = {i: accuracy(net, i) for i, net in nets.items()}
        step = STEP * length(round, T) * 3 / len(clients)  # the code has 1/3 where the paper has 1/N
        adjust.refine_weight_dict_by_GA(weights, before, after, step, "acc")
    a = torch.tensor([float(last[i]) for i in clients])
    return Outcome({"weights": entries(server), "a": a}, [{} for _ in clients])


GA = case("FedDGGA", client={}, settings=SETTINGS)
PAIRS: dict[str, Pair] = {
    "FedHEAL": Pair(
        "FedHEAL", "FedHEAL", fedheal, case("FedHEAL", server={"weights": "weights"}, settings=SETTINGS), ALL,
        ("torchvision",),
    ),
    "FedDG-GA": Pair("FedDGGA", "FedDG-GA", lambda w: feddgga(w, lambda i, T: 1 - (i - 1) / T), GA, ALL),
    "FedDG-GA, rayfl's steps": Pair(
        "FedDGGA", "FedDG-GA", lambda w: feddgga(w, lambda i, T: 1 - (i + 1) / T), GA, ALL
    ),
}  # fmt: skip
