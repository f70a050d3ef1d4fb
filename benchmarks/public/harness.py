"""Public code beside rayfl: it gets the same initial weights, clients and batches, and trains by itself."""

from __future__ import annotations

import contextlib
import io
import logging
import random
import runpy
import sys
import tempfile
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from rayfl.methods import METHODS
from rayfl.nets import Shape, SplitNet
from rayfl.nets.base import ImageArchitecture
from tests.methods.forms import parity
from tests.methods.forms.cases import CASES, Case
from tests.methods.forms.world import Outcome, Weights, World

PLAIN_SGD = {"momentum": 0.0, "weight_decay": 0.0, "clip": 0.0}
"""Settings of most public code."""
SOME, ALL = parity.SHARES.cohorts, [range(5)] * 3
NO_SINGLES = [0, 1, 3], [1, 3, 4], [0, 3, 4]
"""Cohorts of three rounds; the clients of the last have no batch of one sample."""
NAMES = {
    "conv1": "conv.0", "bn1": "conv.1", "conv2": "conv.3", "bn2": "conv.4",
    "fc1": "fc.0", "bn3": "fc.1", "fc2": "fc.3", "bn4": "fc.4", "fc3": "head", "head": "head",
    "classifier": "head",
}  # fmt: skip
"""Names of layers in public code -> in rayfl."""
BN = ("conv.1", "conv.4", "fc.1", "fc.4")


class Small(ImageArchitecture):
    """A small net in the form of LeNet, without kinks."""

    norm: bool = False
    """Whether with BatchNorm."""

    def build(self, shape: Shape, classes: int) -> SplitNet:
        norms = [nn.BatchNorm2d(4), nn.BatchNorm2d(4), nn.BatchNorm1d(8), nn.BatchNorm1d(6)]
        norms = norms if self.norm else [nn.Identity()] * 4
        conv = nn.Sequential(
            nn.Conv2d(shape[0], 4, 5, 3), norms[0], nn.Softplus(), nn.Conv2d(4, 4, 3), norms[1],
            nn.Softplus(), nn.Flatten(),
        )  # fmt: skip
        fc = nn.Sequential(nn.Linear(16, 8), norms[2], nn.Tanh(), nn.Linear(8, 6), norms[3], nn.Tanh())
        return SplitNet(conv, fc, nn.Linear(6, classes))


def layers(part: nn.Module, prefix: str) -> OrderedDict[str, nn.Module]:
    """Return the layers of a part of the net, ``conv`` or ``fc``, under the names that public code has."""
    own = {theirs: k for theirs, k in NAMES.items() if k.startswith(prefix + ".")}
    names = {int(k.split(".")[1]): theirs for theirs, k in own.items()}
    return OrderedDict((names.get(k, f"{prefix}_act{k}"), layer) for k, layer in enumerate(part.children()))


class Flat(nn.Module):
    """The net with all layers on one level, under the names that public code has."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        for name, layer in (layers(net.conv, "conv") | layers(net.fc, "fc")).items():
            self.add_module(name, layer)
        self.fc3 = net.head

    def produce_feature(self, x: Tensor) -> Tensor:
        for layer in list(self.children())[:-1]:
            x = layer(x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.fc3(self.produce_feature(x))
        return found


def entries(source: nn.Module | Mapping[str, Any]) -> Weights:
    """Return entries under rayfl's names; names without a layer are those of a head."""
    state = source.state_dict() if isinstance(source, nn.Module) else source
    found = {}
    for key, value in state.items():
        layer, entry = ("head." + key).split(".")[-2:]
        found[f"{NAMES[layer]}.{entry}"] = torch.as_tensor(value).detach().clone()
    return found


OPTIONS: dict[str, Any] = {
    "FedProx": {"mu": 0.5}, "Ditto": {"mu": 0.5}, "FedALA": {"eta": 0.5, "threshold": 1.0},
}  # fmt: skip
"""Of rayfl's methods, where they are not the default ones."""


def case(method: str, **changes: Any) -> Case:
    """Return the case of a method in parity, with net, settings and options of here."""
    own = {"net": Small(), "settings": PLAIN_SGD, "options": OPTIONS.get(method, {}), "own": {}}
    return replace(CASES[method], **{**own, **changes})


@dataclass(frozen=True)
class Pair:
    """A method of rayfl and the public code that it is compared with.

    Attributes:
        method: name of rayfl's class.
        folder: from which the public code imports its modules, below the folder of all sources.
        form: ``form(world)`` trains with the public code and returns what it has come to.
        case: options and settings; which of rayfl's states are compared with what the form returns.
        cohorts: who takes part in each round.
        absent: packages that the public code imports and that its update does not need.
        averaging: rayfl's option of this name, in the place of the method's own default.
    """

    method: str
    folder: str
    form: Callable[[World], Outcome]
    case: Case
    cohorts: Sequence[Sequence[int]] = SOME
    absent: Sequence[str] = ()
    averaging: str | None = None

    def differences(self, sources: Path) -> dict[str, float]:
        """Run both; return the largest differences: of the server, of clients, of each view's scores."""
        name = f"{self.method} beside public code"
        kind = METHODS[self.method]
        facts = kind().facts
        with (
            mock.patch.dict(CASES, {name: self.case}),
            mock.patch.object(kind, "facts", replace(facts, averaging=self.averaging or facts.averaging)),
        ):
            run, noted = parity.federated(name, parity.Setting(cohorts=self.cohorts))
            world = parity.world_of(run, self.case, noted, self.cohorts)
            world = replace(world, make=as_rayfl(world.make), draw=as_rayfl(world.draw))
            with public_code(sources / self.folder, self.absent):
                outcome = self.form(world)
            return parity.differences(name, outcome, run)


class Absent(MetaPathFinder, Loader):
    """Stands for packages that are not there, or not needed: whatever is imported of them is a mock."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] in self.names else None

    def create_module(self, spec: ModuleSpec) -> Any:
        return mock.MagicMock()

    def exec_module(self, module: Any) -> None:
        module.__path__ = []


@contextlib.contextmanager
def public_code(folder: Path, absent: Sequence[str]) -> Iterator[None]:
    """Let modules be imported from a folder, compute in float64 on the CPU, print nothing; undo all of it."""
    own = {entry.stem for entry in folder.iterdir()} | set(absent)
    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] in own}
    path, default = list(sys.path), torch.get_default_dtype()
    log, drawn = logging.getLogger(), (random.getstate(), np.random.get_state())  # noqa: NPY002
    random.seed(0)
    handlers, level = list(log.handlers), log.level
    for name in before:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    sys.meta_path.insert(0, Absent(absent))
    torch.set_default_dtype(torch.float64)
    try:
        with (
            torch.random.fork_rng(devices=[]),
            mock.patch.object(torch.Tensor, "cuda", lambda self, *_, **__: self),
            mock.patch.object(torch.Tensor, "float", torch.Tensor.double),
            mock.patch.object(nn.Module, "cuda", lambda self, *_, **__: self),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_default_dtype(default)
        random.setstate(drawn[0])
        np.random.set_state(drawn[1])  # noqa: NPY002
        log.handlers[:] = handlers
        log.setLevel(level)
        sys.meta_path.pop(0)
        sys.path[:] = path
        for name in [name for name in sys.modules if name.split(".")[0] in own]:
            del sys.modules[name]
        sys.modules.update(before)


def script(file: str, *arguments: str) -> dict[str, Any]:
    """Run a script of the public code as a program, in an empty folder; return its global names."""
    path = str(Path(sys.path[0]) / file)
    with (
        tempfile.TemporaryDirectory() as scratch,
        contextlib.chdir(scratch),
        mock.patch.object(sys, "argv", [file, *arguments]),
    ):
        return runpy.run_path(path, run_name="__main__")


def as_rayfl(made: Callable[..., Any], to_float: Any = torch.Tensor.float) -> Callable[..., Any]:
    """Return a function that is called as outside of public code, also within it."""

    def call(*given: Any, **options: Any) -> Any:
        torch.set_default_dtype(torch.float32)
        try:
            with mock.patch.object(torch.Tensor, "float", to_float):
                return made(*given, **options)
        finally:
            torch.set_default_dtype(torch.float64)

    return call


class Batches:
    """A client's batches, epoch by epoch, as a data loader has them; an epoch None is all samples in one."""

    def __init__(self, world: World, client: int, epochs: Sequence[Sequence[Tensor] | None] = ()) -> None:
        self.data = world.clients[client]
        self.dataset = self.data.y  # of which only the length is asked
        self.all = [torch.arange(len(self.data.y))]
        self.epochs = [self.all if epoch is None else epoch for epoch in epochs]
        self.length = len(self.epochs[0]) if self.epochs else 1

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        epoch = self.epochs.pop(0) if self.epochs else self.all
        return iter([(self.data.x[places], self.data.y[places]) for places in epoch])
