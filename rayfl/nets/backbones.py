"""MobileNetV2, EfficientNet-B0 and DenseNet121 as torchvision builds them, without dropout.

All take ``stem`` and ``pretrained``. The ``small`` stem, for small images, does not shrink them; ``original``
is that of the papers, for 224x224 pixels; ``auto`` is ``original`` for pretrained nets, else ``small``.
Pretrained nets start from torchvision's ImageNet weights, all but the head; their file must be at hand.

torchvision is imported where a net is built: that takes seconds, and only these nets need it.
"""

from collections import OrderedDict
from typing import Any, Literal

from torch import nn

from rayfl.errors import UserError
from rayfl.nets.pretrained import load_pretrained
from rayfl.nets.split import Shape, SplitNet

Stem = Literal["auto", "small", "original"]


def mobilenet_v2(shape: Shape, classes: int, stem: Stem = "auto", pretrained: bool = False) -> SplitNet:
    """MobileNetV2 (Sandler et al., CVPR 2018): 1,280 features.

    2,236,682 parameters for 3 channels and 10 classes. The small stem has a stride of 1 instead of 2.
    """
    from torchvision.models import MobileNet_V2_Weights
    from torchvision.models import mobilenet_v2 as build

    net = build(num_classes=classes)
    return _mobile(net, MobileNet_V2_Weights.IMAGENET1K_V1, "MobileNetV2", shape, stem, pretrained)


def efficientnet_b0(shape: Shape, classes: int, stem: Stem = "auto", pretrained: bool = False) -> SplitNet:
    """EfficientNet-B0 (Tan and Le, ICML 2019): 1,280 features, no stochastic depth.

    4,020,358 parameters for 3 channels and 10 classes. The small stem has a stride of 1 instead of 2.
    """
    from torchvision.models import EfficientNet_B0_Weights
    from torchvision.models import efficientnet_b0 as build

    net = build(num_classes=classes, stochastic_depth_prob=0.0)  # it would draw from a global generator
    return _mobile(net, EfficientNet_B0_Weights.IMAGENET1K_V1, "EfficientNet-B0", shape, stem, pretrained)


def densenet121(shape: Shape, classes: int, stem: Stem = "auto", pretrained: bool = False) -> SplitNet:
    """DenseNet121 (Huang et al., CVPR 2017): 1,024 features.

    6,964,106 parameters for 3 channels and 10 classes with the original stem, a 7x7 convolution of stride 2
    and max pooling; 7,680 less with the small one, a 3x3 convolution of stride 1.

    Raises:
        UserError: images are smaller than 8x8 pixels, or 29x29 with the original stem; or see
            ``load_pretrained``.
    """
    from torchvision.models import DenseNet121_Weights
    from torchvision.models import densenet121 as build

    name, small = "DenseNet121", _small("DenseNet121", stem, pretrained)
    least = 8 if small else 29  # three poolings halve what the stem leaves
    if min(shape[1:]) < least:
        asked = name if small else f"{name}(stem=original)"
        raise UserError(
            f"net {asked!r} needs images of at least {least}x{least} pixels, these have "
            f"{shape[1]}x{shape[2]}; choose another net or larger images"
        )
    net = build(num_classes=classes)
    if small:
        net.features.conv0 = nn.Conv2d(shape[0], 64, 3, padding=1, bias=False)
        del net.features.pool0
    else:
        net.features.conv0 = nn.Conv2d(shape[0], 64, 7, stride=2, padding=3, bias=False)
    nn.init.kaiming_normal_(net.features.conv0.weight)  # as in the rest of the net
    if pretrained:
        load_pretrained(net, DenseNet121_Weights.IMAGENET1K_V1, name, shape)
    net.features.add_module("relu5", nn.ReLU())
    return _split(net.features, net.classifier)


def _mobile(net: Any, weights: Any, name: str, shape: Shape, stem: Stem, pretrained: bool) -> SplitNet:
    """Return MobileNetV2 or EfficientNet, which begin alike, with another first convolution."""
    stride = 1 if _small(name, stem, pretrained) else 2
    first = nn.Conv2d(shape[0], 32, 3, stride=stride, padding=1, bias=False)
    nn.init.kaiming_normal_(first.weight, mode="fan_out")  # as in the rest of the net
    net.features[0][0] = first
    if pretrained:
        load_pretrained(net, weights, name, shape)
    return _split(net.features, net.classifier[-1])


def _small(name: str, stem: str, pretrained: bool) -> bool:
    if stem not in ("auto", "small", "original"):
        raise UserError(f"net {name!r}: option stem is {stem!r}: it must be auto, small or original")
    if pretrained and stem == "small":
        raise UserError(f"net {name!r}: there are no pretrained weights for stem=small, use stem=original")
    return stem == "small" or (stem == "auto" and not pretrained)


def _split(features: nn.Sequential, head: nn.Linear) -> SplitNet:
    for module in features.modules():
        if isinstance(module, nn.ReLU | nn.ReLU6 | nn.SiLU):
            module.inplace = False  # overwriting inputs does not go together with vmap
    layers = OrderedDict[str, nn.Module](layers=features, mean=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten())
    return SplitNet(nn.Sequential(layers), nn.Sequential(), head)
