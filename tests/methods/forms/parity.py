"""Runs of rayfl beside independent forms: the largest difference of any weight and any score, in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rayfl.data import Dataset, Dirichlet, DomainPerClient, FederatedData, Synthetic
from rayfl.data.task import Kind
from rayfl.engine.travel import EMPTY_DOWNLOAD
from rayfl.engine.worker import Worker
from rayfl.evaluation.finetune import Finetune
from rayfl.evaluation.score import Predict, answer_at_once
from rayfl.methods import METHODS, Method
from rayfl.nets import SplitNet
from rayfl.testing.by_hand import Run, start
from rayfl.training import Training
from rayfl.training.client import Client
from rayfl.training.noise import step_keys
from tests.methods.forms.cases import CASES, Case, Part
from tests.methods.forms.draws import KEYS, NORMALS, STATES
from tests.methods.forms.world import Outcome, Samples, World

SIZES = (12, 22, 16, 9, 14)
"""Of the clients that have a domain each; what Dirichlet shares give is as unequal."""
TRAINING = {"epochs": 2, "momentum": 0.9, "weight_decay": 1e-2, "clip": 0.7, "lr": 0.05}


@dataclass(frozen=True, eq=False)
class Setting:
    """A small federation.

    Attributes:
        division: of the data, by Dirichlet ``shares`` or by ``domains``.
        cohorts: the clients of each round; here 60 % of five, and client 4 never takes part.
        training: in the place of ``TRAINING``.
        changed: what becomes of the data.
        form: what a form runs in.
        loss: the mean loss of samples, which ``training`` names.
        kind: of what is learned.
        world: what differs in a form's world.
    """

    division: str = "shares"
    cohorts: Sequence[Sequence[int]] = ([0, 1, 3], [1, 2, 3], [0, 2, 3])
    training: Mapping[str, Any] = field(default_factory=dict)
    changed: Callable[[FederatedData], FederatedData] = copy
    form: Callable[[World], AbstractContextManager[Any]] = nullcontext
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
    kind: Kind = "classes"
    world: Mapping[str, Any] = field(default_factory=dict)


def squared_errors(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the squared errors of the probabilities, [B]: a loss that is no cross-entropy."""
    p = scores.softmax(1)
    return p.square().sum(1) - 2 * p.gather(1, targets[:, None])[:, 0] + 1


OTHER_LOSS = Setting(
    training={"loss": f"{__name__}.squared_errors"},
    loss=lambda scores, targets: squared_errors(scores, targets).mean(),
)
SETTINGS = {"shares": Setting(), "domains": replace(OTHER_LOSS, division="domains")}
SHARES = SETTINGS["shares"]


def learning(targets: Callable[[Dataset], np.ndarray]) -> Callable[[FederatedData], FederatedData]:
    """Return what gives data other targets than their labels."""

    def changed(data: FederatedData) -> FederatedData:
        names = ("a", "b", "c")
        learned = replace(data.dataset, targets=targets(data.dataset), target_names=names, task=None)
        return replace(data, dataset=learned)

    return changed


def two_classes(dataset: Dataset) -> np.ndarray:
    """Two positions of three classes; every fifth sample has none at the second, and the last none at all."""
    found = np.stack([dataset.labels % 3, (dataset.labels + np.arange(len(dataset))) % 3], axis=1)
    found[::5, 1], found[-1] = -100, -100
    return found


def cross_entropy_of_positions(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over all positions where a class is asked for; 0 where there is none."""
    total = F.cross_entropy(scores.movedim(-1, 1), targets, reduction="sum")
    return total / (targets >= 0).sum().clamp(min=1)


def kl_of_positions(teacher: Tensor, student: Tensor) -> Tensor:
    p, q = teacher.detach().softmax(-1), student.log_softmax(-1)
    return (p * (p.log() - q)).sum(-1).mean()


def kl_of_labels(teacher: Tensor, student: Tensor) -> Tensor:
    p, q = teacher.detach().sigmoid(), student.sigmoid()
    return (p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()).mean()


TASKS = {
    "numbers": Setting(
        changed=learning(
            lambda dataset: (
                np.stack([dataset.labels, dataset.labels**2, dataset.labels % 2], 1).astype(np.float32) / 2
                - 1
            )
        ),
        loss=F.mse_loss,
        kind="numbers",
        world={"divergence": lambda t, s: F.mse_loss(s, t.detach()), "fuse": lambda a, b: (a + b) / 2},
    ),
    "labels": Setting(
        changed=learning(lambda dataset: np.stack([dataset.labels == k for k in (0, 1, 1)], axis=1)),
        loss=F.binary_cross_entropy_with_logits,
        kind="labels",
        world={"divergence": kl_of_labels},
    ),
    "positions": Setting(
        changed=learning(two_classes),
        loss=cross_entropy_of_positions,
        kind="positions",
        world={"divergence": kl_of_positions},
    ),
}


class Plain(nn.Module):
    """A net in three parts with BatchNorm among the convolutions and in the hidden layers."""

    def __init__(self, conv: nn.Module, fc: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.conv, self.fc, self.head = conv, fc, head

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.fc(self.conv(x)))
        return found


def parts(
    shape: tuple[int, ...], classes: int, width: int = 3, positions: int = 0
) -> tuple[nn.Module, nn.Module, nn.Linear]:
    """Return a net in which a layer can be told from its BatchNorm, without kinks."""
    conv = nn.Sequential(nn.Conv2d(shape[0], width, 5, 3), nn.BatchNorm2d(width), nn.Softplus(), nn.Flatten())
    count = width * ((shape[1] - 5) // 3 + 1) * ((shape[2] - 5) // 3 + 1)
    hidden = 6 * (positions or 1)
    fc = nn.Sequential(nn.Linear(count, hidden), nn.BatchNorm1d(hidden), nn.Tanh())
    if positions:
        fc.append(nn.Unflatten(1, (positions, 6)))
    return conv, fc, nn.Linear(6, classes)


def small(shape: tuple[int, ...], classes: int) -> SplitNet:
    """The net as rayfl's own are."""
    return SplitNet(*parts(shape, classes))


def wider(shape: tuple[int, ...], classes: int) -> SplitNet:
    """Another one."""
    return SplitNet(*parts(shape, classes, 4))


def small_of_positions(shape: tuple[int, ...], classes: int) -> SplitNet:
    """The first with scores of two positions."""
    return SplitNet(*parts(shape, classes, positions=2))


def wider_of_positions(shape: tuple[int, ...], classes: int) -> SplitNet:
    """The other likewise."""
    return SplitNet(*parts(shape, classes, 4, positions=2))


@contextmanager
def orders_noted(places: Mapping[int, int], seed: int) -> Any:
    """Note the places of every fit's samples, by (client, round, number) and epoch by epoch, and its keys.

    Fits that are not of the training of a round, which have another seed than the run, get the round -1.
    """
    noted: dict[tuple[int, int, int], list[list[Tensor]]] = {}
    KEYS.clear()
    fit = Client.fit

    def noting(self: Client, *given: Any, **options: Any) -> Any:
        stream = options.get("stream")
        number = self._fits if stream is None else stream
        pending: Any = fit(self, *given, **options)
        request = pending
        batches = [torch.tensor([places[int(i)] for i in batch]) for batch in request.batches]
        length = max(1, request.epoch_length)
        epochs = [batches[k : k + length] for k in range(0, len(batches), length)]
        key = (self._id, self._round if self._seed == seed else -1, number)
        noted[key] = max(noted.get(key, []), epochs, key=len)
        KEYS[key] = step_keys(request.key, len(batches))
        return pending

    with mock.patch.object(Client, "fit", noting):
        yield noted


@cache
def data_of(division: str, val: bool, side: int) -> FederatedData:
    """Five clients' images of four classes: by Dirichlet shares, or with a domain for each of them."""
    by_shares = division == "shares"
    made = Synthetic(
        train=75 if by_shares else len(SIZES) * max(SIZES),
        test=24,
        shape=(1, side, side),
        classes=4,
        domains=1 if by_shares else len(SIZES),
        noise=0.5,
        partition=Dirichlet(alpha=0.5, min_samples=3) if by_shares else DomainPerClient(),
        val_fraction=0.25 if val else 0.0,
    )
    data = made.federate(len(SIZES), seed=2)
    if by_shares:
        return data
    clients = [replace(c, train=c.train[:size]) for c, size in zip(data.clients, SIZES, strict=True)]
    return replace(data, clients=clients)


def method_of(name: str, kind: Kind = "classes") -> Method:
    """Return the method of a case, whose name begins with that of its class."""
    case = CASES[name]
    own = {key: _net_for(value, kind) for key, value in case.own.items()}
    return METHODS[name.split()[0].removesuffix("-FT")](**case.options, **own)


def _net_for(net: Any, kind: Kind) -> Any:
    return f"{net}_of_positions" if kind == "positions" and isinstance(net, str) and "parity" in net else net


def federated(name: str, setting: Setting = SHARES, execution: str = "loop") -> tuple[Run, Any]:
    """Run rayfl; return the run, and the batches of all fits by (client, round, number)."""
    case, method = CASES[name], method_of(name, setting.kind)
    val = method.facts.validation != "unused"
    data = setting.changed(data_of(setting.division, val, case.side))
    training = {**TRAINING, **setting.training, **case.settings}
    run = start(
        method,
        data,
        _net_for(case.net, setting.kind),
        rounds=len(setting.cohorts),
        execution=execution,
        **training,
    )
    places = {int(i): k for each in data.clients for own in (each.train, each.val) for k, i in enumerate(own)}
    normals = torch.randn

    def noting(*given: Any, **options: Any) -> Tensor:
        drawn = normals(*given, **options)
        NORMALS.append((len(run.results), drawn))
        return drawn

    NORMALS.clear()
    STATES.clear()
    seed = run.worker.plan.seed
    with orders_noted(places, seed) as noted, mock.patch("torch.randn", noting):
        for cohort in setting.cohorts:
            STATES.append(run.server.state)
            with mock.patch.object(Worker, "_score", scored):
                run.round(cohort, ("test",))
    if case.finetune or method.overrides("personalise"):
        with orders_noted(places, seed) as tuning:
            if case.finetune:
                finetuned(run, case)
            else:
                for i in range(len(data.clients)):
                    run.scores(i, probe_of(run))
        noted |= {(i, len(setting.cohorts), fit): epochs for (i, _, fit), epochs in tuning.items()}
    return run, noted


def scored(worker: Worker, predicts: Mapping[int, Predict], *_: Any) -> Any:
    """Return the scores of all test images, by view, of each client."""
    inputs = torch.tensor(worker.data.dataset.inputs)
    probe = torch.cat([inputs[c.test] for c in worker.data.clients]).double()
    with torch.no_grad():
        return {i: answer_at_once(predict(probe)) for i, predict in predicts.items()}


def finetuned(run: Run, case: Case) -> Tensor:
    """Return the scores of all clients after fine-tuning, [clients, P, classes]."""
    clients = range(len(run.worker.data.clients))
    run.worker.plan = replace(run.worker.plan, finetune=Finetune(**case.finetune))
    with mock.patch.object(Worker, "_score", scored):
        found = run.worker.finetune(
            len(run.results) - 1,
            run.server.download(clients),
            [tuple(clients)],
            ("test",),
            EMPTY_DOWNLOAD,
            [4],
        )
    return torch.stack([found[i]["finetuned"] for i in clients])


@cache
def formed(name: str, setting: Setting = SHARES) -> tuple[Outcome, Run]:
    """Return what the form comes to, and the run in a loop from which it has orders and draws."""
    run, noted = federated(name, setting)
    case, module = CASES[name], name.split()[0].lower().replace("-", "")
    form = import_module(f"tests.methods.forms.{module}")
    world = world_of(run, case, noted, setting.cohorts)
    for member, of_task in {"loss": setting.loss, **setting.world}.items():
        setattr(world, member, of_task)
    with setting.form(world):
        return form.run(world, **case.options, **case.finetune), run


class Rounds(list[Sequence[int]]):
    """Cohorts, of which each brings the learning rate of its round into the world."""

    def __init__(self, world: World, cohorts: Sequence[Sequence[int]], training: Training) -> None:
        super().__init__(cohorts)
        self._world, self._training = world, training

    def __iter__(self) -> Iterator[Sequence[int]]:
        for round in range(len(self)):
            self._world.lr = self._training.lr_at(round, len(self))
            yield self[round]


def compare(name: str, setting: Setting = SHARES, execution: str = "loop") -> dict[str, float]:
    """Return the largest differences: of what the server holds, what clients keep, each view's scores.

    Where one client alone has taken part in the last round, also of its scores right after training.
    """
    outcome, run = formed(name, setting)
    found = differences(name, outcome, run if execution == "loop" else federated(name, setting, execution)[0])
    if len(run.results[-1].ids) == 1 and CASES[name].takes_means:
        ((client, views),) = run.results[-1].scores.items()
        for view, scores in views.items():
            found[f"{view} after training"] = float((scores - outcome.logits[view][client]).abs().max())
    return found


def differences(name: str, outcome: Outcome, run: Run) -> dict[str, float]:
    case = CASES[name]
    assert outcome.server.keys() == case.server.keys(), outcome.server.keys()
    found: dict[str, float] = {}
    for key, theirs in ((k, v) for k, v in case.server.items() if v is not None):
        off = difference(outcome.server[key], part(run.server.state, theirs))
        found["server"] = max(found.get("server", 0.0), off)
    for i, client in enumerate(outcome.clients):
        assert client.keys() in (case.client.keys(), {}.keys()), client.keys()
        state = run.worker.state(i, run.worker.client(i, 0))
        for key in (k for k in client if case.client[k] is not None):
            off = difference(client[key], part(state, case.client[key]))
            found["clients"] = max(found.get("clients", 0.0), off)
    probe = probe_of(run)
    for view, scores in outcome.logits.items():
        if view == "finetuned":
            mine = finetuned(run, case)
        else:
            mine = torch.stack([run.scores(i, probe)[view] for i in range(len(outcome.clients))])
        found[view] = float((mine - scores).abs().max())
    return found


def part(state: Mapping[str, Any], theirs: Part) -> Any:
    return theirs(state) if callable(theirs) else state[theirs]


def probe_of(run: Run) -> Tensor:
    """Return the test images of all clients, one after the other."""
    data = run.worker.data
    return torch.cat([torch.tensor(data.dataset.inputs[c.test]).double() for c in data.clients])


def difference(form: Any, state: Any) -> float:
    """Return the largest difference; counts of batches, which rayfl does not keep, are left out."""
    if isinstance(form, Mapping) and isinstance(state, Mapping):
        form = {k: v for k, v in form.items() if not k.endswith("num_batches_tracked")}
        if form.keys() == {"weight", "bias"} and "head.weight" in state:
            form = {f"head.{k}": v for k, v in form.items()}
        assert form.keys() == set(state.keys()), f"{sorted(form)} != {sorted(state.keys())}"
        return max((difference(v, state[k]) for k, v in form.items()), default=0.0)
    if isinstance(form, Mapping) and len(form) == 1:
        (form,) = form.values()
    assert tuple(form.shape) == tuple(state.shape), f"{tuple(form.shape)} != {tuple(state.shape)}"
    return float((form.double() - state.double()).abs().max()) if form.numel() else 0.0


def world_of(run: Run, case: Case, noted: Mapping[Any, Any], cohorts: Sequence[Sequence[int]]) -> World:
    data, worker = run.worker.data, run.worker
    dataset, training = data.dataset, worker.plan.training
    x, y = torch.tensor(dataset.inputs).double(), torch.tensor(dataset.targets)
    y = y if y.dtype == torch.int64 else y.double()
    positions = 2 if dataset.task.kind == "positions" else 0
    clients = [Samples(x[c.train], y[c.train], x[c.val], y[c.val]) for c in data.clients]

    def make(name: str | None = None, seed: int | None = None) -> nn.Module:
        client = worker.client(0, 0)
        if name == "policy":  # FedCP's, which is no net of a client's
            entries = worker.method.init_client(client)["policy"]
            policy = nn.Module()
            for key, value in entries.items():
                policy.register_parameter(key, nn.Parameter(value.clone()))
            return policy
        if case.own.get(name):
            initial, module = (
                worker.context.initial_of(name),
                Plain(*parts(dataset.shape, dataset.outputs, 4, positions)),
            )
        else:
            initial = client.net.initial(worker.plan.seed, *([] if seed is None else [seed + 1]))
            own = not isinstance(case.net, str)  # of which a form takes the entries alone
            module = (
                client.net._build()
                if own
                else Plain(*parts(dataset.shape, dataset.outputs, positions=positions))
            )
        module.double().load_state_dict(dict(initial.tensors), strict=False)
        return module.train()

    def draw(what: str, client: int, round: int, fit: int = 0, step: int = 0) -> Tensor:
        world.at = client, round
        return case.draws[what](run, world, client, round, fit, step)

    def order(client: int, round: int, fit: int) -> list[list[Tensor]]:
        world.at = client, round
        if case.turns > 1:
            epochs = noted[client, round, 0]
            return epochs[fit :: case.turns]
        there = client, round, case.fits.get(fit, fit)
        return noted[there if there in noted else (client, round, fit)]

    world = World(
        clients, (), dataset.outputs, training.lr, training.momentum, training.weight_decay,
        training.clip, training.epochs, probe_of(run), make, order, draw,
    )  # fmt: skip
    world.cohorts = Rounds(world, cohorts, training)
    return world


if __name__ == "__main__":
    import sys

    for name in sys.argv[1:] or CASES:
        for division, setting in SETTINGS.items():
            for execution in ("loop", "stacked"):
                found = compare(name, setting, execution)
                figures = " ".join(f"{key} {value:.0e}" for key, value in found.items())
                print(name, division, execution, figures, flush=True)
