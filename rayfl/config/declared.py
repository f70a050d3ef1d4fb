"""Files of names and values, as dataclasses declare them: fields are the names, with their types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from rayfl.arguments import checked, shown
from rayfl.errors import BadValue, Missing, Unknown

T = TypeVar("T")
Text = str | int | float
"""A text; YAML takes some for numbers."""


KINDS = {
    "table file": ({"table", "columns", "rows"}, "a table of experiments: run it with rayfl table"),
    "tune space": ({"sweep", "search"}, "a tune space: run it with rayfl tune"),
    "configuration": ({"method"}, "a configuration of a run: run it with rayfl run --config"),
}
"""By what names at the top a kind of file is known, and what to do with it."""


def check_kind(path: Path, content: Mapping[Any, Any], wanted: str) -> None:
    """Refuse a file of another kind; say which command takes it."""
    for kind, (names, use) in KINDS.items():
        if names <= content.keys():
            if kind != wanted:
                raise BadValue(path, f"is {use} {path}")
            return


def declared(cls: type[T], content: Any, what: str, above: str = "") -> T:
    """Make an object of what a file says.

    Args:
        cls: a dataclass; a field without default must be there. Fields that are dataclasses themselves, or
            lists or tuples of them, are made likewise.
        content: a mapping of names to values.
        what: what people call it, such as ``tune space``.
        above: what stands before names in messages, such as ``scheduler.``.
    """
    if not isinstance(content, Mapping):
        raise BadValue(f"a {what} must map names to values, and is {shown(content)}")
    known = {field.name: field for field in fields(cls)}  # type: ignore[arg-type]
    if odd := [name for name in content if name not in known]:
        raise Unknown(odd[0], f"is no name in a {what}; there are {', '.join(known)}")
    for name, field in known.items():
        required = field.default is MISSING and field.default_factory is MISSING
        if required and content.get(name) in (None, "", [], {}):
            raise Missing(name, f"is missing: a {what} must have it")
    values = {}
    for name, kind in get_type_hints(cls, include_extras=True).items():
        if name in content:
            made = _made(kind, content[name], f"{above}{name}")
            values[name] = checked(f"{above}{name}", made, kind)
    return cls(**values)


def _made(kind: Any, value: Any, name: str) -> Any:
    if is_dataclass(kind) and isinstance(kind, type) and isinstance(value, Mapping):
        return declared(kind, value, name.rpartition(".")[2], f"{name}.")
    if get_origin(kind) in (list, tuple) and isinstance(value, list):
        return get_origin(kind)(_made(get_args(kind)[0], each, name) for each in value)
    return value


def check_seeds(seeds: Any) -> tuple[int, ...]:
    """Return the seeds that a file lists."""
    fine = isinstance(seeds, list | tuple) and seeds and all(type(seed) is int for seed in seeds)
    if not fine or len(set(seeds)) < len(seeds):
        raise BadValue("seeds", f"must be a list of different whole numbers, not {shown(seeds)}")
    return tuple(seeds)
