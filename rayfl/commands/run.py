"""``rayfl run``: from a command line, files and run folders to a federation."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rayfl.commands.command_line import ANY_CODE, Parser
from rayfl.errors import BadValue, Conflict, Unknown, UserError, error_context
from rayfl.federation import Federation, federation_of, resumed
from rayfl.jobs.table_file import Table, find_file, is_table, read_file_of
from rayfl.running.run import FederationRun
from rayfl.running.settings import RunSettings
from rayfl.settings.description import RESUMABLE, config_of, dump_config
from rayfl.settings.imports import local_imports
from rayfl.settings.reader import DottedSettings, flatten_settings, merge_layers
from rayfl.settings.yaml_file import yaml_text
from rayfl.system.error_report import exit_code
from rayfl.system.text import print_note


def parser() -> Parser:
    """Return the parser of ``rayfl run``: the arguments of ``Federation``, ``--config`` and ``--resume``."""
    made = Parser(
        root=Federation,
        lists=True,
        prog="rayfl run",
        usage="rayfl run [OPTIONS]",
        description="Run a personalised federation: a method on data split over clients.",
        epilog="Examples: `rayfl run` runs the default; `--method FedCO2 --method.mu 0.5` chooses "
        "a method and an option of it. Methods, data sets, partitions, nets, engines and protocols have "
        "options of their own: `--method.help FedCO2`, `--data.help CIFAR10`, `--data.partition.help "
        "Dirichlet`, `--net.help FDSEAlexNet`, `--training.optimiser.help Adam`, "
        "`--engine.help Ray` and `--protocol.help FDSE` list them.",
    )
    made.add(
        "--config",
        action="append",
        default=[],
        help="YAML file with any of the options below; or a table of experiments, of which --row ROW and "
        "--column COLUMN choose a cell.",
    )
    made.add("--row", help="Row of the table of --config.")
    made.add("--column", help="Column of the table of --config.")
    made.add(
        "--resume",
        kind=str | None,
        metavar="RUN_FOLDER",
        help="Go on with a run that was stopped; of the other options only "
        f"{', '.join(RESUMABLE)} may be given.",
    )
    made.add("--code", kind=ANY_CODE, help="changed: go on with --resume with other code of your own.")
    made.add(
        "--print_config",
        nargs="?",
        const="all",
        help="Print all options as YAML, as --config reads them, and run nothing; with =skip_default only "
        "those that differ from their defaults.",
    )
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run the federation of a command line.

    Returns:
        0 after a complete run, 2 after an error of the user's, 130 for a run that was stopped or interrupted.
    """

    def run() -> int:
        result = run_from(sys.argv[1:] if arguments is None else arguments).run()
        return 0 if result.complete else 128 + signal.SIGINT

    return exit_code(local_imports()(run))


def run_from(arguments: Sequence[str]) -> FederationRun:
    """Return the run of a command line."""
    asked = parser().read(arguments)
    given = flatten_settings(asked.settings)
    paths = [find_file(name, "examples") for name in asked.config]
    tables = [path for path in paths if is_table(path)]
    if len(paths) > 1 and tables:
        raise Conflict("--config", f"{tables[0]} is a table file: no other --config goes with it")
    if not tables and (asked.row or asked.column):
        kind = "row" if asked.row else "column"
        raise Conflict(f"--{kind}", "chooses a cell of a table", "give its file with --config")
    files = {path: _read_config_file(path, asked, given) for path in paths}
    if asked.resume is not None:
        given = merge_layers(*files.values(), given)
        if odd := [name for name in given if name.partition(".")[0] not in (*RESUMABLE, "cell")]:
            odd = ["config"] if files else odd  # its file has the others
            raise Conflict(
                "--resume",
                f"takes everything but {', '.join(RESUMABLE)} from the run folder; remove "
                f"{', '.join('--' + name for name in odd)}",
            )
        run = resumed(asked.resume, given, any_code=asked.code is not None)
    else:
        try:
            run = FederationRun(federation_of(merge_layers(*files.values(), given)))
        except UserError as error:
            raise _name_file(error, files, given) from error.__cause__
    if asked.print_config is not None:
        _print_config(run.settings, asked.print_config)
    return run


def _read_config_file(path: Path, asked: Any, given: DottedSettings) -> DottedSettings:
    """Return the settings of a file of ``--config``; of a table file, those of the chosen cell."""
    if is_table(path):
        table = Table.load(path)
        settings = table.asked_cell(vars(asked), given, "--")
        if method := table.missing_method(settings):
            row = settings["cell"]["row"]
            raise Unknown("method", f"is {method} in row {row!r}, which rayfl does not have yet")
        return settings
    settings = read_file_of(path, "configuration")
    with error_context(path):
        return flatten_settings(settings, path.parent)


def _name_file(error: UserError, files: Mapping[Path, DottedSettings], given: DottedSettings) -> UserError:
    """Return an error with the file that has the setting; unchanged if the command line has it."""

    def has_setting(settings: DottedSettings) -> bool:
        return any(name == error.place or name.startswith(f"{error.place}.") for name in settings)

    if not error.place or has_setting(given):
        return error
    return next((error.within(path) for path, settings in files.items() if has_setting(settings)), error)


def _print_config(federation: RunSettings, how: str) -> NoReturn:
    """Print a configuration: all of it, or only what differs from the defaults of its classes."""
    text = dump_config(federation)
    if how == "skip_default":
        found = flatten_settings(config_of(federation))
        plain = flatten_settings(config_of(Federation()))
        classes = {k: v for k, v in found.items() if any(n.startswith(f"{k}.") for n in found)}
        defaults = flatten_settings(config_of(federation_of(classes)))
        usual = defaults | {name: plain.get(name, ...) for name in classes}
        text = yaml_text({name: value for name, value in found.items() if usual.get(name, ...) != value})
    elif how != "all":
        raise BadValue("print_config", f"is {how!r}", "it must be skip_default, or stand alone")
    print_note(text.rstrip())
    raise SystemExit(0)
