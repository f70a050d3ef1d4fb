"""FDSE's regulariser: features' statistics are drawn to global ones (Wang et al., CVPR 2025, eq. 4 to 7)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import grad

from rayfl.training import Batch, Params

GUARD = 1e-8
"""What the public code adds to variances below a fraction line."""


class Consistency:
    """How far running estimates of the features' statistics lie from global ones.

    The running estimates are carried from batch to batch as entries of Params without parameters, so that
    ``fit`` treats them like the running statistics of BatchNorm. The past has no gradient.

    Args:
        blocks: how many there are.
        beta: block l is weighted by exp(beta l), divided by the sum over the blocks.
        gamma: share of the past in the estimates, in [0, 1).
        reg: ``paper``: eq. 4 to 6. ``code``: what the public code has in their place.
        ema_init: estimates start from the ``received`` global ones, or with the first batch
            (``bias_corrected``).
    """

    def __init__(
        self,
        blocks: int,
        beta: float,
        gamma: float,
        reg: Literal["paper", "code"],
        ema_init: Literal["received", "bias_corrected"],
    ) -> None:
        self.weights = torch.softmax(beta * torch.arange(blocks, dtype=torch.float64), 0).tolist()
        self.gamma = gamma
        self.reg = reg
        self.received = reg == "paper" and ema_init == "received"

    def global_statistics(self, w: Params, norms: Sequence[str]) -> list[Tensor]:
        """Return mean and variance, [T], of one BatchNorm layer after the other: its running statistics."""
        return [w[f"{norm}.{name}"] for norm in norms for name in ("running_mean", "running_var")]

    def initial_estimates(self, targets: Sequence[Tensor]) -> Params:
        """Return the estimates before the first batch: entries 0, 1, ... like the targets', and ``missing``.

        The last is the weight that estimates still lack: 1 before the first batch, 0 where they start from
        received values. ``code`` has one pair of estimates for all blocks, a mean and a variance.
        """
        if self.reg == "code":
            estimates = [targets[0].new_zeros(())] * 2
        else:
            estimates = [t if self.received else torch.zeros_like(t) for t in targets]
        missing = targets[0].new_tensor(float(not self.received))
        entries = {str(place): t for place, t in enumerate(estimates)}
        return Params({**entries, "missing": missing}, frozenset())

    def loss(self, inputs: Sequence[Tensor], seen: Params, targets: Sequence[Tensor]) -> Tensor:
        """Return L_con of a batch (eq. 7), a scalar, and carry the estimates on in place.

        Args:
            inputs: the features of each block, [B, T] or [B, T, H, W].
            seen: the estimates.
            targets: global means and variances.
        """
        terms = (self._code_terms if self.reg == "code" else self._paper_terms)(inputs, seen, targets)
        return torch.stack([weight * term for weight, term in zip(self.weights, terms)]).sum()

    def _paper_terms(self, inputs: Sequence[Tensor], seen: Params, targets: Sequence[Tensor]) -> list[Tensor]:
        """Eq. 4 to 6: means are compared channel by channel, variances summed over the channels."""
        missing = self.gamma * seen["missing"]
        seen["missing"].copy_(missing)
        distances = []
        for place, (target, now) in enumerate(
            zip(targets, (s for x in inputs for s in _channel_statistics(x)))
        ):
            past = seen[str(place)]
            estimate = self.gamma * past + (1 - self.gamma) * now
            past.copy_(estimate.detach())
            distances.append(estimate / (1 - missing) - target)
        pairs = zip(distances[::2], distances[1::2])
        return [means.square().mean() + variances.mean().square() for means, variances in pairs]

    def _code_terms(self, inputs: Sequence[Tensor], seen: Params, targets: Sequence[Tensor]) -> list[Tensor]:
        """The public code: mean and variance over the channels of a block, not over its samples.

        One pair of estimates goes through the blocks of a batch one after the other, with its gradient, and
        then on to the next batch.
        """
        mean, variance, missing = (seen[name] for name in ("0", "1", "missing"))
        terms = []
        for x, target_mean, target_variance in zip(inputs, targets[::2], targets[1::2]):
            channels = _channel_statistics(x)[0]
            past = self.gamma * (1 - missing)
            mean = past * mean + (1 - past) * channels.mean()
            variance = past * variance + (1 - past) * channels.var()
            missing = torch.zeros_like(missing)
            spread = variance.clamp(min=GUARD)  # where the code would divide by 0
            means = (target_mean.square() - mean.square()) / (2 * spread)
            ratios = torch.log(spread / (target_variance + GUARD)) + target_variance / (variance + GUARD)
            terms.append(means.mean() + 0.5 * ratios.mean())
        for name, value in (("0", mean), ("1", variance), ("missing", missing)):
            seen[name].copy_(value.detach())
        return terms


def _channel_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance (1/n) of every channel, [T], over batch and positions (eq. 4)."""
    over = [0, *range(2, x.dim())]
    return x.mean(over), x.var(over, correction=0)


def ratio_of_gradients(losses: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Tensor]:
    """Return a function of nets, batch and extra that compares the gradients of two losses.

    Args:
        losses: of nets, batch and extra.

    Returns:
        The norm of the second loss's gradient divided by that of the first's, at most 1e6. It works on
        copies: statistics stay as they are.
    """

    def gradient_ratio(nets: dict[str, Params], batch: Batch, extra: Any) -> Tensor:
        trained = {key: w.trainable().tensors for key, w in nets.items()}

        def loss(trained: Any, buffers: Any, which: int) -> Tensor:
            live = {
                key: Params({**w.tensors, **trained[key], **buffers[key]}, w.train_names, live=True)
                for key, w in nets.items()
            }
            return losses(live, batch, extra)[which]

        norms = []
        for which in range(2):
            copies = {
                key: {n: t.clone() for n, t in w.items() if n not in w.train_names} for key, w in nets.items()
            }
            gradient = grad(loss)(trained, copies, which)
            squares = [g.square().sum() for tensors in gradient.values() for g in tensors.values()]
            norms.append(torch.stack(squares).sum().sqrt())
        return (norms[1] / norms[0].clamp(min=1e-12)).clamp(max=1e6)

    return gradient_ratio
