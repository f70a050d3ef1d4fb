"""Losses: what training makes small, of a net's scores and the targets, sample by sample."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from rayfl.errors import BadCode, BadValue
from rayfl.settings import Value, at_least, below
from rayfl.settings.imports import import_by_path
from rayfl.system.text import short_repr

TRIED_CALLS = 32
"""How often a loss is called before the run, to see that it always returns the same."""


class Loss(Value, ABC, place="training.loss"):
    """Base of all losses; one of your own overrides ``per_sample``, or is a function of scores and targets.

    Attributes:
        uses_counts: whether ``per_sample`` is given the client's training samples per class.
    """

    uses_counts: ClassVar[bool] = False

    @abstractmethod
    def per_sample(self, scores: Tensor, targets: Tensor, counts: Tensor | None = None) -> Tensor:
        """Return the loss of each sample, [B].

        Args:
            scores: logits, [B, classes].
            targets: the classes, int64 [B].
            counts: int64 [classes]; None where the loss does not use them.
        """

    def mean(self, scores: Tensor, targets: Tensor, counts: Tensor | None = None) -> Tensor:
        """Return the mean over the samples."""
        return self.per_sample(scores, targets, counts).mean()

    def check(self, classes: int) -> None:
        """Refuse one that does not give each sample a loss of its own, remembers calls, or draws.

        Args:
            classes: of the data.
        """
        draw = torch.Generator().manual_seed(0)
        count = classes + 2
        scores = torch.randn(count, classes, generator=draw, requires_grad=True)
        targets, counts = torch.arange(count) % classes, torch.ones(classes, dtype=torch.int64)
        try:
            whole, first = (
                self.per_sample(scores, targets, counts),
                self.per_sample(scores[:1], targets[:1], counts),
            )
            (slope,) = torch.autograd.grad(whole.sum(), scores)
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                again = [self.per_sample(scores, targets, counts) for _ in range(TRIED_CALLS)]
        except Exception as error:
            problem = f"is {self}, which raises {type(error).__name__}: {error}"
            raise BadCode("training.loss", problem) from error
        if whole.shape != (count,) or not torch.allclose(whole[:1], first) or not slope.any():
            raise BadCode(
                "training.loss",
                f"is {self}, which returns {short_repr(whole.detach())} for {count} samples",
                "it must return the loss of each sample, [B], by its own scores and target",
            )
        if not all(torch.equal(each, again[0]) for each in again):
            raise BadCode(
                "training.loss",
                f"is {self}, which returns other values when it is called again with the same scores",
                "it must neither draw nor remember, or other processes and resumed runs have other numbers",
            )


class CrossEntropy(Loss):
    """The cross-entropy."""

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
        return F.cross_entropy(
            scores, targets, weights, reduction="none", label_smoothing=self.label_smoothing
        )

    def mean(self, scores: Tensor, targets: Tensor, counts: Tensor | None = None) -> Tensor:
        """Return the mean over the samples, in one call where PyTorch means the same by it."""
        if self.class_weights is not None:
            return super().mean(scores, targets)
        return F.cross_entropy(scores, targets, label_smoothing=self.label_smoothing)


class Focal(Loss):
    """The focal loss (Lin et al., ICCV 2017): (1 - p)^gamma times the cross-entropy, p at the target."""

    gamma: Annotated[float, at_least(0)] = 2.0
    """How little samples count that are classified well; 0 is the cross-entropy."""

    def per_sample(self, scores: Tensor, targets: Tensor, counts: Tensor | None = None) -> Tensor:
        """Return the paper's eq. 4."""
        plain = F.cross_entropy(scores, targets, reduction="none")
        missing = -torch.expm1(-plain)  # 1 - p
        return missing.clamp(min=torch.finfo(missing.dtype).tiny) ** self.gamma * plain


class BalancedSoftmax(Loss):
    """The cross-entropy of scores + log n_c, n_c the client's training samples of class c (Ren et al.,
    NeurIPS 2020): what the scores say of classes does not depend on how often the client sees them.
    """

    uses_counts = True

    def per_sample(self, scores: Tensor, targets: Tensor, counts: Tensor | None = None) -> Tensor:
        """Return the paper's eq. 4; classes that the client lacks take no part.

        Validation samples of such classes have their plain cross-entropy.
        """
        assert counts is not None
        known = counts[targets] > 0
        balanced = torch.where(known[:, None], scores + log_counts(counts, scores), scores)
        return F.cross_entropy(balanced, targets, reduction="none")


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


def resolve_loss(loss: Loss | str) -> Loss:
    """Return the loss of a setting, which may name a function."""
    return _OwnLoss(path=loss) if isinstance(loss, str) else loss
