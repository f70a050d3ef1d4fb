"""Command line: ``rayfl data`` shows a data set, draws samples, or writes how clients divide it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal

from rayfl.commands.command_line import Parser
from rayfl.data import EmbeddedDigits
from rayfl.data.base import Data
from rayfl.data.dataset import SPLITS
from rayfl.data.sets.pfllib_files import Layout, write_pfllib_files
from rayfl.errors import InUse
from rayfl.report.contact_sheet import contact_sheet
from rayfl.running.settings import with_data_root
from rayfl.settings import Settings, at_least
from rayfl.settings.reader import build_object, flatten_settings
from rayfl.system.error_report import exit_code
from rayfl.system.text import one_line, print_note


def show_data(data: Data | None = None, clients: int | None = None, seed: int = 0) -> None:
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
        dataset.task.strata_name: f"{dataset.classes}: {', '.join(map(one_line, dataset.class_names))}",
        "domains": ", ".join(map(one_line, dataset.domain_names)),
    }
    for name, text in facts.items():
        print_note(f"{name}  {text if len(text) <= 200 else text[:197] + '...'}")
    print_note(divided.table())


def divide_data(output: str, data: Data | None = None, clients: int | None = None, seed: int = 0) -> None:
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
    print_note(divided.table())
    divided.write_indices(output)


def export_data(
    output: str,
    data: Data | None = None,
    clients: int | None = None,
    seed: int = 0,
    layout: Layout = "current",
) -> None:
    """Write every client's samples into a folder, as PFLlib and ``--data PFLlibFiles`` read them.

    Args:
        output: folder to write; it must not exist.
        data: the data set with its partition.
        clients: number of clients; by default that of a run.
        seed: seed of the division, as of a run.
        layout: names of the files, see :func:`rayfl.data.write_pfllib_files`.
    """
    divided = (data or EmbeddedDigits()).federate(clients, seed)
    print_note(divided.table())
    write_pfllib_files(divided, output, layout)


ACTIONS: dict[str, Callable[..., None]] = {
    "show": show_data,
    "sheet": contact_sheet,
    "divide": divide_data,
    "export": export_data,
}


class DataOptions(Settings, place=""):
    """A data set."""

    data: Data = EmbeddedDigits()
    """The data set with its partition."""


class DivisionOptions(DataOptions):
    """A data set and how it is divided."""

    clients: Annotated[int, at_least(1)] | None = None
    """Number of clients; by default that of a run."""
    seed: int = 0
    """Seed of the division, as of a run."""


def parser() -> Parser:
    """Return the parser of the command line."""
    made = Parser(
        root=DivisionOptions,
        prog="rayfl data",
        usage="rayfl data ACTION [OPTIONS]",
        description="Look at a data set before anything is trained.",
    )
    actions = made.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)
    for name, function in ACTIONS.items():
        does = str(function.__doc__).partition("\n")[0].replace("``", "")
        one = actions.add_parser(
            name,
            root=DataOptions if name == "sheet" else DivisionOptions,
            lists=True,
            usage=f"rayfl data {name} {'' if name == 'show' else 'OUTPUT '}[OPTIONS]",
            description=does,
            help=does,
            epilog="Data sets and partitions have options of their own: --data.help CIFAR10 and "
            "--data.partition.help Dirichlet list them.",
        )
        if name != "show":
            one.add("output", metavar="OUTPUT", help="the file to write, or the folder")
        if name == "export":
            text = "current: train/0.npz; early: train/train0_.npz, of PFLlib in early 2022"
            one.add("--layout", kind=Layout, default="current", help=text)
        if name == "sheet":
            one.add("--split", kind=Literal[SPLITS], default="train", help="of the published division")
            one.add("--rows", kind=Annotated[int, at_least(1)], default=4, help="rows of samples per domain")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 2 after an error of the user's."""

    def run_action() -> None:
        given = vars(parser().read(arguments))
        action = given.pop("action")
        asked = build_object(
            DataOptions if action == "sheet" else DivisionOptions,
            with_data_root(flatten_settings(given.pop("settings"))),
        )
        ACTIONS[action](**given, **vars(asked))
        if "output" in given:
            print_note(f"Written: {given['output']}")

    return exit_code(run_action)
