"""Weights that layers share: one entry, trained as by a plain loop, and the same tensor everywhere."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rayfl import Federation, Inline, Training, resumed
from rayfl.data import Arrays
from rayfl.errors import BadCode
from rayfl.methods import FedAvg, FedPer, Method
from rayfl.nets import build
from rayfl.randomness import seed_of
from rayfl.training import Net
from tests.support.refusals import refused

RNG = np.random.default_rng(1)
X = RNG.standard_normal((24, 5)).astype(np.float32)
Y = X[:, :3].argmax(1).astype(np.int64)


class ByObject(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.e, self.d = nn.Linear(5, 5, bias=False), nn.Linear(5, 5, bias=False)
        self.tie()
        self.out = nn.Linear(5, 3)

    def tie(self) -> None:
        self.d.weight = self.e.weight

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.out(torch.tanh(self.d(torch.tanh(self.e(x)))))
        return found


class ByMemory(ByObject):
    """Two parameters in the same memory."""

    def tie(self) -> None:
        self.d.weight.data = self.e.weight.data


class Twice(ByObject):
    """One layer at two paths."""

    def tie(self) -> None:
        self.d = self.e


class View(ByObject):
    """A parameter that is the other's transpose."""

    def tie(self) -> None:
        self.d.weight = nn.Parameter(self.e.weight.t())


class TiedHead(nn.Module):
    """Its head has the weights of its first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.e, self.out = nn.Linear(5, 3, bias=False), nn.Linear(5, 3)
        self.h = nn.Linear(3, 5)
        self.out.weight = self.e.weight

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.out(torch.tanh(self.h(torch.tanh(self.e(x)))))
        return found


def federation(net: Any, output: Path, method: Method | None = None, **changes: Any) -> Federation:
    training = Training(lr=0.5, epochs=3, batch_size=24, precision="float64")
    settings: dict[str, Any] = {
        "method": method or FedAvg(),
        "data": Arrays(X, Y, X, Y),
        "training": training,
    }
    settings |= {"clients": 1, "rounds": 2, "engine": Inline(), "loggers": [], "quiet": True}
    return Federation(net=f"{__name__}.{net.__name__}", output=str(output), **settings | changes)


def by_hand(net: Any, steps: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed_of(0, "init"))
        made: nn.Module = net()
    if net is ByMemory:
        ByObject.tie(made)  # type: ignore[arg-type]  # so that one step is not two of one memory
    made.double()
    x, y = torch.from_numpy(X).double(), torch.from_numpy(Y)
    descent = torch.optim.SGD(made.parameters(), lr=0.5)
    for _ in range(steps):
        descent.zero_grad()
        F.cross_entropy(made(x), y).backward()
        descent.step()
    return made


@pytest.mark.parametrize("execution", ["loop", "stacked"])
@pytest.mark.parametrize("net", [ByObject, ByMemory, Twice, TiedHead])
def test_they_are_trained_as_a_plain_loop_does(tmp_path: Path, net: Any, execution: Any) -> None:
    result = federation(net, tmp_path / "run", engine=Inline(execution=execution)).run()
    whole, trained = by_hand(net, 6), result.models[0].module()
    x = torch.from_numpy(X).double()
    torch.testing.assert_close(trained(x), whole(x), rtol=1e-12, atol=1e-12)
    expected = whole.state_dict()
    assert trained.state_dict().keys() == expected.keys()
    for name, value in trained.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-12, atol=1e-12)
    assert [*dict(trained.named_parameters())] == [*dict(whole.named_parameters())], "they are shared still"
    sent = sum(p.nbytes for p in whole.parameters())
    assert result.summary["up"] == 2 * sent


def test_they_go_through_checkpoints(tmp_path: Path) -> None:
    run, whole = tmp_path / "run", tmp_path / "whole"
    federation(ByObject, run, rounds=1, checkpoint_every=1).run()
    data = Arrays(X, Y, X, Y)
    resumed(run, {"rounds": 2, "quiet": True}, data=data).run()
    federation(ByObject, whole, checkpoint_every=1).run()
    assert (run / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


def test_names_are_those_of_the_head_or_of_the_first_layer() -> None:
    def entries(net: Any) -> Net:
        return Net(lambda: build(f"{__name__}.{net.__name__}", (5,), 3))

    assert [*entries(ByObject).initial(0)] == ["conv.e.weight", "head.weight", "head.bias"]
    head = entries(TiedHead)
    assert [*head.initial(0)] == ["conv.h.weight", "conv.h.bias", "head.weight", "head.bias"]
    assert head.entry_at["conv.e.weight"] == "head.weight"
    assert head.train_names == {*head.initial(0)}


def test_what_cannot_be_shared_is_refused(tmp_path: Path) -> None:
    with refused(BadCode, "parameter 'conv.d.weight'"):
        federation(View, tmp_path / "view").run()
    with refused(BadCode, "net"):  # FedPer keeps the head, and computes with the rest alone
        federation(TiedHead, tmp_path / "head", FedPer()).run()
    federation(ByObject, tmp_path / "body", FedPer()).run()
