"""Parallel coordinates: an axis per quantity, and a line per point, whose colour says how good it is."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
from markupsafe import Markup

from rayfl.report.page import HEIGHT, WIDTH, Chart, render
from rayfl.system.text import one_line

SIDE, HEAD, FOOT = 72, 56, 16
LABELS, LETTERS = 11, 12
"""Most labels of an axis, and most letters of one."""


@dataclass(frozen=True)
class Axis:
    """An axis of parallel coordinates.

    Attributes:
        name: what it shows.
        places: of every line, from 0 at the bottom to 1 at the top.
        labels: place -> text.
    """

    name: str
    places: Sequence[float]
    labels: Mapping[float, str]

    @classmethod
    def listed(cls, name: str, values: Sequence[Any], text: Callable[[Any], str]) -> Axis:
        """Return an axis with an equal part for each value, numbers in their order."""
        numbers = all(isinstance(value, int | float) for value in values)
        every = list(dict.fromkeys(text(value) for value in (sorted(values) if numbers else values)))
        at = {name: (k + 0.5) / len(every) for k, name in enumerate(every)}
        kept = every[:: math.ceil(len(every) / LABELS)]
        return cls(name, [at[text(value)] for value in values], {at[name]: name for name in kept})

    @classmethod
    def ranged(
        cls, name: str, values: Sequence[float], text: Callable[[float], str], log: bool = False
    ) -> Axis:
        """Return an axis from the least to the largest value."""
        found = np.log(values) if log else np.asarray(values, float)
        low, width = found.min(), np.ptp(found)
        shown = low + width * np.linspace(0, 1, 5 if width else 1)
        labels = {k / 4: text(float(value)) for k, value in enumerate(np.exp(shown) if log else shown)}
        return cls(name, ((found - low) / (width or 1)).tolist(), labels)


def parallel_chart(
    title: str, axes: Sequence[Axis], names: Sequence[str], good: Sequence[float], early: Sequence[bool]
) -> Chart:
    """Return a line per point through all axes, of which the last shows how good it is; the best are on top.

    Args:
        title: what the chart shows.
        axes: at least two.
        names: of the points, with what a reader should see of them.
        good: from 0, the worst, to 1; the colour.
        early: whether the line is dotted.
    """
    return svg_chart(
        "parallel.svg",
        title,
        alt=f"{title}; the table of points has the numbers",
        columns=list(zip(np.linspace(SIDE, WIDTH - SIDE, len(axes)), axes)),
        place=lambda place: HEIGHT - FOOT - (HEIGHT - HEAD - FOOT) * place,
        order=np.argsort(good, kind="stable"),
        height=HEIGHT,
        letters=LETTERS,
        names=names,
        good=good,
        early=early,
    )


def svg_chart(template: str, title: str, **content: Any) -> Chart:
    """Return the drawing that a template describes, which writes its texts with ``xml``."""
    drawn = render(template, width=WIDTH, xml=_xml_text, **content)
    return Chart(title, Markup(re.sub(r"\n\s*", "", drawn)))


def _xml_text(text: str, letters: int | None = None) -> Markup:
    return Markup(escape(one_line(text)[:letters], {'"': "&quot;"}))
