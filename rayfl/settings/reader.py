"""The one reader: it makes a federation from settings by their dotted names.

Command lines, configuration files, tables, sweeps and run folders all give the same mapping: ``method`` names
a class, ``method.mu`` is an option of it. A value may also be a mapping with ``class_path`` and
``init_args``, as in ``config.yaml``. The annotations of the classes are the types of the values.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin

import yaml

from rayfl.errors import BadValue, Conflict, Missing, Unknown, UserError
from rayfl.settings import Settings
from rayfl.settings.arguments import arguments_of, checked_arguments, defaults_of, members
from rayfl.settings.base import own_classes
from rayfl.settings.description import class_name
from rayfl.settings.imports import named
from rayfl.settings.yaml_file import OutOfBounds, parse_yaml, read_mapping
from rayfl.system.text import closest, did_you_mean, shown

T = TypeVar("T")
Flat = dict[str, Any]
"""Settings by their dotted names."""

GROUPS = ("training", "finetune")
"""Settings whose options belong to one fixed class, which configurations do not name."""
_ABSENT = object()


class Word(str):
    """The raw text of a value from the command line; its setting decides how it is parsed."""


def read(cls: type[T], settings: Mapping[str, Any], place: str = "") -> T:
    """Make an object from settings.

    Args:
        cls: its class.
        settings: by their names, dotted for options of a part; missing ones have their defaults.
        place: the object's own name, such as ``data.partition``.

    Raises:
        UserError: a name is unknown, a value is of another type or out of its bounds, something is missing,
            or settings exclude each other.
    """
    if not isinstance(settings, Mapping):
        raise BadValue(place or cls.__name__, f"is {shown(settings)}", "it must map options to values")
    kinds, grouped = arguments_of(cls), _grouped(settings, place)  # type: ignore[arg-type]  # a class can be hashed
    for name in grouped:
        if name not in kinds:
            raise _unknown(cls, place, name, kinds)
    found = {name: _part(cls, name, kinds[name], own, _below(place, name)) for name, own in grouped.items()}
    if not issubclass(cls, Settings):  # Settings check this themselves
        needed = [name for name, each in defaults_of(cls).items() if each is inspect.Parameter.empty]
        if lacking := [name for name in needed if name not in found]:
            raise Missing(_below(place, lacking[0]), "is missing")
        found = checked_arguments(cls, found, place)
    own = getattr(cls, "_place", place)
    try:
        return cls(**found)
    except UserError as error:
        if own == place or not error.place.startswith(own):
            raise
        there = place + error.place.removeprefix(own)  # ``method.of.mu``
        raise error.within(place=there) from error.__cause__


def _grouped(settings: Mapping[str, Any], place: str) -> dict[str, Flat]:
    """Return name -> its value, under an empty name, and its options."""
    found: dict[str, Flat] = {}
    for name, value in settings.items():
        if not all(str(name).split(".")):
            raise Unknown(_below(place, str(name)) or "an empty name", "is no option")
        head, _, rest = str(name).partition(".")
        found.setdefault(head, {})[rest] = value
    return found


def _below(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _part(cls: type, name: str, kind: Any, given: Flat, place: str) -> Any:
    """Return one argument: a value, or an object of the named or default class."""
    base = part_of(kind)
    value = given.pop("", _ABSENT)
    if isinstance(value, Word):
        value = typed(value, kind, place)
    if base is None:
        if given:
            below = _below(place, next(iter(given)))
            if value is _ABSENT:
                raise Unknown(below, f"is no option; did you mean {place}?")
            raise Conflict(below, f"is no option: {place} is {shown(value)}")
        return value
    if isinstance(value, list) and any(get_origin(each) is list for each in members(kind)):
        if given:
            raise Conflict(place, f"is a list, and {_below(place, next(iter(given)))} is given beside it")
        inner = next(get_args(each)[0] for each in members(kind) if get_origin(each) is list)
        return [_part(cls, name, inner, {"": each}, place) for each in value]
    if isinstance(value, Mapping):
        value, given = _opened(value, given, place)
    if value is None and NoneType in members(kind) and not given:
        return None
    if value is _ABSENT or (value is None and NoneType in members(kind)):
        made: Any = _default_class(cls, name, base, place)
    elif isinstance(value, str):
        made = _named(base, value, str in members(kind), place)
    else:
        made = value
    if not isinstance(made, type):
        if given:
            raise Conflict(_below(place, next(iter(given))), f"is no option: {place} is {shown(made)}")
        return made
    return read(made, given, place)


def _opened(value: Mapping[Any, Any], given: Flat, place: str) -> tuple[Any, Flat]:
    """Return the class that a mapping names, if any, and the options in it and beside it."""
    if not all(isinstance(key, str) for key in value):
        raise BadValue(place, f"is {shown(value)}", "it must map options to values")
    if "class_path" not in value:
        return _ABSENT, {**value, **given}
    options = value.get("init_args", {})
    if not isinstance(options, Mapping):
        raise BadValue(f"{place}.init_args", f"is {shown(options)}", "it must map options to values")
    if not isinstance(value["class_path"], str):
        raise BadValue(f"{place}.class_path", f"is {shown(value['class_path'])}", "it must name a class")
    if beside := value.keys() - {"class_path", "init_args"}:
        raise Conflict(place, f"has {sorted(beside)[0]} beside class_path", "put it below init_args")
    return value["class_path"], {**options, **given}


def _default_class(cls: type, name: str, base: type, place: str) -> type:
    """Return the class of options without a named class: that of the default."""
    default = defaults_of(cls)[name]
    if isinstance(default, base):
        return type(default)
    if inspect.isabstract(base):
        raise BadValue(place, "has options and no class", _choices(base))
    return base


def class_named(base: type, name: str, place: str) -> type:
    """Return the class of a name: one of rayfl's own, or one of the user's by its import path.

    Raises:
        UserError: no subclass of the base has this name.
    """
    found: type = _named(base, name, False, place)
    return found


def _named(base: type, name: str, also_text: bool, place: str) -> Any:
    """Return the class of a name; if texts are allowed, the name itself where there is no such class."""
    own = {each.__name__: each for each in (base, *own_classes(base)) if not inspect.isabstract(each)}
    short = class_name(name)
    if short.startswith("rayfl."):
        short = short.rpartition(".")[2]
    if not issubclass(base, Settings):
        raise BadValue(place, f"is {shown(name)}", "it must map options to values")
    if short in own:
        return own[short]
    if name.startswith("rayfl.") and not also_text:
        raise BadValue(place, f"is {name}, which is none that can be used", _choices(base))
    if "." not in name:
        raise Unknown(place, f"is {shown(name)}{did_you_mean(short, own)} {_choices(base)}")
    try:
        found = named(name)
    except ModuleNotFoundError as error:
        if also_text:
            return name
        raise Missing(
            place,
            f"is {name}: {error}. Set PYTHONPATH to the folder that has it; run, table, tune and export also "
            "look in the current folder",
        ) from error
    except (UserError, ImportError, AttributeError) as error:
        if also_text:  # the code that builds the net reports it
            return name
        raise BadValue(place, f"is {name}: {error}") from error
    if isinstance(found, type) and issubclass(found, base):
        if inspect.isabstract(found):
            raise BadValue(place, f"is {name}, which is abstract", _choices(base))
        return found
    if also_text:
        return name
    raise BadValue(place, f"is {name}", f"it must be a {base.__name__}. {_choices(base)}")


def _choices(base: type) -> str:
    names = sorted((each.__name__ for each in own_classes(base)), key=str.lower)
    return f"Choose one of {', '.join(names)}, or the import path of your own"


def part_of(kind: Any) -> type | None:
    """Return the class of settings that a type takes; None if it takes plain values."""
    for each in members(kind):
        if get_origin(each) is list and (inner := part_of(get_args(each)[0])):
            return inner
        if isinstance(each, type) and (issubclass(each, Settings) or is_dataclass(each)):
            return each
    return None


def typed(word: Word, kind: Any, place: str) -> Any:
    """Return the value of a raw text, parsed for a type."""
    try:
        word.encode()
    except UnicodeError:
        raise BadValue(place, f"is {str(word)!a}: it is not valid UTF-8") from None
    alone = members(kind)
    choices = [each for one in alone if get_origin(one) is Literal for each in get_args(one)]
    if str(word) in choices or not word:
        return str(word)
    opens = word.lstrip()[:1]
    if str in alone and not (opens == "[" and any(get_origin(each) is list for each in alone)):
        structured = opens == "{" and part_of(kind) is not None
        if not structured:
            return None if word == "null" and NoneType in alone else str(word)
    try:
        return parse_yaml(str(word))
    except OutOfBounds as error:
        raise BadValue(place, f"cannot be used: {error.problem}") from error
    except (yaml.YAMLError, ValueError, LookupError):
        return str(word)  # the check of the type refuses it


def _unknown(cls: type, above: str, name: str, known: Collection[str]) -> UserError:
    """Return the error for a name that is no option of a class, with a suggestion."""
    if not above:
        return unknown_option(name, known, cls, "")
    listed = f" Choose one of {', '.join(sorted(known))}" if known else " It has none"
    near = did_you_mean(name, known, f"{above}." if above in GROUPS else "")
    return Unknown(f"{above}.{name}", f"is no option of {cls.__name__}{near}{listed}")


def unknown_option(
    name: str, known: Collection[str], cls: type | None = None, before: str = "--"
) -> UserError:
    """Return the error for an option that a command does not have.

    Args:
        name: without dashes.
        known: the existing names.
        cls: the class whose options that end in the name are suggested.
        before: the prefix of names.
    """
    head, dot, _ = name.partition(".")
    slip = closest(name.lower(), known, 0.9)  # first a near miss: --metric is metrics, not method.metric
    longer = [] if slip or dot or cls is None else [*_ending(cls, name.replace("-", "_").lower())]
    meant = f"; did you mean {' or '.join(before + each for each in longer[:3])}?" if longer else ""
    hint = meant or did_you_mean(head if dot else name, known, before)
    return Unknown(f"{before}{name}", f"is no option{hint} --help lists all")


def _ending(cls: type, last: str) -> Iterator[str]:
    """Yield every option, of all classes that settings can name, whose last part is the given name."""
    waiting: list[tuple[str, Any]] = list(arguments_of(cls).items())
    seen: set[type] = set()
    found: set[str] = set()
    for option, kind in waiting:
        if "." in option and option.rpartition(".")[2].lower() == last and option not in found:
            found.add(option)
            yield option
        base = part_of(kind)
        if base is not None and base not in seen:
            seen.add(base)
            for each in own_classes(base) or [base]:
                waiting += [(f"{option}.{name}", inner) for name, inner in arguments_of(each).items()]


def settled(settings: Mapping[str, Any], cls: type) -> Flat:
    """Return settings with raw texts parsed for the types of their settings."""
    return {
        name: typed(value, kind_at(cls, name), name) if isinstance(value, Word) else value
        for name, value in settings.items()
    }


def kind_at(cls: type, place: str) -> Any:
    """Return the type of a setting, in the first class that has it; Any if there is none."""
    above, _, name = place.rpartition(".")
    base = base_at(cls, above) if above else cls
    for each in [] if base is None else [base, *own_classes(base)]:
        if name in (kinds := arguments_of(each)):
            return kinds[name]
    return Any


def named_class(cls: type, name: str, place: str) -> type:
    """Return the class that a name means at a place, such as ``data.partition``.

    Raises:
        UserError: there is none.
    """
    base = base_at(cls, place)
    if base is None or not own_classes(base):
        raise Unknown(place, "is no option that names a class. --help lists all")
    return class_named(base, name, place)


def base_at(cls: type, place: str) -> type | None:
    """Return the base class of a place, such as ``data.partition``; None for plain values."""
    base: type | None = cls
    for name in place.split("."):
        known = [base, *own_classes(base)] if base is not None else []
        kinds = [arguments_of(each).get(name) for each in known]
        base = next((part_of(kind) for kind in kinds if kind is not None), None)
    return base


# ---- layers


def flattened(settings: Mapping[Any, Any], folder: Path = Path()) -> Flat:
    """Return settings under dotted names only: classes as their names, options of groups one by one.

    Args:
        settings: with dotted names, or nested as in ``config.yaml``.
        folder: of files that are named in place of options, as in ``training: mine.yaml``.
    """
    found: Flat = {}
    for name, value in _pairs(settings, "", folder):
        if name in found:
            raise Conflict(name, "is there twice")
        found[name] = value
    return found


def _pairs(settings: Mapping[Any, Any], above: str, folder: Path) -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        name = f"{above}{key}"
        if name in GROUPS:
            yield from _pairs(_group(name, value, folder), f"{name}.", folder)
        elif isinstance(value, Mapping) and "class_path" in value:
            path, options = _opened(value, {}, name)
            yield name, path
            yield from _pairs(options, f"{name}.", folder)
        else:
            yield name, value


def _group(name: str, value: Any, folder: Path) -> Mapping[Any, Any]:
    """Return the options of a group, from a mapping or a file."""
    if isinstance(value, Word):
        value = typed(value, dict, name) if value.lstrip().startswith("{") else value
    if isinstance(value, str) and value and not value.lstrip().startswith("{"):
        path = folder / Path(value).expanduser()
        if isinstance(value, Word) and not path.exists():
            raise BadValue(name, f"is {value!r}", "give a YAML file that is there, or single options")
        return read_mapping(path, f"file with options of {name}")
    if not isinstance(value, Mapping) or "class_path" in value or not all(isinstance(k, str) for k in value):
        raise BadValue(name, f"is {shown(value)}", "it must map options to values")
    return value


def layered(*layers: Mapping[str, Any]) -> Flat:
    """Return the settings of all layers; later ones win.

    A layer that names a class, as in ``data: CIFAR10``, drops options that earlier layers gave to another.
    """
    merged: Flat = {}
    for layer in layers:
        for name, value in layer.items():
            if not _same(merged[name], value) if name in merged else isinstance(value, str):
                merged = {key: own for key, own in merged.items() if not key.startswith(f"{name}.")}
        merged |= layer
    return merged


def _same(one: Any, other: Any) -> bool:
    return bool(_plain_name(one) == _plain_name(other))


def _plain_name(value: Any) -> Any:
    value = class_name(value)
    return value.rpartition(".")[2] if isinstance(value, str) and value.startswith("rayfl.") else value
