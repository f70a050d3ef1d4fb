"""Python: arguments of other types and sizes, which the classes refuse themselves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rayfl import Federation, Inline, Ray, Training, load_models, resumed
from rayfl.data import (
    CIFAR10,
    CIFAR100,
    IID,
    MNIST,
    PACS,
    USPS,
    DigitsFive,
    Dirichlet,
    DomainDirichlet,
    DomainNet,
    ImageFolders,
    OfficeCaltech10,
    Pathological,
    Synthetic,
)
from rayfl.errors import BadValue, Missing, UserError
from rayfl.evaluation import Default, Protocol
from rayfl.jobs.table_file import Table
from rayfl.methods import DCPFL, FDSE, SCAFFOLD, Ditto, FedAvg, FedCO2, FediOS, FedProto, FedProx
from rayfl.nets import FDSEAlexNet
from rayfl.record.checks import Cell
from rayfl.running.result import Result
from rayfl.tune.space import Space
from tests.hostile.harness import Case
from tests.support.federations import small


class Silent:
    """An object whose representation does not work."""

    def __repr__(self) -> str:
        raise RuntimeError("no representation")


class Users(FedAvg):
    """A method of a user's own."""

    def __init__(self, factor: float = 0.5, names: list[str] | None = None) -> None:
        self.factor = 1.0 * factor
        self.names = [name.lower() for name in names or []]


def cell(changed: Any) -> Cell:
    return Cell(table="a", row="b", column="c", changed=changed)


# what is called with which argument -> what is wrong, and where
BAD: list[tuple[Callable[..., Any], dict[str, Any], type[UserError], str]] = [
    (Training, {"lr": "x"}, BadValue, "training.lr"),
    (Training, {"lr": None}, BadValue, "training.lr"),
    (Training, {"lr": [0.1]}, BadValue, "training.lr"),
    (Training, {"lr": 1j}, BadValue, "training.lr"),
    (Training, {"lr": float("nan")}, BadValue, "training.lr"),
    (Training, {"lr": float("inf")}, BadValue, "training.lr"),
    (Training, {"lr": True}, BadValue, "training.lr"),
    (Training, {"lr": np.zeros(2)}, BadValue, "training.lr"),
    (Training, {"epochs": 1.0}, BadValue, "training.epochs"),
    (Training, {"epochs": "1"}, BadValue, "training.epochs"),
    (Training, {"batch_size": None}, BadValue, "training.batch_size"),
    (Training, {"batch_size": 2**64}, BadValue, "training.batch_size"),
    (Training, {"momentum": "high"}, BadValue, "training.momentum"),
    (Training, {"weight_decay": {}}, BadValue, "training.weight_decay"),
    (Training, {"precision": 32}, BadValue, "training.precision"),
    (Training, {"last_batch": None}, BadValue, "training.last_batch"),
    (Training, {"last_batch": np.zeros(2)}, BadValue, "training.last_batch"),
    (Training, {"bn_single": ["eval"]}, BadValue, "training.bn_single"),
    (Training, {"clip": Silent()}, BadValue, "training.clip"),
    (Training, {"lr": "x" * 10_000}, BadValue, "training.lr"),
    (Federation, {"method": "FedAvg"}, BadValue, "method"),
    (Federation, {"method": FedAvg}, BadValue, "method"),
    (Federation, {"data": None}, BadValue, "data"),
    (Federation, {"engine": "Ray"}, BadValue, "engine"),
    (Federation, {"training": 0.1}, BadValue, "training"),
    (Federation, {"net": 3}, BadValue, "net"),
    (Federation, {"net": [1, 2]}, BadValue, "net"),
    (Federation, {"net": {"a": 1}}, BadValue, "net"),
    (Federation, {"net": []}, BadValue, "net"),
    (Federation, {"net": "\0"}, BadValue, "net"),
    (Federation, {"clients": "5"}, BadValue, "clients"),
    (Federation, {"clients": True}, BadValue, "clients"),
    (Federation, {"clients": 2**70}, BadValue, "clients"),
    (Federation, {"unseen": 3}, BadValue, "unseen"),
    (Federation, {"unseen_clients": 0}, BadValue, "unseen_clients"),
    (Federation, {"unseen_clients": 2.5}, BadValue, "unseen_clients"),
    (Federation, {"unseen_clients": float("inf")}, BadValue, "unseen_clients"),
    (Federation, {"unseen_clients": float("nan")}, BadValue, "unseen_clients"),
    (Federation, {"participation": "all"}, BadValue, "participation"),
    (Federation, {"participation": float("nan")}, BadValue, "participation"),
    (Federation, {"rounds": 1.5}, BadValue, "rounds"),
    (Federation, {"rounds": [1]}, BadValue, "rounds"),
    (Federation, {"averaging": 3}, BadValue, "averaging"),
    (Federation, {"eval_every": None}, BadValue, "eval_every"),
    (Federation, {"protocol": None}, BadValue, "protocol"),
    (Federation, {"protocol": [Default()]}, BadValue, "protocol"),
    (Federation, {"protocol": "fdse+weighted"}, BadValue, "protocol"),
    (Federation, {"protocol": Protocol()}, BadValue, "protocol"),
    (Default, {"k": "x"}, BadValue, "protocol.k"),
    (FDSEAlexNet, {"G": 1}, BadValue, "net.G"),
    (Federation, {"checkpoint_every": "never"}, BadValue, "checkpoint_every"),
    (Federation, {"on_bad_update": "ignore"}, BadValue, "on_bad_update"),
    (Federation, {"seed": 0.5}, BadValue, "seed"),
    (Federation, {"seed": "today"}, BadValue, "seed"),
    (Federation, {"output": 3}, BadValue, "output"),
    (Federation, {"output": "a\0b"}, BadValue, "output"),
    (Federation, {"output": Path("a\0b")}, BadValue, "output"),
    (Federation, {"output": "\udcff"}, BadValue, "output"),
    (Federation, {"loggers": ["wandb", 1]}, BadValue, "loggers"),
    (Federation, {"quiet": "no"}, BadValue, "quiet"),
    (Federation, {"cell": {"table": "a"}}, BadValue, "cell"),
    (cell, {"changed": 3}, BadValue, "cell.changed"),
    (Inline, {"threads": "2"}, BadValue, "engine.threads"),
    (Inline, {"threads": None}, BadValue, "engine.threads"),
    (Inline, {"stack": 0.5}, BadValue, "engine.stack"),
    (Inline, {"device": 0}, BadValue, "engine.device"),
    (Inline, {"execution": True}, BadValue, "engine.execution"),
    (Inline, {"deterministic": "yes"}, BadValue, "engine.deterministic"),
    (Ray, {"actors": "many"}, BadValue, "engine.actors"),
    (Ray, {"actors": 1.5}, BadValue, "engine.actors"),
    (Ray, {"actors": None}, BadValue, "engine.actors"),
    (Ray, {"clients_per_actor": [1]}, BadValue, "engine.clients_per_actor"),
    (Ray, {"gpus_per_actor": "half"}, BadValue, "engine.gpus_per_actor"),
    (Ray, {"cpus_per_actor": "all"}, BadValue, "engine.cpus_per_actor"),
    (Ray, {"address": 6379}, BadValue, "engine.address"),
    (Ray, {"recoveries": None}, BadValue, "engine.recoveries"),
    (Ray, {"dashboard": "yes"}, BadValue, "engine.dashboard"),
    (FedProx, {"mu": "x"}, BadValue, "method.mu"),
    (FedProx, {"mu": None}, BadValue, "method.mu"),
    (Ditto, {"mu": [1]}, BadValue, "method.mu"),
    (SCAFFOLD, {"server_lr": "x"}, BadValue, "method.server_lr"),
    (FedProto, {"lam": {}}, BadValue, "method.lam"),
    (FedCO2, {"mu": "x"}, BadValue, "method.mu"),
    (FedCO2, {"mutual_epochs": 1.5}, BadValue, "method.mutual_epochs"),
    (FedCO2, {"intra": 3}, BadValue, "method.intra"),
    (FediOS, {"rank": "x"}, BadValue, "method.rank"),
    (DCPFL, {"calib_epochs": "x"}, BadValue, "method.calib_epochs"),
    (FDSE, {"tau": "x"}, BadValue, "method.tau"),
    (Users, {"factor": "x"}, BadValue, "method.factor"),
    (Users, {"names": "ab"}, BadValue, "method.names"),
    (Users, {"names": [1]}, BadValue, "method.names"),
    (Synthetic, {"train": "x"}, BadValue, "data.train"),
    (Synthetic, {"train": None}, BadValue, "data.train"),
    (Synthetic, {"train": 2**70}, BadValue, "data.train"),
    (Synthetic, {"shape": 3}, BadValue, "data.shape"),
    (Synthetic, {"shape": (3, 8)}, BadValue, "data.shape"),
    (Synthetic, {"shape": ("a", "b", "c")}, BadValue, "data.shape"),
    (Synthetic, {"noise": "loud"}, BadValue, "data.noise"),
    (Synthetic, {"val_fraction": "x"}, BadValue, "data.val_fraction"),
    (Synthetic, {"seed": "x"}, BadValue, "data.seed"),
    (Synthetic, {"partition": "IID"}, BadValue, "data.partition"),
    (Synthetic, {"partition": IID}, BadValue, "data.partition"),
    (CIFAR10, {"verify": "no"}, BadValue, "data.verify"),
    (CIFAR10, {"root": 3}, BadValue, "data.root"),
    (CIFAR10, {"root": ["a"]}, BadValue, "data.root"),
    (CIFAR10, {"normalise": 3}, BadValue, "data.normalise"),
    (CIFAR10, {"image_size": "x"}, BadValue, "data.image_size"),
    (CIFAR100, {"labels": 3}, BadValue, "data.labels"),
    (MNIST, {"val_fraction": None}, BadValue, "data.val_fraction"),
    (USPS, {"download": "yes"}, BadValue, "data.download"),
    (DigitsFive, {"domains": "MNIST"}, BadValue, "data.domains"),
    (DigitsFive, {"domains": [1]}, BadValue, "data.domains"),
    (OfficeCaltech10, {"image_size": "x"}, BadValue, "data.image_size"),
    (DomainNet, {"split": 3}, BadValue, "data.split"),
    (PACS, {"augment": "yes"}, BadValue, "data.augment"),
    (ImageFolders, {"classes": "abc"}, BadValue, "data.classes"),
    (Dirichlet, {"alpha": "x"}, BadValue, "data.partition.alpha"),
    (Dirichlet, {"alpha": None}, BadValue, "data.partition.alpha"),
    (Dirichlet, {"min_samples": 0.5}, BadValue, "data.partition.min_samples"),
    (Pathological, {"classes_per_client": "x"}, BadValue, "data.partition.classes_per_client"),
    (DomainDirichlet, {"chosen": [1]}, BadValue, "data.partition.chosen"),
    (DomainDirichlet, {"chosen": {"a": "b"}}, BadValue, "data.partition.chosen"),
    (DomainDirichlet, {"whole_test": "all"}, BadValue, "data.partition.whole_test"),
    (Default, {"average": "b" * 10_000}, BadValue, "protocol.average"),
    (Table.load, {"path": "nowhere.yaml"}, Missing, "nowhere.yaml"),
    (Table.load, {"path": "/dev/zero"}, Missing, "/dev/zero"),
    (Space.load, {"path": "/dev/zero"}, Missing, "/dev/zero"),
    (Result.load, {"folder": "nowhere"}, Missing, "nowhere"),
    (Result.load, {"folder": "a\0b"}, Missing, "a\x00b"),
    (resumed, {"folder": "nowhere"}, Missing, "nowhere"),
    (resumed, {"folder": "a\0b"}, Missing, "a\x00b"),
    (load_models, {"folder": "nowhere"}, Missing, "nowhere"),
]


def _name(what: Callable[..., Any], arguments: dict[str, Any], number: int) -> str:
    (key,) = arguments
    return f"{what.__qualname__} {key} ({number})"


def _calling(what: Callable[..., Any], arguments: dict[str, Any]) -> Callable[[Path], Any]:
    return lambda folder: what(**arguments)


CASES = [
    *(
        Case(_name(what, arguments, number), _calling(what, arguments), kind, place)
        for number, (what, arguments, kind, place) in enumerate(BAD)
    ),
    Case(
        "a value that is changed afterwards",
        lambda folder: small(folder / "run", training=_changed(Training(), lr="x")),
        BadValue,
        "training.lr",
    ),
    Case(
        "a method's value that is changed afterwards",
        lambda folder: small(folder / "run", method=_changed(FedProx(), mu="x")),
        BadValue,
        "method.mu",
    ),
]


def _changed(made: Any, **values: Any) -> Any:
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made
