"""FedGH: the authors' script for clients with equal nets."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from benchmarks.public.harness import ALL, Batches, Flat, Pair, case, entries, script
from tests.methods.forms.world import Outcome, World


class Double(Flat):
    """The net as theirs are: it returns scores and features."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        z = self.produce_feature(x)
        return self.fc3(z), z


class Header(nn.Module):
    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.fc3 = head

    def forward(self, z: Tensor) -> Tensor:
        found: Tensor = self.fc3(z)
        return found


class Told(Batches):
    """Batches that call a function at the first epoch of every round, of ``length`` passes."""

    def __init__(self, world: World, client: int, epochs: Any, length: int, call: Callable[[], None]) -> None:
        super().__init__(world, client, epochs)
        self.length, self.call, self.passes = length, call, 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        if self.passes % self.length == 0:
            self.call()
        self.passes += 1
        return super().__iter__()


def run(world: World, fresh: bool = False) -> Outcome:
    """Train for three rounds; ``fresh`` gives every client an optimiser without a past."""
    clients = range(len(world.clients))
    net, header = Double(world.make()), Header(world.make().head)
    optimisers: list[torch.optim.Optimizer] = []
    trained: dict[int, Any] = {}

    class SGD(torch.optim.SGD):
        def __init__(self, params: Any, **options: Any) -> None:
            super().__init__(params, **options)
            optimisers.append(self)

    def forget() -> None:
        if fresh:
            optimisers[0].state.clear()

    def train(i: int) -> Told:
        epochs = [epoch for r in range(len(world.cohorts)) for epoch in [*world.order(i, r, 0), None]]
        return Told(world, i, epochs, world.epochs + 1, forget)

    def test(i: int) -> Told:
        return Told(world, i, (), 1, lambda: trained.update({i: entries(net)}))

    nodes = SimpleNamespace(
        train_loaders=[train(i) for i in clients],
        test_loaders=[test(i) for i in clients],
        **{f"{part}_sample_count": [0] * len(clients) for part in ("train", "eval", "test")},
    )
    import_module("experiments.FLHetero.node").BaseNodes = lambda *_, **__: nodes
    import_module("experiments.FLHetero.Models.CNNs").CNN_1 = lambda **_: net
    import_module("experiments.FLHetero.Models.FC").FC = lambda **_: header
    options = {
        "data-name": "cifar10", "num-nodes": len(clients), "fraction": 1, "num-steps": len(world.cohorts),
        "epochs": world.epochs, "lr": world.lr, "wd": world.weight_decay,
    }  # fmt: skip
    chosen = mock.Mock(side_effect=[list(cohort) for cohort in world.cohorts])
    with mock.patch.object(torch.optim, "SGD", SGD), mock.patch.object(random, "sample", chosen):
        script("experiments/FLHetero/FedGH.py", *(f"--{key}={value}" for key, value in options.items()))
    return Outcome({"head": entries(header)}, [{"personal": trained[i]} for i in clients])


SETTINGS = {"momentum": 0.9, "weight_decay": 0.01, "clip": 50.0}
STILL = case("FedGH", settings=SETTINGS, options={"server_lr": 1e-300})
FOLDER = "FedGH/FedGH_Codes"
PAIRS: dict[str, Pair] = {
    "FedGH": Pair("FedGH", FOLDER, run, case("FedGH", settings=SETTINGS), ALL),
    "FedGH, rayfl's header fixed": Pair("FedGH", FOLDER, run, STILL, ALL),
    "FedGH, rayfl's header fixed, a fresh optimiser for each client": Pair(
        "FedGH", FOLDER, lambda world: run(world, fresh=True), STILL, ALL
    ),
}
