"""Another device than the CPU: everything that a method computes with is there, and states come back."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch

from rayfl.engine.plan import Plan
from rayfl.engine.server import Server
from rayfl.engine.worker import Worker
from rayfl.methods import METHODS
from rayfl.nets import CNNB
from rayfl.training import Training, examples
from tests.methods.cases import net_of
from tests.support.by_hand import Run, assert_same, ragged
from tests.support.elsewhere import ELSEWHERE, Far, elsewhere

DATA = ragged()
COHORTS = [[0, 1], [1, 2, 3]]
"""The second has clients that come back and clients that are new."""


def run(name: str, execution: Any, device: str, **options: Any) -> tuple[Run, Any]:
    """Two rounds in float64 that use every part of the update, and the scores after them."""
    training = Training(batch_size=8, lr=0.1, momentum=0.5, clip=5.0, weight_decay=1e-3, precision="float64")
    made = Plan(METHODS[name](**options), net_of(name, CNNB()), training, seed=3, execution=execution)
    there = Plan(**{**vars(made), "method": deepcopy(made.method), "device": device})
    found = Run(Worker(there, DATA), Server(made, DATA))
    for cohort in COHORTS:
        found.round(cohort, ("test",))
    return found, found.worker.evaluate(2, found.server.download(range(4)), range(4), ["test"])


@pytest.mark.parametrize("execution", ["loop", "stacked"])
@pytest.mark.parametrize("name", METHODS)
def test_nothing_meets_what_is_on_the_cpu(name: str, execution: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers are those of the CPU. Loops find the data on the device; stacks get them batch by batch."""
    monkeypatch.setattr(examples, "_fits", lambda inputs, device: execution == "loop")
    here, scores_here = run(name, execution, "cpu")
    with elsewhere():
        there, scores_there = run(name, execution, str(ELSEWHERE))
    assert isinstance(there.worker.initial["head.weight"], Far)
    assert not any(isinstance(tensor, Far) for tensor in there.values().values())
    assert_same(there.values(), here.values(), 1e-9)
    assert {i: each["test"].keys() for i, each in scores_there.items()} == {
        i: each["test"].keys() for i, each in scores_here.items()
    }


def test_the_device_refuses_what_a_gpu_refuses() -> None:
    with elsewhere():
        near, number = torch.ones(3), torch.tensor(2.0)
        far = near.to(ELSEWHERE)
        assert isinstance(far, Far)
        assert far.device == ELSEWHERE
        assert (far * number).cpu().tolist() == [2.0, 2.0, 2.0]
        assert far[torch.tensor([0, 2])].tolist() == [1.0, 1.0]
        refused = [
            lambda: far + near,
            lambda: torch.stack([far[0], number]),
            lambda: near.index_select(0, torch.tensor([1], device=ELSEWHERE)),
            lambda: torch.randperm(3, generator=torch.Generator(), device=ELSEWHERE),
            far.numpy,
        ]
        for mixed in refused:
            with pytest.raises(RuntimeError):
                mixed()
