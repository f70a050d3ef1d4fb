"""How objects are displayed: as a short line in a console, as a small table in a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from inspect import signature
from typing import Any

from rayfl.settings.arguments import changed
from rayfl.system.text import one_line, shown


class Displayed:
    """Gives a class a short ``repr``, and a table in notebooks; subclasses choose their contents."""

    def _repr_line_(self) -> Mapping[str, Any]:
        """Return the contents of the line: by default the arguments that differ from their defaults."""
        return changed(self)

    def _repr_table_(self) -> Mapping[str, Any]:
        """Return the rows of the table: by default the contents of the line."""
        return self._repr_line_()

    def __repr__(self) -> str:
        facts = ", ".join(f"{name}={brief(value)}" for name, value in self._repr_line_().items())
        return f"{type(self).__name__}({facts})"

    def _repr_html_(self) -> str:
        """Return the table as HTML; everything in it is escaped."""
        facts = {k: Words(v) if isinstance(v, str) else v for k, v in self._repr_table_().items()}
        rows = (f"<tr><th>{_cell(name)}</th><td>{_cell(brief(v))}</td></tr>" for name, v in facts.items())
        return f"<table><caption>{_cell(type(self).__name__)}</caption>{''.join(rows)}</table>"


def options(thing: object) -> dict[str, Any]:
    """Return the arguments of an object by name, without those that are None."""
    values = {name: getattr(thing, name, None) for name in signature(type(thing)).parameters}
    return {name: value for name, value in values.items() if value is not None}


class Words(str):
    """A text that is displayed without quotes."""


def brief(value: Any) -> str:
    """Return a value as one short line; an array as its shape."""
    if isinstance(value, Words):
        return one_line(value)
    if not isinstance(value, Displayed) and hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{type(value).__name__} {list(value.shape)}" if value.shape else shown(value.item())
    if isinstance(value, list | tuple) and any(hasattr(each, "shape") for each in value):
        return f"[{', '.join(map(brief, value[:3]))}{', ...' if len(value) > 3 else ''}]"
    return one_line(shown(value))


def _cell(text: str) -> str:
    return escape(one_line(text))
