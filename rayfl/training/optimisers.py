"""Optimisers: what a step of a fit does with the gradients; equal to those of ``torch.optim``."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from rayfl.errors import BadCode
from rayfl.settings import Value, above, at_least, below


class Optimiser(Value, ABC, place="training.optimiser"):
    """Base of all optimisers.

    A step treats every entry of a tensor by itself. So it takes the tensors of one client as well as those of
    many clients, stacked along their first dimension.

    Attributes:
        linear: whether the change of the weights is a sum of gradients with fixed weights, times the learning
            rate; ``Fitted.effective_steps`` has a meaning then.
        takes_momentum: whether ``training.momentum`` means something to it.
    """

    linear: ClassVar[bool] = False
    takes_momentum: ClassVar[bool] = False

    def __hash__(self) -> int:
        """Return what equal objects have in common; every fit of a stack asks for it."""
        return hash(type(self))

    @abstractmethod
    def memory(self, trained: Sequence[Tensor], momentum: float, clients: tuple[int, ...]) -> list[Tensor]:
        """Return what is remembered from step to step, before the first step.

        Args:
            trained: the tensors under training.
            momentum: of the fit.
            clients: the shape of what there is one of per client: () for one client, (K,) for a stack of K.
        """

    @abstractmethod
    def step(
        self,
        trained: list[Tensor],
        gradients: list[Tensor],
        memory: list[Tensor],
        used: list[int],
        descent: Descent,
    ) -> None:
        """Change ``trained`` and ``memory`` in place.

        Args:
            trained: the tensors under training.
            gradients: of the same shapes, after the clip, without weight decay.
            memory: as ``memory`` has made it.
            used: the places of the tensors that the loss depends on; the others are left alone, with what is
                remembered of them.
            descent: the numbers of the fit.
        """

    def check(self) -> None:
        """Refuse one that leaves weights alone, or trains clients otherwise in a stack than alone."""
        for momentum in (0.0, 0.9) if self.takes_momentum else (0.0,):
            self._check(momentum)

    def _check(self, momentum: float) -> None:
        start = torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3)
        alone, again = (
            torch.stack([_two_steps(self, w, w.sum() + w, (), momentum) for w in start]) for _ in range(2)
        )
        together = _two_steps(self, start, start.sum(1, keepdim=True) + start, (2,), momentum)
        wrong = ""
        if torch.equal(together, start):
            wrong = "leaves the weights alone: it must change the tensors in `trained` in place"
        elif not torch.equal(alone, again):
            wrong = "does not do the same twice with the same gradients: it must go by what it is given alone"
        elif not torch.allclose(together, alone, rtol=1e-9, atol=1e-12):
            wrong = (
                "does not treat every entry of a tensor for itself, so that a stack of clients is trained in "
                "another way than one client"
            )
        if wrong:
            raise BadCode("training.optimiser", f": {type(self).__name__}.step {wrong}")


def _two_steps(
    optimiser: Optimiser, start: Tensor, gradient: Tensor, clients: tuple[int, ...], momentum: float
) -> Tensor:
    """Return what two steps make of weights, which must be changed in place."""
    weights, descent = start.clone(), Descent(optimiser, 0.1, momentum, 0.0, 0.0)
    trained = [weights]
    memory = optimiser.memory(trained, momentum, clients)
    for _ in range(2):
        optimiser.step(trained, [gradient.clone()], memory, [0], descent)
    return weights


@dataclass(frozen=True)
class Descent:
    """The optimiser of a fit, and its numbers."""

    optimiser: Optimiser
    lr: float
    momentum: float
    weight_decay: float
    clip: float

    def effective_steps(self, steps: int) -> float:
        """Return K_m of ``Fitted.effective_steps`` after so many steps."""
        if not self.optimiser.linear:
            return math.nan
        m = self.momentum
        if m == 0:
            return float(steps)
        plain = sum((1 - m**j) / (1 - m) for j in range(1, steps + 1))
        return steps + m * plain if getattr(self.optimiser, "nesterov", False) else plain


class SGD(Optimiser):
    """Stochastic gradient descent, with ``training.momentum``."""

    linear = True
    takes_momentum = True

    nesterov: bool = False
    """Nesterov's momentum."""

    def memory(self, trained: Sequence[Tensor], momentum: float, clients: tuple[int, ...]) -> list[Tensor]:
        """Return a velocity of zeros per tensor; nothing without momentum."""
        return [torch.zeros_like(t) for t in trained] if momentum else []

    def step(
        self,
        trained: list[Tensor],
        gradients: list[Tensor],
        memory: list[Tensor],
        used: list[int],
        descent: Descent,
    ) -> None:
        """Take a step: weight decay, momentum, update."""
        if len(used) < len(trained):
            trained, gradients = [trained[i] for i in used], [gradients[i] for i in used]
            memory = [memory[i] for i in used] if memory else []
        if not trained:
            return
        if descent.weight_decay:
            gradients = list(torch._foreach_add(gradients, trained, alpha=descent.weight_decay))
        if memory:
            torch._foreach_mul_(memory, descent.momentum)
            torch._foreach_add_(memory, gradients)
            if self.nesterov:
                gradients = list(torch._foreach_add(gradients, memory, alpha=descent.momentum))
            else:
                gradients = memory
        torch._foreach_add_(trained, gradients, alpha=-descent.lr)


class Adam(Optimiser):
    """Adam (Kingma and Ba, arXiv 1412.6980, 2014); the weight decay is added to the gradient."""

    beta1: Annotated[float, at_least(0), below(1)] = 0.9
    """Decay of the mean of the gradients."""
    beta2: Annotated[float, at_least(0), below(1)] = 0.999
    """Decay of the mean of the squared gradients."""
    eps: Annotated[float, above(0)] = 1e-8
    """Added to the root of the mean squared gradient."""

    decoupled: ClassVar[bool] = False

    def memory(self, trained: Sequence[Tensor], momentum: float, clients: tuple[int, ...]) -> list[Tensor]:
        """Return the means, those of squares, and how many steps each tensor has taken, [..., tensors]."""
        if not trained:
            return []
        steps = torch.zeros(*clients, len(trained), dtype=torch.float64, device=trained[0].device)
        return [*(torch.zeros_like(t) for t in (*trained, *trained)), steps]

    def step(
        self,
        trained: list[Tensor],
        gradients: list[Tensor],
        memory: list[Tensor],
        used: list[int],
        descent: Descent,
    ) -> None:
        """Take a step of the paper's Algorithm 1, in the order of ``torch.optim``."""
        if not used:
            return
        count, steps = len(trained), memory[-1]
        means, squares = memory[:count], memory[count : 2 * count]
        if len(used) < count:
            trained, gradients, means, squares = (
                [tensors[i] for i in used] for tensors in (trained, gradients, means, squares)
            )
            steps[..., used] += 1
            now = steps[..., used]
        else:  # without indices, which a GPU would wait for
            now = steps.add_(1)
        rates = _per_tensor(descent.lr / (1 - self.beta1**now), trained)
        roots = _per_tensor((1 - self.beta2**now).sqrt(), trained)
        if descent.weight_decay and self.decoupled:
            torch._foreach_mul_(trained, 1 - descent.lr * descent.weight_decay)
        elif descent.weight_decay:
            gradients = list(torch._foreach_add(gradients, trained, alpha=descent.weight_decay))
        torch._foreach_lerp_(means, gradients, 1 - self.beta1)
        torch._foreach_mul_(squares, self.beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - self.beta2)
        below = torch._foreach_sqrt(squares)
        torch._foreach_div_(below, roots)
        torch._foreach_add_(below, self.eps)
        changes = torch._foreach_div(means, below)
        torch._foreach_mul_(changes, rates)
        torch._foreach_sub_(trained, changes)


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, ICLR 2019)."""

    decoupled = True


def _per_tensor(numbers: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    """Return the numbers, [..., T], tensor by tensor, in shapes and types that fit the T tensors."""
    each = numbers.unbind(-1)
    return [
        n.to(t.dtype).view(n.shape + (1,) * (t.dim() - n.dim())) for n, t in zip(each, tensors, strict=True)
    ]


PLAIN_STEPS: dict[str, Any] = {"optimiser": SGD(), "momentum": 0.0, "weight_decay": 0.0, "clip": 0.0}
"""What makes the steps of ``client.fit`` plain gradient descent, whatever the optimiser of the run is."""
