"""Settings are declared once, with name, type, bounds, default and help of each option.

Each annotation of a subclass of :class:`Settings` is an option, and the text below it is its help::

    class FedProx(Method):
        mu: Annotated[float, at_least(0)] = 0.01
        \"\"\"Weight of the proximal term; 0 is FedAvg.\"\"\"

``FedProx(mu=0.1)``, ``--method.mu 0.1``, ``--method.help FedProx`` and config.yaml follow from that. A plain
``mu = 0.5`` in a subclass of ``FedProx`` is the new default of this option.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABCMeta
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, dataclass_transform

from annotated_types import Ge, Gt, Le, Lt

from rayfl.errors import BadCode, Missing, Unknown, UserError
from rayfl.settings.arguments import (
    DocWithOptions,
    changed_arguments,
    convert_arguments,
    describe_object,
    to_pydantic_type,
)
from rayfl.system.own_code import is_own, keep_sources
from rayfl.system.text import did_you_mean, one_line, short_repr

at_least = Ge
"""Bounds a number from below, as in ``Annotated[float, at_least(0)]``. A text beside it is added to messages,
as in ``Annotated[int, at_least(0), "0: never"]``.
"""
above = Gt
"""Bounds a number from below, without the limit itself."""
at_most = Le
"""Bounds a number from above."""
below = Lt
"""Bounds a number from above, without the limit itself."""


class DisplayMixin:
    """Gives a class a short ``repr``; a class says what is in it."""

    def _repr_line_(self) -> Mapping[str, Any]:
        """Return what the line has: the arguments that differ from their defaults."""
        return changed_arguments(self)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({', '.join(f'{k}={_brief(v)}' for k, v in self._repr_line_().items())})"
        )


class UnquotedText(str):
    """A text that is shown as it is, without quotes."""


def _brief(value: Any) -> str:
    """Return a value in one line that is not too long; of arrays the shape."""
    if isinstance(value, UnquotedText):
        return one_line(value)
    if not isinstance(value, DisplayMixin) and hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{type(value).__name__} {list(value.shape)}" if value.shape else short_repr(value.item())
    if isinstance(value, list | tuple) and any(hasattr(each, "shape") for each in value):
        return f"[{', '.join(map(_brief, value[:3]))}{', ...' if len(value) > 3 else ''}]"
    return one_line(short_repr(value))


class _Documented(ABCMeta):
    __doc__ = vars(type)["__doc__"]  # not that of ABCMeta, which would hide those of classes from help()


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(field,))
class Settings(DisplayMixin, metaclass=_Documented):
    """Base of the classes that a configuration names: methods, data sets, partitions, nets, engines,
    protocols.

    Every subclass is a keyword-only, frozen dataclass: ``dataclasses.replace`` makes another object. Values
    of other types or outside of their bounds are refused before an object is made; what several settings
    forbid together belongs into ``__post_init__``. Attributes without an annotation are no settings, but new
    defaults where a base class has a setting of that name; those that belong to every method, data set and
    so on are none either.

    A class may have an ``__init__`` instead, if it keeps every argument under the argument's name.

    Examples:
        >>> from rayfl.methods import FedProx
        >>> FedProx(mu=0.1)
        FedProx(mu=0.1)
        >>> FedProx(mu=-1)
        Traceback (most recent call last):
        rayfl.errors.BadValue: method.mu is -1: it must be at least 0
    """

    _unrecorded: ClassVar[tuple[str, ...]] = ()  # options that no file can hold; another one replaces them
    _fixed: ClassVar[bool] = False  # True of the only class of its place, which configurations do not name
    _place: ClassVar[str]  # what configurations call objects of the class, such as "method"

    def __init_subclass__(cls, place: str | None = None, **options: Any) -> None:
        text = cls.__doc__
        super().__init_subclass__(**options)
        if is_own(cls):
            keep_sources()
        if place is not None:
            cls._place = place
        owner = next(base for base in cls.__mro__ if "__init__" in vars(base))
        if owner is object or hasattr(vars(owner)["__init__"], "of_settings"):
            cls.__annotations__ = _resolve_annotations(cls)
            if owner is not object:
                _take_defaults(cls)
            dataclass(kw_only=True, eq=False, repr=False, frozen=True)(cls)
            cls.__setattr__ = _refuse_change  # type: ignore[assignment, method-assign]  # with more to say
            cls.__init__ = _with_checks(cls, of_settings=True)  # type: ignore[method-assign]
        elif owner is cls:
            cls.__init__ = _with_checks(cls)  # type: ignore[method-assign]
            cls.__setattr__ = object.__setattr__  # type: ignore[method-assign]  # for its __init__
        elif hidden := inspect.signature(vars(owner)["__init__"]).parameters.keys() & vars(cls).keys():
            problem = f"would be no new default, because {owner.__name__} has an __init__ of its own"
            raise BadCode(f"{cls.__name__}.{hidden.pop()}", problem, f"give {cls.__name__} one, too")
        cls.__doc__ = DocWithOptions(text or f"{cls.__name__}.")


def _refuse_change(self: Settings, name: str, value: Any) -> None:
    """Refuse to set an attribute of settings that are made."""
    raise BadCode(
        f"{type(self).__name__}.{name}",
        "is set, and what a configuration names does not change once it is made",
        "dataclasses.replace makes another; what a method has to remember belongs into the states that its "
        "functions return",
    )


def _resolve_annotations(cls: type) -> dict[str, Any]:
    """Return the annotations of a class as types: subclasses in other modules cannot resolve their names."""
    try:
        found = inspect.get_annotations(cls, eval_str=True)
    except NameError:  # a name that only type checkers import
        found = inspect.get_annotations(cls)
    for root in (base for base in cls.__mro__[1:] if "_place" in vars(base)):
        for name in found.keys() & vars(root).keys() - {known.name for known in fields(root)}:
            found[name] = ClassVar
    for kind in found.values():
        to_pydantic_type(kind)  # refuses metadata that is no bound
    return found


def _take_defaults(cls: Any) -> None:
    """Make an attribute without an annotation the new default of the base class's option of that name."""
    for known in fields(cls):
        value = vars(cls).get(known.name, known)
        if known.name not in cls.__annotations__ and value is not known and not hasattr(value, "__get__"):
            cls.__annotations__[known.name] = known.type
            setattr(cls, known.name, field(default=value, metadata={"check": True}))


def _with_checks(cls: Any, of_settings: bool = False) -> Any:
    """Return the constructor of a class with a check of its arguments before it."""
    init: Any = vars(cls)["__init__"]
    signature = inspect.signature(init)
    new_defaults = {f.name: f.default for f in fields(cls) if f.metadata} if of_settings else {}

    @functools.wraps(init)
    def init_with_checks(self: Any, *given: Any, **named: Any) -> None:
        try:
            bound = signature.bind(self, *given, **new_defaults | named)
        except TypeError as error:
            raise _argument_error(cls, signature.parameters, named, error) from None
        own = {name: value for name, value in bound.arguments.items() if name != "self"}
        bound.arguments |= convert_arguments(cls, own, cls._place)
        init(*bound.args, **bound.kwargs)

    shown = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
    init_with_checks.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]  # for help()
    if of_settings:
        init_with_checks.of_settings = True  # type: ignore[attr-defined]
    return init_with_checks


def _argument_error(
    cls: type[Settings],
    known: Mapping[str, inspect.Parameter],
    named: Mapping[str, Any],
    error: TypeError,
) -> UserError:
    """Return the error of the user's for arguments of a constructor that Python has refused."""
    if odd := [name for name in named if name not in known]:
        hint = did_you_mean(odd[0], [name for name in known if name != "self"])
        return Unknown(f"{cls._place}.{odd[0]}".lstrip("."), f"is no option of {cls.__name__}{hint}")
    needed = [
        name for name, each in known.items() if each.default is each.empty and each.kind is each.KEYWORD_ONLY
    ]
    if lacking := [name for name in needed if name not in named]:
        return Missing(f"{cls._place}.{lacking[0]}".lstrip("."), f"is missing: {cls.__name__} needs it")
    return BadCode(cls._place, f"{cls.__name__} cannot be made: {error}")


class Value(Settings):
    """Settings that are equal if their options are equal, with a short text as ``str``."""

    def __eq__(self, other: object) -> bool:
        """Whether the other object is of the same class, with the same options."""
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        """Return the hash of the short text, which equal objects share."""
        return hash(str(self))

    def __str__(self) -> str:
        """Return the class, and the options that differ from its defaults."""
        return describe_object(self)


def classes_by_name(module: Mapping[str, Any], base: type) -> dict[str, Any]:
    """Return the classes of a kind that a module has defined or imported, by name and in its order.

    Args:
        module: its ``globals()``.
        base: their base class, which is left out, as are abstract classes.
    """
    return {
        name: thing
        for name, thing in module.items()
        if isinstance(thing, type)
        and issubclass(thing, base)
        and thing is not base
        and not inspect.isabstract(thing)
    }


def class_names(base: Any) -> list[str]:
    """Return the names of :func:`own_classes`, in alphabetical order."""
    return sorted((cls.__name__ for cls in own_classes(base)), key=str.lower)


def own_classes(base: Any) -> list[type]:
    """Return rayfl's own classes that a configuration may name where it takes a base class.

    Args:
        base: the base class; there are none for anything else than a class of settings.
    """
    if not (isinstance(base, type) and issubclass(base, Settings)):
        return []
    found: list[type] = []
    for cls in base.__subclasses__():
        hidden = inspect.isabstract(cls) or cls.__name__.startswith("_")
        if not (hidden or is_own(cls)):
            found.append(cls)
        found += own_classes(cls)
    return found
