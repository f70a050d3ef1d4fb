"""Runs of rayfl beside independent forms: the largest difference of any weight and any score, in float64."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from rayfl.data import Dirichlet, DomainPerClient, FederatedData, Synthetic
from rayfl.engine.travel import NOTHING
from rayfl.engine.worker import Worker
from rayfl.evaluation.finetune import Finetune
from rayfl.methods import METHODS, Method
from rayfl.nets import SplitNet
from rayfl.testing.by_hand import Run, start
from rayfl.training.client import Client
from rayfl.training.noise import step_keys
from tests.methods.forms.cases import CASES, Case, Part
from tests.methods.forms.draws import KEYS, NORMALS
from tests.methods.forms.world import Outcome, Samples, World

COHORTS = ([0, 1, 3], [1, 2, 3], [0, 2, 3])
"""60 % of five clients; client 4 never takes part."""
SIZES = (12, 22, 16, 9, 14)
"""Of the clients that have a domain each; what Dirichlet shares give is as unequal."""
DIVISIONS = ("shares", "domains")
SETTINGS = {"epochs": 2, "momentum": 0.9, "weight_decay": 1e-2, "clip": 0.7, "lr": 0.05}


class Plain(nn.Module):
    """A net in three parts with BatchNorm among the convolutions and in the hidden layers."""

    def __init__(self, conv: nn.Module, fc: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.conv, self.fc, self.head = conv, fc, head

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.fc(self.conv(x)))
        return found


def parts(shape: tuple[int, ...], classes: int, width: int = 3) -> tuple[nn.Module, nn.Module, nn.Linear]:
    """Return a net in which a layer can be told from its BatchNorm, without kinks."""
    conv = nn.Sequential(nn.Conv2d(shape[0], width, 5, 3), nn.BatchNorm2d(width), nn.Softplus(), nn.Flatten())
    count = width * ((shape[1] - 5) // 3 + 1) * ((shape[2] - 5) // 3 + 1)
    fc = nn.Sequential(nn.Linear(count, 6), nn.BatchNorm1d(6), nn.Tanh())
    return conv, fc, nn.Linear(6, classes)


def small(shape: tuple[int, ...], classes: int) -> SplitNet:
    """The net as rayfl's own are."""
    return SplitNet(*parts(shape, classes))


def wider(shape: tuple[int, ...], classes: int) -> SplitNet:
    """Another one."""
    return SplitNet(*parts(shape, classes, 4))


@contextmanager
def orders_noted(places: Mapping[int, int]) -> Any:
    """Note the places of every fit's samples, by (client, round, number) and epoch by epoch, and its keys."""
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
        key = (self._id, self._round, number)
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


def method_of(name: str) -> Method:
    """Return the method of a case, whose name begins with that of its class."""
    case = CASES[name]
    return METHODS[name.split()[0].removesuffix("-FT")](**case.options, **case.own)


def federated(name: str, division: str, execution: str = "loop") -> tuple[Run, Any]:
    """Run rayfl; return the run, and the batches of all fits by (client, round, number)."""
    case, method = CASES[name], method_of(name)
    data = data_of(division, method.uses_validation or method.prefers_validation, case.side)
    settings = {**SETTINGS, **case.settings}
    run = start(method, data, case.net, rounds=len(COHORTS), execution=execution, **settings)
    places = {int(i): k for each in data.clients for own in (each.train, each.val) for k, i in enumerate(own)}
    normals = torch.randn

    def noting(*given: Any, **options: Any) -> Tensor:
        drawn = normals(*given, **options)
        NORMALS.append((len(run.results), drawn))
        return drawn

    NORMALS.clear()
    with orders_noted(places) as noted, mock.patch("torch.randn", noting):
        for cohort in COHORTS:
            run.round(cohort)
    if case.finetune:
        with orders_noted(places) as tuning:
            finetuned(run, case)
        noted |= {(i, len(COHORTS), fit): epochs for (i, _, fit), epochs in tuning.items()}
    return run, noted


def finetuned(run: Run, case: Case) -> Tensor:
    """Return the scores of all clients after fine-tuning, [clients, P, classes]."""
    clients, probe = range(len(run.worker.data.clients)), probe_of(run)
    run.worker.plan = replace(run.worker.plan, finetune=Finetune(**case.finetune))
    with mock.patch.object(Worker, "_counted", lambda self, client, predict, splits: predict(probe)):
        found = run.worker.finetune(
            len(COHORTS) - 1, run.server.download(clients), [tuple(clients)], ("test",), NOTHING, [4]
        )
    return torch.stack([found[i]["finetuned"] for i in clients])


@cache
def formed(name: str, division: str) -> tuple[Outcome, Run]:
    """Return what the form comes to, and the run in a loop from which it has orders and draws."""
    run, noted = federated(name, division)
    case, module = CASES[name], name.split()[0].lower().replace("-", "")
    form = import_module(f"tests.methods.forms.{module}")
    return form.run(world_of(run, case, noted), **case.options, **case.finetune), run


def compare(name: str, execution: str = "loop", division: str = "shares") -> dict[str, float]:
    """Return the largest differences: of what the server holds, what clients keep, each view's scores."""
    outcome, run = formed(name, division)
    return differences(name, outcome, run if execution == "loop" else federated(name, division, execution)[0])


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


def world_of(run: Run, case: Case, noted: Mapping[Any, Any]) -> World:
    data, worker = run.worker.data, run.worker
    dataset, training = data.dataset, worker.plan.training
    x, y = torch.tensor(dataset.inputs).double(), torch.tensor(dataset.labels)
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
            initial, module = worker.method.initial_of(name), Plain(*parts(dataset.shape, dataset.classes, 4))
        else:
            initial = client.net.initial(worker.plan.seed, *([] if seed is None else [seed + 1]))
            own = not isinstance(case.net, str)  # of which a form takes the entries alone
            module = client.net._build() if own else Plain(*parts(dataset.shape, dataset.classes))
        module.double().load_state_dict(dict(initial.tensors), strict=False)
        return module.train()

    def draw(what: str, client: int, round: int, fit: int = 0, step: int = 0) -> Tensor:
        return case.draws[what](run, world, client, round, fit, step)

    def order(client: int, round: int, fit: int) -> list[list[Tensor]]:
        if case.turns > 1:
            epochs = noted[client, round, 0]
            return epochs[fit :: case.turns]
        there = client, round, case.fits.get(fit, fit)
        return noted[there if there in noted else (client, round, fit)]

    world = World(
        clients, COHORTS, dataset.classes, training.lr, training.momentum, training.weight_decay,
        training.clip, training.epochs, probe_of(run), make, order, draw,
    )  # fmt: skip
    return world


if __name__ == "__main__":
    import sys

    for name in sys.argv[1:] or CASES:
        for division in DIVISIONS:
            for execution in ("loop", "stacked"):
                found = compare(name, execution, division)
                figures = " ".join(f"{key} {value:.0e}" for key, value in found.items())
                print(name, division, execution, figures, flush=True)
