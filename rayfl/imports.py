"""What a configuration may name by import path is decided here, before anything is imported."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from inspect import ismodule
from typing import Any

import rayfl
from rayfl.errors import BadValue

REFUSED = frozenset(
    (
        # Python's own library: no net, method, data set, partition or engine is in it.
        *sys.stdlib_module_names,
        *("test", "sitecustomize", "usercustomize"),
        # What decides about imports, installs, builds or tests.
        *("pip", "setuptools", "pkg_resources", "distutils", "wheel", "setup", "virtualenv"),
        *("_distutils_hack", "cffi", "numpy.f2py", "torch.utils.cpp_extension", "triton", "torchgen"),
        *("pytest", "_pytest", "IPython", "mypy", "pre_commit", "nodeenv", "isympy", "sympy", "pylab"),
        # What starts programs, or reads files in a way that runs them.
        *("psutil", "execnet", "ray", "torch.multiprocessing", "torch.distributed", "numpy.testing"),
        *("cloudpickle", "dill", "joblib", "yaml", "torch.load", "torch.hub", "torch.package", "torch.jit"),
        *("numpy.load", "pandas.read_pickle", "pandas.io"),
        # What reaches files or networks by an address.
        *("fsspec", "smart_open", "requests", "urllib3", "aiohttp", "grpc", "werkzeug", "tensorboard"),
        *("torchvision.datasets", "sklearn.datasets", "scipy.datasets"),
    )
)
"""Modules, and single things in them, that no configuration may name, nor anything that is in them."""


def of_rayfl(cls: type) -> bool:
    """Say whether a class comes with rayfl, and not with the user's own code or another package."""
    return cls.__module__.startswith("rayfl.")


@contextmanager
def from_here() -> Iterator[None]:
    """Let modules of the current folder be imported in the body, and by the processes that it starts.

    The folder comes last: a ``pandas.py`` in it does not take the place of the library. Commands that only
    look at a folder, which may be a stranger's, never import from it.
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


def installed(package: str) -> bool:
    """Say whether a package is installed. A folder of its name may be its output, as ``wandb`` makes one."""
    spec = find_spec(package)
    return spec is not None and spec.origin is not None


def refused(path: str) -> bool:
    """Say whether an import path or a part that it begins with is in ``REFUSED``."""
    parts = path.split(".")
    return any(".".join(parts[:end]) in REFUSED for end in range(1, len(parts) + 1))


def refusal(path: str) -> str:
    """Say that a path is refused."""
    return (
        f"{path!r}, which no configuration may name: it is of Python's own library, or of what runs programs "
        "or reaches files and networks"
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
    if not all(part.isidentifier() for part in path.split(".")):
        raise BadValue(f"{path!r}, which is no import path: write module.name")
    if refused(path):
        raise BadValue(refusal(path))
    module_name, _, name = path.rpartition(".")
    found = getattr(importlib.import_module(module_name), name)
    home = _home(found)
    if callable(found) if home is None else refused(home):
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
