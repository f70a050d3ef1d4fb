"""Arguments of classes that can be configured: their types, and whether values are of them."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np

from rayfl.errors import BadValue
from rayfl.imports import of_rayfl

_NUMBERS: dict[Any, tuple[type, str]] = {
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    bool: (bool, "True or False"),
}


@dataclass(frozen=True)
class Bound:
    """What a number of an option must be beyond its type: ``Annotated[float, at_least(0)]``.

    A text beside it, as in ``Annotated[int, at_least(0), "0: never"]``, is added to messages.
    """

    words: str
    relation: Callable[[Any, float], bool]
    limit: float

    def __repr__(self) -> str:  # as helps show it
        return self.words

    def holds(self, value: Any) -> bool:
        """Say whether a number is finite and within the bound."""
        return math.isfinite(value) and self.relation(value, self.limit)


def check_arguments(cls: type, given: Mapping[str, Any], above: str) -> None:
    """Refuse arguments of other types than those of a constructor, or out of their bounds.

    Args:
        cls: the class.
        given: argument -> value.
        above: what configurations call its objects, such as ``method``.

    Raises:
        UserError: a value is.
    """
    for name, kind in arguments_of(cls).items():
        if name in given:
            check_type(f"{above}.{name}", given[name], kind)


def check_type(name: str, value: Any, kind: Any) -> None:
    """Refuse a value of another type, or out of its bounds.

    Raises:
        UserError: it is.
    """
    if not fits(value, kind):
        raise BadValue(name, f"is {shown(value)}: it must be {expected(kind)}")
    for bounds, note in _bounds(kind):
        if isinstance(value, Real) and not all(bound.holds(value) for bound in bounds):
            finite = [] if math.isfinite(value) else ["finite"]
            words = " and ".join(dict.fromkeys([*finite, *(bound.words for bound in bounds)]))
            raise BadValue(name, f"is {shown(value)}: it must be {words}{note}")


def _bounds(kind: Any) -> Iterator[tuple[list[Bound], str]]:
    """Yield the bounds of a number's type, with what is to be added to their words."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        for each in inner:
            yield from _bounds(each)
    if origin is Annotated and (bounds := [x for x in inner if isinstance(x, Bound)]):
        yield bounds, "".join(f" ({text})" for text in inner if isinstance(text, str))


def bounds_of(kind: Any) -> list[str]:
    """Return the bounds of a number's type in words, such as ``at least 0``, with what is added to them."""
    return [f"{' and '.join(bound.words for bound in bounds)}{note}" for bounds, note in _bounds(kind)]


def arguments_of(cls: type) -> dict[str, Any]:
    """Return the arguments of a class and their types, as far as they can be told."""
    try:
        parameters = inspect.signature(cls, eval_str=True).parameters
    except NameError:  # a name that only type checkers import
        parameters = inspect.signature(cls).parameters
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)  # of the type each
    return {name: Any if p.kind in several else p.annotation for name, p in parameters.items()}


def fits(value: Any, kind: Any) -> bool:
    """Say whether a value is of a type, with all that a list, tuple or mapping holds."""
    if isinstance(value, np.generic):
        value = value.item()
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return fits(value, inner[0])
    if origin in (Union, UnionType):
        return any(fits(value, each) for each in inner)
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in inner)
    if kind is int and isinstance(value, int) and not -(2**63) <= value < 2**63:
        return False  # what computes with it has 64 bits
    if kind in _NUMBERS:
        return isinstance(value, _NUMBERS[kind][0]) and (kind is bool or not isinstance(value, bool))
    if kind is str:
        return isinstance(value, str | os.PathLike)
    if origin is tuple:
        kinds = [inner[0]] * len(value) if isinstance(value, Sequence) and inner[1:] == (...,) else inner
        return _is_list(value) and len(value) == len(kinds) and all(map(fits, value, kinds))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        held = value.items() if isinstance(value, Mapping) else ()
        return isinstance(value, Mapping) and all(fits(k, inner[0]) and fits(v, inner[1]) for k, v in held)
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return _is_list(value) and all(fits(each, inner[0]) for each in value)
    try:
        return not isinstance(kind, type) or kind is inspect.Parameter.empty or isinstance(value, kind)
    except TypeError:  # a type that instances cannot be told by
        return True


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def expected(kind: Any) -> str:
    """Say what a value should be."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return expected(inner[0])
    if origin in (Union, UnionType):
        return " or ".join(expected(each) for each in inner)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if kind in _NUMBERS:
        return _NUMBERS[kind][1]
    if kind in (str, NoneType):
        return "a text" if kind is str else "None"
    if origin is list:
        return f"a list in brackets, of which each is {expected(inner[0])}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        values = "" if inner[1] is Any else f", where each value is {expected(inner[1])}"
        return f"a mapping such as {{name: value}}{values}"
    if origin:
        return f"a {origin.__name__} of ({', '.join(expected(each) for each in inner if each is not ...)})"
    return f"an object of class {getattr(kind, '__name__', kind)}"


def shown(value: Any) -> str:
    """Return a value for a message, in one line that is not too long."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # whose representation does not work
        text = f"an object of class {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:60]}...{text[-15:]}"


def described(thing: object) -> str:
    """Return an object as a short text: its class, and the arguments that differ from their defaults.

    A class of the user's own stands there with its import path.
    """
    cls = type(thing)
    name = cls.__name__ if of_rayfl(cls) else f"{cls.__module__}.{cls.__qualname__}"
    own_arguments = ", ".join(f"{key}={value}" for key, value in changed(thing).items())
    return f"{name}({own_arguments})" if own_arguments else name


def changed(thing: object) -> dict[str, Any]:
    """Return the arguments of an object that differ from the defaults of its class, by name."""
    made = fields(thing) if is_dataclass(thing) else ()
    defaults = {p.name: p.default for p in inspect.signature(type(thing)).parameters.values()}
    defaults |= {each.name: each.default_factory() for each in made if each.default_factory is not MISSING}
    values = {name: getattr(thing, name, default) for name, default in defaults.items()}
    return {name: value for name, value in values.items() if not _same(value, defaults[name])}


def _same(value: Any, default: Any) -> bool:
    try:
        return bool(value == default)
    except Exception:  # of arrays
        return False
