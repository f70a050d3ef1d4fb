"""Curves of several groups of runs as PNG files."""

import math
import re
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rayfl.evaluation.metrics import curve, mean_loss
from rayfl.evaluation.result import Result
from rayfl.report.compare import Group, by_seed, common_labels, counted_view, labels, short_labels, unlike
from rayfl.report.pictures import drawn, save
from rayfl.report.text import AVERAGE_NAMES, mean_and_std, spoken

# Okabe and Ito's colours, which people with any colour vision tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (6, 1.5, 1.5, 1.5)))
MARKERS = "osD^vP*X"
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "---", "++", "oo")
"""Lines and bars differ by these too, for readers and printers that see no colours."""
_MARKS = 8  # on a line


def draw(groups: Sequence[Group], folder: Path, by: Sequence[str] = ()) -> list[Path]:
    """Write ``accuracy.png``, ``loss.png``, ``clients.png`` and a picture per metric; return their paths.

    Pictures of further metrics, such as ``metric-f1.png``, are written where some run has recorded them.

    Args:
        groups: one curve each; a band shows one standard deviation over its runs.
        folder: where the files go; it is made if need be.
        by: the keys by which runs were grouped, if not by all.
    """
    names = short_labels(groups, by)
    measures = _measures(groups)
    figures = {name: Figure() for name in ("accuracy.png", "loss.png", "clients.png", *measures)}
    axes = {name: figure.subplots() for name, figure in figures.items()}
    for place, (group, name) in enumerate(zip(groups, names)):
        if unlike(group.runs):  # whose curves have no mean, as the table says
            continue
        seeds = list(by_seed(group.runs).values())
        curves = {
            "accuracy.png": [[accuracy_curve(run) for run in own] for own in seeds],
            "loss.png": [[loss_curve(run) for run in own] for own in seeds],
        }
        for file, measure in measures.items():
            curves[file] = [[measure_curve(run, measure) for run in own] for own in seeds]
        for file, repeats in curves.items():
            draw_band(axes[file], repeats, name, place)
        clients = np.concatenate([client_accuracies(run) for run in group.runs])
        if len(clients):
            axes["clients.png"].ecdf(100 * clients, label=drawn(name), **style(place))
    for name in figures.keys() - {"clients.png"}:
        axes[name].xaxis.set_major_locator(MaxNLocator(integer=True))
    axes["accuracy.png"].set(xlabel="completed rounds", ylabel="test accuracy in %")
    axes["loss.png"].set(xlabel="completed rounds", ylabel="mean training loss")
    for file, measure in measures.items():
        axes[file].set(xlabel="completed rounds", ylabel=drawn(f"test {measure}"))
    axes["clients.png"].set(
        xlabel="test accuracy of a client in %, last evaluation",
        ylabel="share of clients at or below",
        ylim=(0, 1.02),
    )
    what, scored = plot_title(groups)
    written = []
    titles = {
        "accuracy.png": f"{what}\n{scored}",
        "loss.png": what,
        "clients.png": f"{what}\n{scored.rpartition(', ')[0]}",  # each client's own accuracy, no average
    }
    for name, figure in figures.items():
        _finish(figure, axes[name], titles.get(name, titles["accuracy.png"]))
        save(figure, folder / name)
        written.append(folder / name)
    return written


def accuracy_curve(run: Result) -> tuple[np.ndarray, np.ndarray]:
    """Return completed rounds and test accuracy in per cent at every evaluation of a run."""
    scores = counted_view(run)
    if scores is None:
        return np.zeros(0), np.zeros(0)
    return scores.rounds + 1, 100 * curve(scores, run.history.population, "test", run.protocol.average)


def measure_curve(run: Result, measure: str) -> tuple[np.ndarray, np.ndarray]:
    """Return completed rounds and a further metric at those evaluations of a run that have it."""
    scores = counted_view(run)
    if scores is None or measure not in scores.measures:
        return np.zeros(0), np.zeros(0)
    values = mean_loss(scores.measures[measure], scores.samples, run.history.population, run.protocol.average)
    there = ~np.isnan(values)
    return scores.rounds[there] + 1, values[there]


def _measures(groups: Sequence[Group]) -> dict[str, str]:
    """Return file -> metric of all metrics that some run has recorded; strangers may have named them."""
    scores = [counted_view(run) for group in groups for run in group.runs]
    names = sorted({name for found in scores if found is not None for name in found.measures})
    files: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-.")[:80]
        file = f"metric-{plain}.png"
        files[f"metric-{plain}-{len(files)}.png" if file in files else file] = name
    return files


def loss_curve(run: Result) -> tuple[np.ndarray, np.ndarray]:
    """Return completed rounds and mean training loss of a run."""
    table = run.rounds.dropna(subset=["loss"])
    return table["round"].to_numpy() + 1, table["loss"].to_numpy()


def client_accuracies(run: Result) -> np.ndarray:
    """Return the accuracy of every client that counts, at the last evaluation of a run."""
    scores = counted_view(run)
    if scores is None:
        return np.zeros(0)
    last = scores.accuracy[-1]
    return last[~np.isnan(last)]


def plot_title(groups: Sequence[Group]) -> tuple[str, str]:
    """Return what all groups have in common: data and partition; view, point and average."""
    _, cells = labels(groups)
    protocols = {run.protocol for group in groups for run in group.runs}
    scored = {f"{p.view}, {spoken(p.point)}, {AVERAGE_NAMES[p.average]}" for p in protocols}
    return ", ".join(cells[0][i] for i in common_labels(cells)), scored.pop() if len(scored) == 1 else ""


def style(place: int) -> dict[str, Any]:
    """Return colour and dashes of the line at a place of the legend."""
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": DASHES[place % len(DASHES)]}


def mark_size() -> float:
    """Return the size of markers that goes with the letters, in points."""
    return 0.4 * float(matplotlib.rcParams["font.size"])


def draw_points(
    ax: Axes, x: Sequence[float], repeats: Sequence[Sequence[float]], name: str | None, place: int
) -> None:
    """Draw a line through the means of repeated values; bars are one sample deviation."""
    found = [mean_and_std(values) for values in repeats]
    ax.errorbar(
        x,
        [math.nan if mean is None else mean for mean, _ in found],
        yerr=[std or 0.0 for _, std in found],
        label=None if name is None else drawn(name),
        marker=MARKERS[place % len(MARKERS)],
        markersize=mark_size(),
        capsize=2,
        **style(place),
    )


def scale(ax: Axes, values: Sequence[float]) -> None:
    """Scale the axis of a key so that its values stand apart, and write them where there is room for all.

    It is logarithmic from tenfold values on, and linear between 0 and the smallest if there is a 0.

    Args:
        ax: where something is drawn.
        values: of the key, ascending.
    """
    sizes = sorted(abs(value) for value in values if value)
    if sizes and sizes[-1] / sizes[0] >= 10:
        if values[0] > 0:
            ax.set_xscale("log")
        else:
            ax.set_xscale("symlog", linthresh=sizes[0])
    places = ax.xaxis.get_transform().transform(np.array(values, dtype=float))
    if np.all(np.diff(places) >= 0.05 * np.ptp(places)):
        ax.set_xticks(values, [f"{value:.4g}" for value in values], rotation=45 if len(values) > 6 else 0)
        ax.minorticks_off()


Curve = tuple[np.ndarray, np.ndarray]
"""Rounds, ascending, and a value at each."""


def draw_band(
    ax: Axes, repeats: Sequence[Sequence[Curve]], name: str, place: int, linewidth: float = 1.8
) -> None:
    """Draw the mean over seeds at the rounds that all curves have; bands are one deviation over seeds.

    Args:
        ax: where.
        repeats: for each seed the curves of its runs; those without any round do not count.
        name: for the legend.
        place: in the legend; it gives colour, dashes and marker.
        linewidth: in points.
    """
    known = [curves for own in repeats if (curves := [curve for curve in own if len(curve[0])])]
    if not known:
        return
    rounds = reduce(np.intersect1d, [x for curves in known for x, _ in curves])
    if not len(rounds):
        return
    values = np.array([np.mean([y[np.isin(x, rounds)] for x, y in curves], axis=0) for curves in known])
    mean = values.mean(axis=0)
    step = max(1, round(len(rounds) / _MARKS))
    ax.plot(
        rounds,
        mean,
        label=drawn(name),
        marker=MARKERS[place % len(MARKERS)],
        markersize=mark_size(),
        markevery=(place % step, step),  # lines that lie on each other have their marks at other rounds
        linewidth=linewidth,
        **style(place),
    )
    if len(values) > 1:
        std = values.std(axis=0, ddof=1)
        ax.fill_between(rounds, mean - std, mean + std, color=style(place)["color"], alpha=0.18, linewidth=0)


def _finish(figure: Figure, ax: Axes, title: str) -> None:
    ax.set_title(drawn(title.strip()), loc="left", fontsize=10)
    ax.grid(alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)
    handles, _ = ax.get_legend_handles_labels()
    if not handles:
        ax.text(0.5, 0.5, "nothing recorded", ha="center", va="center", transform=ax.transAxes)
    below = len(handles) > 5
    rows = len(handles) if below else 0
    figure.set_size_inches(7, 4.3 + 0.2 * rows)
    figure.set_layout_engine("constrained")
    if below:
        figure.legend(handles=handles, loc="outside lower left", frameon=False, fontsize=9)
    elif handles:
        ax.legend(frameon=False, fontsize=9)
