"""Tables of experiments: our figures cell by cell, compared with the numbers that papers print."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from rayfl.data.task import figure_titles
from rayfl.errors import Missing
from rayfl.evaluation.metrics import AVERAGES, CHOICES
from rayfl.evaluation.protocol import CHOSEN_ON_TEST
from rayfl.evaluation.run_records import RunRecords
from rayfl.report import significance
from rayfl.report.compare import (
    CONFLICT,
    FURTHER,
    Entry,
    RunGroup,
    conflicts_of,
    data_of,
    data_warnings,
    facts,
    figures,
    group_by,
    machine_warnings,
    ranks_of,
    samples,
    scores_of,
)
from rayfl.report.formats import MARKS, SIGNS, SUFFIXES, ranked_cell, signed_texts, warning_signs, write_table
from rayfl.report.page import SheetCell, number_cell
from rayfl.report.printed import HEADLINE, CellFigure, Column, Printed, printed_table
from rayfl.report.significance import REFERENCE
from rayfl.report.text import mean_and_std, number, plain_table
from rayfl.settings.description import changes_experiment, differing_keys
from rayfl.system.text import one_line

SPREADS = {
    "seeds": "sample standard deviation over seeds",
    "evaluations": "standard deviation over the evaluations that one run averages",
}
"""Meanings of ± in our figures."""
OTHER_DATA = "§ on other data than most of its column"


Runs = dict[tuple[str, str], list[RunRecords]]
"""Runs by row and column of the table file."""


def compare(
    name: str, filled: Iterable[RunRecords | Path], rows: Sequence[str] = (), columns: Sequence[str] = ()
) -> list[Entry]:
    """Return the cells of a table that have runs, with the printed numbers if there are any.

    Args:
        name: of the table.
        filled: runs, or their folders; those of other tables are passed over.
        rows: names of rows, in their order; rows that are not named follow.
        columns: likewise for the columns of a table that no paper prints.
    """
    loaded = (run if isinstance(run, RunRecords) else RunRecords.load(run) for run in filled)
    cells = (run for run in loaded if (run.config.get("cell") or {}).get("table") == name)
    runs: Runs = group_by(cells, lambda run: cell_of(run)[:2])
    if not runs:
        raise Missing(
            "runs",
            f"have no cell of {name}",
            "run the table with `rayfl table`, or a cell of it with `rayfl run --config TABLE --row ROW "
            "--column COLUMN`",
        )
    printed = printed_table(name) or Printed(name=name, paper="", number="", title="", columns={})
    in_print = [row for row in printed.rows if row not in printed.figures]
    names = list(dict.fromkeys([*rows, *in_print, *(row for row, _ in runs)]))
    found = list[Entry | None]()
    for source in names:
        others = {row: other for row, (of, other) in printed.figures.items() if of == source}
        for row, other in ({source: None} | others).items():
            for column, parts in printed.parts.items():
                shown = [replace(part, figure=other or part.figure) for part in parts]
                entry = _our_entry(runs, row, column, source, shown)
                found.append(entry and _add_printed(entry, printed))
    known = {part.cell for parts in printed.parts.values() for part in parts}
    order = dict.fromkeys([*columns, *(column for _, column in runs)])
    own = [column for column in order if column not in known]
    found += [_our_entry(runs, row, column, row, [Column(column)]) for row in names for column in own]
    entries = [entry for entry in found if entry is not None]
    for each in entries:
        held = [other.data for other in entries if other.column == each.column and other.data]
        if each.data and each.data != max(held, key=held.count):
            each.warnings.append(OTHER_DATA)
    return entries


def _our_entry(runs: Runs, row: str, column: str, source: str, parts: Sequence[Column]) -> Entry | None:
    """Return our side of a cell; None where there is no run for it.

    Args:
        runs: all runs.
        row: name of the row.
        column: name of the column.
        source: the row whose runs have the figure.
        parts: the columns whose figures the cell averages.
    """
    known = [samples(runs.get((source, part.cell), []), cell_of) for part in parts]
    cells = [{cell_of(run)[2]: run for run in kept} for kept, _ in known]
    seeds = sorted(set[int].intersection(*map(set, cells)))
    if not seeds:
        return None
    complete = [seed for seed in seeds if all(cell[seed].complete for cell in cells)]
    short = [seed for seed in seeds if complete and seed not in complete]
    seeds = complete or seeds
    ours = [[cell[seed] for seed in seeds] for cell in cells]
    every = [run for own in ours for run in own]
    warnings = _run_warnings(every) + machine_warnings(every, [run for cell in runs.values() for run in cell])
    if short:
        warnings.append(f"without the seeds that are not complete yet ({', '.join(map(str, short))})")
    warnings += dict.fromkeys(text for _, left_out in known for text in left_out)
    entry = Entry(row, column, None, None, "", seeds, warnings=warnings, kind=every[0].figure_kind)
    conflicts = "; ".join(filter(None, (conflicts_of(kept, cell_of) for kept, _ in known)))
    if why := f"{conflicts} ({CONFLICT})" if conflicts else _differences_of_seeds(ours):
        warnings.append(f"no mean, because {why}")
        return entry
    found = [[figure(run, part.figure) for run, part in zip(own, parts)] for own in zip(*ours)]
    means = [mean_and_std([value for value, _ in each])[0] for each in found]
    mean, std = mean_and_std(means)
    if mean is None:
        return entry
    spread = "seeds" if len(seeds) > 1 else ""
    if len(seeds) == 1 and len(parts) == 1 and (over := found[0][0][1]) is not None:
        std, spread = over, "evaluations"
    values = {seed: value for seed, value in zip(seeds, means) if complete and value is not None}
    data = ", ".join(dict.fromkeys(data_of(own[0]) for own in ours))
    beside = figures(RunGroup({}, ours[0], True)) if parts == [Column(parts[0].cell)] else {}
    further = {name: mean_and_std(x)[0] for name, x in beside.items() if name not in ("headline", *CHOICES)}
    return replace(entry, mean=mean, std=std, spread=spread, values=values, data=data, further=further)


def _differences_of_seeds(parts: Sequence[Sequence[RunRecords]]) -> str:
    """Say why runs of several seeds have no mean; empty where they may have one."""
    facts: dict[str, Callable[[RunRecords], object]] = {
        "data": data_of,
        "numbers of rounds": lambda run: None if run.summary["early"] else run.summary["rounds"],
    }
    for what, tells in facts.items():
        if any(len({*map(tells, own)} - {None}) > 1 for own in parts):
            return f"its seeds have different {what}"
    keys = sorted({key for own in parts for key in _changing_facts(own)})
    return f"its seeds have different settings ({', '.join(keys)})" if keys else ""


def cell_of(run: RunRecords) -> tuple[str, str, int]:
    """Return the row, the column and the seed of a run of a table."""
    cell = run.config["cell"]
    return one_line(str(cell["row"])), one_line(str(cell["column"])), int(run.config.get("seed", 0))


def _changing_facts(runs: Sequence[RunRecords]) -> set[str]:
    """Return the facts that all runs have, and not with the same value; seeds and places do not count."""
    first, *others = map(facts, runs)
    found = {key for other in others for key in differing_keys(first, other) if key in first and key in other}
    return {key for key in found if key != "rounds" and changes_experiment(key)}


def _add_printed(entry: Entry, printed: Printed) -> Entry:
    """Add the paper's side of a cell."""
    row = printed.same.get(entry.row, entry.row)
    mean, std = printed.rows.get(row, {}).get(entry.column, (None, None))
    why = printed.reason(row, entry.column)
    warnings = [*([f"out of reach: {why}"] if why else []), *entry.warnings]
    return replace(entry, printed_mean=mean, printed_std=std, warnings=warnings)


def _run_warnings(runs: Sequence[RunRecords]) -> list[str]:
    changed = dict.fromkeys(one_line(str(text)) for run in runs for text in run.config["cell"]["changed"])
    warnings = [f"with {', '.join(changed)}"] if changed else []
    warnings += dict.fromkeys(text for run in runs for text in data_warnings(run))
    unfinished = (run.summary for run in runs if not run.complete)
    if least := min(unfinished, key=lambda each: each["completed"] / each["rounds"], default=None):
        warnings.append(f"only {least['completed']} of {least['rounds']} rounds yet")
    return warnings


def figure(run: RunRecords, what: CellFigure) -> tuple[float | None, float | None]:
    """Return a figure of a run as printed, and its deviation over the evaluations that it averages.

    Returns:
        None and None if the run has no such figure.
    """
    headline, scale = run.summary["headline"], run.figure_kind.scale
    if headline is None:
        return None, None
    for point in what.points:
        rounds, values = run.scored(point=point, average=_AVERAGES.get(what.average)).curve()
        if len(values):
            found = values[np.isin(rounds - 1, headline["rounds"])]
            return float(found.mean()) if len(found) else None, None
    chosen = {} if what.points else run.scored(view=what.view or None).chosen
    several = len(chosen.get("rounds", ())) > 1
    if what.domain:
        domains = {_plain_domain(name): each for name, each in chosen.get("domains", {}).items()}
        chosen = domains.get(_plain_domain(what.domain), {})
    name = AVERAGES[run.protocol.average] if what == HEADLINE else what.average or "mean"
    mean, std = chosen.get(name), chosen["over_rounds"].get(name) if several and chosen else None
    return None if mean is None else scale * mean, None if std is None else scale * std


_AVERAGES = {name: average for average, name in AVERAGES.items()}


def _plain_domain(name: str) -> str:
    """Return a domain's name without what data sets and papers write differently."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


# ---- output


def grid(entries: Sequence[Entry], title: str, reference: str = REFERENCE, beside: bool = False) -> Table:
    """Return our figures in the paper's layout: methods down, columns across.

    In each column the best figure is bold and the second underlined. A star marks figures that differ from
    the reference row's.

    Args:
        entries: the cells.
        title: of the table.
        reference: the reference row.
        beside: whether printed numbers follow ours in brackets.
    """
    table = plain_table(title, [""], dict.fromkeys(entry.column for entry in entries))
    starred = {(d.place, d.row) for d in cell_tests(entries, reference) if d.significant}
    ranked = column_ranks(entries)
    for row, mine in laid_out(entries).items():
        cells = []
        for column, entry in mine.items():
            text = our_figure(entry) + ("*" if (column, row) in starred else "")
            if entry and beside and entry.printed_mean is not None:
                text += f" ({number(entry.printed_mean, entry.printed_std)})"
            cells.append(ranked_cell(text, ranked.get((row, column), "")))
        table.add_row(row, *cells)
    return table


def laid_out(entries: Sequence[Entry]) -> dict[str, dict[str, Entry | None]]:
    """Return row -> column -> the cell there, if there is one, in the layout of papers."""
    places = {(entry.row, entry.column): entry for entry in entries}
    columns = dict.fromkeys(entry.column for entry in entries)
    return {row: {c: places.get((row, c)) for c in columns} for row in dict.fromkeys(e.row for e in entries)}


def _comparable(entries: Sequence[Entry]) -> list[Entry]:
    """Return the cells on the same data as most of their column."""
    return [entry for entry in entries if OTHER_DATA not in entry.warnings]


def column_ranks(entries: Sequence[Entry]) -> dict[tuple[str, str], str]:
    """Return by row and column which figure is the best on the same data, and which the second."""
    return ranks_of(_comparable(entries))


def cell_tests(entries: Sequence[Entry], reference: str) -> list[significance.Difference]:
    """Test in each column the rows against the row of reference, on the same data."""
    scores = scores_of(_comparable(entries))
    return significance.differences(scores, dict.fromkeys(scores, reference))


def printed_comparison(entries: Sequence[Entry], printed: Printed) -> Table:
    """Return our figures beside the paper's: a line per cell, column by column."""
    title = f"{printed.paper}, {printed.number}: {printed.title}"
    table = plain_table(title, ["column", "row"], ["ours", "printed", "difference", "seeds"])
    table.add_column("warnings")
    for cells in group_by(entries, lambda entry: entry.column).values():
        for entry in cells:
            gap = entry.difference
            table.add_row(
                entry.column,
                entry.row,
                our_figure(entry),
                number(entry.printed_mean, entry.printed_std) if entry.printed_mean is not None else "–",
                "" if gap is None else "-+"[gap >= 0] + entry.kind.text(abs(gap)),
                str(len(entry.seeds)),
                "; ".join(entry.warnings),
            )
        table.add_section()
    return table


def footnotes(entries: Sequence[Entry], printed: Printed | None = None) -> list[str]:
    """Return sentences that define our figures and the printed ones."""
    spreads = list(dict.fromkeys(entry.spread for entry in entries if entry.spread))
    text = [f"Test {figure_titles(entry.kind for entry in entries)}."] if entries else []
    if len(spreads) == 1:
        text.append(f"Our ±: {SPREADS[spreads[0]]}.")
    elif spreads:
        text.append(f"Our ±: {SPREADS['seeds']}; where there is one seed, {SPREADS['evaluations']}.")
    text += significance.describe_intervals(len(entry.seeds) for entry in entries if entry.spread == "seeds")
    text += [f"{warning}." for warning in signed_texts(text for entry in entries for text in entry.warnings)]
    if printed is not None and printed.rows:
        text.append(f"Printed ±: {printed.spread}." if printed.spread else "The paper prints no ±.")
        text += printed.notes
    return text


def notes_of_grid(entries: Sequence[Entry], reference: str = REFERENCE) -> list[str]:
    """Say what bold, underlined and starred figures are."""
    marks = [MARKS.format(where="column")] if column_ranks(entries) else []
    scores = scores_of(_comparable(entries))
    return marks + significance.describe_tests(scores, cell_tests(entries, reference), reference)


def write_tables(
    entries: Sequence[Entry], title: str, folder: Path, reference: str, printed: Printed | None = None
) -> list[Path]:
    """Write ``table.md``, ``table.csv``, ``table.json``, ``table.html`` and ``table.tex`` into a folder.

    LaTeX has only our figures, Markdown and HTML also the printed ones. ``seeds`` is the number of seeds in
    CSV, as in print, and their list in JSON.
    """
    paths = [folder / f"table{ending}" for ending in SUFFIXES]
    for path in paths:
        beside = path.suffix != ".tex"
        notes = [*footnotes(entries, printed if beside else None), *notes_of_grid(entries, reference)]
        if beside and any(entry.printed_mean is not None for entry in entries):
            notes.append("Printed numbers are in brackets.")
        more = {"tests": [asdict(test) for test in cell_tests(entries, reference)]}
        laid = grid(entries, title, reference, beside)
        write_table(path, laid, notes, entry_records(entries), warnings_of(entries), **more)
    return paths


def entry_records(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Return the cells with the keys of ``table.json``."""
    found = []
    for entry in entries:
        record = asdict(entry) | {"difference": entry.difference, "interval": entry.interval}
        further = record.pop("further")
        if entry.by_test:
            ours = ("mean", "std", "values", "interval", "difference")
            further |= {name: record.pop(name) for name in ours}
            further = {f"{name} ({CHOSEN_ON_TEST})": value for name, value in further.items()}
        found.append(record | further)
    return found


def entry_columns(entries: Sequence[Entry], beside: bool) -> dict[str, list[str | SheetCell]]:
    """Return what pages say of cells: heading -> a cell of each; ``beside`` printed numbers on request."""
    columns: dict[str, list[str | SheetCell]] = {
        "row": [one_line(entry.row) for entry in entries],
        "column": [one_line(entry.column) for entry in entries],
        "ours": [SheetCell(our_figure(entry), entry.mean) for entry in entries],
        "95 % interval: ±": [number_cell(entry.interval) for entry in entries],
    }
    if beside:
        columns["printed"] = [number_cell(entry.printed_mean) for entry in entries]
        columns["difference"] = [number_cell(entry.difference) for entry in entries]
    for name in dict.fromkeys(name for entry in entries for name in entry.further):
        heading = FURTHER.get(name, one_line(name)).replace("\n", " ")
        found = [(entry.further.get(name), entry.kind) for entry in entries]
        as_printed = name in FURTHER
        columns[heading] = [SheetCell(k.text(x), x) if as_printed else number_cell(x, 4) for x, k in found]
    columns["seeds"] = [", ".join(map(str, entry.seeds)) for entry in entries]
    columns["warnings"] = [one_line("; ".join(entry.warnings)) for entry in entries]
    return columns


def our_figure(entry: Entry | None) -> str:
    """Return our figure with its deviation and signs; empty where there is no cell."""
    return "" if entry is None else entry.kind.text(entry.mean, entry.std) + warning_signs(entry.warnings)


def warnings_of(entries: Iterable[Entry]) -> list[str]:
    """Return all warnings, each once; those that have a sign are footnotes."""
    warnings = dict.fromkeys(text for entry in entries for text in entry.warnings)
    return [text for text in warnings if not text.startswith(SIGNS)]
