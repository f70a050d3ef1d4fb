"""AlexNet with BatchNorm, as FedBN (Li et al., ICLR 2021) and FDSE (Wang et al., CVPR 2025) have it."""

from collections.abc import Callable
from functools import partial
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rayfl.nets.base import Architecture, ImageArchitecture
from rayfl.nets.convolutional import assemble, hidden_layer
from rayfl.nets.split import Shape, SplitNet
from rayfl.settings import at_least


class Averages(nn.AdaptiveAvgPool2d):
    """Adaptive average pooling to a square as two products of matrices.

    The gradient of PyTorch's own kernel has no deterministic form on GPUs.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., side, side] for [..., H, W]."""
        down, across = (self._weights(x.shape[dim], x) for dim in (-2, -1))
        return down.T @ x @ across

    def _weights(self, length: int, x: Tensor) -> Tensor:
        """Return the weights of the averages over a height or width, [length, side]."""
        unit = torch.eye(length, dtype=x.dtype, device=x.device)
        weights: Tensor = F.adaptive_avg_pool1d(unit, self.output_size)  # type: ignore[arg-type]
        return weights


class AlexNet(ImageArchitecture):
    """The AlexNet of FedBN and Fed-CO2: BatchNorm after every layer, no dropout.

    57,063,498 parameters for 3 channels and 10 classes, whatever the size of the images: 2,472,000 in
    ``conv``, 54,591,498 after it; 18,688 of them BatchNorm's. With a width of 1024, as FDSE's baselines have
    it, 12,974,154; 12,971,079 for 7 classes.
    """

    width: Annotated[int, at_least(1)] = 4096
    """Units of each of the two hidden fully connected layers."""
    fc_norm: bool = True
    """Whether these layers have BatchNorm. In Fed-CO2's code some methods are run without."""

    def build(self, shape: Shape, classes: int) -> SplitNet:
        """Build the net."""
        return alexnet(self, shape, classes, self.width, self.fc_norm)


def alexnet(net: Architecture, shape: Shape, classes: int, width: int, fc_norm: bool = True) -> SplitNet:
    """Build what ``AlexNet`` is, for a net that has this name or begins like it.

    Args:
        net: for the error where images are too small.
        shape: channels, height and width of an image.
        classes: number of classes.
        width: of the two hidden fully connected layers.
        fc_norm: whether these have BatchNorm.
    """

    def layers(inputs: int, outputs: int, kernel: int, stride: int, padding: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, kernel, stride, padding), nn.BatchNorm2d(outputs), nn.ReLU()]

    conv = alexnet_stages(shape[0], layers)
    return assemble(net, conv, (width, width), shape, classes, partial(hidden_layer, norm=fc_norm))


def alexnet_stages(
    channels: int, layers: Callable[..., list[nn.Module]], late_padding: int = 1
) -> list[nn.Module]:
    """Return AlexNet's five stages of convolution with their poolings.

    Args:
        channels: of an image.
        layers: make a convolution, with what follows it, from inputs, outputs, kernel, stride and padding.
        late_padding: that of the last three convolutions.
    """
    conv: list[nn.Module] = []
    for inputs, outputs, kernel, stride, padding, pool in (
        (channels, 64, 11, 4, 2, True),
        (64, 192, 5, 1, 2, True),
        (192, 384, 3, 1, late_padding, False),
        (384, 256, 3, 1, late_padding, False),
        (256, 256, 3, 1, late_padding, True),
    ):
        conv += layers(inputs, outputs, kernel, stride, padding)
        conv += [nn.MaxPool2d(3, 2)] if pool else []
    return [*conv, Averages(6)]
