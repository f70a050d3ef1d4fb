"""FedPAC's authors: their clients and their round, with the quadratic programme as they solve it."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from benchmarks.public.harness import SOME, Batches, Flat, Pair, case, entries
from tests.methods.forms.cases import CASES
from tests.methods.forms.world import Outcome, World, score

SETTINGS = {"momentum": 0.5, "weight_decay": 5e-4, "clip": 0.0}
OPTIONS = {"lam": 0.7, "least_weight": 1e-3}


class Twofold(Flat):
    """The net as theirs are: it returns features and scores."""

    classifier_weight_keys = ["fc3.weight", "fc3.bias"]  # noqa: RUF012

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        z = self.produce_feature(x)
        return z, self.fc3(z)


class Pass(list[Any]):
    """A pass over batches that knows how many are left, as a data loader's does."""

    def __next__(self) -> Any:
        if not self:
            raise StopIteration
        return self.pop(0)


class Loader(Batches):
    def __iter__(self) -> Any:
        return Pass(super().__iter__())


def eig(matrix: Tensor, eigenvectors: bool) -> tuple[Tensor, Tensor]:
    """Stand for a function that PyTorch no longer has."""
    values, vectors = torch.linalg.eig(matrix)
    return torch.view_as_real(values), vectors.real


def run(world: World) -> Outcome:
    """Train for three rounds; a round's passes are statistics, means, head, extractor, means."""
    code, ids = import_module("methods.fedpac"), range(len(world.clients))
    import_module("tools").torch = SimpleNamespace(**{**vars(torch), "eig": eig})
    args = SimpleNamespace(
        num_classes=world.classes, device="cpu", lr=world.lr, lam=OPTIONS["lam"], num_users=len(ids),
        frac=len(world.cohorts[0]) / len(ids), epochs=len(world.cohorts), local_epoch=world.epochs, agg_g=1,
    )  # fmt: skip
    clients = [
        code.LocalUpdate_FedPAC(i, args, Loader(world, i), Loader(world, i), Twofold(world.make()))
        for i in ids
    ]
    for round, cohort in enumerate(world.cohorts):
        for i in cohort:
            fits = world.order(i, round, 0) + world.order(i, round, 1)
            clients[i].train_data = Loader(world, i, [None, None, *fits, None])
        with mock.patch.object(np.random, "choice", return_value=list(cohort)):
            import_module("running").train_round_fedpac(args, clients[0].local_model, clients, round)
    body = {k: v for k, v in clients[0].local_model.state_dict().items() if not k.startswith("fc3")}
    server = {"weights": entries(body), "centroids": {"centroids": clients[0].g_protos}}
    logits = torch.stack([score(client.local_model, world.probe)[1] for client in clients])
    return Outcome(server, [{} for _ in ids], {"personal": logits})


SERVER = {key: CASES["FedPAC"].server[key] for key in ("weights", "centroids")}
CASE = case("FedPAC", options=OPTIONS, settings=SETTINGS, server=SERVER, client={})
PAIRS = {"FedPAC": Pair("FedPAC", "FedPAC", run, CASE, SOME)}
