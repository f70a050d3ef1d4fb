"""Runs of rayfl beside independent forms: the largest difference of any weight and any score, in float64."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from rayfl.data import FederatedData
from rayfl.methods import METHODS, Method, fedcp
from rayfl.methods.partialfed import layers_of
from rayfl.nets import SplitNet
from rayfl.randomness import generator
from rayfl.testing.by_hand import Run, ragged, start
from rayfl.training import noise
from rayfl.training.client import Client
from rayfl.training.noise import step_keys
from tests.methods.forms.world import Outcome, Samples, World

COHORTS = ([0, 1, 3], [1, 2, 3], [0, 2, 3])
"""60 % of five clients; client 4 never takes part."""
SIZES = (12, 22, 16, 9, 14)
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


@dataclass(frozen=True)
class Case:
    """A method, and how its form is called.

    Attributes:
        method: with its options.
        options: of the form.
        server: key of the form's server -> key of rayfl's.
        client: key of the form's clients -> key of rayfl's.
        settings: of the training, in the place of those of all.
        draws: what is drawn: name -> function of (run, world, client, round, fit, step).
        fits: number of a fit in the form -> number in rayfl, where the form counts otherwise.
        net: by import path.
    """

    method: Method
    options: Mapping[str, Any] = field(default_factory=dict)
    server: Mapping[str, str] = field(default_factory=lambda: {"weights": "weights"})
    client: Mapping[str, str] = field(default_factory=lambda: {"personal": "own"})
    settings: Mapping[str, Any] = field(default_factory=dict)
    draws: Mapping[str, Any] = field(default_factory=dict)
    fits: Mapping[int, int] = field(default_factory=dict)
    net: Any = "tests.methods.forms.parity.small"


KEYS: dict[tuple[int, int, int], Tensor] = {}
"""Of every fit of the newest run: the key of each step, by which it draws."""

NORMALS: list[tuple[int, Tensor]] = []
"""What ``torch.randn`` has drawn in the newest run: round and numbers."""


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
        request = pending.request
        batches = [torch.tensor([places[int(i)] for i in batch]) for batch in request.batches]
        length = max(1, request.epoch_length)
        epochs = [batches[k : k + length] for k in range(0, len(batches), length)]
        key = (self._id, self._round, number)
        noted[key] = max(noted.get(key, []), epochs, key=len)
        KEYS[key] = step_keys(request.key, len(batches))
        return pending

    with mock.patch.object(Client, "fit", noting):
        yield noted


def data_of(val: bool) -> FederatedData:
    return ragged(SIZES, val=4 if val else 0)


def compare(name: str, case: Case, execution: str = "loop") -> dict[str, float]:
    """Return the largest differences: of what the server holds, what clients keep, each view's scores."""
    method = case.method
    data = data_of(method.uses_validation or method.prefers_validation)
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
    world = world_of(run, data, case, settings, noted)
    outcome: Outcome = import_module(f"tests.methods.forms.{name.lower()}").run(world, **case.options)
    found = {"server": 0.0, "clients": 0.0}
    for key, theirs in case.server.items():
        found["server"] = max(found["server"], difference(outcome.server[key], run.server.state[theirs]))
    for i in range(len(data.clients)):
        state = run.worker.state(i, run.worker.client(i, 0))
        for key, theirs in case.client.items() if outcome.clients[i] else ():
            found["clients"] = max(found["clients"], difference(outcome.clients[i][key], state[theirs]))
    for view, scores in outcome.logits.items():
        mine = torch.stack([run.scores(i, world.probe)[view] for i in range(len(data.clients))])
        found[view] = float((mine - scores).abs().max())
    return found


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


def world_of(
    run: Run, data: FederatedData, case: Case, settings: Mapping[str, Any], noted: Mapping[Any, Any]
) -> World:
    dataset, worker = data.dataset, run.worker
    x, y = torch.tensor(dataset.inputs).double(), torch.tensor(dataset.labels)
    clients = [Samples(x[c.train], y[c.train], x[c.val], y[c.val]) for c in data.clients]
    test = torch.cat([x[c.test] for c in data.clients])

    def make(name: str | None = None, seed: int | None = None) -> nn.Module:
        client = worker.client(0, 0)
        if name == "policy":  # FedCP's, which is no net of a client's
            entries = worker.method.init_client(client)["policy"]
            policy = nn.Module()
            for key, value in entries.items():
                policy.register_parameter(key, nn.Parameter(value.clone()))
            return policy
        net = client.nets.get(name, client.net)
        initial = net.initial(worker.plan.seed, *([] if seed is None else [seed + 1]))
        module = Plain(*parts(dataset.shape, dataset.classes)).double()
        module.load_state_dict(dict(initial.tensors), strict=False)
        return module.train()

    def draw(what: str, client: int, round: int, fit: int = 0, step: int = 0) -> Tensor:
        return case.draws[what](run, world, client, round, fit, step)

    def order(client: int, round: int, fit: int) -> list[list[Tensor]]:
        there = client, round, case.fits.get(fit, fit)
        return noted[there if there in noted else (client, round, fit)]

    world = World(
        clients, COHORTS, dataset.classes, settings["lr"], settings["momentum"], settings["weight_decay"],
        settings["clip"], settings["epochs"], test, make, order, draw,
    )  # fmt: skip
    return world


def subset(run: Run, world: World, client: int, round: int, fit: int, step: int) -> Tensor:
    """Return FedALA's samples for a pass over W, a batch a row."""
    batches = world.batches(client, round, 1 + step)
    return nn.utils.rnn.pad_sequence(batches, batch_first=True, padding_value=-1)


def mapping(run: Run, world: World, client: int, *_: int) -> Tensor:
    """Return FedKD's first map of the mentee's features to the mentor's."""
    found: Tensor = run.worker.method.init_client(run.worker.client(client, 0))["map"]["weight"]
    return found


def server_order(run: Run, world: World, client: int, round: int, *_: int) -> Tensor:
    """Return the order of FedGH's server."""
    method = run.server.method
    return torch.randperm(len(world.cohorts[round]), generator=method.generator("order", round))


def basis(run: Run, *_: Any) -> Tensor:
    """Return the numbers of which FediOS makes its projections."""
    d = run.worker.client(0, 0).net.module.head.in_features
    return torch.randn(d, d, dtype=torch.float64, generator=generator(run.worker.plan.seed, "projections"))


def context(run: Run, world: World, client: int, *_: int) -> Tensor:
    """Return FedCP's first context of a client."""
    found: Tensor = run.worker.method.init_client(run.worker.client(client, 0))["context"]
    return found


def gumbel_pair(run: Run, world: World, client: int, round: int, fit: int, step: int) -> Tensor:
    """Return FedCP's noise of a step."""
    batch = world.batches(client, round, fit)[step]
    d = run.worker.client(0, 0).net.module.head.in_features
    key = noise.split(KEYS[client, round, fit][step], 0)
    return fedcp.gumbel(key, len(batch), torch.empty(0, d, dtype=torch.float64))


def gumbel_layers(run: Run, world: World, client: int, round: int, fit: int, step: int) -> Tensor:
    """Return PartialFed's noise of a step."""
    layers = len(layers_of(run.worker.client(0, 0).net))
    u = noise.uniform(KEYS[client, round, 1][step], (layers, 2)).double() + 2.0**-25
    return -(-u.log()).log()


def prior(run: Run, *_: Any) -> Tensor:
    """Return pFedVEM's first mean, the bias last."""
    found = run.server.method.init_server(run.worker.client(0, 0).initial)["head"]
    return torch.column_stack([found["head.weight"], found["head.bias"]])


def of_heads(fit: int) -> Any:
    """Return the draws of pFedVEM's heads in one of its fits."""

    def draw(run: Run, world: World, client: int, round: int, _: int, step: int) -> Tensor:
        shape = tuple(run.server.state["head"]["head.weight"].shape)
        key = KEYS[client, round, fit][step]
        samples = []
        for k in range(run.server.method.mc_samples):
            each = [
                noise.normal(noise.split(noise.split(key, k), i), s) for i, s in enumerate((shape, shape[:1]))
            ]
            samples.append(torch.column_stack(each).double())
        return torch.stack(samples)

    return draw


def virtual(run: Run, world: World, _: int, round: int, *__: int) -> Tensor:
    """Return the noise of DC-PFL's virtual features: of one class after the other, as rayfl has drawn it."""
    return torch.cat([drawn for place, drawn in NORMALS if place == round])


def shuffle(run: Run, world: World, _: int, round: int, __: int, epoch: int) -> Tensor:
    """Return the order of DC-PFL's virtual features in an epoch."""
    order = run.server.method.generator("calibration", round)
    return [torch.randperm(run.server.method.num_virtual, generator=order) for _ in range(epoch + 1)][-1]


M = METHODS
CASES: dict[str, Case] = {
    "local": Case(M["Local"](), server={}, client={"personal": "weights"}),
    "fedavg": Case(M["FedAvg"](), client={}),
    "fedprox": Case(M["FedProx"](mu=0.5), {"mu": 0.5}, client={}),
    "fedbn": Case(M["FedBN"]()),
    "fedper": Case(M["FedPer"]()),
    "fedrep": Case(M["FedRep"]()),
    "lgfedavg": Case(M["LGFedAvg"]()),
    "fedrod": Case(M["FedRoD"]()),
    "moon": Case(M["MOON"](mu=1.0), {"mu": 1.0}, client={"previous": "previous"}),
    "scaffold": Case(
        M["SCAFFOLD"](), server={"weights": "weights", "control": "control"}, client={"control": "control"}
    ),
    "feddyn": Case(M["FedDyn"](), client={"gradient": "gradient"}),
    "fedopt": Case(M["FedOpt"](), client={}),
    "ditto": Case(M["Ditto"](mu=0.5), {"mu": 0.5}),
    "apfl": Case(M["APFL"](), client={"personal": "own", "alpha": "alpha"}),
    "pfedme": Case(M["PFedMe"](), settings={"momentum": 0.0, "weight_decay": 0.0, "clip": 0.0}),
    "fd": Case(M["FD"](), server={"outputs": "outputs", "owners": "owners"}, client={"personal": "weights"}),
    "fedproto": Case(M["FedProto"](), server={"prototypes": "prototypes"}, client={"personal": "weights"}),
    "copa": Case(M["COPA"](), server={"weights": "weights"}, client={"head": "own"}),
    "fedheal": Case(M["FedHEAL"](), client={}),
    "fedala": Case(
        M["FedALA"](eta=0.5, threshold=1.0),
        {"eta": 0.5, "threshold": 1.0},
        client={"own": "own", "W": "W"},
        draws={"subset": subset},
    ),
    "fedkd": Case(M["FedKD"](), client={"personal": "mentor", "W_h": "map"}, draws={"W_h": mapping}),
    "fedgh": Case(
        M["FedGH"](), server={"head": "head"}, client={"personal": "weights"}, draws={"order": server_order}
    ),
    "fedco2": Case(M["FedCO2"](), client={"online": "own", "offline": "offline"}),
    "fedios": Case(M["FediOS"](), client={"individual": "own"}, draws={"basis": basis}),
    "feddgga": Case(M["FedDGGA"](), server={"weights": "weights", "a": "a"}, client={"badness": "badness"}),
    "partialfed": Case(
        M["PartialFed"](),
        client={"personal": "own", "choice": "logits"},
        fits={0: 1, 1: 0},
        draws={"gumbel": gumbel_layers},
    ),
    "fedcp": Case(
        M["FedCP"](),
        server={"weights": "weights", "head": "head", "policy": "policy"},
        client={"head": "head", "policy": "policy", "global_head": "global_head"},
        draws={"context": context, "gumbel": gumbel_pair},
    ),
    "pfedvem": Case(
        M["PFedVEM"](),
        client={},
        settings={"clip": 0.0},
        fits={0: 1},
        draws={"prior": prior, "head noise": of_heads(0), "base noise": of_heads(1)},
    ),
    "dcpfl": Case(
        M["DCPFL"](num_virtual=60),
        server={"head": "head"},
        client={"personal": "weights"},
        draws={"order": server_order, "virtual": virtual, "shuffle": shuffle},
    ),
    "fml": Case(M["FML"](init="common"), {"init": "common"}),
}

if __name__ == "__main__":
    import sys

    for name in sys.argv[1:] or CASES:
        for execution in ("loop", "stacked"):
            try:
                found = compare(name, CASES[name], execution)
                print(name, execution, " ".join(f"{k} {v:.0e}" for k, v in found.items()), flush=True)
            except Exception as error:
                print(name, execution, type(error).__name__, str(error)[:300], flush=True)
