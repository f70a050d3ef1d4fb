"""Plain convolutional nets of the papers: blocks of convolution and pooling, hidden layers, head."""

from collections.abc import Sequence

from torch import nn

from rayfl.errors import UserError
from rayfl.nets.split import Shape, SplitNet, output_side, smallest_side


def lenet(shape: Shape, classes: int) -> SplitNet:
    """LeNet (6, 16, 120, 84) with ReLU and max pooling, after LeCun et al., Proc. IEEE 1998.

    62,006 parameters for images of 3x32x32 and 10 classes.
    """
    conv = [*_conv(shape[0], 6, 5), *_conv(6, 16, 5)]
    return _assemble("lenet", conv, (120, 84), shape, classes)


def cnn(shape: Shape, classes: int) -> SplitNet:
    """The CIFAR net of Fed-CO2 (Cai et al., NeurIPS 2023) without BatchNorm: 16, 32, 120, 84.

    121,182 parameters for images of 3x32x32 and 10 classes, 128,832 for 100 classes.
    """
    return _cnn("cnn", shape, classes, norm=False)


def cnn_b(shape: Shape, classes: int) -> SplitNet:
    """``cnn`` with BatchNorm after every hidden layer, as FedBN and Fed-CO2 use it on CIFAR.

    504 affine parameters and 504 running statistics more than ``cnn``.
    """
    return _cnn("cnn-b", shape, classes, norm=True)


def digit_model(shape: Shape, classes: int) -> SplitNet:
    """The six-layer digits net of FedBN (Li et al., ICLR 2021): 64, 64, 128, 2048, 512, with BatchNorm.

    14,219,210 parameters for images of 3x28x28 and 10 classes: 312,768 in ``conv``, 13,906,442 after it.
    """
    conv = [
        *_conv(shape[0], 64, 5, padding=2, norm=True),
        *_conv(64, 64, 5, padding=2, norm=True),
        *_conv(64, 128, 5, padding=2, norm=True, pool=False),
    ]
    return _assemble("DigitModel", conv, (2048, 512), shape, classes, norm=True)


def fedavg_cnn(shape: Shape, classes: int) -> SplitNet:
    """The four-layer CNN of FedAvg (McMahan et al., AISTATS 2017), here as for CIFAR-100: 32, 64, 512.

    883,668 parameters for images of 3x32x32 and 20 classes.
    """
    conv = [*_conv(shape[0], 32, 5), *_conv(32, 64, 5)]
    return _assemble("FedAvgCNN", conv, (512,), shape, classes)


def _cnn(name: str, shape: Shape, classes: int, norm: bool) -> SplitNet:
    conv = [*_conv(shape[0], 16, 5, norm=norm), *_conv(16, 32, 5, norm=norm)]
    return _assemble(name, conv, (120, 84), shape, classes, norm)


def _conv(
    inputs: int, outputs: int, kernel: int, padding: int = 0, norm: bool = False, pool: bool = True
) -> list[nn.Module]:
    """Return a convolution with ReLU, with BatchNorm before and 2x2 max pooling after it where asked."""
    layers: list[nn.Module] = [nn.Conv2d(inputs, outputs, kernel, padding=padding)]
    if norm:
        layers.append(nn.BatchNorm2d(outputs))
    layers.append(nn.ReLU())
    if pool:
        layers.append(nn.MaxPool2d(2))
    return layers


def _assemble(
    name: str, conv: list[nn.Module], hidden: Sequence[int], shape: Shape, classes: int, norm: bool = False
) -> SplitNet:
    """Append hidden layers and head, whose sizes follow from the image.

    Raises:
        UserError: nothing of an image this small is left after the poolings.
    """
    flat = nn.Sequential(*conv, nn.Flatten())
    channels = [layer for layer in conv if isinstance(layer, nn.Conv2d)][-1].out_channels
    height, width = (output_side(flat, side) for side in shape[1:])
    if height < 1 or width < 1:
        least = smallest_side(flat)
        raise UserError(
            f"net {name!r} needs images of at least {least}x{least} pixels, these have "
            f"{shape[1]}x{shape[2]}; choose another net or larger images"
        )
    fc, inputs = nn.Sequential(), channels * height * width
    for outputs in hidden:
        fc.append(nn.Linear(inputs, outputs))
        if norm:
            fc.append(nn.BatchNorm1d(outputs))
        fc.append(nn.ReLU())
        inputs = outputs
    return SplitNet(flat, fc, nn.Linear(inputs, classes))
