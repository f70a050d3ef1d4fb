"""Augmentation of training batches: flipped, turned, cropped and erased images.

Every pixel of a new image shows one pixel of the old one, or nothing. What is drawn depends on the step's key
and the place in the batch alone, and is drawn on the CPU; the rest is integer and single float32 operations
per pixel. So the loop and stacks give the same bits. What is drawn for all steps of a fit moves to a GPU at
once, because it finishes its work for each move.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rayfl.data.dataset import Augmentation
from rayfl.training.noise import fold, uniform

_PURPOSE = 0x61756776  # tells these draws from what a loss may draw with the same key
_DRAWS = 8  # numbers per image


def drawn(keys: Tensor, count: int, height: int, width: int, kind: Augmentation) -> Tensor:
    """Return what decides how the images of a batch are changed, float32 [count, k] on the CPU.

    ``fedbn``: a flip from left to right in half of the cases, and a turn by -30 to 30 degrees about the
    middle without smoothing (Li et al., ICLR 2021). ``fedgh``: a flip likewise; in half of the cases a
    rectangle of 4 to 20 % of the area with a ratio of sides between 1/2 and 2 is erased, its sides rounded to
    whole pixels; and a shift by up to 4 pixels in both directions (random erasing and a crop of the image
    with a border, Yi et al., MM 2023). ``reflect``: a flip likewise, and a shift by up to 4 pixels in both
    directions, with the image's reflection where it would end (Li et al., ICDE 2022).

    Args:
        keys: int64 [] or [K] on the CPU, the keys of K steps; each is that of count / K images in order.
        count: images.
        height: of an image.
        width: of an image.
        kind: which augmentation.
    """
    keys = fold(keys.reshape(-1), torch.tensor(_PURPOSE))
    draws = torch.cat([uniform(key, (count // len(keys), _DRAWS)) for key in keys]).double()
    rule = {"fedbn": _turn, "fedgh": _erasure, "reflect": _shift}[kind]
    return torch.column_stack([draws[:, 0] < 0.5, *rule(draws[:, 1:], height, width)]).float()


def moved(images: Tensor, numbers: Tensor, kind: Augmentation) -> tuple[Tensor, Tensor]:
    """Return augmented images, and where they show nothing.

    Args:
        images: [N, C, H, W] of any dtype.
        numbers: what :func:`drawn` has returned for them, where the images are.
        kind: which augmentation.

    Returns:
        Images like the given ones, and bool [N, 1, H, W], true where they are to be blank (what they hold
        there has no meaning).
    """
    n, channels, height, width = images.shape
    flip, *drawn = (column[:, None, None] for column in numbers.unbind(1))
    rule = {"fedbn": _turned, "fedgh": _shifted, "reflect": _reflected}[kind]
    rows, columns, erased = rule(drawn, height, width)
    y, x = rows.clamp(0, height - 1), columns.clamp(0, width - 1)
    blank = (y != rows).logical_or_(x != columns)
    if erased is not None:
        blank.logical_or_(erased)
    flip = flip.int()
    x.mul_(1 - 2 * flip).add_(flip * (width - 1))  # where flipped, column x is column width - 1 - x
    source = y.mul_(width).add_(x).long().view(n, 1, -1).expand(-1, channels, -1)
    return images.flatten(2).gather(2, source).view(images.shape), blank[:, None]


Source = tuple[Tensor, Tensor, Tensor | None]
"""Row and column that every pixel shows, int32 [N, H, W], and where it is erased, if anywhere."""


def _turn(draws: Tensor, height: int, width: int) -> list[Tensor]:
    """Return the cosine and the sine of every image's angle."""
    angle = (2 * draws[:, 0] - 1) * math.radians(30)
    return [angle.cos(), angle.sin()]


def _turned(drawn: Sequence[Tensor], height: int, width: int) -> Source:
    """Turn about the middle."""
    cos, sin = drawn
    y = (torch.arange(height, device=cos.device) + 0.5 - height / 2)[:, None]  # of the pixels' middles
    x = torch.arange(width, device=cos.device) + 0.5 - width / 2
    rows = (sin * x + cos * y).add_(height / 2).floor_().int()
    columns = (cos * x - sin * y).add_(width / 2).floor_().int()
    return rows, columns, None


def _erasure(draws: Tensor, height: int, width: int) -> list[Tensor]:
    """Return the shift, and the first row and column of a rectangle and those behind it."""
    erase, area, ratio, top, left, down, right = draws.unbind(1)
    area = height * width * (0.04 + 0.16 * area)
    ratio = (math.log(0.5) + 2 * math.log(2) * ratio).exp()
    tall = (area * ratio).sqrt().round().clamp(max=height)
    wide = (area / ratio).sqrt().round().clamp(max=width)
    top, left = (top * (height - tall + 1)).floor(), (left * (width - wide + 1)).floor()
    tall = tall.where(erase < 0.5, 0)
    return [(down * 9).floor() - 4, (right * 9).floor() - 4, top, left, top + tall, left + wide]


def _shifted(drawn: Sequence[Tensor], height: int, width: int) -> Source:
    """Erase a rectangle, then shift."""
    down, right, top, left, bottom, end = (numbers.int() for numbers in drawn)
    y = torch.arange(height, dtype=torch.int32, device=down.device)[:, None] + down
    x = torch.arange(width, dtype=torch.int32, device=down.device) + right
    inside_y, inside_x = (y >= top) & (y < bottom), (x >= left) & (x < end)
    shape = (len(down), height, width)
    return y.expand(shape), x.expand(shape), inside_y & inside_x


def _shift(draws: Tensor, height: int, width: int) -> list[Tensor]:
    """Return the shift."""
    return [(draws[:, k] * 9).floor() - 4 for k in (0, 1)]


def _reflected(drawn: Sequence[Tensor], height: int, width: int) -> Source:
    """Shift, and reflect at the edges."""
    down, right = (numbers.int() for numbers in drawn)
    y = torch.arange(height, dtype=torch.int32, device=down.device)[:, None] + down
    x = torch.arange(width, dtype=torch.int32, device=down.device) + right
    shape = (len(down), height, width)
    return _mirrored(y, height).expand(shape), _mirrored(x, width).expand(shape), None


def _mirrored(place: Tensor, size: int) -> Tensor:
    """Return which of so many pixels a place outside shows: one beyond the last shows the last but one."""
    return size - 1 - (size - 1 - place.abs()).abs()
