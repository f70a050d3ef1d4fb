"""Random numbers as a function of a key: the same bits in a loop and under vmap.

A generator cannot be vmapped; integer arithmetic can. Every step of a fit has its key, ``batch.key``. What
draws more than once makes itself a key for each draw::

    from rayfl.training import noise

    def loss(w, batch, extra):
        z = net.features(w, batch.x)
        keep = noise.bernoulli(noise.split(batch.key, 0), 0.9, z.shape)
        z = z * keep + 0.1 * noise.normal(noise.split(batch.key, 1), z.shape)
        ...

The mixing is that of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), in the wrapping arithmetic of int64.
"""

import math

import torch
from torch import Tensor

_GOLDEN = -0x61C8864680B583EB  # 0x9E3779B97F4A7C15 as a signed 64-bit number
_STEP = -0x3B314601E57A13AD  # another odd number: steps and places must not run along one line
_MULTIPLIERS = (-0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)


def fold(key: Tensor, number: Tensor | int) -> Tensor:
    """Return new keys, int64, made of a key and numbers (int64, of shapes that broadcast)."""
    added = (number + 1) * _GOLDEN
    if isinstance(added, int):
        added = (added + 2**63) % 2**64 - 2**63  # wrapped, as tensors wrap it
    return _mix(key + added)


def split(key: Tensor, i: int | Tensor) -> Tensor:
    """Return the i-th of the keys made of a key, int64: for the i-th thing that draws by it.

    They are others than those of ``fold``, by which batches are augmented.

    Args:
        key: int64, of any shape.
        i: from 0; a number, or int64 of a shape that broadcasts.
    """
    return fold(_mix(key ^ _STEP), i)


def step_keys(key: int, steps: int) -> Tensor:
    """Return one key per step of a fit, int64 [steps]."""
    return torch.arange(1, steps + 1) * _STEP + key


def uniform(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return float32 numbers in [0, 1), multiples of 2^-24, that depend on the key and their place alone."""
    drawn = bits(key, math.prod(shape))
    return (_shift(drawn, 40).to(torch.float32) * 2.0**-24).reshape(shape)


def bits(key: Tensor, count: int) -> Tensor:
    """Return numbers of 64 random bits, int64 [count], that depend on the key and their place alone."""
    places = torch.arange(count, dtype=torch.int64, device=key.device)
    return _mix(places * _GOLDEN + key)


def bernoulli(key: Tensor, p: float | Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return bools that are true with probability p, a number or a tensor that broadcasts to ``shape``."""
    return uniform(key, shape) < p


def normal(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return float32 numbers from the standard normal distribution, none beyond 5.8 (Box and Muller, 1958).

    In float64 on the way, so that the loop and the stack agree in all but a few in 10^8.
    """
    radius, angle = uniform(key, (2, *shape)).double().unbind()
    return ((-2 * (1 - radius).log()).sqrt() * (2 * math.pi * angle).cos()).float()


def _shift(value: Tensor, by: int) -> Tensor:
    """Shift right as if unsigned."""
    return (value >> by) & ((1 << (64 - by)) - 1)


def _mix(value: Tensor) -> Tensor:
    value = (value ^ _shift(value, 30)) * _MULTIPLIERS[0]
    value = (value ^ _shift(value, 27)) * _MULTIPLIERS[1]
    return value ^ _shift(value, 31)
