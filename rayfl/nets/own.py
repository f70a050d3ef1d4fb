"""Nets as a run asks for them: rayfl's, a class of the user's own, or a function of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, get_type_hints

import torch
from torch import Tensor

from rayfl.errors import UserError
from rayfl.imports import named
from rayfl.nets.base import Architecture, ImageArchitecture
from rayfl.nets.split import Shape, SplitNet
from rayfl.settings import class_names
from rayfl.shown import did_you_mean


def build(
    net: Architecture | str,
    shape: Shape = (3, 32, 32),
    classes: int = 10,
    like: Tensor | None = None,
) -> SplitNet:
    """Build a net that fits the data, with PyTorch's random initial weights; the caller seeds them.

    Args:
        net: the net, or the import path ``module.function`` of a function ``(shape, classes) -> SplitNet``.
        shape: of one input, such as (channels, height, width).
        classes: number of classes, at least 2.
        like: [2, *shape], two inputs to try the net with; zeros if not given. Token ids are int64, and the
            largest of the data is among them.
    """
    if not shape or min(shape) < 1:
        raise UserError(f"a net takes inputs of a shape whose numbers are at least 1; got {shape}")
    if classes < 2:
        raise UserError(f"a net needs at least 2 classes, got {classes}")
    like = torch.zeros(2, *shape) if like is None else like
    if isinstance(net, ImageArchitecture):
        _check_images(net, shape, like)
        if type(net).__module__.startswith("rayfl."):
            return net.build(shape, classes)
    make = _function(net) if isinstance(net, str) else net.build
    called = net.rpartition(".")[2] if isinstance(net, str) else "build"
    try:
        built = make(shape, classes)
    except TypeError as error:
        raise UserError(
            f"net {net}: calling {called}(shape, classes) failed ({error}); "
            "it must take the shape of an input, such as (channels, height, width), and the number of classes"
        ) from error
    _check_fits(built, str(net), classes, like)
    return built


def _function(path: str) -> Callable[[Shape, int], Any]:
    """Return the function of the user's own at an import path."""
    module_name, _, name = path.rpartition(".")
    if not all(part.isidentifier() for part in path.split(".")) or not module_name:
        raise UserError(_no_net(path))
    try:
        function = named(path)
    except UserError as error:
        raise UserError(f"net is {error}") from None
    except ImportError as error:
        raise UserError(
            f"net {path}: cannot import {module_name!r} ({error}); it must be on Python's path"
        ) from error
    except AttributeError as error:
        raise UserError(f"net {path}: module {module_name!r} has no {name!r}") from error
    if not callable(function):
        raise UserError(f"net {path}: {name!r} is not a function (shape, classes) -> SplitNet")
    promised = _promised(function)
    if isinstance(promised, type) and not issubclass(SplitNet, promised):
        if issubclass(promised, Architecture):
            raise UserError(f"net {path} is a text: write the net itself, {name}()")
        if not issubclass(promised, SplitNet):
            raise UserError(f"net {path}: it returns a {promised.__name__}, not a rayfl.nets.SplitNet")
    return function


def _no_net(text: str) -> str:
    names = class_names(Architecture)
    if text in names:
        return f"net is the text {text!r}: write the net itself, {text}() of rayfl.nets"
    return (
        f"there is no net {text!r}{did_you_mean(text, names)} Nets: {', '.join(names)}; or the import path "
        "of a class of your own, or of a function (shape, classes) -> SplitNet"
    )


def _promised(function: Callable[..., Any]) -> Any:
    """Return the type that comes from a call, as far as that can be told without one; else None."""
    if isinstance(function, type):
        return function
    try:
        return get_type_hints(function.func if isinstance(function, partial) else function).get("return")
    except Exception:  # whatever its annotations raise
        return None


def _check_images(net: Architecture, shape: Shape, like: Tensor) -> None:
    """Refuse inputs that are no images."""
    if len(shape) != 3 or not like.is_floating_point():
        raise UserError(
            f"net {net} takes images of (channels, height, width), and the data have {_kind(like)}: choose "
            "another net, see docs/nets.md"
        )


def _kind(like: Tensor) -> str:
    """Name inputs [2, ...] like these."""
    kind = "inputs" if like.is_floating_point() else "token ids"
    return f"{kind} of shape {tuple(like.shape[1:])}"


def _check_fits(net: Any, name: str, classes: int, like: Tensor) -> None:
    """Send two inputs through a net and see that one score per class comes back."""
    if not isinstance(net, SplitNet):
        raise UserError(f"net {name}: it returns a {type(net).__name__}, not a rayfl.nets.SplitNet")
    net.eval()  # neither trains running statistics nor draws dropout
    try:
        with torch.no_grad():
            scores = net(like.float() if like.is_floating_point() else like)
    except IndexError as error:
        largest = "" if like.is_floating_point() else f" up to {int(like.max())}"
        raise UserError(f"net {name} does not take {_kind(like)}{largest}: {error}") from error
    except (RuntimeError, ValueError) as error:
        raise UserError(f"net {name} does not take {_kind(like)}: {error}") from error
    net.train()
    if tuple(scores.shape) != (2, classes):
        raise UserError(
            f"net {name}: for 2 inputs it returns {tuple(scores.shape)}, not 2 x {classes} scores"
        )
