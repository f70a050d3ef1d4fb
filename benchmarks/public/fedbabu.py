"""FedBABU's authors: their script, and their update of a client for the tuning that they do in a notebook."""

from __future__ import annotations

import copy
from importlib import import_module
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from benchmarks.public.harness import Batches, Flat, Pair, case, entries, script
from rayfl.training.schedules import Steps
from tests.methods.forms.world import Outcome, World, score

SETTINGS = {"momentum": 0.9, "weight_decay": 0.01, "clip": 0.0, "schedule": Steps(at_rounds=[1, 2])}


class Linear(Flat):
    """The net with a head of the name that theirs have."""

    def __init__(self, net: Any) -> None:
        super().__init__(net)
        self.linear = self.fc3
        del self.fc3

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.linear(self.produce_feature(x))
        return found


def run(world: World) -> Outcome:
    """Train for three rounds by the script, and tune whole nets by the rate of the last round."""
    ids, now, cohorts = range(len(world.clients)), {"round": -1}, iter(world.cohorts)

    def choose(*_: Any, **__: Any) -> list[int]:
        now["round"] += 1
        return list(next(cohorts))

    def load(split: Any, **_: Any) -> Batches:
        (i,) = split.idxs
        return Batches(world, i, world.order(i, now["round"], 0))

    update, utils = import_module("models.Update"), import_module("utils.train_utils")
    update.DataLoader, utils.get_model = load, lambda _: Linear(world.make())
    utils.get_data = lambda _: (None, None, {i: [i] for i in ids}, {})
    options = {
        "epochs": len(world.cohorts), "num_users": len(ids), "frac": len(world.cohorts[0]) / len(ids),
        "local_ep": world.epochs, "lr": world.lr, "momentum": world.momentum, "wd": world.weight_decay,
        "local_upt_part": "body", "aggr_part": "body", "gpu": -1, "test_freq": 99,
    }  # fmt: skip
    with mock.patch.object(np.random, "choice", choose):
        made = script("main_fed.py", *(f"--{key}={value}" for key, value in options.items()))
    nets = made["net_local_list"]
    body = copy.deepcopy({k: v for k, v in nets[0].state_dict().items() if not k.startswith("linear")})
    now["round"] += 1
    for i in ids:
        local = update.LocalUpdate(made["args"], None, [i])
        local.train(nets[i], made["lr"], made["lr"], local_eps=5)
    logits = torch.stack([score(net, world.probe) for net in nets])
    return Outcome({"weights": entries(body)}, [{} for _ in ids], {"personal": logits})


CASE = case("FedBABU", settings=SETTINGS)
PAIRS = {"FedBABU": Pair("FedBABU", "FedBABU", run, CASE, averaging="uniform")}
