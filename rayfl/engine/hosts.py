"""What decides numbers on the hosts of a cluster: code, which goes there by value, and their software."""

from __future__ import annotations

import copyreg
import dataclasses
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from io import BytesIO
from typing import Any

import ray
import torch
from ray import cloudpickle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rayfl.errors import Conflict
from rayfl.record import folder
from rayfl.record.folder import software_here
from rayfl.settings.imports import NAMED_ELSEWHERE, import_by_path
from rayfl.system.own_code import MAIN, changed_code, code_digests, imports_late
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


def _reduce_module(module: Any) -> Any:
    """Reduce a module to its name."""
    return import_module, (module.__name__,)


# Code that names `torch` and something's `classes` or `ops` seems to need these two, which no pickle takes.
for _module in (torch.classes, torch.ops):
    copyreg.pickle(type(_module), _reduce_module)


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
    parts = thing, {path: import_by_path(path) for path in paths}
    files = {name: digest for name, digest in code.items() if not name.startswith(f"{MAIN}.")}
    modules = files.keys() & sys.modules.keys()
    with by_value(modules):
        try:
            late = {name for name in files if imports_late(name)}
            reason = ", ".join(sorted(late | _ByNameFinder(parts, modules).by_name))
        except Exception as error:
            reason = str(error)
        if not reason:
            return ray.put(_SentObject(*parts, {}))
    warn(
        f"your code cannot be sent to actors as it is here ({reason}), because of a lock, a cached function "
        "or an import within a function: actors import all of it, and do not see what a script or a notebook "
        "has changed in it"
    )
    return ray.put(_SentObject(*parts, files))


class _SentObject:
    """A sent object, with what import paths name, and with digests of code that is sent by name."""

    def __init__(self, thing: Any, names: Mapping[str, Any], code: Mapping[str, str]) -> None:
        self._parts = thing, names, code

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive_object, self._parts


def _receive_object(thing: Any, names: Mapping[str, Any], code: Mapping[str, str]) -> Any:
    """Return a received object; refuse if the code here differs from that at the start."""
    if other := changed_code(code, code_digests(code)):
        raise Conflict(
            other[0],
            "is not the code with which the run was started: its file has been changed since, or is another "
            "one on this host",
        )
    NAMED_ELSEWHERE.update(names)
    return thing


class _ByNameFinder(cloudpickle.Pickler):
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


Software = Mapping[str, str | None]
"""What :func:`rayfl.record.folder.software_here` returns, and the kind of its ``GPU``; None: it has none."""


def compare_hosts(here: Software, hosts: Mapping[str, Software]) -> None:
    """Refuse hosts on which results would differ; warn of differences in the last bits.

    Args:
        here: the software of this process, which starts the run.
        hosts: the software of the hosts that train, by their names.

    Raises:
        Conflict: a host has another rayfl than this process, or another torch or NumPy than a host before.
    """
    everywhere = {"this process": here, **hosts}
    for name, having in (("rayfl", everywhere), ("torch", hosts), ("numpy", hosts)):
        for host, problem in _host_differences(name, having):
            raise Conflict(host, problem, "install the same one on every host")
    for name, having in (("torch", everywhere), ("processor", hosts), ("GPU", hosts)):
        for host, problem in _host_differences(name, having)[:1]:
            warn(f"{host} {problem}: results may differ in their last bits")


def _host_differences(name: str, having: Mapping[str, Software]) -> list[tuple[str, str]]:
    """Return the places whose version of something differs from that of the first, with messages."""
    there = [(place, each[name]) for place, each in having.items() if each.get(name)]
    return [
        (place, f"has {name} {each}, and {there[0][0]} has {there[0][1]}")
        for place, each in there
        if each != there[0][1]
    ]


def ask_hosts(
    hosts: Mapping[str, Software], ids: Collection[str], get: Callable[[Sequence[Any]], list[Any]]
) -> Mapping[str, Software]:
    """Return the software of hosts by their names; ask and compare those that are not known yet.

    Args:
        hosts: the known ones.
        ids: Ray's ids of all hosts that train.
        get: waits for the results of Ray's references.

    Raises:
        Conflict: see :func:`compare_hosts`.
    """
    nodes = [node for node in ray.nodes() if node["NodeID"] in ids]
    names = {f"host {node['NodeManagerAddress']} ({node['NodeID'][:8]})": node for node in nodes}
    new = {name: node for name, node in names.items() if name not in hosts}
    with by_value([folder.__name__]):
        ask = ray.remote(num_cpus=0)(software_here)
        places = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in new.values()]
        calls = [ask.options(scheduling_strategy=place).remote() for place in places]
    found: dict[str, dict[str, str | None]] = dict(zip(new, get(calls), strict=True))
    for name, node in new.items():  # Ray knows the kind of a GPU
        gpus = (kind for kind in node["Resources"] if kind.startswith("accelerator_type:"))
        found[name]["GPU"] = next(gpus, None)
    compare_hosts(software_here(), {**hosts, **found})
    return {**hosts, **found}
