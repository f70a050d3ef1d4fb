"""What is learned: a `Task`, decided by the data's targets."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rayfl.errors import Unknown, error_context
from rayfl.settings.imports import import_by_path

Kind = Literal["classes", "numbers", "labels", "positions"]
NOT_ASKED = -100
"""The class of a position where none is asked for."""
WORST_FIGURE = 1e30
"""The size of a figure that is as bad as can be, where none is finite; it is not left out of means."""
RANGES = 10
"""Ranges of a number, with as many samples each, by which partitions and splits go."""


@dataclass(frozen=True)
class Figure:
    """The number by which a client's model is reported and chosen.

    Attributes:
        name: what people read.
        higher: whether higher is better.
        percent: whether it is a share, which is printed in per cent; others have four significant digits.
    """

    name: str
    higher: bool = True
    percent: bool = False

    @property
    def sign(self) -> int:
        """What makes higher better."""
        return 1 if self.higher else -1

    @property
    def scale(self) -> int:
        """What it is multiplied by where it is printed or drawn."""
        return 100 if self.percent else 1

    @property
    def unit(self) -> str:
        """What follows a printed one."""
        return " %" if self.percent else ""

    @property
    def title(self) -> str:
        """Its name as a heading of printed ones."""
        return f"{self.name} in %" if self.percent else self.name

    @property
    def axis(self) -> str:
        """What the axis of a chart is called whose title names it."""
        return self.unit.strip() or self.name

    def text(self, value: float | None, std: float | None = None) -> str:
        """Return one as text, with its deviation if there is one; n/a: there is none.

        Args:
            value: as it is printed, in per cent if it is a share.
            std: likewise.
        """
        if value is None or math.isnan(value):
            return "n/a"
        size = math.floor(math.log10(abs(value))) if value and math.isfinite(value) else 0
        decimals = 2 if self.percent else min(max(0, 3 - size), 12)
        return f"{value:.{decimals}f}" + ("" if std is None else f" ± {std:.{decimals}f}")

    def shown(self, value: float | None, std: float | None = None) -> str:
        """Return a recorded one as text; see :meth:`text`."""
        return self.text(*(None if each is None else self.scale * each for each in (value, std)))


ACCURACY = Figure("accuracy", percent=True)


def figure_titles(kinds: Iterable[Figure]) -> str:
    """Return the headings of figures; mostly there is one."""
    return " or ".join(dict.fromkeys(kind.title for kind in kinds))


class Task(ABC):
    """What is learned. One of your own overrides what differs from a class below.

    Attributes:
        kind: what the targets are; methods say for which kinds their formulas make sense.
        figure: by which models are reported and chosen.
        loss: what training makes small if nothing else is named, and what evaluations record: a class of
            :mod:`rayfl.training.losses`, or the import path of a class or function.
        metrics: names of further metrics that make sense.
        strata_name: what people call the strata.
    """

    kind: ClassVar[Kind]
    figure: ClassVar[Figure]
    loss: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]] = ()
    strata_name: ClassVar[str] = "groups"

    def outputs(self, targets: np.ndarray) -> int:
        """Return how many outputs a net has, for targets [N, k]."""
        return int(targets.shape[1])

    @abstractmethod
    def strata(self, targets: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
        """Return by what partitions and splits tell samples apart: int64 [N], and a name for each number."""

    @abstractmethod
    def per_sample(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Return the figure of each sample, [n], whose mean is a client's.

        Args:
            scores: of a net, [n, outputs]; of positions [n, ..., outputs].
            targets: [n, ...].
        """

    def of_client(self, scores: Tensor, targets: Tensor) -> float | None:
        """Return the figure of a client where it is no mean over samples; None where it is undefined.

        It counts if a class overrides it.
        """
        raise NotImplementedError

    @property
    def is_mean(self) -> bool:
        """Whether a client's figure is the mean over its samples."""
        return type(self).of_client is Task.of_client

    @abstractmethod
    def divergence(self, teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Tensor:
        """Return how far a student's scores are from a teacher's, the mean over a batch.

        No gradient reaches the teacher.

        Args:
            teacher: scores.
            student: scores.
            temperature: by which logits are divided.
        """

    def fuse(self, scores: Tensor, others: Tensor) -> Tensor:
        """Return what two models say together."""
        return scores + others

    def predict(self, scores: Tensor) -> Tensor:
        """Return what people read as predictions: probabilities, or numbers."""
        return scores.softmax(-1)


class Classes(Task):
    """One of several classes: int64 [N]."""

    kind: ClassVar[Kind] = "classes"
    figure = ACCURACY
    loss = "CrossEntropy"
    metrics: ClassVar[tuple[str, ...]] = ("f1", "auroc", "calibration_error")
    strata_name = "classes"

    def outputs(self, targets: np.ndarray) -> int:
        """Return the number of classes."""
        return int(targets.max(initial=-1)) + 1

    def strata(self, targets: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
        """Return the classes."""
        return targets, tuple(map(str, range(self.outputs(targets))))

    def per_sample(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Return which samples are classified correctly."""
        return scores.argmax(1) == targets

    def divergence(self, teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Tensor:
        """Return T^2 KL(teacher || student) of the softmax of logits / T (Hinton, Vinyals and Dean, 2015)."""
        p = F.log_softmax(teacher.detach() / temperature, -1)
        q = F.log_softmax(student / temperature, -1)
        return temperature**2 * (p.exp() * (p - q)).sum(-1).mean()


class Numbers(Task):
    """Numbers: float32 [N, k]. The figure is the mean squared error."""

    kind = "numbers"
    figure = Figure("MSE", higher=False)
    loss = "MSE"
    metrics = ("rmse", "mae", "r2")
    strata_name = "ranges"

    def strata(self, targets: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
        """Return ranges of the first number with as many samples each, or its values where they are few."""
        first = targets[:, 0]
        if len(values := np.unique(first)) > RANGES:
            values = np.unique(np.quantile(first, np.linspace(0, 1, RANGES + 1)[:-1]))
        places = np.maximum(np.searchsorted(values, first, side="right") - 1, 0)
        return places.astype(np.int64), tuple(f"≥{value:.3g}" for value in values)

    def per_sample(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Return the squared error, of several numbers its mean; at most ``WORST_FIGURE``."""
        return (scores.double() - targets.double()).square().mean(1).nan_to_num(WORST_FIGURE, WORST_FIGURE)

    def divergence(self, teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Tensor:
        """Return the mean squared difference; there is nothing to soften."""
        return F.mse_loss(student, teacher.detach())

    def fuse(self, scores: Tensor, others: Tensor) -> Tensor:
        """Return the mean."""
        return (scores + others) / 2

    def predict(self, scores: Tensor) -> Tensor:
        """Return the numbers."""
        return scores


class Labels(Task):
    """Several labels, each there or not: bool [N, k]. The figure is the share of labels that are right."""

    kind = "labels"
    figure = Figure("label accuracy", percent=True)
    loss = "BCE"
    metrics = ("f1",)
    strata_name = "rarest labels"

    def strata(self, targets: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
        """Return the rarest of a sample's labels, the last number for samples without any."""
        rare = np.argsort(targets.sum(axis=0), kind="stable")
        ranks = np.argsort(rare, kind="stable")
        places = np.where(targets, ranks, len(rare)).min(axis=1)
        used, places = np.unique(places, return_inverse=True)
        names = [*map(str, rare), "none"]
        return places.astype(np.int64), tuple(names[k] for k in used)

    def per_sample(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Return the share of labels that are right."""
        return (((scores > 0) == (targets > 0.5)) & ~scores.isnan()).double().mean(1)

    def divergence(self, teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Tensor:
        """Return T^2 times the KL divergence of each label's probability, the mean over labels."""
        logits = teacher.detach() / temperature
        p, q = torch.stack([logits, -logits]), torch.stack([student, -student]) / temperature
        return temperature**2 * (p.sigmoid() * (F.logsigmoid(p) - F.logsigmoid(q))).sum(0).mean()

    def predict(self, scores: Tensor) -> Tensor:
        """Return the probability of each label."""
        return scores.sigmoid()


class Positions(Classes):
    """A class for every position, of tokens or pixels: int64 [N, ...], ``NOT_ASKED`` where there is none."""

    kind = "positions"
    metrics = ("perplexity",)
    strata_name = "groups"

    def strata(self, targets: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
        """Return one for all."""
        return np.zeros(len(targets), np.int64), ("all",)

    def of_client(self, scores: Tensor, targets: Tensor) -> float | None:
        """Return the share of the positions asked for that are classified correctly."""
        asked = targets != NOT_ASKED
        right = (scores.argmax(-1) == targets) & asked
        return right.sum().item() / asked.sum().item() if asked.any() else None


TASKS: dict[Kind, Task] = {each.kind: each for each in (Classes(), Numbers(), Labels(), Positions())}
"""What targets of each kind are learned as, if nothing else is named."""


def task_of(targets: np.ndarray) -> Task:
    """Return what targets are learned as, by their type and form."""
    kinds: dict[str, Kind] = {"f": "numbers", "b": "labels"}
    return TASKS[kinds.get(targets.dtype.kind, "classes" if targets.ndim == 1 else "positions")]


def named_task(name: str | None) -> Task | None:
    """Return the task of a setting: the name of one of ``TASKS``, or the import path of a class."""
    if name is None or name in TASKS:
        return TASKS.get(name)  # type: ignore[arg-type]
    with error_context("data.task"):
        made = import_by_path(name) if "." in name else None
    if not (isinstance(made, type) and issubclass(made, Task)):
        known = ", ".join(TASKS)
        raise Unknown("data.task", f"is {name!r}: there are {known}, or the import path of a Task")
    return made()
