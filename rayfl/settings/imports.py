"""Which import paths a configuration may name: this is checked before anything is imported."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib.machinery import PathFinder
from importlib.metadata import (
    PackageNotFoundError,
    distribution,
    packages_distributions,
    requires,
    version,
)
from importlib.util import find_spec
from inspect import ismodule
from pathlib import Path
from typing import Annotated, Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic import BeforeValidator

import rayfl
from rayfl.errors import BadValue, UserError
from rayfl.settings import Settings
from rayfl.settings.description import public_path
from rayfl.system.text import did_you_mean, short_repr

NET_LIBRARY = "torchvision.models"
"""The one module of rayfl's libraries from which a configuration may name classes."""
_EVERYWHERE = ("rayfl", "pip", "setuptools")
"""Distributions whose modules, and whose requirements' modules, count as libraries."""


@contextmanager
def local_imports() -> Iterator[None]:
    """Allow imports from the current folder in the body, and in the processes that it starts.

    The folder comes last on the path: a ``pandas.py`` in it does not replace the library. Commands that read
    a run's folder, which may be a stranger's, must not import from there.
    """
    here = os.getcwd()
    if sys.flags.safe_path or {here, ""} & {*sys.path}:  # forbidden, or already on the path
        yield
        return
    sys.path.append(here)
    os.environ[rayfl.STARTED] = here
    try:
        yield
    finally:
        sys.path.remove(here)
        del os.environ[rayfl.STARTED]


NAMED_ELSEWHERE: dict[str, Any] = {}
"""In a worker process: import path -> the object that it names in the main process."""


def is_installed(package: str) -> bool:
    """Return whether a package is installed. A folder of its name, as ``wandb`` writes, does not count."""
    spec = find_spec(package)
    return spec is not None and spec.origin is not None


def version_of(package: str) -> str | None:
    """Return the version of a package; None: not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def _needed_distributions() -> frozenset[str]:
    """Return the distributions that rayfl needs, and its own."""
    waiting = [*map(Requirement, _EVERYWHERE)]
    for wanted in waiting:
        try:
            needs = [Requirement(need) for need in requires(wanted.name) or ()]
        except PackageNotFoundError:  # rayfl is not installed, or another system needs it
            continue
        environments = [{"extra": extra} for extra in wanted.extras or {""}]
        waiting += [
            need
            for need in needs
            if need.marker is None or any(map(need.marker.evaluate, environments))
            if all((need.name, need.extras) != (known.name, known.extras) for known in waiting)
        ]
    return frozenset(canonicalize_name(wanted.name) for wanted in waiting)


@cache
def _is_library(module: str) -> bool:
    """Return whether a module is of Python's own library, of rayfl, or of a distribution that rayfl needs."""
    if module in sys.stdlib_module_names or module in (*_EVERYWHERE, "test"):
        return True
    try:
        owners = [distribution(module).name]
    except PackageNotFoundError:
        if not _is_beside_distributions(module):
            return False
        owners = packages_distributions().get(module, [])  # which reads the files of all
    return not _needed_distributions().isdisjoint(map(canonicalize_name, owners))


def _is_beside_distributions(module: str) -> bool:
    """Return whether a module is in a folder in which distributions are installed."""
    if module in sys.modules:  # also one without a spec, as a notebook may make it
        there = sys.modules[module]
        places = [*getattr(there, "__path__", ()), getattr(there, "__file__", None) or ""]
    else:
        spec = PathFinder.find_spec(module)
        places = [*(spec.submodule_search_locations or ()), spec.origin or ""] if spec else []
    return any(any(Path(place).parent.glob("*.*-info")) for place in places)


def _may_be_named(path: str) -> bool:
    """Return whether a path is of rayfl, of torchvision's nets, or of a module of the user's own."""
    return path.startswith(("rayfl.", f"{NET_LIBRARY}.")) or not _is_library(path.partition(".")[0])


def refusal_text(path: str) -> str:
    """Return the message for a refused import path."""
    return (
        f"{path!r}, which no configuration may name: it must be of rayfl, of {NET_LIBRARY}, or of a "
        "module or package of your own"
    )


def import_by_path(path: str) -> Any:
    """Return the object that the import path ``module.name`` of a configuration names.

    Both the path and the module that defines the object are checked, because a module also has the names
    that it imports: ``some.module.popen`` may be that of ``os``.

    Raises:
        UserError: it may not be named, or is no import path.
        ImportError: there is no such module.
        AttributeError: the module has no such name.
    """
    if path in NAMED_ELSEWHERE:
        return NAMED_ELSEWHERE[path]
    if not all(part.isidentifier() for part in path.split(".")):
        raise BadValue("", f"{path!r}, which is no import path", "write module.name")
    if not _may_be_named(path):
        raise BadValue(refusal_text(path))
    module_name, _, name = path.rpartition(".")
    module = importlib.import_module(module_name)
    if not hasattr(module, name):
        near = did_you_mean(name, [known for known in vars(module) if not known.startswith("_")])
        raise AttributeError(f"{module_name} has no {name!r}{near}".rstrip("."))
    found = getattr(module, name)
    home = _import_path_of(found)
    if callable(found) if home is None else not _may_be_named(home):
        raise BadValue(refusal_text(path))
    return found


def _import_path_of(thing: Any) -> str | None:
    """Return the import path of an object, or of its class; None if it has no ``__module__``."""
    while isinstance(thing, partial):
        thing = thing.func
    if ismodule(thing):
        return thing.__name__
    module = getattr(thing, "__module__", None)
    name = getattr(thing, "__qualname__", type(thing).__qualname__)
    return f"{module}.{name}" if isinstance(module, str) else None


def _path_of_object(value: Any) -> Any:
    """Return the import path of a class or function; other values as they are.

    Raises:
        BadValue: a configuration cannot name it.
    """
    if not callable(value) or isinstance(value, Settings):
        return value
    if isinstance(value, type) and issubclass(value, Settings):
        raise BadValue("", f"is the class {value.__name__}", f"write {value.__name__}()")
    with suppress(UserError, ImportError, AttributeError):
        if import_by_path(path := public_path(value)) is value:
            return path
    advice = (
        "give a class or function from the top of a module of your own, or its path, as in 'my_nets.Mine'"
    )
    raise BadValue("", f"is {short_repr(value)}, which config.yaml cannot name", advice)


ImportPath = Annotated[str, BeforeValidator(_path_of_object)]
"""The import path of a class or function; Python may give the class or function itself."""
