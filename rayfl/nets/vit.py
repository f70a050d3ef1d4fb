"""The small vision transformer of FDSE's public code (Wang et al., CVPR 2025), from scratch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor, nn

from rayfl.errors import UserError
from rayfl.nets.split import Shape, SplitNet

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
        return torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.positions


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


def vit(shape: Shape, classes: int, patch: int = 32, depth: int = 6) -> SplitNet:
    """A small vision transformer: 64 numbers a token, 8 heads, BatchNorm in the feed-forward parts.

    1,096,522 parameters for images of 3x256x256 and 10 classes.

    Args:
        shape: channels, height and width of an image, in pixels.
        classes: number of classes.
        patch: side of a patch in pixels, at least 1.
        depth: number of transformer blocks, at least 1.

    Raises:
        UserError: an option is none of the above, or patches do not tile the images.
    """
    return split_vit("ViT", shape, classes, patch, depth, nn.Linear)


def split_vit(
    name: str, shape: Shape, classes: int, patch: int, depth: int, last: Callable[[int, int], nn.Module]
) -> SplitNet:
    """Return a vision transformer.

    Args:
        name: for errors.
        shape: channels, height and width of an image, in pixels.
        classes: number of classes.
        patch: side of a patch in pixels.
        depth: number of blocks.
        last: makes the second layer of every feed-forward part of its inputs and outputs.

    Raises:
        UserError: an option cannot be, or patches do not tile the images.
    """
    channels, height, width = shape
    for option, value in (("patch", patch), ("depth", depth)):
        if value < 1:
            raise UserError(f"net {name!r}: option {option} is {value}: it must be at least 1")
    if height % patch or width % patch:
        sides = range(1, min(patch, height, width) + 1)
        fits = max(side for side in sides if height % side == width % side == 0)
        raise UserError(
            f"net {name!r} cuts images into patches of {patch}x{patch} pixels, and these have "
            f"{height}x{width}: choose images whose sides are multiples of {patch}, or another patch, as in "
            f"{name}(patch={fits})"
        )
    size = patch**2 * channels
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        patches=Patches(patch),
        patch_norm=nn.LayerNorm(size),
        embed=nn.Linear(size, DIM),
        token_norm=nn.LayerNorm(DIM),
        tokens=Tokens((height // patch) * (width // patch)),
    )
    for number in range(1, depth + 1):
        layers[f"block{number}"] = Block(last(HIDDEN, DIM))
    layers.update(norm=nn.LayerNorm(DIM), first=FirstToken())
    return SplitNet(nn.Sequential(layers), nn.Sequential(), nn.Linear(DIM, classes))
