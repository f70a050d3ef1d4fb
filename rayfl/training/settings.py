"""How clients train: the settings that every method shares."""

from dataclasses import dataclass
from typing import Literal

import torch

from rayfl.arguments import check_arguments
from rayfl.errors import UserError


@dataclass(frozen=True)
class Training:
    """Settings of local training; the optimiser is SGD, made anew in every round.

    Args:
        epochs: passes over a client's training data per round, at least 1.
        batch_size: samples per step, at least 1.
        lr: learning rate of the first round, above 0.
        lr_decay: factor on the learning rate per round, in (0, 1].
        momentum: of SGD, in [0, 1).
        weight_decay: of SGD, at least 0.
        clip: largest Euclidean norm of a net's gradient; 0 does not clip.
        last_batch: ``keep`` trains on an incomplete last batch, ``drop`` leaves it out where the client has
            more samples than one batch: advisable on nets with BatchNorm where last batches may be tiny.
        bn_single: what a net with BatchNorm does with a client that has one training sample: ``refuse`` the
            run before it starts, or train it with running statistics (``eval``).
        precision: dtype of weights and arithmetic.
    """

    epochs: int = 1
    batch_size: int = 64
    lr: float = 0.1
    lr_decay: float = 1.0
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float = 0.0
    last_batch: Literal["keep", "drop"] = "keep"
    bn_single: Literal["refuse", "eval"] = "refuse"
    precision: Literal["float32", "float64"] = "float32"

    def __post_init__(self) -> None:
        check_arguments(Training, vars(self), "training")
        for name, fine, allowed in [
            ("epochs", self.epochs >= 1, "at least 1"),
            ("batch_size", self.batch_size >= 1, "at least 1"),
            ("lr", 0 < self.lr < float("inf"), "a number above 0"),
            ("lr_decay", 0 < self.lr_decay <= 1, "in (0, 1]"),
            ("momentum", 0 <= self.momentum < 1, "in [0, 1)"),
            ("weight_decay", 0 <= self.weight_decay < float("inf"), "at least 0"),
            ("clip", 0 <= self.clip < float("inf"), "at least 0 (0: no clipping)"),
        ]:
            if not fine:
                raise UserError(f"training.{name} is {getattr(self, name)!r}: it must be {allowed}")

    @property
    def dtype(self) -> torch.dtype:
        """The torch dtype of ``precision``."""
        return torch.float64 if self.precision == "float64" else torch.float32

    def lr_at(self, round: int) -> float:
        """Return the learning rate of a round, counted from 0."""
        return self.lr * self.lr_decay**round
