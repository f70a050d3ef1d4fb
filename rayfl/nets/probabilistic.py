"""Nets whose extractor ends in a Gaussian distribution of features, after FedSR."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor, nn

from rayfl.nets.alexnet import alexnet
from rayfl.nets.base import ImageArchitecture
from rayfl.nets.convolutional import cnn
from rayfl.nets.split import Shape, SplitNet
from rayfl.settings import at_least


class GaussianMean(nn.Module):
    """Passes on the means of a Gaussian and leaves out the rest: [B, 2 z] become [B, z].

    A method that draws features looks at what goes into this layer.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the first half of each row."""
        return x[..., : x.shape[-1] // 2]


class _Probabilistic(ImageArchitecture):
    """What these nets have in common."""

    z_dim: Annotated[int, at_least(1)] = 512
    """Features, z; the extractor puts out a mean and a scale of each."""

    def _add_gaussian(self, net: SplitNet, classes: int) -> SplitNet:
        """Return a net with a Gaussian between hidden layers and head."""
        gaussian = nn.Linear(net.head.in_features, 2 * self.z_dim)
        fc = nn.Sequential(*net.fc.children(), gaussian, GaussianMean())
        return SplitNet(net.conv, fc, nn.Linear(self.z_dim, classes))


class FedSRAlexNet(_Probabilistic):
    """``AlexNet`` with a width of 1024, a Gaussian of 512 features, and a linear head.

    14,018,634 parameters for 3 channels and 10 classes.
    """

    def build(self, shape: Shape, classes: int) -> SplitNet:
        """Build the net."""
        return self._add_gaussian(alexnet(self, shape, classes, width=1024), classes)


class FedSRCNN(_Probabilistic):
    """``CNNB`` with a Gaussian and a linear head, for small images. It is in no paper."""

    z_dim: Annotated[int, at_least(1)] = 64
    """Features, z; the extractor puts out a mean and a scale of each."""

    def build(self, shape: Shape, classes: int) -> SplitNet:
        """Build the net."""
        return self._add_gaussian(cnn(self, shape, classes, norm=True), classes)
