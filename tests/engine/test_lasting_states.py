"""States from which a run could not be resumed are refused at once, and all others can be resumed from."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from rayfl.engine.worker import Worker
from rayfl.errors import BadCode
from rayfl.methods import Cohort, FedAvg, Method
from rayfl.record.checkpoint import Checkpoints
from rayfl.testing import federate, ragged
from rayfl.testing.checks import TINY
from rayfl.training import Client, Params, State
from tests.support.federations import same_bytes, small
from tests.support.refusals import refused

Returned = tuple[dict[str, Any], State]


class Keeps(FedAvg):
    """Server and clients keep a tensor of zeros; they send weights alone."""

    def init_server(self, context: Any) -> State:
        return {**super().init_server(context), "more": torch.zeros(2)}

    def init_client(self, client: Client) -> State:
        return {"own": torch.zeros(2), "round": 0}

    def download(self, server: State) -> State:
        return {"weights": server["weights"]}

    async def local_update(self, client: Client, state: State, down: State) -> Returned:
        fitted = await client.fit(down["weights"], client.loss)
        return {"weights": fitted.weights}, self.kept(client, state, fitted.weights)

    def kept(self, client: Client, state: State, w: Params) -> Any:
        return state


@pytest.mark.parametrize(
    ("next_state", "word"),
    [
        (lambda server, up: {"weights": up["weights"]}, "whose 'more' is gone"),
        (lambda server, up: {**server, **up, "more": server["more"].double()}, "whose 'more' is"),
        (lambda server, up: {**server, **up, "more": None}, "whose 'more' is"),
        (lambda server, up: up["weights"], "a state is a dict"),
        (lambda server, up: {**server, **up, "a/b": torch.ones(1), "a": {"b": torch.ones(1)}}, "state/a/b"),
    ],
)
def test_a_server_state_that_could_not_be_resumed_is_refused_at_once(next_state: Any, word: str) -> None:
    class Odd(Keeps):
        def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> Any:
            return next_state(server, up)

    with refused(BadCode, "Odd.aggregate") as caught:
        federate(Odd(), ragged(), TINY, 2)
    assert word in str(caught.value)


@pytest.mark.parametrize(
    ("next_state", "word"),
    [
        (lambda client, state, w: {"own": state["own"]}, "whose 'round' is gone"),
        (lambda client, state, w: {"own": state["own"]} if client.round else state, "of client 0 in round 1"),
        (lambda client, state, w: {**state, "own": state["own"].double()}, "whose 'own' is"),
        (lambda client, state, w: w, "a state is a dict"),
    ],
)
def test_a_clients_state_that_could_not_be_resumed_is_refused_at_once(next_state: Any, word: str) -> None:
    class Odd(Keeps):
        def kept(self, client: Client, state: State, w: Params) -> Any:
            return next_state(client, state, w)

    with refused(BadCode, "Odd.local_update") as caught:
        federate(Odd(), ragged(), TINY, 2)
    assert word in str(caught.value)


class Infinite(Keeps):
    def init_server(self, context: Any) -> State:
        return {**super().init_server(context), "best": math.inf}


class Lists(Keeps):
    def init_server(self, context: Any) -> State:
        return {**super().init_server(context), "sizes": [3]}


@pytest.mark.parametrize(("method", "word"), [(Infinite, "infinity"), (Lists, "state/sizes")])
def test_a_first_state_is_refused_before_the_start(tmp_path: Path, method: type[Method], word: str) -> None:
    with refused(BadCode, f"{method.__name__}.init_server") as caught:
        small(tmp_path / "run", method=method()).run()
    assert word in str(caught.value)
    assert not (tmp_path / "run").exists()


class OfSamples(Keeps):
    """Clients keep a number per sample, and what was None at first."""

    def init_client(self, client: Client) -> State:
        return {"own": torch.zeros(client.samples), "last": None}

    def kept(self, client: Client, state: State, w: Params) -> Any:
        return {"own": state["own"] + 1, "last": w if client.round == 0 else None, "more": client.round}


def test_a_state_may_go_by_the_clients_samples(tmp_path: Path) -> None:
    run = federate(OfSamples(), ragged((22, 5, 16)), TINY, [[0, 1, 2], [1]])
    name = run.worker.save(str(tmp_path), 0, [0, 1, 2])
    assert name is not None
    other = Worker(run.worker.plan, run.worker.data)
    assert other.restore(str(tmp_path), [name]) == [0, 1, 2]
    assert [len(other.states[i]["own"]) for i in range(3)] == [22, 5, 16]
    assert [other.states[i]["last"] is None for i in range(3)] == [False, True, False]


class Forgets(FedAvg):
    """Clients keep something in even rounds alone."""

    async def local_update(self, client: Client, state: State, down: State) -> Returned:
        fitted = await client.fit(down["weights"], client.loss)
        assert bool(state) == (client.round % 2 == 1)
        return {"weights": fitted.weights}, {"own": torch.ones(3)} if client.round % 2 == 0 else {}


def test_an_empty_state_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"method": Forgets(), "participation": 1.0, "clients": 4, "rounds": 4}
    whole, _ = same_bytes(tmp_path, resumed_after=2, checkpoint_every=1, **settings)
    checkpoints = Checkpoints(whole / "checkpoints")
    assert [len(checkpoints.checkpoint_after(round).clients) for round in (3, 4)] == [1, 0]
