"""What a sweep gives: the table of its points, the best one, and its pictures."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import yaml
from matplotlib.figure import Figure
from rich.table import Table

from rayfl.config.table_file import layered, slug
from rayfl.evaluation.metrics import none_if_nan, summarise
from rayfl.evaluation.result import Result
from rayfl.files import write_file, writing
from rayfl.jobs.cells import Job
from rayfl.record.description import display_name
from rayfl.record.history import METRICS, History, read_records
from rayfl.report.draw import draw_points, scale, style
from rayfl.report.page import PAGE, Cell, Row, Sheet, write_page
from rayfl.report.pictures import drawn, save
from rayfl.report.table_page import link, points_page
from rayfl.report.text import mean_and_std, number, percent, plain_table
from rayfl.shown import csv_cell, one_line
from rayfl.tune.schedule import read_schedule
from rayfl.tune.scores import validation_score
from rayfl.tune.space import Metric, Point, scored_on, tidy

BEST = "best.yaml"
POINTS = "points.csv"
PICTURE = "sensitivity.png"


@dataclass(frozen=True)
class PointResult:
    """What has come of a point.

    Attributes:
        point: the point, with the values that it ended with.
        seeds: of the runs that have records, parallel to the following.
        scores: validation scores at the rounds that the protocol chooses, of as many rounds as all of its
            runs have; None where there is none.
        tests: test accuracies at the same rounds, in [0, 1]; None where there is none.
        completed: rounds that all of its runs have completed; 0 while one has none.
        schedule: of a point that was changed while it ran: round -> values.
        folders: of the runs, parallel to ``seeds``.
    """

    point: Point
    seeds: list[int]
    scores: list[float | None]
    tests: list[float | None]
    completed: int
    schedule: list[dict[str, Any]]
    folders: list[Path] = field(default_factory=list)

    @property
    def score(self) -> float | None:
        """The mean validation score; None where a run has none."""
        return mean_and_std(self.scores)[0]

    @property
    def test(self) -> float | None:
        """The mean test accuracy; None where a run has none."""
        return mean_and_std(self.tests)[0]


def result_of(point: Point, jobs: Sequence[Job], metric: Metric) -> PointResult:
    """Read what the runs of a point have recorded.

    Args:
        point: the point.
        jobs: its trials, one per seed.
        metric: what is compared.
    """
    runs = [Result.load(job.folder) for job in jobs if (job.folder / METRICS).is_file()]
    reached = [run.summary["rounds" if run.complete else "completed"] for run in runs]
    completed = min(reached, default=0) if len(runs) == len(jobs) else 0
    if len(set(reached)) > 1:  # a scheduler has stopped some of them
        runs = [_first_rounds(run, min(reached)) for run in runs]
    schedule = read_schedule(jobs[0].folder)
    if schedule:
        values = schedule[-1]["values"]
        point = Point(point.label, point.values | values, layered(point.settings, values), point.rounds)
    return PointResult(
        point,
        [run.config.get("seed", 0) for run in runs],
        [validation_score(run, metric) for run in runs],
        [none_if_nan(run.accuracy) for run in runs],
        completed,
        schedule,
        [run.folder for run in runs],
    )


def _first_rounds(run: Result, rounds: int) -> Result:
    """Return a run as it was after so many rounds."""
    history = History.build(run.history.population, islice(read_records(run.folder), rounds))
    return replace(run, history=history, summary=summarise(history, run.protocol, run.config["rounds"]))


def best_of(results: Sequence[PointResult], mode: str) -> PointResult | None:
    """Return the first point that is best on validation data, among those that have come farthest."""
    sign = 1 if mode == "max" else -1
    return max(_farthest(results), key=lambda r: sign * _compared(r), default=None)


def _compared(result: PointResult) -> float:
    return round(result.score or 0.0, 12)  # without what float64 adds to means


def _farthest(results: Sequence[PointResult]) -> list[PointResult]:
    scored = [r for r in results if r.score is not None and r.completed]
    whole = [r for r in scored if r.completed >= r.point.rounds]
    return whole or [r for r in scored if r.completed == max(s.completed for s in scored)]


@dataclass(frozen=True)
class Best:
    """The best points of a sweep: one, or one for each setting of the data.

    Attributes:
        keys: searched keys that tell the settings of the data apart; empty where all points have the same.
        groups: the points of each setting, and the best of them, if one could be chosen.
    """

    keys: list[str]
    groups: list[tuple[list[PointResult], PointResult | None]]

    @classmethod
    def of(cls, results: Sequence[PointResult], mode: str) -> Best:
        """Choose among points that are scored on the same data; nothing where all have data of their own."""
        groups: dict[str, list[PointResult]] = {}
        for text, result in zip(scored_on([r.point for r in results]), results):
            groups.setdefault(text, []).append(result)
        searched = list(results[0].point.values) if results else []
        keys = [key for key in searched if len(groups) > 1 and _tells_apart(key, list(groups.values()))]
        alone = len(groups) > 1 and all(len(group) == 1 for group in groups.values())
        return cls(keys, [(group, None if alone else best_of(group, mode)) for group in groups.values()])

    @property
    def points(self) -> list[PointResult]:
        """The best points, with all that are as good as the first of them."""
        return [
            r
            for group, best in self.groups
            if best is not None
            for r in _farthest(group)
            if _compared(r) == _compared(best)
        ]

    def name(self, group: Sequence[PointResult]) -> str:
        """Return what the points of a group have in common, for people; empty where there is one group."""
        return ", ".join(_in_common(key, group[0].point.values[key]) for key in self.keys)

    def caption(self) -> str | None:
        """Say what the star in the table means, or why there is none."""
        first = "; the first of equal ones is in its file"
        first *= len(self.points) > sum(best is not None for _, best in self.groups)
        if len(self.groups) == 1:
            return f"* best by validation{first}" if self.points else None
        what = " and ".join(self.keys) or "their data"
        if self.points:
            return f"* best by validation for each setting of {what}, on which all accuracies depend{first}"
        return f"no best point: the points differ in {what}, so their accuracies are not of the same data"


def _tells_apart(key: str, groups: Sequence[Sequence[PointResult]]) -> bool:
    """Say whether a key has one value in each group, and not the same in all."""
    values = [{str(r.point.values[key]) for r in group} for group in groups]
    return all(len(found) == 1 for found in values) and len(set.union(*values)) > 1


# ---- tables


def points_table(
    title: str, results: Sequence[PointResult], metric: Metric, best: Best | None = None
) -> Table:
    """Return the table of all points: searched values, validation and test over seeds."""
    stars = best.points if best is not None else []
    table = plain_table(title)
    keys = list(results[0].point.values) if results else []
    for key in keys:
        table.add_column(key, overflow="fold")
    scored = any(result.score is not None for result in results)
    headings = ["seeds", "rounds", *([f"validation\n{metric}"] if scored else []), "test\naccuracy"]
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        tests = percent(*mean_and_std(result.tests))
        whole = result.completed >= result.point.rounds
        done = f"{result.completed}" + ("" if whole else f" of {result.point.rounds}")
        cells = [tidy(result.point.values[key]) for key in keys]
        figures = [_score_text(result.scores, metric)] if scored else []
        chosen = any(result is star for star in stars)
        table.add_row(
            *cells, str(len(result.seeds)), done, *figures, tests + (" *" if chosen else ""),
            style="bold" if chosen else None,
        )  # fmt: skip
    if best is not None:
        table.caption, table.caption_justify = best.caption(), "left"
    return table


def _score_text(scores: Sequence[float | None], metric: Metric) -> str:
    mean, std = mean_and_std(scores)
    return number(mean, std, decimals=4) if metric == "loss" else percent(mean, std)


def write_points(results: Sequence[PointResult], path: Path) -> None:
    """Write a line per point; accuracies in [0, 1], deviations over seeds with n - 1."""
    keys = list(results[0].point.values) if results else []
    figures = ["validation", "validation_std", "test", "test_std"]
    sheet = io.StringIO(newline="")
    lines = csv.writer(sheet)
    lines.writerow([*map(csv_cell, keys), "seeds", "rounds", *figures])
    for r in results:
        numbers = [*mean_and_std(r.scores), *mean_and_std(r.tests)]
        values = [csv_cell(_plain(r.point.values[key])) for key in keys]
        lines.writerow([*values, len(r.seeds), r.completed, *("" if x is None else x for x in numbers)])
    write_file(path, sheet.getvalue())


def _plain(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value


# ---- the best point


def write_best(
    name: str, best: PointResult, seeds: Sequence[int], metric: Metric, among: str, path: Path
) -> None:
    """Write the best point as a table of one cell, which ``rayfl.run`` and ``rayfl.table`` take.

    Args:
        name: of the table.
        best: the point.
        seeds: of the sweep.
        metric: by which it was chosen.
        among: of what it is the best, for people.
        path: where.
    """
    settings = {key: value for key, value in best.point.settings.items() if key not in ("cell", "seed")}
    row = {key: value for key, value in settings.items() if key.partition(".")[0] == "method"}
    method = str(row.setdefault("method", "FedBN"))
    method = display_name(method if "." in method else f"rayfl.methods.{method}")
    content = {
        "table": name,
        "title": f"Best of {among}",
        "seeds": list(seeds),
        "base": {key: value for key, value in settings.items() if key not in row},
        "columns": {best.point.settings["cell"]["column"]: {}},
        "rows": {method: row},
    }
    tests = percent(*mean_and_std(best.tests))
    changed = len(best.schedule) > 1  # and its label is of the values with which it began
    last = ", ".join(f"{key.rpartition('.')[2]}={tidy(value)}" for key, value in best.point.values.items())
    lines = [
        f"{last if changed else best.point.label}: best of {among} by validation {metric}",
        f"validation {metric} {_score_text(best.scores, metric)}, test accuracy {tests}",
        f"  rayfl run --config {path}",
        f"  rayfl table {path} --seeds 5",
    ]
    if changed:
        lines.append("These are its last settings. While it ran it had:")
        for entry in best.schedule:
            lines.append(f"  from round {entry['round'] + 1} on: {json.dumps(entry['values'])}")
    text = "".join(f"# {one_line(line)}\n" for line in lines) + yaml.safe_dump(content, sort_keys=False)
    write_file(path, text)


def write_all_best(name: str, best: Best, seeds: Sequence[int], metric: Metric, output: Path) -> list[Path]:
    """Write ``best.yaml``, or ``best-<setting>.yaml`` for each setting of the data; return the paths."""
    paths: list[Path] = []
    for index, (group, point) in enumerate(best.groups):
        if point is None:
            continue
        among, own, path = f"{len(group)} points of the sweep {name}", f"{name}_best", output / BEST
        if len(best.groups) > 1:
            common = best.name(group)
            place = slug(common) or str(index)
            if output / f"best-{place}.yaml" in paths:  # values that differ only in digits that are not shown
                place += f"-{index}"
            among, own = f"{among} with {common or 'the same data'}", f"{own}_{place}"
            path = output / f"best-{place}.yaml"
        write_best(own, point, seeds, metric, among, path)
        paths.append(path)
    if output / BEST not in paths:
        (output / BEST).unlink(missing_ok=True)  # of an earlier session that could choose a point
    return paths


# ---- pictures


def draw(results: Sequence[PointResult], metric: Metric) -> Figure | None:
    """Draw test accuracy over every searched number, a line for each combination of the other values.

    Bars are one deviation over seeds. Validation is dotted where there are few lines. Where no two points
    differ in a key alone, as after random draws, the points stand by themselves, and so do those that are in
    no line at all, and those that were stopped early. None without numbers.
    """
    known = [r for r in results if r.completed and r.test is not None]
    keys = [k for k in (results[0].point.values if results else {}) if _is_axis(known, k)]
    if not keys:
        return None
    figure = Figure(figsize=(3.6 * len(keys) + 1.2, 3.4), layout="constrained")
    axes = figure.subplots(1, len(keys), squeeze=False, sharey=True)[0]
    whole = [r for r in known if r.completed >= r.point.rounds]
    lines = {key: {n: own for n, own in _lines(whole, key).items() if len(own) > 1} for key in keys}
    in_lines = [r for joined in lines.values() for own in joined.values() for r in own]
    for ax, key in zip(axes, keys):
        joined = lines[key]
        if alone := [r for r in whole if not joined or not any(r is other for other in in_lines)]:
            x, y = [r.point.values[key] for r in alone], [_percent(r.test) for r in alone]
            ax.plot(x, y, "o", ms=4, color="black", label="other points" if joined else None)
        if stopped := [r for r in known if r not in whole]:
            x, y = [r.point.values[key] for r in stopped], [_percent(r.test) for r in stopped]
            ax.plot(x, y, "o", ms=4, mfc="none", color="gray", label="stopped early")
        for place, (name, points) in enumerate(joined.items()):
            _draw_line(ax, key, name, points, place, validation=len(joined) <= 2 and metric == "accuracy")
        values = sorted({r.point.values[key] for r in known if r.point.values[key] is not None})
        scale(ax, values)
        ax.set_xlabel(drawn(key))
        ax.grid(alpha=0.3)
        ax.spines[["top", "right"]].set_visible(False)
        handles, _ = ax.get_legend_handles_labels()
        if handles:
            ax.legend(frameon=False, fontsize=7)
    axes[0].set_ylabel("test accuracy in %")
    return figure


def _percent(known: float | None) -> float:
    return math.nan if known is None else 100 * known


def _is_axis(results: Sequence[PointResult], key: str) -> bool:
    values = [r.point.values[key] for r in results]
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    return len(numbers) == len([v for v in values if v is not None]) and len(set(numbers)) > 1


def _lines(results: Sequence[PointResult], key: str) -> dict[str, list[PointResult]]:
    """Return the points that differ in the key alone, by what they have in common, in ascending order."""
    others = [k for k in (results[0].point.values if results else ()) if k != key]
    varying = [k for k in others if len({str(r.point.values[k]) for r in results}) > 1]
    lines: dict[str, list[PointResult]] = {}
    for r in sorted(results, key=lambda r: r.point.values[key] or 0):
        if r.point.values[key] is not None:
            name = ", ".join(_in_common(k, r.point.values[k]) for k in varying)
            lines.setdefault(name, []).append(r)
    return lines


def _in_common(key: str, value: Any) -> str:
    return str(value) if isinstance(value, str) else f"{key.rpartition('.')[2]}={tidy(value)}"


def _draw_line(
    ax: Any, key: str, name: str, points: Sequence[PointResult], place: int, validation: bool
) -> None:
    x = [r.point.values[key] for r in points]
    draw_points(ax, x, [[_percent(test) for test in r.tests] for r in points], name or None, place)
    color = style(place)["color"]
    scores = [r.score for r in points]
    if validation and all(score is not None for score in scores):
        ax.plot(x, [_percent(s) for s in scores], ":", color=color, label=drawn(f"{name} validation".strip()))


def write_hparams(results: Sequence[PointResult], folder: Path) -> None:
    """Write TensorBoard's table of hyper-parameters, which has parallel coordinates and scatter plots."""
    from torch.utils.tensorboard import SummaryWriter

    for index, r in enumerate(results):
        known = {k: v for k, v in r.point.values.items() if isinstance(v, bool | str | int | float)}
        values = {one_line(k): one_line(v) if isinstance(v, str) else v for k, v in known.items()}
        if r.completed and r.test is not None:
            figures = {"test": r.test, "completed": float(r.completed)}  # some may have been stopped early
            figures |= {} if r.score is None else {"validation": r.score}
            with SummaryWriter(str(folder)) as writer:
                writer.add_hparams(values, figures, run_name=f"{index:03d}")


def write_all(
    title: str, name: str, results: Sequence[PointResult], metric: Metric, best: Best | None,
    seeds: Sequence[int], output: Path, tensorboard: bool,
) -> list[Path]:  # fmt: skip
    """Write all files of a sweep that is over, as far as it has what they show; return their paths."""
    written = [output / POINTS]
    write_points(results, written[0])
    if (figure := draw(results, metric)) is not None:
        save(figure, output / PICTURE)
        written.append(output / PICTURE)
    if best is not None:
        written += write_all_best(name, best, seeds, metric, output)
    if tensorboard:
        with writing(output / "tensorboard"):
            write_hparams(results, output / "tensorboard")
        written.append(output / "tensorboard")
    if write_page(output, lambda: _page(title or name, results, metric, best, output)):
        written.append(output / PAGE)
    return written


def _page(title: str, results: Sequence[PointResult], metric: Metric, best: Best | None, home: Path) -> str:
    """Return the page of a sweep that is over."""
    keys = list(results[0].point.values) if results else []
    stars = best.points if best is not None else []
    rows: list[Row] = [
        [
            Cell(str(k), float(k), href=link(r.folders[0], home) if r.folders else ""),
            *(_cell(r.point.values[key]) for key in keys),
            Cell(str(len(r.seeds)), float(len(r.seeds))),
            Cell(f"{r.completed:,} of {r.point.rounds:,}", float(r.completed)),
            Cell(_score_text(r.scores, metric), r.score, best=any(r is star for star in stars)),
            Cell(percent(*mean_and_std(r.tests)), r.test, best=any(r is star for star in stars)),
        ]
        for k, r in enumerate(results)
    ]
    heads = ["point", *map(one_line, keys), "seeds", "rounds", f"validation {metric}", "test accuracy in %"]
    notes = [
        text.replace("* best", "Bold: best")  # a star on the terminal
        for text in (best.caption() if best else None, "± is the standard deviation over seeds.")
        if text
    ]
    picture = home / PICTURE
    caption = "Every point; its number leads to the page of its first run, the best by validation is bold"
    return points_page(
        title,
        Sheet(caption, heads, rows, search=len(rows) > 10),
        notes,
        picture.read_bytes() if picture.is_file() else None,
        {"kind": "done", "text": f"{len(results):,} points"},
    )


def _cell(value: Any) -> Cell | str:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    text = one_line(tidy(value))
    return Cell(text, float(value)) if known else text
