"""A session over several workers that share nothing: what is called, what moves, and what comes of it."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from rayfl import Inline
from rayfl.data import DomainPerClient, Synthetic
from rayfl.engine.base import ClusterLost, Plan, WorkersLost
from rayfl.engine.session import Session, SystemMetrics
from rayfl.engine.travel import Download, States
from rayfl.errors import Shortage
from rayfl.evaluation.finetune import Finetune
from rayfl.methods import METHODS, Cohort, Ditto, FedAvg, FedBN, Method
from rayfl.nets import LeNet
from rayfl.record.checkpoint import Checkpoints
from rayfl.testing.checks import TINY
from rayfl.training import Params, State
from tests.support.by_hand import ragged
from tests.support.federations import same_bytes, small
from tests.support.nets import same_bits
from tests.support.refusals import refused
from tests.support.workers import PretendWorkers, pretend

DATA = ragged((12, 22, 16, 5, 9, 14))
EVERYONE = [(i,) for i in range(6)]


def opened(method: Method, count: int = 3, net: Any = TINY, **changes: Any) -> tuple[Session, PretendWorkers]:
    """Return a session of six clients, and its workers."""
    plan = Plan(method, net, small(Path()).training, 3, Inline(device="cpu"), **changes)
    workers = PretendWorkers(plan, DATA, count)
    return Session(plan, DATA, workers), workers


def test_what_a_round_calls_and_waits_for() -> None:
    """One download for all, one call per worker, one step; and the driver waits once, for the replies."""
    session, workers = opened(FedAvg())
    with session:
        for round in range(4):
            session.train(round, EVERYONE)
    assert workers.calls == {"download": 1, "train": 12, "aggregate": 4}
    assert workers.waits == 4 + 1  # and for the last step at the end


@pytest.mark.parametrize(("hosts", "added", "uploads"), [(1, 0, 0), (2, 1, 1), (3, 2, 2), (6, 0, 5)])
def test_each_host_sends_one_sum(hosts: int, added: int, uploads: int) -> None:
    """Six workers; the first host has the server, and what is there need not be added up first."""
    session, workers = opened(FedAvg(), 6, LeNet())  # beside whose numbers others are few
    workers.hosts = hosts
    with session:
        session.train(0, EVERYONE)
        upload = 16 * workers.processes[0].initial.numel()  # an exact sum
    assert workers.calls["add_up"] == added
    assert workers.travelled["aggregate"] // upload == uploads
    assert workers.travelled["aggregate"] % upload < upload / 3  # and small numbers of each worker
    assert workers.travelled["add_up"] == 0


def test_every_state_is_on_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever its client is sent next, the newest state is there, and nowhere else."""
    draw = np.random.default_rng(0)

    def anywhere(groups: Any, cost: Any, home: Any, workers: int) -> Any:
        placed: list[list[Any]] = [[] for _ in range(workers)]
        for group in groups:
            placed[draw.integers(workers)].append(group)
        return placed

    monkeypatch.setattr("rayfl.engine.session.place_groups", anywhere)
    session, workers = opened(Ditto())
    moved = 0
    with session:
        for round in range(4):
            before = dict(session.owner_of)
            session.train(round, EVERYONE[round:])
            now = sum(before.get(i, k) != k for i, k in session.owner_of.items())
            assert session.system_metrics.moved == now
            moved += now
            held = {k: set(workers.processes[k].states) for k in range(3)}
            assert {i: k for k, ids in held.items() for i in ids} == session.owner_of
            assert sum(map(len, held.values())) == 6
    assert moved
    assert workers.calls["hand_over"] <= moved


def test_a_failed_step_shows_when_it_is_waited_for() -> None:
    class Wrong(FedAvg):
        def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
            raise ValueError("no such step")

    session, _ = opened(Wrong())
    with pytest.raises(ValueError, match="no such step"), session:
        assert session.train(0, EVERYONE).ids == list(range(6))


@pytest.mark.parametrize("name", ["FedAMP", "FedProto"])
def test_many_workers_give_the_bytes_of_one(tmp_path: Path, name: str) -> None:
    """With one download for all, and with what single clients receive besides."""
    engines = Inline(), pretend(count=4, hosts=2)
    same_bytes(tmp_path, *engines, method=METHODS[name](), net=TINY, rounds=2)


def test_new_clients_on_many_workers(tmp_path: Path) -> None:
    data = Synthetic(train=600, test=180, domains=3, partition=DomainPerClient())
    settings: dict[str, Any] = {"method": FedBN(), "net": TINY, "data": data, "clients": 6, "rounds": 1}
    same_bytes(tmp_path, Inline(), pretend(count=3), unseen="domain1", **settings)


def test_states_that_travel_have_memory_of_their_own() -> None:
    weights = Params({"a": torch.arange(3.0)}, frozenset("a"))
    sent = Download({"weights": weights, "n": 2}, {4: {"own": torch.ones(2)}}), States({7: {"w": weights}})
    download, states = pickle.loads(pickle.dumps(sent, protocol=5))
    assert same_bits(download.for_client(1), {"weights": weights, "n": 2})
    assert same_bits(download.for_client(4), {"weights": weights, "n": 2, "own": torch.ones(2)})
    assert isinstance(states, States)
    states[7]["w"]["a"].zero_()
    assert same_bits(download.everyone["weights"], weights)


def test_what_a_round_has_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    session, _ = opened(FedAvg())
    assert session.system_metrics == SystemMetrics()
    placed = [[(0,), (1,)], [(2,)], [(3,), (4,)]]
    monkeypatch.setattr("rayfl.engine.session.place_groups", lambda *_: placed)
    with session:
        seconds = session.train(0, EVERYONE[:5]).seconds
    cost = session.system_metrics
    assert (cost.actors, cost.moved, cost.dropped) == ([2, 1, 2], 0, {})
    assert cost.busy == [sum(seconds[group] for group in mine) for mine in placed]
    assert len(seconds) == 5


def test_states_that_move_to_be_tuned_stay_there() -> None:
    session, workers = opened(Ditto(), finetune=Finetune(epochs=1))
    with session:
        session.train(0, EVERYONE)
        before = dict(session.owner_of)
        session.evaluate(0, [*range(6)], ("test",), tuned=[tuple(range(6))])
        assert len({*session.owner_of.values()}) == 1 < len({*before.values()})
        for k, process in enumerate(workers.processes[k] for k in range(3)):
            assert {*process.states} == {i for i, owner in session.owner_of.items() if owner == k}


def test_where_clients_are_trained_and_scored() -> None:
    """Where most of a group's states are; those without state go where there is least to do."""
    session, _ = opened(Ditto())
    session.owner_of = {4: 0, 1: 2, 2: 2}
    assert [session._usual_owner(group) for group in ((1, 2, 4), (3, 4), (0, 3), (1, 4, 2))] == [
        2,
        0,
        None,
        2,
    ]
    assert session._place_clients([0, 1, 2, 3, 4, 5], [5, 2, 2, 1, 3, 1]) == [[4, 3, 5], [0], [1, 2]]


def test_a_checkpoint_of_a_session_that_was_not_resumed(tmp_path: Path) -> None:
    session, _ = opened(Ditto())
    with session:
        session.train(0, EVERYONE[:3])
        session.save(tmp_path, 1, {"a": 1}, {"b": 2})
        manifest, _ = Checkpoints(tmp_path).newest_intact()
        assert manifest is not None
        assert (manifest.round, manifest.progress, manifest.settings) == (1, {"a": 1}, {"b": 2})
        states = {
            i: s for name in manifest.clients.values() for i, s in Checkpoints(tmp_path).read(name).items()
        }
        assert sorted(states) == [0, 1, 2]


def test_losses_count_from_one_checkpoint_to_the_next(tmp_path: Path) -> None:
    """Survivors load the states again; on a cluster that is gone nothing can be started."""
    session, workers = opened(Ditto())
    workers.recoveries = 2
    lost = WorkersLost("an actor died")

    def lose() -> None:
        session.train(0, EVERYONE)
        assert len(session.owner_of) == 6
        session.clear_loss(lost)
        assert (len(workers), session.owner_of) == (0, {})
        assert session._newest_download is session._last_step is None
        session.restore(tmp_path, None)
        assert len(workers) == 3

    lose()
    session.train(0, EVERYONE)
    session.save(tmp_path, 1, {}, {})
    lose()
    lose()
    with refused(Shortage) as end:
        session.clear_loss(lost)
    assert "3 times since the last checkpoint" in str(end.value)
    workers.gone = True
    for call in (session.check, lambda: session.clear_loss(lost)):
        with refused(ClusterLost):
            call()
    assert session._losses == 3
    session.close()


def test_the_round_whose_step_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss is no failure of the step: the round is run again."""
    session, workers = opened(FedAvg())
    assert session.failed_step() is None
    with session:
        session.train(7, EVERYONE)
        assert session.failed_step() is None
        for error, round in ((ValueError(), 7), (WorkersLost(""), None), (ClusterLost(""), None)):
            with monkeypatch.context() as patch:
                patch.setattr(workers, "get", MagicMock(side_effect=error))
                assert session.failed_step() == round
