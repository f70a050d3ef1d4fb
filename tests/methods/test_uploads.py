"""What uploads say of the download: by it go models right after training, and what transforms change."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from rayfl.methods import SCAFFOLD, Cohort, FedAvg, FedCP, Method
from rayfl.training import Client, Gather, Mean, Reduction, State, Sum
from rayfl.transforms import Change, TopK, Transform
from tests.support.by_hand import assert_same, federate, ragged, start

TINY = "rayfl.testing.by_hand.tiny"


class Renamed(FedAvg):
    """FedAvg that uploads its weights under another name."""

    def uploads(self, context: Any) -> Mapping[str, Reduction]:
        return {"model": Mean(replaces="weights")}

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        up, state = await super().local_update(client, state, down)
        return {"model": up["weights"]}, state

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        return {"weights": up["model"]}


class Stepping(FedAvg):
    """FedAvg that uploads its change."""

    def uploads(self, context: Any) -> Mapping[str, Reduction]:
        return {"step": Mean(adds_to="weights")}

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        up, state = await super().local_update(client, state, down)
        return {"step": up["weights"] - down["weights"]}, state

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        return {"weights": server["weights"] + up["step"]}


@pytest.mark.parametrize("method", [Renamed(), Stepping()], ids=str)
@pytest.mark.parametrize("transforms", [[], [TopK(share=0.5)]], ids=str)
def test_uploads_of_other_names_and_of_changes_are_federated_averaging(
    method: Method, transforms: list[Transform]
) -> None:
    """Also through transforms, and in the scores right after training."""
    runs = [start(each, ragged(), TINY, transforms=transforms) for each in (method, FedAvg())]
    for run in runs:
        run.round([0, 2, 3], score_splits=["test"])
    one, other = runs
    assert_same(dict(one.server.state["weights"]), dict(other.server.state["weights"]), 1e-12)
    for i in (0, 2, 3):
        losses = [run.results[-1].scores[i]["test"]["personal"].loss for run in runs]
        assert losses[0] == pytest.approx(losses[1], rel=1e-9)


def test_what_is_put_in_place_right_after_training() -> None:
    """By its own name, another, as a sum, or not at all; a sum takes no client's place by itself."""

    class Several(FedAvg):
        def uploads(self, context: Any) -> Mapping[str, Reduction]:
            return {
                "a": Mean(),
                "b": Gather(replaces=False),
                "c": Sum(),
                "d": Sum(adds_to="e"),
                "f": Gather(replaces="g"),
                "h": Mean(before=True),
                "i": Mean(),
            }

    client: Any = type("Asked", (), {"context": None})
    numbers = dict(zip("abcdefgh", map(float, range(8)), strict=True))
    up = dict.fromkeys("abcdfhi", 10.0)
    found = Several().trained(client, numbers, up)
    assert found == {**numbers, "a": 10, "e": 14, "g": 10}


class Zeros(Transform):
    """Undoes every change."""

    def at_client(
        self, change: Change, memory: State, client: Client, received: State
    ) -> tuple[Change, State, Mapping[str, float]]:
        return {key: each.zeros() for key, each in change.items()}, memory, {}


@pytest.mark.parametrize(
    ("method", "stays", "moves"),
    [
        (FedAvg(), ["weights"], []),
        (SCAFFOLD(), ["weights", "control"], []),
        (FedCP(), ["weights", "policy"], ["head"]),  # which is no change of the head received
    ],
    ids=lambda value: str(value),
)
def test_what_transforms_take_for_changes(method: Method, stays: list[str], moves: list[str]) -> None:
    run = federate(method, ragged(), TINY, cohorts=1, transforms=[Zeros()])
    first, last = run.server.context, run.server.state
    before = method.init_server(first)
    for key in stays:
        assert_same(dict(last[key]), dict(before[key]), 1e-12)
    for key in moves:
        assert any(not torch.equal(t, last[key][name]) for name, t in before[key].items())
