"""Fed-CO2: the authors' two scripts, for label skew and for feature skew, with their baselines."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from benchmarks.public.harness import (
    ALL,
    PLAIN_SGD,
    Batches,
    Flat,
    Pair,
    Small,
    case,
    entries,
    layers,
    script,
)
from benchmarks.public.niid_bench import MOMENTUM, run, share
from tests.methods.forms.world import Outcome, Weights, World


def label_skew(world: World, alg: str, net: str, before: Callable[[], None] | None = None) -> dict[str, Any]:
    """Run the script for label skew for three rounds; return its names."""
    head = world.make().head

    class Linear(nn.Linear):
        """FedRoD's own heads, which have the size of the paper's net, become those of the net of here."""

        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__(*((head.in_features, head.out_features) if inputs == 84 else (inputs, outputs)))
            if inputs == 84:
                self.load_state_dict(head.state_dict())

    models = import_module("models.cnn")
    models.CNNTarget = models.CNN_B = lambda **_: Flat(world.make())
    if before:
        before()
    own = {"alg": alg, "model": net, "sample": share(world), "rho": world.momentum}
    with mock.patch.object(nn, "Linear", Linear):
        own["mu"] = 1.0 if alg == "moon" else 0.5
        return run(world, "experiments.py", ("utils", "methods.method"), {}, True, **own)


def pool_renewed() -> None:
    """Renew the models of before, which MOON's script never does."""
    methods = import_module("methods.method")
    train = methods.local_train_net_moon

    def both(nets: Mapping[int, nn.Module], *given: Any, **options: Any) -> None:
        train(nets, *given, **options)
        for i, net in nets.items():
            given[-1][i].load_state_dict(net.state_dict())

    methods.local_train_net_moon = both


class Stack(nn.Module):
    """The net with a classifier of all fully connected layers."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.features = nn.Sequential(layers(net.conv, "conv"))
        self.classifier = nn.Sequential(layers(net.fc, "fc") | OrderedDict(fc3=net.head))

    def produce_feature(self, x: Tensor) -> Tensor:
        found: Tensor = self.features(x)
        return found

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.classifier(self.features(x))
        return found


class Last(nn.Module):
    """The net with a classifier of its last layer, which COPA calls head."""

    def __init__(self, net: nn.Module, name: str) -> None:
        super().__init__()
        self.features = nn.Sequential(layers(net.conv, "conv") | layers(net.fc, "fc"))
        self.name = name
        self.add_module(name, net.head)

    def produce_feature(self, x: Tensor) -> Tensor:
        found: Tensor = self.features(x)
        return found

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = getattr(self, self.name)(self.features(x))
        return found


class OwnHead(nn.Module):
    """The classifier alone."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.classifier = Stack(net).classifier

    def forward(self, z: Tensor) -> Tensor:
        found: Tensor = self.classifier(z)
        return found


def feature_skew(world: World, mode: str) -> dict[str, Any]:
    """Run the script for feature skew for three rounds of one epoch; return its names."""
    data, models = import_module("utils.data_utils"), import_module("nets.models")
    wide = {
        **vars(torch),
        "zeros_like": lambda x, **_: torch.zeros_like(x),
    }  # some of its sums are in float32
    import_module("utils.utils").torch = SimpleNamespace(**wide)
    loaders = []
    for i in range(len(world.clients)):
        epochs: list[Any] = []
        for round in range(len(world.cohorts)):
            fits = (0, 1) if mode == "fed-co2" and round else (0,)
            epochs += [world.order(i, round, fit)[0] for fit in fits] + [None]  # the last is a look at all
        loaders.append(Batches(world, i, epochs))
    data.prepare_data_digits = lambda _: (loaders, [Batches(world, i) for i in range(len(world.clients))])
    models.DigitModel = models.DigitModel_rod = lambda: Stack(world.make())
    models.DigitModel_head = lambda: Last(world.make(), "head")
    models.DigitModel_moon = lambda: Last(world.make(), "classifier")
    models.D_Head = lambda: OwnHead(world.make())
    options = {"mode": mode, "dataset": "digits", "iters": len(world.cohorts), "lr": world.lr, "mu": 0.5}
    return script("main.py", "--log", *(f"--{key}={value}" for key, value in options.items()))


# ---- what is read of both


def split(whole: Any, own: Sequence[Any], key: str = "personal") -> Outcome:
    """Return what clients keep, and the rest of the server's net."""
    kept = [entries(each) for each in own]
    rest = {name: value for name, value in entries(whole).items() if name not in kept[0]}
    return Outcome({"weights": rest}, [{key: each} for each in kept])


def whole(names: dict[str, Any], server: str = "global_model", own: Any = None) -> Outcome:
    """Return the server's net, and what clients keep beside it."""
    nets = names[own[1]] if own else {}
    nets = nets.values() if isinstance(nets, dict) else nets
    kept = [{own[0]: entries(each)} for each in nets]
    return Outcome({"weights": entries(names[server])}, kept or [{} for _ in range(5)])


def in_bn(net: nn.Module) -> Weights:
    return {key: value for key, value in net.state_dict().items() if ".bn" in key}


def online(found: Outcome, offline: Sequence[nn.Module]) -> Outcome:
    """Add the offline nets of Fed-CO2."""
    for own, net in zip(found.clients, offline, strict=True):
        own["offline"] = entries(net)
    return found


def pair(
    method: str,
    folder: str,
    train: Callable[..., dict[str, Any]],
    given: Sequence[Any],
    read: Callable[[dict[str, Any]], Outcome],
    options: Mapping[str, Any] | None = None,
    client: Mapping[str, str] | None = None,
    **settings: Any,
) -> Pair:
    own = case(
        method, options=options or {}, server={"weights": "weights"}, client=client or {},
        net=Small(norm=settings.pop("norm", False)), settings={**PLAIN_SGD, **settings.pop("training", {})},
    )  # fmt: skip
    return Pair(method, folder, lambda world: read(train(world, *given)), own, absent=("einops",), **settings)


def labels(method: str, *given: Any, **options: Any) -> Pair:
    return pair(method, "Fed-CO2/label-skew", label_skew, given, **options)


def features(method: str, *given: Any, **options: Any) -> Pair:
    options = {"averaging": "uniform", "cohorts": ALL, "training": {"epochs": 1}, **options}
    return pair(method, "Fed-CO2", feature_skew, given, **options)


OWN = {"personal": "own"}
TWO = {"online": "own", "offline": "offline"}
ALGORITHM_2 = {"intra": "none", "inter": "none", "bn_personal": "affine_only"}
PAIRS: dict[str, Pair] = {
    "FedAvg, label skew": labels("FedAvg", "fedavg", "cnn", read=whole, training=MOMENTUM),
    "FedProx, label skew": labels(
        "FedProx", "fedprox", "cnn", read=whole, training=MOMENTUM, options={"mu": 0.5}
    ),
    "FedPer, label skew": labels(
        "FedPer", "fedper", "cnn", training=MOMENTUM, client=OWN,
        read=lambda n: split(n["global_model"], n["personalized_pred_list"]),
    ),
    "FedRoD, label skew": labels(
        "FedRoD", "fedrod", "cnn", options={"balanced": False}, client=OWN,
        read=lambda n: whole(n, own=("personal", "personalized_pred_list")),
    ),
    "FedBN, label skew": labels(
        "FedBN", "fedbn", "cnn-b", norm=True, training=MOMENTUM, client=OWN,
        options={"bn_personal": "affine_only"},
        read=lambda n: split(n["global_model"], n["personalized_bn_list"]),
    ),
    "Fed-CO2, label skew": labels(
        "FedCO2", "fed-co2", "cnn-b", norm=True, training=MOMENTUM, client=TWO, averaging="samples",
        options=ALGORITHM_2,
        read=lambda n: online(
            split(n["global_model"], n["personalized_bn_list"], "online"), n["local_nets"].values()
        ),
    ),
    "MOON, label skew": labels(
        "MOON", "moon", "cnn", training=MOMENTUM, client={"previous": "previous"},
        read=lambda n: whole(n, own=("previous", "old_nets")),
    ),
    "MOON, label skew, models of before renewed": labels(
        "MOON", "moon", "cnn", pool_renewed, training=MOMENTUM, client={"previous": "previous"},
        read=lambda n: whole(n, own=("previous", "old_nets")),
    ),
    "Fed-CO2, feature skew": features(
        "FedCO2", "fed-co2", norm=True, client=TWO,
        read=lambda n: online(
            split(n["server_model"], [in_bn(m) for m in n["models"]], "online"), n["personalized_models"]
        ),
    ),
    "FedAvg, feature skew": features(
        "FedAvg", "fedavg", norm=True, read=lambda n: whole(n, "server_model")
    ),
    "FedBN, feature skew": features(
        "FedBN", "fedbn", norm=True, client=OWN,
        read=lambda n: split(n["server_model"], [in_bn(m) for m in n["models"]]),
    ),
    "FedProx, feature skew": features(
        "FedProx", "fedprox", options={"mu": 0.5, "norm": "l2"}, read=lambda n: whole(n, "server_model")
    ),
    "FedPer, feature skew": features(
        "FedPer", "fedper", options={"personal": "fc_stack"}, client=OWN,
        read=lambda n: split(n["server_model"], n["personalized_models"]),
    ),
    "FedRoD, feature skew": features(
        "FedRoD", "fedrod", options={"head": "fc_stack", "balanced": False}, client=OWN,
        read=lambda n: whole(n, "server_model", ("personal", "personalized_models")),
    ),
    "COPA, feature skew": features(
        "COPA", "copa", norm=True, client=OWN,
        read=lambda n: split(n["server_model"], [m.head for m in n["models"]]),
    ),
    "MOON, feature skew": features(
        "MOON", "moon", norm=True, client={"previous": "previous"},
        read=lambda n: whole(n, "server_model", ("previous", "paggregation_models")),
    ),
}  # fmt: skip
