"""Python: what is not there to be loaded, and options that are set past the checks of their classes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rayfl import Training, load_models, resumed
from rayfl.errors import BadValue, Missing
from rayfl.jobs.table_file import Table
from rayfl.methods import FedProx
from rayfl.running.result import Result
from rayfl.tune.space import Space
from tests.hostile.harness import Case
from tests.support.federations import small

MISSING: list[tuple[Callable[..., Any], str]] = [
    (Table.load, "nowhere.yaml"),
    (Table.load, "/dev/zero"),
    (Space.load, "/dev/zero"),
    (Result.load, "nowhere"),
    (Result.load, "a\0b"),
    (resumed, "nowhere"),
    (resumed, "a\0b"),
    (load_models, "nowhere"),
]


def _calling(do: Callable[..., Any], argument: str) -> Callable[[Path], Any]:
    return lambda folder: do(argument)


def _changed(made: Any, **values: Any) -> Any:
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


CASES = [
    *(Case(f"{do.__qualname__} {path!r}", _calling(do, path), Missing, path) for do, path in MISSING),
    Case(
        "a value that is changed afterwards",
        lambda folder: small(folder / "run", training=_changed(Training(), lr="x")),
        BadValue,
        "training.lr",
    ),
    Case(
        "a method's value that is changed afterwards",
        lambda folder: small(folder / "run", method=_changed(FedProx(), mu="x")),
        BadValue,
        "method.mu",
    ),
]
