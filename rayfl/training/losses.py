"""Losses: what training makes small, of a net's scores and the targets, sample by sample."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, ClassVar, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from rayfl.data import Dataset
from rayfl.data.task import NOT_ASKED, Kind, Task
from rayfl.errors import BadCode, BadValue, Conflict
from rayfl.settings import Value, above, at_least, below
from rayfl.settings.imports import import_by_path
from rayfl.system.text import short_repr

POSITIONS: tuple[Kind, ...] = ("classes", "positions")
TRIED_CALLS = 32
"""How often a loss is called before the run, to see that it always returns the same."""


class Loss(Value, ABC, place="training.loss"):
    """Base of all losses; one of your own overrides ``per_sample``, or is a function of scores and targets.

    Attributes:
        uses_counts: whether ``per_sample`` is given the client's training samples per class.
        kinds: of the targets that it goes with.
    """

    uses_counts: ClassVar[bool] = False
    kinds: ClassVar[tuple[Kind, ...]] = get_args(Kind)

    @abstractmethod
    def per_sample(self, scores: Tensor, targets: Tensor, counts: Tensor | None = None) -> Tensor:
        """Return the loss of each sample, [B].

        Args:
            scores: of a net, such as logits, [B, outputs].
            targets: [B, ...], see :class:`rayfl.data.task.Task`; truth values are numbers, 0 and 1.
            counts: int64 [classes]; None where the loss does not use them.
        """

    def mean(self, scores: Tensor, targets: Tensor, counts: Tensor | None = None) -> Tensor:
        """Return the mean over the samples, of classes of positions over all positions asked for."""
        each = self.per_sample(scores, targets, counts)
        if self.kinds != POSITIONS or targets.dim() == 1:
            return each.mean()
        asked = (targets != NOT_ASKED).flatten(1).sum(1)
        return (each * asked).sum() / asked.sum().clamp(min=1)

    def check(self, dataset: Dataset) -> None:
        """Refuse one that does not give each sample a loss of its own, remembers calls, or draws.

        Args:
            dataset: whose targets are tried.
        """
        asked = dataset.targets.reshape(len(dataset), -1).max(1) != NOT_ASKED
        outputs, tried = dataset.outputs, torch.from_numpy(dataset.targets[asked][: dataset.outputs + 2])
        if dataset.task.kind == "classes":
            tried = torch.arange(outputs + 2) % outputs
        targets = tried.float() if tried.dtype == torch.bool else tried
        inside = targets.shape[1:] if dataset.task.kind == "positions" else ()
        draw = torch.Generator().manual_seed(0)
        scores = torch.randn(len(targets), *inside, outputs, generator=draw, requires_grad=True)
        counts = torch.ones(outputs, dtype=torch.int64)
        of_batch = isinstance(self, BatchLoss)
        call = self.mean if of_batch else self.per_sample
        try:
            whole, first = call(scores, targets, counts), call(scores[:1], targets[:1], counts)
            (slope,) = torch.autograd.grad(whole.sum(), scores)
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                again = [call(scores, targets, counts) for _ in range(TRIED_CALLS)]
        except Exception as error:
            problem = f"is {self}, which raises {type(error).__name__}: {error}"
            raise BadCode("training.loss", problem) from error
        each = of_batch or (whole.shape == (len(targets),) and torch.allclose(whole[:1], first))
        if not each or (of_batch and whole.dim()) or not slope.any():
            raise BadCode(
                "training.loss",
                f"is {self}, which returns {short_repr(whole.detach())} for {len(targets)} samples",
                "it must return the loss of each sample, [B], by its own scores and target; one that needs a "
                "whole batch is a BatchLoss",
            )
        if not all(torch.equal(each, again[0]) for each in again):
            raise BadCode(
                "training.loss",
                f"is {self}, which returns other values when it is called again with the same scores",
                "it must neither draw nor remember, or other processes and resumed runs have other numbers",
            )


class BatchLoss(Loss):
    """Base of losses that need a whole batch, such as those of rankings."""

    def per_sample(self, scores: Tensor, targets: Tensor, counts: Tensor | None = None) -> Tensor:
        """Refuse to tell what a single sample has."""
        raise Conflict("training.loss", f"is {self}, of whole batches", "the method needs one of samples")

    @abstractmethod
    def mean(self, scores: Tensor, targets: Tensor, counts: Tensor | None = None) -> Tensor:
        """Return the loss of a batch, []."""


class CrossEntropy(Loss):
    """The cross-entropy; of positions the mean over those where a class is asked for."""

    kinds = POSITIONS

    label_smoothing: Annotated[float, at_least(0), below(1)] = 0.0
    """Share of each target that is spread evenly over all classes."""
    class_weights: tuple[float, ...] | None = None
    """Factors on the losses of samples, one for each class. The mean is over the number of samples."""

    def __post_init__(self) -> None:
        if self.class_weights is not None and min(self.class_weights, default=-1.0) < 0:
            raise BadValue("training.loss.class_weights", "must be one number, at least 0, for each class")

    def per_sample(self, scores: Tensor, targets: Tensor, counts: Tensor | None = None) -> Tensor:
        """Return -log of the softmax at the target."""
        weights = None
        if self.class_weights is not None:
            weights = torch.tensor(self.class_weights, dtype=scores.dtype, device=scores.device)
        each = F.cross_entropy(
            scores.movedim(-1, 1), targets, weights, reduction="none", label_smoothing=self.label_smoothing
        )
        return over_positions(each, targets)

    def mean(self, scores: Tensor, targets: Tensor, counts: Tensor | None = None) -> Tensor:
        """Return the mean over the samples, in one call where PyTorch means the same by it."""
        if self.class_weights is not None or targets.dim() > 1:
            return super().mean(scores, targets)
        return F.cross_entropy(scores, targets, label_smoothing=self.label_smoothing)


class Focal(Loss):
    """The focal loss (Lin et al., ICCV 2017): (1 - p)^gamma times the cross-entropy, p at the target."""

    kinds = POSITIONS

    gamma: Annotated[float, at_least(0)] = 2.0
    """How little samples count that are classified well; 0 is the cross-entropy."""

    def per_sample(self, scores: Tensor, targets: Tensor, counts: Tensor | None = None) -> Tensor:
        """Return the paper's eq. 4."""
        plain = F.cross_entropy(scores.movedim(-1, 1), targets, reduction="none")
        missing = -torch.expm1(-plain)  # 1 - p
        each = missing.clamp(min=torch.finfo(missing.dtype).tiny) ** self.gamma * plain
        return over_positions(each, targets)


class BalancedSoftmax(Loss):
    """The cross-entropy of scores + log n_c, n_c the client's training samples of class c (Ren et al.,
    NeurIPS 2020): what the scores say of classes does not depend on how often the client sees them.
    """

    uses_counts = True
    kinds = ("classes",)

    def per_sample(self, scores: Tensor, targets: Tensor, counts: Tensor | None = None) -> Tensor:
        """Return the paper's eq. 4; classes that the client lacks take no part.

        Validation samples of such classes have their plain cross-entropy.
        """
        assert counts is not None
        known = counts[targets] > 0
        balanced = torch.where(known[:, None], scores + log_counts(counts, scores), scores)
        return F.cross_entropy(balanced, targets, reduction="none")


class MSE(Loss):
    """The squared error, of several numbers its mean."""

    kinds = ("numbers",)

    def per_sample(self, scores: Tensor, targets: Tensor, counts: Tensor | None = None) -> Tensor:
        """Return the square of what is wrong."""
        return (scores - targets).square().mean(1)


class MAE(Loss):
    """The absolute error, of several numbers its mean."""

    kinds = ("numbers",)

    def per_sample(self, scores: Tensor, targets: Tensor, counts: Tensor | None = None) -> Tensor:
        """Return the size of what is wrong."""
        return (scores - targets).abs().mean(1)


class Huber(Loss):
    """Half the squared error up to ``delta``, and linear beyond (Huber, 1964)."""

    kinds = ("numbers",)

    delta: Annotated[float, above(0)] = 1.0
    """Where it becomes linear."""

    def per_sample(self, scores: Tensor, targets: Tensor, counts: Tensor | None = None) -> Tensor:
        """Return the mean over numbers."""
        return F.huber_loss(scores, targets, reduction="none", delta=self.delta).mean(1)


class BCE(Loss):
    """The cross-entropy of every label, there or not, and their mean."""

    kinds = ("labels",)

    pos_weight: Annotated[float, above(0)] = 1.0
    """Factor on the losses of labels that are there, which may be rare."""

    def per_sample(self, scores: Tensor, targets: Tensor, counts: Tensor | None = None) -> Tensor:
        """Return the mean over labels."""
        there = F.logsigmoid(scores) * targets * self.pos_weight
        return -(there + F.logsigmoid(-scores) * (1 - targets)).mean(1)


class _OwnLoss(Loss):
    """A function of the user's own."""

    path: str
    """Its import path."""

    def per_sample(self, scores: Tensor, targets: Tensor, counts: Tensor | None = None) -> Tensor:
        found: Tensor = import_by_path(self.path)(scores, targets)
        return found


def log_counts(counts: Tensor, like: Tensor) -> Tensor:
    """Return log n_c of samples per class, [classes]; a finite number far below all others for none."""
    return counts.to(like).log().clamp(min=-1e9)


LOSSES: dict[str, type[Loss]] = {
    known.__name__: known for known in (CrossEntropy, Focal, BalancedSoftmax, MSE, MAE, Huber, BCE)
}
"""Those that come with rayfl, by name."""


def over_positions(losses: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over the positions of each sample where a class is asked for: [B], of [B, ...]."""
    if targets.dim() == 1:
        return losses
    asked = (targets != NOT_ASKED).flatten(1)
    return losses.flatten(1).sum(1) / asked.sum(1).clamp(min=1)


def resolve_loss(loss: Loss | str | None, task: Task) -> Loss:
    """Return the loss of a setting, which may name a function, or leave it to the task.

    Raises:
        Conflict: it is not for such targets.
    """
    if loss is None:
        known = LOSSES.get(task.loss) or import_by_path(task.loss)
        return known() if isinstance(known, type) else _OwnLoss(path=task.loss)
    found = _OwnLoss(path=loss) if isinstance(loss, str) else loss
    if task.kind not in found.kinds:
        fitting = [name for name, known in LOSSES.items() if task.kind in known.kinds]
        problem = f"is {found}, and the targets are {task.kind}"
        raise Conflict("training.loss", problem, f"leave it out, or choose one of {', '.join(fitting)}")
    return found
