"""What a configuration may name by import path is decided here, before anything is imported."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from importlib.util import find_spec
from inspect import ismodule
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import rayfl
from rayfl.errors import BadValue

NETS = "torchvision.models"
"""What a configuration may name of the libraries that rayfl needs."""
_EVERYWHERE = ("rayfl", "pip", "setuptools")
"""Distributions whose modules, with those of all that they need, are libraries."""


@contextmanager
def from_here() -> Iterator[None]:
    """Let modules of the current folder be imported in the body, and by the processes that it starts.

    The folder comes last: a ``pandas.py`` in it does not take the place of the library. Commands that look at
    a run's folder, which may be a stranger's, must not import from that.
    """
    here = os.getcwd()
    if sys.flags.safe_path or {here, ""} & {*sys.path}:  # forbidden, or in the place that the user has chosen
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
"""In a process of another one's run: import path -> what it names in that one."""


def installed(package: str) -> bool:
    """Say whether a package is installed. A folder of its name may be its output, as ``wandb`` makes one."""
    spec = find_spec(package)
    return spec is not None and spec.origin is not None


@cache
def _libraries() -> frozenset[str]:
    """Return the modules of Python's own library, of rayfl, and of all distributions that rayfl needs."""
    waiting = [*map(Requirement, _EVERYWHERE)]
    for wanted in waiting:
        try:
            needs = [Requirement(need) for need in requires(wanted.name) or ()]
        except PackageNotFoundError:  # rayfl from a folder, or what another system needs
            continue
        environments = [{"extra": extra} for extra in wanted.extras or {""}]
        waiting += [
            need
            for need in needs
            if need.marker is None or any(map(need.marker.evaluate, environments))
            if all((need.name, need.extras) != (known.name, known.extras) for known in waiting)
        ]
    found = {canonicalize_name(wanted.name) for wanted in waiting}
    modules = packages_distributions()
    known = {module for module, owners in modules.items() if found & {*map(canonicalize_name, owners)}}
    return frozenset({*known, *sys.stdlib_module_names, *_EVERYWHERE, "test"})


def _may_be_named(path: str) -> bool:
    """Say whether a path leads to rayfl, to nets of torchvision, or to no library: a module of one's own."""
    return path.startswith(("rayfl.", f"{NETS}.")) or path.partition(".")[0] not in _libraries()


def refusal(path: str) -> str:
    """Say that a path is refused."""
    return (
        f"{path!r}, which no configuration may name: it must be of rayfl, of {NETS}, or of a module or "
        "package of your own"
    )


def named(path: str) -> Any:
    """Return what the import path ``module.name`` of a configuration names.

    Both the path and the module that the thing is defined in are looked at, for modules show what they
    have imported: ``some.module.popen`` may be that of ``os``.

    Raises:
        UserError: it may not be named, or is no import path.
        ImportError: there is no such module.
        AttributeError: the module has no such name.
    """
    if path in NAMED_ELSEWHERE:
        return NAMED_ELSEWHERE[path]
    if not all(part.isidentifier() for part in path.split(".")):
        raise BadValue(f"{path!r}, which is no import path", "write module.name")
    if not _may_be_named(path):
        raise BadValue(refusal(path))
    module_name, _, name = path.rpartition(".")
    found = getattr(importlib.import_module(module_name), name)
    home = _home(found)
    if callable(found) if home is None else not _may_be_named(home):
        raise BadValue(refusal(path))
    return found


def _home(thing: Any) -> str | None:
    """Return the import path of what something is or was made of; None where it does not say."""
    while isinstance(thing, partial):
        thing = thing.func
    if ismodule(thing):
        return thing.__name__
    module = getattr(thing, "__module__", None)
    name = getattr(thing, "__qualname__", type(thing).__qualname__)
    return f"{module}.{name}" if isinstance(module, str) else None
