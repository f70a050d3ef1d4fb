"""Metrics that are recorded beside accuracy and loss: of torchmetrics, or functions of one's own."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rayfl.data import FederatedData
from rayfl.errors import BadCode, Conflict, Missing, Unknown, error_context
from rayfl.randomness import generator
from rayfl.settings.imports import import_by_path, is_installed
from rayfl.system.text import short_repr, warn

LARGEST_VALUE = 1e280
"""Larger numbers cannot be averaged; they are recorded as undefined."""


def or_none(number: float) -> float | None:
    """Return a number, or None where no mean could be taken of it; of NaN and infinity the record tells."""
    return None if LARGEST_VALUE < abs(number) < math.inf else number


@dataclass(frozen=True)
class Measure:
    """A metric of a client's scores.

    Attributes:
        name: as in the configuration, and in the records.
        function: of scores, float [n, classes], and labels, int64 [n]; it returns a number.
        probabilities: whether it takes probabilities, so that it is undefined where scores are not logits.
    """

    name: str
    function: Callable[[Tensor, Tensor], Any]
    probabilities: bool = False

    def value(self, scores: Tensor, labels: Tensor, logits: bool = True) -> float | None:
        """Return the metric of some samples; None where it is undefined, as for scores that are NaN.

        Args:
            scores: float [n, classes], on the CPU.
            labels: int64 [n].
            logits: whether the scores are logits.

        Raises:
            UserError: it raises, or returns no number.
        """
        if self.probabilities and not logits:
            return None
        given = scores.double().softmax(1) if self.probabilities else scores.clone()
        if given.isnan().any():  # training has diverged; torchmetrics would make a number of it
            return None
        try:
            found = self.function(given, labels.clone())
        except (Exception, SystemExit) as error:
            raise BadCode(
                f"metric {self.name}",
                f"has raised {type(error).__name__}: {error} (for scores {list(scores.shape)} and labels "
                f"{short_repr(labels.unique().tolist())}). Where it is undefined, as for one "
                "class, return NaN",
            ) from error
        if isinstance(found, Tensor | np.ndarray | np.generic) and np.prod(found.shape) == 1:
            found = found.item()
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise BadCode(f"metric {self.name}", f"returns {short_repr(found)}", "it must return a number")
        return float(found) if abs(found) <= LARGEST_VALUE else None  # not so of NaN


def f1(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the mean over classes of F1; classes that neither occur nor are predicted do not count."""
    from torchmetrics.functional.classification import multiclass_f1_score  # takes seconds

    predicted, classes = scores.argmax(1), scores.shape[1]
    return multiclass_f1_score(predicted, labels, num_classes=classes, average="macro")


def auroc(scores: Tensor, labels: Tensor) -> float:
    """Return the mean over classes that occur of the area under the curve of one class against the others.

    NaN where there are samples of one class only.
    """
    from torchmetrics.functional.classification import binary_auroc

    there = labels.unique().tolist()
    if len(there) < 2:
        return math.nan
    return float(np.mean([float(binary_auroc(scores[:, c], (labels == c).long())) for c in there]))


def calibration_error(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the expected calibration error of the predicted classes, in 15 bins."""
    from torchmetrics.functional.classification import multiclass_calibration_error

    return multiclass_calibration_error(scores, labels, num_classes=scores.shape[1])


SHORT = {
    "f1": Measure("f1", f1),
    "auroc": Measure("auroc", auroc, probabilities=True),
    "calibration_error": Measure("calibration_error", calibration_error, probabilities=True),
}
"""Metrics of torchmetrics that have a short name."""


def measures(names: Sequence[str], classes: int) -> tuple[Measure, ...]:
    """Return the metrics of a configuration.

    Args:
        names: names in ``SHORT``, or import paths ``module.function``. What is in torchmetrics may be
            a class, takes probabilities, and gets ``num_classes`` if it has such an argument.
        classes: how many there are.

    Raises:
        UserError: there is no such metric.
    """
    return tuple(_measure(name, classes) for name in names)


def _measure(name: str, classes: int) -> Measure:
    of_torchmetrics = name in SHORT or name.startswith("torchmetrics.")
    if of_torchmetrics and not is_installed("torchmetrics"):
        raise Missing("metrics", f"has {name}, which needs torchmetrics", "install rayfl[metrics]")
    if name in SHORT:
        return SHORT[name]
    try:
        with error_context("metrics"):
            found = import_by_path(name)
    except (ImportError, AttributeError, ValueError) as error:  # a ValueError where it is in no module
        raise Unknown(
            "metrics",
            f"has {name}, which cannot be imported ({error}): there are {', '.join(sorted(SHORT))}, or "
            "import paths",
        ) from error
    if not callable(found) or (isinstance(found, type) and not of_torchmetrics):
        raise BadCode(
            "metrics", f"has {name}, {short_repr(found)}", "it must be a function of scores and labels"
        )
    if not of_torchmetrics:
        return Measure(name, found)
    takes = inspect.signature(found).parameters
    made = partial(found, num_classes=classes) if "num_classes" in takes else found
    if isinstance(found, type):  # made anew for each client: it adds up what it is given
        return Measure(name, lambda scores, labels: made()(scores, labels), probabilities=True)
    return Measure(name, made, probabilities=True)


def try_measures(tried: Sequence[Measure], data: FederatedData) -> None:
    """Measure made-up scores: for labels of all classes, and for those of the client with the fewest classes.

    A warning names a metric that counts classes which that client lacks; of ours, ``auroc`` does not.

    Raises:
        UserError: a metric raises, returns no number, or not the same one twice, or is another auroc that
            counts such classes.
    """
    if not tried:
        return
    classes = data.dataset.classes
    counts = [row for split in ("val", "test") for row in data.label_matrix(split) if row.sum()]
    fewest = min(counts, key=lambda row: ((row > 0).sum(), row.sum()), default=np.ones(classes, dtype=int))
    for row in (np.full(classes, 2), fewest):
        labels = torch.from_numpy(np.repeat(np.arange(classes), row))
        scores = torch.randn(len(labels), classes, generator=generator(0, "trial of metrics"))
        for measure in tried:
            if measure.value(scores, labels) != measure.value(scores, labels):
                raise BadCode(
                    f"metric {measure.name}", "is not the same twice", "it must go by scores and labels alone"
                )
    few = np.resize(np.flatnonzero(fewest), 2 * classes)
    for measure in tried:
        every, some = (
            measure.value(100.0 * torch.eye(classes)[labels], torch.from_numpy(labels))
            for labels in (np.arange(2 * classes) % classes, few)
        )
        if every is not None and some is not None and abs(every - some) > 1e-4:
            problem = (
                f"counts classes that a client lacks: perfect scores get {some:.4g} for it, not {every:.4g}"
            )
            if "auroc" in measure.name.lower():
                raise Conflict(f"metric {measure.name}", problem, "use auroc, which leaves such classes out")
            warn(f"metric {measure.name} {problem}")
