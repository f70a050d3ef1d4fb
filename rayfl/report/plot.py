"""Pictures of runs as in papers: ``result.plot.rounds()``, and ``Plot`` for several runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict, Unpack

import numpy as np
from matplotlib.projections.polar import PolarAxes
from matplotlib.ticker import MaxNLocator
from rich.table import Table

from rayfl.data.task import Figure
from rayfl.errors import BadData, BadValue, Conflict, Missing, Unknown
from rayfl.evaluation.metrics import average, none_if_nan
from rayfl.evaluation.protocol import CHOSEN_ON_TEST
from rayfl.evaluation.run_records import Curve, RunRecords
from rayfl.record.history import PARTITION, label_matrix, read_partition
from rayfl.report.compare import (
    CONFLICT,
    RunGroup,
    check_recorded,
    conflicts_of,
    group_by,
    group_runs,
    keys_hint,
    labels,
    missing_scores,
    over_seeds,
    read_runs,
    rounds_to,
    short_labels,
)
from rayfl.report.look import (
    COLOURS,
    HATCHES,
    LINE_WIDTH,
    WIDTH,
    Look,
    Picture,
    Size,
    draw_band,
    drawn,
    marker,
    scale_axis,
    style,
)
from rayfl.report.method_looks import LOOKS, PLACES, looks_of
from rayfl.report.text import mean_and_std, plain_table, range_text
from rayfl.settings.description import changes_data, flatten_config
from rayfl.system.text import counted, one_line, warn

ALL = "all"
"""The panel of all clients together, as the protocol averages them."""
MOST_PANELS = 16
"""With more domains than this, pictures show all clients together unless asked otherwise."""
_NAMED_CLASSES = 40  # classes whose names have room
_FEW = 60  # clients that can be told apart in a picture


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

    Examples:
        >>> from rayfl import Plot
        >>> figure, axes = Plot("runs/first").rounds(size="column", title="First run")
        >>> figure.savefig("rounds.pdf")
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
        self.runs, said = read_runs(runs, point=point, average=average, choose=choose)
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
        """Draw the test figure over rounds, a panel per domain; bands are one deviation.

        Args:
            views: models to draw, such as personal and global; by default that of each run's headline.
            panels: domains, and all for all clients together; by default all domains, if they are
                at most 16.
            quantity: ``figure``, ``loss``, or a recorded metric.
            look: ``size``, ``names`` and ``title``.
        """
        check_recorded(self.runs, quantity=quantity)
        groups, panels = self._panels_of(views, panels)
        with Look.of(**look) as shown:
            figure, axes = shown.grid(len(panels))
            for ax, panel in zip(axes, panels):
                for group in groups:
                    if curves := panel_curves(group, panel, quantity):
                        draw_band(ax, *over_seeds(curves), shown.label(group.name), group.look)
                ax.set(title=_panel_title(panel, shown), xlabel="completed rounds")
                ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
            label = drawn(f"test {_figure_of(groups).title if quantity == 'figure' else quantity}")
            return shown.add_legend(figure, axes, label)

    def progress(
        self, views: Sequence[str] = (), panels: Sequence[str] = (), target: float | None = None
    ) -> Table:
        """Return how rough the curves of :meth:`rounds` are, and when they reach a target.

        Args:
            views: as in :meth:`rounds`.
            panels: as in :meth:`rounds`.
            target: a test figure, as printed.
        """
        groups, panels = self._panels_of(views, panels)
        kind = _figure_of(groups)
        title = f"Roughness of test {kind.name}: standard deviation of the change between evaluations"
        title += ", in points" * kind.percent
        if target is not None:
            title += f"; rounds until {target:g}{kind.unit} are reached"
        heads = [head for panel in panels for head in (panel, f"{panel}, rounds")[: 1 + (target is not None)]]
        table = plain_table(title, numbers=["", *heads])
        table.min_width = min(len(title), 76)  # the title breaks at the width of the table
        table.columns[0].justify, table.columns[0].overflow = "left", "fold"
        for group in groups:
            cells = []
            for panel in panels:
                curves = panel_curves(group, panel)
                each = [np.mean([roughness(y) for _, y in own]) for own in curves]
                cells.append(kind.text(float(np.mean(each)) if each else None))
                if target is not None:
                    reached = (rounds_to(curve, target, kind.sign) for own in curves for curve in own)
                    cells.append(range_text(reached))
            table.add_row(group.name, *cells)
        return table

    def sweep(
        self,
        over: str,
        view: str | None = None,
        panels: Sequence[str] = (),
        **look: Unpack[Looks],
    ) -> Picture:
        """Draw the test figure over a key of the configuration, a panel per domain; bars are one deviation.

        Args:
            over: the key, such as ``method.mu``.
            view: the model to draw; by default that of the headline.
            panels: domains, and all for all clients together, which is the default.
            look: ``size``, ``names`` and ``title``.
        """
        lines = sweep_lines(self.runs, over, view, self.by)
        groups = [group for _, points in lines for _, group in points]
        line_looks = looks_of(points[0][1].runs[0].method for _, points in lines)
        panels = check_panels(panels or [ALL], groups)
        values = sorted({x for _, points in lines for x, _ in points})
        with Look.of(**self._labelled(look)) as shown:
            figure, axes = shown.grid(len(panels))
            for ax, panel in zip(axes, panels):
                for look_of_line, (name, points) in zip(line_looks, lines):
                    means, errors = _means_and_errors([group for _, group in points], [panel])
                    bars = np.nan_to_num(errors)  # one seed has a bar of length 0
                    looks = style(look_of_line) | marker(look_of_line)
                    x = [value for value, _ in points]
                    ax.errorbar(x, means, yerr=bars, label=shown.label(name), capsize=2, **looks)
                scale_axis(ax, values)
                ax.set(title=_panel_title(panel, shown), xlabel=shown.label(over, over.rpartition(".")[2]))
            return shown.add_legend(figure, axes, drawn(f"test {_figure_of(groups).title}"))

    def bars(
        self,
        views: Sequence[str] = (),
        panels: Sequence[str] = (),
        start: float = 0,
        **look: Unpack[Looks],
    ) -> Picture:
        """Draw bars of the test figure per domain; thin lines are one deviation over seeds.

        Args:
            views: models to draw; by default that of each run's headline.
            panels: domains, and all for all clients together; by default all domains, if they are
                at most 16, and all.
            start: where the axis of figures begins, as printed; if it is not 0, the axis says so.
            look: ``size``, ``names`` and ``title``.
        """
        groups = self._groups(views)
        panels = check_panels(panels or [*check_panels([], groups), ALL], groups)
        with Look.of(**self._labelled(look)) as shown:
            wide = max(2 * WIDTH, 0.6 * len(panels) + 0.12 * len(panels) * len(groups))
            figure, (ax,) = shown.grid(1, width=wide)
            width, heights = 0.8 / len(groups), [_means_and_errors([group], panels) for group in groups]
            for place, (group, (means, errors)) in enumerate(zip(groups, heights)):
                where = np.arange(len(panels)) + (place - (len(groups) - 1) / 2) * width
                ax.bar(
                    where,
                    means,
                    width,
                    yerr=errors,
                    label=shown.label(group.name),
                    color=style(group.look)["color"],
                    hatch=HATCHES[sum(divmod(group.look, len(COLOURS))) % len(HATCHES)],
                    edgecolor="white",
                    linewidth=0.5,
                    error_kw={"elinewidth": 1, "ecolor": "#333333"},
                )
            kind, highest = _figure_of(groups), np.nan_to_num([means for means, _ in heights]).max()
            if start and start >= highest:  # the axis would be upside down
                most = f"{kind.text(highest)}{kind.unit}"
                raise BadValue("start", f"is {start}", f"it must be below the highest bar, {most}")
            names = [_panel_title(panel, shown) for panel in panels]
            ax.set_xticks(range(len(panels)), names, **shown.tick_rotation(names, figure.get_figwidth()))
            ax.set_ylim(start, None)
            label = f"test {kind.title}{f', from {start:g} on' * bool(start)}"
            return shown.add_legend(figure, [ax], drawn(label))

    def radar(self, view: str | None = None, **look: Unpack[Looks]) -> Picture:
        """Draw a radar per data set: an axis per domain, scaled by the best figure on it.

        Rings are shares of the best figure, or the best one's shares of it where lower is better; the label
        below gives the value at the centre.

        Args:
            view: the model to draw; by default that of each run's headline.
            look: ``size``, ``names`` and ``title``.
        """
        groups = self._groups([] if view is None else [view])
        sets = group_by(groups, lambda g: str(g.runs[0].config["data"]["class_path"]).rpartition(".")[2])
        with Look.of(**self._labelled(look)) as shown:
            figure, axes = shown.grid(len(sets), polar=True, height=3.8)
            for ax, (data, own) in zip(axes, sets.items()):
                assert isinstance(ax, PolarAxes)
                _draw_radar(ax, data, own, shown)
            return shown.add_legend(figure, axes)

    def clients(self, views: Sequence[str] = (), **look: Unpack[Looks]) -> Picture:
        """Draw how the test figure is distributed over clients, and each client's.

        The median is a line, the mean a triangle. For many clients, and runs that divide data differently,
        the second panel is the share of clients at or below each figure.

        Args:
            views: models to draw; by default that of each run's headline.
            look: ``size``, ``names`` and ``title``.
        """
        groups = self._groups(views)
        runs = [
            [[run.scores.figure[-1] for run in own if run.scores] for own in group.seeds.values()]
            for group in groups
        ]
        counts = {len(run) for seeds in runs for own in seeds for run in own}
        divisions = {run.history.population.division for group in groups for run in group.runs}
        few = len(counts) == len(divisions) == 1 and max(counts) <= _FEW  # client 0 is the same everywhere
        kind = _figure_of(groups)
        with Look.of(**look) as shown:
            columns = shown.columns_that_fit(2)
            figure, (boxes, each) = shown.grid(2, width=2 * WIDTH, columns=columns)
            for place, (group, seeds) in enumerate(zip(groups, runs)):
                values = kind.scale * np.concatenate([run for own in seeds for run in own])
                values = values[~np.isnan(values)]
                color, name = style(group.look)["color"], shown.label(group.name)
                boxes.boxplot(
                    values,
                    positions=[place],
                    widths=0.6,
                    showmeans=True,
                    medianprops={"color": color, "linewidth": 2},
                    meanprops={"markerfacecolor": color, "markeredgecolor": color, "markersize": 5},
                    flierprops={"marker": ".", "markersize": 3, "markeredgecolor": "#777777"},
                )
                if few:
                    means = kind.scale * np.mean([np.mean(own, axis=0) for own in seeds], axis=0)
                    each.plot(means, color=color, linestyle="", label=name, **marker(group.look))
                elif len(values):
                    each.ecdf(values, label=name, linewidth=LINE_WIDTH, **style(group.look))
            names = [shown.label(group.name) for group in groups]
            turned = shown.tick_rotation(names, figure.get_figwidth() / columns)
            boxes.set_xticks(range(len(groups)), names, fontsize="small", **turned)
            label = drawn(f"test {kind.title}")
            boxes.set(ylabel=label, title="clients, last evaluation")
            if few:
                several = ", mean over seeds" * any(len(seeds) > 1 for seeds in runs)
                each.set(xlabel="client", title=f"each client{several}")
                each.xaxis.set_major_locator(MaxNLocator(integer=True))
            else:
                each.set(xlabel=label, ylabel="share of clients", title="clients at or below", ylim=(0, 1.02))
            return shown.add_legend(figure, [boxes, each])

    def labels(self, **look: Unpack[Looks]) -> Picture:
        """Draw training samples per client and class, a panel for every different division.

        All panels have one colour scale. Many clients are sorted by their most frequent class.

        Args:
            look: ``size``, ``names`` and ``title``.
        """
        divisions = _label_counts(self.runs)
        matrices = [matrix for _, matrix, _ in divisions]
        many = max(map(len, matrices)) > _FEW
        rows = max(matrix.shape[1] for matrix in matrices)
        largest = max(1, *(int(matrix.max()) for matrix in matrices))
        with Look.of(**look) as shown:
            columns = 1 if many else shown.columns_that_fit(min(3, len(divisions)))
            height = min(9.0, max(2.4, 0.9 + 0.17 * min(rows, _NAMED_CLASSES)))
            width = 3 * WIDTH if many else max(1.5 * WIDTH, (1.1 * columns + 0.3) * WIDTH)
            figure, axes = shown.grid(len(divisions), width=width, height=height, columns=columns)
            if shown.width is not None and shown.height is None:
                figure.set_figheight(height * -(-len(divisions) // columns))
            for ax, (name, matrix, classes) in zip(axes, divisions):
                sort = len(matrix) > _FEW
                order = np.lexsort((-matrix.max(1), matrix.argmax(1))) if sort else np.arange(len(matrix))
                image = ax.imshow(
                    matrix[order].T,
                    aspect="auto",
                    cmap="Blues",
                    vmin=0,
                    vmax=largest,
                    interpolation="nearest",
                )
                title = shown.wrap_title(shown.label(name), figure, columns)
                ax.set_title(title, fontsize="small", loc="left")
                ax.set_xlabel("clients, by their most frequent class" if sort else "client")
                ax.xaxis.set_major_locator(MaxNLocator(integer=True))
                numbers = range(0, len(classes), -(-len(classes) // _NAMED_CLASSES))
                written = [shown.label(classes[k], classes[k][:24]) for k in numbers]
                ax.set_yticks(numbers, written, fontsize="x-small")
                ax.set_ylabel("class")
            shrink, ticks = min(1.0, 2 / len(divisions)), MaxNLocator(integer=True)
            figure.colorbar(image, ax=axes, label="training samples", ticks=ticks, shrink=shrink, pad=0.02)
            return shown.add_legend(figure, axes, lines=False)

    def _labelled(self, look: Looks) -> Looks:
        """Return the look of a picture of chosen rounds: its title says if test data have chosen them."""
        by_test = any(run.protocol.choose == "best_test" for run in self.runs)
        return {**look, "title": ", ".join(filter(None, (look.get("title"), CHOSEN_ON_TEST * by_test)))}

    def _groups(self, views: Sequence[str]) -> list[RunGroup]:
        return drawn_groups(group_runs(self.runs, self.by), _as_list("views", views), self.by)

    def _panels_of(self, views: Sequence[str], panels: Sequence[str]) -> tuple[list[RunGroup], list[str]]:
        """Return what is drawn, and the panels for which some of it has scores."""
        groups = self._groups(views)
        panels = check_panels(panels, groups)
        found = [panel for panel in panels if any(panel_curves(group, panel) for group in groups)]
        if not found:
            why = f"{', '.join(panels)} have no scores in any run, so there is nothing to draw"
            raise Missing("panels", why)
        return groups, found


def _as_list(name: str, value: Sequence[str]) -> Sequence[str]:
    """Refuse a text in the place of a list, whose letters would be taken for names."""
    if isinstance(value, str):
        raise BadValue(name, f'is "{value}"', f'it must be a list, such as ["{value}"]')
    return value


# ---- what is drawn


def drawn_groups(
    groups: Sequence[RunGroup], views: Sequence[str] = (), by: Sequence[str] = ()
) -> list[RunGroup]:
    """Return the groups with their names for the legend, each for each of the views that it has."""
    for asked in views:
        check_recorded([run for group in groups for run in group.runs], view=asked)
    found = []
    wanted: Sequence[str | None] = views or [None]
    for group, name in zip(groups, _group_names(groups, by)):
        if conflict := conflicts_of(group.runs):
            raise Conflict(f"{conflict}: {CONFLICT}")
        for view in wanted:
            runs, label = [run.scored(view=view) for run in group.runs], f"{name}, {view}"
            if all(run.view is not None for run in runs):
                found.append(replace(group, runs=runs, name=label if len(views) > 1 else name))
            elif view is not None:
                warn(f"{label} is left out: {missing_scores(runs[0])}")
    if not found:
        raise Missing("runs", "have not been evaluated, so there is nothing to draw")
    by_place = sorted(found, key=lambda group: PLACES.get(group.runs[0].method, LOOKS))
    rows = group_by(by_place, lambda group: group.name).values()  # a row may have groups on several data sets
    looks = looks_of(own[0].runs[0].method for own in rows)
    return [replace(group, look=look) for look, own in zip(looks, rows) for group in own]


def _group_names(groups: Sequence[RunGroup], by: Sequence[str]) -> list[str]:
    """Name groups by the rows of a table of experiments where these tell them apart, else by what differs."""
    columns = {group.config.get("cell.column") for group in groups}
    places = [[g.config.get("cell.row"), g.config.get("cell.column")][: min(2, len(columns))] for g in groups]
    names = [one_line(", ".join(map(str, place))) for place in places]
    known = all(x not in (None, "various") for place in places for x in place)
    complete = all(group.complete for group in groups)
    return names if known and complete and len(set(names)) == len(names) else short_labels(groups, by)


def sweep_lines(
    runs: Sequence[RunRecords], over: str, view: str | None, by: Sequence[str] = ()
) -> list[tuple[str, list[tuple[float, RunGroup]]]]:
    """Return the lines of a sweep: the name, and the runs at every value of the swept key, ascending."""
    for run in runs:
        config = flatten_config(run.config)
        if over not in config:
            raise Unknown("over", f"is {over}, which is no key of {run.folder}{keys_hint(over, config)}")
    groups = group_runs(runs, [*by, over] if by else ())
    groups = drawn_groups(groups, [view] if view else [], by)
    lines: dict[str, list[tuple[float, RunGroup]]] = {}
    # Points of one line may be cells of a table, so their places there do not tell lines apart.
    places = {over, *(key for g in groups for key in g.config if key.startswith("cell."))} - set(by)
    rest = [replace(g, config={k: v for k, v in g.config.items() if k not in places}) for g in groups]
    keys = [key for key in by if key != over]
    for group, name in zip(groups, short_labels(rest, keys, contents=not changes_data(over))):
        value = group.config[over]
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise BadValue(
                "over", f"is {over}, which is {value!r} in {group.runs[0].folder}: a sweep is over numbers"
            )
        lines.setdefault(name, []).append((value, group))
    rows = [{str(group.config.get("cell.row", "various")) for _, group in own} for own in lines.values()]
    known = set[str]().union(*rows) - {"various"}
    in_rows = len(known) == len(lines) and all(len(own) == 1 for own in rows)
    names = [row for (row,) in rows] if in_rows else list(lines)
    return [(name, sorted(points, key=lambda p: p[0])) for name, points in zip(names, lines.values())]


def domains_of(groups: Sequence[RunGroup]) -> list[str]:
    """Return the domains of all clients, in the order of client numbers."""
    names = (d for group in groups for run in group.runs for d in run.history.population.domains if d)
    return list(dict.fromkeys(names))


def check_panels(panels: Sequence[str], groups: Sequence[RunGroup]) -> list[str]:
    """Return the requested panels: domains or ``all``; by default all domains, if they are few."""
    domains = domains_of(groups)
    for name in _as_list("panels", panels):
        if name not in (*domains, ALL):
            raise Unknown("panels", f"are {', '.join([*domains, ALL])}; there is no domain {name}")
    return list(dict.fromkeys(panels)) or (domains if 0 < len(domains) <= MOST_PANELS else [ALL])


def panel_curves(group: RunGroup, panel: str, quantity: str = "figure") -> list[list[Curve]]:
    """Return for each seed the curves of runs with scores of a domain or ``all``."""
    found = [[panel_curve(run, panel, quantity) for run in own] for own in group.seeds.values()]
    return [curves for own in found if (curves := [curve for curve in own if len(curve[0])])]


def panel_curve(run: RunRecords, panel: str, quantity: str = "figure") -> Curve:
    """Return the curve of the clients of a domain, or of all."""
    scores = run.scores
    if panel != ALL and scores is not None:
        scores = scores.where_counted(np.array([name == panel for name in run.history.population.domains]))
    return run.curve(quantity, scores)


def chosen_value(run: RunRecords, panel: str) -> float:
    """Return the test figure as printed at the rounds that the protocol chooses; NaN without the panel."""
    if not run.chosen:
        raise Missing(
            run.folder,
            f"has no round that its protocol {run.protocol} would choose: it has no scores on validation "
            "data; draw rounds instead",
        )
    if panel == ALL:
        value = average(run.chosen, run.protocol.average)
    else:
        domain = run.chosen["domains"].get(panel, {})
        value = domain.get("pooled" if run.protocol.average == "pooled" else "mean")
    return math.nan if value is None else run.figure_kind.scale * value


def roughness(values: np.ndarray) -> float:
    """Return the standard deviation of the change between evaluations; NaN below three of them."""
    return float(np.std(np.diff(values), ddof=1)) if len(values) > 2 else math.nan


def _means_and_errors(groups: Sequence[RunGroup], panels: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and deviation over seeds of the chosen figure, for each group and panel; NaN: none."""
    seeds = [(group.seeds.values(), panel) for group in groups for panel in panels]
    figures = [[np.mean([chosen_value(run, panel) for run in own]) for own in runs] for runs, panel in seeds]
    found = [mean_and_std([none_if_nan(float(figure)) for figure in each]) for each in figures]
    means, errors = np.array(found, dtype=float).T
    return means, errors


def _figure_of(groups: Sequence[RunGroup]) -> Figure:
    """Return the figure of some runs; different ones have no common axis."""
    kinds = list(dict.fromkeys(run.figure_kind for group in groups for run in group.runs))
    if len(kinds) > 1:
        names = " and ".join(kind.title for kind in kinds)
        raise Conflict("the runs", f"have different figures, {names}", "draw them apart")
    return kinds[0]


def _panel_title(panel: str, look: Look) -> str:
    return look.label(panel, "all clients" if panel == ALL else None)


# ---- parts of pictures


def _draw_radar(ax: PolarAxes, data: str, groups: Sequence[RunGroup], look: Look) -> None:
    """Draw the radar of a data set."""
    domains = domains_of(groups)
    if len(domains) < 3:
        raise BadData(data, f"has {len(domains)} domains, and a radar needs at least three", "draw bars")
    table = np.array([_means_and_errors([group], domains)[0] for group in groups])
    kind = _figure_of(groups)
    best = np.nanmax(table, axis=0) if kind.higher else np.nanmin(table, axis=0)
    shares = table / np.where(best > 0, best, 1)
    shares = shares if kind.higher else 1 / shares
    angles = 2 * math.pi * np.arange(len(domains)) / len(domains)
    for group, row in zip(groups, shares):
        ax.plot(
            [*angles, angles[0]],
            [*row, row[0]],
            label=look.label(group.name),
            linewidth=LINE_WIDTH,
            clip_on=False,  # marks on the outer ring are whole
            **style(group.look),
            **marker(group.look),
        )
    values = [f"{b:.1f} %" if kind.percent else kind.text(b) for b in best]
    names = [f"{look.label(domain)}\n{value}" for domain, value in zip(domains, values)]
    ax.set_xticks(angles, names, fontsize="small")
    for label, angle in zip(ax.get_xticklabels(), angles):  # texts start outside the ring
        side = round(math.cos(angle), 1)
        label.set_horizontalalignment("left" if side > 0.5 else "right" if side < -0.5 else "center")
    rings = rings_from(float(np.nanmin(shares)))
    ax.set_ylim(rings[0], 1.0)
    ax.set_yticks(rings, [f"{100 * ring:.0f} %" for ring in rings], fontsize="x-small", color="#444444")
    for label in ax.get_yticklabels():  # lines may cross them
        label.set_bbox({"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 0.5})
    ax.set_rlabel_position(180 / len(domains))  # between two axes
    ax.tick_params(axis="x", pad=8)
    ax.set_title(look.label(data), fontsize="medium", pad=10)
    begin = f"rings: share of the best; centre: {100 * rings[0]:.0f} %"
    ax.set_xlabel(begin, fontsize="small", labelpad=8)


def rings_from(lowest: float) -> list[float]:
    """Return at most six rings of a radar for values from ``lowest`` to 1, from its centre to 1."""
    for step in (0.01, 0.02, 0.05, 0.1, 0.2):
        count = math.floor((1 - lowest) / step) + 1
        if count <= 5:
            return [max(0.0, round(1 - step * k, 2)) for k in range(min(count, round(1 / step)), -1, -1)]
    return [0.0, 0.25, 0.5, 0.75, 1.0]


def _label_counts(runs: Sequence[RunRecords]) -> list[tuple[str, np.ndarray, list[str]]]:
    """Return for every different division its name, the counts [clients, classes], and names of classes."""
    found: dict[bytes, tuple[str, np.ndarray, list[str]]] = {}
    for run in runs:
        partition = read_partition(run.folder)
        matrix = label_matrix(partition)
        if matrix is None:
            raise Missing(run.folder / PARTITION, "has no label counts")
        _, (cells,) = labels(group_runs([run]))
        classes = [one_line(str(name)) for name in partition.get("class_names") or ()]
        if len(classes) != matrix.shape[1]:
            classes = list(map(str, range(matrix.shape[1])))
        found.setdefault(matrix.tobytes(), (", ".join(cells[1:3]), matrix, classes))
    return list(found.values())
