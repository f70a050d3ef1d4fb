"""States from which a run could not be resumed are refused at once, and all others can be resumed from."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from rayfl import resumed
from rayfl.engine.worker import Worker
from rayfl.errors import BadCode
from rayfl.methods import Cohort, FedAvg, Method
from rayfl.record.checkpoint import Checkpoints
from rayfl.testing import federate, ragged
from rayfl.testing.checks import TINY
from rayfl.training import Client, Params, State
from tests.support.federations import bytes_of_run, small
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


class ServerLacks(Keeps):
    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        return {"weights": up["weights"]}


class ServerOtherType(Keeps):
    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        return {**server, **up, "more": server["more"].double()}


class ServerNone(Keeps):
    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        return {**server, **up, "more": None}


class ServerWeights(Keeps):
    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> Any:
        return up["weights"]


class ServerTwice(Keeps):
    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        return {**server, **up, "a/b": torch.zeros(1), "a": {"b": torch.zeros(1)}}


class ClientLacks(Keeps):
    def kept(self, client: Client, state: State, w: Params) -> Any:
        return {"own": state["own"]}


class ClientLacksLater(Keeps):
    def kept(self, client: Client, state: State, w: Params) -> Any:
        return {"own": state["own"]} if client.round else state


class ClientOtherType(Keeps):
    def kept(self, client: Client, state: State, w: Params) -> Any:
        return {**state, "own": state["own"].double()}


class ClientWeights(FedAvg):
    async def local_update(self, client: Client, state: State, down: State) -> Any:
        fitted = await client.fit(down["weights"], client.loss)
        return {"weights": fitted.weights}, fitted.weights


@pytest.mark.parametrize(
    ("method", "call", "word"),
    [
        (ServerLacks, "aggregate", "whose 'more' is gone"),
        (ServerOtherType, "aggregate", "whose 'more' is"),
        (ServerNone, "aggregate", "whose 'more' is"),
        (ServerWeights, "aggregate", "a state is a dict"),
        (ServerTwice, "aggregate", "state/a/b"),
        (ClientLacks, "local_update", "whose 'round' is gone"),
        (ClientLacksLater, "local_update", "of client 0 in round 1"),
        (ClientOtherType, "local_update", "whose 'own' is"),
        (ClientWeights, "local_update", "a state is a dict"),
    ],
)
def test_what_could_not_be_resumed_is_refused_at_once(method: type[Method], call: str, word: str) -> None:
    with refused(BadCode, f"{method.__name__}.{call}") as caught:
        federate(method(), ragged(), TINY, 2)
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
    settings: dict[str, Any] = {"method": Forgets(), "participation": 1.0, "clients": 4}
    whole, split = tmp_path / "whole", tmp_path / "split"
    small(whole, **settings, checkpoint_every=1).run()
    small(split, **settings, checkpoint_every=1, rounds=2).run()
    resumed(split, {"rounds": 4, "quiet": True}).run()
    assert bytes_of_run(split) == bytes_of_run(whole)
    checkpoints = Checkpoints(whole / "checkpoints")
    assert [len(checkpoints.checkpoint_after(round).clients) for round in (3, 4)] == [1, 0]
