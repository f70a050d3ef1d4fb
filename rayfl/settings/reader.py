"""The one reader: it makes a federation from settings by their dotted names.

Command lines, configuration files, tables, sweeps and run folders all give the same mapping: ``method`` names
a class, ``method.mu`` is an option of it. A value may also be a mapping with ``class_path`` and
``init_args``, as in ``config.yaml``. The annotations of the classes are the types of the values.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin

import yaml

from rayfl.errors import BadValue, Conflict, Missing, Unknown, UserError
from rayfl.settings import Settings
from rayfl.settings.arguments import arguments_of, convert_arguments, defaults_of, union_members
from rayfl.settings.base import class_names, own_classes
from rayfl.settings.description import class_name
from rayfl.settings.imports import import_by_path
from rayfl.settings.yaml_file import OutOfBounds, parse_yaml, read_mapping
from rayfl.system.text import closest_name, did_you_mean, short_repr

T = TypeVar("T")
DottedSettings = dict[str, Any]
"""Settings by their dotted names."""

GROUPS = ("training", "finetune")
"""Settings whose options belong to one fixed class, which configurations do not name."""
_ABSENT = object()


class RawText(str):
    """The raw text of a value from the command line; its setting decides how it is parsed."""


def build_object(cls: type[T], settings: Mapping[str, Any], place: str = "") -> T:
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
        raise BadValue(place or cls.__name__, f"is {short_repr(settings)}", "it must map options to values")
    kinds, grouped = arguments_of(cls), _group_by_head(settings, place)  # type: ignore[arg-type]  # a class can be hashed
    for name in grouped:
        if name not in kinds:
            raise _unknown_name(cls, place, name, kinds)
    found = {
        name: _build_argument(cls, name, kinds[name], own, _join_names(place, name))
        for name, own in grouped.items()
    }
    if not issubclass(cls, Settings):  # Settings check this themselves
        needed = [name for name, each in defaults_of(cls).items() if each is inspect.Parameter.empty]
        if lacking := [name for name in needed if name not in found]:
            raise Missing(_join_names(place, lacking[0]), "is missing")
        found = convert_arguments(cls, found, place)
    own = getattr(cls, "_place", place)
    try:
        return cls(**found)
    except UserError as error:
        if own == place or not error.place.startswith(own):
            raise
        there = place + error.place.removeprefix(own)  # ``method.of.mu``
        raise error.within(place=there) from error.__cause__


def _group_by_head(settings: Mapping[str, Any], place: str) -> dict[str, DottedSettings]:
    """Return name -> its value, under an empty name, and its options."""
    found: dict[str, DottedSettings] = {}
    for name, value in settings.items():
        if not all(str(name).split(".")):
            raise Unknown(_join_names(place, str(name)) or "an empty name", "is no option")
        head, _, rest = str(name).partition(".")
        found.setdefault(head, {})[rest] = value
    return found


def _join_names(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _build_argument(cls: type, name: str, kind: Any, given: DottedSettings, place: str) -> Any:
    """Return one argument: a value, or an object of the named or default class."""
    base = part_of(kind)
    value = given.pop("", _ABSENT)
    if isinstance(value, RawText):
        value = parse_word(value, kind, place)
    if base is None:
        if value is _ABSENT:
            raise Unknown(_join_names(place, next(iter(given))), f"is no option; did you mean {place}?")
        return _without_options(value, given, place)
    inner = next((get_args(each)[0] for each in union_members(kind) if get_origin(each) is list), None)
    if isinstance(value, list) and inner is not None:
        _without_options(value, given, place)
        return [_build_argument(cls, name, inner, {"": each}, place) for each in value]
    if isinstance(value, Mapping):
        value, given = _open_mapping(value, given, place)
    if value is None and NoneType in union_members(kind) and not given:
        return None
    if value is _ABSENT or (value is None and NoneType in union_members(kind)):
        made: Any = _default_class(cls, name, base, place)
    elif isinstance(value, str):
        try:
            made = find_settings_class(base, value, place)
        except UserError:
            if "." not in value or str not in union_members(kind):
                raise
            made = value  # the code that builds the net reports what is wrong with its path
    else:
        made = value
    if not (isinstance(made, type) and issubclass(made, base)):
        return _without_options(made, given, place)
    return build_object(made, given, place)


def _without_options(value: Any, given: DottedSettings, place: str) -> Any:
    """Return a value that has no options; refuse those that are given."""
    if given:
        below = _join_names(place, next(iter(given)))
        raise Conflict(below, f"is no option: {place} is {short_repr(value)}")
    return value


def _open_mapping(value: Mapping[Any, Any], given: DottedSettings, place: str) -> tuple[Any, DottedSettings]:
    """Return the class that a mapping names, if any, and the options in it and beside it."""
    if not all(isinstance(key, str) for key in value):
        raise BadValue(place, f"is {short_repr(value)}", "it must map options to values")
    if "class_path" not in value:
        return _ABSENT, {**value, **given}
    options = value.get("init_args", {})
    if not isinstance(options, Mapping):
        raise BadValue(f"{place}.init_args", f"is {short_repr(options)}", "it must map options to values")
    if not isinstance(value["class_path"], str):
        raise BadValue(f"{place}.class_path", f"is {short_repr(value['class_path'])}", "it must name a class")
    if beside := value.keys() - {"class_path", "init_args"}:
        raise Conflict(place, f"has {sorted(beside)[0]} beside class_path", "put it below init_args")
    return value["class_path"], {**options, **given}


def _default_class(cls: type, name: str, base: type, place: str) -> type:
    """Return the class of options without a named class: that of the default."""
    default = defaults_of(cls)[name]
    if isinstance(default, base):
        return type(default)
    if inspect.isabstract(base):
        raise BadValue(place, "has options and no class", _class_choices(base))
    return base


def find_settings_class(base: type[Settings], name: str, place: str) -> Any:
    """Return the class of a name: one of rayfl's own, or one of the user's by its import path.

    Args:
        base: its base class.
        name: the name.
        place: the setting that has it.

    Raises:
        UserError: no subclass of the base has this name.
    """
    own = {each.__name__: each for each in (base, *own_classes(base)) if not inspect.isabstract(each)}
    short = class_name(name)
    if short.startswith("rayfl."):
        short = short.rpartition(".")[2]
    if base._fixed:
        raise BadValue(place, f"is {short_repr(name)}", "it must map options to values")
    if short in own:
        return own[short]
    if name.startswith("rayfl."):
        raise BadValue(place, f"is {name}, which cannot be used here", _class_choices(base))
    if "." not in name:
        raise Unknown(place, f"is {short_repr(name)}{did_you_mean(short, own)} {_class_choices(base)}")
    try:
        found = import_by_path(name)
    except ModuleNotFoundError as error:
        raise Missing(
            place,
            f"is {name}: {error}. Set PYTHONPATH to the folder that has it; run, table, tune and export also "
            "look in the current folder",
        ) from error
    except (UserError, ImportError, AttributeError) as error:
        raise BadValue(place, f"is {name}: {error}") from error
    if not isinstance(found, type) or not issubclass(found, base) or inspect.isabstract(found):
        needed = f"it must be a {base.__name__} that is not abstract. {_class_choices(base)}"
        raise BadValue(place, f"is {name}", needed)
    return found


def _class_choices(base: type) -> str:
    return f"Choose one of {', '.join(class_names(base))}, or the import path of your own"


def part_of(kind: Any) -> type[Settings] | None:
    """Return the class of settings that a type takes; None if it takes plain values."""
    for each in union_members(kind):
        if get_origin(each) is list and (inner := part_of(get_args(each)[0])):
            return inner
        if isinstance(each, type) and issubclass(each, Settings):
            return each
    return None


def parse_word(word: RawText, kind: Any, place: str) -> Any:
    """Return the value of a raw text, parsed for a type."""
    try:
        word.encode()
    except UnicodeError:
        raise BadValue(place, f"is {str(word)!a}: it is not valid UTF-8") from None
    alone = union_members(kind)
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


def _unknown_name(cls: type, above: str, name: str, known: Collection[str]) -> UserError:
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
    slip = closest_name(name.lower(), known, 0.9)  # first a near miss: --metric is metrics, not method.metric
    longer = [] if slip or dot or cls is None else _options_ending_in(cls, name.replace("-", "_").lower())
    meant = f"; did you mean {' or '.join(before + each for each in longer[:3])}?" if longer else ""
    hint = meant or did_you_mean(head if dot else name, known, before)
    return Unknown(f"{before}{name}", f"is no option{hint} --help lists all")


def _options_ending_in(cls: type, last: str) -> list[str]:
    """Return the options, of all classes that settings can name, whose last part is the given name."""
    waiting: list[tuple[str, Any]] = list(arguments_of(cls).items())
    seen: set[type] = set()
    for option, kind in waiting:
        base = part_of(kind)
        if base is not None and base not in seen:
            seen.add(base)
            for each in own_classes(base) or [base]:
                waiting += [(f"{option}.{name}", inner) for name, inner in arguments_of(each).items()]
    found = dict.fromkeys(option for option, _ in waiting)  # several classes may have it
    return [option for option in found if "." in option and option.rpartition(".")[2].lower() == last]


def parse_words(settings: Mapping[str, Any], cls: type) -> DottedSettings:
    """Return settings with raw texts parsed for the types of their settings."""
    return {
        name: parse_word(value, kind_at(cls, name, settings), name) if isinstance(value, RawText) else value
        for name, value in settings.items()
    }


def kind_at(cls: type, place: str, settings: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """Return the type of a setting: in the class that settings name there, or in the first one that has it.

    Returns:
        Any if no class has it.
    """
    above, _, name = place.rpartition(".")
    base = base_at(cls, above) if above else cls
    known = [] if base is None else [base, *own_classes(base)]
    for each in sorted(known, key=lambda each: each.__name__ != settings.get(above)):
        if name in (kinds := arguments_of(each)):
            return kinds[name]
    return Any


def find_class_at(cls: type, name: str, place: str) -> Any:
    """Return the class that a name means at a place, such as ``data.partition``.

    Raises:
        UserError: there is none.
    """
    base = base_at(cls, place)
    if base is None or not own_classes(base):
        raise Unknown(place, "is no option that names a class. --help lists all")
    return find_settings_class(base, name, place)


def base_at(cls: type[Settings], place: str) -> type[Settings] | None:
    """Return the base class of a place, such as ``data.partition``; None for plain values."""
    base: type[Settings] | None = cls
    for name in place.split("."):
        known = [base, *own_classes(base)] if base is not None else []
        kinds = [arguments_of(each).get(name) for each in known]
        base = next((part_of(kind) for kind in kinds if kind is not None), None)
    return base


# ---- layers


def flatten_settings(settings: Mapping[Any, Any], folder: Path = Path()) -> DottedSettings:
    """Return settings under dotted names only: classes as their names, options of groups one by one.

    Args:
        settings: with dotted names, or nested as in ``config.yaml``.
        folder: of files that are named in place of options, as in ``training: mine.yaml``.
    """
    found: DottedSettings = {}
    for name, value in _dotted_pairs(settings, "", folder):
        if name in found:
            raise Conflict(name, "is there twice")
        found[name] = value
    return found


def _dotted_pairs(settings: Mapping[Any, Any], above: str, folder: Path) -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        name = f"{above}{key}"
        if name in GROUPS:
            yield from _dotted_pairs(_group_options(name, value, folder), f"{name}.", folder)
        elif isinstance(value, Mapping) and "class_path" in value:
            path, options = _open_mapping(value, {}, name)
            yield name, path
            yield from _dotted_pairs(options, f"{name}.", folder)
        else:
            yield name, value


def _group_options(name: str, value: Any, folder: Path) -> Mapping[Any, Any]:
    """Return the options of a group, from a mapping or a file."""
    if isinstance(value, RawText):
        value = parse_word(value, dict, name) if value.lstrip().startswith("{") else value
    if isinstance(value, str) and value and not value.lstrip().startswith("{"):
        path = folder / Path(value).expanduser()
        if isinstance(value, RawText) and not path.exists():
            raise BadValue(name, f"is {value!r}", "give a YAML file that is there, or single options")
        return read_mapping(path, f"file with options of {name}")
    if not isinstance(value, Mapping) or "class_path" in value or not all(isinstance(k, str) for k in value):
        raise BadValue(name, f"is {short_repr(value)}", "it must map options to values")
    return value


def merge_layers(*layers: Mapping[str, Any]) -> DottedSettings:
    """Return the settings of all layers; later ones win.

    A layer that names a class, as in ``data: CIFAR10``, drops options that earlier layers gave to another.
    """
    merged: DottedSettings = {}
    for layer in layers:
        for name, value in layer.items():
            if _plain_name(merged[name]) != _plain_name(value) if name in merged else isinstance(value, str):
                merged = {key: own for key, own in merged.items() if not key.startswith(f"{name}.")}
        merged |= layer
    return merged


def _plain_name(value: Any) -> Any:
    value = class_name(value)
    return value.rpartition(".")[2] if isinstance(value, str) and value.startswith("rayfl.") else value
