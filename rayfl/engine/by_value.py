"""Code on its way to other processes by value: as it is here, and not as a file says there."""

from __future__ import annotations

import copyreg
import dataclasses
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from types import ModuleType
from typing import Any

import ray
from ray import cloudpickle

from rayfl.errors import Conflict
from rayfl.own_code import digests, imports_late, is_own
from rayfl.shown import warn

# Else the fields of a dataclass that arrive by value have another one, and defaults that they do not have.
copyreg.pickle(type(dataclasses.MISSING), lambda missing: "MISSING")


@contextmanager
def by_value(modules: Collection[ModuleType]) -> Iterator[None]:
    """Let classes and functions of some modules be sent by value in the body, and not by their names."""
    known = cloudpickle.list_registry_pickle_by_value()
    new = [module for module in modules if module.__name__ not in known]
    for module in new:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in new:
            cloudpickle.unregister_pickle_by_value(module)


def put_by_value(thing: Any) -> Any:
    """Put something into Ray's object store, with the user's own code in it by value; return its reference.

    Where some of that code cannot be sent by value (locks, cached functions, compiled modules), or is
    imported within functions, all of it goes by its names: a class has to be one and the same in a process. A
    line tells of it, and each process that receives the thing compares the code that it has by these names.

    Raises:
        Conflict: in a process that receives it: this code is another one there.
    """
    own = {
        name: module
        for name, module in [*sys.modules.items()]
        if isinstance(module, ModuleType) and module.__name__ == name
        if is_own(vars(module).get("__file__") or "")
    }
    names = _modules_by_name(thing, own)
    if not names:
        return ray.put(thing)
    code = digests(names)
    with by_value(own.values()):
        try:
            late = {name for name in code if imports_late(name)}
            reason = ", ".join(sorted(late | _modules_by_name(thing, own)))
        except Exception as error:
            reason = str(error)
        if not reason:
            return ray.put(thing)
    warn(
        f"your code cannot be sent to actors as it is here ({reason}), because of a lock, a cached function, "
        "compiled code or an import within a function: actors import all of it, and do not see what a script "
        "or a notebook has changed in it"
    )
    return ray.put(_ByName(thing, code))


class _ByName:
    """Something on its way, with the digests of the code in it that goes by its names."""

    def __init__(self, thing: Any, code: Mapping[str, str]) -> None:
        self._parts = thing, code

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive, self._parts


def _receive(thing: Any, code: Mapping[str, str]) -> Any:
    """Return what has arrived, where the code is what it was at the start."""
    here = digests(code)
    for name, digest in code.items():
        if here.get(name) != digest:
            told = "its file has been changed since, or is another one on this host"
            raise Conflict(name, f"is not the code with which the run was started: {told}")
    return thing


def _modules_by_name(thing: Any, own: Mapping[str, ModuleType]) -> set[str]:
    """Return the modules of the user's own of which something would now be sent by its name."""
    look = _Look(own)
    look.dump(thing)
    return look.by_name


class _Look(cloudpickle.Pickler):
    """Notes of which of some modules something is sent by its name."""

    def __init__(self, modules: Mapping[str, ModuleType]) -> None:
        super().__init__(BytesIO(), buffer_callback=lambda buffer: None)  # arrays need not be copied
        self._modules, self.by_name = modules, set[str]()

    def reducer_override(self, thing: Any) -> Any:
        """Reduce as cloudpickle does, which says here of functions and classes whether they go by value."""
        made = super().reducer_override(thing)
        module = str(getattr(thing, "__module__", None))
        has_name = hasattr(thing, "__qualname__") and type(thing) not in self.dispatch_table
        if module in self._modules and has_name:
            is_compiled = not str(self._modules[module].__file__).endswith(".py")
            self.by_name |= {module} if made is NotImplemented or is_compiled else set()
        return made
