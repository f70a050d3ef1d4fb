"""The small driver of ``rayfl.testing``, and a net that only rayfl's own tests need."""

from torch import nn

from rayfl.nets import SplitNet
from rayfl.nets.dse import DSEConv, DSELinear
from rayfl.testing.by_hand import (
    Run,
    assert_same,
    federate,
    identities,
    linear,
    normed,
    points,
    ragged,
    start,
    two_layer,
)

__all__ = [
    "Run",
    "assert_same",
    "dse",
    "federate",
    "identities",
    "linear",
    "normed",
    "points",
    "ragged",
    "start",
    "two_layer",
]


def dse(shape, classes):
    """A small net of DSE blocks."""
    conv = nn.Sequential(DSEConv(shape[0], 16, 5, 2, G=2, dw=3, act="relu"), nn.MaxPool2d(2), nn.Flatten())
    features = 16 * ((shape[1] - 3) // 4) * ((shape[2] - 3) // 4)
    return SplitNet(conv, nn.Sequential(DSELinear(features, 48, G=2, act="relu")), nn.Linear(48, classes))
