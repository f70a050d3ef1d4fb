"""Nets by name, with options in parentheses: ``FDSE-AlexNet(G=4, act=none)``.

The options of a net are the keyword arguments of the function that builds it, and the type of an option is
that of its default.
"""

import difflib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, get_type_hints

import torch

from rayfl.errors import UserError
from rayfl.imports import named
from rayfl.nets.alexnet import alexnet, alexnet_1024, alexnet_nobn1
from rayfl.nets.backbones import densenet121, efficientnet_b0, mobilenet_v2
from rayfl.nets.convolutional import (
    FEDGH_CNNS,
    cnn,
    cnn_b,
    digit_model,
    digit_model_nobn1,
    fedavg_cnn,
    fedgh_cnn,
    lenet,
)
from rayfl.nets.dse import dse_cnn, dse_resnet50, dse_vit, fdse_alexnet
from rayfl.nets.resnet import resnet18, resnet18_7x7, resnet50
from rayfl.nets.split import Shape, SplitNet
from rayfl.nets.vit import vit

NETS: dict[str, Callable[..., SplitNet]] = {
    "lenet": lenet,
    "cnn": cnn,
    "cnn-b": cnn_b,
    "DigitModel": digit_model,
    "DigitModel-nobn1": digit_model_nobn1,
    "FedAvgCNN": fedavg_cnn,
    **{f"CNN-{number}": partial(fedgh_cnn, number) for number in FEDGH_CNNS},
    "ResNet18": resnet18,
    "ResNet18-7x7": resnet18_7x7,
    "MobileNetV2": mobilenet_v2,
    "EfficientNet-B0": efficientnet_b0,
    "DenseNet121": densenet121,
    "AlexNet": alexnet,
    "AlexNet-nobn1": alexnet_nobn1,
    "AlexNet-1024": alexnet_1024,
    "FDSE-AlexNet": fdse_alexnet,
    "DSE-CNN": dse_cnn,
    "ResNet50": resnet50,
    "DSE-ResNet50": dse_resnet50,
    "ViT": vit,
    "DSE-ViT": dse_vit,
}
"""The nets that come with rayfl, by name: functions ``(shape, classes, **options) -> SplitNet``."""


def build(name: str, shape: Shape = (3, 32, 32), classes: int = 10) -> SplitNet:
    """Build a net that fits the data, with PyTorch's random initial weights; the caller seeds them.

    Args:
        name: a name in ``NETS``, or the import path ``module.function`` of a function
            ``(shape, classes, **options) -> SplitNet``; then, where the net has options and they are not to
            be the defaults, these in parentheses: ``NAME(option=value, ...)``.
        shape: channels, height and width of an image, in pixels.
        classes: number of classes, at least 2.

    Raises:
        UserError: no such net, no such option, a value that it cannot have, the images are too small for the
            net, or it does not fit shape and classes.
    """
    if len(shape) != 3 or min(shape) < 1:
        raise UserError(f"a net takes images of (channels, height, width), all at least 1; got {shape}")
    if classes < 2:
        raise UserError(f"a net needs at least 2 classes, got {classes}")
    base, given = _parts(name)
    if base in NETS:
        return NETS[base](shape, classes, **_options(name, NETS[base], given))
    if "." in base and all(part.isidentifier() for part in base.split(".")):
        return _build_users(name, base, given, shape, classes)
    close = {known.lower(): known for known in NETS}
    suggestion = difflib.get_close_matches(base.lower(), close, n=1)
    hint = f"; did you mean {close[suggestion[0]]!r}?" if suggestion else "."
    raise UserError(
        f"there is no net {base!r}{hint} Nets: {', '.join(NETS)}; "
        "or the import path module.function of a function (shape, classes) -> SplitNet"
    )


def _parts(name: str) -> tuple[str, dict[str, str]]:
    """Split ``NAME(option=value, ...)`` into the name and the text of every option."""
    base, opened, rest = name.strip().partition("(")
    given: dict[str, str] = {}
    if not opened:
        return base, given
    pairs = [pair.partition("=") for pair in rest.removesuffix(")").split(",")] if rest != ")" else []
    for option, equals, value in ((o.strip(), e, v.strip()) for o, e, v in pairs):
        if not rest.endswith(")") or not (option and equals and value) or option in given:
            raise UserError(
                f"net {name!r}: options are written in parentheses after the name, each of them once: "
                f"{base.strip()}(option=value, option=value)"
            )
        given[option] = value
    return base.strip(), given


def _options(name: str, function: Callable[..., Any], given: Mapping[str, str]) -> dict[str, Any]:
    """Return the options that a name gives as arguments of the function that builds the net."""
    if not given:
        return {}
    parameters = [*inspect.signature(function).parameters.values()][2:]  # after shape and classes
    defaults = {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}
    return {option: _value(name, option, text, defaults) for option, text in given.items()}


def _value(name: str, option: str, text: str, defaults: Mapping[str, Any]) -> Any:
    """Return the value of an option as the type of its default."""
    if option not in defaults:
        known = ", ".join(f"{key}={value}" for key, value in defaults.items())
        raise UserError(
            f"net {name!r} has no option {option!r}; "
            + (f"its options and their defaults: {known}" if known else "it has no options")
        )
    kind = type(defaults[option])
    kinds = {bool: "True or False", int: "a whole number", float: "a number"}
    try:
        return {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (KeyError, TypeError, ValueError):
        what = kinds.get(kind, f"a {kind.__name__}")
        raise UserError(f"net {name!r}: option {option} is {text!r}: it must be {what}") from None


def _build_users(name: str, path: str, given: Mapping[str, str], shape: Shape, classes: int) -> SplitNet:
    """Build a net of the user's own, and see that it fits."""
    module_name, _, function_name = path.rpartition(".")
    try:
        function = named(path)
    except UserError as error:
        raise UserError(f"net is {error}") from None
    except ImportError as error:
        raise UserError(
            f"net {path!r}: cannot import {module_name!r} ({error}); it must be on Python's path"
        ) from error
    except AttributeError as error:
        raise UserError(f"net {path!r}: module {module_name!r} has no {function_name!r}") from error
    if not callable(function):
        raise UserError(f"net {path!r}: {function_name!r} is not a function (shape, classes) -> SplitNet")
    promised = _promised(function)
    if (
        isinstance(promised, type)
        and not issubclass(SplitNet, promised)
        and not issubclass(promised, SplitNet)
    ):
        raise UserError(f"net {path!r}: it returns a {promised.__name__}, not a rayfl.nets.SplitNet")
    options = _options(name, function, given)
    try:
        net = function(shape, classes, **options)
    except TypeError as error:
        raise UserError(
            f"net {path!r}: calling {function_name}(shape, classes) failed ({error}); "
            "it must take the image shape (channels, height, width) and the number of classes"
        ) from error
    if not isinstance(net, SplitNet):
        raise UserError(f"net {path!r}: it returns a {type(net).__name__}, not a rayfl.nets.SplitNet")
    _check_scores(net, path, shape, classes)
    return net


def _promised(function: Callable[..., Any]) -> Any:
    """Return the type that comes from a call, as far as that can be told without one; else None."""
    if isinstance(function, type):
        return function
    try:
        return get_type_hints(function.func if isinstance(function, partial) else function).get("return")
    except Exception:  # whatever its annotations raise
        return None


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
