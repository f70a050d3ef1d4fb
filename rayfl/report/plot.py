"""Pictures of runs from Python: ``result.plot.rounds()``, and ``Plot`` for several runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from rayfl.errors import UserError
from rayfl.evaluation.result import Result, run_folders
from rayfl.report.compare import check_measure, group_runs
from rayfl.report.pictures import Picture
from rayfl.report.plots import (
    ALL,
    Series,
    check_panels,
    domains_of,
    draw_bars,
    draw_clients,
    draw_labels,
    draw_radar,
    draw_rounds,
    draw_sweep,
    progress_table,
    scored_panels,
    series_of,
    sweep_series,
)


class Plot:
    """Pictures of runs as papers have them.

    Runs that differ in their seed alone are one line, bar or box: their mean, with one sample standard
    deviation. Accuracies are those of each run's protocol. Every picture is a figure of matplotlib and its
    axes: ``figure, axes = Plot("runs/a", "runs/b").rounds()``.

    Args:
        runs: results, run folders, or folders that hold some.
        by: keys of the configuration that tell lines apart, such as ``["method", "method.mu"]``; by default
            all that differ but the seeds.
    """

    def __init__(self, *runs: Result | str | Path, by: Sequence[str] = ()) -> None:
        if not runs:
            raise UserError("Plot() has no runs to draw: give it results or run folders")
        if isinstance(by, str):
            raise UserError(f'by is "{by}": it must be a list of keys, such as ["{by}"]')
        self.runs: list[Result] = []
        for run in runs:
            self.runs += [run] if isinstance(run, Result) else map(Result.load, run_folders([Path(run)]))
        self.by = list(by)

    def rounds(
        self, views: Sequence[str] = (), panels: Sequence[str] = (), quantity: str = "accuracy"
    ) -> Picture:
        """Draw test accuracy over rounds, a panel per domain.

        Args:
            views: models to draw, such as ``["personal", "global"]``; by default that of each run's headline.
            panels: domains, and ``all`` for all clients together; by default all domains.
            quantity: ``accuracy``, ``loss``, or a recorded metric.
        """
        if quantity not in ("accuracy", "loss"):
            check_measure("quantity", quantity, self.runs, "accuracy, loss")
        series, shown = self._panels_of(views, panels)
        return draw_rounds(series, shown, quantity)

    def sweep(self, over: str, view: str | None = None, panels: Sequence[str] = (ALL,)) -> Picture:
        """Draw test accuracy over a key of the configuration, a panel per domain.

        Args:
            over: the key, such as ``method.mu``.
            view: the model to draw; by default that of the headline.
            panels: domains, and ``all`` for all clients together.
        """
        lines = sweep_series(self.runs, over, view, self.by)
        every = [series for _, points in lines for _, series in points]
        return draw_sweep(lines, over, check_panels(_listed("panels", panels), every))

    def bars(self, views: Sequence[str] = (), panels: Sequence[str] = ()) -> Picture:
        """Draw bars of test accuracy per domain.

        Args:
            views: models to draw; by default that of each run's headline.
            panels: domains, and ``all`` for all clients together; by default all of these.
        """
        series = self._series(views)
        panels = _listed("panels", panels) or [*domains_of(series), ALL]
        return draw_bars(series, check_panels(panels, series))

    def radar(self, view: str | None = None) -> Picture:
        """Draw a radar per data set: an axis per domain, scaled by the best accuracy on it.

        Args:
            view: the model to draw; by default that of each run's headline.
        """
        return draw_radar(self._series([] if view is None else [view]))

    def clients(self, views: Sequence[str] = ()) -> Picture:
        """Draw how test accuracy is distributed over clients, and each client's.

        Args:
            views: models to draw; by default that of each run's headline.
        """
        return draw_clients(self._series(views))

    def labels(self) -> Picture:
        """Draw training samples per client and class, a panel for every different division."""
        return draw_labels(self.runs)

    def progress(
        self, views: Sequence[str] = (), panels: Sequence[str] = (), target: float | None = None
    ) -> Table:
        """Return how rough the curves of :meth:`rounds` are, and when they reach a target.

        Args:
            views: as in :meth:`rounds`.
            panels: as in :meth:`rounds`.
            target: a test accuracy in per cent.
        """
        return progress_table(*self._panels_of(views, panels), target)

    def _series(self, views: Sequence[str]) -> list[Series]:
        return series_of(group_runs(self.runs, self.by), _listed("views", views), self.by)

    def _panels_of(self, views: Sequence[str], panels: Sequence[str]) -> tuple[list[Series], list[str]]:
        series = self._series(views)
        return series, scored_panels(check_panels(_listed("panels", panels), series), series)


def _listed(name: str, value: Sequence[str]) -> Sequence[str]:
    """Refuse a text in the place of a list, whose letters would be taken for names."""
    if isinstance(value, str):
        raise UserError(f'{name} is "{value}": it must be a list, such as ["{value}"]')
    return value
