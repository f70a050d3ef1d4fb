"""``rayfl diff RUN RUN``: say in what two runs differ."""

import json
from collections.abc import Sequence
from dataclasses import replace

from rayfl.commands.command_line import Parser, parser_of_function
from rayfl.commands.figure import picture_path
from rayfl.commands.report import print_table
from rayfl.evaluation.run_records import RunRecords
from rayfl.report.compare import Comparison, group_runs, samples
from rayfl.report.plot import Plot
from rayfl.report.text import plain_table
from rayfl.settings.description import differing_keys, flatten_config
from rayfl.system.error_report import exit_code
from rayfl.system.terminal import Terminal
from rayfl.system.text import counted, one_line, print_note


def parser() -> Parser:
    """Return the parser of the command line."""
    names = {"one": "RUN", "other": "RUN", "save": "FILE"}
    return parser_of_function(diff_runs, names, prog="rayfl diff", usage="rayfl diff RUN RUN [OPTIONS]")


def diff_runs(one: str, other: str, save: str | None = None) -> None:
    """Say which settings, code and versions of two runs differ, and compare their figures.

    Args:
        one: a run folder.
        other: another one.
        save: draw the test figures of both over rounds: .png, .pdf or .svg.
    """
    path = None if save is None else picture_path(save)
    runs = [RunRecords.load(folder) for folder in (one, other)]
    facts = [flatten_config({**run.config, "code": run.code, "version": run.machine}) for run in runs]
    names = differing_keys(*facts)
    table = plain_table("")
    for heading in (counted(len(names), "difference"), one, other):
        table.add_column(one_line(heading), overflow="fold")
    for name in names:
        values = [each.get(name, "") for each in facts]
        table.add_row(name, *(one_line(x if isinstance(x, str) else json.dumps(x)) for x in values))
    Terminal(width=None if Terminal().is_terminal else 200).print(table)
    # Each is a row and a line of its own, even if they differ in nothing but their folders.
    named = [replace(run, config={**run.config, "run": str(run.folder)}) for run in runs]
    print_table(Comparison(group_runs(samples(named)[0], ["run"]), ["run"]).table())
    if path is not None:
        Plot(*named, by=["run"]).rounds().save(path)
        print_note(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 2 after an error of the user's."""
    return exit_code(lambda: diff_runs(**vars(parser().read(arguments))))
