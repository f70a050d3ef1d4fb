"""``rayfl report RUN...``: compare runs in a table, also with a paper's."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from rayfl.commands.command_line import Parser, parser_of_function
from rayfl.evaluation.protocol import Average, Choice
from rayfl.evaluation.run_records import run_folders
from rayfl.record.checks import EvaluationPoint
from rayfl.report.compare import (
    Comparison,
    check_recorded,
    group_runs,
    read_runs,
)
from rayfl.report.formats import check_ending, write_table
from rayfl.report.paper_tables import compare, entry_records, footnotes, printed_comparison
from rayfl.report.printed import find_printed
from rayfl.report.text import fit_table
from rayfl.system.error_report import exit_code
from rayfl.system.terminal import Terminal

Target = float
"""A test figure, as it is printed, that runs shall reach."""


def parser() -> Parser:
    """Return the parser of the command line."""
    return parser_of_function(
        report_runs,
        {"runs": "RUN", "against": ("PAPER", "TABLE"), "by": "KEYS", "columns": "NAMES", "save": "FILE"},
        prog="rayfl report",
        usage="rayfl report RUN... [OPTIONS]",
    )


def report_runs(
    runs: Sequence[str],
    against: tuple[str, str] | None = None,
    point: EvaluationPoint | None = None,
    view: str | None = None,
    average: Average | None = None,
    choose: Choice | None = None,
    by: str = "",
    measure: str | None = None,
    columns: str = "",
    target: Target | None = None,
    save: Sequence[str] = (),
) -> None:
    """Compare runs in a table: figures (mean ± std over seeds) and traffic.

    Args:
        runs: run folders, or folders of them.
        against: show runs of a table of experiments beside the numbers that the paper prints, cell by cell,
            as in --against fedco2 t3; of the other options only --save has an effect then.
        point: make the reported metric anew, at this point, of what was recorded; default: as its protocol
            says.
        view: make the reported metric anew, of this view, of what was recorded; default: as its protocol
            says.
        average: make the reported metric anew, with this average over clients, of what was recorded; default:
            as its protocol says.
        choose: make the reported metric anew, of these rounds, of what was recorded; default: as its protocol
            says.
        by: group runs by these keys of the configuration alone, such as method,method.mu,clients; default: by
            the data and all keys but the seeds, the output folder and the engine.
        measure: show a recorded metric, such as f1, in the place of the figure.
        columns: columns to show, such as method,headline,last round; CSV and JSON files have all.
        target: also show after how many rounds and bytes, sent and received, runs reach this test figure,
            as it is printed: the least and the most of all runs.
        save: write the table, as the ending says: .md, .csv, .json, .html, or .tex with booktabs' rules.
    """
    for file in save:
        check_ending(Path(file))
    printed = find_printed(*against) if against is not None else None
    tests: dict[str, Any] = {}
    if printed is not None:
        entries = compare(printed.name, run_folders([Path(run) for run in runs]))
        table, records = printed_comparison(entries, printed), entry_records(entries)
        notes = shown = footnotes(entries, printed)
    else:
        keys = split_names(by)
        loaded, shown = read_runs(runs, point=point, view=view, average=average, choose=choose)
        check_recorded(loaded, **{"--measure": measure})
        groups = group_runs(loaded, keys)
        compared = Comparison(groups, keys, measure, target)
        table, records = compared.table(split_names(columns)), compared.records()
        notes = [*compared.caption(), *shown]
        tests = {"tests": [asdict(test) for test in compared.named_tests()]}
    print_table(table, shown, whole=printed is not None)  # whose last column alone has its warnings
    for file in save:
        write_table(Path(file).expanduser(), table, notes, records, **tests)


def print_table(table: Table, notes: Sequence[str] = (), whole: bool = False) -> None:
    """Print a comparison, and sentences below it.

    Args:
        table: the comparison.
        notes: the sentences.
        whole: whether no column may go where a terminal is too narrow for all.
    """
    console = Terminal()
    fitted, left_out = fit_table(table, console) if console.is_terminal and not whole else (table, [])
    # Lines may be longer than a file or a very narrow terminal is wide, but every figure is shown in full.
    needed = console.measure(fitted, options=console.options.update(max_width=1000)).maximum
    console.width = max(console.width, needed)
    console.print(fitted)
    said = f"Without room here: {', '.join(left_out)}. In rayfl report, --columns chooses, --save writes all."
    for line in [*([said] if left_out else []), *notes]:
        console.print(Text(line), soft_wrap=True)


def split_names(text: str) -> list[str]:
    """Return the names of an option that takes several, separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 2 after an error of the user's."""
    return exit_code(lambda: report_runs(**vars(parser().read(arguments))))
