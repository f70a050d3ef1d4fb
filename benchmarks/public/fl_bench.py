"""FL-bench: SCAFFOLD's client and server, on stand-ins for the classes below them."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.public.harness import NO_SINGLES, Batches, Flat, Pair, case, entries
from tests.methods.forms.world import Outcome, World


class Server:
    """What SCAFFOLD's server needs of FedAvg's."""

    def __init__(self, world: World) -> None:
        self.public_model_params = dict(Flat(world.make()).named_parameters())
        self.args = SimpleNamespace(scaffold=SimpleNamespace(global_lr=1.0))
        self.train_clients, self.client_num = range(len(world.clients)), len(world.clients)

    def package(self, client: int) -> dict[str, Any]:
        values = {key: value.detach().clone() for key, value in self.public_model_params.items()}
        return {"regular_model_params": values}


class Client:
    """What SCAFFOLD's client needs of FedAvg's."""

    def __init__(self, world: World) -> None:
        self.model, self.device, self.criterion = Flat(world.make()), "cpu", F.cross_entropy
        self.dataset, self.lr_scheduler = SimpleNamespace(train=lambda: None), None
        self.optimizer = torch.optim.SGD(self.model.parameters(), world.lr)
        self.args = SimpleNamespace(optimizer=SimpleNamespace(lr=world.lr), common=SimpleNamespace())

    def set_parameters(self, package: dict[str, Any]) -> None:
        self.model.load_state_dict(package["regular_model_params"])

    def train_with_eval(self) -> None:
        self.fit()  # type: ignore[attr-defined]

    def package(self) -> dict[str, Any]:
        return {}


def run(world: World, stored: bool = False) -> Outcome:
    """Train for three rounds; ``stored`` puts the new controls where the server has the old ones."""
    for name, base in (("client", Client), ("server", Server)):
        module = ModuleType(f"src.{name}.fedavg")
        setattr(module, base.__name__.join(("FedAvg", "")), base)
        sys.modules[module.__name__] = module
    server = import_module("src.server.scaffold").SCAFFOLDServer(world)
    client = import_module("src.client.scaffold").SCAFFOLDClient(world=world)
    for round, cohort in enumerate(world.cohorts):
        packages = {}
        for i in cohort:
            batches = world.batches(i, round)
            client.trainloader = Batches(world, i, [batches])
            client.args.common.local_epoch = client.local_epoch = len(batches)  # it counts steps
            packages[i] = client.train(server.package(i))
            if stored:
                server.c_local[i] = client.c_local
        server.aggregate_client_updates(packages)
    names = list(server.public_model_params)
    found = {"weights": server.public_model_params, "control": dict(zip(names, server.c_global, strict=True))}
    kept = [{"control": entries(dict(zip(names, each, strict=True)))} for each in server.c_local]
    return Outcome({key: entries(value) for key, value in found.items()}, kept)


PAIRS: dict[str, Pair] = {
    "SCAFFOLD": Pair("SCAFFOLD", "FL-bench", run, case("SCAFFOLD"), NO_SINGLES, ("omegaconf",)),
    "SCAFFOLD, controls stored": Pair(
        "SCAFFOLD",
        "FL-bench",
        lambda world: run(world, stored=True),
        case("SCAFFOLD"),
        NO_SINGLES,
        ("omegaconf",),
    ),
}
