"""``rayfl report RUN...``: compare runs in a table, also with a paper's."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rayfl.commands.command_line import Parser
from rayfl.evaluation.protocol import Average, Choice
from rayfl.evaluation.run_records import run_folders
from rayfl.record.checks import EvaluationPoint
from rayfl.report import paper_tables
from rayfl.report.compare import (
    caption,
    check_recorded,
    comparison,
    group_records,
    group_runs,
    headline_tests,
    samples,
)
from rayfl.report.formats import check_ending, write_table
from rayfl.report.paper_tables import compare, footnotes, printed_comparison
from rayfl.report.printed import find_printed
from rayfl.running.result import Result
from rayfl.system.error_report import exit_code
from rayfl.system.terminal import Terminal


def parser() -> Parser:
    """Return the parser of the command line."""
    made = Parser(
        prog="rayfl report",
        usage="rayfl report RUN... [OPTIONS]",
        description="Compare runs in a table: accuracies (mean ± std over seeds) and traffic.",
    )
    made.add("runs", nargs="+", metavar="RUN", kind=str, help="run folders, or folders of them")
    made.add(
        "--against",
        nargs=2,
        kind=str,
        default=None,
        metavar=("PAPER", "TABLE"),
        help="show runs of a table of experiments beside the numbers that the paper prints, cell by cell, as "
        "in --against fedco2 t3; of the other options only --save has an effect then",
    )
    add_headline_options(made, "point", "view", "average", "choose")
    made.add(
        "--by",
        kind=str,
        default="",
        metavar="KEYS",
        help="group runs by these keys of the configuration alone, such as method,method.mu,clients; "
        "default: by the data and all keys but the seeds, the output folder and the engine",
    )
    made.add(
        "--measure",
        kind=str | None,
        default=None,
        help="show a recorded metric, such as f1, in the place of the accuracy",
    )
    made.add(
        "--columns",
        kind=str,
        default="",
        metavar="NAMES",
        help="columns to show, such as method,headline,last round; CSV and JSON files have all",
    )
    made.add(
        "--save",
        nargs="+",
        kind=str,
        default=[],
        metavar="FILE",
        help="write the table, as the ending says: .md, .csv, .json, .html, or .tex with booktabs' rules",
    )
    return made


def add_headline_options(made: Parser, *names: str) -> None:
    """Add options that override the headline of each run's protocol."""
    known: dict[str, tuple[Any, str]] = {
        "point": (EvaluationPoint, "at this point"),
        "view": (str, "of this view"),
        "average": (Average, "with this average over clients"),
        "choose": (Choice, "of these rounds"),
    }
    for name in names:
        kind, text = known[name]
        text = f"make the reported metric anew, {text}, of what was recorded; default: as its protocol says"
        made.add(f"--{name}", kind=kind | None, default=None, help=text)


def report_runs(
    runs: Sequence[str],
    by: str = "",
    measure: str | None = None,
    columns: str = "",
    save: Sequence[str] = (),
    **headline: str | None,
) -> None:
    """Print the comparison of run folders.

    Args:
        runs: the folders.
        by: keys of the configuration, separated by commas, by which runs are grouped; by default all that
            count.
        measure: a recorded metric instead of the accuracy.
        columns: headings of what to show, separated by commas; by default all.
        save: files for the table.
        headline: ``point``, ``view``, ``average`` and ``choose``, which override each run's protocol.
    """
    _check_endings(save)
    keys = split_names(by)
    folders = run_folders([Path(run) for run in runs])
    recorded = [Result.load(folder) for folder in folders]
    check_recorded(recorded, **{name: headline.get(name) for name in ("point", "view")})
    loaded, left_out = samples(run.scored(**headline) for run in recorded)
    check_recorded(loaded, **{"--measure": measure})
    groups = group_runs(loaded, keys)
    table = comparison(groups, keys, measure, split_names(columns))
    console = show_table(table)
    for line in left_out:
        console.print(Text(line), soft_wrap=True)
    for file in save:
        notes = [*caption(groups, keys, measure), *left_out]
        found = [] if measure else [asdict(test) for test in headline_tests(groups, keys)]
        write_table(Path(file).expanduser(), table, notes, group_records(groups, keys, measure), tests=found)


def split_names(text: str) -> list[str]:
    """Return the names of an option that takes several, separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _check_endings(files: Sequence[str]) -> None:
    for file in files:
        check_ending(Path(file))


def report_against(runs: Sequence[str], paper: str, table: str, save: Sequence[str] = ()) -> None:
    """Print the cells of a table of experiments beside the numbers that the paper prints.

    Args:
        runs: run folders, or folders of them; runs of other tables are skipped.
        paper: the paper, such as ``fedco2``.
        table: the table, such as ``t3``.
        save: files for the same table.
    """
    _check_endings(save)
    printed = find_printed(paper, table)
    entries = compare(printed.name, run_folders([Path(run) for run in runs]))
    shown, notes = printed_comparison(entries, printed), footnotes(entries, printed)
    console = show_table(shown)
    for line in notes:
        console.print(Text(line), soft_wrap=True)
    for file in save:
        write_table(Path(file).expanduser(), shown, notes, paper_tables.entry_records(entries))


def show_table(table: Table) -> Console:
    """Print a table at its full width, and return the console.

    Lines may be longer than the terminal is wide, but every figure is shown in full.
    """
    console = Terminal()
    needed = console.measure(table, options=console.options.update(max_width=1000)).maximum
    console.width = max(console.width, needed)
    console.print(table)
    return console


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 2 after an error of the user's."""

    def show_runs() -> None:
        options = vars(parser().read(arguments))
        if (against := options.pop("against")) is not None:
            report_against(options["runs"], against[0], against[1], options["save"])
        else:
            report_runs(**options)

    return exit_code(show_runs)
