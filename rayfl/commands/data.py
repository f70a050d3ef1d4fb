"""Command line: ``rayfl data`` shows a data set, draws samples, or writes how clients divide it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from rayfl.commands.command_line import Parser, parser_of_function
from rayfl.data import EmbeddedDigits, FederatedData
from rayfl.data.base import Data
from rayfl.data.sets.pfllib_files import Layout, write_pfllib_files
from rayfl.errors import InUse
from rayfl.report.contact_sheet import contact_sheet
from rayfl.running.settings import with_data_root
from rayfl.settings import Settings, at_least
from rayfl.settings.reader import build_object, flatten_settings
from rayfl.system.error_report import exit_code
from rayfl.system.text import one_line, print_note


class DataOptions(Settings, place=""):
    """A data set, of which a picture can be drawn."""

    data: Data = EmbeddedDigits()
    """The data set with its partition."""

    def sheet(
        self,
        output: str,
        split: Literal["train", "val", "test"] = "train",
        rows: Annotated[int, at_least(1)] = 4,
    ) -> None:
        """Write a picture with a block of samples per domain; the columns are the classes.

        Args:
            output: the PNG file to write.
            split: of the published division.
            rows: rows of samples per domain.
        """
        contact_sheet(output, self.data, split, rows)


class DivisionOptions(DataOptions):
    """A data set and how it is divided."""

    clients: Annotated[int, at_least(1)] | None = None
    """Number of clients; by default that of a run."""
    seed: int = 0
    """Seed of the division, as of a run."""

    def _divide(self) -> FederatedData:
        return self.data.federate(self.clients, self.seed)

    def show(self) -> None:
        """Read a data set, check its files, and print what it holds and what each client would get."""
        divided = self._divide()
        dataset = divided.dataset
        facts = {
            "samples": f"{len(dataset.labels):,}, of shape {' x '.join(map(str, dataset.shape))}",
            dataset.task.strata_name: f"{dataset.classes}: {', '.join(map(one_line, dataset.class_names))}",
            "domains": ", ".join(map(one_line, dataset.domain_names)),
        }
        for name, text in facts.items():
            print_note(f"{name}  {text if len(text) <= 200 else text[:197] + '...'}")
        print_note(divided.table())

    def divide(self, output: str) -> None:
        """Write every client's indices as JSON, as --data.partition FromFile reads them.

        Args:
            output: the JSON file to write; it must not exist.
        """
        if Path(output).expanduser().is_file():
            raise InUse(output, "already exists, and runs may need it", "choose another name, or remove it")
        divided = self._divide()
        print_note(divided.table())
        divided.write_indices(output)

    def export(self, output: str, layout: Layout = "current") -> None:
        """Write every client's samples into a folder, as PFLlib and --data PFLlibFiles read them.

        Args:
            output: the folder to write; it must not exist.
            layout: current: train/0.npz; early: train/train0_.npz, of PFLlib in early 2022.
        """
        divided = self._divide()
        print_note(divided.table())
        write_pfllib_files(divided, output, layout)


ACTIONS = {
    "show": DivisionOptions,
    "sheet": DataOptions,
    "divide": DivisionOptions,
    "export": DivisionOptions,
}
"""Action -> the class of which it is a method, and whose settings are its options."""


def parser() -> Parser:
    """Return the parser of the command line."""
    made = Parser(
        root=DivisionOptions,
        prog="rayfl data",
        usage="rayfl data ACTION [OPTIONS]",
        description="Look at a data set before anything is trained.",
    )
    actions = made.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)
    for name, root in ACTIONS.items():
        own = parser_of_function(getattr(root(), name), {"output": "OUTPUT"}, add_help=False)
        actions.add_parser(
            name,
            root=root,
            lists=True,
            parents=[own],
            usage=f"rayfl data {name} {'' if name == 'show' else 'OUTPUT '}[OPTIONS]",
            description=own.description,
            help=own.description,
            epilog="Data sets and partitions have options of their own: --data.help CIFAR10 and "
            "--data.partition.help Dirichlet list them.",
        )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 2 after an error of the user's."""

    def run_action() -> None:
        given = vars(parser().read(arguments))
        action, settings = given.pop("action"), with_data_root(flatten_settings(given.pop("settings")))
        getattr(build_object(ACTIONS[action], settings), action)(**given)
        if "output" in given:
            print_note(f"Written: {given['output']}")

    return exit_code(run_action)
