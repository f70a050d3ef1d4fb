"""Command line: ``rayfl data`` shows a data set, draws samples of it, or divides it among clients."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jsonargparse

from rayfl.config.command_line import parse
from rayfl.config.help import Parser
from rayfl.config.table_file import find_data
from rayfl.data import EmbeddedDigits
from rayfl.data.base import Data
from rayfl.errors import InUse, exit_code
from rayfl.imports import guard_parsers
from rayfl.report.contact_sheet import contact_sheet
from rayfl.shown import one_line, tell


def show(data: Data | None = None, clients: int | None = None, seed: int = 0) -> None:
    """Read a data set, check its files, and print what it holds and what each client would get.

    Args:
        data: the data set with its partition.
        clients: number of clients; by default that of a run.
        seed: seed of the division, as of a run.
    """
    divided = (data or EmbeddedDigits()).federate(clients, seed)
    dataset = divided.dataset
    facts = {
        "samples": f"{len(dataset.labels):,}, of shape {' x '.join(map(str, dataset.shape))}",
        "classes": f"{dataset.classes}: {', '.join(map(one_line, dataset.class_names))}",
        "domains": ", ".join(map(one_line, dataset.domain_names)),
    }
    for name, text in facts.items():
        tell(f"{name}  {text if len(text) <= 200 else text[:197] + '...'}")
    tell(divided.table())


def divide(output: str, data: Data | None = None, clients: int | None = None, seed: int = 0) -> None:
    """Write every client's indices as JSON, as ``--data.partition FromFile`` reads them.

    Args:
        output: JSON file to write; it must not exist.
        data: the data set with its partition.
        clients: number of clients; by default that of a run.
        seed: seed of the division, as of a run.
    """
    if Path(output).expanduser().is_file():
        raise InUse(output, "already exists, and runs may need it: choose another name, or remove it")
    divided = (data or EmbeddedDigits()).federate(clients, seed)
    tell(divided.table())
    divided.write_indices(output)


ACTIONS: dict[str, Callable[..., None]] = {"show": show, "sheet": contact_sheet, "divide": divide}


def parser() -> jsonargparse.ArgumentParser:
    """Return the parser of the command line."""
    guard_parsers()
    made = Parser(
        prog="rayfl data",
        usage="rayfl data ACTION [OPTIONS]",
        description="Look at a data set before anything is trained.",
    )
    actions = made.add_subcommands(dest="action", metavar="ACTION")
    for name, function in ACTIONS.items():
        does = str(function.__doc__).partition("\n")[0].replace("``", "")
        output = "" if name == "show" else "OUTPUT "
        one = Parser(
            usage=f"rayfl data {name} {output}[OPTIONS]",
            description=does,
            epilog="Data sets and partitions have options of their own: --data.help CIFAR10 and "
            "--data.partition.help Dirichlet list them.",
        )
        one.add_function_arguments(function, as_group=False, as_positional=True)
        for action in one._actions:
            if action.dest == "output":
                action.metavar = "OUTPUT"
            if action.dest.endswith(".help"):  # the text below tells of it
                action.help = argparse.SUPPRESS
                action.nargs = None  # without a name it would tell of the base class
        one.set_defaults({"data": {"class_path": "rayfl.data.EmbeddedDigits"}})
        actions.add_subcommand(name, one, help=does)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 2 for an error of the user's, told in one line."""

    def act() -> None:
        made = parser()
        parsed = parse(made, arguments)
        find_data(parsed[parsed.action])
        given: Any = made.instantiate(parsed)
        options = dict(vars(given[given.action]))
        ACTIONS[given.action](**options)
        if "output" in options:
            tell(f"Written: {options['output']}")

    return exit_code(act)


if __name__ == "__main__":
    sys.exit(main())
