"""Plain convolutional nets of the papers: blocks of convolution and pooling, hidden layers, head."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Literal

from torch import nn

from rayfl.nets.base import Architecture, ImageArchitecture
from rayfl.nets.split import Shape, SplitNet, flat_features
from rayfl.settings import at_least


class LeNet(ImageArchitecture):
    """LeNet (6, 16, 120, 84) with ReLU and max pooling, after LeCun et al., Proc. IEEE 1998.

    62,006 parameters for images of 3x32x32 and 10 classes.
    """

    def build(self, shape: Shape, classes: int) -> SplitNet:
        """Build the net."""
        return _lenet(self, shape, classes)


class MOONCNN(ImageArchitecture):
    """``LeNet`` with the projection head of MOON (Li, He and Song, CVPR 2021) between hidden layers and head:
    84 to 84 with ReLU, and to 256 features.

    92,626 parameters for images of 3x32x32 and 10 classes.
    """

    features: Annotated[int, at_least(1)] = 256
    """What the projection head puts out."""

    def build(self, shape: Shape, classes: int) -> SplitNet:
        """Build the net."""
        net = _lenet(self, shape, classes)
        width = net.head.in_features
        projection = (nn.Linear(width, width), nn.ReLU(), nn.Linear(width, self.features))
        return SplitNet(
            net.conv, nn.Sequential(*net.fc.children(), *projection), nn.Linear(self.features, classes)
        )


class CNN(ImageArchitecture):
    """The CIFAR net of Fed-CO2 (Cai et al., NeurIPS 2023) without BatchNorm: 16, 32, 120, 84.

    121,182 parameters for images of 3x32x32 and 10 classes, 128,832 for 100 classes.
    """

    def build(self, shape: Shape, classes: int) -> SplitNet:
        """Build the net."""
        return cnn(self, shape, classes, norm=False)


class CNNB(ImageArchitecture):
    """``CNN`` with BatchNorm after every hidden layer, as FedBN and Fed-CO2 use it on CIFAR.

    504 affine parameters and 504 running statistics more than ``CNN``.
    """

    def build(self, shape: Shape, classes: int) -> SplitNet:
        """Build the net."""
        return cnn(self, shape, classes, norm=True)


class DigitModel(ImageArchitecture):
    """The six-layer digits net of FedBN (Li et al., ICLR 2021): 64, 64, 128, 2048, 512, with BatchNorm.

    14,219,210 parameters for images of 3x28x28 and 10 classes: 312,768 in ``conv``, 13,906,442 after it.
    """

    fc_norm: bool = True
    """Whether the hidden fully connected layers have BatchNorm: 5,120 parameters and as many running
    statistics. In Fed-CO2's code some methods are run without.
    """

    def build(self, shape: Shape, classes: int) -> SplitNet:
        """Build the net."""
        conv = [
            *_conv(shape[0], 64, 5, padding=2, norm=True),
            *_conv(64, 64, 5, padding=2, norm=True),
            *_conv(64, 128, 5, padding=2, norm=True, pool=False),
        ]
        return assemble(self, conv, (2048, 512), shape, classes, partial(hidden_layer, norm=self.fc_norm))


class FedAvgCNN(ImageArchitecture):
    """The four-layer CNN of FedAvg (McMahan et al., AISTATS 2017), here as for CIFAR-100: 32, 64, 512.

    883,668 parameters for images of 3x32x32 and 20 classes.
    """

    def build(self, shape: Shape, classes: int) -> SplitNet:
        """Build the net."""
        conv = [*_conv(shape[0], 32, 5), *_conv(32, 64, 5)]
        return assemble(self, conv, (512,), shape, classes)


_FEDGH = {1: (32, 2000), 2: (16, 2000), 3: (32, 1000), 4: (32, 800), 5: (32, 500)}
"""Number of a CNN of FedGH -> filters of its second convolution, width of its first hidden layer."""


class FedGHCNN(ImageArchitecture):
    """CNN-1 to CNN-5 of FedGH (Yi et al., MM 2023) and DC-PFL (Tang et al., IJCAI 2024): 500 features each.

    2,621,558, 1,815,142, 1,320,558, 1,060,358 and 670,058 parameters for images of 3x32x32 and 10 classes.
    """

    number: Literal[1, 2, 3, 4, 5] = 1
    """Which of the five."""

    def build(self, shape: Shape, classes: int) -> SplitNet:
        """Build the net."""
        filters, width = _FEDGH[self.number]
        conv = [*_conv(shape[0], 16, 5), *_conv(16, filters, 5)]
        return assemble(self, conv, (width, 500), shape, classes)


class PFLResearchCNN(ImageArchitecture):
    """The CIFAR-10 net of the benchmarks of pfl-research (Granqvist et al., NeurIPS 2024): 32, 64, 128.

    3x3 convolutions without padding, dropout of 0.25 before the flatten and 0.5 before the head, and weights
    by Glorot and Bengio, uniform. 1,626,442 parameters for images of 3x32x32 and 10 classes.
    """

    def build(self, shape: Shape, classes: int) -> SplitNet:
        """Build the net."""
        conv = [*_conv(shape[0], 32, 3, pool=False), *_conv(32, 64, 3), nn.Dropout(0.25)]
        net = assemble(self, conv, (128,), shape, classes)
        for layer in net.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
        return SplitNet(net.conv, nn.Sequential(*net.fc.children(), nn.Dropout(0.5)), net.head)


def _lenet(net: Architecture, shape: Shape, classes: int) -> SplitNet:
    conv = [*_conv(shape[0], 6, 5), *_conv(6, 16, 5)]
    return assemble(net, conv, (120, 84), shape, classes)


def cnn(net: Architecture, shape: Shape, classes: int, norm: bool) -> SplitNet:
    """Build what ``CNN`` and ``CNNB`` are, for a net that has this name or begins like them.

    Args:
        net: for the error where images are too small.
        shape: channels, height and width of an image.
        classes: number of classes.
        norm: whether BatchNorm follows every hidden layer.
    """
    conv = [*_conv(shape[0], 16, 5, norm=norm), *_conv(16, 32, 5, norm=norm)]
    return assemble(net, conv, (120, 84), shape, classes, partial(hidden_layer, norm=norm))


def _conv(
    inputs: int, outputs: int, kernel: int, padding: int = 0, norm: bool = False, pool: bool = True
) -> list[nn.Module]:
    """Return a convolution with BatchNorm and 2x2 max pooling where asked, and ReLU.

    The papers have ReLU before the pooling. The two commute, to the bit and in their gradients too, and in
    this order ReLU has a quarter of the numbers to go through: a training step of LeNet takes 6 % less.
    """
    layers: list[nn.Module] = [nn.Conv2d(inputs, outputs, kernel, padding=padding)]
    if norm:
        layers.append(nn.BatchNorm2d(outputs))
    if pool:
        layers.append(nn.MaxPool2d(2))
    layers.append(nn.ReLU())
    return layers


def hidden_layer(inputs: int, outputs: int, norm: bool = False) -> list[nn.Module]:
    """Return a hidden layer with BatchNorm where asked, and ReLU."""
    return [nn.Linear(inputs, outputs), *([nn.BatchNorm1d(outputs)] if norm else []), nn.ReLU()]


def assemble(
    net: Architecture,
    conv: list[nn.Module],
    hidden: Sequence[int],
    shape: Shape,
    classes: int,
    layers: Callable[[int, int], list[nn.Module]] = hidden_layer,
) -> SplitNet:
    """Append hidden layers and head, whose sizes follow from the image.

    Args:
        net: for the error where images are too small.
        conv: convolutions and poolings.
        hidden: units of the hidden layers.
        shape: channels, height and width of an image.
        classes: number of classes.
        layers: make a hidden layer, with what follows it, from the numbers of its inputs and of its units.
    """
    flat = nn.Sequential(*conv, nn.Flatten())
    fc, inputs = nn.Sequential(), flat_features(str(net), flat, shape)
    for outputs in hidden:
        fc.extend(layers(inputs, outputs))
        inputs = outputs
    return SplitNet(flat, fc, nn.Linear(inputs, classes))
