"""Nets as a run asks for them: rayfl's, a class of the user's own, or any module by import path."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rayfl.errors import UserError
from rayfl.imports import of_rayfl
from rayfl.nets.base import Architecture
from rayfl.nets.head import check_training, split_at_head, tried
from rayfl.nets.module import SHAPE_AND_CLASSES, Module
from rayfl.nets.split import Shape, SplitNet


def build(
    net: Architecture | str,
    shape: Shape = (3, 32, 32),
    classes: int = 10,
    like: Tensor | None = None,
) -> SplitNet:
    """Build a net that fits the data, with PyTorch's random initial weights; the caller seeds them.

    Args:
        net: the net, or the import path of a class or function, see ``Module``.
        shape: of one input, such as (channels, height, width).
        classes: number of classes, at least 2.
        like: [2, *shape], two inputs to try the net with; zeros if not given. Token ids are int64, and the
            largest of the data is among them.
    """
    if not shape or min(shape) < 1:
        raise UserError(f"a net takes inputs of a shape whose numbers are at least 1; got {shape}")
    if classes < 2:
        raise UserError(f"a net needs at least 2 classes, got {classes}")
    if isinstance(net, str):
        net = Module(path=net)
    like = torch.zeros(2, *shape) if like is None else like
    net.check_inputs(like, classes)
    own = isinstance(net, Module) or not of_rayfl(type(net))
    built = _called(net, shape, classes) if own else net.build(shape, classes)
    if isinstance(built, SplitNet):
        if own:
            _check_scores(built, str(net), classes, like)
        return built
    if not isinstance(built, nn.Module):
        raise UserError(f"net {net}: it returns a {type(built).__name__}, not a torch.nn.Module")
    return split_at_head(built, str(net), classes, like, net.head if isinstance(net, Module) else "")


def _called(net: Architecture, shape: Shape, classes: int) -> Any:
    """Return what a class of the user's own builds."""
    try:
        return net.build(shape, classes)
    except TypeError as error:
        raise UserError(
            f"net {net}: calling build(shape, classes) failed ({error}); {SHAPE_AND_CLASSES}"
        ) from error


def _check_scores(net: SplitNet, name: str, classes: int, like: Tensor) -> None:
    """Send two inputs through a net and see that one score per class comes back."""
    scores = tried(net, name, like)
    if tuple(scores.shape) != (2, classes):
        raise UserError(
            f"net {name}: for 2 inputs it returns {tuple(scores.shape)}, not 2 x {classes} scores"
        )
    check_training(net, name, like)
