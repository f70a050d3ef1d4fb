"""Stochastic quantisation."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor

from rayfl.settings import at_least, at_most
from rayfl.training.params import Params
from rayfl.transforms.compression import Compression

SCALE = 4
"""Bytes of a tensor's scale."""


class Quantise(Compression):
    """Clients upload each entry of their change as a whole number of few bits (QSGD: Alistarh et al.,
    NeurIPS 2017).

    Of b bits one is the sign, so there are s = 2^(b-1) - 1 steps from 0 to the largest magnitude m of a
    tensor. An entry x becomes m/s times |x| s/m rounded up or down, up with the probability of the fraction:
    its mean is x. A tensor travels as its entries, b bits each, and its m.

    Deviations from the paper: m is the largest magnitude of a tensor, as in its experiments, and not a norm;
    nothing is coded further; it is the change by a whole local update that is quantised, not a gradient.
    """

    error_feedback = False

    bits: Annotated[int, at_least(2), at_most(16)] = 8
    """Bits of an entry."""

    def compress(self, change: Params, generator: torch.Generator) -> Params:
        """Round every tensor to its grid."""
        return change.map(lambda t: self._rounded(t, generator))

    def _rounded(self, t: Tensor, generator: torch.Generator) -> Tensor:
        steps, exact = 2 ** (self.bits - 1) - 1, t.double()
        drawn = torch.rand(t.shape, generator=generator, dtype=torch.float64).to(t.device)
        step = exact.abs().amax() / steps if t.numel() else exact.new_zeros(())
        found = (exact / step + drawn).floor().clamp(-steps, steps) * step
        return torch.where(step == 0, exact, found).to(t.dtype)

    def compressed_bytes(self, sent: Params) -> int:
        """Count entries and scales."""
        return sum(math.ceil(t.numel() * self.bits / 8) + SCALE for t in sent.values())
