"""Send code to other processes by value: as it is here, not as a file there has it."""

from __future__ import annotations

import copyreg
import dataclasses
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import ray
from ray import cloudpickle

from rayfl.errors import Conflict
from rayfl.settings.imports import NAMED_ELSEWHERE, named
from rayfl.system.own_code import MAIN, changed, digests, imports_late
from rayfl.system.text import warn

# Else the fields of a dataclass that arrive by value have another one, and defaults that they do not have.
copyreg.pickle(type(dataclasses.MISSING), lambda missing: "MISSING")


@contextmanager
def by_value(modules: Collection[str]) -> Iterator[None]:
    """In the body, send classes and functions of some modules by value instead of by name."""
    known = cloudpickle.list_registry_pickle_by_value()
    for name in modules:
        cloudpickle.register_pickle_by_value(sys.modules[name])
    try:
        yield
    finally:
        for name in cloudpickle.list_registry_pickle_by_value() - known:
            cloudpickle.unregister_pickle_by_value(sys.modules[name])


def put_by_value(thing: Any, code: Mapping[str, str], paths: Sequence[str] = ()) -> Any:
    """Put something into Ray's object store, with the user's own code in it by value; return its reference.

    Where some of that code cannot be sent by value (locks, cached functions), or is imported within
    functions, all of it goes by its names: a class must be the same object everywhere in a process. A warning
    says so, and each process that receives the thing compares its code under these names.

    Args:
        thing: anything.
        code: digests of the code in it; code without a digest goes by its name.
        paths: import paths, which will name there what they name here.

    Raises:
        Conflict: in a process that receives it: this code is another one there.
    """
    parts = thing, {path: named(path) for path in paths}
    files = {name: digest for name, digest in code.items() if not name.startswith(f"{MAIN}.")}
    modules = files.keys() & sys.modules.keys()
    with by_value(modules):
        try:
            late = {name for name in files if imports_late(name)}
            reason = ", ".join(sorted(late | _Look(parts, modules).by_name))
        except Exception as error:
            reason = str(error)
        if not reason:
            return ray.put(_Sent(*parts, {}))
    warn(
        f"your code cannot be sent to actors as it is here ({reason}), because of a lock, a cached function "
        "or an import within a function: actors import all of it, and do not see what a script or a notebook "
        "has changed in it"
    )
    return ray.put(_Sent(*parts, files))


class _Sent:
    """A sent object, with what import paths name, and with digests of code that is sent by name."""

    def __init__(self, thing: Any, names: Mapping[str, Any], code: Mapping[str, str]) -> None:
        self._parts = thing, names, code

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive, self._parts


def _receive(thing: Any, names: Mapping[str, Any], code: Mapping[str, str]) -> Any:
    """Return a received object; refuse if the code here differs from that at the start."""
    if other := changed(code, digests(code)):
        told = "its file has been changed since, or is another one on this host"
        raise Conflict(other[0], f"is not the code with which the run was started: {told}")
    NAMED_ELSEWHERE.update(names)
    return thing


class _Look(cloudpickle.Pickler):
    """Finds the modules, of some given ones, of which something in a thing would be sent by name."""

    def __init__(self, thing: Any, modules: Collection[str]) -> None:
        super().__init__(BytesIO(), buffer_callback=lambda buffer: None)  # arrays need not be copied
        self._modules, self.by_name = modules, set[str]()
        self.dump(thing)

    def reducer_override(self, thing: Any) -> Any:
        """Reduce as cloudpickle does, which says here of functions and classes whether they go by value."""
        made, module = super().reducer_override(thing), str(getattr(thing, "__module__", None))
        has_name = hasattr(thing, "__qualname__") and type(thing) not in self.dispatch_table
        if made is NotImplemented and has_name and module in self._modules:
            self.by_name.add(module)
        return made
