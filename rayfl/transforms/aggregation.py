"""Rules by which a server combines clients' changes so that some that are wrong do little harm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Literal

import torch
from torch import Tensor

from rayfl.settings import Settings, at_least, below

ENTRIES_AT_ONCE = 2**20
"""Numbers of a matrix that are sorted at a time."""


class Aggregation(Settings, ABC, place="aggregation"):
    """Base of all rules. A rule works on the matrix of the cohort's changes, a row for each client."""

    share: Annotated[float, at_least(0), below(0.5)] = 0.2
    """Share of the cohort of which the rule assumes that it attacks: f is this share, rounded down."""
    pre: Literal["none", "NNM"] = "none"
    """``NNM``: every row is first replaced by the mean of its n - f nearest ones, itself among them (nearest
    neighbour mixing, Allouah et al., AISTATS 2023).
    """

    @property
    def is_mean(self) -> bool:
        """Whether sums are enough, so that no change travels alone."""
        return False

    @abstractmethod
    def combine_rows(self, rows: Tensor, f: int) -> Tensor:
        """Return one row, float64 [d], for rows float64 [n, d] of which f may be anything."""

    def combine(self, rows: Tensor) -> Tensor:
        """Return one row, float64 [d], for rows float64 [n, d], mixed first where ``pre`` says so."""
        f = min(int(self.share * len(rows) + 1e-9), (len(rows) - 1) // 2)
        return self.combine_rows(mix_nearest(rows, f) if self.pre == "NNM" else rows, f)


class Mean(Aggregation):
    """The mean that the method declares; with ``pre`` the plain mean of the mixed rows."""

    @property
    def is_mean(self) -> bool:
        """Whether nothing is mixed."""
        return self.pre == "none"

    def combine_rows(self, rows: Tensor, f: int) -> Tensor:
        """Return the mean."""
        return rows.mean(0)


class Median(Aggregation):
    """The median of each entry (Yin et al., ICML 2018)."""

    def combine_rows(self, rows: Tensor, f: int) -> Tensor:
        """Return the middle of the sorted entries, of an even number the mean of both."""
        n = len(rows)
        return _mean_of_sorted(rows, (n - 1) // 2, n // 2 + 1)


class TrimmedMean(Aggregation):
    """The mean of each entry without the f largest and the f smallest ones (Yin et al., ICML 2018)."""

    def combine_rows(self, rows: Tensor, f: int) -> Tensor:
        """Return the mean of what is left."""
        return _mean_of_sorted(rows, f, len(rows) - f)


class MultiKrum(Aggregation):
    """The mean of those rows that are nearest to others (Krum, Multi-Krum: Blanchard et al., NeurIPS 2017).

    A row's score is the sum of the squared distances to its n - f - 2 nearest ones, at least one. Of equal
    scores the smaller client number counts as better.
    """

    chosen: Annotated[int, at_least(1)] | None = None
    """How many rows are chosen: 1 is Krum; n - f if not given."""

    def combine_rows(self, rows: Tensor, f: int) -> Tensor:
        """Return the mean of the rows of lowest scores."""
        n = len(rows)
        nearest = squared_distances(rows).sort(1).values[:, 1 : 1 + max(1, n - f - 2)]
        order = nearest.sum(1).argsort(dim=0, stable=True)
        return rows[order[: min(n, self.chosen or n - f)].sort().values].mean(0)


class GeometricMedian(Aggregation):
    """The point with the smallest sum of distances to all rows (RFA: Pillutla et al., 2022)."""

    steps: Annotated[int, at_least(1)] = 100
    """Most steps of Weiszfeld's algorithm; it ends when nothing moves any more."""

    def combine_rows(self, rows: Tensor, f: int) -> Tensor:
        """Return the point, by smoothed steps."""
        point = rows.mean(0)
        for _ in range(self.steps):
            distances = torch.stack([(row - point).norm() for row in rows])
            weights = 1 / distances.clamp(min=SMOOTH)
            moved = (weights / weights.sum()) @ rows
            still = (moved - point).norm() <= STILL * point.norm()
            point = moved
            if still:
                break
        return point


SMOOTH = 1e-6
"""Distance below which a row pulls no stronger."""
STILL = 1e-10
"""Part of the point by which the last step moves it."""


def mix_nearest(rows: Tensor, f: int) -> Tensor:
    """Return in the place of every row the mean of its n - f nearest ones; of equals, the first ones."""
    nearest = squared_distances(rows).argsort(dim=1, stable=True)[:, : len(rows) - f]
    return torch.stack([rows[own.sort().values].mean(0) for own in nearest])


def squared_distances(rows: Tensor) -> Tensor:
    """Return the squared distance of each pair of rows, float64 [n, n]; that to itself comes first."""
    found = torch.stack([(rows - row).square().sum(1) for row in rows])
    return found.fill_diagonal_(-1.0)


def _mean_of_sorted(rows: Tensor, start: int, end: int) -> Tensor:
    """Return the mean of the entries at these places of each sorted column."""
    width = max(1, ENTRIES_AT_ONCE // len(rows))
    return torch.cat(
        [part.T.contiguous().sort(1).values[:, start:end].mean(1) for part in rows.split(width, dim=1)]
    )
