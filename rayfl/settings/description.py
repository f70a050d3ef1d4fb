"""The configuration in a run folder: a federation with all of its arguments, as YAML."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from rayfl.errors import BadCode, BadValue
from rayfl.settings import Settings
from rayfl.settings.arguments import arguments_of, convert_value
from rayfl.settings.yaml_file import yaml_text
from rayfl.system.own_code import is_own
from rayfl.system.text import short_repr

RESUMABLE = ("rounds", "engine", "checkpoint_every", "checkpoint_keep", "quiet", "loggers", "log_level")
"""Settings that may change when a run is resumed; with others it would be another run.

``rounds`` may not change where a method or a schedule uses it: see ``Federation.result_settings``.
"""
LOCATION_SETTINGS = ("output", "cell", "data.root", "data.cache", "data.download", "data.verify")
"""Settings of places and of checks, which change no number."""
PAPER_NAMES = {
    "DCPFL": "DC-PFL",
    "FedCO2": "Fed-CO2",
    "FedDGGA": "FedDG-GA",
    "LGFedAvg": "LG-FedAvg",
    "MRMTL": "MR-MTL",
    "PFedMe": "pFedMe",
    "PFedVEM": "pFedVEM",
    "PerFedAvg": "Per-FedAvg",
}
"""Methods whose papers use a name that Python cannot; users see and write the paper's name."""
_SCORING_SETTINGS = ("metrics", "eval_clients", "eval_draw", "eval_points", "common_test")
"""Settings that change what is measured, and how, but not what is trained."""


def dump_config(federation: object) -> str:
    """Return a federation's complete configuration as YAML, which ``rayfl.run --config`` takes."""
    return yaml_text(config_of(federation))


def config_of(federation: object) -> dict[str, Any]:
    """Return a federation's complete configuration, nested, as :func:`dump_config` writes it."""
    found: dict[str, Any] = _to_yaml_value(federation, "")
    del found["output"]
    return found


def flatten_config(config: Mapping[str, Any], above: str = "", shown: bool = False) -> dict[str, Any]:
    """Return a configuration under the names of the command line: ``method``, ``method.mu``, ``clients``...

    Args:
        config: nested, as :func:`dump_config` writes it; a component's name has the path of its class.
        above: the prefix of all names.
        shown: whether to use the form for display: classes without their modules, methods as in their
            papers, lists as texts.
    """
    found: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping) and "class_path" in value:
            path = value["class_path"]
            found[name] = display_name(str(path)) if shown else path
            value = {**(value.get("init_args") or {}), **(value.get("dict_kwargs") or {})}
        elif not isinstance(value, Mapping) or not value:
            found[name] = json.dumps(value) if shown and isinstance(value, list | Mapping) else value
            continue
        found |= flatten_config(value, f"{name}.", shown)
    return found


def display_name(path: str) -> str:
    """Return the name for display of the class of an import path: its own, or that of its paper."""
    package, _, name = path.rpartition(".")
    return PAPER_NAMES.get(name, name) if package == "rayfl.methods" else name


def class_name(name: Any) -> Any:
    """Return the class name of a method named as in its paper; other values unchanged."""
    return next((known for known, paper in PAPER_NAMES.items() if paper == name), name)


def result_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that change a run's numbers, by their dotted names, as JSON values.

    Args:
        config: nested, as :func:`dump_config` writes it.
    """
    return {
        name: json.loads(json.dumps(value), parse_constant=str)  # NaN and infinity as texts
        for name, value in flatten_config(config).items()
        if value != {} and changes_numbers(name)
    }


def changes_numbers(name: str) -> bool:
    """Return whether a setting changes a run's numbers: a run cannot be resumed with another value."""
    return not _is_among(name, (*LOCATION_SETTINGS, *RESUMABLE))


def differing_keys(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the names of the settings that differ between two flat configurations, in alphabetical order."""
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))


def changes_experiment(name: str) -> bool:
    """Return whether a setting changes the experiment, and not only its seed, places or scoring."""
    ignored = {*LOCATION_SETTINGS, *RESUMABLE, "seed", "data.seed", "resume", *_SCORING_SETTINGS} - {"rounds"}
    return not _is_among(name, ignored)


def changes_data(name: str) -> bool:
    """Return whether a setting changes the data or their division."""
    return name.partition(".")[0] in ("data", "clients", "unseen", "unseen_clients")


def _is_among(name: str, names: Collection[str]) -> bool:
    return name in names or name.partition(".")[0] in names


def _to_yaml_value(value: Any, where: str) -> Any:
    """Return a value as YAML can hold it: an object as its class and its arguments."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        _check_text(value, where)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_to_yaml_value(v, where) for v in value]
    if isinstance(value, dict):
        return {k: _to_yaml_value(v, where) for k, v in value.items()}
    cls = type(value)
    if cls.__module__ == "builtins":
        raise BadValue(
            where, f"is {short_repr(value)}, which no configuration can hold", "use numbers, texts or lists"
        )
    arguments = {}
    for name, kind in arguments_of(cls).items():  # type: ignore[arg-type]  # a class can be hashed
        if issubclass(cls, Settings) and name in cls._unrecorded:
            continue
        if not hasattr(value, name):
            raise BadCode(
                cls.__name__,
                f"does not keep its argument {name!r}",
                f"write self.{name} = {name} in its __init__, so that the run's configuration can be "
                "recorded",
            )
        path = f"{where}.{name}" if where else name
        arguments[name] = _to_yaml_value(convert_value(path, getattr(value, name), kind), path)
    if issubclass(cls, Settings) and cls._fixed and not is_own(cls):
        return arguments
    described: dict[str, Any] = {"class_path": public_path(cls)}
    return described | ({"init_args": arguments} if arguments else {})


def public_path(cls: type) -> str:
    """Return the import path of a class or function; of rayfl's own the public one, which users write.

    ``rayfl.methods.FedBN`` does not depend on the file in which the class is defined.
    """
    parts = cls.__module__.split(".")
    for length in range(2, len(parts)) if parts[0] == "rayfl" else ():
        package = ".".join(parts[:length])
        if getattr(sys.modules[package], cls.__qualname__, None) is cls:
            return f"{package}.{cls.__qualname__}"
    return f"{cls.__module__}.{cls.__qualname__}"


def _check_text(text: str, where: str) -> None:
    """Refuse a text that is no UTF-8 or contains NUL."""
    if "\0" in text or (not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text)):
        raise BadValue(where, f"is {short_repr(text)}", "it must be text in UTF-8 without the character NUL")
