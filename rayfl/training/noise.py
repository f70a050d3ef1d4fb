"""Random numbers as a function of a key: the same bits in a loop and under vmap.

A generator cannot be vmapped; integer arithmetic can. The mixing is that of SplitMix64 (Steele, Lea and
Flood, OOPSLA 2014), in the wrapping arithmetic of int64.
"""

import math

import torch
from torch import Tensor

_GOLDEN = -0x61C8864680B583EB  # 0x9E3779B97F4A7C15 as a signed 64-bit number
_STEP = -0x3B314601E57A13AD  # another odd number: steps and places must not run along one line
_MULTIPLIERS = (-0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)


def fold(key: Tensor, number: Tensor) -> Tensor:
    """Return new keys, int64, made of a key and numbers (int64, of shapes that broadcast)."""
    return _mix(key + (number + 1) * _GOLDEN)


def step_keys(key: int, steps: int) -> Tensor:
    """Return one key per step of a fit, int64 [steps]."""
    return torch.arange(1, steps + 1) * _STEP + key


def uniform(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return float32 numbers in [0, 1), multiples of 2^-24, that depend on the key and their place alone."""
    places = torch.arange(math.prod(shape), dtype=torch.int64, device=key.device)
    bits = _mix(places * _GOLDEN + key)
    return (_shift(bits, 40).to(torch.float32) * 2.0**-24).reshape(shape)


def _shift(value: Tensor, by: int) -> Tensor:
    """Shift right as if unsigned."""
    return (value >> by) & ((1 << (64 - by)) - 1)


def _mix(value: Tensor) -> Tensor:
    value = (value ^ _shift(value, 30)) * _MULTIPLIERS[0]
    value = (value ^ _shift(value, 27)) * _MULTIPLIERS[1]
    return value ^ _shift(value, 31)
