"""FedFomo's authors: their clients and federations, without the models of groups of clients."""

from __future__ import annotations

import sys
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import nn

from benchmarks.public.harness import ALL, Batches, Flat, Pair, case, entries
from tests.methods.forms.cases import CASES
from tests.methods.forms.world import Outcome, World, score

COMMAND = "--federation_method fomo --baseline_model first_model --momentum 0 --weight_decay 0"
OPTIONS = {"models": 5, "epsilon": 0.0}


def euclidean(a: nn.Module, b: nn.Module, norm: str) -> float:
    """Return the Euclidean distance, with what rayfl adds to it."""
    return sum(float((p - q).square().sum()) for p, q in zip(a.parameters(), b.parameters())) ** 0.5 + 1e-5


def made(world: World) -> list[Any]:
    """Return the authors' clients, who choose all models."""
    with mock.patch.object(sys, "argv", ["main.py", *COMMAND.split(), "--lr", str(world.lr)]):
        args = import_module("federated.args").args
    args.federation_round = None
    weights = import_module("federated.configs").cfg_fl.CLIENT_WEIGHT
    weights.EPSILON, weights.NUM_UPDATE_CLIENTS = OPTIONS["epsilon"], OPTIONS["models"] - 1
    import_module("federated.network").get_net = lambda *_: Flat(world.make())
    import_module("federated.train").load_federated_dataset = lambda dataset, train: dataset
    clients, everybody = [], SimpleNamespace(num_clients=len(world.clients))
    for i, own in enumerate(world.clients):
        client = import_module("client").Client(client_id=i, dist_id=0, population=everybody)
        client.init_client_weights()
        client.model, client.device, client.args = Flat(world.make()), None, args
        client.criterion, _ = import_module("federated.loss").get_local_loss()
        client.datasets = [None, [(own.x_val, own.y_val)], None]
        client.train_size = len(own.y)
        clients.append(client)
    return clients


def run(world: World, distance: Any = None) -> Outcome:
    """Train for three rounds, in which all clients take part; ``distance`` is put in the place of theirs."""
    clients, code = made(world), import_module("federation")
    code.compute_parameter_difference = distance or code.compute_parameter_difference
    for round in range(len(world.cohorts)):
        if round:
            federation = code.Federation(clients, 0, epoch=round)
            federation.compute_client_weights(round, federated_models=[], available_clients=clients)
            federation.federate()
        for client in clients:
            client.save_first_model()
            client.datasets[0] = Batches(world, client.id, world.order(client.id, round, 0))
            for epoch in range(world.epochs):
                client.train(epoch)
    kept = [{"personal": entries(c.model), "start": entries(c.first_model)} for c in clients]
    logits = torch.stack([score(c.model, world.probe) for c in clients])
    return Outcome({}, kept, {"personal": logits})


CASE = case("FedFomo", options=OPTIONS, server={}, client=CASES["FedFomo"].client)
PAIRS = {
    "FedFomo": Pair("FedFomo", "FedFomo", run, CASE, ALL),
    "FedFomo, Euclidean distance": Pair("FedFomo", "FedFomo", partial(run, distance=euclidean), CASE, ALL),
}
