"""Nets that remember something, draw elsewhere, or mix the inputs of a batch are refused."""

import copy
import sys
import types
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rayfl.errors import BadCode
from rayfl.nets import SplitNet, build
from tests.support.refusals import refused

OWN = "nets_that_remember"
TEXTS = torch.tensor([[0, 1, 2], [4, 4, 4]])


class Centred(nn.Module):
    """A net that takes a running mean from its inputs, as ``renew`` writes it."""

    def __init__(self, renew: Any, persistent: bool = True) -> None:
        super().__init__()
        self.out = nn.Linear(4, 3)
        self.renew = renew
        self.register_buffer("mean", torch.zeros(4), persistent=persistent)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.renew(self, x.mean(0))
        out: Tensor = self.out(x - self.get_buffer("mean"))
        return out


class Counting(nn.Module):
    """A net that goes by how often it was called."""

    def __init__(self, start: Any) -> None:
        super().__init__()
        self.out = nn.Linear(4, 3)
        if isinstance(start, Tensor):
            self.register_buffer("calls", start)
        else:
            self.calls = start

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        out: Tensor = self.out(x * 0.5 ** float(self.calls))
        return out


class Watched(nn.Module):
    """A net that keeps its last features to be looked at, which is no memory: they decide nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.features = x.relu()
        out: Tensor = self.out(self.features)
        return out


class Mixing(nn.Module):
    """A net for texts whose layer takes the first dimension for the places in the text, if so asked."""

    def __init__(self, num_classes: int, batch_first: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.attend = nn.TransformerEncoderLayer(4, 1, 4, dropout=0.0, batch_first=batch_first)
        self.out = nn.Linear(4, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.attend(self.embed(x)).mean(1))
        return out


class Gained(SplitNet):
    """A net with a layer outside of its parts."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Sequential(), nn.Linear(4, 3))
        self.gain = nn.Linear(4, 4)

    def features(self, x: Tensor) -> Tensor:
        gained: Tensor = self.gain(super().features(x))
        return gained


class Soft(SplitNet):
    """A net whose scores are not those of its head."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).softmax(1)


def assigned(net: nn.Module, mean: Tensor) -> None:
    net.mean = 0.9 * net.get_buffer("mean") + 0.1 * mean


def written(net: nn.Module, mean: Tensor) -> None:
    net.get_buffer("mean").mul_(0.9).add_(0.1 * mean)


def random_by_numpy() -> nn.Module:
    net = nn.Linear(4, 3)
    net.weight.data = torch.tensor(np.random.randn(3, 4)).float()  # noqa: NPY002, what is to be refused
    return net


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3))


def embedded(**options: Any) -> nn.Module:
    return nn.Sequential(nn.Embedding(5, 4, **options), nn.Flatten(), nn.Linear(12, 3))


class Listed(nn.Module):
    """A net whose layer's weights are in a list, too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(4, 4), nn.Linear(4, 3)
        self.weights = [self.first.weight]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(F.linear(x, self.weights[0], self.first.bias))
        return out


def turning() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 3))
    net.register_parameter("turn", nn.Parameter(torch.ones(2, dtype=torch.cfloat)))
    return net


def lazy() -> SplitNet:
    return SplitNet(nn.Flatten(), nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d()), nn.Linear(4, 3))


def made(monkeypatch: pytest.MonkeyPatch, net: Any, like: Tensor | None = None) -> SplitNet:
    """Build what a function makes, as a net of the user's own."""
    module = types.ModuleType(OWN)
    module.net = lambda shape, classes: net()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, OWN, module)
    return build(f"{OWN}.net", (4,) if like is None else tuple(like.shape[1:]), 3, like)


@pytest.mark.parametrize(
    ("net", "like", "place", "word"),
    [
        (lambda: Centred(assigned), None, "net", "its buffer 'conv.mean'"),
        (lambda: Centred(written, persistent=False), None, "net", "changes 'conv.mean'"),
        (lambda: Counting(0), None, "net", "changes 'conv.calls'"),
        (lambda: Counting(torch.tensor(0)), None, "net", "changes 'conv.calls'"),
        (random_by_numpy, None, "net", "NumPy's"),
        (normed, None, "net", "in the batch"),
        (lambda: Mixing(3, batch_first=False), TEXTS, "net", "in the batch"),
        (Gained, None, "net", "'gain.weight'"),
        (lambda: Soft(nn.Flatten(), nn.Sequential(), nn.Linear(4, 3)), None, "net", "not head(fc(conv(x)))"),
        (lambda: embedded(max_norm=1.0), TEXTS, "layer 'conv.0'", "max_norm"),
        (lambda: embedded(sparse=True), TEXTS, "layer 'conv.0'", "sparse"),
        (Listed, None, "net", "'conv.first.weight'"),
        (turning, None, "parameter 'conv.turn'", ""),
    ],
)
def test_nets_that_are_refused(
    monkeypatch: pytest.MonkeyPatch, net: Any, like: Any, place: str, word: str
) -> None:
    with refused(BadCode, place) as caught:
        made(monkeypatch, net, like)
    assert word in str(caught.value)


@pytest.mark.parametrize(
    ("net", "like"),
    [
        (lambda: Centred(written), None),
        (lambda: Centred(lambda net, mean: None), None),
        (Watched, None),
        (lambda: Mixing(3, batch_first=True), TEXTS),
        (lazy, None),
    ],
    ids=["written", "constant", "watched", "batch first", "lazy"],
)
def test_nets_that_are_fine(monkeypatch: pytest.MonkeyPatch, net: Any, like: Any) -> None:
    split = made(monkeypatch, net, like)
    assert split.head.out_features == 3
    assert split.training
    copy.deepcopy(split)  # which fails with what was computed for a gradient
