"""Which code is the user's own, and its digest: it decides a run's numbers as the settings do."""

from __future__ import annotations

import ast
import hashlib
import linecache
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import resolve_name
from inspect import ismodule
from itertools import accumulate
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from rayfl.shown import warn

RAYFL = os.path.dirname(os.path.abspath(__file__)) + os.sep
"""What the paths of rayfl's own files begin with."""
_PYTHON = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = ("site-packages", "dist-packages")
_MAIN = "__main__"
_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

_kept: dict[str, tuple[object, ast.Module | None]] = {}
"""Module -> the spec with which it was imported; of the user's own also the syntax of its source then."""


def is_own(thing: type | FunctionType | ModuleType | str) -> bool:
    """Say whether code is the user's own: neither rayfl's, nor Python's, nor that of an installed library.

    An installed package that needs rayfl is no library: it is the user's own, too.

    Args:
        thing: a module, a class or function by its module, or the path of a file.
    """
    if isinstance(thing, str):
        return _is_own_file(thing)
    name = thing.__name__ if ismodule(thing) else thing.__module__
    package = name.partition(".")[0]
    file = None if name == _MAIN else _file_of(name) or _file_of(package)
    if file is None:  # built in; or typed into a notebook, or from the main file of another process
        return package not in sys.stdlib_module_names
    return _is_own_file(file)


def keep_sources() -> None:
    """Read the sources of the user's own modules, of those that have been imported since the last call.

    What runs is what was imported: a file may be edited later. Whoever gets to know a class or function of
    the user's calls this at once.
    """
    for name, module in [*sys.modules.items()]:
        spec = getattr(module, "__spec__", None)
        if name not in _kept or _kept[name][0] is not spec:
            own = isinstance(module, ModuleType) and is_own(module)
            _kept[name] = spec, _parsed_file(_file_of(name)) if own else None


def digests(paths: Iterable[str]) -> dict[str, str]:
    """Return digests, of 16 hexadecimal digits, of the user's own code that import paths lead to.

    Comments, docstrings and layout do not count. What has no source is left out, with a warning.

    Args:
        paths: any texts; those that are no import paths of the user's own code lead to nothing.

    Returns:
        Module -> digest of all of it, for the modules of the paths and those of the user's own that they
        import, also within functions; and, of a program's main file or a notebook, ``__main__.name`` ->
        digest of the class or function, for those of the paths and those that these name.
    """
    keep_sources()
    found: dict[str, str] = {}
    waiting = [unit for path in paths for unit in _units_of(path)]
    for unit in waiting:
        if unit in found:
            continue
        if (tree := _tree_of(unit)) is None:
            _tell_lacking(unit)
            continue
        spec, in_main = _spec_of(unit), unit.startswith(f"{_MAIN}.")
        package = spec.parent if spec else sys.modules[_MAIN].__package__
        found[unit], imported = _facts_of(tree, package or "")
        paths = [*imported, *(_named_in(tree) if in_main else ())]
        waiting += [used for path in paths for used in _units_of(path)]
    return found


def changed(recorded: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """Return what is not there as it was recorded.

    Args:
        recorded: digests that a run has recorded; runs of earlier versions have none.
        there: digests of the code of this process.
    """
    return [name for name in recorded if there.get(name) != recorded[name]]


def imports_late(module: str) -> bool:
    """Say whether functions of a module import code of the user's own when they are called."""
    tree, spec = _tree_of(module), _spec_of(module)
    functions = [node for node in ast.walk(tree) if isinstance(node, _DEFINITIONS[1:])] if tree else []
    imported = [path for node in functions for path in _facts_of(node, spec.parent or "" if spec else "")[1]]
    return any(map(_units_of, imported))


def _file_of(module: str) -> str | None:
    return getattr(sys.modules.get(module), "__file__", None)


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

    with suppress(PackageNotFoundError):
        return any(need.startswith("rayfl") for need in requires(package) or ())
    return False


# ---- units: modules by their names, and what a main file defines as ``__main__.name``


def _units_of(path: str) -> list[str]:
    """Return the unit that an import path leads to, and those that are imported before it."""
    if path.startswith(f"{_MAIN}."):
        return [".".join(path.split(".")[:2])]
    specs = map(_spec_of, accumulate(path.split("."), "{}.{}".format))
    return [spec.name for spec in specs if spec and spec.origin and is_own(spec.origin)]


def _spec_of(module: str) -> ModuleSpec | None:
    """Return where a module is, without an import of it or of its package."""
    if module in sys.modules:
        return getattr(sys.modules[module], "__spec__", None)
    above = module.rpartition(".")[0]
    package = _spec_of(above) if above else None
    inside = package.submodule_search_locations if package else None
    return None if above and inside is None else PathFinder.find_spec(module, inside)


def _tree_of(unit: str) -> ast.AST | None:
    """Return the syntax of a unit; None where it has no source."""
    if unit.startswith(f"{_MAIN}."):
        return _definition(unit.partition(".")[2])
    if unit in _kept:
        return _kept[unit][1]
    spec = _spec_of(unit)
    return _parsed_file(spec.origin if spec else None)


@cache
def _facts_of(tree: ast.AST, package: str) -> tuple[str, list[str]]:
    """Return the digest of a unit, and what it imports anywhere.

    Fields without a value do not count: versions of Python have different ones.
    """
    imported: list[str] = []
    digest = hashlib.sha256()
    for node in ast.walk(tree):
        fields = {name: _outline(value) for name, value in ast.iter_fields(node)}
        given = {name: value for name, value in fields.items() if value is not None and value != []}
        digest.update(f"{type(node).__name__} {given}\n".encode())
        if isinstance(node, ast.Import):
            imported += [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            with suppress(ImportError):  # of a file that has never been imported, and could not be
                above = resolve_name("." * node.level + (node.module or ""), package)
                imported += [f"{above}.{each.name}" for each in node.names]
    return digest.hexdigest()[:16], imported


def _named_in(tree: ast.AST) -> Iterator[str]:
    """Yield the import paths of what a definition of a main file names there."""
    for node in ast.walk(tree):
        thing: Any = getattr(sys.modules[_MAIN], node.id, None) if isinstance(node, ast.Name) else None
        if ismodule(thing):
            yield thing.__name__
        elif hasattr(thing, "__qualname__"):
            yield f"{thing.__module__}.{thing.__qualname__}"


def _definition(name: str) -> ast.AST | None:
    """Return the class or function that a main file or a notebook defines by a name."""
    thing = getattr(sys.modules[_MAIN], name, None)
    members = (thing, *getattr(thing, "__dict__", {}).values())
    # First the cells of its own members, for a cell that is run again may not be the newest; then the newest.
    cells = [code.co_filename for each in members if (code := getattr(each, "__code__", None))]
    cells += [file for file in reversed(linecache.cache) if not os.path.isfile(file)]
    for tree in (_kept[_MAIN][1], *(_parsed("".join(linecache.getlines(cell))) for cell in cells)):
        for node in ast.walk(tree) if tree else ():
            if isinstance(node, _DEFINITIONS) and node.name == name:
                return node
    return None


def _parsed_file(file: str | None) -> ast.Module | None:
    with suppress(OSError):
        return None if file is None else _parsed(Path(file).read_bytes())
    return None


def _parsed(source: str | bytes) -> ast.Module | None:
    """Return the syntax of a source without its docstrings; None where it is no Python."""
    with suppress(SyntaxError, ValueError):
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, *_DEFINITIONS)) and ast.get_docstring(node) is not None:
                del node.body[0]
        return tree
    return None


def _outline(value: Any) -> Any:
    """Return what a field of a node holds, with a mark in the place of nodes."""
    if isinstance(value, list):
        return [*map(_outline, value)]
    return ast.AST if isinstance(value, ast.AST) else value


@cache
def _tell_lacking(unit: str) -> None:
    warn(f"{unit} has no source that can be read: whether it changes between runs is not noticed")
