"""What tests with numbers worked out by hand have in common.

Samples are of two numbers and two classes, and steps of length 1 unless said otherwise. The net is linear,
logits W x with W = 0 at first, where the softmax is (1/2, 1/2); ``TWO_LAYER`` has logits B A x with A = I and
B = 0. For logits (a, -a) the softmax is (s(2a), s(-2a)). The second row of a 2x2 matrix is minus the first
unless both are given.
"""

import math
from typing import Any

import torch

from rayfl.training import Params
from tests.support.by_hand import points, ragged

PAIR = points([((1, 0), 0)], [((0, 1), 1)])
ONE = points([((1, 0), 0)])
X = torch.tensor([[[[1.0, 0.0]]]], dtype=torch.float64)
"""The sample of ``ONE``."""
TWO_LAYER = "tests.support.by_hand.two_layer"
IDENTITIES = "tests.support.by_hand.identities"
NORMED = "tests.support.by_hand.normed"
TINY = "rayfl.testing.by_hand.tiny"
DATA = ragged()
SOME = [[0, 1, 2], [1, 3], [0, 2, 3]]
"""Cohorts with a latecomer."""
SETTINGS = {"epochs": 2, "momentum": 0.5, "weight_decay": 1e-3, "clip": 1.0}


def s(t: float) -> float:
    """The logistic function."""
    return 1 / (1 + math.exp(-t))


q = s(-1)
"""After one step client 0 of ``PAIR`` is at W = (1/2, 0), where its gradient is (-q, 0)."""


def assert_close(found: torch.Tensor, expected: Any, tolerance: float = 1e-12) -> None:
    """Compare numbers of any type with a tensor or a list."""
    expected = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


def assert_row(weight: torch.Tensor, first: list[float]) -> None:
    """Compare a matrix whose second row is minus the first."""
    assert_close(weight, [first, [-v for v in first]])


def head(params: Params) -> torch.Tensor:
    return params["head.weight"]


def body(params: Params) -> torch.Tensor:
    return params["conv.1.weight"]
