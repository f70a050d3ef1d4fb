"""What a run folder's configuration holds: the federation with all arguments it was made of, as YAML."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable
from dataclasses import is_dataclass
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np
import yaml

from rayfl.errors import UserError


def dump(federation: object) -> str:
    """Return a federation's complete configuration as YAML, which ``rayfl.run --config`` takes.

    Raises:
        UserError: a value is of another type than its argument, or a class does not keep its arguments.
    """
    described = _plain(federation, "")["init_args"]
    del described["output"]
    return yaml.safe_dump(described, sort_keys=False)


def _plain(value: Any, where: str) -> Any:
    """Return a value, and an object with the arguments it was made of, as YAML can hold it."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_plain(v, where) for v in value]
    if isinstance(value, dict):
        return {k: _plain(v, where) for k, v in value.items()}
    cls = type(value)
    if cls.__module__ == "builtins":
        raise UserError(f"{where} is {value!r}, which no configuration can hold: use numbers, texts or lists")
    arguments = {}
    for name, kind in arguments_of(cls).items():
        if not hasattr(value, name):
            raise UserError(
                f"{cls.__name__} does not keep its argument {name!r}: write self.{name} = {name} in its "
                "__init__, so that the run's configuration can be recorded"
            )
        argument, path = getattr(value, name), f"{where}.{name}" if where else name
        if not fits(argument, kind):
            raise UserError(f"{path} is {argument!r}: it must be {_expected(kind)}")
        arguments[name] = _plain(argument, path)
    if is_dataclass(value):
        return arguments
    described: dict[str, Any] = {"class_path": f"{cls.__module__}.{cls.__qualname__}"}
    return described | ({"init_args": arguments} if arguments else {})


def arguments_of(cls: type) -> dict[str, Any]:
    """Return the arguments of a class and their types, as far as they can be told."""
    try:
        parameters = inspect.signature(cls, eval_str=True).parameters
    except NameError:  # a name that only type checkers import
        parameters = inspect.signature(cls).parameters
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)  # of the type each
    return {name: Any if p.kind in several else p.annotation for name, p in parameters.items()}


_NUMBERS: dict[Any, tuple[type, str]] = {
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    bool: (bool, "True or False"),
}


def fits(value: Any, kind: Any) -> bool:
    """Say whether a value is of a type; what containers hold is not looked at."""
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return any(fits(value, each) for each in get_args(kind))
    if origin is Literal:
        return value in get_args(kind)
    if kind in _NUMBERS:
        return isinstance(value, _NUMBERS[kind][0])
    if kind is str:
        return isinstance(value, str | os.PathLike)
    if origin is not None:
        return isinstance(value, Iterable) or not issubclass(origin, Iterable)
    try:
        return not isinstance(kind, type) or kind is inspect.Parameter.empty or isinstance(value, kind)
    except TypeError:  # a type that instances cannot be told by
        return True


def _expected(kind: Any) -> str:
    """Say what a value should be."""
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(_expected(each) for each in get_args(kind))
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    if kind in _NUMBERS:
        return _NUMBERS[kind][1]
    if kind in (str, NoneType):
        return "a text" if kind is str else "None"
    origin = get_origin(kind)
    return f"a {origin.__name__}" if origin else f"an object of class {kind.__name__}"
