"""Pictures of runs as papers have them: panels per domain, sweeps, bars, radars, clients, labels."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.table import Table

from rayfl.errors import UserError
from rayfl.evaluation.metrics import average, curve, mean_loss, none_if_nan
from rayfl.evaluation.result import Result
from rayfl.record.description import about_data, flat
from rayfl.record.history import PARTITION, read_partition
from rayfl.report.compare import (
    Group,
    counted_view,
    group_runs,
    labels,
    short_labels,
    view_summary,
)
from rayfl.report.draw import COLOURS, MARKERS, draw_band, draw_points, style
from rayfl.report.pictures import Picture, drawn
from rayfl.report.text import mean_and_std, plain_table
from rayfl.shown import one_line

ALL = "all"
"""The panel of all clients together, as the protocol averages them."""
_WIDTH = 3.4  # inches of a panel


@dataclass(frozen=True)
class Series:
    """What gets one colour: a view of a group of runs.

    Attributes:
        name: for the legend.
        runs: repetitions with different seeds.
        view: the scored model; None is that of each run's headline.
    """

    name: str
    runs: list[Result]
    view: str | None


def series_of(groups: Sequence[Group], views: Sequence[str] = (), by: Sequence[str] = ()) -> list[Series]:
    """Return a series for each group, or for each group and each of the views that it has."""
    known = {view for group in groups for run in group.runs for _, view in run.history.views()}
    for asked in views:
        if asked not in known:
            raise UserError(f"no run has the view {asked}; there are {', '.join(sorted(known)) or 'none'}")
    found = []
    wanted: Sequence[str | None] = views or [None]
    for group, name in zip(groups, _group_names(groups, by)):
        for view in wanted:
            if all(view_summary(run, view) is not None for run in group.runs):
                label = f"{name}, {view}" if len(views) > 1 else name
                found.append(Series(label, group.runs, view))
    if not found:
        raise UserError("none of the runs has been evaluated, so there is nothing to draw")
    return found


def _group_names(groups: Sequence[Group], by: Sequence[str]) -> list[str]:
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
    """Return the panels asked for: domains, or ``all``; by default all domains, or ``all`` without any."""
    domains = domains_of(series)
    for name in panels:
        if name not in (*domains, ALL):
            raise UserError(f"there is no domain {name}; panels are {', '.join([*domains, ALL])}")
    return list(panels) or domains or [ALL]


# ---- numbers


def panel_curve(
    run: Result, view: str | None, panel: str, quantity: str = "accuracy"
) -> tuple[np.ndarray, np.ndarray]:
    """Return completed rounds, and test accuracy in per cent, or mean loss or metric, of a domain or ``all``.

    Clients are averaged as the protocol says; rounds without a score are left out.
    """
    scores = counted_view(run, view)
    if scores is None:
        return np.zeros(0), np.zeros(0)
    population, how = run.history.population, run.protocol.average
    if panel != ALL:
        inside = np.array([domain == panel for domain in population.domains])
        scores = scores.of(inside)
    if quantity == "accuracy":
        values = 100 * curve(scores, population, "test", how)
    else:
        found = scores.loss if quantity == "loss" else scores.measures.get(quantity)
        if found is None:
            return np.zeros(0), np.zeros(0)
        values = mean_loss(found, scores.samples, population, how)
    there = ~np.isnan(values)
    return scores.rounds[there] + 1, values[there]


def panel_curves(
    series: Series, panel: str, quantity: str = "accuracy"
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the curves of those runs that have scores of a panel; a domain left out of training has none."""
    curves = [panel_curve(run, series.view, panel, quantity) for run in series.runs]
    return [(rounds, values) for rounds, values in curves if len(rounds)]


def scored_panels(panels: Sequence[str], series: Sequence[Series]) -> list[str]:
    """Return the panels of which some run has scores."""
    found = [panel for panel in panels if any(panel_curves(s, panel) for s in series)]
    if not found:
        raise UserError(f"no run has scores of {', '.join(panels)}, so there is nothing to draw")
    return found


def chosen_value(run: Result, view: str | None, panel: str) -> float:
    """Return the test accuracy in per cent at the rounds that the protocol chooses; NaN without the panel."""
    entry = view_summary(run, view)
    chosen = entry and entry.get(run.protocol.choose)
    if not chosen:
        raise UserError(
            f"{run.folder} has no round that its protocol {run.protocol} would choose: it has no scores "
            "on validation data; draw rounds instead"
        )
    if panel == ALL:
        value = average(chosen, run.protocol.average)
    else:
        domain = chosen["domains"].get(panel, {})
        value = domain.get("pooled" if run.protocol.average == "pooled" else "mean")
    return math.nan if value is None else 100 * value


def rounds_to(rounds: np.ndarray, accuracy: np.ndarray, target: float) -> int | None:
    """Return the completed rounds at which a curve first reaches a target, None if it never does."""
    reached = rounds[accuracy >= target]
    return int(reached[0]) if len(reached) else None


def roughness(values: np.ndarray) -> float:
    """Return the standard deviation of the change between evaluations; NaN below three of them."""
    return float(np.std(np.diff(values), ddof=1)) if len(values) > 2 else math.nan


def progress_table(series: Sequence[Series], panels: Sequence[str], target: float | None) -> Table:
    """Return how rough the accuracy curves are and, with a target in per cent, when they reach it."""
    title = "Roughness: standard deviation of the change between evaluations, in points"
    if target is not None:
        title += f"; rounds until {target:g} % are reached"
    table = plain_table(title)
    table.add_column("", overflow="fold")
    for panel in panels:
        table.add_column(panel, justify="right")
        if target is not None:
            table.add_column(f"{panel}, rounds", justify="right")
    for s in series:
        cells = []
        for panel in panels:
            curves = panel_curves(s, panel)
            rough = float(np.mean([roughness(y) for _, y in curves])) if curves else math.nan
            cells.append("n/a" if math.isnan(rough) else f"{rough:.2f}")
            if target is not None:
                cells.append(_rounds_text([rounds_to(x, y, target) for x, y in curves]))
        table.add_row(s.name, *cells)
    return table


def _rounds_text(rounds: Sequence[int | None]) -> str:
    known = [r for r in rounds if r is not None]
    if len(known) < len(rounds):
        return "never" if not known else f"{len(known)} of {len(rounds)} runs"
    return f"{np.mean(known):g}"


# ---- pictures


def draw_rounds(series: Sequence[Series], panels: Sequence[str], quantity: str) -> Picture:
    """Draw test accuracy, loss or a metric over rounds, a panel per domain; bands are one deviation."""
    figure, axes = _grid(len(panels))
    for ax, panel in zip(axes, panels):
        for place, s in enumerate(series):
            if curves := panel_curves(s, panel, quantity):
                draw_band(ax, curves, s.name, style(place), linewidth=1.6)
        ax.set(title=_title(panel), xlabel="completed rounds")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].set_ylabel("test accuracy in %" if quantity == "accuracy" else drawn(f"test {quantity}"))
    return _finished(figure, axes)


def sweep_series(
    runs: Sequence[Result], over: str, view: str | None, by: Sequence[str] = ()
) -> list[tuple[str, list[tuple[float, Series]]]]:
    """Return the lines of a sweep: the name, and the series at every value of the swept key, ascending."""
    for run in runs:
        config = flat(run.config, shown=True)
        if over not in config:
            raise UserError(f"{run.folder} has no key {over}; its keys are {', '.join(sorted(config))}")
    groups = group_runs(runs, [*by, over] if by else ())
    lines: dict[str, list[tuple[float, Series]]] = {}
    rows: dict[str, set[Any]] = {}
    rest = [
        replace(g, config={k: v for k, v in g.config.items() if k in by or _is_kept(k, over)}) for g in groups
    ]
    keys = [key for key in by if key != over]
    for group, name in zip(groups, short_labels(rest, keys, contents=not about_data(over))):
        value = group.config[over]
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise UserError(f"{over} is {value!r} in {group.runs[0].folder}: a sweep is over numbers")
        (series,) = series_of([group], [view] if view else [], by)
        lines.setdefault(name, []).append((value, series))
        rows.setdefault(name, set()).add(group.config.get("cell.row"))
    named = [str(row) for own in rows.values() for row in own if row not in (None, "various")]
    in_rows = all(len(own) == 1 for own in rows.values()) and len(set(named)) == len(lines)
    names = named if in_rows else list(lines)
    return [(name, sorted(points, key=lambda p: p[0])) for name, points in zip(names, lines.values())]


def _is_kept(key: str, over: str) -> bool:
    """Say whether a key tells lines of a sweep apart: points of a line may be cells of a table."""
    return key != over and not key.startswith("cell.")


def draw_sweep(
    lines: Sequence[tuple[str, list[tuple[float, Series]]]], over: str, panels: Sequence[str]
) -> Picture:
    """Draw test accuracy over a swept parameter, a panel per domain; bars are one deviation over seeds."""
    figure, axes = _grid(len(panels))
    values = sorted({x for _, points in lines for x, _ in points})
    for ax, panel in zip(axes, panels):
        for place, (name, points) in enumerate(lines):
            found = [[chosen_value(run, s.view, panel) for run in s.runs] for _, s in points]
            draw_points(ax, [x for x, _ in points], found, name, place)
        if values[0] > 0 and values[-1] / values[0] >= 50:
            ax.set_xscale("log")
        if len(values) <= 12:
            ax.set_xticks(values, [f"{x:g}" for x in values], rotation=45 if len(values) > 7 else 0)
            ax.minorticks_off()
        ax.set(title=_title(panel), xlabel=drawn(over.rpartition(".")[2]))
    axes[0].set_ylabel("test accuracy in %")
    return _finished(figure, axes)


def draw_bars(series: Sequence[Series], panels: Sequence[str]) -> Picture:
    """Draw a group of bars for every domain; thin lines are one deviation over seeds."""
    figure, (ax,) = _grid(1, width=max(2 * _WIDTH, 0.9 * len(panels) + 0.18 * len(panels) * len(series)))
    width = 0.8 / len(series)
    low = math.inf
    for place, s in enumerate(series):
        found = [mean_and_std([none_if_nan(chosen_value(run, s.view, p)) for run in s.runs]) for p in panels]
        low = min([low, *(mean - (std or 0.0) for mean, std in found if mean is not None)])
        where = np.arange(len(panels)) + (place - (len(series) - 1) / 2) * width
        means, errors = ([math.nan if x is None else x for x in column] for column in zip(*found))
        color = COLOURS[place % len(COLOURS)]
        hatch = ("", "//", "..", "xx")[place // len(COLOURS) % 4]
        ax.bar(where, means, width, yerr=errors, label=drawn(s.name), color=color, hatch=hatch)
    ax.set_xticks(range(len(panels)), [_title(panel) for panel in panels])
    ax.set(ylabel="test accuracy in %", ylim=(max(0.0, 10 * math.floor((low - 5) / 10)), None))
    return _finished(figure, [ax])


def draw_radar(series: Sequence[Series]) -> Picture:
    """Draw a radar per data set: an axis per domain, scaled by the best accuracy on it."""
    sets: dict[str, list[Series]] = {}
    for s in series:
        data = str(s.runs[0].config["data"]["class_path"]).rpartition(".")[2]
        sets.setdefault(data, []).append(s)
    names = list(dict.fromkeys(s.name for s in series))
    figure, axes = _grid(len(sets), polar=True)
    for ax, (data, own) in zip(axes, sets.items()):
        domains = domains_of(own)
        if len(domains) < 3:
            raise UserError(f"a radar needs at least three domains; {data} has {len(domains)}: draw bars")
        table = np.array([[_series_mean(s, domain) for domain in domains] for s in own])
        best = np.nanmax(table, axis=0)
        angles = 2 * math.pi * np.arange(len(domains)) / len(domains)
        for s, row in zip(own, table / best):
            colour = style(names.index(s.name))
            ax.plot([*angles, angles[0]], [*row, row[0]], label=drawn(s.name), linewidth=1.5, **colour)
        ax.set_xticks(angles, [f"{drawn(d)}\n{b:.1f}" for d, b in zip(domains, best)], fontsize=8)
        ax.set_ylim(max(0.0, float(np.nanmin(table / best)) - 0.1), 1.0)
        ax.set_yticklabels([])
        ax.tick_params(pad=8)
        ax.set_title(drawn(data), fontsize=10, pad=18)
    return _finished(figure, axes)


def draw_clients(series: Sequence[Series]) -> Picture:
    """Draw how the clients' accuracies are distributed (median: line, mean: triangle), and each client's."""
    figure, (boxes, each) = _grid(2, width=2 * _WIDTH)
    for place, s in enumerate(series):
        runs = [scores.accuracy[-1] for run in s.runs if (scores := counted_view(run, s.view)) is not None]
        values = 100 * np.concatenate(runs)
        values = values[~np.isnan(values)]
        color = COLOURS[place % len(COLOURS)]
        boxes.boxplot(
            values,
            positions=[place],
            widths=0.6,
            showmeans=True,
            medianprops={"color": color, "linewidth": 2},
            meanprops={"markerfacecolor": color, "markeredgecolor": color},
            flierprops={"markersize": 3},
        )
        if len({len(run) for run in runs}) == 1:
            mean = 100 * np.mean(runs, axis=0)
            marker = MARKERS[place % len(MARKERS)]
            each.plot(mean, marker, color=color, markersize=3.5, label=drawn(s.name))
    boxes.set_xticks(range(len(series)), [drawn(s.name) for s in series], rotation=20, ha="right", fontsize=8)
    boxes.set(ylabel="test accuracy of a client in %", title="last evaluation")
    each.set(xlabel="client", title="each client, mean over runs")
    each.xaxis.set_major_locator(MaxNLocator(integer=True))
    return _finished(figure, [boxes, each])


def draw_labels(runs: Sequence[Result]) -> Picture:
    """Draw how many training samples of each class each client has, a panel for every different division."""
    found: dict[str, tuple[str, np.ndarray]] = {}
    for run in runs:
        partition = read_partition(run.folder)
        if not all("labels" in client for client in partition["clients"]) or not partition["clients"]:
            raise UserError(f"{run.folder / PARTITION} has no label counts")
        matrix = np.array([client["labels"]["train"] for client in partition["clients"]])
        _, (cells,) = labels(group_runs([run]))
        found.setdefault(matrix.tobytes().hex(), (", ".join(cells[1:3]), matrix))
    figure, axes = _grid(len(found), width=max(_WIDTH, 1.4 * _WIDTH * len(found)))
    for ax, (name, matrix) in zip(axes, found.values()):
        shown = ax.imshow(matrix.T, aspect="auto", cmap="Blues", vmin=0, interpolation="nearest")
        ax.invert_yaxis()
        figure.colorbar(shown, ax=ax, label="training samples")
        ax.set_title(drawn(name), fontsize=9, loc="left")
        ax.set(xlabel="client", ylabel="class")
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True))
    return Picture(figure, axes)


def _title(panel: str) -> str:
    return "all clients" if panel == ALL else drawn(panel)


def _series_mean(series: Series, panel: str) -> float:
    return float(np.mean([chosen_value(run, series.view, panel) for run in series.runs]))


def _grid(panels: int, width: float | None = None, polar: bool = False) -> tuple[Figure, list[Axes]]:
    """Return a figure with so many panels, four in a row."""
    columns = min(4, panels)
    rows = -(-panels // columns)
    figure = Figure(figsize=(width or max(2, columns) * _WIDTH, 3.2 * rows), layout="constrained")
    kwargs = {"projection": "polar"} if polar else None
    grid = figure.subplots(rows, columns, squeeze=False, subplot_kw=kwargs).ravel()
    for unused in grid[panels:]:
        unused.set_visible(False)
    return figure, list(grid[:panels])


def _finished(figure: Figure, axes: Sequence[Axes]) -> Picture:
    """Put one legend for all panels below them."""
    handles: dict[str, Any] = {}
    for ax in axes:
        for handle, name in zip(*ax.get_legend_handles_labels()):
            handles.setdefault(name, handle)
        ax.grid(alpha=0.3)
        if ax.name != "polar":
            ax.spines[["top", "right"]].set_visible(False)
    if handles:
        longest = max(map(len, handles))
        columns = max(1, min(4, int(figure.get_figwidth() / (0.5 + 0.07 * longest))))
        rows = -(-len(handles) // columns)
        figure.set_figheight(figure.get_figheight() + 0.2 * rows + 0.1)
        figure.legend(
            handles.values(),
            handles.keys(),
            loc="outside lower center",
            ncols=columns,
            frameon=False,
            fontsize=9,
        )
    return Picture(figure, list(axes))
