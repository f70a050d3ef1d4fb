"""Command lines: arguments are declared to argparse, which writes the help and the completions.

This module parses the words, because argparse knows only declared options, and a run has the options of every
class: ``--a.b value`` and ``--a.b=value`` become settings, which :mod:`rayfl.settings.reader` converts.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import NoneType
from typing import Any, Literal, NoReturn, get_args, get_origin

from rayfl.errors import Conflict, Missing, Unknown, UserError
from rayfl.settings import Settings
from rayfl.settings.arguments import (
    argument_texts,
    arguments_of,
    bounds_of,
    convert_value,
    defaults_of,
    describe_type,
    texts_of,
    union_members,
)
from rayfl.settings.base import class_names
from rayfl.settings.reader import (
    GROUPS,
    DottedSettings,
    RawText,
    find_class_at,
    kind_at,
    merge_layers,
    parse_word,
    part_of,
    unknown_option,
)
from rayfl.system.text import did_you_mean

ANY_CODE = Literal["changed"] | None
"""Values of ``--code``: whether runs of other code of the user's own are refused or repeated."""


class Help(argparse.HelpFormatter):
    """Help with the type of each value, the names to choose from, and the default."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = (action.help or "").replace("``", "").replace("%", "%%")
        if isinstance(action, argparse._HelpAction):
            return "Show this help message and exit."
        if not action.option_strings or action.nargs == 0:
            return text
        kind = argument_kind(action)
        names = class_names(part_of(kind))
        facts = ["one of " + ", ".join(names)] if names else _value_facts(kind)
        if (default := _default_text(action.default)) is not None:
            facts.append(f"default: {default}")
        return f"{text} ({'; '.join(facts)})" if facts else text


def argument_kind(action: argparse.Action) -> Any:
    """Return the annotation of an argument."""
    return getattr(action, "kind", str)


def value_words(kind: Any) -> list[str]:
    """Return the values of an option of a type: names of classes, or choices; empty if any is possible."""
    alone = union_members(kind)
    choices = [str(word) for one in alone if get_origin(one) is Literal for word in get_args(one)]
    return class_names(part_of(kind)) or choices or (["true", "false"] if bool in alone else [])


def _value_facts(kind: Any) -> list[str]:
    """Return what the value of an option must be; empty for truth values and texts."""
    if kind in (None, Any, bool) or str in union_members(kind):
        return []
    wanted = describe_type(kind).removesuffix(" or None")
    return [", ".join([wanted, *bounds_of(kind)]).replace("'", "")]


def _default_text(value: Any) -> str | None:
    """Return a default as users write it; None: nothing to show."""
    if value is None or value is argparse.SUPPRESS or (isinstance(value, Sequence) and not value):
        return None
    if isinstance(value, Settings):
        return None if value._fixed else type(value).__name__
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


class Parser(argparse.ArgumentParser):
    """The parser of a command.

    Attributes:
        root: the class whose settings it also takes, and returns as ``settings``, such as ``Federation``.
        lists: whether its help lists these settings.
    """

    def __init__(self, *, root: type | None = None, lists: bool = False, **options: Any) -> None:
        super().__init__(formatter_class=Help, allow_abbrev=False, exit_on_error=False, **options)
        self.root, self.lists = root, lists

    def add(self, *names: str, kind: Any = str, **options: Any) -> argparse.Action:
        """Declare an argument of a type; its default is None unless given."""
        if options.get("action", "append") == "append":
            options["type"] = partial(_parse_value, names[-1].lstrip("-"), kind)
        made = self.add_argument(*names, **options)
        made.kind = kind  # type: ignore[attr-defined]
        return made

    def error(self, message: str) -> NoReturn:
        """Refuse a command line that lacks an argument, of which argparse says ``...: NAME, ...``."""
        what, _, names = message.rpartition(": ")
        error = Missing(f"{names} (--help explains all arguments)")
        raise error.within(what, names.partition(",")[0].lstrip("-"))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            listed = ", ".join(action.choices)
            near = did_you_mean(value, action.choices)
            raise Unknown(action.dest, f"is {value!r}{near} Choose one of {listed}")

    def format_help(self) -> str:
        """Return the help, including the options of all settings."""
        self.with_settings()
        return super().format_help()

    def with_settings(self) -> None:
        """Declare the settings, too, if help and completions list them."""
        if self.root is not None and self.lists:
            add_class(self, self.root)
            self.lists = False

    def read(self, words: Sequence[str] | None = None) -> argparse.Namespace:
        """Parse a command line: every argument by its name, and ``settings`` as raw texts.

        Args:
            words: the command line; that of this process by default.

        Raises:
            UserError: a word belongs to no option, or a value is missing or of another type.
        """
        kept, settings = self._split_words(sys.argv[1:] if words is None else words)
        try:
            found, rest = self.parse_known_args(kept)
        except argparse.ArgumentError as error:  # an option without its values
            raise Missing(
                f"{error.argument_name}", f"{error.message} (--help explains all arguments)"
            ) from None
        known = [option[2:] for option in self._option_string_actions if option.startswith("--")]
        known += arguments_of(self.root) if self.root else []
        for word in rest:
            name = word.partition("=")[0].lstrip("-")
            odd = not word.startswith("--") or not name
            raise self._belongs_to_nothing(word) if odd else unknown_option(name, known, self.root)
        if self.root is not None:
            found.settings = settings
        return found

    def _split_words(self, words: Sequence[str]) -> tuple[list[str], DottedSettings]:
        """Return the words of the command itself, and the settings among them as one layer."""
        kept: list[str] = []
        found: DottedSettings = {}
        waiting = iter(words)
        heads = arguments_of(self.root) if self.root else {}
        for word in waiting:
            option, equals, value = word.partition("=")
            name = option.removeprefix("--")
            if name == option or option in self._option_string_actions or name.partition(".")[0] not in heads:
                kept.append(word)
                continue
            value = value if equals else next(waiting, "--")
            if not equals and value.startswith("--"):
                listed = class_names(part_of(self._option_kind(name))) if name.endswith(".help") else []
                more = f". Choose one of {', '.join(listed)}" if listed else ""
                raise Missing(name, "has no value", f"write {option} {self._example_value(name)}{more}")
            if name.endswith(".help"):
                self._explain_class(name.removesuffix(".help"), value)
            early = next((key for key in found if key.startswith(f"{name}.")), None)
            if early is not None and name not in found and name not in GROUPS:
                raise Conflict(f"--{early}", f"stands before --{name} {value}", "name the class first")
            found = merge_layers(found, {name: RawText(value)})
        return kept, found

    def _example_value(self, name: str) -> str:
        kind = self._option_kind(name)
        several = any(get_origin(each) is list for each in union_members(kind))
        words = ["NAME"] if class_names(part_of(kind)) else ["[ITEM,...]"] if several else value_words(kind)
        return [*words, "VALUE"][0]

    def _option_kind(self, name: str) -> Any:
        return kind_at(self.root, name.removesuffix(".help")) if self.root else str

    def _belongs_to_nothing(self, word: str) -> UserError:
        if word.startswith("-"):
            return Unknown(word, "is no option. --help lists all")
        kinds = arguments_of(self.root).items() if self.root else ()
        meant = [f"--{name}" for name, kind in kinds if word in value_words(kind)]
        if word.endswith((".yaml", ".yml")) and "--config" in self._option_string_actions:
            meant = ["--config"]
        does = f"write {meant[0]} {word}" if meant else "each option takes one value; --help lists all"
        return Unknown(word, "belongs to no option", does)

    def _explain_class(self, place: str, name: str) -> NoReturn:
        """Print the options of a class, as for ``--method.help``."""
        cls = find_class_at(self.root or type, name, place)
        text = inspect.cleandoc(f"{cls.__doc__}").partition("\n\n")[0].replace("``", "")
        more = f" [--{place}.OPTION VALUE ...]" if arguments_of(cls) else ""
        helper = Parser(
            usage=f"--{place} {cls.__name__}{more}", description=" ".join(text.split()), add_help=False
        )
        add_class(helper, cls, f"{place}.")
        helper.print_help()
        raise SystemExit(0)


def add_class(parser: Parser, cls: type, above: str = "") -> None:
    """Declare the options of a class, for help and completions."""
    texts, defaults = texts_of(cls), defaults_of(cls)
    for name, kind in arguments_of(cls).items():
        option, base = f"--{above}{name}", part_of(kind)
        fixed = base is not None and name not in GROUPS and base._fixed
        if fixed or name in getattr(cls, "_unrecorded", ()):
            continue  # only tables set it, or only Python
        if name in GROUPS and not above and base is not None:
            parser.add(option, kind=str, metavar="FILE", help=f"YAML file with options of {name}.")
            add_class(parser, base, f"{name}.")
            continue
        default = defaults[name]
        made = parser.add(
            option,
            kind=kind,
            default=None if default is inspect.Parameter.empty else default,
            metavar="NAME" if base else name.upper(),
            help=texts.get(name, ""),
        )
        made.dest = f"{above}{name}"
        if class_names(base):
            text = "List the options of one of these." if above else argparse.SUPPRESS
            parser.add(f"{option}.help", kind=kind, metavar="NAME", help=text)


def parser_of_function(
    function: Callable[..., Any], metavars: Mapping[str, Any] | None = None, **options: Any
) -> Parser:
    """Return a parser for the arguments of a function, or of a class, that it documents under ``Args``.

    Args:
        function: its first paragraphs describe the command. What has a default, can only be given by its
            name, or belongs to a method is an option; lists and tuples take several words, and a list that
            may be None none.
        metavars: what the help calls values of arguments, if it is not the argument's name.
        **options: of the parser.
    """
    text = inspect.cleandoc(str(function.__doc__)).partition("Args:")[0]
    made, texts = Parser(description=" ".join(text.split()), **options), argument_texts(function)
    known = dict(inspect.signature(function, eval_str=True).parameters)
    of_method = known.pop("self", None)
    for name, each in known.items():
        if each.kind is each.VAR_KEYWORD:
            continue
        facts: dict[str, Any] = {"help": " ".join(texts.get(name, "").split()).removesuffix(".")}
        facts |= {"kind": each.annotation, "metavar": (metavars or {}).get(name)}
        if (each.annotation, each.default) == (bool, False):
            made.add(f"--{name}", action="store_true", help=facts["help"])
            continue
        kinds, needed = union_members(each.annotation), each.default is each.empty
        named = not needed or of_method or each.kind is each.KEYWORD_ONLY
        may_lack = NoneType in kinds and not named
        for kind in kinds:
            if get_origin(kind) in (list, tuple, Sequence):
                facts |= {"kind": get_args(kind)[0], "nargs": "*" if may_lack else "+"}
                facts |= {"nargs": len(get_args(kind))} if get_origin(kind) is tuple else {}
        if named:
            made.add(f"--{name}", **facts | ({"required": True} if needed else {"default": each.default}))
        else:
            made.add(name, **({"nargs": "?"} if may_lack else {}) | facts)
    return made


def _parse_value(place: str, kind: Any, word: str) -> Any:
    return convert_value(place, parse_word(RawText(word), kind, place), kind)
