"""Command line: ``rayfl table FILE`` runs a whole table of experiments."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.console import Console

from rayfl.commands.command_line import Parser, parser_of_function
from rayfl.data import FederatedData
from rayfl.errors import InUse, Missing, error_context
from rayfl.federation import Federation, federation_of
from rayfl.jobs.cells import CellRunner, Job, automatic_jobs, check_code, code_changes
from rayfl.jobs.progress import TableProgress
from rayfl.jobs.table_file import SeedCount, Table, changes_of, data_key, find_file, first_seeds, slug_of
from rayfl.record.folder import check_folder_kind, read_config
from rayfl.record.history import CONFIG, METRICS, TABLE, TUNING, read_population
from rayfl.report.page import PAGE, write_page
from rayfl.report.paper_tables import compare, footnotes, grid, notes_of_grid, write_tables
from rayfl.report.printed import printed_table
from rayfl.report.table_page import table_page
from rayfl.settings import at_least
from rayfl.settings.description import changes_numbers, config_of, differing_keys, flatten_config
from rayfl.settings.imports import local_imports
from rayfl.settings.reader import merge_layers
from rayfl.settings.yaml_file import read_mapping
from rayfl.system.error_report import exit_code
from rayfl.system.files import read_file, write_file
from rayfl.system.terminal import Terminal
from rayfl.system.text import complain, counted


@dataclass
class TableOptions:
    """Run a table of experiments: a cell per row, column and seed, several at once.

    Finished cells are not repeated, interrupted ones go on from their last checkpoint. All options of rayfl
    run are taken too, such as --data.root DATA --engine.device cpu: they hold for all cells, and win over
    those of the file.

    Args:
        file: the table: a YAML file, or the name of one that comes with rayfl, such as fedco2/t3.
        rows: rows to run; default: all.
        columns: columns to run; default: all.
        rounds: rounds; default: the file's.
        seeds: number of seeds; default: the file's.
        output: folder; default: runs/<table>.
        code: changed: run cells anew that other code of your own has made.
        list: list the cells, and run nothing.
        jobs: cells to run at once; default: one per CPU, or per GPU, as far as the memory goes; with the
            engine Ray one.
        tune: first search so many points for each cell on validation data: the cell as it is, then learning
            rates and what its method's tune space has; the best are the cells of further columns.
        target: the page says after how many rounds and bytes cells reach this test figure, as it is printed;
            default: that of the row of reference in each column.
        keep_checkpoints: keep the checkpoints of finished cells.
    """

    file: str
    rows: Sequence[str] | None = None
    columns: Sequence[str] | None = None
    rounds: int | None = None
    seeds: SeedCount | None = None
    output: str | None = None
    code: Literal["changed"] | None = None
    list: bool = False
    jobs: Annotated[int, at_least(1)] | None = None
    tune: Annotated[int, at_least(1)] | None = None
    target: float | None = None
    keep_checkpoints: bool = True


def parser() -> Parser:
    """Return the parser of the command line."""
    named, usage = {"file": "FILE", "tune": "POINTS"}, "rayfl table FILE [OPTIONS]"
    return parser_of_function(TableOptions, named, root=Federation, prog="rayfl table", usage=usage)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0 when all cells are finished, 1 if some failed or are being run by another process, 2 after an error
        of the user's, 130 if the table was told to stop.
    """
    return exit_code(local_imports()(lambda: run_table(parser().read(arguments))))


def run_table(given: Any) -> int:
    """Run the table of a parsed command line; see :func:`main`.

    Raises:
        KeyboardInterrupt: after a SIGINT, when running cells have written their checkpoints.
    """
    table = Table.load(find_file(given.file, "examples"))
    changes = changes_of(given, "table")
    output = Path(given.output or Path("runs", slug_of(table.name))).expanduser()
    _check_folder(table, output)
    rows, columns = table.choose("row", given.rows), table.choose("column", given.columns)
    seeds = first_seeds(table.seeds, given.seeds)
    cells, missing = plan_cells(table, rows, columns, seeds, changes, output)
    console = Terminal()
    _print_plan(console, table, cells, missing, output)
    distinct = {(cell.row, cell.column): cell for cell in cells}.values()  # of all seeds one
    settings = [cell.settings for cell in distinct]
    if given.list:
        other = code_changes([cell.folder for cell in cells if cell.folder.exists()], settings)
        for cell in cells:
            state = "finished" if cell.is_finished else f"{len(cell.round_seconds())} of {cell.rounds} rounds"
            state += f", with other code: {', '.join(other[cell.folder])}" if cell.folder in other else ""
            console.print(f"{cell}: {state}", soft_wrap=True)
        return 0
    with console.status("Checking all cells"):
        check_cells(table, cells)
    check_code([cell.folder for cell in cells], settings, remove=given.code is not None)
    # The copy marks the folder as the table's.
    write_file(output / TABLE, read_file(table.path), "choose another --output")
    choices = None
    if given.tune is not None or (output / TUNING).is_file():
        from rayfl.tune import fair  # which takes the time to import Ray

        if given.tune and not fair.tune_cells(table, distinct, given.tune, output, given.code, console):
            console.print("Stopped; the same command goes on.")
            return 128 + signal.SIGINT
        found = fair.read_choices(output)
        table, choices = fair.with_choices(table, found), fair.choices_sheet(found)
        further = [fair.tuned_column(column) for column in columns if given.tune]
        tuned, _ = plan_cells(table, rows, further, seeds, changes, output)
        check_cells(table, tuned)
        cells = sorted([*cells, *tuned], key=lambda cell: seeds.index(cell.seed))
    engines = {str(cell.settings["engine"]).rpartition(".")[2] for cell in cells}  # a name or an import path
    jobs = given.jobs or (1 if "Ray" in engines else None)  # a Ray engine takes all CPUs for itself
    with TableProgress(cells, jobs or automatic_jobs(), console=console) as progress:
        outcome = CellRunner(jobs, progress.print_line, progress.show_jobs, given.keep_checkpoints).run(cells)
    earlier = _finished_earlier(table, cells, output)
    recorded = [*(cell.folder for cell in cells if cell.is_finished), *earlier]
    if recorded:
        entries = compare(table.name, recorded, list(table.rows), list(table.columns))
        printed = printed_table(table.name)
        console.print(grid(entries, table.title, table.reference))
        for line in [*footnotes(entries), *notes_of_grid(entries, table.reference)]:
            console.print(line, soft_wrap=True)
        written = write_tables(entries, table.title, output, table.reference, printed)
        planned = len(cells) + len(earlier)
        page = partial(table_page, table.title, entries, recorded, output, planned, printed, choices)
        if write_page(output, partial(page, table.reference, given.target)):
            written.append(output / PAGE)
        console.print(f"Written: {', '.join(map(str, written))}", soft_wrap=True)
        if printed and printed.rows:
            paper, _, number = table.name.partition("_")
            command = f"rayfl report --against {paper} {number} {output}"
            console.print(f"Beside the printed numbers: {command}", soft_wrap=True)
    for cell, why in outcome.failed.items():
        complain(f"rayfl: failed: {cell}: {why}")
    for cell in outcome.elsewhere:
        complain(f"rayfl: left out: {cell} is being run by another process")
    if outcome.signals:
        console.print("Stopped; the same command goes on.")
        if signal.SIGINT in outcome.signals:
            raise KeyboardInterrupt
        return 128 + signal.SIGINT
    return 1 if outcome.failed or outcome.elsewhere else 0


def plan_cells(
    table: Table,
    rows: Sequence[str],
    columns: Sequence[str],
    seeds: Sequence[int],
    changes: Mapping[str, Any],
    output: Path,
) -> tuple[list[Job], dict[str, str]]:
    """Return the cells to run, and row -> method for rows whose method rayfl does not have.

    All cells run with the first seed before any second seed starts.
    """
    cells, missing = [], {}
    for row, column in product(rows, columns):
        settings = merge_layers({"engine": "Inline"}, table.settings(row, column, changes))
        if method := table.missing_method(settings):
            missing[row] = method
            continue
        with error_context(f"row {row!r}, column {column!r} of {table.path}"):
            federation = federation_of(settings)
        for seed in seeds:
            folder = output / slug_of(row) / slug_of(column) / f"seed-{seed}"
            cells.append(Job(row, column, seed, federation.rounds, folder, settings))
            if not cells[-1].ended_before_first_round:
                _check_same(folder, replace(federation, seed=seed))
    return sorted(cells, key=lambda cell: seeds.index(cell.seed)), missing


def check_cells(table: Table, cells: Sequence[Job]) -> None:
    """Refuse cells that cannot work, before the first one starts.

    For each row and column, only the first seed that is to run is checked.

    Args:
        table: the table of the cells.
        cells: to be run; finished ones are skipped.
    """
    first: dict[tuple[str, str], Job] = {}
    for cell in cells:
        if not cell.is_finished:
            first.setdefault((cell.column, cell.row), cell)
    about, data = "", None
    for cell in sorted(first.values(), key=lambda cell: list(table.columns).index(cell.column)):
        settings = cell.settings | {"seed": cell.seed}
        federation = federation_of(settings)
        with error_context(f"row {cell.row!r}, column {cell.column!r} of {table.path}"):
            federation = replace(federation, engine=federation.engine.resolve())
            if data is None or data_key(settings) != about:  # most cells of a column share their data
                about, data = data_key(settings), federation.federated_data()
            federation.check(data)
            _check_data(cell, federation, data)


def _check_folder(table: Table, output: Path) -> None:
    """Refuse a folder that belongs to a run, a sweep or another table."""
    check_folder_kind(output, "table")
    if (output / TABLE).is_file():
        name = str(read_mapping(output / TABLE, "table file").get("table"))
        if name != table.name:
            problem = f"holds the table {name}, and {table.path} is the table {table.name}"
            raise InUse(output, problem, "choose another --output")


def _check_same(folder: Path, federation: Federation) -> None:
    """Refuse a folder that holds a run with other settings than the cell's."""
    if not (folder / CONFIG).is_file():
        return
    config, private = read_config(folder), federation.private
    if private is not None and private.noise_multiplier is None:  # its run has worked it out
        found = config.get("transforms") or {}
        options = (found[-1] if isinstance(found, list) else found).get("init_args") or {}
        options["noise_multiplier"] = None
    there = flatten_config(config, shown=True)
    wanted = flatten_config(config_of(federation), shown=True)
    known = {key for key in there.keys() & wanted.keys() if changes_numbers(key)}
    known -= {"clients"} if federation.clients is None else set()  # the data have set their number
    if differing := known.intersection(differing_keys(there, wanted)):
        key = min(differing)
        problem = f"holds a run with other settings ({key}: {there[key]} there, {wanted[key]} asked for)"
        raise InUse(folder, problem, "choose another --output, or move it away")
    if federation.rounds < (rounds := there.get("rounds", 0)):
        problem = f"holds a run of {counted(rounds, 'round')}, more than the {federation.rounds} asked for"
        raise InUse(folder, problem, "choose another --output, or ask for as many rounds")


def _check_data(cell: Job, federation: Federation, data: FederatedData) -> None:
    """Refuse data that differ from those of earlier runs of the column with the same settings."""
    wanted = flatten_config(config_of(federation))
    for path in sorted(cell.folder.parents[2].glob(f"*/{cell.folder.parent.name}/seed-*/{METRICS}")):
        keys = differing_keys(flatten_config(read_config(path.parent)), wanted)
        if path.stat().st_size and not any(
            k.partition(".")[0] == "data" and changes_numbers(k) for k in keys
        ):
            contents = read_population(path.parent).contents
            if contents and contents.sha256 != data.contents.get("sha256"):
                raise InUse(path.parent, "has had other data", "bring them back, or choose another --output")
            return  # one run stands for all


def _finished_earlier(table: Table, cells: Sequence[Job], output: Path) -> list[Path]:
    """Return the finished runs of earlier commands, which are none of the given cells."""
    asked = {cell.folder for cell in cells}
    lengths = {(cell.row, cell.column): cell.rounds for cell in cells}  # other seeds must have as many rounds
    found = []
    for row, column in product(table.rows, table.columns):
        for path in sorted((output / slug_of(row) / slug_of(column)).glob(f"seed-*/{CONFIG}")):
            rounds = read_config(path.parent).get("rounds", 0)
            other = path.parent not in asked and rounds == lengths.get((row, column), rounds)
            if other and Job(row, column, 0, rounds, path.parent, {}).is_finished:
                found.append(path.parent)
    return found


def _print_plan(
    console: Console, table: Table, cells: Sequence[Job], missing: Mapping[str, str], output: Path
) -> None:
    finished = sum(cell.is_finished for cell in cells)
    begun = sum(bool(cell.round_seconds()) for cell in cells) - finished
    console.print(f"{table.name}: {table.title}", style="bold", soft_wrap=True)
    state = f", {finished} finished, {begun} begun" if finished or begun else ""
    console.print(f"{counted(len(cells), 'cell')}{state}, in {output}", soft_wrap=True)
    if missing:
        names = [row if row == method else f"{row} (method {method})" for row, method in missing.items()]
        said = f"Left out, because rayfl does not have them yet: {', '.join(names)}"
        console.print(said, soft_wrap=True)
    if not cells:
        raise Missing("there is nothing to run: rayfl has none of the methods of these rows")
