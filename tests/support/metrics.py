"""Metrics of one's own, right and wrong ones."""

import itertools

import numpy as np
import torch
from torch import Tensor

COUNT = itertools.count()
CONSTANT = 3


def brier(scores: Tensor, labels: Tensor) -> float:
    """Mean squared distance of the probabilities from the labels' corners."""
    p = scores.double().softmax(1)
    p[range(len(labels)), labels] -= 1
    return float((p**2).sum(1).mean())


def scaled(scores: Tensor, labels: Tensor) -> np.float64:
    """Share of correct ones, as a number of NumPy, after spoiling what it has got."""
    right = np.float64((scores.argmax(1) == labels).double().mean())
    scores.zero_()
    return right


def raises(scores: Tensor, labels: Tensor) -> float:
    """Stop."""
    raise ZeroDivisionError("no idea")


def of_several_classes(scores: Tensor, labels: Tensor) -> float:
    """Take no labels of one class."""
    if len(labels.unique()) < 2:
        raise ValueError("only one class")
    return 1.0


def leaves(scores: Tensor, labels: Tensor) -> float:
    """End the process."""
    raise SystemExit(3)


def vector(scores: Tensor, labels: Tensor) -> Tensor:
    """Return more than a number."""
    return scores.amax(1)


def text(scores: Tensor, labels: Tensor) -> str:
    """Return no number."""
    return "0.5"


def remembers(scores: Tensor, labels: Tensor) -> float:
    """Return another number each time."""
    return float(next(COUNT))


def infinite(scores: Tensor, labels: Tensor) -> float:
    """Return what has no mean."""
    return float("inf")


def of_all_classes(scores: Tensor, labels: Tensor) -> float:
    """Return the mean recall of all classes, 0 for those that are not there."""
    right = scores.argmax(1) == labels
    each = [right[labels == c].float().mean().nan_to_num() for c in range(scores.shape[1])]
    return float(torch.stack(each).mean())
