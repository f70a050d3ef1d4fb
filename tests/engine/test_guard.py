"""Mistakes of those who write methods: each is refused, with what to do instead."""

import random
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from rayfl import Federation, Inline
from rayfl.engine import guard
from rayfl.errors import BadCode, Unknown
from rayfl.methods import SCAFFOLD, Facts, FedAvg
from rayfl.running.checks import check_class
from rayfl.testing.checks import TINY
from rayfl.training import Params
from rayfl.training.optimisers import SGD
from tests.support.by_hand import federate, ragged, start
from tests.support.federations import small
from tests.support.refusals import refused

DATA = ragged()


class Mistaken(FedAvg):
    """Does something before its clients train, which is handed the method, the client, and what that gets."""

    count = 0

    def __init__(self, does: Any) -> None:
        """Without an ``__init__`` of its own it could not write to itself at all."""
        self.does = does

    def init_client(self, client: Any) -> Any:
        return {"own": torch.ones(2)}

    async def local_update(self, client: Any, state: Any, down: Any) -> Any:
        self.does(self, client, state, down)
        return await super().local_update(client, state, down)


DOES: dict[str, tuple[Any, str]] = {
    "remembers": (lambda method, client, *_: setattr(method, "last", client.id), "self.last (round 0)"),
    "counts in its class": (lambda method, *_: setattr(Mistaken, "count", Mistaken.count + 1), "self.count "),
    "changes weights": (
        lambda method, client, state, down: down["weights"]["head.bias"].add_(1),
        "in place what it was handed: down['weights']['head.bias'] ",
    ),
    "changes state": (
        lambda method, client, state, down: state["own"].zero_(),
        "in place what it was handed: state['own'] ",
    ),
    "changes counts": (
        lambda method, client, *_: client.class_counts.clamp_(min=1),
        "in place what it was handed: client.class_counts",
    ),
    "draws": (lambda *_: torch.randn(()), "PyTorch's global generator"),
    "draws by NumPy": (lambda *_: np.random.standard_normal(), "NumPy's global generator"),  # noqa: NPY002
    "draws by Python": (lambda *_: random.random(), "Python's global generator"),
}


@pytest.mark.parametrize("execution", ["loop", "stacked"])
@pytest.mark.parametrize("name", DOES)
def test_a_mistake_is_refused(name: str, execution: str) -> None:
    does, word = DOES[name]
    with refused(BadCode, "Mistaken.local_update") as caught:
        federate(Mistaken(does), DATA, TINY, 1, execution=execution)
    assert word in str(caught.value)


class DrawsInLoss(FedAvg):
    async def local_update(self, client: Any, state: Any, down: Any) -> Any:
        net = client.net

        def loss(w: Any, batch: Any, extra: Any) -> Any:
            return F.cross_entropy(net(w, batch.x) + torch.randn(1, dtype=batch.x.dtype), batch.y)

        return {"weights": (await client.fit(down["weights"], loss)).weights}, state


class NotAsync(FedAvg):
    def local_update(self, client: Any, state: Any, down: Any) -> Any:  # type: ignore[override]
        return {"weights": down["weights"]}, state


class ReturnsOne(FedAvg):
    async def local_update(self, client: Any, state: Any, down: Any) -> Any:
        return (await super().local_update(client, state, down))[0]


class DoesNotAwait(FedAvg):
    async def local_update(self, client: Any, state: Any, down: Any) -> Any:
        client.fit(down["weights"], client.loss)
        return {"weights": down["weights"]}, state


@pytest.mark.parametrize(
    ("method", "word"),
    [
        (DrawsInLoss(), "PyTorch's global generator"),
        (NotAsync(), "`async def`"),
        (ReturnsOne(), "two mappings"),
        (DoesNotAwait(), "0 of 1"),
    ],
    ids=str,
)
def test_a_mistake_in_what_it_returns_or_hands_over_is_refused(method: Any, word: str) -> None:
    with refused(BadCode, f"{type(method).__name__}.local_update") as caught:
        federate(method, DATA, TINY, 1)
    assert word in str(caught.value)
    if isinstance(method, DrawsInLoss):
        with pytest.raises(RuntimeError, match="random"):  # of vmap, and so a run goes on in the loop
            federate(method, DATA, TINY, 1, execution="stacked")


class ScoresWithMemory(Mistaken):
    async def scores(self, client: Any, state: Any, down: Any, x: Any) -> Any:
        self.scored = len(x)
        return await super().scores(client, state, down, x)


def test_scores_must_not_remember() -> None:
    run = start(ScoresWithMemory(None), DATA, TINY)
    with refused(BadCode, "ScoresWithMemory.scores"):
        run.worker.evaluate(0, run.server.download([0]), [[0]], ["test"])


class AggregatesInPlace(FedAvg):
    def aggregate(self, server: Any, up: Any, cohort: Any) -> Any:
        server["weights"]["head.bias"].copy_(up["weights"]["head.bias"])
        return server


class DrawsOnServer(FedAvg):
    def init_server(self, context: Any) -> Any:
        return {"weights": context.initial.map(torch.rand_like)}


class SendsNoise(FedAvg):
    """From the first aggregation on, and not while it is tried before the start."""

    def init_server(self, context: Any) -> Any:
        return {**super().init_server(context), "steps": 0}

    def aggregate(self, server: Any, up: Any, cohort: Any) -> Any:
        return {"weights": up["weights"], "steps": server["steps"] + 1}

    def download(self, server: Any) -> Any:
        return {"weights": server["weights"] * (random.random() if server["steps"] else 1.0)}


SERVER_MISTAKES = [
    (AggregatesInPlace, "aggregate", "server['weights']['head.bias'] (round 0)"),
    (DrawsOnServer, "init_server", "PyTorch's global generator"),
    (SendsNoise, "download", "Python's global generator"),
]


@pytest.mark.parametrize(
    ("method", "call", "word"), SERVER_MISTAKES, ids=[m.__name__ for m, *_ in SERVER_MISTAKES]
)
def test_a_mistake_on_the_server_is_refused(method: Any, call: str, word: str) -> None:
    with refused(BadCode, f"{method.__name__}.{call}") as caught:
        federate(method(), DATA, TINY, 2)
    assert word in str(caught.value)


# ---- names that nobody calls


class Misspelt(FedAvg):
    def agregate(self, server: Any, up: Any, cohort: Any) -> Any:
        return server


class MisspeltOfItsBase(SCAFFOLD):
    server_lrate: float = 0.5

    def client_init(self, client: Any) -> Any:
        return {}


class HasItsOwn(FedAvg):
    aggregated: int = 3

    def _agregate(self) -> None: ...

    def distance(self) -> None: ...


class NoProperty(FedAvg):
    def facts(self) -> Any:
        return Facts(uses_rounds=True)


def test_a_misspelt_hook_is_refused() -> None:
    """Other names are the authors', and what is asked for without a call must be a property."""
    check_class(HasItsOwn)
    for method, place, meant in (
        (Misspelt, "Misspelt.agregate", "aggregate"),
        (MisspeltOfItsBase, "MisspeltOfItsBase.client_init", "init_client"),
    ):
        with refused(Unknown, place) as caught:
            check_class(method)
        assert f"did you mean {meant}?" in str(caught.value)


def test_hooks_are_looked_at_before_the_start(tmp_path: Path) -> None:
    with refused(Unknown, "Misspelt.agregate"):
        small(tmp_path / "run", method=Misspelt()).run()
    with refused(BadCode, "NoProperty.facts"):
        Federation(method=NoProperty(), output=str(tmp_path / "run"), engine=Inline(), quiet=True).run()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_is_drawn_while_ray_comes_up_is_nobodys(when: str) -> None:
    """Whether Ray has begun to come up before what is watched, or afterwards."""
    with guard.RAY_START_LOCK if when == "before" else nullcontext():
        watching = guard.Guard(FedAvg(), torch.device("cpu"), "local_update", "round 0")
    with guard.RAY_START_LOCK if when == "after" else nullcontext():
        random.random()
        watching.check()
    late = guard.Guard(FedAvg(), torch.device("cpu"), "local_update", "round 0")
    random.random()
    with refused(BadCode, "FedAvg.local_update"):
        late.check()


def test_generators_of_ones_own_are_none_of_it() -> None:
    federate(
        Mistaken(lambda *_: random.Random(1).random() + np.random.default_rng(1).random()), DATA, TINY, 1
    )


def test_an_attribute_that_comes_or_goes_is_a_change() -> None:
    """Also one that is None; what begins with an underscore is the author's."""
    method = Mistaken(None)
    method._own = 1
    for change in (
        lambda: setattr(method, "last", None),
        lambda: delattr(method, "last"),
        lambda: setattr(method, "last", 3),
    ):
        watching = guard.Guard(method, torch.device("cpu"), "local_update", "round 0")
        method._own += 1
        watching.check()
        change()
        with refused(BadCode, "Mistaken.local_update"):
            watching.check()


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda nest: nest["list"].append(3), "a['list']"),
        (lambda nest: nest["tuple"][1].add_(1), "a['tuple'][1]"),
        (lambda nest: nest["set"].add(3), "a['set']"),
        (lambda nest: nest.update(more=1), "a"),
        (lambda nest: nest["list"].__setitem__(0, {}), "a['list']"),
        (lambda nest: nest["list"][0].update(x=2), "a['list'][0]"),
        (lambda nest: nest["w"].tensors["b"].zero_(), "a['w']['b']"),
        (lambda nest: nest["w"].tensors["b"].clone().zero_(), None),
    ],
)
def test_where_something_has_changed(change: Any, place: str | None) -> None:
    nest = {"list": [{"x": 1}], "tuple": (1, torch.ones(2)), "set": {1}}
    nest["w"] = Params({"b": torch.ones(1)}, frozenset())
    handed = guard.Snapshot(first=[[torch.ones(1)]], a=[nest])
    assert handed.first_change() is None
    change(nest)
    assert handed.first_change() == place


class Counting(SGD):
    """It counts its steps, which only this process would know."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def step(self, *arguments: Any) -> None:
        self.seen.append(1)
        super().step(*arguments)


def test_an_optimiser_of_ones_own_must_not_remember() -> None:
    with refused(BadCode, "Counting.step"):
        federate(FedAvg(), DATA, TINY, 1, optimiser=Counting())
