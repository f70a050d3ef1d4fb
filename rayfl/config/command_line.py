"""What all command lines have in common: how they are read, and what is said of a bad one."""

from __future__ import annotations

import sys
from argparse import ArgumentError
from collections.abc import Sequence
from typing import Any

from jsonargparse import ArgumentParser

from rayfl.arguments import arguments_of
from rayfl.errors import Missing
from rayfl.record.description import class_name


def parse(made: ArgumentParser, arguments: Sequence[str] | None = None) -> Any:
    """Read a command line.

    Args:
        made: the command's parser, with ``exit_on_error`` false.
        arguments: the command line; that of this process by default.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        return made.parse_args(given)
    except (ArgumentError, TypeError, ValueError, LookupError) as error:
        from rayfl.config.parser import explain  # which takes seconds to import

        raise explain(made, error) from error


def add_common_options(made: ArgumentParser, what: str, items: str) -> None:
    """Add the options that tables and sweeps have in common.

    Args:
        made: the command's parser.
        what: ``table`` or ``sweep``.
        items: of what it consists, for the help.
    """
    made.add_argument("--rounds", type=int | None, default=None, help="rounds; default: the file's")
    made.add_argument("--seeds", type=int | None, default=None, help="number of seeds; default: the file's")
    made.add_argument("--output", type=str | None, default=None, help=f"folder; default: runs/<{what}>")
    made.add_argument("--list", action="store_true", help=f"list the {items}, and run nothing")


def parse_with_options(made: ArgumentParser, arguments: Sequence[str] | None = None) -> Any:
    """Read a command line that may have options of ``rayfl.run`` among its own: they are ``settings``.

    Args:
        made: the command's parser.
        arguments: the command line; that of this process by default.
    """
    from rayfl.federation import Federation

    own = {option for action in made._actions for option in action.option_strings}
    waiting = iter(sys.argv[1:] if arguments is None else arguments)
    kept: list[str] = []
    found: dict[str, str] = {}
    for argument in waiting:
        option, equals, value = argument.partition("=")
        key = option.removeprefix("--")
        if key == option or option in own or key.partition(".")[0] not in arguments_of(Federation):
            kept.append(argument)
            continue
        value = value if equals else next(waiting, "--")
        if not equals and value.startswith("--"):
            raise Missing(option, f"has no value: write {option} VALUE")
        if key.endswith(".help"):  # of a class, which the parser of runs prints before it exits
            from rayfl.config.parser import parser

            parse(parser(), [f"{option}={class_name(value)}"])
        found[key] = value
    given = parse(made, kept)
    given.settings = found
    return given
