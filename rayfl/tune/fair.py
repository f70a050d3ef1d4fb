"""A fair comparison: a table whose cells are tuned, all with the same budget, before their seeds run.

Each cell is searched by itself, on validation data and with a seed that no run of the table has: the learning
rate, and what its method's own tune space searches first. The best point is the cell of a further column.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from rayfl.errors import BadData, UserError
from rayfl.federation import federation_of
from rayfl.jobs.cells import Job
from rayfl.jobs.table_file import Table, shipped_folder, slug_of
from rayfl.randomness import numpy_generator
from rayfl.record.history import SWEEP, TUNED, TUNING, engine_lines
from rayfl.report.page import Sheet, SheetCell, count_cell
from rayfl.report.text import clock
from rayfl.settings.description import class_name, config_of
from rayfl.settings.reader import DottedSettings, build_object, merge_layers
from rayfl.system.files import read_json, write_file
from rayfl.system.text import one_line
from rayfl.tune import sweep
from rayfl.tune.space import Dimension, Space, display_value, with_absolute_root

AS_IT_IS = "as it is"
"""The point that is the cell itself."""
FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)
"""Of the learning rates that are tried, on that of the cell."""
SEED = 10_000
"""Of all searches, or the next number that the table does not run."""


@dataclass(frozen=True)
class TunedCell:
    """What the search of a cell has chosen.

    Attributes:
        row: of the cell.
        column: of the cell.
        space: what was searched, see ``Space.result_settings``.
        settings: by which the best point differs from the cell.
        chosen: the same as texts; ! where a value is the least or the largest that is tried.
        score: of the best point on validation data, as text.
        points: how many have begun.
        rounds: of all points together.
        seconds: of all rounds.
    """

    row: str
    column: str
    space: dict[str, Any]
    settings: dict[str, Any]
    chosen: list[str]
    score: str
    points: int
    rounds: int
    seconds: float


def tuned_column(column: str) -> str:
    """Return the column that has the tuned cells of another one."""
    return f"{column}{TUNED}"


def space_of_cell(table: Table, cell: Job, points: int, values: Mapping[str, Sequence[Any]]) -> Space:
    """Return what is searched for a cell: the cell as it is, and other points, drawn without repetition.

    Args:
        table: of the cell.
        cell: with any seed.
        points: how many are tried; fewer where there are no more.
        values: what is tried of each setting, see :func:`values_of_cell`.
    """
    base = with_absolute_root({key: value for key, value in cell.settings.items() if key != "cell"})
    federation, tried = federation_of(base), {AS_IT_IS: DottedSettings()}
    every = [dict(zip(values, point)) for point in product(*values.values())]
    for place in numpy_generator(0, "points of a cell").permutation(len(every)):
        if len(tried) == points:
            break
        point = every[place]
        with suppress(UserError):  # not all values go together
            if config_of(federation_of(merge_layers(base, point))) != config_of(federation):
                tried[", ".join(f"{key}={display_value(value)}" for key, value in point.items())] = point
    return Space(
        sweep=slug_of(f"{table.name}-{cell.row}-{cell.column}"),
        title=f"{table.title}: {cell.row}, {cell.column}",
        base=base,
        base_name=cell.column,
        search=((Dimension("point", "grid_search", tuple(tried), tried),),),
        scheduler={"name": "asha", "grace_period": max(1, federation.rounds // 9), "reduction_factor": 3},
        seeds=(next(seed for seed in range(SEED, SEED + 2_000) if seed not in table.seeds),),
    )


def values_of_cell(table: Table, cell: Job) -> dict[str, list[Any]]:
    """Return what is tried of each setting: learning rates, and what the first search of the method's own
    tune space has that the row leaves open.
    """
    rate = federation_of(cell.settings).training.lr
    found: dict[str, list[Any]] = {"training.lr": [float(f"{rate * factor:.6g}") for factor in FACTORS]}
    file = shipped_folder("tune_spaces") / f"{class_name(str(cell.settings['method'])).lower()}.yaml"
    named = table.rows[cell.row].settings | table.rows[cell.row].at.get(cell.column, {})
    for each in Space.load(file).search[0] if file.is_file() else ():
        if each.key.startswith("method.") and each.key not in named:
            found[each.key] = list(each.values)
    return found


def tune_cells(
    table: Table,
    cells: Collection[Job],
    points: int,
    output: Path,
    code: Literal["changed"] | None,
    console: Console,
) -> bool:
    """Search cells whose search is not over; return whether all are.

    Args:
        table: of the cells.
        cells: each with any seed.
        points: how many are tried for each cell.
        output: the folder of the table.
        code: see :func:`rayfl.tune.sweep.run`.
        console: for the output.
    """
    made = {(each.row, each.column): each for each in read_choices(output)}
    for cell in cells:
        values = values_of_cell(table, cell)
        space, place = space_of_cell(table, cell, points, values), (cell.row, cell.column)
        if place in made and made[place].space == space.result_settings:
            continue
        folder = output.joinpath("tuning", *map(slug_of, place))
        done = sweep.run(space, folder, resume=(folder / SWEEP).is_file(), code=code, console=console)
        if not done.complete:
            return False
        made[place] = _tuned_cell(cell, space, values, done)
        content = [asdict(made[each]) for each in product(table.rows, table.columns) if each in made]
        write_file(output / TUNING, json.dumps(content, indent=1) + "\n")
    return True


def _tuned_cell(
    cell: Job, space: Space, values: Mapping[str, Sequence[Any]], done: sweep.SweepResult
) -> TunedCell:
    if not done.best.points:
        why = next(iter(done.failed.values()), "none has a score on validation data")
        raise BadData(f"row {cell.row!r}, column {cell.column!r}", f": no point can be chosen: {why}")
    best = done.best.points[0]
    chosen = space.search[0][0].bundles[best.point.values["point"]]
    lines = [line for result in done.results for run in result.folders for line in engine_lines(run)]
    return TunedCell(
        cell.row,
        cell.column,
        space.result_settings,
        chosen,
        [_chosen_text(key, chosen[key], tried) for key, tried in values.items() if key in chosen],
        best.score_text(space.metric),
        len(done.results),
        len(lines),
        float(sum(line["seconds"] for line in lines)),
    )


def _chosen_text(key: str, value: Any, tried: Sequence[Any]) -> str:
    """Return a chosen value; ! where it is the least or the largest number of those that are tried."""
    numbers = [each for each in tried if type(each) in (int, float)]
    edge = "!" if len(numbers) > 1 and value in (min(numbers), max(numbers)) else ""
    return f"{key}={display_value(value)}{edge}"


def read_choices(output: Path) -> list[TunedCell]:
    """Return what searches of a table's folder have chosen."""
    file = output / TUNING
    return [build_object(TunedCell, each) for each in read_json(file)] if file.is_file() else []


def with_choices(table: Table, choices: Sequence[TunedCell]) -> Table:
    """Return a table with a tuned column beside every one of which cells are tuned."""
    choices = [each for each in choices if each.row in table.rows and each.column in table.columns]
    columns: dict[str, DottedSettings] = {}
    for name, settings in table.columns.items():
        columns[name] = settings
        if any(each.column == name for each in choices):
            columns[tuned_column(name)] = settings
    rows = dict(table.rows)
    for each in choices:
        own = rows[each.row]
        further = {tuned_column(each.column): own.at.get(each.column, {}) | each.settings}
        rows[each.row] = replace(own, at=own.at | further)
    return replace(table, columns=columns, rows=rows)


def choices_sheet(choices: Sequence[TunedCell]) -> Sheet:
    """Return what was chosen for each cell, and what it has cost."""
    columns: dict[str, list[str | SheetCell]] = {
        "row": [one_line(each.row) for each in choices],
        "column": [one_line(each.column) for each in choices],
        "chosen": [one_line(", ".join(each.chosen) or AS_IT_IS) for each in choices],
        "validation": [each.score for each in choices],
        "points": [str(each.points) for each in choices],
        "rounds": [count_cell(each.rounds) for each in choices],
        "time": [SheetCell(clock(each.seconds), each.seconds) for each in choices],
    }
    caption = "What was chosen on validation data; !: the least or the largest value that was tried"
    return Sheet.of_columns(caption, columns)
