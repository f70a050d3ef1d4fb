"""Command line: ``rayfl data`` shows a data set, draws samples of it, or divides it among clients."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal

from rayfl.commands.command_line import Parser
from rayfl.data import EmbeddedDigits
from rayfl.data.base import Data
from rayfl.data.dataset import SPLITS
from rayfl.errors import InUse
from rayfl.report.contact_sheet import contact_sheet
from rayfl.running.settings import rooted
from rayfl.settings import Settings, at_least
from rayfl.settings.reader import flattened, read
from rayfl.system.error_report import exit_code
from rayfl.system.text import one_line, tell


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
        raise InUse(output, "already exists, and runs may need it", "choose another name, or remove it")
    divided = (data or EmbeddedDigits()).federate(clients, seed)
    tell(divided.table())
    divided.write_indices(output)


ACTIONS: dict[str, Callable[..., None]] = {"show": show, "sheet": contact_sheet, "divide": divide}


class Looked(Settings, place=""):
    """A data set."""

    data: Data = EmbeddedDigits()
    """The data set with its partition."""


class Divided(Looked):
    """A data set and how it is divided."""

    clients: Annotated[int, at_least(1)] | None = None
    """Number of clients; by default that of a run."""
    seed: int = 0
    """Seed of the division, as of a run."""


def parser() -> Parser:
    """Return the parser of the command line."""
    made = Parser(
        root=Divided,
        prog="rayfl data",
        usage="rayfl data ACTION [OPTIONS]",
        description="Look at a data set before anything is trained.",
    )
    actions = made.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)
    for name, function in ACTIONS.items():
        does = str(function.__doc__).partition("\n")[0].replace("``", "")
        one = actions.add_parser(
            name,
            root=Looked if name == "sheet" else Divided,
            lists=True,
            usage=f"rayfl data {name} {'' if name == 'show' else 'OUTPUT '}[OPTIONS]",
            description=does,
            help=does,
            epilog="Data sets and partitions have options of their own: --data.help CIFAR10 and "
            "--data.partition.help Dirichlet list them.",
        )
        if name != "show":
            one.add("output", metavar="OUTPUT", help="the file to write")
        if name == "sheet":
            one.add("--split", kind=Literal[SPLITS], default="train", help="of the published division")
            one.add("--rows", kind=Annotated[int, at_least(1)], default=4, help="rows of samples per domain")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 2 after an error of the user's."""

    def act() -> None:
        given = vars(parser().read(arguments))
        action = given.pop("action")
        asked = read(Looked if action == "sheet" else Divided, rooted(flattened(given.pop("settings"))))
        ACTIONS[action](**given, **vars(asked))
        if "output" in given:
            tell(f"Written: {given['output']}")

    return exit_code(act)
