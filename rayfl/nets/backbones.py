"""MobileNetV2, EfficientNet-B0 and DenseNet121 as torchvision builds them, without dropout.

torchvision is imported where a net is built: that takes seconds, and only these nets need it.
"""

import pickle
import re
from collections import OrderedDict
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from rayfl.errors import Conflict, Damaged, Missing
from rayfl.nets.base import ImageArchitecture
from rayfl.nets.split import Shape, SplitNet, flat_features

_HEADS = ("classifier.", "fc.")
_OLD_DENSE = re.compile(r"(denselayer\d+\.(?:norm|conv))\.(\d)")  # names from before they lost a dot


class Backbone(ImageArchitecture):
    """A net of torchvision that has a stem for small images, and pretrained weights."""

    stem: Literal["auto", "small", "original"] = "auto"
    """The first layers: ``small`` for images of about 32x32 pixels, which they do not shrink; ``original`` as
    in the paper, for about 224x224; ``auto`` is ``original`` for pretrained nets, else ``small``.
    """
    pretrained: bool = False
    """Whether to start from torchvision's ImageNet weights, all but the head; their file must be at hand."""

    def __post_init__(self) -> None:
        if self.pretrained and self.stem == "small":
            raise Conflict("net", f"{self}: no pretrained weights fit the small stem", "use the original")

    @property
    def small(self) -> bool:
        """Whether the stem is the one for small images."""
        return self.stem == "small" or (self.stem == "auto" and not self.pretrained)

    def load(self, net: nn.Module, weights: Any, shape: Shape) -> None:
        """Load all of torchvision's weights for a net but its head's, where they are asked for.

        Args:
            net: as torchvision builds it, with the stem that the weights were trained with.
            weights: which weights: a member of one of torchvision's enumerations.
            shape: channels, height and width of an image.
        """
        if not self.pretrained:
            return
        if shape[0] != 3:
            problem = f"{self} takes 3 channels, and the images have {shape[0]}"
            raise Conflict("net", problem, "leave pretrained out")
        path = Path(torch.hub.get_dir(), "checkpoints", Path(weights.url).name)
        if not path.is_file():
            remedy = f"Download {weights.url} to it on every machine, or set TORCH_HOME"
            raise Missing(path, f"is needed for net {self}, and not there", remedy)
        try:
            found = torch.load(path, map_location="cpu", weights_only=True)
            state = {_OLD_DENSE.sub(r"\1\2", n): t for n, t in found.items() if not n.startswith(_HEADS)}
            missing, unexpected = net.load_state_dict(state, strict=False)
        except (RuntimeError, OSError, EOFError, AttributeError, pickle.UnpicklingError) as error:
            raise Damaged(path, f"cannot be loaded for net {self} ({error})") from error
        odd = [*unexpected, *(n for n in missing if not n.startswith(_HEADS))]
        if odd:
            raise Damaged(path, f"is of another net than {self}, see {odd[0]!r}")


class MobileNetV2(Backbone):
    """MobileNetV2 (Sandler et al., CVPR 2018): 1,280 features.

    2,236,682 parameters for 3 channels and 10 classes. The small stem has a stride of 1 instead of 2.
    """

    def build(self, shape: Shape, classes: int) -> SplitNet:
        """Build the net."""
        from torchvision.models import MobileNet_V2_Weights, mobilenet_v2

        return _mobile(self, mobilenet_v2(num_classes=classes), MobileNet_V2_Weights.IMAGENET1K_V1, shape)


class EfficientNetB0(Backbone):
    """EfficientNet-B0 (Tan and Le, ICML 2019): 1,280 features, no stochastic depth.

    4,020,358 parameters for 3 channels and 10 classes. The small stem has a stride of 1 instead of 2.
    """

    def build(self, shape: Shape, classes: int) -> SplitNet:
        """Build the net."""
        from torchvision.models import EfficientNet_B0_Weights, efficientnet_b0

        # stochastic depth would draw from a global generator
        net = efficientnet_b0(num_classes=classes, stochastic_depth_prob=0.0)
        return _mobile(self, net, EfficientNet_B0_Weights.IMAGENET1K_V1, shape)


class DenseNet121(Backbone):
    """DenseNet121 (Huang et al., CVPR 2017): 1,024 features.

    6,964,106 parameters for 3 channels and 10 classes with the original stem, a 7x7 convolution of stride 2
    and max pooling; 7,680 less with the small one, a 3x3 convolution of stride 1.
    """

    def build(self, shape: Shape, classes: int) -> SplitNet:
        """Build the net."""
        from torchvision.models import DenseNet121_Weights, densenet121

        net = densenet121(num_classes=classes)
        if self.small:
            net.features.conv0 = nn.Conv2d(shape[0], 64, 3, padding=1, bias=False)
            del net.features.pool0
        else:
            net.features.conv0 = nn.Conv2d(shape[0], 64, 7, stride=2, padding=3, bias=False)
        flat_features(str(self), nn.Sequential(net.features, nn.Flatten()), shape)  # refuses small images
        nn.init.kaiming_normal_(net.features.conv0.weight)  # as in the rest of the net
        self.load(net, DenseNet121_Weights.IMAGENET1K_V1, shape)
        net.features.add_module("relu5", nn.ReLU())
        return _split_backbone(net.features, net.classifier)


def _mobile(backbone: Backbone, net: Any, weights: Any, shape: Shape) -> SplitNet:
    """Return MobileNetV2 or EfficientNet, which begin alike, with another first convolution."""
    first = nn.Conv2d(shape[0], 32, 3, stride=1 if backbone.small else 2, padding=1, bias=False)
    nn.init.kaiming_normal_(first.weight, mode="fan_out")  # as in the rest of the net
    net.features[0][0] = first
    backbone.load(net, weights, shape)
    return _split_backbone(net.features, net.classifier[-1])


def _split_backbone(features: nn.Sequential, head: nn.Linear) -> SplitNet:
    layers = OrderedDict[str, nn.Module](layers=features, mean=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten())
    return SplitNet(nn.Sequential(layers), nn.Sequential(), head)
