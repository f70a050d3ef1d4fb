"""The page of a sweep: the best points, how they were found, and every point."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from rayfl.record.folder import read_environment
from rayfl.report.compare import group_by
from rayfl.report.page import Chart, Line, Row, Sheet, count_cell, line_chart, render
from rayfl.report.parallel import Axis, parallel_chart
from rayfl.system.text import counted, one_line
from rayfl.tune.outcome import BestPoints, PointResult, best_of, compared, most_complete, points_sheet
from rayfl.tune.space import Space, display_value, short_key
from rayfl.tune.trial import STOPPED

FEWEST = 10
"""Points from which on the importance of settings is shown: with fewer it often names another one."""


def sweep_page(space: Space, results: Sequence[PointResult], best: BestPoints, home: Path) -> str:
    """Return the page of a finished sweep.

    Args:
        space: what was searched.
        results: of its points.
        best: the best of them.
        home: its folder; links to the runs' pages start there.
    """
    names = [one_line(f", {name}") if (name := best.group_name(own)) else "" for own, _ in best.groups]
    groups = [_Group(space, name, own) for name, (own, chosen) in zip(names, best.groups) if chosen]
    chosen = [point for group in groups for point in group.best_of_methods()]
    of = " of each method" * (len({r.method for r in chosen}) > 1)
    every = "Every point; its number leads to the page of its first run, the best by validation is bold"
    commands = dict.fromkeys(read_environment(run).get("command") for r in results for run in r.folders)
    return render(
        "sweep.html",
        title=one_line(space.title or space.sweep),
        state={"kind": "done", "text": counted(len(results), "point")},
        chosen=points_sheet(f"The best point{of}", chosen, space.metric, best, home),
        caption=one_line((best.caption() or "").replace("* best", "Bold: best")),
        notes=[one_line(text) for text in _seed_warnings(space, best)],
        pictures=[picture for group in groups for picture in (group.best_so_far(), group.parallel())],
        importance=[group.importance() for group in groups if len(group.varied) > 1],
        rungs=_rung_sheet(space, results),
        points=points_sheet(every, results, space.metric, best, home),
        commands=[one_line(command) for command in commands if command],
    )


def _seed_warnings(space: Space, best: BestPoints) -> Iterator[str]:
    """Say where the best point hangs on one seed."""
    if best.points and len(space.seeds) == 1:
        yield f"Seed {space.seeds[0]} alone decides; try others: rayfl table best.yaml --seeds 5"
    for group, chosen in best.groups:
        for seed in space.seeds:
            left = [replace(r, scores=[x for n, x in zip(r.seeds, r.scores) if n != seed]) for r in group]
            other = best_of(left, str(space.mode))
            if other and chosen and other.score != left[group.index(chosen)].score:
                yield f"Seed {seed} decides; without it the best point would be {other.point.label}"


def _rung_sheet(space: Space, results: Sequence[PointResult]) -> Sheet:
    """Return after which rounds a scheduler has stopped trials, and which."""
    runs = sorted((n, r.number, run) for r in results for n, run in zip(r.reached, r.folders))
    ends = [(n, number) for n, number, run in runs if run.with_name(run.name + STOPPED).exists()]
    left, rows = sum(len(r.seeds) for r in results), list[Row]()
    for rounds, own in group_by(ends, lambda end: end[0]).items():
        points = ", ".join(dict.fromkeys(str(number) for _, number in own))
        rows.append([count_cell(rounds), count_cell(left), count_cell(len(own)), points])
        left -= len(own)
    caption = f"What {space.scheduler['name']} has stopped; {counted(left, 'trial')} went on to the end"
    return Sheet(caption, ["rounds", "trials that came so far", "stopped", "of points"], rows)


@dataclass(frozen=True)
class _Group:
    """Points of the same data, of which there is a best one.

    Attributes:
        space: what was searched.
        name: of the data, behind a comma; empty if all points have the same.
        points: in the order in which they began.
    """

    space: Space
    name: str
    points: list[PointResult]

    def best_of_methods(self) -> list[PointResult]:
        """Return the best point of each method."""
        methods = group_by(self.points, lambda r: r.method).values()
        return [best for own in methods if (best := best_of(own, str(self.space.mode))) is not None]

    @property
    def varied(self) -> list[str]:
        """The settings of which its points have several values."""
        values = [r.point.values for r in self.points]
        return [key for key in values[0] if len({str(each[key]) for each in values}) > 1]

    def best_so_far(self) -> Chart | None:
        """Return how good the best point of each method was after each of the points."""
        shown, lines = compared(self.space.metric, self.points[0].kind), []
        best = np.maximum if self.space.mode == "max" else np.minimum
        for method, own in group_by(most_complete(self.points), lambda r: r.method).items():
            steps = [*(r.number for r in own), self.points[-1].number]
            found = best.accumulate([shown.scale * (r.score or 0.0) for r in own])
            lines.append(Line(method, np.repeat(steps, 2)[1:-1], np.repeat(found, 2)))
        title = f"Best validation {shown.name} so far{self.name}"
        return line_chart(title, lines, shown.axis, shown.text, "point")

    def _axis(self, key: str, points: Sequence[PointResult]) -> Axis:
        """Return how the values of a setting lie beside each other."""
        kinds = {d.kind for search in self.space.search for d in search if d.key == key}
        name, values = short_key(key, self.space.keys), [r.point.values[key] for r in points]
        if kinds <= {"grid_search", "choice"} or not all(isinstance(each, int | float) for each in values):
            return Axis.listed(name, values, display_value)
        log = "loguniform" in kinds and min(values) > 0
        return Axis.ranged(name, values, partial(display_value, digits=2), log)

    def parallel(self) -> Chart:
        """Return the settings of all points with a score, also of those of fewer rounds."""
        shown = compared(self.space.metric, self.points[0].kind)
        points = [r for r in self.points if r.score is not None and r.completed]
        last = Axis.ranged(shown.title, [shown.scale * (r.score or 0.0) for r in points], shown.text)
        return parallel_chart(
            f"Settings and validation {shown.name}{self.name}",
            [*(self._axis(key, points) for key in self.varied), last],
            [f"point {r.number}: {r.point.label}: {r.score_text(self.space.metric)}" for r in points],
            [place if self.space.mode == "max" else 1 - place for place in last.places],
            [r.completed < r.point.rounds for r in points],
        )

    def importance(self) -> tuple[str, dict[str, float]]:
        """Return how important each setting is, from 0 to 1, and of what; or why that is not known."""
        title, points = f"Importance of settings{self.name}", most_complete(self.points)
        if len(points) < FEWEST or len({r.score for r in points}) == 1:
            return f"{title}: shown for at least {FEWEST} points with all rounds", {}
        try:
            import optuna
        except ImportError:
            return f"{title}: needs Optuna, pip install 'rayfl[optuna]'", {}
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study, axes = optuna.create_study(), {key: self._axis(key, points) for key in self.varied}
        kinds = dict.fromkeys(axes, optuna.distributions.FloatDistribution(0, 1))
        for k, r in enumerate(points):
            params = {key: axis.places[k] for key, axis in axes.items()}
            study.add_trial(optuna.create_trial(params=params, distributions={**kinds}, value=r.score))
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
        return f"{title}: what makes {len(points)} points with all rounds differ (fANOVA of Optuna)", shares
