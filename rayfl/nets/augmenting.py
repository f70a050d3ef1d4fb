"""Nets that change the statistics of their features at random while they are trained, after FedFA."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rayfl.nets.alexnet import alexnet
from rayfl.nets.base import ImageArchitecture
from rayfl.nets.convolutional import cnn
from rayfl.nets.split import Shape, SplitNet

EPS = 1e-6


class FFA(nn.Module):
    """Federated feature augmentation (Zhou and Konukoglu, ICLR 2023): new channel statistics for images.

    In train mode, with probability ``prob``, each sample's channel means and deviations give way to ones
    drawn around them, as wide as they differ within the batch, and wider where clients differ. Without a
    method that sets ``prob`` it does nothing.

    Attributes:
        prob: how often it is applied.
        momentum: of the running means of both statistics.
        source: what it draws from, by ``uniform(shape)`` and ``normal(shape)``; set where the net is made a
            function of its weights.

    Args:
        channels: C.
    """

    mean: Tensor
    scale: Tensor
    mean_var: Tensor
    scale_var: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.prob, self.momentum = 0.0, 0.99
        self.source: Any = None
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("scale", torch.ones(channels))
        self.register_buffer("mean_var", torch.ones(channels))
        self.register_buffer("scale_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Return features, [B, C, H, W], with other statistics."""
        if not self.training or self.prob == 0 or len(x) < 2 or x[0, 0].numel() < 2:
            return x
        mean, scale = x.mean((2, 3)), (x.var((2, 3)) + EPS).sqrt()
        applied = self.source.uniform(()) < self.prob
        with torch.no_grad():
            for kept, now in ((self.mean, mean), (self.scale, scale)):
                moved = self.momentum * kept + (1 - self.momentum) * now.mean(0)
                kept.copy_(torch.where(applied, moved, kept))
        new_mean = self._draw_statistic(mean, self.mean_var)
        new_scale = self._draw_statistic(scale, self.scale_var)
        normed = (x - mean[..., None, None]) / scale[..., None, None]
        augmented = new_scale[..., None, None] * normed + new_mean[..., None, None]
        return torch.where(applied, augmented, x)

    def _draw_statistic(self, statistic: Tensor, across: Tensor) -> Tensor:
        """Return what is drawn around a statistic, [B, C].

        Args:
            statistic: [B, C].
            across: its variance over clients, [C].
        """
        share = 1 / (1 + 1 / (across + EPS))
        wider = len(across) * share / share.sum() + 1
        deviation = ((statistic.var(0) + EPS) * wider).sqrt()
        return statistic + self.source.normal(tuple(statistic.shape)).to(statistic) * deviation


def _with_ffa_layers(net: SplitNet) -> SplitNet:
    """Return a net with an FFA layer at the end of each of its stages of convolution."""
    layers: list[nn.Module] = []
    channels = 0
    for layer in net.conv.children():
        if channels and (isinstance(layer, nn.Conv2d) or not isinstance(layer, _STAGE)):
            layers.append(FFA(channels))
            channels = 0
        if isinstance(layer, nn.Conv2d):
            channels = layer.out_channels
        layers.append(layer)
    return SplitNet(nn.Sequential(*layers), net.fc, net.head)


_STAGE = (nn.Conv2d, nn.BatchNorm2d, nn.ReLU, nn.MaxPool2d)
"""What a stage of convolution consists of."""


class FedFAAlexNet(ImageArchitecture):
    """``AlexNet`` with a width of 1024 and an FFA layer after each of its five stages of convolution.

    12,974,154 parameters for 3 channels and 10 classes, as without, and 4,608 statistics of FFA.
    """

    def build(self, shape: Shape, classes: int) -> SplitNet:
        """Build the net."""
        return _with_ffa_layers(alexnet(self, shape, classes, width=1024))


class FedFACNN(ImageArchitecture):
    """``CNNB`` with an FFA layer after each of its two stages of convolution, for small images.

    It is in no paper.
    """

    def build(self, shape: Shape, classes: int) -> SplitNet:
        """Build the net."""
        return _with_ffa_layers(cnn(self, shape, classes, norm=True))


def ffa_layers(net: nn.Module) -> dict[str, FFA]:
    """Return the FFA layers of a net by name, in the order in which data pass through them."""
    return {name: module for name, module in net.named_modules() if isinstance(module, FFA)}
