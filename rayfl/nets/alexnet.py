"""AlexNet with BatchNorm, as FedBN (Li et al., ICLR 2021) and FDSE (Wang et al., CVPR 2025) have it."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rayfl.nets.convolutional import assemble
from rayfl.nets.split import Shape, SplitNet


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


def alexnet(shape: Shape, classes: int) -> SplitNet:
    """The AlexNet of FedBN and Fed-CO2: hidden layers of 4096, BatchNorm after every layer, no dropout.

    57,063,498 parameters for 3 channels and 10 classes, whatever the size of the images: 2,472,000 in
    ``conv``, 54,591,498 after it; 18,688 of them BatchNorm's.
    """
    return _alexnet("AlexNet", shape, classes, 4096)


def alexnet_nobn1(shape: Shape, classes: int) -> SplitNet:
    """``AlexNet`` without BatchNorm in its classifier, as Fed-CO2's code has it for other methods.

    16,384 parameters and as many running statistics less.
    """
    return _alexnet("AlexNet-nobn1", shape, classes, 4096, norm=False)


def alexnet_1024(shape: Shape, classes: int) -> SplitNet:
    """The AlexNet of FDSE's baselines: hidden layers of 1024 instead of 4096.

    12,974,154 parameters for 3 channels and 10 classes, 12,971,079 for 7.
    """
    return _alexnet("AlexNet-1024", shape, classes, 1024)


def _alexnet(name: str, shape: Shape, classes: int, width: int, norm: bool = True) -> SplitNet:
    """Return an AlexNet with two hidden layers of this width, with BatchNorm in them if ``norm``."""
    conv: list[nn.Module] = []
    for inputs, outputs, kernel, stride, padding, pool in (
        (shape[0], 64, 11, 4, 2, True),
        (64, 192, 5, 1, 2, True),
        (192, 384, 3, 1, 1, False),
        (384, 256, 3, 1, 1, False),
        (256, 256, 3, 1, 1, True),
    ):
        conv += [nn.Conv2d(inputs, outputs, kernel, stride, padding), nn.BatchNorm2d(outputs), nn.ReLU()]
        conv += [nn.MaxPool2d(3, 2)] if pool else []
    return assemble(name, [*conv, Averages(6)], (width, width), shape, classes, norm)
