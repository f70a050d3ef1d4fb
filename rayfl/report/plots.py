"""Pictures of runs as in papers: panels per domain, sweeps, bars, radars, clients, labels."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.projections.polar import PolarAxes
from matplotlib.ticker import MaxNLocator
from rich.table import Table

from rayfl.data.task import Figure
from rayfl.errors import BadData, BadValue, Conflict, Missing, Unknown
from rayfl.evaluation.metrics import average, none_if_nan
from rayfl.evaluation.run_records import RunRecords
from rayfl.record.history import PARTITION, label_matrix, read_partition
from rayfl.report.compare import (
    CONFLICT,
    RunGroup,
    by_seed,
    check_recorded,
    conflicts_of,
    counted_view,
    group_by,
    group_runs,
    keys_hint,
    labels,
    missing_scores,
    rounds_to,
    short_labels,
    values_over_rounds,
    view_summary,
)
from rayfl.report.look import (
    HATCHES,
    LINE_WIDTH,
    WIDTH,
    Curve,
    Look,
    Picture,
    draw_band,
    drawn,
    marker,
    scale_axis,
    style,
)
from rayfl.report.text import mean_and_std, plain_table, range_text
from rayfl.settings.description import changes_data, flatten_config
from rayfl.system.text import one_line, warn

ALL = "all"
"""The panel of all clients together, as the protocol averages them."""
MOST_PANELS = 16
"""With more domains than this, pictures show all clients together unless asked otherwise."""
_NAMED_CLASSES = 40  # classes whose names have room
_FEW = 60  # clients that can be told apart in a picture


@dataclass(frozen=True)
class Series:
    """A view of a group of runs, drawn in one colour.

    Attributes:
        name: for the legend.
        runs: repetitions with different seeds, with the headline of this view.
    """

    name: str
    runs: list[RunRecords]

    @property
    def seeds(self) -> list[list[RunRecords]]:
        """The runs of each seed."""
        return list(by_seed(self.runs).values())


def series_of(groups: Sequence[RunGroup], views: Sequence[str] = (), by: Sequence[str] = ()) -> list[Series]:
    """Return a series for each group, or for each group and each of the views that it has."""
    for asked in views:
        check_recorded([run for group in groups for run in group.runs], view=asked)
    found = []
    wanted: Sequence[str | None] = views or [None]
    for group, name in zip(groups, _group_names(groups, by)):
        if why := conflicts_of(group.runs):
            raise Conflict(f"{why}: {CONFLICT}")
        for view in wanted:
            runs, label = [run.scored(view=view) for run in group.runs], f"{name}, {view}"
            if all(view_summary(run) is not None for run in runs):
                found.append(Series(label if len(views) > 1 else name, runs))
            elif view is not None:
                warn(f"{label} is left out: {missing_scores(runs[0])}")
    if not found:
        raise Missing("runs", "have not been evaluated, so there is nothing to draw")
    return found


def _group_names(groups: Sequence[RunGroup], by: Sequence[str]) -> list[str]:
    """Name groups by the rows of a table of experiments where these tell them apart, else by what differs."""
    columns = {group.config.get("cell.column") for group in groups}
    places = [[g.config.get("cell.row"), g.config.get("cell.column")][: min(2, len(columns))] for g in groups]
    names = [one_line(", ".join(map(str, place))) for place in places]
    known = all(x not in (None, "various") for place in places for x in place)
    complete = all(group.complete for group in groups)
    return names if known and complete and len(set(names)) == len(names) else short_labels(groups, by)


def domains_of(series: Sequence[Series]) -> list[str]:
    """Return the domains of all clients, in the order of client numbers."""
    names = (d for s in series for run in s.runs for d in run.history.population.domains if d)
    return list(dict.fromkeys(names))


def check_panels(panels: Sequence[str], series: Sequence[Series]) -> list[str]:
    """Return the requested panels: domains or ``all``; by default all domains, if they are few."""
    domains = domains_of(series)
    for name in panels:
        if name not in (*domains, ALL):
            raise Unknown("panels", f"are {', '.join([*domains, ALL])}; there is no domain {name}")
    return list(panels) or (domains if 0 < len(domains) <= MOST_PANELS else [ALL])


# ---- numbers


def panel_curve(run: RunRecords, panel: str, quantity: str = "figure") -> Curve:
    """Return completed rounds, and the test figure as printed, or loss or metric, of a domain or ``all``.

    Clients are averaged by the protocol; rounds without a score are left out.
    """
    scores = counted_view(run)
    if scores is None:
        return np.zeros(0), np.zeros(0)
    if panel != ALL:
        inside = np.array([domain == panel for domain in run.history.population.domains])
        scores = scores.where_counted(inside)
    values = values_over_rounds(run, scores, quantity)
    there = ~np.isnan(values)
    return scores.rounds[there] + 1, values[there]


def panel_curves(series: Series, panel: str, quantity: str = "figure") -> list[list[Curve]]:
    """Return for each seed the curves of runs with scores of a panel; a held-out domain has none."""
    found = [[panel_curve(run, panel, quantity) for run in own] for own in series.seeds]
    return [curves for own in found if (curves := [curve for curve in own if len(curve[0])])]


def scored_panels(panels: Sequence[str], series: Sequence[Series]) -> list[str]:
    """Return the panels for which some run has scores."""
    found = [panel for panel in panels if any(panel_curves(s, panel) for s in series)]
    if not found:
        raise Missing("panels", f"{', '.join(panels)} have no scores in any run, so there is nothing to draw")
    return found


def chosen_value(run: RunRecords, panel: str) -> float:
    """Return the test figure as printed at the rounds that the protocol chooses; NaN without the panel."""
    entry = view_summary(run)
    chosen = entry and entry.get(run.protocol.choose)
    if not chosen:
        raise Missing(
            run.folder,
            f"has no round that its protocol {run.protocol} would choose: it has no scores on validation "
            "data; draw rounds instead",
        )
    if panel == ALL:
        value = average(chosen, run.protocol.average)
    else:
        domain = chosen["domains"].get(panel, {})
        value = domain.get("pooled" if run.protocol.average == "pooled" else "mean")
    return math.nan if value is None else run.figure_kind.scale * value


def roughness(values: np.ndarray) -> float:
    """Return the standard deviation of the change between evaluations; NaN below three of them."""
    return float(np.std(np.diff(values), ddof=1)) if len(values) > 2 else math.nan


def progress_table(series: Sequence[Series], panels: Sequence[str], target: float | None) -> Table:
    """Return the roughness of the curves of figures and, for a target as printed, when they reach it."""
    kind = _figure_of(series)
    title = f"Roughness of test {kind.name}: standard deviation of the change between evaluations"
    title += ", in points" * kind.percent
    if target is not None:
        title += f"; rounds until {target:g}{kind.unit} are reached"
    table = plain_table(title)
    table.min_width = min(len(title), 76)  # the title breaks at the width of the table
    table.add_column("", overflow="fold")
    for panel in panels:
        table.add_column(panel, justify="right")
        if target is not None:
            table.add_column(f"{panel}, rounds", justify="right")
    for s in series:
        cells = []
        for panel in panels:
            curves = panel_curves(s, panel)
            each = [np.mean([roughness(y) for _, y in own]) for own in curves]
            cells.append(kind.text(none_if_nan(float(np.mean(each))) if each else None))
            if target is not None:
                cells.append(range_text(rounds_to(x, y, target, kind.sign) for own in curves for x, y in own))
        table.add_row(s.name, *cells)
    return table


# ---- pictures


def draw_rounds(series: Sequence[Series], panels: Sequence[str], quantity: str, look: Look) -> Picture:
    """Draw the test figure, loss or a metric over rounds, a panel per domain; bands are one deviation."""
    figure, axes = look.grid(len(panels))
    for ax, panel in zip(axes, panels):
        for place, s in enumerate(series):
            if curves := panel_curves(s, panel, quantity):
                draw_band(ax, curves, look.label(s.name), place)
        ax.set(title=_panel_title(panel, look), xlabel="completed rounds")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    label = drawn(f"test {_figure_of(series).title if quantity == 'figure' else quantity}")
    return look.add_legend(figure, axes, label)


def sweep_series(
    runs: Sequence[RunRecords], over: str, view: str | None, by: Sequence[str] = ()
) -> list[tuple[str, list[tuple[float, Series]]]]:
    """Return the lines of a sweep: the name, and the series at every value of the swept key, ascending."""
    for run in runs:
        config = flatten_config(run.config, shown=True)
        if over not in config:
            raise Unknown("over", f"is {over}, which is no key of {run.folder}{keys_hint(over, config)}")
    groups, views = group_runs(runs, [*by, over] if by else ()), [view] if view else []
    series_of(groups, views, by)  # refuses runs without any scores
    groups = [g for g in groups if all(view_summary(run.scored(view=view)) is not None for run in g.runs)]
    lines: dict[str, list[tuple[float, Series]]] = {}
    rows: dict[str, set[Any]] = {}
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
        (series,) = series_of([group], views, by)
        lines.setdefault(name, []).append((value, series))
        rows.setdefault(name, set()).add(group.config.get("cell.row"))
    named = [str(row) for own in rows.values() for row in own if row not in (None, "various")]
    in_rows = all(len(own) == 1 for own in rows.values()) and len(set(named)) == len(lines)
    names = named if in_rows else list(lines)
    return [(name, sorted(points, key=lambda p: p[0])) for name, points in zip(names, lines.values())]


def draw_sweep(
    lines: Sequence[tuple[str, list[tuple[float, Series]]]], over: str, panels: Sequence[str], look: Look
) -> Picture:
    """Draw the test figure over a swept parameter, a panel per domain; bars are one deviation over seeds."""
    figure, axes = look.grid(len(panels))
    values = sorted({x for _, points in lines for x, _ in points})
    for ax, panel in zip(axes, panels):
        for place, (name, points) in enumerate(lines):
            means, errors = _means_and_errors([(s, panel) for _, s in points])
            x = [value for value, _ in points]
            bars = np.nan_to_num(errors)  # one seed has a bar of length 0
            looks = style(place) | marker(place)
            ax.errorbar(x, means, yerr=bars, label=look.label(name), capsize=2, **looks)
        scale_axis(ax, values)
        ax.set(title=_panel_title(panel, look), xlabel=look.label(over, over.rpartition(".")[2]))
    kind = _figure_of([s for _, points in lines for _, s in points])
    return look.add_legend(figure, axes, drawn(f"test {kind.title}"))


def draw_bars(series: Sequence[Series], panels: Sequence[str], start: float, look: Look) -> Picture:
    """Draw a group of bars for every domain; thin lines are one deviation over seeds.

    The axis begins at ``start``, as printed; its label says so unless it is 0.
    """
    wide = max(2 * WIDTH, 0.6 * len(panels) + 0.12 * len(panels) * len(series))
    figure, (ax,) = look.grid(1, width=wide)
    width, highest = 0.8 / len(series), 0.0
    for place, s in enumerate(series):
        means, errors = _means_and_errors([(s, panel) for panel in panels])
        where = np.arange(len(panels)) + (place - (len(series) - 1) / 2) * width
        highest = max([highest, *(mean for mean in means if mean > highest)])
        ax.bar(
            where,
            means,
            width,
            yerr=errors,
            label=look.label(s.name),
            color=style(place)["color"],
            hatch=HATCHES[place % len(HATCHES)],
            edgecolor="white",
            linewidth=0.5,
            error_kw={"elinewidth": 1, "ecolor": "#333333"},
        )
    kind = _figure_of(series)
    if start and start >= highest:  # the axis would be upside down
        most = f"{kind.text(highest)}{kind.unit}"
        raise BadValue("start", f"is {start}", f"it must be below the highest bar, {most}")
    names = [_panel_title(panel, look) for panel in panels]
    ax.set_xticks(range(len(panels)), names, **look.tick_rotation(names, figure.get_figwidth()))
    ax.set_ylim(start, None)
    return look.add_legend(figure, [ax], drawn(f"test {kind.title}{f', from {start:g} on' * bool(start)}"))


def draw_radar(series: Sequence[Series], look: Look) -> Picture:
    """Draw a radar per data set: an axis per domain, scaled by the best figure on it.

    Rings are shares of the best figure, or the best one's shares of it where lower is better; the label below
    gives the value at the centre.
    """
    sets = group_by(series, lambda s: str(s.runs[0].config["data"]["class_path"]).rpartition(".")[2])
    names = list(dict.fromkeys(s.name for s in series))
    figure, axes = look.grid(len(sets), polar=True, height=3.8)
    for ax, (data, own) in zip(axes, sets.items()):
        domains = domains_of(own)
        if len(domains) < 3:
            raise BadData(data, f"has {len(domains)} domains, and a radar needs at least three", "draw bars")
        table = np.array([[np.mean(_chosen_values(s, domain)) for domain in domains] for s in own])
        kind = _figure_of(own)
        best = np.nanmax(table, axis=0) if kind.higher else np.nanmin(table, axis=0)
        shares = table / np.where(best > 0, best, 1)
        shares = shares if kind.higher else 1 / shares
        angles = 2 * math.pi * np.arange(len(domains)) / len(domains)
        for s, row in zip(own, shares):
            place = names.index(s.name)
            ax.plot(
                [*angles, angles[0]],
                [*row, row[0]],
                label=look.label(s.name),
                linewidth=LINE_WIDTH,
                clip_on=False,  # marks on the outer ring are whole
                **style(place),
                **marker(place),
            )
        ax.set_xticks(
            angles,
            [f"{look.label(d)}\n{_best_text(b, kind)}" for d, b in zip(domains, best)],
            fontsize="small",
        )
        for label, angle in zip(ax.get_xticklabels(), angles):  # texts start outside the ring
            side = round(math.cos(angle), 1)
            label.set_horizontalalignment("left" if side > 0.5 else "right" if side < -0.5 else "center")
        rings = rings_from(float(np.nanmin(shares)))
        ax.set_ylim(rings[0], 1.0)
        ax.set_yticks(rings, [f"{100 * ring:.0f} %" for ring in rings], fontsize="x-small", color="#444444")
        for label in ax.get_yticklabels():  # lines may cross them
            label.set_bbox({"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 0.5})
        assert isinstance(ax, PolarAxes)
        ax.set_rlabel_position(180 / len(domains))  # between two axes
        ax.tick_params(axis="x", pad=8)
        begin = f"rings: share of the best; centre: {100 * rings[0]:.0f} %"
        ax.set_title(look.label(data), fontsize="medium", pad=10)
        ax.set_xlabel(begin, fontsize="small", labelpad=8)
    return look.add_legend(figure, axes)


def rings_from(lowest: float) -> list[float]:
    """Return at most six rings of a radar for values from ``lowest`` to 1, from its centre to 1."""
    for step in (0.01, 0.02, 0.05, 0.1, 0.2):
        count = math.floor((1 - lowest) / step) + 1
        if count <= 5:
            return [max(0.0, round(1 - step * k, 2)) for k in range(min(count, round(1 / step)), -1, -1)]
    return [0.0, 0.25, 0.5, 0.75, 1.0]


def draw_clients(series: Sequence[Series], look: Look) -> Picture:
    """Draw the distribution of the clients' figures (median: line, mean: triangle), and each client's.

    For many clients, and runs that divide data differently, the second panel is the share of clients at or
    below each figure.
    """
    figure, (boxes, each) = look.grid(2, width=2 * WIDTH, columns=look.columns_that_fit(2))
    runs = [
        [[scores.figure[-1] for run in own if (scores := counted_view(run))] for own in s.seeds]
        for s in series
    ]
    counts = {len(run) for seeds in runs for own in seeds for run in own}
    divisions = {run.history.population.division for s in series for run in s.runs}
    few = len(counts) == len(divisions) == 1 and max(counts) <= _FEW  # client 0 is the same one everywhere
    kind = _figure_of(series)
    for place, (s, seeds) in enumerate(zip(series, runs)):
        values = kind.scale * np.concatenate([run for own in seeds for run in own])
        values = values[~np.isnan(values)]
        color = style(place)["color"]
        boxes.boxplot(
            values,
            positions=[place],
            widths=0.6,
            showmeans=True,
            medianprops={"color": color, "linewidth": 2},
            meanprops={"markerfacecolor": color, "markeredgecolor": color, "markersize": 5},
            flierprops={"marker": ".", "markersize": 3, "markeredgecolor": "#777777"},
        )
        name = look.label(s.name)
        if few:
            means = kind.scale * np.mean([np.mean(own, axis=0) for own in seeds], axis=0)
            each.plot(means, color=color, linestyle="", label=name, **marker(place))
        elif len(values):
            each.ecdf(values, label=name, linewidth=LINE_WIDTH, **style(place))
    names = [look.label(s.name) for s in series]
    width = figure.get_figwidth() / look.columns_that_fit(2)
    boxes.set_xticks(range(len(series)), names, fontsize="small", **look.tick_rotation(names, width))
    boxes.set(ylabel=drawn(f"test {kind.title}"), title="clients, last evaluation")
    if few:
        several = any(len(seeds) > 1 for seeds in runs)
        each.set(xlabel="client", title=f"each client{', mean over seeds' if several else ''}")
        each.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        each.set(xlabel=drawn(f"test {kind.title}"), ylabel="share of clients", title="clients at or below")
        each.set_ylim(0, 1.02)
    return look.add_legend(figure, [boxes, each])


def draw_labels(runs: Sequence[RunRecords], look: Look) -> Picture:
    """Draw how many training samples of each class each client has, a panel for every different division.

    All panels have one colour scale. Many clients are sorted by their most frequent class.
    """
    found: dict[str, tuple[str, np.ndarray, list[str]]] = {}
    for run in runs:
        partition = read_partition(run.folder)
        matrix = label_matrix(partition)
        if matrix is None:
            raise Missing(run.folder / PARTITION, "has no label counts")
        _, (cells,) = labels(group_runs([run]))
        classes = [one_line(str(name)) for name in partition.get("class_names") or ()]
        found.setdefault(matrix.tobytes().hex(), (", ".join(cells[1:3]), matrix, classes))
    most = max(len(matrix) for _, matrix, _ in found.values())
    rows = max(matrix.shape[1] for _, matrix, _ in found.values())
    columns = 1 if most > _FEW else look.columns_that_fit(min(3, len(found)))
    height = min(9.0, max(2.4, 0.9 + 0.17 * min(rows, _NAMED_CLASSES)))
    width = 3 * WIDTH if most > _FEW else max(1.5 * WIDTH, (1.1 * columns + 0.3) * WIDTH)
    figure, axes = look.grid(len(found), width=width, height=height, columns=columns)
    if look.width is not None and look.height is None:
        figure.set_figheight(height * -(-len(found) // columns))
    largest = max(1, *(int(matrix.max()) for _, matrix, _ in found.values()))
    for ax, (name, matrix, classes) in zip(axes, found.values()):
        many = len(matrix) > _FEW
        order = np.lexsort((-matrix.max(1), matrix.argmax(1))) if many else np.arange(len(matrix))
        shown = ax.imshow(
            matrix[order].T, aspect="auto", cmap="Blues", vmin=0, vmax=largest, interpolation="nearest"
        )
        ax.set_title(look.wrap_title(look.label(name), figure, columns), fontsize="small", loc="left")
        ax.set_xlabel("clients, by their most frequent class" if many else "client")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        step = -(-matrix.shape[1] // _NAMED_CLASSES)
        numbers = range(0, matrix.shape[1], step)
        written = classes if len(classes) == matrix.shape[1] else list(map(str, range(matrix.shape[1])))
        ax.set_yticks(numbers, [look.label(written[k], written[k][:24]) for k in numbers], fontsize="x-small")
        ax.set_ylabel("class")
    shrink, ticks = min(1.0, 2 / len(found)), MaxNLocator(integer=True)
    figure.colorbar(shown, ax=axes, label="training samples", ticks=ticks, shrink=shrink, pad=0.02)
    return look.add_legend(figure, axes, lines=False)


def _chosen_values(series: Series, panel: str) -> list[float]:
    """Return the chosen figure of each seed, the mean over its runs."""
    return [float(np.mean([chosen_value(run, panel) for run in own])) for own in series.seeds]


def _means_and_errors(places: Sequence[tuple[Series, str]]) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and sample deviation over seeds of the chosen figure of panels; NaN: there is none."""
    found = [mean_and_std(list(map(none_if_nan, _chosen_values(s, panel)))) for s, panel in places]
    means, errors = np.array(found, dtype=float).T
    return means, errors


def _figure_of(series: Sequence[Series]) -> Figure:
    """Return the figure of some runs; different ones have no common axis."""
    kinds = list(dict.fromkeys(run.figure_kind for s in series for run in s.runs))
    if len(kinds) > 1:
        names = " and ".join(kind.title for kind in kinds)
        raise Conflict("the runs", f"have different figures, {names}", "draw them apart")
    return kinds[0]


def _best_text(value: float, kind: Figure) -> str:
    return f"{value:.1f} %" if kind.percent else kind.text(value)


def _panel_title(panel: str, look: Look) -> str:
    return look.label(panel, "all clients" if panel == ALL else None)
