"""Options refuse values of other types and out of their bounds: from the command line and from Python."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfl import Federation, Inline, Ray, Training
from rayfl.data import IID, DigitsFive, DomainDirichlet, Synthetic
from rayfl.errors import BadValue
from rayfl.evaluation import Default, Protocol
from rayfl.methods import FedAvg, FedProx
from rayfl.nets import FDSEAlexNet
from rayfl.record.checks import Cell
from tests.support.federations import federation_from

OUT_OF_BOUNDS = {
    "": """
        rounds=0 rounds=1.5 rounds=1e3 rounds=99999999999999999999 clients=0 seed=1e400 seed=null
        seed=99999999999999999999 participation=0 participation=1.01 participation=nan averaging=median
        unseen_clients=all unseen_clients=0 unseen_clients=2.5 common_test=perhaps quiet=maybe cell=foo
        eval_every=-1 eval_clients=0 eval_draw=never eval_points=all checkpoint_every=-1 checkpoint_every=0.5
        checkpoint_keep=all on_bad_update=ignore loggers=perhaps
        log_level=all finetune.epochs=-1 finetune.lr=0 finetune.part=nothing finetune.of=online
        training.lr=0 training.lr=true training.lr=1e400 training.lr=[1] training.batch_size=0
        training.epochs=0 training.batch_size=99999999999999999999 training.steps=0 training.momentum=1
        training.weight_decay=-1 training.clip=-1 training.precision=float16 training.last_batch=lose
        training.bn_single=never training.momentum=-0.1 training.clip=nan training.work=[]
        training.work=[-0.1] training.work_range=[1,0] protocol.k=0 protocol.patience=-1
        protocol.point=nowhere protocol.average=most protocol.length=0 protocol.step=0""",
    "--training.schedule Exponential": "training.schedule.decay=2 training.schedule.decay=0",
    "--training.schedule Cosine": "training.schedule.warmup=-1 training.schedule.end=1.5",
    "--training.optimiser Adam": """
        training.optimiser.beta1=1 training.optimiser.beta2=1 training.optimiser.eps=0""",
    "--engine Inline": """
        engine.threads=0 engine.threads=1.5 engine.threads=1025 engine.stack=0 engine.device=tpu
        engine.execution=fast engine.memory_format=nchw engine.state_memory=-1""",
    "--engine Ray": """
        engine.actors=0 engine.actors=many engine.clients_per_actor=0 engine.gpus_per_actor=1.5
        engine.gpus_per_actor=2 engine.gpus_per_actor=-1 engine.cpus_per_actor=-1 engine.recoveries=-1
        engine.threads=-1 engine.wait=-1""",
    "--data Synthetic": """
        data.shape=3 data.shape=[3,8] data.shape=[0,0,0] data.shape=[a,b,c] data.seed=x data.train=null
        data.test_from=all""",
    "--net FDSEAlexNet": "net.G=x net.G=1 net.dw=2",
    "--net CharLSTM": "net.layers=0",
    "--net MLP": "net.hidden=[0] net.hidden=x",
    "--transforms TopK": "transforms.share=0",
    "--transforms Quantise": "transforms.bits=1",
    "--attack IPM": "attack.clients=[]",
    "--transforms ClientDP --transforms.noise_multiplier 1": "transforms.clip=adaptiv",
}
"""A class that has options -> words that give one of them a value that it does not take."""


def is_refused(place: str, make: Callable[..., Any], *given: Any, **named: Any) -> bool:
    """Whether a value is refused there, in one line that is not too long."""
    try:
        make(*given, **named)
    except BadValue as error:
        return error.place == place and str(error).isprintable() and len(str(error)) < 600
    return False


@pytest.mark.parametrize("chosen", OUT_OF_BOUNDS)
def test_words_of_other_types_and_out_of_bounds(chosen: str) -> None:
    taken = [
        word
        for word in OUT_OF_BOUNDS[chosen].split()
        if not is_refused(word.partition("=")[0], federation_from, [*chosen.split(), f"--{word}"])
    ]
    assert taken == []


class Silent:
    """An object whose representation does not work."""

    def __repr__(self) -> str:
        raise RuntimeError("no representation")


class Users(FedAvg):
    """A method of a user's own, which computes with its arguments."""

    def __init__(self, factor: float = 0.5, names: list[str] | None = None) -> None:
        self.factor = 1.0 * factor
        self.names = [name.lower() for name in names or []]


OF_OTHER_TYPES: list[tuple[Any, str, list[Any]]] = [
    (Training, "lr", ["x", None, [0.1], 1j, math.nan, math.inf, True, np.zeros(2), "x" * 10_000]),
    (Training, "batch_size", [1.0, "1", True, 2**64, None]),
    (Training, "precision", [32, None, ["float32"], np.zeros(2), True]),
    (Training, "clip", [Silent()]),
    (Training, "optimiser", ["Adam"]),
    (Training, "schedule", [0.9]),
    (Default, "k", ["5"]),
    (Default, "trained_only", [1]),
    (Federation, "method", ["FedAvg", FedAvg, None]),
    (Federation, "net", [3, [1, 2], {"a": 1}, [], "\0"]),
    (Federation, "clients", ["5", True, 2**70]),
    (Federation, "unseen_clients", [2.5, math.inf]),
    (Federation, "protocol", [None, [Default()], "fdse+weighted", Protocol()]),
    (Federation, "output", [3, "a\0b", Path("a\0b"), "\udcff"]),
    (Federation, "loggers", [["wandb", 1]]),
    (Federation, "quiet", ["no", 1]),
    (Federation, "cell", [{"table": "a"}]),
    (Ray, "actors", ["many", 1.5, None]),
    (Ray, "address", [6379]),
    (Inline, "threads", ["2", None]),
    (FedProx, "mu", ["x", None, [1]]),
    (Users, "factor", ["x"]),
    (Users, "names", ["ab", [1]]),
    (FDSEAlexNet, "G", [1]),
    (Synthetic, "shape", [3, (3, 8), ("a", "b", "c")]),
    (Synthetic, "partition", ["IID", IID]),
    (DigitsFive, "domains", ["MNIST", [1]]),
    (DomainDirichlet, "chosen", [[1], {"a": "b"}]),
    (lambda changed: Cell(table="a", row="b", column="c", changed=changed), "cell.changed", [3]),
]
"""A class, one of its options, and values that it does not take."""


@pytest.mark.parametrize(
    ("cls", "option", "values"), OF_OTHER_TYPES, ids=[each[1] for each in OF_OTHER_TYPES]
)
def test_objects_of_other_types(cls: Any, option: str, values: list[Any]) -> None:
    place = f"{getattr(cls, '_place', '')}.{option}".lstrip(".")
    name = option.rpartition(".")[2]
    taken = [n for n, value in enumerate(values) if not is_refused(place, cls, **{name: value})]
    assert taken == []
