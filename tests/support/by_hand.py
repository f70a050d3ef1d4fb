"""The small driver of ``rayfl.testing``, and nets that only rayfl's own tests need."""

import torch
from torch import nn

from rayfl.nets import FFA, GaussianMean, SplitNet
from rayfl.nets.dse import DSEConv, DSELinear
from rayfl.testing.by_hand import (
    Run,
    assert_same,
    federate,
    linear,
    points,
    ragged,
    start,
)

__all__ = [
    "Run",
    "assert_same",
    "dse",
    "federate",
    "ffa",
    "gaussian",
    "identities",
    "linear",
    "normed",
    "points",
    "ragged",
    "start",
    "tiny_of_7",
    "tiny_of_9",
    "two_layer",
    "with_prelu",
]


def _matrix(rows):
    layer = nn.Linear(2, 2, bias=False)
    layer.weight.data = torch.tensor(rows)
    return layer


IDENTITY, ZERO = ((1.0, 0.0), (0.0, 1.0)), ((0.0, 0.0), (0.0, 0.0))


def two_layer(shape, classes):
    """Logits B A x with A = I and B = 0: entries ``conv.1.weight`` and ``head.weight``."""
    return SplitNet(nn.Sequential(nn.Flatten(), _matrix(IDENTITY)), nn.Sequential(), _matrix(ZERO))


def identities(shape, classes):
    """Logits B A x with A = B = I: entries ``conv.1.weight`` and ``head.weight``."""
    return SplitNet(nn.Sequential(nn.Flatten(), _matrix(IDENTITY)), nn.Sequential(), _matrix(IDENTITY))


def normed(shape, classes):
    """Logits W BatchNorm(x) with W = 0: entries ``fc.0.*`` and ``head.weight``."""
    return SplitNet(nn.Flatten(), nn.Sequential(nn.BatchNorm1d(2)), _matrix(ZERO))


def dse(shape, classes):
    """A small net of DSE blocks."""
    conv = nn.Sequential(DSEConv(shape[0], 16, 5, 2, G=2, dw=3, act="relu"), nn.MaxPool2d(2), nn.Flatten())
    features = 16 * ((shape[1] - 3) // 4) * ((shape[2] - 3) // 4)
    return SplitNet(conv, nn.Sequential(DSELinear(features, 48, G=2, act="relu")), nn.Linear(48, classes))


def ffa(shape, classes):
    """A small net with two FFA layers."""
    conv = nn.Sequential(
        *(nn.Conv2d(shape[0], 6, 5, 2, bias=False), nn.BatchNorm2d(6), nn.ReLU(), FFA(6)),
        *(nn.Conv2d(6, 8, 3, 2), nn.ReLU(), FFA(8), nn.Flatten()),
    )
    side = [((length - 3) // 2 - 1) // 2 for length in shape[1:]]
    return SplitNet(
        conv, nn.Sequential(nn.Linear(8 * side[0] * side[1], 24), nn.ReLU()), nn.Linear(24, classes)
    )


def gaussian(shape, classes):
    """A small net whose extractor ends in a Gaussian of 12 features."""
    conv = nn.Sequential(nn.Conv2d(shape[0], 6, 5, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten())
    features = 6 * ((shape[1] - 2) // 3) * ((shape[2] - 2) // 3)
    return SplitNet(conv, nn.Sequential(nn.Linear(features, 24), GaussianMean()), nn.Linear(12, classes))


def tiny_of_7(shape, classes):
    """A small net of 7 features."""
    return _of(7, shape, classes)


def tiny_of_9(shape, classes):
    """A small net of 9 features."""
    return _of(9, shape, classes)


def _of(features, shape, classes):
    conv = nn.Sequential(nn.Conv2d(shape[0], 2, 5, 3), nn.ReLU(), nn.Flatten())
    flat = 2 * ((shape[1] - 2) // 3) * ((shape[2] - 2) // 3)
    return SplitNet(conv, nn.Sequential(nn.Linear(flat, features), nn.ReLU()), nn.Linear(features, classes))


def with_prelu(shape, classes):
    """A small net with a layer that is not linear in its weights."""
    fc = nn.Sequential(nn.Linear(shape[0] * shape[1] * shape[2], 6), nn.PReLU())
    return SplitNet(nn.Flatten(), fc, nn.Linear(6, classes))
