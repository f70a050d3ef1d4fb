"""Lines, bands and axes that all pictures of runs have in common."""

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes

from rayfl.report.pictures import drawn
from rayfl.report.text import mean_and_std

# Okabe and Ito's colours, which people with any colour vision tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (6, 1.5, 1.5, 1.5)))
MARKERS = "osD^vP*X"
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "---", "++", "oo")
"""Lines and bars differ by these too, for readers and printers that see no colours."""
_MARKS = 8  # on a line


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
