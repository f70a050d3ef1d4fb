"""Another device than the CPU: everything that a method computes with is there, and states come back."""

from __future__ import annotations

import math
from copy import copy, deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from rayfl.engine.base import Plan
from rayfl.engine.inline import Inline
from rayfl.engine.server import Server
from rayfl.engine.travel import EMPTY_DOWNLOAD
from rayfl.engine.worker import Worker
from rayfl.evaluation.finetune import Finetune
from rayfl.methods import METHODS
from rayfl.nets import MLP
from rayfl.testing.checks import TINY
from rayfl.training import SGD, Params, Training, examples
from rayfl.training.state import all_finite, pack, take_apart, to_device
from rayfl.training.sums import Accumulator, Mean, combine
from tests.methods.cases import net_of
from tests.support.by_hand import Run, assert_same, ragged
from tests.support.elsewhere import ELSEWHERE, Far, elsewhere

DATA = replace(ragged((9, 12, 6, 5)), unseen=1)
COHORTS = [[0, 1], [1, 2]]
"""The second has a client that comes back and one that is new; the last client never trains."""


def at(plan: Plan, device: str) -> Plan:
    """A plan for a device that no settings name."""
    engine = copy(plan.engine)
    vars(engine)["device"] = device
    return replace(plan, engine=engine)


def run(name: str, execution: Any, device: str) -> tuple[Run, list[Any]]:
    """Two rounds in float64 that use every part of the update, and all scores after them."""
    training = Training(batch_size=8, lr=0.1, momentum=0.5, clip=5.0, weight_decay=1e-3, precision="float64")
    made = Plan(METHODS[name](), net_of(name, TINY), training, 3, Inline(execution=execution, device="cpu"))
    made = replace(made, finetune=Finetune(epochs=1))
    there = replace(at(made, device), method=deepcopy(made.method))
    found = Run(Worker(there, DATA), Server(made, DATA))
    for cohort in COHORTS:
        found.round(cohort, ("test",))
    worker, ids, of = found.worker, range(DATA.seen), (2, found.server.download(range(DATA.seen)))
    scores = [*(result.scores for result in found.results), worker.evaluate(*of, [ids], ["test"])]
    scores.append(worker.finetune(*of, [(0, 1, 2)], ["test"], EMPTY_DOWNLOAD, []))
    given = worker.state_for_new_clients([0, 1, 2])
    scores += worker.unseen(2, found.server.download([3]), [3], given).values()
    return found, scores


TELLING = ("Ditto", "FedCP", "FedSR", "COPA", "DCPFL", "FedBABU")
"""Those with tensors of their own making, states, downloads for each client, or what personalises."""
NAMES = [name if name in TELLING else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]


@pytest.mark.parametrize("execution", ["loop", "stacked"])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_meets_what_is_on_the_cpu(name: str, execution: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers are those of the CPU. Loops find the data on the device; stacks get them batch by batch."""
    monkeypatch.setattr(examples, "_can_fit", lambda inputs, device: execution == "loop")
    here, scores_here = run(name, execution, "cpu")
    with elsewhere():
        there, scores_there = run(name, execution, str(ELSEWHERE))
    assert isinstance(there.worker.initial["head.weight"], Far)
    assert not any(isinstance(tensor, Far) for tensor in there.values().values())
    assert_same(there.values(), here.values(), 1e-9)
    assert len(scores_there) >= 4
    for ours, theirs in zip(scores_here, scores_there, strict=True):
        assert correct(ours) == correct(theirs)


def correct(scores: Any) -> dict[tuple[int, str], int]:
    """Return how many samples each view of each client has right."""
    return {(i, view): s.score for i, each in scores.items() for view, s in each["test"].items()}


@pytest.mark.parametrize(
    ("name", "execution", "augment"),
    [
        ("FedAvg", "loop", "none"),
        *((name, "stacked", "none") for name in ("FedAvg", "FedCP")),
        *(("FedAvg", "loop", kind) for kind in ("fedbn", "fedgh", "reflect")),
        ("FedAvg", "stacked", "fedgh"),
    ],
)
def test_more_steps_do_not_make_the_device_wait(
    name: str, execution: Any, augment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each move between the places ends what a GPU has under way: there are none from step to step."""
    data = replace(DATA, dataset=replace(DATA.dataset, augment=augment))
    monkeypatch.setattr(examples, "_can_fit", lambda inputs, device: True)
    moves = []
    for epochs in (1, 3):
        training = Training(batch_size=8, epochs=epochs, momentum=0.5, clip=5.0, optimiser=SGD(nesterov=True))
        plan = Plan(
            METHODS[name](), net_of(name, TINY), training, 3, Inline(execution=execution, device="cpu")
        )
        with elsewhere() as everywhere:
            found = Run(Worker(at(plan, str(ELSEWHERE)), data), Server(plan, data))
            before = everywhere.moves
            found.round([0, 1, 2])
            moves.append(everywhere.moves - before)
    assert moves[0] == moves[1] > 0


@pytest.mark.parametrize("execution", ["loop", "stacked"])
def test_states_move_at_once(execution: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A net of more layers makes no more moves, on the way there or back, or to see whether it diverged."""
    monkeypatch.setattr(examples, "_can_fit", lambda inputs, device: True)
    moves = []
    for net in (MLP(hidden=(8,)), MLP(hidden=(8, 8, 8))):
        plan = Plan(
            METHODS["Ditto"](), net, Training(batch_size=8), 3, Inline(execution=execution, device="cpu")
        )
        with elsewhere() as everywhere:
            found = Run(Worker(at(plan, str(ELSEWHERE)), DATA), Server(plan, DATA))
            found.round([0, 1, 2])
            before = everywhere.moves
            found.round([0, 1, 2])
            moves.append(everywhere.moves - before)
    assert moves[0] == moves[1] > 0


def test_sums_on_the_device_are_not_cut_for_the_caches_of_a_cpu() -> None:
    """A large upload takes as many operations there as a small one."""
    launched = []
    for size in (10, 10**6):
        with elsewhere() as everywhere:
            upload = {"w": torch.ones(size).to(ELSEWHERE)}
            accumulator = Accumulator({"w": Mean()}, {0: (0, 1), 1: (0, 1)})
            before = everywhere.operations
            for client in (0, 1):
                accumulator.add(client, accumulator.prepare(upload, 3)[1], 3)
            launched.append(everywhere.operations - before)
            assert torch.equal(combine({"w": Mean()}, [accumulator.parts()])["w"], torch.ones(size))
    assert launched[0] == launched[1]


def test_a_nest_moves_once_for_each_type() -> None:
    tree = {
        "w": Params({"a": torch.tensor([[1.0, -0.0]]), "n": torch.tensor(3)}, frozenset("a")),
        "x": {1: torch.tensor([0.5], dtype=torch.bfloat16), 2: torch.empty(0, 2), "one": True, "none": None},
        "y": torch.tensor([2.0, 3.0, 4.0])[1:],
    }
    with elsewhere() as everywhere:
        there = to_device(tree, ELSEWHERE)
        assert everywhere.moves == 3
        assert all(isinstance(t, Far) for t in pytree.tree_leaves(there) if isinstance(t, torch.Tensor))
        assert to_device(there, ELSEWHERE) is there
        back = to_device(there, "cpu")
        assert everywhere.moves == 6
    assert pack(back).structure == pack(tree).structure
    assert {n: b.tobytes() for n, b in pack(back).buffers.items()} == {
        n: b.tobytes() for n, b in pack(tree).buffers.items()
    }
    assert all(t.storage_offset() == 0 for t in take_apart(back)[1].values())
    assert to_device(tree, "cpu") is tree


@pytest.mark.parametrize(("bad", "value"), [("f", math.nan), ("g", -math.inf), ("number", math.inf)])
def test_one_question_finds_what_is_not_finite(bad: str, value: float) -> None:
    tree: dict[str, Any] = {"f": torch.ones(3), "g": torch.ones(2, dtype=torch.bfloat16), "number": 0.5}
    tree |= {"large": torch.full((2,), 3e38), "whole": torch.tensor([2**62] * 9), "here": torch.ones(1)}
    with elsewhere() as everywhere:
        there = {key: t.to(ELSEWHERE) if key in "fg" else t for key, t in tree.items()}
        before = everywhere.moves
        assert all_finite(there)
        assert everywhere.moves == before + 1
        assert all_finite({**there, "large": tree["large"].to(ELSEWHERE)})
        if bad != "number":
            tree[bad][1] = value
            assert not all_finite({**there, bad: tree[bad].to(ELSEWHERE)})
        assert not all_finite({**there, bad: value})
