"""Nets by import path: classes and functions of the user's own, and those of other packages."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, get_type_hints

from torch import nn

from rayfl.arguments import described, shown
from rayfl.errors import BadCode, BadValue, Missing, Unknown, UserError
from rayfl.imports import named
from rayfl.nets.base import Architecture
from rayfl.nets.split import Shape, SplitNet
from rayfl.settings import class_names
from rayfl.shown import did_you_mean

_FETCHED = ("weights", "pretrained")
"""What the arguments begin with that have torchvision and others fetch weights."""


SHAPE_AND_CLASSES = (
    "it must take the shape of an input, such as (channels, height, width), and the number of classes"
)


class Module(Architecture):
    """Any ``nn.Module`` that ends in a linear layer, of a class or a function by import path.

    ``--net torchvision.models.resnet18`` is short for it where no other option is needed. What the class or
    function takes of ``shape``, ``classes`` and ``num_classes`` it gets. A function that does not say by an
    annotation what it returns is called with shape and classes.
    """

    path: str
    """Import path ``module.name`` of the class or function."""
    head: str = ""
    """Name of the last linear layer, such as ``classifier.1``; by default it is found."""
    arguments: dict[str, Any] | None = None
    """Further arguments by name, such as ``{width_mult: 0.5}``."""

    def __post_init__(self) -> None:
        for name, value in (self.arguments or {}).items():
            if not _is_plain(value):
                raise BadValue(
                    f"net.arguments.{name}",
                    f"is {shown(value)}: it must be a number, a text, a truth value or a list of these; for "
                    "anything else write a function of your own that returns the net",
                )
            if name.startswith(_FETCHED) and value:
                raise BadValue(
                    f"net.arguments.{name}",
                    f"is {shown(value)}: these weights would be fetched from a network, and rayfl downloads "
                    "nothing. Leave it out; ResNet18, MobileNetV2, EfficientNetB0 and DenseNet121 have "
                    "pretrained=True for files at hand, and a function of yours may read one",
                )

    def __str__(self) -> str:
        """Return the import path, where there is no other option."""
        return described(self) if self.head or self.arguments else self.path

    def build(self, shape: Shape, classes: int) -> nn.Module:
        """Call the class or function; what it returns need not be an ``nn.Module``."""
        function = self._function()
        positional, by_name = self._facts(function, shape, classes)
        called = self.path.rpartition(".")[2]
        try:
            found: nn.Module = function(*positional, **by_name)
        except TypeError as error:
            what, hint = ", ".join(by_name), "give what else it needs as net.arguments, see --net.help Module"
            if positional:
                what, hint = "shape, classes", SHAPE_AND_CLASSES
            raise BadCode("net", f"{self}: calling {called}({what}) failed ({error}); {hint}") from error
        return found

    def _function(self) -> Callable[..., Any]:
        """Return the class or function that the path names."""
        path = self.path
        module_name, _, name = path.rpartition(".")
        if not all(part.isidentifier() for part in path.split(".")) or not module_name:
            raise Unknown("net", _no_net(path))
        try:
            function = named(path)
        except UserError as error:
            raise type(error)("net", f"is {error}") from None
        except ImportError as error:
            raise Missing("net", f"{path}: cannot import {module_name!r} from sys.path ({error})") from error
        except AttributeError as error:
            raise Unknown("net", f"{path}: module {module_name!r} has no {name!r}") from error
        if not callable(function):
            raise BadValue("net", f"{path}: {name!r} is not a class or function that makes a torch.nn.Module")
        promised = _promised(function)
        if isinstance(promised, type) and not issubclass(nn.Module, promised):
            if issubclass(promised, Architecture):
                raise BadValue("net", f"{path} is a text: write the net itself, {name}()")
            if not issubclass(promised, nn.Module):
                raise BadCode("net", f"{path}: it returns a {promised.__name__}, not a torch.nn.Module")
        return function

    def _facts(
        self, function: Callable[..., Any], shape: Shape, classes: int
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments that the class or function is called with, by place and by name.

        Only what says that it makes an ``nn.Module`` gets others than shape and classes: a configuration
        must not be able to call functions of any kind.
        """
        arguments, facts = self.arguments or {}, {"shape": shape, "classes": classes, "num_classes": classes}
        promised = _promised(function)
        if not (isinstance(promised, type) and issubclass(promised, nn.Module)):
            if arguments:
                raise BadCode(
                    "net",
                    f"{self}: a function that takes arguments must say that it returns a net, as in `def "
                    f"{self.path.rpartition('.')[2]}(...) -> torch.nn.Module`",
                )
            return (shape, classes), {}
        try:
            signature = inspect.signature(function)
        except ValueError:  # it is not written in Python
            return (shape, classes), {}
        parameters = signature.parameters.values()
        takes = {p.name for p in parameters if p.kind is not p.VAR_KEYWORD}
        if not isinstance(function, type) and any(p.kind is p.VAR_KEYWORD for p in parameters):
            takes.add("num_classes")  # as torchvision's functions do, which hand it on
        by_name = {name: value for name, value in facts.items() if name in takes}
        by_name |= {p.name: None for p in parameters if p.name.startswith(_FETCHED) and p.default}
        by_name |= arguments
        foreign = isinstance(function, type) and not issubclass(function, SplitNet)  # of any arguments
        if not (foreign or arguments or _binds(signature, **by_name)) and _binds(signature, shape, classes):
            return (shape, classes), {}
        return (), by_name


def _binds(signature: inspect.Signature, *positional: Any, **by_name: Any) -> bool:
    """Say whether something can be called like this."""
    try:
        signature.bind(*positional, **by_name)
    except TypeError:
        return False
    return True


def _is_plain(value: Any) -> bool:
    """Say whether a value is one that a configuration holds."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, Mapping):
        return all(isinstance(key, str) for key in value) and all(map(_is_plain, value.values()))
    return value is None or isinstance(value, bool | int | float | str)


def _no_net(text: str) -> str:
    names = class_names(Architecture)
    if text in names:
        return f"is the text {text!r}: write the net itself, {text}() of rayfl.nets"
    return (
        f": there is no net {text!r}{did_you_mean(text, names)} Nets: {', '.join(names)}; or the import path "
        "of a class or function that makes a torch.nn.Module"
    )


def _promised(function: Callable[..., Any]) -> Any:
    """Return the type that comes from a call, as far as that can be told without one; else None."""
    if isinstance(function, type):
        return function
    try:
        return get_type_hints(function.func if isinstance(function, partial) else function).get("return")
    except Exception:  # whatever its annotations raise
        return None
