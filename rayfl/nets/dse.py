"""Nets that take domain-specific skew apart from features, after FDSE (Wang et al., CVPR 2025).

A DSE block makes a part of its channels with an ordinary layer, the domain-agnostic feature extractor (DFE),
and derives the others from them one by one with cheap operations, the domain-specific skew eraser (DSE).
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from rayfl.errors import BadValue
from rayfl.nets.alexnet import alexnet_stages
from rayfl.nets.base import ImageArchitecture
from rayfl.nets.convolutional import assemble
from rayfl.nets.resnet import put_stem, split_resnet
from rayfl.nets.split import Shape, SplitNet
from rayfl.nets.vit import ViT
from rayfl.settings import at_least

Act = Literal["relu", "none"]


class DSEBlock(nn.Module):
    """A layer of T channels taken apart into DFE and DSE (eq. 3).

    ``dfe_conv`` makes a = ceil(T / G) channels. After ``dse_bn`` and the activation, ``dse_conv`` derives
    G - 1 more from each of them alone; T channels are kept. ``dfe_bias`` is added, ``dfe_bn`` normalises, and
    a ReLU follows.

    Args:
        dfe_conv: the ordinary layer.
        dse_bn: its normalisation.
        dse_conv: the layer that works on each channel alone.
        dfe_bn: the normalisation of all channels.
        act: the activation after ``dse_bn``: ``relu``, or ``none`` as in the public code.
        relu: whether a ReLU follows ``dfe_bn``.
    """

    def __init__(
        self,
        dfe_conv: nn.Module,
        dse_bn: nn.Module,
        dse_conv: nn.Module,
        dfe_bn: nn.BatchNorm1d | nn.BatchNorm2d,
        act: Act,
        relu: bool,
    ) -> None:
        super().__init__()
        self.dfe_conv = dfe_conv
        self.dse_bn = dse_bn
        self.act = nn.ReLU() if act == "relu" else nn.Identity()
        self.dse_conv = dse_conv
        self.dfe_bias = nn.Parameter(torch.zeros(dfe_bn.num_features))
        self.dfe_bn = dfe_bn
        self.relu = nn.ReLU() if relu else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return T channels: [B, T, H, W] for a convolution, [B, T] for a linear layer."""
        z = self.act(self.dse_bn(self.dfe_conv(x)))
        z = torch.cat([z, self.derive_features(z)], 1)[:, : len(self.dfe_bias)]
        z = z + self.dfe_bias.view(-1, *[1] * (z.dim() - 2))
        out: Tensor = self.relu(self.dfe_bn(z))
        return out

    def derive_features(self, z: Tensor) -> Tensor:
        """Return the a (G - 1) channels that are derived from a channels."""
        out: Tensor = self.dse_conv(z)
        return out


class DSEConv(DSEBlock):
    """A convolution as a DSE block: ``dse_conv`` is depth-wise, with a kernel of ``dw`` pixels."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        stride: int = 1,
        padding: int = 0,
        *,
        G: int,
        dw: int,
        act: Act,
        relu: bool = True,
    ) -> None:
        a = -(-outputs // G)
        super().__init__(
            nn.Conv2d(inputs, a, kernel, stride, padding),
            nn.BatchNorm2d(a),
            nn.Conv2d(a, a * (G - 1), dw, padding=dw // 2, groups=a, bias=False),
            nn.BatchNorm2d(outputs),
            act,
            relu,
        )


class DSELinear(DSEBlock):
    """A linear layer as a DSE block, as if on a map of one pixel: ``dse_conv`` scales each feature."""

    def __init__(self, inputs: int, outputs: int, *, G: int, act: Act, relu: bool = True) -> None:
        a = -(-outputs // G)
        super().__init__(
            nn.Linear(inputs, a),
            nn.BatchNorm1d(a),
            nn.Conv1d(a, a * (G - 1), 1, groups=a, bias=False),
            nn.BatchNorm1d(outputs),
            act,
            relu,
        )

    def derive_features(self, z: Tensor) -> Tensor:
        """Return the derived features, [B, a (G - 1)], of features z, [B, a]."""
        return super().derive_features(z[..., None]).flatten(1)


def dse_blocks(net: nn.Module) -> dict[str, DSEBlock]:
    """Return the DSE blocks of a net by name, in the order in which data pass through them."""
    return {name: module for name, module in net.named_modules() if isinstance(module, DSEBlock)}


class _Convolutional(ImageArchitecture):
    """What nets with convolutions as DSE blocks have in common."""

    G: Annotated[int, at_least(2)] = 2
    """Channels that become of one channel of the DFE."""
    dw: Annotated[int, at_least(1)] = 3
    """Side of the kernel of the depth-wise convolutions, odd."""
    act: Act = "relu"
    """The activation after ``dse_bn``: ``relu``, or ``none`` as in the public code."""

    def __post_init__(self) -> None:
        if self.dw % 2 == 0:
            raise BadValue("net.dw", f"is {self.dw}", "it must be odd")

    def _conv(self, *sizes: int) -> list[nn.Module]:
        """Return the DSE block of a convolution of these inputs, outputs, kernel, stride and padding."""
        return [DSEConv(*sizes, G=self.G, dw=self.dw, act=self.act)]

    def _linear(self, inputs: int, outputs: int) -> list[nn.Module]:
        """Return the DSE block of a linear layer."""
        return [DSELinear(inputs, outputs, G=self.G, act=self.act)]


class FDSEAlexNet(_Convolutional):
    """``AlexNet`` with a width of 1024, of DSE blocks (FDSE, Table A6).

    6,508,010 parameters for 3 channels and 10 classes, 9,408 of them in the DSE, and 9,600 running
    statistics, 6,400 of ``dfe_bn`` and 3,200 of ``dse_bn``.
    """

    padding: Literal["paper", "code"] = "paper"
    """Of the last three convolutions: 1 in the ``paper``, 0 in the public ``code``, which needs images of
    159x159 pixels at least.
    """

    def build(self, shape: Shape, classes: int) -> SplitNet:
        """Build the net."""
        conv = alexnet_stages(shape[0], self._conv, late_padding=1 if self.padding == "paper" else 0)
        return assemble(self, conv, (1024, 1024), shape, classes, self._linear)


class DSECNN(_Convolutional):
    """A small net of DSE blocks for small images: 32, 64, 128. It is in no paper.

    230,298 parameters for images of 3x28x28 and 10 classes, 720 of them in the DSE.
    """

    def build(self, shape: Shape, classes: int) -> SplitNet:
        """Build the net."""
        conv: list[nn.Module] = []
        for inputs, outputs in ((shape[0], 32), (32, 64)):
            conv += [*self._conv(inputs, outputs, 5, 1, 2), nn.MaxPool2d(2)]
        return assemble(self, conv, (128,), shape, classes, self._linear)


class DSEResNet50(_Convolutional):
    """ResNet50 whose blocks end in a DSE block instead of their last 1x1 convolution with BatchNorm.

    The ReLU of the DSE block is left out: that of the residual block follows the addition. FDSE names this
    recipe without details; no code of it is public.
    """

    def build(self, shape: Shape, classes: int) -> SplitNet:
        """Build the net."""
        from torchvision.models import resnet50  # here: it takes seconds to import
        from torchvision.models.resnet import Bottleneck

        net = resnet50(num_classes=classes)
        put_stem(net, shape)
        for block in net.modules():
            if isinstance(block, Bottleneck):
                inputs, outputs = block.conv3.in_channels, block.conv3.out_channels
                last = DSEConv(inputs, outputs, 1, G=self.G, dw=self.dw, act=self.act, relu=False)
                block.conv3, block.bn3 = last, nn.Identity()
        return split_resnet(net)


class DSEViT(ViT):
    """``ViT`` whose feed-forward parts end in a DSE block, token by token, without its ReLU.

    FDSE names this recipe without details; no code of it is public.
    """

    G: Annotated[int, at_least(2)] = 2
    """Features that become of one feature of the DFE."""
    act: Act = "relu"
    """The activation after ``dse_bn``: ``relu``, or ``none`` as in the public code."""

    def last(self, inputs: int, outputs: int) -> nn.Module:
        """Return the DSE block of a feed-forward part."""
        return DSELinear(inputs, outputs, G=self.G, act=self.act, relu=False)
