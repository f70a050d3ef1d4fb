"""NIID-Bench's script, and MOON's, from which it has grown."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from itertools import count
from typing import Any
from unittest import mock

import numpy as np
from torch import Tensor

from benchmarks.public.harness import NO_SINGLES, Batches, Flat, Pair, case, entries, script
from tests.methods.forms.world import Outcome, World

MOMENTUM = {"momentum": 0.9, "weight_decay": 0.01, "clip": 0.0}
"""Settings of MOON, whose momentum is fixed."""


class Places(list[int]):
    """A client's places among all samples, of which the scripts ask only the number, and who has them."""

    def __init__(self, client: int, samples: int) -> None:
        super().__init__([0] * samples)
        self.client = client


class Triple(Flat):
    """The net as MOON's are: it returns features, their projection, which is the same here, and scores."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        z = self.produce_feature(x)
        return z, z, self.fc3(z)


def run(
    world: World, file: str, modules: Sequence[str], names: Mapping[str, Any], split: bool, **options: Any
) -> dict[str, Any]:
    """Run a script of this family for three rounds; return its names.

    Args:
        world: what to train.
        file: the script.
        modules: from which it takes nets and loaders.
        names: what else is put in the place of theirs.
        split: whether it divides the test samples, too.
        options: of its command line, besides those of all scripts.
    """
    clients, cohorts = range(len(world.clients)), iter(world.cohorts)
    rounds = {i: iter([r for r, cohort in enumerate(world.cohorts) if i in cohort]) for i in clients}

    def choose(order: Any, k: int = 0) -> list[int]:
        cohort = list(next(cohorts))
        if not k:  # the order is shuffled in place, and begins with the cohort
            order[:] = cohort + [i for i in clients if i not in cohort]
        return cohort

    def get_dataloader(*given: Any, **_: Any) -> Any:
        for own in (each for each in given if isinstance(each, Places)):
            epochs = world.order(own.client, next(rounds[own.client]), 0)
            return Batches(world, own.client, epochs), Batches(world, own.client), None, None
        return Batches(world, 0), Batches(world, 0), clients, clients  # of all clients together

    labels = np.arange(world.classes)
    places = {i: Places(i, len(world.clients[i].y)) for i in clients}
    counts = {i: {0: 1} for i in clients}
    divided = (None, labels, None, labels, *([places, places, counts, None] if split else [places, counts]))
    new = {"partition_data": lambda *_, **__: divided, "get_dataloader": get_dataloader}
    for module in map(import_module, modules):
        for name, value in {**new, "get_divided_dataloader": get_dataloader, **names}.items():
            setattr(module, name, value)
    own = {
        "n_parties": len(clients), "comm_round": len(world.cohorts), "epochs": world.epochs, "lr": world.lr,
        "reg": world.weight_decay, "device": "cpu", **options,
    }  # fmt: skip
    with mock.patch.object(np.random, "shuffle", choose), mock.patch.object(random, "sample", choose):
        return script(file, *(f"--{key}={value}" for key, value in own.items()))


def accuracy(alone: Any, with_matrix: Any) -> Any:
    return lambda *_, get_confusion_matrix=False, **__: with_matrix if get_confusion_matrix else alone


def share(world: World) -> float:
    return len(world.cohorts[0]) / len(world.clients)


def niid(alg: str, read: Callable[[dict[str, Any]], Outcome], zeros: bool = False, **options: Any) -> Any:
    """Return a form of NIID-Bench's; with ``zeros`` SCAFFOLD's controls, the last nets made, begin at 0."""

    def form(world: World) -> Outcome:
        made = count()

        def net(*_: Any) -> Flat:
            found = Flat(world.make())
            for value in found.parameters() if zeros and next(made) > len(world.clients) else ():
                value.data.zero_()
            return found

        names = {
            "FcNet": net,
            "ModelFedCon_noheader": lambda *_: Triple(world.make()),
            "compute_accuracy": lambda *_, get_confusion_matrix=False, **__: (0, (0, 0))[
                get_confusion_matrix
            ],
        }
        own = {"dataset": "a9a", "sample": share(world), "rho": world.momentum, "alg": alg}
        modules = "utils", "model", "vggmodel"
        return read(run(world, "experiments.py", modules, names, False, **own, **options))

    return form


def moon(alg: str, read: Callable[[dict[str, Any]], Outcome], **options: Any) -> Any:
    def form(world: World) -> Outcome:
        names = {
            "ModelFedCon_noheader": lambda *_: Triple(world.make()),
            "compute_accuracy": lambda *_, get_confusion_matrix=False, **__: (
                (0.0,) * (2 + get_confusion_matrix)
            ),
        }
        own = {"dataset": "cifar10", "use_project_head": 0, "sample_fraction": share(world), "alg": alg}
        own["modeldir"] = "models/"
        return read(run(world, "main.py", ("utils", "model"), names, False, **own, **options))

    return form


def average(names: dict[str, Any]) -> Outcome:
    return Outcome({"weights": entries(names["global_model"])}, [{} for _ in names["nets"]])


def controls(names: dict[str, Any]) -> Outcome:
    server = {"weights": entries(names["global_model"]), "control": entries(names["c_global"])}
    return Outcome(server, [{"control": entries(net)} for net in names["c_nets"].values()])


def pools(names: dict[str, Any]) -> Outcome:
    weights = {"weights": entries(names["global_model"])}
    return Outcome(weights, [{"previous": entries(net)} for net in names["old_nets_pool"][0].values()])


def pair(method: str, folder: str, form: Any, **options: Any) -> Pair:
    settings = {"settings": MOMENTUM} if method == "MOON" or folder == "MOON" else {}
    return Pair(method, folder, form, case(method, **settings), **options)


PAIRS: dict[str, Pair] = {
    "FedAvg": pair("FedAvg", "NIID-Bench", niid("fedavg", average)),
    "FedProx": pair("FedProx", "NIID-Bench", niid("fedprox", average, mu=0.5)),
    "SCAFFOLD": pair("SCAFFOLD", "NIID-Bench", niid("scaffold", controls), averaging="samples"),
    "SCAFFOLD, controls start at 0": pair(
        "SCAFFOLD", "NIID-Bench", niid("scaffold", controls, zeros=True), averaging="samples"
    ),
    "MOON": pair("MOON", "NIID-Bench", niid("moon", pools, mu=1.0)),
    "MOON, no batch of one sample": pair(
        "MOON", "NIID-Bench", niid("moon", pools, mu=1.0), cohorts=NO_SINGLES
    ),
    "MOON, of its authors": pair("MOON", "MOON", moon("moon", pools)),
    "FedProx, of MOON's authors": pair("FedProx", "MOON", moon("fedprox", average, mu=0.5)),
}
