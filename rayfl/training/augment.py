"""Augmentation of training batches: flipped, turned, cropped and erased images.

Every pixel of a new image shows one pixel of the old one, or nothing. What is drawn depends on the step's key
and the place in the batch alone, and is drawn on the CPU; the rest is integer and single float32 operations
per pixel. So the loop and stacks give the same bits.
"""

import math

import torch
from torch import Tensor

from rayfl.data.dataset import Augmentation
from rayfl.training.noise import fold, uniform

_PURPOSE = 0x61756776  # tells these draws from what a loss may draw with the same key
_DRAWS = 8  # numbers per image


def moved(images: Tensor, keys: Tensor, kind: Augmentation) -> tuple[Tensor, Tensor]:
    """Return augmented images, and where they show nothing.

    ``fedbn``: a flip from left to right in half of the cases, and a turn by -30 to 30 degrees about the
    middle without smoothing (Li et al., ICLR 2021). ``fedgh``: a flip likewise; in half of the cases a
    rectangle of 4 to 20 % of the area with a ratio of sides between 1/2 and 2 is erased, its sides rounded to
    whole pixels; and a shift by up to 4 pixels in both directions (random erasing and a crop of the image
    with a border, Yi et al., MM 2023). ``reflect``: a flip likewise, and a shift by up to 4 pixels in both
    directions, with the image's reflection where it would end (Li et al., ICDE 2022).

    Args:
        images: [N, C, H, W] of any dtype.
        keys: int64 [] or [K] on the CPU, the keys of K steps; each is that of N / K images in order.
        kind: which augmentation.

    Returns:
        Images like the given ones, and bool [N, 1, H, W], true where they are to be blank (what they hold
        there has no meaning).
    """
    n, channels, height, width = images.shape
    keys = fold(keys.reshape(-1), torch.tensor(_PURPOSE))
    draws = torch.cat([uniform(key, (n // len(keys), _DRAWS)) for key in keys]).double()
    flip = (draws[:, 0] < 0.5).int().to(images.device)[:, None, None]
    rule = {"fedbn": _turned, "fedgh": _shifted, "reflect": _reflected}[kind]
    rows, columns, erased = rule(draws[:, 1:], height, width, images.device)
    y, x = rows.clamp(0, height - 1), columns.clamp(0, width - 1)
    blank = (y != rows).logical_or_(x != columns)
    if erased is not None:
        blank.logical_or_(erased)
    x.mul_(1 - 2 * flip).add_(flip * (width - 1))  # where flipped, column x is column width - 1 - x
    source = y.mul_(width).add_(x).long().view(n, 1, -1).expand(-1, channels, -1)
    return images.flatten(2).gather(2, source).view(images.shape), blank[:, None]


Source = tuple[Tensor, Tensor, Tensor | None]
"""Row and column that every pixel shows, int32 [N, H, W], and where it is erased, if anywhere."""


def _turned(draws: Tensor, height: int, width: int, device: torch.device) -> Source:
    """Turn about the middle."""
    angle = (2 * draws[:, 0] - 1) * math.radians(30)
    cos = angle.cos().float().to(device)[:, None, None]
    sin = angle.sin().float().to(device)[:, None, None]
    y = (torch.arange(height, device=device) + 0.5 - height / 2)[:, None]  # of the pixels' middles
    x = torch.arange(width, device=device) + 0.5 - width / 2
    rows = (sin * x + cos * y).add_(height / 2).floor_().int()
    columns = (cos * x - sin * y).add_(width / 2).floor_().int()
    return rows, columns, None


def _shifted(draws: Tensor, height: int, width: int, device: torch.device) -> Source:
    """Erase a rectangle, then shift."""
    erase, area, ratio, top, left, down, right = draws.unbind(1)
    area = height * width * (0.04 + 0.16 * area)
    ratio = (math.log(0.5) + 2 * math.log(2) * ratio).exp()
    tall = (area * ratio).sqrt().round().clamp(max=height)
    wide = (area / ratio).sqrt().round().clamp(max=width)
    top, left = (top * (height - tall + 1)).floor(), (left * (width - wide + 1)).floor()
    tall = tall.where(erase < 0.5, 0)
    down, right = (down * 9).floor() - 4, (right * 9).floor() - 4

    def on_device(numbers: Tensor) -> Tensor:
        return numbers.int().to(device)[:, None, None]

    y = torch.arange(height, dtype=torch.int32, device=device)[:, None] + on_device(down)
    x = torch.arange(width, dtype=torch.int32, device=device) + on_device(right)
    inside_y = (y >= on_device(top)) & (y < on_device(top + tall))
    inside_x = (x >= on_device(left)) & (x < on_device(left + wide))
    shape = (len(draws), height, width)
    return y.expand(shape), x.expand(shape), inside_y & inside_x


def _reflected(draws: Tensor, height: int, width: int, device: torch.device) -> Source:
    """Shift, and reflect at the edges."""
    down, right = ((draws[:, k] * 9).floor().int().to(device)[:, None, None] - 4 for k in (0, 1))
    y = torch.arange(height, dtype=torch.int32, device=device)[:, None] + down
    x = torch.arange(width, dtype=torch.int32, device=device) + right
    shape = (len(draws), height, width)
    return _mirrored(y, height).expand(shape), _mirrored(x, width).expand(shape), None


def _mirrored(place: Tensor, size: int) -> Tensor:
    """Return which of so many pixels a place outside shows: one beyond the last shows the last but one."""
    return size - 1 - (size - 1 - place.abs()).abs()
