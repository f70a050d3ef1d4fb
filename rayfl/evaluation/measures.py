"""Metrics that are recorded beside the task's figure and loss: of torchmetrics, or functions of one's own."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rayfl.data import Dataset, FederatedData
from rayfl.data.task import NOT_ASKED, Classes
from rayfl.errors import BadCode, Conflict, Missing, Unknown, error_context
from rayfl.randomness import generator
from rayfl.settings.imports import import_by_path, is_installed
from rayfl.system.text import short_repr, warn
from rayfl.training.state import as_tensor

_TRIED = 64  # targets on which metrics are tried
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
        function: of scores, float [n, outputs], and targets, [n, ...]; it returns a number.
        predict: makes what it takes of scores, such as probabilities, so that it is undefined where scores
            are not logits; None: it takes scores.
    """

    name: str
    function: Callable[[Tensor, Tensor], Any]
    predict: Callable[[Tensor], Tensor] | None = None

    def value(self, scores: Tensor, targets: Tensor, logits: bool = True) -> float | None:
        """Return the metric of some samples; None where it is undefined, as for scores that are NaN.

        Args:
            scores: float [n, outputs], on the CPU.
            targets: [n, ...].
            logits: whether the scores are logits.

        Raises:
            UserError: it raises, or returns no number.
        """
        if self.predict and not logits:
            return None
        given = self.predict(scores.double()) if self.predict else scores.clone()
        if given.isnan().any():  # training has diverged; torchmetrics would make a number of it
            return None
        try:
            found = self.function(given, targets.clone())
        except (Exception, SystemExit) as error:
            raise BadCode(
                f"metric {self.name}",
                f"has raised {type(error).__name__}: {error} (for scores {list(scores.shape)} and targets "
                f"{short_repr(targets.unique().tolist())}). Where it is undefined, as for one "
                "class, return NaN",
            ) from error
        if isinstance(found, Tensor | np.ndarray | np.generic) and np.prod(found.shape) == 1:
            found = found.item()
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise BadCode(f"metric {self.name}", f"returns {short_repr(found)}", "it must return a number")
        return float(found) if abs(found) <= LARGEST_VALUE else None  # not so of NaN


def f1(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the mean over classes of F1; classes that neither occur nor are predicted do not count.

    Of several labels, [n, k], likewise.
    """
    if labels.dim() == 2:
        there, predicted = labels > 0.5, scores > 0
        hits, all_of_both = (there & predicted).sum(0), there.sum(0) + predicted.sum(0)
        return (2 * hits / all_of_both)[all_of_both > 0].mean()
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


def rmse(scores: Tensor, targets: Tensor) -> float:
    """Return the root of the mean squared error of numbers."""
    return math.sqrt((scores - targets).double().square().mean())


def mae(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the mean absolute error of numbers."""
    return (scores - targets).double().abs().mean()


def r2(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over numbers of 1 - sum (y - f)^2 / sum (y - mean y)^2; NaN where all y are equal."""
    y = targets.double()
    spread = (y - y.mean(0)).square().sum(0)
    return (1 - (scores - y).square().sum(0) / torch.where(spread > 0, spread, math.nan)).mean()


def perplexity(scores: Tensor, targets: Tensor) -> Tensor:
    """Return exp of the mean cross-entropy over the positions that are asked for."""
    return F.cross_entropy(scores.double().movedim(-1, 1), targets, ignore_index=NOT_ASKED).exp()


SHORT = {each.__name__: each for each in (f1, auroc, calibration_error, rmse, mae, r2, perplexity)}
"""Metrics that have a short name; see ``Task.metrics``."""


def measures(names: Sequence[str], dataset: Dataset) -> tuple[Measure, ...]:
    """Return the metrics of a configuration.

    Args:
        names: names in ``SHORT``, or import paths ``module.function``. What is in torchmetrics may be
            a class, takes probabilities, and gets ``num_classes`` if it has such an argument.
        dataset: says what is learned.

    Raises:
        UserError: there is no such metric, or it is not for what is learned.
    """
    return tuple(_measure(name, dataset) for name in names)


def _measure(name: str, dataset: Dataset) -> Measure:
    task = dataset.task
    of_torchmetrics = name in Classes.metrics or name.startswith("torchmetrics.")
    if of_torchmetrics and not is_installed("torchmetrics"):
        raise Missing("metrics", f"has {name}, which needs torchmetrics", "install rayfl[metrics]")
    if name in SHORT:
        if name not in task.metrics:
            known = ", ".join(task.metrics) or "none but import paths"
            raise Conflict("metrics", f"has {name}, and the targets are {task.kind}", f"there are {known}")
        return Measure(name, SHORT[name], task.predict if SHORT[name] in (auroc, calibration_error) else None)
    try:
        with error_context("metrics"):
            found = import_by_path(name)
    except (ImportError, AttributeError, ValueError) as error:  # a ValueError where it is in no module
        raise Unknown(
            "metrics",
            f"has {name}, which cannot be imported ({error}): there are {', '.join(task.metrics)}, or "
            "import paths",
        ) from error
    if not callable(found) or (isinstance(found, type) and not of_torchmetrics):
        raise BadCode(
            "metrics", f"has {name}, {short_repr(found)}", "it must be a function of scores and targets"
        )
    if not of_torchmetrics:
        return Measure(name, found)
    takes = inspect.signature(found).parameters
    counted = [each for each in ("num_classes", "num_labels", "num_outputs") if each in takes]
    made = partial(found, **dict.fromkeys(counted, dataset.outputs))
    if isinstance(found, type):  # made anew for each client: it adds up what it is given
        return Measure(name, lambda scores, targets: made()(scores, targets), task.predict)
    return Measure(name, made, task.predict)


def try_measures(tried: Sequence[Measure], data: FederatedData) -> None:
    """Measure made-up scores: for labels of all classes, and for those of the client with the fewest classes.

    A warning names a metric that counts classes which that client lacks; of ours, ``auroc`` does not.

    Raises:
        UserError: a metric raises, returns no number, or not the same one twice, or is another auroc that
            counts such classes.
    """
    if not tried:
        return
    dataset = data.dataset
    classes = dataset.classes
    counts = [row for split in ("val", "test") for row in data.label_matrix(split) if row.sum()]
    fewest = min(counts, key=lambda row: ((row > 0).sum(), row.sum()), default=np.ones(classes, dtype=int))
    tries = [torch.from_numpy(np.repeat(np.arange(classes), row)) for row in (np.full(classes, 2), fewest)]
    if dataset.task.kind != "classes":
        some = max((data.clients[i].test for i in range(len(data))), key=len)[:_TRIED]
        tries = [as_tensor(dataset.targets[some])]
        tries = [each.float() if each.dtype == torch.bool else each for each in tries]
    for targets in tries:
        inside = targets.shape[1:] if dataset.task.kind == "positions" else ()
        draw = generator(0, "trial of metrics")
        scores = torch.randn(len(targets), *inside, dataset.outputs, generator=draw)
        for measure in tried:
            if measure.value(scores, targets) != measure.value(scores, targets):
                raise BadCode(
                    f"metric {measure.name}",
                    "is not the same twice",
                    "it must go by scores and targets alone",
                )
    if dataset.task.kind != "classes":
        return
    few = np.resize(np.flatnonzero(fewest), 2 * classes)
    for measure in tried:
        every, few_classes = (
            measure.value(100.0 * torch.eye(classes)[labels], torch.from_numpy(labels))
            for labels in (np.arange(2 * classes) % classes, few)
        )
        if every is not None and few_classes is not None and abs(every - few_classes) > 1e-4:
            problem = (
                f"counts classes that a client lacks: perfect scores get "
                f"{few_classes:.4g} for it, not {every:.4g}"
            )
            if "auroc" in measure.name.lower():
                raise Conflict(f"metric {measure.name}", problem, "use auroc, which leaves such classes out")
            warn(f"metric {measure.name} {problem}")
