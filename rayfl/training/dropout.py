"""Dropout whose masks follow from the key of the step: the same bits in a loop, stacked, and on any actor.

PyTorch's layers draw from a global generator, so that results would depend on which process trains a client,
and after whom. ``Net`` puts ``Dropout`` in their place. A mask is a function of the step's key and of how
many masks the loss has drawn before it: layers, calls, steps and clients are independent of one another.

Where nets draw otherwise, as attention does, the loop seeds the global generators by the key of each step.
A stack cannot do that for many clients in one call, so that such nets are trained in the loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from rayfl.errors import BadCode
from rayfl.nets import FFA
from rayfl.training.noise import bits, fold, normal, uniform

_MASK_PURPOSE = 0x64726F70 << 24  # keeps masks apart from what augmentation and losses draw from the same key
_LOWEST = -1.7580993408473766  # of SELU: what AlphaDropout puts in place of what it drops

_key: Tensor | None = None  # of the step whose loss runs
_drawn = 0  # masks that this loss has drawn


def draw_from(key: Tensor | None) -> None:
    """Let masks be drawn from a step's key, a 0-d int64, from its first one on; None ends the loss."""
    global _key, _drawn
    _key, _drawn = key, 0


def _next_key() -> Tensor:
    """Return the key of the next draw of the loss that runs, a 0-d int64."""
    global _drawn
    if _key is None:
        raise RuntimeError(
            "a net with dropout is called in train mode outside the loss of a fit, where there is no key to "
            "draw from: use net.eval for teachers, totals and evaluation"
        )
    _drawn += 1
    return fold(_key, _MASK_PURPOSE + _drawn - 1)


def next_mask(shape: tuple[int, ...], p: float) -> Tensor:
    """Return the next mask of the loss that runs, bool [shape]: false with probability p, below 1.

    Raises:
        RuntimeError: no loss of a fit runs.
    """
    count = math.prod(shape)
    # Each number of 64 bits serves twice: as a fraction of 2^64, and shifted, so that its lower half is one.
    drawn = bits(_next_key(), (count + 1) // 2)
    least = math.floor((p - 0.5) * 2**64)
    return torch.cat([drawn >= least, drawn << 32 >= least])[:count].reshape(shape)


class StepNoise:
    """What layers draw from that are no dropout: the step whose loss runs, one draw after the other."""

    def uniform(self, shape: tuple[int, ...]) -> Tensor:
        """Return numbers in [0, 1)."""
        return uniform(_next_key(), shape)

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        """Return standard normal numbers."""
        return normal(_next_key(), shape)


class Dropout(nn.Module):
    """Sets random entries to 0 in train mode and divides the others by 1 - p, as ``nn.Dropout`` does.

    Args:
        p: probability that an entry is dropped.
        apart: how many dimensions at the beginning are told apart: 0 drops batches, 1 samples, 2 channels of
            samples; None drops single entries.
        alpha: whether as in ``nn.AlphaDropout``, which keeps mean and variance of what SELU puts out.
    """

    def __init__(self, p: float, apart: int | None = None, alpha: bool = False) -> None:
        super().__init__()
        self.p = p
        self.apart = apart
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        """Return x, [B, ...], after dropout."""
        p = self.p
        if not self.training or p == 0:
            return x
        if p == 1:
            return x * 0
        apart = x.dim() if self.apart is None else self.apart
        kept = next_mask((*x.shape[:apart], *[1] * (x.dim() - apart)), p)
        if self.alpha:
            scale = ((1 - p) * (1 + p * _LOWEST**2)) ** -0.5
            return (torch.where(kept, x, _LOWEST) - p * _LOWEST) * scale
        return x * (kept.to(x.dtype) * (1 / (1 - p)))


_KEYED: dict[type[nn.Module], Callable[[float], nn.Module]] = {
    nn.Dropout: Dropout,
    nn.Dropout1d: partial(Dropout, apart=2),
    nn.Dropout2d: partial(Dropout, apart=2),
    nn.Dropout3d: partial(Dropout, apart=2),
    nn.AlphaDropout: partial(Dropout, alpha=True),
    nn.FeatureAlphaDropout: partial(Dropout, apart=2, alpha=True),
}
_DRAWING = (_DropoutNd, nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)


def put_dropout(net: nn.Module) -> bool:
    """Put ``Dropout`` in the place of PyTorch's dropout layers; return whether others draw otherwise.

    Raises:
        UserError: a layer would draw from what no generator seeds.
    """
    draws = False
    for above, module in list(net.named_modules()):
        for name, layer in module._modules.items():
            if layer is not None:
                module._modules[name] = made = _keyed_layer(f"{above}.{name}".lstrip("."), layer)
                draws = draws or _draws(made)
    return draws


@contextmanager
def seed_step(key: Tensor) -> Iterator[None]:
    """Seed PyTorch's global generators for a step of a loop, by its key, a 0-d int64."""
    with torch.random.fork_rng(devices=[key.device] if key.is_cuda else []):
        torch.random.default_generator.manual_seed(int(key))
        if key.is_cuda:
            torch.cuda.default_generators[key.device.index].manual_seed(int(key))
        yield


def _keyed_layer(name: str, layer: nn.Module) -> nn.Module:
    """Return a layer, or what takes its place."""
    found: Any = layer
    if isinstance(layer, FFA):
        layer.source = StepNoise()
    if type(layer) in _KEYED:
        return _KEYED[type(layer)](found.p)
    if type(layer).__name__ == "StochasticDepth":  # of torchvision, which need not be there
        return Dropout(found.p, apart=1 if found.mode == "row" else 0)
    if isinstance(layer, nn.RNNBase) and layer.dropout:
        problem = f"({type(layer).__name__}) has dropout, which on a GPU goes by what its process did before"
        raise BadCode(f"layer {name!r}", problem, "set it to 0.0, and put nn.Dropout before or after it")
    return layer


def _draws(layer: nn.Module) -> bool:
    """Return whether a layer of PyTorch's draws from the global generator in train mode."""
    if isinstance(layer, nn.MultiheadAttention):
        return layer.dropout > 0
    return isinstance(layer, _DRAWING) and getattr(layer, "p", 1) > 0
