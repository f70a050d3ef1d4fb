"""Arguments of configurable classes: their types, and checks of values against these."""

from __future__ import annotations

import ast
import inspect
import itertools
import math
import os
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np
from annotated_types import Ge, Gt, Le, Lt
from pydantic import BeforeValidator, ConfigDict, PlainValidator, TypeAdapter, ValidationError

from rayfl.errors import BadCode, BadValue, error_context
from rayfl.system.own_code import is_own
from rayfl.system.text import did_you_mean, short_repr

_CHECKED = ConfigDict(
    arbitrary_types_allowed=True,  # nets, arrays, functions
    strict=True,  # True is not taken for 1, nor "3" for 3
    allow_inf_nan=False,
)
_WORDS: dict[Any, str] = {int: "a whole number", float: "a number", bool: "True or False"}
_BOUNDS = {Gt: ("above", "gt"), Ge: ("at least", "ge"), Lt: ("below", "lt"), Le: ("at most", "le")}
"""Bounds that a number's annotation may have: their words, and the attribute with the limit."""
_OUT = {"greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number"}
"""Pydantic's error types for a number out of its bounds."""


def convert_arguments(cls: type, given: Mapping[str, Any], above: str) -> dict[str, Any]:
    """Return the arguments of a constructor, converted to their types.

    Args:
        cls: the class.
        given: argument -> value.
        above: what configurations call its objects, such as ``method``.

    Raises:
        BadValue: one is of another type, or out of its bounds.
    """
    kinds = arguments_of(cls)
    where = f"{above}." if above else ""
    return {name: convert_value(f"{where}{name}", value, kinds[name]) for name, value in given.items()}


def convert_value(place: str, value: Any, kind: Any) -> Any:
    """Return a value converted to its type: NumPy's numbers to Python's, paths to texts, lists to tuples.

    Args:
        place: the setting, for the message.
        value: any value.
        kind: an annotation; bounds are those of ``annotated_types``.

    Raises:
        BadValue: it is of another type, infinite or NaN, or out of its bounds.
    """
    try:
        with error_context(place=place):
            return _pydantic_adapter(kind).validate_python(value)
    except ValidationError as error:
        wrong = {each["type"] for each in error.errors(include_url=False, include_context=False)}
    bounds = bounds_of(kind) if wrong <= _OUT | {"value_error"} and wrong & _OUT else []
    finite = "finite and " if bounds and "finite_number" in wrong else ""
    wanted = finite + bounds[0] if bounds else "finite" if wrong == {"finite_number"} else describe_type(kind)
    choices = [each for each in get_args(kind) if isinstance(each, str)]
    near = did_you_mean(value, choices).rstrip(".") if isinstance(value, str) else ""
    near += "".join(f" ({mark})" for mark in choices if get_origin(kind) is Annotated)
    if isinstance(value, str) and value[:1] in ("'", '"'):
        near += "; its quotes are part of it here: leave the inner ones out"
    raise BadValue(place, f"is {short_repr(value)}", f"it must be {wanted}{near}")


@cache
def _pydantic_adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(to_pydantic_type(kind), config=_CHECKED)


def to_pydantic_type(kind: Any) -> Any:
    """Return the annotation for pydantic: strict, but with conversions of NumPy's numbers, paths and lists.

    Raises:
        BadCode: it has metadata that is no bound.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if isinstance(kind, str) or kind in (Any, inspect.Parameter.empty):  # a text: for type checkers
        return Any
    if origin is Annotated:
        for mark in inner[1:]:
            if not isinstance(mark, (str, BeforeValidator, *_BOUNDS)):
                raise BadCode(f"{mark!r} is no bound: use at_least, above, at_most or below")
        return Annotated[(to_pydantic_type(inner[0]), *inner[1:])]
    if origin in (Union, UnionType):
        return Union[tuple(map(to_pydantic_type, inner))]  # noqa: UP007  # of any number of types
    if origin is Literal:
        return Annotated[Any, PlainValidator(partial(_one_of, inner))]
    if origin in (list, tuple):
        held = [each if each is ... else to_pydantic_type(each) for each in inner]
        return Annotated[origin[tuple(held)], BeforeValidator(_convert_if(list | tuple, origin))]
    if kind is int:
        return Annotated[int, BeforeValidator(_to_int)]
    if kind in (float, bool):
        return Annotated[kind, BeforeValidator(_to_number)]
    if kind is str:
        return Annotated[str, BeforeValidator(_convert_if(os.PathLike, os.fspath))]
    of_class = isinstance(kind, type) and origin is None and kind.__module__ != "builtins"
    return Annotated[Any, PlainValidator(partial(_require_instance, kind))] if of_class else kind


def _convert_if(kind: Any, convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: convert(value) if isinstance(value, kind) else value


def _require_instance(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise ValueError("it is of another class")
    return value


def _one_of(choices: Sequence[Any], value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        raise ValueError("it is none of these")  # pydantic takes True and 1.0 for 1
    return value


def _to_int(value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("what computes with it has 64 bits")
    return value


def _to_number(value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    too_large = isinstance(value, int | float) and abs(value) > float(np.finfo(np.float32).max)
    return math.inf if too_large else value  # float32 has no larger number


def bounds_of(kind: Any) -> list[str]:
    """Return the bounds of a number's type in words, such as ``at least 0``, with the texts beside them."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return [words for each in inner for words in bounds_of(each)]
    if origin is not Annotated:
        return []
    found = [(mark, *_BOUNDS[type(mark)]) for mark in inner if type(mark) in _BOUNDS]
    words = [f"{name} {getattr(mark, limit):,}" for mark, name, limit in found]
    return [" and ".join(words) + "".join(f" ({text})" for text in inner if isinstance(text, str))]


@cache
def arguments_of(cls: type) -> dict[str, Any]:
    """Return the arguments of a class and their types; Any for ``*args`` and ``**kwargs``."""
    typed = getattr(cls.__init__, "__wrapped__", None)  # type: ignore[misc]  # what help() shows has no types
    made_by = typed.__get__(cls) if typed else cls
    try:
        parameters = inspect.signature(made_by, eval_str=True).parameters
    except NameError:  # a name that only type checkers import
        parameters = inspect.signature(made_by).parameters
    return {name: Any if "VAR_" in p.kind.name else p.annotation for name, p in parameters.items()}


def defaults_of(cls: type) -> dict[str, Any]:
    """Return the default of every argument of a class; ``inspect.Parameter.empty`` for required ones."""
    made = fields(cls) if is_dataclass(cls) else ()
    found = {p.name: p.default for p in inspect.signature(cls).parameters.values()}
    return found | {f.name: f.default_factory() for f in made if f.default_factory is not MISSING}


def argument_texts(thing: Any) -> dict[str, str]:
    """Return what a docstring says of each argument, as it stands in the source."""
    listed = inspect.cleandoc(str(vars(thing).get("__doc__") or thing.__doc__)).partition("Args:")[2]
    found = re.findall(r"^    (\w+): (?!see )(.*(?:\n        .*)*)", listed, re.M)
    return {name: re.sub(r":\w+:`(.*?)`", r"\1", text) for name, text in found}


def texts_of(cls: type) -> dict[str, str]:
    """Return the text below each option in the source of a class and of its base classes, or in its Args."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        found |= dict(_option_texts(base)) or argument_texts(base)
    return {name: " ".join(text.split()) for name, text in found.items()}


def _option_texts(cls: type) -> Iterator[tuple[str, str]]:
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, TypeError, SyntaxError, ValueError):  # the source is not available
        return
    body = tree.body if isinstance(tree, ast.ClassDef) else []
    for field, text in itertools.pairwise(body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                yield name, words


class DocWithOptions(str):
    """The docstring of a class, to which its options are added when somebody asks for it."""

    def __get__(self, thing: object, cls: type) -> str:
        """Return the docstring, with ``Args`` at its end if there are options and it does not have them."""
        text, texts, options = inspect.cleandoc(self), texts_of(cls), []
        for (name, kind), default in zip(arguments_of(cls).items(), defaults_of(cls).values()):
            facts = [describe_type(kind), *filter(None, bounds_of(kind))]
            facts += [] if default is inspect.Parameter.empty else [f"default: {default!r}"]
            said = f"{name}: {texts.get(name, '')} ({'; '.join(facts)})"
            options.append(textwrap.fill(said, 100, initial_indent="    ", subsequent_indent=" " * 8))
        return "\n".join([text, "", "Args:", *options]) if options and "Args:" not in text else text


def union_members(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the type itself if it is no union; without ``Annotated``."""
    if get_origin(kind) is Annotated:
        return union_members(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return tuple(each for one in get_args(kind) for each in union_members(one))
    return (kind,)


def describe_type(kind: Any) -> str:
    """Return in words which values a type takes."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return describe_type(inner[0])
    if origin in (Union, UnionType):
        return " or ".join(describe_type(each) for each in inner)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if kind in _WORDS:
        return _WORDS[kind]
    if kind in (str, NoneType):
        return "a text" if kind is str else "None"
    if origin is list:
        return f"a list in brackets, of which each is {describe_type(inner[0])}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        values = "" if inner[1] is Any else f", where each value is {describe_type(inner[1])}"
        return f"a mapping such as {{name: value}}{values}"
    if origin:
        return (
            f"a {origin.__name__} of ({', '.join(describe_type(each) for each in inner if each is not ...)})"
        )
    return f"an object of class {getattr(kind, '__name__', kind)}"


def describe_object(thing: object) -> str:
    """Return an object as a short text: its class, and the arguments that differ from their defaults.

    A class of the user's own is named by its import path.
    """
    cls = type(thing)
    name = f"{cls.__module__}.{cls.__qualname__}" if is_own(cls) else cls.__name__
    own_arguments = ", ".join(f"{key}={value}" for key, value in changed_arguments(thing).items())
    return f"{name}({own_arguments})" if own_arguments else name


def changed_arguments(thing: object) -> dict[str, Any]:
    """Return the arguments of an object that differ from the defaults of its class, by name."""
    defaults = defaults_of(type(thing))
    values = {name: getattr(thing, name, default) for name, default in defaults.items()}
    return {name: value for name, value in values.items() if not _is_equal(value, defaults[name])}


def _is_equal(value: Any, default: Any) -> bool:
    try:
        return bool(value == default)
    except Exception:  # arrays raise it
        return False
