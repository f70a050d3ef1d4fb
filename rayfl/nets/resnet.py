"""ResNet18 (He et al., CVPR 2016) from scratch, with the stem for small images or the original one."""

from collections import OrderedDict

from torch import nn

from rayfl.nets.split import Shape, SplitNet


def resnet18(shape: Shape, classes: int) -> SplitNet:
    """ResNet18 with the stem for small images: a 3x3 convolution of stride 1 and no pooling.

    11,173,962 parameters for 3 channels and 10 classes.
    """
    return _resnet18(shape, classes, small=True)


def resnet18_7x7(shape: Shape, classes: int) -> SplitNet:
    """ResNet18 with its original stem: a 7x7 convolution of stride 2 and max pooling.

    11,181,642 parameters for 3 channels and 10 classes, 9,600 of them BatchNorm's.
    """
    return _resnet18(shape, classes, small=False)


def _resnet18(shape: Shape, classes: int, small: bool) -> SplitNet:
    from torchvision.models import (
        resnet18 as build,
    )  # here: it takes seconds to import, and only ResNet needs it

    net = build(num_classes=classes)
    if small:
        stem = nn.Conv2d(shape[0], 64, 3, padding=1, bias=False)
    else:
        stem = nn.Conv2d(shape[0], 64, 7, stride=2, padding=3, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")  # as in the rest of the net
    for module in net.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False  # overwriting inputs does not go together with vmap
    layers: OrderedDict[str, nn.Module] = OrderedDict(stem=stem, norm=net.bn1, relu=net.relu)
    if not small:
        layers["pool"] = net.maxpool
    for number in range(1, 5):
        layers[f"stage{number}"] = getattr(net, f"layer{number}")
    layers.update(mean=net.avgpool, flatten=nn.Flatten())
    return SplitNet(nn.Sequential(layers), nn.Sequential(), net.fc)
