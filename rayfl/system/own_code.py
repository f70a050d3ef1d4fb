"""Which code is the user's own, and its digest: a run's numbers depend on it."""

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
from types import FunctionType
from typing import Any
from zipimport import ZipImportError, zipimporter

from rayfl import ROOT
from rayfl.system.text import warn

RAYFL = f"{ROOT}{os.sep}"
"""The beginning of the paths of rayfl's own files."""
MAIN = "__main__"
UNTIL = " to round "
"""In records, separates what was replaced during a run from its last round."""
FROZEN = "frozen weights"
"""Name of their digest, which is not known before nets are built, and which may depend on the seed."""
MARKED = ("torch", "numpy", "ray", "processor")
"""What changes the last bits alone: reports mark it, where other code has rows of its own."""
_PYTHON = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = {"site-packages", "dist-packages"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS = (ast.ClassDef, *_FUNCTIONS)

_kept: dict[str, tuple[object, bytes]] = {}
"""Module -> its spec when it was imported; for the user's own code also the source of its file then."""


def is_own(thing: type | FunctionType | str) -> bool:
    """Return whether code is the user's own: not rayfl's, Python's or an installed package's.

    Args:
        thing: a class or function, by its module, or the path of a file.
    """
    if isinstance(thing, str):
        return _is_own_file(thing)
    module, package = thing.__module__, thing.__module__.partition(".")[0]
    file = None if module == MAIN else _file_of(module) or _file_of(package)
    if file is None:  # built in; or typed into a notebook, or from the main file of another process
        return package not in sys.stdlib_module_names
    return _is_own_file(file)


def keep_sources() -> None:
    """Read the sources of the user's own modules that have been imported since the last call.

    A file may be edited after its import. This is called when a class with settings is defined, and before
    digests are made.
    """
    for name, module in sys.modules.copy().items():  # another thread may import
        spec, file = getattr(module, "__spec__", None), _file_of(name)
        if name not in _kept or _kept[name][0] is not spec:
            _kept[name] = spec, _file_content(file) if file and is_own(file) else b""


def code_digests(paths: Iterable[str]) -> dict[str, str]:
    """Return digests, of 16 hexadecimal digits, of the user's own code that import paths lead to.

    Comments, docstrings and layout do not count. Code without a source is left out, with a warning.

    Args:
        paths: of modules, classes and functions, also of others' code.

    Returns:
        Module -> digest of all of it, for the modules of the paths and those of the user's own that they
        import, also within functions, or have got in another way; and, of a program's main file or a
        notebook, ``__main__.name`` -> digest of the class or function, for those of the paths and those that
        these name.
    """
    keep_sources()
    found: dict[str, str] = {}
    waiting = [unit for path in paths for unit in _units_of(path)]
    for name, source, package in waiting:
        if source is None:
            _warn_no_source(name)
        elif name not in found:
            found[name] = hashlib.sha256(source.encode()).hexdigest()[:16]
            in_main = name.startswith(f"{MAIN}.")
            used = _used_in(ast.parse(source), package, in_main) if in_main else _imports_of(source, package)
            waiting += [unit for path in (*used, *_named_by(name)) for unit in _units_of(path)]
    return found


def own_modules() -> set[str]:
    """Return the names of the user's own modules that this process has imported."""
    return {name for name in sys.modules.copy() if (file := _file_of(name)) and _is_own_file(file)} - {MAIN}


def changed_code(recorded: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """Return the names whose code, or frozen weights, differ from what was recorded; no kind of processor.

    Args:
        recorded: what a run has recorded of its code, also of that which was replaced during the run.
        there: the same of this process.
    """
    names = [name for name in recorded if UNTIL not in name and name != "processor"]
    return [n for n in names if there.get(n) != recorded[n] and (n in there or n != FROZEN)]


def imports_late(module: str) -> bool:
    """Return whether functions of a module import the user's own code when they are called."""
    *_, (_, source, package) = _units_of(module)
    functions = [node for node in ast.walk(ast.parse(source or "")) if isinstance(node, _FUNCTIONS)]
    return any([*_units_of(path)] for node in functions for path in _used_in(node, package))


def _file_of(module: str) -> str | None:
    return getattr(sys.modules.get(module), "__file__", None)


@cache
def _is_own_file(file: str) -> bool:
    installed = file.startswith((RAYFL, _PYTHON)) or _INSTALLED & {*Path(file).parts}
    # frames of compiled code name others
    return not installed and (os.path.isfile(file) or os.path.isfile(_archive_of(file)))


# ---- units: modules by their names, and what a main file defines as ``__main__.name``


def _units_of(path: str) -> Iterator[tuple[str, str | None, str]]:
    """Yield the units of an import path: their names, the essential parts of their sources, packages."""
    if path.startswith(f"{MAIN}."):
        name = path.split(".")[1]
        yield f"{MAIN}.{name}", _main_definition(name), ""
        return
    for module in accumulate(path.split("."), "{}.{}".format):
        spec = _spec_of(module)
        if spec and spec.origin and is_own(spec.origin):
            source = _kept[spec.name][1] if spec.name in _kept else _file_content(spec.origin)
            yield spec.name, _essential_source(source), spec.parent or ""


def _spec_of(module: str) -> ModuleSpec | None:
    """Return the spec of a module, without importing it or its package."""
    if module in sys.modules:
        return getattr(sys.modules[module], "__spec__", None)
    above = module.rpartition(".")[0]
    package = _spec_of(above) if above else None
    inside = package.submodule_search_locations if package else None
    return None if above and inside is None else PathFinder.find_spec(module, inside)


@cache
def _imports_of(source: str, package: str) -> list[str]:
    return [*dict.fromkeys(_used_in(ast.parse(source), package))]


def _named_by(module: str) -> Iterator[str]:
    """Yield the names of the modules of which an imported one has something, however it has got that.

    Of a package do not count its own modules, which Python sets there, whoever has imported them.
    """
    things = [*vars(sys.modules.get(module, object)).values()]
    names = {thing.__name__ if ismodule(thing) else getattr(thing, "__module__", None) for thing in things}
    known = sorted(name for name in names if isinstance(name, str) and name != MAIN)
    yield from (name for name in known if not name.startswith(f"{module}."))


def _used_in(tree: ast.AST, package: str, in_main: bool = False) -> Iterator[str]:
    """Yield the import paths of all imports in code, and of what it uses from a main file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            with suppress(ImportError):  # of a file that has never been imported, and could not be
                above = resolve_name("." * node.level + (node.module or ""), package)
                yield from (f"{above}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Name) and in_main:
            thing: Any = getattr(sys.modules[MAIN], node.id, None)
            if ismodule(thing):
                yield thing.__name__
            elif hasattr(thing, "__qualname__"):
                yield f"{thing.__module__}.{thing.__qualname__}"


def _main_definition(name: str) -> str | None:
    """Return the essential source of a class or function of a main file or a notebook."""
    thing = getattr(sys.modules[MAIN], name, None)
    members = (thing, *getattr(thing, "__dict__", {}).values())
    # First the cells of its own members, for a cell that is run again may not be the newest; then the newest.
    cells = [code.co_filename for each in members if (code := getattr(each, "__code__", None))]
    cells += [file for file in reversed(linecache.cache) if not os.path.isfile(file)]
    for source in (_kept[MAIN][1], *("".join(linecache.getlines(cell)) for cell in cells)):
        for node in ast.walk(ast.parse(_essential_source(source) or "")):
            if isinstance(node, _DEFINITIONS) and node.name == name:
                return ast.unparse(node)
    return None


def _file_content(file: str) -> bytes:
    with suppress(OSError, ZipImportError):
        if archive := _archive_of(file):
            return zipimporter(archive).get_data(file)
        return Path(file).read_bytes()
    return b"\0"  # no source is like this


def _archive_of(file: str) -> str:
    """Return the zip file in which a file is; empty: in none."""
    before, zipped, _ = file.partition(f".zip{os.sep}")
    return f"{before}.zip" if zipped else ""


@cache
def _essential_source(source: str | bytes) -> str | None:
    """Return a source without comments, docstrings and layout; None if it is no Python."""
    with suppress(SyntaxError, ValueError, RecursionError):
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, *_DEFINITIONS)) and ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
        return ast.unparse(tree)
    return None


@cache
def _warn_no_source(unit: str) -> None:
    warn(f"{unit} has no source that can be read: whether it changes between runs is not noticed")
