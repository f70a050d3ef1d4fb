"""Nets by name."""

import difflib
import importlib
from collections.abc import Callable

import torch

from rayfl.errors import UserError
from rayfl.nets.convolutional import cnn, cnn_b, digit_model, fedavg_cnn, lenet
from rayfl.nets.resnet import resnet18, resnet18_7x7
from rayfl.nets.split import Shape, SplitNet

NETS: dict[str, Callable[[Shape, int], SplitNet]] = {
    "lenet": lenet,
    "cnn": cnn,
    "cnn-b": cnn_b,
    "DigitModel": digit_model,
    "FedAvgCNN": fedavg_cnn,
    "ResNet18": resnet18,
    "ResNet18-7x7": resnet18_7x7,
}
"""The nets that come with rayfl."""


def build(name: str, shape: Shape = (3, 32, 32), classes: int = 10) -> SplitNet:
    """Build a net that fits the data, with PyTorch's random initial weights; the caller seeds them.

    Args:
        name: a name in ``NETS``, or the import path ``module.function`` of a function
            ``(shape, classes) -> SplitNet``.
        shape: channels, height and width of an image, in pixels.
        classes: number of classes, at least 2.

    Raises:
        UserError: no such net, the images are too small for it, or it does not fit shape and classes.
    """
    if len(shape) != 3 or min(shape) < 1:
        raise UserError(f"a net takes images of (channels, height, width), all at least 1; got {shape}")
    if classes < 2:
        raise UserError(f"a net needs at least 2 classes, got {classes}")
    if name in NETS:
        return NETS[name](shape, classes)
    if "." in name:
        return _build_users(name, shape, classes)
    close = {known.lower(): known for known in NETS}
    suggestion = difflib.get_close_matches(name.lower(), close, n=1)
    hint = f"; did you mean {close[suggestion[0]]!r}?" if suggestion else "."
    raise UserError(
        f"there is no net {name!r}{hint} Nets: {', '.join(NETS)}; "
        "or the import path module.function of a function (shape, classes) -> SplitNet"
    )


def _build_users(path: str, shape: Shape, classes: int) -> SplitNet:
    """Build a net of the user's own, and see that it fits."""
    module_name, _, function_name = path.rpartition(".")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except ImportError as error:
        raise UserError(
            f"net {path!r}: cannot import {module_name!r} ({error}); it must be on Python's path"
        ) from error
    except AttributeError as error:
        raise UserError(f"net {path!r}: module {module_name!r} has no {function_name!r}") from error
    if not callable(function):
        raise UserError(f"net {path!r}: {function_name!r} is not a function (shape, classes) -> SplitNet")
    try:
        net = function(shape, classes)
    except TypeError as error:
        raise UserError(
            f"net {path!r}: calling {function_name}(shape, classes) failed ({error}); "
            "it must take the image shape (channels, height, width) and the number of classes"
        ) from error
    if not isinstance(net, SplitNet):
        raise UserError(f"net {path!r}: it returns a {type(net).__name__}, not a rayfl.nets.SplitNet")
    _check_scores(net, path, shape, classes)
    return net


def _check_scores(net: SplitNet, path: str, shape: Shape, classes: int) -> None:
    """Send two black images through a user's net and see that one score per class comes back."""
    net.eval()  # neither trains running statistics nor draws dropout
    try:
        with torch.no_grad():
            scores = net(torch.zeros(2, *shape))
    except (RuntimeError, ValueError) as error:
        raise UserError(f"net {path!r} does not take images of shape {shape}: {error}") from error
    net.train()
    if tuple(scores.shape) != (2, classes):
        raise UserError(
            f"net {path!r}: for 2 images it returns {tuple(scores.shape)}, not 2 x {classes} scores"
        )
