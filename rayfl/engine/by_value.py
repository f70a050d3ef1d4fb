"""Code on its way to other processes by value: what it is here, and not what a file there says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType

from ray import cloudpickle


@contextmanager
def by_value(modules: Iterable[ModuleType]) -> Iterator[None]:
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
