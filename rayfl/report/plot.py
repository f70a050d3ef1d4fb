"""Pictures of runs from Python: ``result.plot.rounds()``, and ``Plot`` for several runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypedDict, Unpack

from rich.table import Table

from rayfl.errors import BadValue, Missing
from rayfl.evaluation.protocol import CHOSEN_ON_TEST
from rayfl.evaluation.run_records import RunRecords, run_folders
from rayfl.report.compare import check_recorded, group_by, group_runs, missing_scores, samples
from rayfl.report.look import Look, Picture, Size
from rayfl.report.plots import (
    ALL,
    Series,
    check_panels,
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
from rayfl.system.text import counted, warn


class Looks(TypedDict, total=False):
    """The arguments of all pictures; see :class:`Plot`."""

    size: Size
    names: Mapping[str, str]
    title: str


class Plot:
    """Pictures of runs as in papers.

    Runs that differ only in their seed are one line, bar or box: their mean, with one sample standard
    deviation. Figures follow each run's protocol. Every picture is a figure of matplotlib and its
    axes: ``figure, axes = Plot("runs/a", "runs/b").rounds()``.

    All pictures take ``size``, ``names`` and ``title``. ``size`` is ``"column"`` or ``"page"`` for a column
    or the whole width of a paper with two columns, or width and height in inches. ``names`` maps names of
    lines, domains and data sets to the names to show:
    ``{"FedAvg": "Baseline", "all": "average"}``. ``title`` is shown above the picture.

    Args:
        runs: results, run folders, or folders that hold some; a run and its copies count once.
        by: keys of the configuration that distinguish lines, such as ``["method", "method.mu"]``; by
            default all that differ, except seeds.
        point: when models were scored, such as ``after_training``; by default that of each run's protocol,
            also for the following arguments.
        average: how clients are averaged.
        choose: which rounds bars, radars and sweeps show.
    """

    def __init__(
        self,
        *runs: RunRecords | str | Path,
        by: Sequence[str] = (),
        point: str | None = None,
        average: str | None = None,
        choose: str | None = None,
    ) -> None:
        if not runs:
            raise Missing("runs", "must be given to Plot(): results or run folders")
        found: list[RunRecords] = []
        for run in runs:
            found += [run] if isinstance(run, RunRecords) else map(RunRecords.load, run_folders([Path(run)]))
        check_recorded(found, point=point)
        self.runs, said = samples(run.scored(point=point, average=average, choose=choose) for run in found)
        if (point, average, choose) != (None, None, None):
            for why, lacking in group_by(self.runs, missing_scores).items():
                if why:
                    said.append(f"{why} ({', '.join(str(run.folder) for run in lacking)})")
        for line in said:
            warn(line)
        self.by = list(_as_list("by", by))

    def __repr__(self) -> str:
        runs = counted(len(self.runs), "run")
        return f"Plot of {runs}: rounds(), bars(), clients(), labels(), radar(), sweep(over)"

    def rounds(
        self,
        views: Sequence[str] = (),
        panels: Sequence[str] = (),
        quantity: str = "figure",
        **look: Unpack[Looks],
    ) -> Picture:
        """Draw the test figure over rounds, a panel per domain.

        Args:
            views: models to draw, such as ``["personal", "global"]``; by default that of each run's headline.
            panels: domains, and ``all`` for all clients together; by default all domains, if they are
                at most 16.
            quantity: ``figure``, ``loss``, or a recorded metric.
            look: ``size``, ``names`` and ``title``.
        """
        check_recorded(self.runs, quantity=quantity)
        series, shown = self._panels_of(views, panels)
        return _plot(look, partial(draw_rounds, series, shown, quantity))

    def sweep(
        self,
        over: str,
        view: str | None = None,
        panels: Sequence[str] = (ALL,),
        **look: Unpack[Looks],
    ) -> Picture:
        """Draw the test figure over a key of the configuration, a panel per domain.

        Args:
            over: the key, such as ``method.mu``.
            view: the model to draw; by default that of the headline.
            panels: domains, and ``all`` for all clients together.
            look: ``size``, ``names`` and ``title``.
        """
        lines = sweep_series(self.runs, over, view, self.by)
        every = [series for _, points in lines for _, series in points]
        shown = check_panels(_as_list("panels", panels), every)
        return _plot(self._labelled(look), partial(draw_sweep, lines, over, shown))

    def bars(
        self,
        views: Sequence[str] = (),
        panels: Sequence[str] = (),
        start: float = 0,
        **look: Unpack[Looks],
    ) -> Picture:
        """Draw bars of the test figure per domain.

        Args:
            views: models to draw; by default that of each run's headline.
            panels: domains, and ``all`` for all clients together; by default all domains, if they are
                at most 16, and ``all``.
            start: where the axis of figures begins, as printed; if it is not 0, the axis says so.
            look: ``size``, ``names`` and ``title``.
        """
        series = self._series(views)
        panels = _as_list("panels", panels) or list(dict.fromkeys([*check_panels([], series), ALL]))
        return _plot(self._labelled(look), partial(draw_bars, series, check_panels(panels, series), start))

    def radar(self, view: str | None = None, **look: Unpack[Looks]) -> Picture:
        """Draw a radar per data set: an axis per domain, scaled by the best figure on it.

        Args:
            view: the model to draw; by default that of each run's headline.
            look: ``size``, ``names`` and ``title``.
        """
        return _plot(self._labelled(look), partial(draw_radar, self._series([] if view is None else [view])))

    def clients(self, views: Sequence[str] = (), **look: Unpack[Looks]) -> Picture:
        """Draw how the test figure is distributed over clients, and each client's.

        Args:
            views: models to draw; by default that of each run's headline.
            look: ``size``, ``names`` and ``title``.
        """
        return _plot(look, partial(draw_clients, self._series(views)))

    def labels(self, **look: Unpack[Looks]) -> Picture:
        """Draw training samples per client and class, a panel for every different division.

        Args:
            look: ``size``, ``names`` and ``title``.
        """
        return _plot(look, partial(draw_labels, self.runs))

    def progress(
        self, views: Sequence[str] = (), panels: Sequence[str] = (), target: float | None = None
    ) -> Table:
        """Return how rough the curves of :meth:`rounds` are, and when they reach a target.

        Args:
            views: as in :meth:`rounds`.
            panels: as in :meth:`rounds`.
            target: a test figure, as printed.
        """
        return progress_table(*self._panels_of(views, panels), target)

    def _labelled(self, look: Looks) -> Looks:
        """Return the look of a picture of chosen rounds: its title says if test data have chosen them."""
        by_test = any(run.protocol.choose == "best_test" for run in self.runs)
        return {**look, "title": ", ".join(filter(None, (look.get("title"), CHOSEN_ON_TEST * by_test)))}

    def _series(self, views: Sequence[str]) -> list[Series]:
        return series_of(group_runs(self.runs, self.by), _as_list("views", views), self.by)

    def _panels_of(self, views: Sequence[str], panels: Sequence[str]) -> tuple[list[Series], list[str]]:
        series = self._series(views)
        return series, scored_panels(check_panels(_as_list("panels", panels), series), series)


def _plot(look: Looks, draw: Callable[[Look], Picture]) -> Picture:
    made = Look(**look)
    with made.font_size():
        return draw(made)


def _as_list(name: str, value: Sequence[str]) -> Sequence[str]:
    """Refuse a text in the place of a list, whose letters would be taken for names."""
    if isinstance(value, str):
        raise BadValue(name, f'is "{value}"', f'it must be a list, such as ["{value}"]')
    return value
