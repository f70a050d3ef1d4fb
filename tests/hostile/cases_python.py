"""Python: arguments of other types and sizes, which the classes refuse themselves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rayfl import Federation, Inline, Ray, Training, load_models, resumed
from rayfl.config.table_file import Table
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
from rayfl.evaluation import Default, Protocol
from rayfl.evaluation.result import Result
from rayfl.methods import DCPFL, FDSE, SCAFFOLD, Ditto, FedAvg, FedCO2, FediOS, FedProto, FedProx
from rayfl.nets import FDSEAlexNet
from rayfl.record.cell import Cell
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


# what is called with which argument -> what is said
BAD: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (Training, {"lr": "x"}, "training.lr is 'x': it must be a number"),
    (Training, {"lr": None}, "training.lr is None: it must be a number"),
    (Training, {"lr": [0.1]}, "training.lr is [0.1]: it must be a number"),
    (Training, {"lr": 1j}, "training.lr is 1j: it must be a number"),
    (Training, {"lr": float("nan")}, "training.lr is nan: it must be finite and above 0"),
    (Training, {"lr": float("inf")}, "training.lr is inf: it must be finite and above 0"),
    (Training, {"lr": True}, "training.lr is True: it must be a number"),
    (Training, {"lr": np.zeros(2)}, "training.lr is array([0., 0.]): it must be a number"),
    (Training, {"epochs": 1.0}, "training.epochs is 1.0: it must be a whole number"),
    (Training, {"epochs": "1"}, "training.epochs is '1': it must be a whole number"),
    (Training, {"batch_size": None}, "training.batch_size is None: it must be a whole number"),
    (Training, {"batch_size": 2**64}, "training.batch_size is 18446744073709551616: it must be a whole"),
    (Training, {"momentum": "high"}, "training.momentum is 'high': it must be a number"),
    (Training, {"weight_decay": {}}, "training.weight_decay is {}: it must be a number"),
    (Training, {"precision": 32}, "training.precision is 32: it must be 'float32' or 'float64'"),
    (Training, {"last_batch": None}, "training.last_batch is None: it must be 'keep' or 'drop'"),
    (Training, {"last_batch": np.zeros(2)}, "training.last_batch is array"),
    (Training, {"bn_single": ["eval"]}, "training.bn_single is ['eval']"),
    (Training, {"clip": Silent()}, "training.clip is an object of class Silent: it must be a number"),
    (Training, {"lr": "x" * 10_000}, "xxx...xxx"),
    (Federation, {"method": "FedAvg"}, "method is 'FedAvg': it must be an object of class Method"),
    (Federation, {"method": FedAvg}, "it must be an object of class Method"),
    (Federation, {"data": None}, "data is None: it must be an object of class Data"),
    (Federation, {"engine": "Ray"}, "engine is 'Ray': it must be an object of class Engine"),
    (Federation, {"training": 0.1}, "training is 0.1: it must be an object of class Training"),
    (Federation, {"net": 3}, "net is 3: it must be"),
    (Federation, {"net": [1, 2]}, "net is [1, 2]: it must be"),
    (Federation, {"net": {"a": 1}}, "net is {'a': 1}: it must be"),
    (Federation, {"net": []}, "net is []: it must be a net, or a list of at least one"),
    (Federation, {"net": "\0"}, "net is '\\x00': it must be text in UTF-8"),
    (Federation, {"clients": "5"}, "clients is '5': it must be a whole number"),
    (Federation, {"clients": True}, "clients is True: it must be a whole number"),
    (Federation, {"clients": 2**70}, "it must be a whole number"),
    (Federation, {"unseen": 3}, "unseen is 3: it must be a text or None"),
    (Federation, {"participation": "all"}, "participation is 'all': it must be a number"),
    (Federation, {"participation": float("nan")}, "participation is nan: it must be finite and above 0"),
    (Federation, {"rounds": 1.5}, "rounds is 1.5: it must be a whole number"),
    (Federation, {"rounds": [1]}, "rounds is [1]: it must be a whole number"),
    (Federation, {"averaging": 3}, "averaging is 3: it must be 'samples' or 'uniform' or None"),
    (Federation, {"eval_every": None}, "eval_every is None: it must be a whole number"),
    (Federation, {"protocol": None}, "protocol is None: it must be an object of class Protocol"),
    (Federation, {"protocol": [Default()]}, "it must be an object of class Protocol"),
    (Federation, {"protocol": "fdse+weighted"}, "it must be an object of class Protocol"),
    (Federation, {"protocol": Protocol()}, "protocol is a Protocol: it must be one of Default"),
    (Default, {"k": "x"}, "protocol.k is 'x': it must be a whole number"),
    (FDSEAlexNet, {"G": 1}, "net.G is 1: it must be at least 2"),
    (Federation, {"checkpoint_every": "never"}, "checkpoint_every is 'never': it must be a whole number"),
    (Federation, {"on_bad_update": "ignore"}, "on_bad_update is 'ignore': it must be 'stop' or 'drop'"),
    (Federation, {"seed": 0.5}, "seed is 0.5: it must be a whole number"),
    (Federation, {"seed": "today"}, "seed is 'today': it must be a whole number"),
    (Federation, {"output": 3}, "output is 3: it must be a text or None"),
    (Federation, {"output": "a\0b"}, "output is 'a\\x00b': it must be text in UTF-8"),
    (Federation, {"output": Path("a\0b")}, "output is 'a\\x00b': it must be text in UTF-8"),
    (Federation, {"output": "\udcff"}, "output is '\\udcff': it must be text in UTF-8"),
    (Federation, {"loggers": ["wandb", 1]}, "loggers is ['wandb', 1]: it must be a list"),
    (Federation, {"quiet": "no"}, "quiet is 'no': it must be True or False"),
    (Federation, {"cell": {"table": "a"}}, "cell is {'table': 'a'}: it must be"),
    (Federation, {"cell": Cell("a", "b", "c", 3)}, "cell.changed is 3: it must be a list"),
    (Inline, {"threads": "2"}, "engine.threads is '2': it must be a whole number"),
    (Inline, {"threads": None}, "engine.threads is None: it must be a whole number"),
    (Inline, {"stack": 0.5}, "engine.stack is 0.5: it must be a whole number"),
    (Inline, {"device": 0}, "engine.device is 0: it must be 'auto' or 'cpu' or 'cuda'"),
    (Inline, {"execution": True}, "engine.execution is True: it must be 'auto' or 'loop' or 'stacked'"),
    (Inline, {"deterministic": "yes"}, "engine.deterministic is 'yes': it must be True or False"),
    (Ray, {"actors": "many"}, "engine.actors is 'many': it must be"),
    (Ray, {"actors": 1.5}, "engine.actors is 1.5: it must be"),
    (Ray, {"actors": None}, "engine.actors is None: it must be"),
    (Ray, {"clients_per_actor": [1]}, "engine.clients_per_actor is [1]: it must be"),
    (Ray, {"gpus_per_actor": "half"}, "engine.gpus_per_actor is 'half': it must be a number"),
    (Ray, {"cpus_per_actor": "all"}, "engine.cpus_per_actor is 'all': it must be"),
    (Ray, {"address": 6379}, "engine.address is 6379: it must be a text or None"),
    (Ray, {"recoveries": None}, "engine.recoveries is None: it must be a whole number"),
    (Ray, {"dashboard": "yes"}, "engine.dashboard is 'yes': it must be True or False"),
    (FedProx, {"mu": "x"}, "method.mu is 'x': it must be a number"),
    (FedProx, {"mu": None}, "method.mu is None: it must be a number"),
    (Ditto, {"mu": [1]}, "method.mu is [1]: it must be a number"),
    (SCAFFOLD, {"server_lr": "x"}, "method.server_lr is 'x': it must be a number"),
    (FedProto, {"lam": {}}, "method.lam is {}: it must be a number"),
    (FedCO2, {"mu": "x"}, "method.mu is 'x': it must be a number"),
    (FedCO2, {"mutual_epochs": 1.5}, "method.mutual_epochs is 1.5: it must be a whole number"),
    (FedCO2, {"intra": 3}, "method.intra is 3: it must be"),
    (FediOS, {"rank": "x"}, "method.rank is 'x': it must be"),
    (DCPFL, {"calib_epochs": "x"}, "method.calib_epochs is 'x'"),
    (FDSE, {"tau": "x"}, "method.tau is 'x': it must be a number"),
    (Users, {"factor": "x"}, "method.factor is 'x': it must be a number"),
    (Users, {"names": "ab"}, "method.names is 'ab': it must be a list"),
    (Users, {"names": [1]}, "method.names is [1]: it must be a list"),
    (Synthetic, {"train": "x"}, "data.train is 'x': it must be a whole number"),
    (Synthetic, {"train": None}, "data.train is None: it must be a whole number"),
    (Synthetic, {"train": 2**70}, "it must be a whole number"),
    (Synthetic, {"shape": 3}, "data.shape is 3: it must be a tuple"),
    (Synthetic, {"shape": (3, 8)}, "data.shape is (3, 8): it must be a tuple"),
    (Synthetic, {"shape": ("a", "b", "c")}, "data.shape is ('a', 'b', 'c'): it must be a tuple"),
    (Synthetic, {"noise": "loud"}, "data.noise is 'loud': it must be a number"),
    (Synthetic, {"val_fraction": "x"}, "data.val_fraction is 'x': it must be a number"),
    (Synthetic, {"seed": "x"}, "data.seed is 'x': it must be a whole number or None"),
    (Synthetic, {"partition": "IID"}, "data.partition is 'IID': it must be an object of class Partition"),
    (Synthetic, {"partition": IID}, "it must be an object of class Partition"),
    (CIFAR10, {"verify": "no"}, "data.verify is 'no': it must be True or False"),
    (CIFAR10, {"root": 3}, "data.root is 3: it must be a text or None"),
    (CIFAR10, {"root": ["a"]}, "data.root is ['a']: it must be a text or None"),
    (CIFAR10, {"normalise": 3}, "data.normalise is 3: it must be"),
    (CIFAR10, {"image_size": "x"}, "data.image_size is 'x': it must be"),
    (CIFAR100, {"labels": 3}, "data.labels is 3: it must be"),
    (MNIST, {"val_fraction": None}, "data.val_fraction is None: it must be a number"),
    (USPS, {"download": "yes"}, "data.download is 'yes': it must be True or False"),
    (DigitsFive, {"domains": "MNIST"}, "data.domains is 'MNIST': it must be a list"),
    (DigitsFive, {"domains": [1]}, "data.domains is [1]: it must be a list"),
    (OfficeCaltech10, {"image_size": "x"}, "data.image_size is 'x': it must be a whole number"),
    (DomainNet, {"split": 3}, "data.split is 3: it must be"),
    (PACS, {"augment": "yes"}, "data.augment is 'yes': it must be True or False or None"),
    (ImageFolders, {"classes": "abc"}, "data.classes is 'abc': it must be a list"),
    (Dirichlet, {"alpha": "x"}, "data.partition.alpha is 'x': it must be a number"),
    (Dirichlet, {"alpha": None}, "data.partition.alpha is None: it must be a number"),
    (Dirichlet, {"min_samples": 0.5}, "data.partition.min_samples is 0.5: it must be a whole number"),
    (Pathological, {"classes_per_client": "x"}, "data.partition.classes_per_client is 'x'"),
    (DomainDirichlet, {"chosen": [1]}, "data.partition.chosen is [1]: it must be a mapping"),
    (DomainDirichlet, {"chosen": {"a": "b"}}, "where each value is a whole number"),
    (DomainDirichlet, {"whole_test": "all"}, "data.partition.whole_test is 'all': it must be a list"),
    (Default, {"average": "b" * 10_000}, "bbb...bbb"),
    (Table.load, {"path": "nowhere.yaml"}, "nowhere.yaml cannot be read"),
    (Table.load, {"path": "/dev/zero"}, "/dev/zero cannot be read: it is not a regular file"),
    (Space.load, {"path": "/dev/zero"}, "/dev/zero cannot be read: it is not a regular file"),
    (Result.load, {"folder": "nowhere"}, "nowhere is not a run folder"),
    (Result.load, {"folder": "a\0b"}, "is not a run folder"),
    (resumed, {"folder": "nowhere"}, "nowhere is not a run folder"),
    (resumed, {"folder": "a\0b"}, "is not a run folder"),
    (load_models, {"folder": "nowhere"}, "nowhere is not a run folder"),
]


def _name(what: Callable[..., Any], arguments: dict[str, Any], number: int) -> str:
    (key,) = arguments
    return f"{what.__qualname__} {key} ({number})"


def _calling(what: Callable[..., Any], arguments: dict[str, Any]) -> Callable[[Path], Any]:
    return lambda folder: what(**arguments)


CASES = [
    *(
        Case(_name(what, arguments, number), _calling(what, arguments), says=says)
        for number, (what, arguments, says) in enumerate(BAD)
    ),
    Case(
        "a value that is changed afterwards",
        lambda folder: small(folder / "run", training=_changed(Training(), lr="x")),
        says="training.lr is 'x': it must be a number",
    ),
    Case(
        "a method's value that is changed afterwards",
        lambda folder: small(folder / "run", method=_changed(FedProx(), mu="x")),
        says="method.mu is 'x': it must be a number",
    ),
]


def _changed(made: Any, **values: Any) -> Any:
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made
