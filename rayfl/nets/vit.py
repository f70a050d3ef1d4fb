"""The small vision transformer of FDSE's public code (Wang et al., CVPR 2025), from scratch."""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated

import torch
from torch import Tensor, nn

from rayfl.errors import Conflict
from rayfl.nets.base import ImageArchitecture
from rayfl.nets.split import Shape, SplitNet
from rayfl.settings import at_least

DIM, HEADS, HEAD_WIDTH, HIDDEN = 64, 8, 64, 128


class Patches(nn.Module):
    """Cuts images [B, C, H, W] into patches and flattens each: [B, patches, side * side * C]."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, x: Tensor) -> Tensor:
        """Return the patches, row by row."""
        batch, channels, height, width = x.shape
        rows, columns = height // self.side, width // self.side
        x = x.reshape(batch, channels, rows, self.side, columns, self.side)
        return x.permute(0, 2, 4, 3, 5, 1).reshape(batch, rows * columns, self.side**2 * channels)


class Tokens(nn.Module):
    """Puts a learnable class token before the patches, and adds learnable positions."""

    def __init__(self, patches: int) -> None:
        super().__init__()
        self.first = nn.Parameter(nn.init.normal_(torch.empty(1, 1, DIM)))
        self.positions = nn.Parameter(nn.init.normal_(torch.empty(1, patches + 1, DIM)))

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, patches + 1, DIM] for [B, patches, DIM]."""
        return torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.positions


class Attention(nn.Module):
    """Self-attention with several heads after LayerNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.inner = nn.Linear(DIM, 3 * HEADS * HEAD_WIDTH, bias=False)
        self.outer = nn.Linear(HEADS * HEAD_WIDTH, DIM)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, tokens, DIM]."""
        batch, tokens, _ = x.shape
        parts = self.inner(self.norm(x)).reshape(batch, tokens, 3, HEADS, HEAD_WIDTH)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ k.transpose(-1, -2) * HEAD_WIDTH**-0.5).softmax(-1)
        out: Tensor = self.outer((weights @ v).transpose(1, 2).reshape(batch, tokens, -1))
        return out


class FeedForward(nn.Module):
    """Two layers applied to every token, with BatchNorm over all tokens of the batch between them.

    Args:
        last: the second layer, [tokens, HIDDEN] to [tokens, DIM].
    """

    def __init__(self, last: nn.Module) -> None:
        super().__init__()
        self.first = nn.Linear(DIM, HIDDEN)
        self.norm = nn.BatchNorm1d(HIDDEN)
        self.act = nn.GELU()
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, tokens, DIM]."""
        out: Tensor = self.last(self.act(self.norm(self.first(x.flatten(0, 1)))))
        return out.reshape(x.shape)


class Block(nn.Module):
    """Attention and feed-forward part, each added to its input."""

    def __init__(self, last: nn.Module) -> None:
        super().__init__()
        self.attention = Attention()
        self.forth = FeedForward(last)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, tokens, DIM]."""
        x = x + self.attention(x)
        out: Tensor = x + self.forth(x)
        return out


class FirstToken(nn.Module):
    """Picks the class token: [B, DIM] of [B, tokens, DIM]."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the class token."""
        return x[:, 0]


class ViT(ImageArchitecture):
    """A small vision transformer: 64 numbers a token, 8 heads, BatchNorm in the feed-forward parts.

    1,096,522 parameters for images of 3x256x256 and 10 classes.
    """

    patch: Annotated[int, at_least(1)] = 32
    """Side of a patch in pixels; patches must tile the images."""
    depth: Annotated[int, at_least(1)] = 6
    """Number of transformer blocks."""

    def last(self, inputs: int, outputs: int) -> nn.Module:
        """Return the second layer of a feed-forward part."""
        return nn.Linear(inputs, outputs)

    def build(self, shape: Shape, classes: int) -> SplitNet:
        """Build the net."""
        (channels, height, width), patch = shape, self.patch
        if height % patch or width % patch:
            problem = (
                f"{self} cuts images into patches of {patch}x{patch} pixels, and these have {height}x{width}"
            )
            raise Conflict("net", problem, "choose a patch that divides both sides, or another image_size")
        size = patch**2 * channels
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            patches=Patches(patch),
            patch_norm=nn.LayerNorm(size),
            embed=nn.Linear(size, DIM),
            token_norm=nn.LayerNorm(DIM),
            tokens=Tokens((height // patch) * (width // patch)),
        )
        for number in range(1, self.depth + 1):
            layers[f"block{number}"] = Block(self.last(HIDDEN, DIM))
        layers.update(norm=nn.LayerNorm(DIM), first=FirstToken())
        return SplitNet(nn.Sequential(layers), nn.Sequential(), nn.Linear(DIM, classes))
