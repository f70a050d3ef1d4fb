"""The pages of tables of experiments and of sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from rayfl.data.task import figure_titles
from rayfl.evaluation.run_records import RunRecords
from rayfl.record.history import TUNED, engine_lines
from rayfl.report.compare import conflicts_of, group_by, over_seeds, samples
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
    column_ranks,
    entry_columns,
    footnotes,
    laid_out,
    our_figure,
    warnings_of,
)
from rayfl.report.printed import Printed
from rayfl.report.run_page import list_warnings, log_warnings
from rayfl.report.text import clock, size
from rayfl.system.text import one_line

DRAWN = 8
"""Lines of a chart at most."""


def table_page(
    title: str,
    entries: Sequence[Entry],
    folders: Sequence[Path],
    home: Path,
    planned: int,
    printed: Printed | None = None,
    choices: Sheet | None = None,
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
    """
    runs, _ = samples(map(RunRecords.load, folders), cell_of)
    planned -= len(folders) - len(runs)
    complete = sum(run.complete for run in runs)
    notes = warnings_of(entries)
    if dropped := sum(run.summary["dropped"] for run in runs):
        notes.append(f"Dropped updates: {dropped:,}; the table of runs says in which.")
    figures = figure_titles(entry.kind for entry in entries)
    beside = any(entry.printed_mean is not None for entry in entries)
    logged = {text: None for folder in folders for text in log_warnings(folder)}
    return render(
        "table.html",
        title=one_line(title),
        state={
            "kind": "done" if complete >= planned else "running",
            "text": f"{complete:,} of {planned:,} runs are finished",
        },
        grid=_grid_sheet(entries),
        footnotes=[one_line(text) for text in footnotes(entries, printed)],
        notes=[*map(one_line, notes), *list_warnings(logged)],
        curves=[*_rank_charts(entries), *_table_curves(runs)],
        choices=choices,
        cells=Sheet.of_columns(f"Every cell; {figures}", entry_columns(entries, beside), search=True),
        runs=_run_sheet(runs, home),
    )


def _grid_sheet(entries: Sequence[Entry]) -> Sheet:
    """Return our figures, methods down and columns across, and mark the best of each column."""
    columns = dict.fromkeys(entry.column for entry in entries)
    ranked = column_ranks(entries)
    rows: list[Row] = []
    for row, mine in laid_out(entries).items():
        best = {column for column in mine if ranked.get((row, column)) == "best"}
        figures = [
            SheetCell(our_figure(e), e.mean if e else None, best=column in best) for column, e in mine.items()
        ]
        rows.append([one_line(row), *figures])
    titles = figure_titles(entry.kind for entry in entries)
    caption = f"Test {titles}; the best of a column, on the same data, is bold"
    return Sheet(caption, ["row", *map(one_line, columns)], rows)


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
        best = sorted(lines, key=lambda line: -kind.sign * line.y[-1])[:DRAWN]
        which = f"; the {DRAWN} best of {len(lines)} rows" if len(lines) > DRAWN else ""
        shown = [line for line in lines if line in best]
        found.append(
            line_chart(f"Test {kind.title}, {column}, mean over seeds{which}", shown, kind.axis, kind.text)
        )
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
