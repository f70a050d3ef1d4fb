"""ResNet18 and ResNet50 (He et al., CVPR 2016)."""

from collections import OrderedDict
from typing import Any

from torch import nn

from rayfl.nets.backbones import Backbone
from rayfl.nets.base import ImageArchitecture
from rayfl.nets.split import Shape, SplitNet


class ResNet18(Backbone):
    """ResNet18. The small stem is a 3x3 convolution of stride 1 without pooling.

    11,173,962 parameters for 3 channels and 10 classes; 11,181,642 with the original stem, a 7x7 convolution
    of stride 2 and max pooling. 9,600 of them are BatchNorm's.
    """

    def build(self, shape: Shape, classes: int) -> SplitNet:
        """Build the net."""
        from torchvision.models import ResNet18_Weights, resnet18  # here: it takes seconds to import

        net = resnet18(num_classes=classes)
        put_stem(net, shape, self.small)
        self.load(net, ResNet18_Weights.IMAGENET1K_V1, shape)
        return split_resnet(net)


class ResNet50(ImageArchitecture):
    """ResNet50 with its original stem.

    23,528,522 parameters for 3 channels and 10 classes, 53,120 of them BatchNorm's.
    """

    def build(self, shape: Shape, classes: int) -> SplitNet:
        """Build the net."""
        from torchvision.models import resnet50  # here: it takes seconds to import

        net = resnet50(num_classes=classes)
        put_stem(net, shape)
        return split_resnet(net)


def put_stem(net: Any, shape: Shape, small: bool = False) -> None:
    """Give a ResNet of torchvision a stem for these images: for ``small`` ones without stride and pooling."""
    if small:
        stem = nn.Conv2d(shape[0], 64, 3, padding=1, bias=False)
        net.maxpool = None
    else:
        stem = nn.Conv2d(shape[0], 64, 7, stride=2, padding=3, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")  # as in the rest of the net
    net.conv1 = stem


def split_resnet(net: Any) -> SplitNet:
    """Return a ResNet of torchvision in the parts of a ``SplitNet``."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(stem=net.conv1, norm=net.bn1, relu=net.relu)
    if net.maxpool is not None:
        layers["pool"] = net.maxpool
    for number in range(1, 5):
        layers[f"stage{number}"] = getattr(net, f"layer{number}")
    layers.update(mean=net.avgpool, flatten=nn.Flatten())
    return SplitNet(nn.Sequential(layers), nn.Sequential(), net.fc)
