"""The pages of tables of experiments and of sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from rayfl.data.task import figure_titles
from rayfl.evaluation.run_records import RunRecords
from rayfl.record.history import TUNED, engine_lines
from rayfl.report.compare import conflicts_of, group_by, over_seeds, samples, target_costs
from rayfl.report.critical_difference import ranks_chart
from rayfl.report.method_looks import looks_of
from rayfl.report.page import (
    PAGE,
    Chart,
    Line,
    Row,
    Sheet,
    SheetCell,
    count_cell,
    figure_cell,
    line_chart,
    render,
)
from rayfl.report.paper_tables import (
    Entry,
    cell_of,
    cell_tests,
    column_ranks,
    entry_columns,
    footnotes,
    laid_out,
    notes_of_grid,
    our_figure,
    warnings_of,
)
from rayfl.report.printed import Printed
from rayfl.report.run_page import list_warnings, log_warnings
from rayfl.report.significance import REFERENCE
from rayfl.report.text import clock, range_text, size
from rayfl.system.text import one_line


def table_page(
    title: str,
    entries: Sequence[Entry],
    folders: Sequence[Path],
    home: Path,
    planned: int,
    printed: Printed | None = None,
    choices: Sheet | None = None,
    reference: str = REFERENCE,
    target: float | None = None,
) -> str:
    """Return the page of a table of experiments.

    Args:
        title: of the table.
        entries: its cells.
        folders: of the runs.
        home: the folder of the table; links to the runs' pages start there.
        planned: number of runs of the complete table.
        printed: the paper's numbers.
        choices: what was chosen for tuned cells.
        reference: the row that others are tested against.
        target: a test figure, as it is printed; None: that of the row of reference in each column.
    """
    runs, _ = samples(map(RunRecords.load, folders), cell_of)
    planned -= len(folders) - len(runs)
    complete = sum(run.complete for run in runs)
    notes = warnings_of(entries)
    if dropped := sum(run.summary["dropped"] for run in runs):
        notes.append(f"Dropped updates: {dropped:,}; the table of runs says in which.")
    figures = figure_titles(entry.kind for entry in entries)
    beside = any(entry.printed_mean is not None for entry in entries)
    cells = entry_columns(entries, beside) | _cost_columns(entries, runs, reference, target)
    cells |= _minus_column(entries, reference)
    cells["warnings"] = cells.pop("warnings")  # the longest come last
    logged = {text: None for folder in folders for text in log_warnings(folder)}
    return render(
        "table.html",
        title=one_line(title),
        state={
            "kind": "done" if complete >= planned else "running",
            "text": f"{complete:,} of {planned:,} runs are finished",
        },
        grid=_grid_sheet(entries, reference),
        footnotes=[*map(one_line, footnotes(entries, printed) + notes_of_grid(entries, reference))],
        notes=[*map(one_line, notes), *list_warnings(logged)],
        curves=[*_rank_charts(entries), *_table_curves(runs)],
        choices=choices,
        cells=Sheet.of_columns(f"Every cell; {figures}", cells, search=True),
        runs=_run_sheet(runs, home),
    )


def _grid_sheet(entries: Sequence[Entry], reference: str) -> Sheet:
    """Return our figures, methods down and columns across, with ranks and the stars of tests."""
    columns = dict.fromkeys(entry.column for entry in entries)
    ranked = column_ranks(entries)
    starred = {(test.row, test.place) for test in cell_tests(entries, reference) if test.significant}
    rows: list[Row] = []
    for row, mine in laid_out(entries).items():
        cells: list[str | SheetCell] = [one_line(row)]
        for column, entry in mine.items():
            text = our_figure(entry) + "*" * ((row, column) in starred)
            cells.append(SheetCell(text, entry.mean if entry else None, rank=ranked.get((row, column), "")))
        rows.append(cells)
    caption = f"Test {figure_titles(entry.kind for entry in entries)}"
    return Sheet(caption, ["row", *map(one_line, columns)], rows)


def _cost_columns(
    entries: Sequence[Entry], runs: Sequence[RunRecords], reference: str, target: float | None
) -> dict[str, list[str | SheetCell]]:
    """Return after how many rounds and bytes cells reach a target; see :func:`table_page`."""
    goals = {entry.column: entry.mean for entry in entries if entry.row == reference}
    known = group_by(runs, lambda run: cell_of(run)[:2])
    what = f"{one_line(reference)}'s figure" if target is None else f"{target:g}{entries[0].kind.unit}"
    columns: dict[str, list[str | SheetCell]] = {f"rounds to {what}": [], f"bytes to {what}": []}
    for entry in entries:
        goal = goals.get(entry.column) if target is None else target
        own = [] if goal is None else known.get((entry.row, entry.column), [])
        costs, texts = target_costs(own, goal or 0.0).values(), ("{:,}".format, size)
        for cells, values, text in zip(columns.values(), costs, texts):
            cells.append(SheetCell(range_text(values, text) or "–", max(filter(None, values), default=None)))
    return columns if target is not None or goals else {}


def _minus_column(entries: Sequence[Entry], reference: str) -> dict[str, list[str | SheetCell]]:
    """Return by how much cells differ from the row of reference, where this is tested."""
    found = {
        (test.row, test.place): SheetCell(f"{test.difference:+.2f} ± {test.interval:.2f}", test.difference)
        for test in cell_tests(entries, reference)
    }
    shown = [found.get((entry.row, entry.column), SheetCell("", None)) for entry in entries]
    return {one_line(f"minus {reference}"): [*shown]} if found else {}


def _rank_charts(entries: Sequence[Entry]) -> list[Chart]:
    """Return the mean ranks of rows over columns, and over tuned columns, where there are enough."""
    found = []
    for tuned in (False, True):
        scored = [each for each in entries if each.mean is not None and each.column.endswith(TUNED) == tuned]
        columns = group_by(scored, lambda entry: entry.column).values()
        found.append(ranks_chart([{e.row: e.kind.sign * (e.mean or 0.0) for e in own} for own in columns]))
    return [chart for chart in found if chart is not None]


def _table_curves(runs: Sequence[RunRecords]) -> list[Chart]:
    """Return a chart per column: the figures of the rows over rounds, means over seeds."""
    found = []
    for column, cells in group_by(runs, lambda run: cell_of(run)[1]).items():
        lines, kind = [], cells[0].figure_kind
        rows = group_by(cells, lambda run: cell_of(run)[0])
        for look, (row, own) in zip(looks_of(own[0].method for own in rows.values()), rows.items()):
            rounds, values = over_seeds([run.curve()] for run in own)
            if len(rounds) and not conflicts_of(own, cell_of):
                lines.append(Line(row, rounds, values.mean(axis=0), look))
        title = f"Test {kind.title}, {column}, mean over seeds"
        found.append(line_chart(title, lines, kind.axis, kind.text))
    return [chart for chart in found if chart is not None]


def link(folder: Path, home: Path) -> str:
    """Return the link to a run's page from the folder of its table or sweep; empty: the run is outside."""
    folder, home = folder.absolute(), home.absolute()
    return quote((folder / PAGE).relative_to(home).as_posix()) if folder.is_relative_to(home) else ""


def _run_sheet(runs: Sequence[RunRecords], home: Path) -> Sheet:
    names = [one_line(f"{row}, {column}") for row, column, _ in map(cell_of, runs)]
    figures = [figure_cell((run.summary["headline"] or {}).get("figure"), run.figure_kind) for run in runs]
    signs = ["¶" * (run.protocol.choose == "best_test") for run in runs]
    seconds = [float(sum(line["seconds"] for line in engine_lines(run.folder))) for run in runs]
    summaries = [run.summary for run in runs]
    columns: dict[str, list[str | SheetCell]] = {
        "run": [SheetCell(name, None, href=link(run.folder, home)) for name, run in zip(names, runs)],
        "seed": [SheetCell(str(seed), float(seed)) for _, _, seed in map(cell_of, runs)],
        figure_titles(run.figure_kind for run in runs): [
            replace(figure, text=figure.text + sign) for figure, sign in zip(figures, signs)
        ],
        "rounds": [
            SheetCell(f"{each['completed']:,} of {each['rounds']:,}", float(each["completed"]))
            for each in summaries
        ],
        "sent": [SheetCell(size(each["up"]), float(each["up"])) for each in summaries],
        "received": [SheetCell(size(each["down"]), float(each["down"])) for each in summaries],
        "time": [SheetCell(clock(each), each) for each in seconds],
        "updates dropped": [count_cell(each["dropped"]) for each in summaries],
    }
    return Sheet.of_columns("Every run, with its own page", columns, search=True)
