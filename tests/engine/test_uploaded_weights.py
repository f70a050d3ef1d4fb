"""Means whose weights the clients upload, in whole runs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from rayfl import Inline, Ray, resumed
from rayfl.engine.session import BadUpdate
from rayfl.errors import BadCode
from rayfl.methods import Cohort, FedAvg
from rayfl.training import Client, Mean, Reduction, State, Sum
from tests.support.by_hand import federate, points
from tests.support.federations import bytes_of_run, small
from tests.support.refusals import refused


class Trusting(FedAvg):
    """FedAvg weighted by what clients say; the server keeps the sum of it."""

    says: str = "third"

    def uploads(self, context: Any) -> Mapping[str, Reduction]:
        return {"weights": Mean("trust"), "trust": Sum()}

    def init_server(self, context: Any) -> State:
        return {"weights": context.initial, "trust": 0.0}

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        up, state = await super().local_update(client, state, down)
        weight = {"third": (client.id + 1) / 3, "negative": 1.0 - client.id, "nothing": 0.0}[self.says]
        return {**up, "trust": weight}, state

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        return {"weights": up["weights"], "trust": server["trust"] + up["trust"]}


class Careless(Trusting):
    """One that does not declare what weights its mean."""

    def uploads(self, context: Any) -> Mapping[str, Reduction]:
        return {"weights": Mean("trust")}


def test_clients_count_by_what_they_say() -> None:
    """From W = 0 the step of a client is +-1/2 in W[0, 0]: (1/3 * 1/2 - 2/3 * 1/2) / 1 = -1/6."""
    run = federate(Trusting(), points([((1, 0), 0)], [((1, 0), 1)] * 5), cohorts=1, lr=1.0)
    weight = run.server.state["weights"]["head.weight"]
    torch.testing.assert_close(weight[0], torch.tensor([-1 / 6, 0], dtype=torch.float64), rtol=0, atol=1e-12)
    assert run.server.state["trust"] == pytest.approx(1)


def test_the_same_bytes_on_actors_and_after_a_resume(tmp_path: Path, kept_actors: None) -> None:
    for name, engine in (("inline", Inline()), ("ray", Ray(actors=2))):
        small(tmp_path / name, method=Trusting(), engine=engine, rounds=3).run()
    small(tmp_path / "split", method=Trusting(), rounds=2).run()
    resumed(tmp_path / "split", {"rounds": 3, "quiet": True}).run()
    for name in ("ray", "split"):
        assert bytes_of_run(tmp_path / name) == bytes_of_run(tmp_path / "inline")


def test_a_bad_weight_is_a_bad_update(tmp_path: Path) -> None:
    """Clients 0 and 1 have weights of 1 and 0, the others negative ones."""
    bad: dict[str, Any] = {"method": Trusting(says="negative"), "participation": 1.0, "rounds": 1}
    with refused(BadUpdate, "client 2"):
        small(tmp_path / "stop", **bad).run()
    small(tmp_path / "drop", **bad, on_bad_update="drop").run()
    record = json.loads((tmp_path / "drop" / "metrics.jsonl").read_text())
    assert record["dropped"] == list(range(2, 12))


def test_nobody_counts(tmp_path: Path) -> None:
    with refused(BadCode, "the weights 'trust'"):
        small(tmp_path / "run", method=Trusting(says="nothing"), rounds=1).run()


def test_weights_that_are_not_declared_are_refused(tmp_path: Path) -> None:
    with refused(BadCode, "Careless.local_update"):
        small(tmp_path / "run", method=Careless()).run()
