"""Which code is the user's own, and its digest: it decides a run's numbers as the settings do."""

from __future__ import annotations

import ast
import hashlib
import linecache
import os
import sys
import sysconfig
import tokenize
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, resolve_name
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

_kept: dict[str, tuple[object, str | None]] = {}
"""Module -> the spec with which it was imported, and its source as it was then."""


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
    file = _file_of(name) or _file_of(package)
    if file is None:  # built in, or typed into a notebook, or arrived from another process
        return package not in sys.stdlib_module_names
    return _is_own_file(file)


def keep_sources() -> None:
    """Read the sources of the user's own modules, of those that have been imported since the last call.

    What runs is what was imported: a file may be edited later. Whoever gets to know a class or function of
    the user's calls this at once.
    """
    for name, module in [*sys.modules.items()]:
        spec = getattr(module, "__spec__", None)
        known = name in _kept and _kept[name][0] is spec
        if not known and isinstance(module, ModuleType) and is_own(module):
            _kept[name] = spec, _read(_file_of(name))


def digests(paths: Iterable[str]) -> dict[str, str]:
    """Return the digest of the user's own code that import paths lead to, of 16 hexadecimal digits.

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
        found[unit], used = _facts_of(unit)
        waiting += used
    for unit in found:
        if not found[unit]:
            _tell_lacking(unit)
    return {unit: found[unit] for unit in sorted(found) if found[unit]}


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

    from packaging.requirements import Requirement

    try:
        return any(Requirement(need).name == "rayfl" for need in requires(package) or ())
    except PackageNotFoundError:
        return False


# ---- units: modules by their names, and what a main file defines as ``__main__.name``


def _units_of(path: str) -> list[str]:
    """Return the unit that an import path leads to, and those that are imported before it."""
    module, *names = path.split(".")
    if module == _MAIN:
        return [f"{_MAIN}.{names[0]}"] if names else []
    return [*filter(_is_own_module, accumulate([module, *names], lambda above, name: f"{above}.{name}"))]


def _is_own_module(name: str) -> bool:
    module, spec = sys.modules.get(name), _spec_of(name)
    if spec is None:
        return module is not None and is_own(module)
    return spec.origin is not None and is_own(spec.origin)  # folders without an __init__.py have none


def _spec_of(module: str) -> ModuleSpec | None:
    """Return where a module is, without an import of it or of its package."""
    above, _, name = module.rpartition(".")
    if module in sys.modules or not name.isidentifier():
        return getattr(sys.modules.get(module), "__spec__", None)
    if not above:
        return find_spec(module)
    package = _spec_of(above)
    inside = package and package.submodule_search_locations
    return PathFinder.find_spec(module, inside) if inside else None


def _facts_of(unit: str) -> tuple[str, list[str]]:
    """Return the digest of a unit, empty where it has no source, and the units that it uses."""
    module, _, name = unit.partition(".")
    if module == _MAIN:
        defined = _definition(name)
        return ("", []) if defined is None else (_digest(defined), [*_named_in(defined)])
    spec = _spec_of(unit)
    source = _parsed(_kept[unit][1] if unit in _kept else _read(spec.origin if spec else None))
    if source is None:
        return "", []
    package = spec.parent or "" if spec else ""
    return _digest(source), [used for path in _imported(source, package) for used in _units_of(path)]


def _imported(tree: ast.Module, package: str) -> Iterator[str]:
    """Yield what a module imports anywhere, as import paths."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = resolve_name("." * node.level + (node.module or ""), package)
            yield from (f"{above}.{each.name}" for each in node.names)


def _definition(name: str) -> ast.stmt | None:
    """Return the class or function that a main file or a notebook defines by a name."""
    cells = map("".join, map(linecache.getlines, _cells(name)))
    for tree in map(_parsed, [_kept[_MAIN][1]] if _file_of(_MAIN) else cells):
        for node in reversed(tree.body if tree else []):
            if isinstance(node, _DEFINITIONS) and node.name == name:
                return node
    return None


def _cells(name: str) -> Iterator[str]:
    """Yield the cells of a notebook: those with the members of a class or function first, then the newest."""
    thing = getattr(sys.modules[_MAIN], name, None)
    for member in (thing, *vars(thing).values()) if isinstance(thing, type) else (thing,):
        if code := getattr(member, "__code__", None):
            yield code.co_filename
    yield from (file for file in reversed([*linecache.cache]) if not os.path.isfile(file))


def _named_in(tree: ast.stmt) -> Iterator[str]:
    """Yield the units of the classes, functions and modules that a definition of a main file names."""
    for node in ast.walk(tree):
        thing = getattr(sys.modules[_MAIN], node.id, None) if isinstance(node, ast.Name) else None
        if ismodule(thing):
            yield from _units_of(thing.__name__)
        elif isinstance(thing, type | FunctionType):
            yield from _units_of(f"{thing.__module__}.{thing.__qualname__}")


def _read(file: str | None) -> str | None:
    with suppress(OSError, SyntaxError, ValueError):
        if file is not None and file.endswith(".py"):
            with tokenize.open(file) as source:
                return source.read()
    return None


@cache
def _parsed(text: str | None) -> ast.Module | None:
    with suppress(SyntaxError, ValueError):
        return None if text is None else ast.parse(text)
    return None


def _digest(tree: ast.AST) -> str:
    return hashlib.sha256(repr(_form(tree)).encode()).hexdigest()[:16]


def _form(node: Any) -> Any:
    """Return a tree of syntax without positions, docstrings and what versions of Python write differently."""
    if isinstance(node, list):
        return [*map(_form, node)]
    if not isinstance(node, ast.AST):
        return node
    fields = dict(ast.iter_fields(node))
    if isinstance(node, (ast.Module, *_DEFINITIONS)) and ast.get_docstring(node, clean=False) is not None:
        fields["body"] = node.body[1:]
    return type(node).__name__, [(k, _form(v)) for k, v in fields.items() if v is not None and v != []]


@cache
def _tell_lacking(unit: str) -> None:
    warn(f"{unit} has no source that can be read: whether it changes between runs is not noticed")
