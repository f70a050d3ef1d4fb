"""`Architecture`: what describes a net, and builds it for the images at hand."""

from __future__ import annotations

from abc import ABC, abstractmethod

from rayfl.nets.split import Shape, SplitNet
from rayfl.settings import Value


class Architecture(Value, ABC, place="net"):
    """A net without weights: a class with the options that it is built with, see :mod:`rayfl.settings`."""

    @abstractmethod
    def build(self, shape: Shape, classes: int) -> SplitNet:
        """Build the net, with PyTorch's random initial weights; the caller seeds them.

        Args:
            shape: of one input, such as (channels, height, width).
            classes: number of classes, at least 2.
        """


class ImageArchitecture(Architecture):
    """A net for images, float [B, C, H, W]; ``build`` gets shapes of three numbers only."""
