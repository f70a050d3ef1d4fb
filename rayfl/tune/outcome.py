"""The results of a sweep: the table of its points, and the best one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from rayfl.data.task import ACCURACY, Figure
from rayfl.evaluation.metrics import Metric, none_if_nan, summarise
from rayfl.jobs.cells import Job
from rayfl.jobs.table_file import slug_of
from rayfl.record.history import METRICS, History, read_records
from rayfl.report.compare import group_by
from rayfl.report.page import Row, Sheet, SheetCell, count_cell
from rayfl.report.table_page import link
from rayfl.report.text import mean_and_std, plain_table
from rayfl.running.result import Result
from rayfl.settings.description import display_name
from rayfl.settings.yaml_file import yaml_text
from rayfl.system.files import write_file
from rayfl.system.text import csv_cell, one_line
from rayfl.tune.space import SearchPoint, Space, display_value
from rayfl.tune.trial import validation_score

if TYPE_CHECKING:
    import pandas as pd

BEST_FILE = "best.yaml"
POINTS_FILE = "points.csv"


@dataclass(frozen=True)
class PointResult:
    """The results of a point.

    Attributes:
        point: the point.
        seeds: of the runs that have records, in the order of the following lists.
        scores: validation scores at the rounds that the protocol chooses, of as many rounds as all of its
            runs have; None: a run has no score.
        tests: test figures at the same rounds; None: a run has none.
        completed: rounds that all of its runs have completed; 0 if a run has none.
        folders: of the runs, parallel to ``seeds``.
        kind: of figure.
        reached: rounds that each run has completed, parallel to ``seeds``.
        number: of the point, from 0, in the order in which points have begun.
    """

    point: SearchPoint
    seeds: list[int]
    scores: list[float | None]
    tests: list[float | None]
    completed: int
    folders: list[Path] = field(default_factory=list)
    kind: Figure = ACCURACY
    reached: list[int] = field(default_factory=list)
    number: int = 0

    @property
    def method(self) -> str:
        """The name of its method, for display."""
        name = str(self.point.settings.get("method", "FedBN"))
        return display_name(name if "." in name else f"rayfl.methods.{name}")

    @property
    def score(self) -> float | None:
        """The mean validation score, without rounding errors in float64; None if a run has none."""
        mean, _ = mean_and_std(self.scores)
        return None if mean is None else round(mean, 12)

    def score_text(self, metric: Metric) -> str:
        """Return the mean validation score, with its deviation over seeds, as text."""
        return compared(metric, self.kind).shown(*mean_and_std(self.scores))


def compared(metric: Metric, kind: Figure) -> Figure:
    """Return what validation scores are, for display.

    Args:
        metric: by which points are compared.
        kind: of the reported figure.
    """
    if metric == "loss":
        return Figure("loss", higher=False)
    return kind if metric == "figure" else replace(kind, name=metric)


def result_of(number: int, point: SearchPoint, jobs: Sequence[Job], metric: Metric) -> PointResult:
    """Read what the runs of a point have recorded.

    Args:
        number: of the point, from 0.
        point: the point.
        jobs: its trials, one per seed.
        metric: by which points are compared.
    """
    runs = [Result.load(job.folder) for job in jobs if (job.folder / METRICS).is_file()]
    reached = [run.summary["rounds" if run.complete else "completed"] for run in runs]
    completed = min(reached, default=0) if len(runs) == len(jobs) else 0
    if len(set(reached)) > 1:  # a scheduler has stopped some of them
        runs = [_first_rounds(run, min(reached)) for run in runs]
    return PointResult(
        point,
        [run.config.get("seed", 0) for run in runs],
        [validation_score(run, metric) for run in runs],
        [none_if_nan(run.figure) for run in runs],
        completed,
        [run.folder for run in runs],
        runs[0].figure_kind if runs else ACCURACY,
        reached,
        number,
    )


def _first_rounds(run: Result, rounds: int) -> Result:
    """Return a run with the summary that it had after so many rounds."""
    history = History.build(run.history.population, islice(read_records(run.folder), rounds))
    return replace(run, summary=summarise(history, run.protocol, run.config["rounds"]))


def best_of(results: Sequence[PointResult], mode: str) -> PointResult | None:
    """Return the first of the best points on validation data, among those with the most rounds."""
    sign = 1 if mode == "max" else -1
    return max(most_complete(results), key=lambda r: sign * (r.score or 0.0), default=None)


def most_complete(results: Sequence[PointResult]) -> list[PointResult]:
    """Return the points with all rounds; if there are none, those with the most."""
    scored = [r for r in results if r.score is not None and r.completed]
    whole = [r for r in scored if r.completed >= r.point.rounds]
    return whole or [r for r in scored if r.completed == max(s.completed for s in scored)]


@dataclass(frozen=True)
class BestPoints:
    """The best points of a sweep: one, or one for each setting of the data; none where none was chosen.

    Attributes:
        keys: searched keys in which the settings of the data differ; empty if all points have the same.
        groups: the points of each setting, and the best of them, if one could be chosen.
    """

    keys: list[str] = field(default_factory=list)
    groups: list[tuple[list[PointResult], PointResult | None]] = field(default_factory=list)

    @classmethod
    def from_results(cls, results: Sequence[PointResult], mode: str, keys: Sequence[str] = ()) -> BestPoints:
        """Choose among points with the same data; nothing if every point has other data.

        Args:
            results: the points.
            mode: whether large or small scores are good.
            keys: searched keys that change the data.
        """
        groups = group_by(results, lambda r: tuple(str(r.point.values[key]) for key in keys))
        alone = len(groups) > 1 and all(len(group) == 1 for group in groups.values())
        varying = [key for key, values in zip(keys, zip(*groups)) if len(set(values)) > 1]
        return cls(varying, [(group, None if alone else best_of(group, mode)) for group in groups.values()])

    @property
    def points(self) -> list[PointResult]:
        """The best points, including all with an equal score."""
        return [
            r
            for group, best in self.groups
            if best is not None
            for r in most_complete(group)
            if r.score == best.score
        ]

    def group_name(self, group: Sequence[PointResult]) -> str:
        """Return the settings that the points of a group share, for display; empty if there is one group."""
        shared = {key: group[0].point.values[key] for key in self.keys}
        return ", ".join(
            value if isinstance(value, str) else f"{key.rpartition('.')[2]}={display_value(value)}"
            for key, value in shared.items()
        )

    def caption(self) -> str | None:
        """Return what the star in the table means, or why there is none."""
        first = "; the first of equal ones is in its file"
        first *= len(self.points) > sum(best is not None for _, best in self.groups)
        if len(self.groups) <= 1:
            return f"* best by validation{first}" if self.points else None
        what = " and ".join(self.keys)
        if self.points:
            return f"* best by validation for each setting of {what}, on which all figures depend{first}"
        return f"no best point: the points differ in {what}, so their figures are not of the same data"


# ---- tables


def points_table(space: Space, results: Sequence[PointResult], best: BestPoints) -> Table:
    """Return the table of all points: searched values, validation and test over seeds."""
    table = plain_table(space.title or space.sweep)
    sheet = points_sheet("", results, space.metric, best, Path())
    for head in sheet.heads[1:]:
        table.add_column(head, overflow="fold", justify="left" if head in sheet.heads[1:-4] else "right")
    for row in sheet.rows:
        cells = [cell if isinstance(cell, str) else cell.text + " *" * bool(cell.rank) for cell in row[1:]]
        table.add_row(*cells, style="bold" if cells[-1].endswith(" *") else None)
    table.caption, table.caption_justify = best.caption(), "left"
    return table


def points_sheet(
    caption: str, results: Sequence[PointResult], metric: Metric, best: BestPoints, home: Path
) -> Sheet:
    """Return a line per point, with a link to the page of its first run.

    Args:
        caption: what it shows.
        results: of the points.
        metric: by which points are compared.
        best: the best points.
        home: the folder of the sweep.
    """
    keys, kind = (results[0].point.values, results[0].kind) if results else ({}, ACCURACY)
    stars, rows = best.points, list[Row]()
    for r in results:
        rank, (test, deviation) = "best" * any(r is star for star in stars), mean_and_std(r.tests)
        rows.append(
            [
                SheetCell(str(r.number), r.number, href=link(r.folders[0], home) if r.folders else ""),
                *map(_value_cell, r.point.values.values()),
                count_cell(len(r.seeds)),
                SheetCell(f"{r.completed:,} of {r.point.rounds:,}", float(r.completed)),
                SheetCell(r.score_text(metric), r.score, rank=rank),
                SheetCell(r.kind.shown(test, deviation), test, rank=rank),
            ]
        )
    figures = f"validation {compared(metric, kind).name}", f"test {kind.title}"
    heads = ["point", *map(one_line, keys), "seeds", "rounds", *figures]
    return Sheet(caption, heads, rows, search=len(rows) > 10)


def table_of(results: Sequence[PointResult], best: BestPoints) -> pd.DataFrame:
    """Return a line per point; figures as recorded, deviations over seeds with n - 1."""
    import pandas as pd

    keys = list(results[0].point.values) if results else []
    figures, stars = ["validation", "validation_std", "test", "test_std"], best.points
    lines = [
        [
            *(r.point.values[key] for key in keys), len(r.seeds), r.completed,
            *mean_and_std(r.scores), *mean_and_std(r.tests), any(r is star for star in stars),
        ]
        for r in results
    ]  # fmt: skip
    return pd.DataFrame(lines, columns=[*keys, "seeds", "rounds", *figures, "best"])


# ---- files


def write_best(space: Space, best: PointResult, name: str, among: str, path: Path) -> None:
    """Write the best point as a table of one cell, which ``rayfl.run`` and ``rayfl.commands.table`` take.

    Args:
        space: the tune space.
        best: the point.
        name: of the table.
        among: the points that were compared, for display.
        path: the file to write.
    """
    settings = {key: value for key, value in best.point.settings.items() if key not in ("cell", "seed")}
    row = {"method": "FedBN"}
    row |= {key: value for key, value in settings.items() if key.partition(".")[0] == "method"}
    content = {
        "table": name,
        "title": f"Best of {among}",
        "seeds": list(space.seeds),
        "base": {key: value for key, value in settings.items() if key not in row},
        "columns": {best.point.settings["cell"]["column"]: {}},
        "rows": {best.method: row},
    }
    tests, metric = best.kind.shown(*mean_and_std(best.tests)), compared(space.metric, best.kind).name
    lines = [
        f"{best.point.label}: best of {among} by validation {metric}",
        f"validation {metric} {best.score_text(space.metric)}, test {best.kind.name} {tests}",
        f"  rayfl run --config {path}",
        f"  rayfl table {path} --seeds 5",
    ]
    text = "".join(f"# {one_line(line)}\n" for line in lines) + yaml_text(content)
    write_file(path, text)


def write_all(space: Space, results: Sequence[PointResult], best: BestPoints, output: Path) -> list[Path]:
    """Write all files of a finished sweep but its page; return their paths.

    These are the table of all points, and ``best.yaml``, or one file for each setting of the data.
    """
    paths = [output / POINTS_FILE]
    table = table_of(results, best)
    table = table.map(lambda value: csv_cell(json.dumps(value) if isinstance(value, list | dict) else value))
    write_file(paths[0], table.rename(columns=csv_cell).to_csv(index=False))
    (output / BEST_FILE).unlink(missing_ok=True)  # of an earlier session, which could choose another point
    for index, (group, point) in enumerate(best.groups):
        if point is None:
            continue
        among, own, file = f"{len(group)} points of the sweep {space.sweep}", f"{space.sweep}_best", BEST_FILE
        if len(best.groups) > 1:
            common = best.group_name(group)
            place = slug_of(common) or str(index)
            if output / f"best-{place}.yaml" in paths:  # values may differ only in digits that are not shown
                place += f"-{index}"
            among, own = f"{among} with {common or 'the same data'}", f"{own}_{place}"
            file = f"best-{place}.yaml"
        paths.append(output / file)
        write_best(space, point, own, among, paths[-1])
    return paths


def _value_cell(value: Any) -> SheetCell | str:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    text = one_line(display_value(value))
    return SheetCell(text, float(value)) if known else text
