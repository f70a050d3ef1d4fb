"""The parser of every command, and its help in words."""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Literal, get_args, get_origin

import jsonargparse
from jsonargparse import DefaultHelpFormatter, Namespace

from rayfl.arguments import arguments_of, bounds_of, expected
from rayfl.imports import named
from rayfl.settings import class_names


class Help(DefaultHelpFormatter):
    """Help as a person writes it: what a value must be, the names there are, and the default."""

    def _get_help_string(self, action: argparse.Action) -> str:
        if isinstance(action, argparse._HelpAction):
            return "Show this help message and exit."
        if action.dest.endswith(".help"):
            return "List the options of one of the names below."
        text = (action.help or "").replace("``", "").replace("%", "%%")
        if not action.option_strings:
            return text
        kind = getattr(action, "_typehint", None) or action.type
        names = names_of(kind)
        facts = ["one of " + ", ".join(names)] if names else _facts(kind)
        if (default := _default(action.default)) is not None:
            facts.append(f"default: {default}")
        return f"{text} ({'; '.join(facts)})" if facts else text


def names_of(kind: Any) -> list[str]:
    """Return the names of the classes that an option of a type may name."""
    names = [name for each in (kind, *get_args(kind)) for name in class_names(each)]
    return sorted(names, key=str.lower)


def words_of(action: argparse.Action) -> list[str]:
    """Return the words that the value of an option may be: names of classes or choices; none if any may."""
    kind = getattr(action, "_typehint", None) or action.type
    choices = [str(word) for word in get_args(kind)] if get_origin(kind) is Literal else []
    return names_of(kind) or choices or (["true", "false"] if kind is bool else [])


def _facts(kind: Any) -> list[str]:
    """Say what the value of an option must be, where its name and its help may not be enough."""
    if kind in (None, str, bool) or (not isinstance(kind, type) and str in get_args(kind)):
        return []
    wanted = expected(kind).removesuffix(" or None")
    return [", ".join([wanted, *bounds_of(kind)]).replace("'", "")]


def _default(value: Any) -> str | None:
    """Return a default as a person writes it; None where there is nothing to say."""
    if isinstance(value, Namespace | Mapping):
        value = str(value["class_path"]).rpartition(".")[2] if "class_path" in value else None
    if value in (None, "", [], argparse.SUPPRESS):
        return None
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


_GIVEN: ContextVar[Sequence[str]] = ContextVar("_GIVEN", default=())
"""The command line that is being read."""


class Parser(jsonargparse.ArgumentParser):
    """The parser of a command, which raises instead of exiting.

    jsonargparse makes another one for ``--data.partition.help Dirichlet`` and its like, by its description
    alone. That names the innermost option only, ``--partition``; people type all of it.
    """

    given: Sequence[str] = ()  # the command line that was read
    _of_class = ""  # the option that names the class, such as data.partition, in the help of one

    def __init__(self, *arguments: Any, **options: Any) -> None:
        if found := re.fullmatch(r"Help for --(\S+)\.help=(\S+)", options.get("description") or ""):
            cls = named(found[2])
            asked = (each.partition("=")[0].removesuffix(".help")[2:] for each in _GIVEN.get())
            self._of_class = next((each for each in asked if f".{each}".endswith(f".{found[1]}")), found[1])
            more = f" [--{self._of_class}.OPTION VALUE ...]" if arguments_of(cls) else ""
            options["usage"] = f"--{self._of_class} {cls.__name__}{more}"
            text = inspect.cleandoc(f"{cls.__doc__}").partition("\n\n")[0].replace("``", "")
            options["description"] = " ".join(text.split())
        for name, own in (("formatter_class", Help), ("allow_abbrev", False), ("exit_on_error", False)):
            options.setdefault(name, own)
        super().__init__(*arguments, **options)

    def add_class_arguments(self, class_type: type, nested_key: str | None = None, **more: Any) -> list[str]:
        """Add the arguments of a class; those of its help under all of the option's name."""
        names = super().add_class_arguments(class_type, self._of_class or nested_key, **more)
        for action in self._actions:
            if action.dest.endswith(".help"):
                action.metavar, action.nargs = "NAME", None  # without a name it would tell of the base
        if self._of_class:  # the description is the title
            for group in self._action_groups:
                group.title = None
        return names

    def parse_args(  # type: ignore[override]  # as the class above does
        self, args: Sequence[str] | None = None, *others: Any, **more: Any
    ) -> Any:
        """Read a command line."""
        outermost = _GIVEN.set(_GIVEN.get() or tuple(sys.argv[1:] if args is None else args))
        self.given = _GIVEN.get()
        try:
            return super().parse_args(args, *others, **more)
        finally:
            _GIVEN.reset(outermost)
