"""How clients train: the settings that every method shares."""

import math
from typing import Annotated, Literal

import torch

from rayfl.errors import BadValue, Conflict
from rayfl.randomness import generator
from rayfl.settings import above, at_least, below
from rayfl.settings.base import Value
from rayfl.training.losses import Loss
from rayfl.training.optimisers import SGD, Optimiser
from rayfl.training.schedules import Constant, Schedule

_SGD, _CONSTANT = SGD(), Constant()


class Training(Value, place="training"):
    """Settings of local training.

    Examples:
        >>> from rayfl import Training
        >>> from rayfl.training import Exponential
        >>> training = Training(epochs=2, lr=0.1, schedule=Exponential(decay=0.5))
        >>> [training.lr_at(round, rounds=3) for round in range(3)]
        [0.1, 0.05, 0.025]
    """

    _fixed = True

    epochs: Annotated[int, at_least(1), "training.steps counts steps, and training.work has factors"] = 1
    """Passes over a client's training data per round."""
    steps: Annotated[int, at_least(1)] | None = None
    """Steps per round in place of ``epochs``: the same number for each client, however many samples it has.
    Batches come pass after pass, and the last pass may be incomplete. Fits for which the method itself says
    how many epochs they have, such as those of FedRep's classifier, keep them.
    """
    work: tuple[float, ...] | None = None
    """Factors on ``epochs`` or ``steps``, for clients with unequal work: client k has entry k modulo the
    length. What comes out is rounded, to at least 1. Fits for which the method itself says how many epochs
    they have keep them.
    """
    work_range: tuple[float, float] | None = None
    """Lowest and highest factor, in place of ``work``: each client draws one in each round, evenly."""
    batch_size: Annotated[int, at_least(1)] = 64
    """Samples per step."""
    lr: Annotated[float, above(0)] = 0.1
    """Learning rate; ``schedule`` multiplies it in each round."""
    schedule: Schedule = _CONSTANT
    """How the learning rate changes from round to round: ``Constant``, ``Exponential``, ``Steps``,
    ``Cosine``, or the import path of a class of your own. All of them can have a warm-up.
    """
    optimiser: Optimiser = _SGD
    """What a step does with the gradients: ``SGD``, ``Adam`` or ``AdamW``."""
    optimiser_state: Literal["fresh", "kept"] = "fresh"
    """What becomes of the optimiser's memory (velocities, means of gradients): ``fresh``: every fit starts
    without; ``kept``: each client keeps it for its next round, where each phase of the method goes on from
    where it ended.
    """
    momentum: Annotated[float, at_least(0), below(1)] = 0.0
    """Momentum of SGD."""
    weight_decay: Annotated[float, at_least(0)] = 0.0
    """Weight decay of the optimiser."""
    clip: Annotated[float, at_least(0), "0: no clipping"] = 0.0
    """Largest Euclidean norm of a net's gradient; a larger gradient is scaled down to it."""
    loss: Loss | str | None = None
    """What training makes small: of classes ``CrossEntropy``, ``Focal``, ``BalancedSoftmax``; of numbers
    ``MSE``, ``MAE``, ``Huber``; of several labels ``BCE``; the first of its task if not given. Or the import
    path of a function of your own of scores [B, outputs] and targets [B, ...] that returns the losses of the
    samples, [B].
    """
    last_batch: Literal["keep", "drop"] = "keep"
    """``keep`` trains on an incomplete last batch; ``drop`` leaves it out if the client has more samples than
    one batch. Use ``drop`` for nets with BatchNorm if last batches may be tiny.
    """
    bn_single: Literal["refuse", "eval"] = "refuse"
    """What happens if the net has BatchNorm and a client has one training sample: ``refuse``: the run does
    not start; ``eval``: this client trains with the running statistics.
    """
    precision: Literal["float32", "float64", "tf32", "bfloat16"] = "float32"
    """Dtype of weights and arithmetic. With ``bfloat16`` most arithmetic within nets is in bfloat16, by
    ``torch.autocast``; weights, losses and sums are in float32. With ``tf32`` GPUs round the factors of
    convolutions and matrix products to 10 bits after the point.
    """

    def __post_init__(self) -> None:
        if isinstance(self.loss, str) and "." not in self.loss:
            raise BadValue(
                "training.loss", f"is {self.loss!r}", "give an object, or a function's import path"
            )
        if self.steps is not None and self.epochs != 1:
            raise Conflict("training.steps", f"is {self.steps} and training.epochs {self.epochs}", "give one")
        if self.work is not None and self.work_range is not None:
            raise Conflict("training.work", "is given, and training.work_range, too", "give one")
        if self.work is not None and min(self.work, default=-1.0) < 0:
            raise BadValue("training.work", "must be one or more numbers of at least 0, such as [0.5, 1]")
        if self.work_range is not None and not 0 <= self.work_range[0] <= self.work_range[1]:
            raise BadValue("training.work_range", "must be two numbers of at least 0, the lower one first")
        if self.momentum and not self.optimiser.takes_momentum:
            raise Conflict(
                "training.momentum",
                f"is {self.momentum}, and {self.optimiser} has no momentum: leave it out, or choose SGD",
            )
        if isinstance(self.optimiser, SGD) and self.optimiser.nesterov and not self.momentum:
            raise Conflict("training.optimiser.nesterov", "is True: it needs --training.momentum, as 0.9")

    @property
    def dtype(self) -> torch.dtype:
        """The torch dtype of weights and inputs."""
        return torch.float64 if self.precision == "float64" else torch.float32

    def work_of(self, client: int, round: int, seed: int, count: int) -> int:
        """Return how many of so many epochs or steps a client has in a round, at least one.

        Args:
            client: its number.
            round: from 0.
            seed: the run's seed.
            count: ``epochs`` or ``steps``.
        """
        if self.work_range is not None:
            low, high = self.work_range
            drawn = torch.rand((), generator=generator(seed, "work", client, round), dtype=torch.float64)
            factor = low + (high - low) * drawn.item()
        elif self.work is not None:
            factor = self.work[client % len(self.work)]
        else:
            return count
        return max(1, math.floor(factor * count + 0.5))

    def lr_at(self, round: int, rounds: int) -> float:
        """Return the learning rate of a round, counted from 0, of so many."""
        return self.lr * self.schedule.at(round, rounds)
