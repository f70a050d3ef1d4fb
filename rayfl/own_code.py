"""Which code is the user's own."""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import cache
from inspect import ismodule
from pathlib import Path
from types import FunctionType, ModuleType

RAYFL = os.path.dirname(os.path.abspath(__file__)) + os.sep
"""What the paths of rayfl's own files begin with."""
_PYTHON = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = ("site-packages", "dist-packages")


def is_own(thing: type | FunctionType | ModuleType | str) -> bool:
    """Say whether code is the user's own: neither rayfl's, nor Python's, nor that of an installed library.

    An installed package that needs rayfl is no library: it is the user's own, too.

    Args:
        thing: a module, a class or function by its module, or the path of a file.
    """
    if isinstance(thing, str):
        return _is_own_file(thing)
    name = thing.__name__ if ismodule(thing) else thing.__module__
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:  # built in, or typed into a notebook, or arrived from another process
        return name.partition(".")[0] not in sys.stdlib_module_names
    return _is_own_file(file)


@cache
def _is_own_file(file: str) -> bool:
    if file.startswith(RAYFL):
        return False
    parts = Path(file).parts
    for folder in _INSTALLED:
        if folder in parts[:-1]:
            return _needs_rayfl(parts[parts.index(folder) + 1].partition(".")[0])
    return not file.startswith(_PYTHON) and os.path.isfile(file)  # frames of compiled code name others


@cache
def _needs_rayfl(package: str) -> bool:
    from importlib.metadata import PackageNotFoundError, requires  # slow to import, and seldom needed

    from packaging.requirements import Requirement

    try:
        return any(Requirement(need).name == "rayfl" for need in requires(package) or ())
    except PackageNotFoundError:
        return False
