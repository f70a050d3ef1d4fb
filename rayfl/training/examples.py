"""Batches of inputs in the form that nets take, and their augmentation.

Every pixel of an augmented image shows one pixel of the old one, or nothing. What is drawn depends on the
step's key and the place in the batch alone, and is drawn on the CPU; the rest is integer and single float32
operations per pixel. So the loop and stacks give the same bits. What is drawn for all steps of a fit moves to
a GPU at once, because it finishes its work for each move.
"""

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rayfl.data import Dataset
from rayfl.data.dataset import Augmentation
from rayfl.training.noise import fold, uniform
from rayfl.training.state import as_tensor, move_together


class Examples:
    """A dataset's inputs and targets as tensors, delivered by index, normalised, in the layout of the nets.

    Args:
        dataset: the data; its arrays are shared, not copied, on the CPU.
        device: where batches are wanted; on a GPU the whole dataset is moved there where it fits.
        dtype: dtype of the delivered inputs, but for token ids, which stay int64.
        channels_last: deliver images in the channels-last memory layout.
    """

    def __init__(
        self, dataset: Dataset, device: torch.device, dtype: torch.dtype, channels_last: bool
    ) -> None:
        self.device = device
        self._augment = dataset.augment
        self._layout = torch.channels_last if channels_last else torch.contiguous_format
        self.task = dataset.task
        inputs, targets = as_tensor(dataset.inputs), as_tensor(dataset.targets)
        targets = targets if targets.dtype == torch.int64 else targets.to(dtype)
        if device.type != "cpu" and _can_fit(inputs, device):
            inputs, targets = inputs.to(device), targets.to(device)
        self._inputs, self._targets = inputs, targets
        self._dtype = torch.int64 if inputs.dtype == torch.int64 else dtype
        self._images = inputs.dim() == 4
        std = torch.tensor(dataset.std, dtype=torch.float64)
        mean = torch.tensor(dataset.mean, dtype=torch.float64)
        self._scale = (1 / (255 * std)).to(dtype).to(device)[:, None, None]
        self._shift = (-mean / std).to(dtype).to(device)[:, None, None]

    @property
    def home(self) -> torch.device:
        """Where the inputs are, and where indices of batches had better be."""
        return self._inputs.device

    @property
    def bytes_per_input(self) -> int:
        """The size of an input as it is delivered."""
        return max(1, math.prod(self._inputs.shape[1:]) * self._dtype.itemsize)

    def unlabelled(self) -> "Examples":
        """Return the same inputs as they are, never augmented, with targets of which no loss makes anything.

        They are -1, and NaN in the place of numbers.
        """
        examples = copy.copy(self)
        none = math.nan if self._targets.is_floating_point() else -1
        examples._targets = torch.full_like(self._targets, none)
        examples._augment = "none"
        return examples

    def private_copy(self, tensor: Tensor) -> Tensor:
        """Return a copy of a weight for training; one of four dimensions gets the images' memory layout."""
        return tensor.detach().clone(
            memory_format=self._layout if tensor.dim() == 4 else torch.contiguous_format
        )

    def targets(self, indices: Tensor) -> Tensor:
        """Return the targets [n, ...] for indices, int64 [n], both on the CPU."""
        return self._targets[indices.to(self._targets.device)].cpu()

    def normalised(self, inputs: Tensor) -> Tensor:
        """Return inputs as nets take them: bytes scaled to [0, 1] and normalised, others as they are.

        Args:
            inputs: [n, ...], as the dataset has them.
        """
        x = inputs.to(self._dtype)
        return x.mul_(self._scale).add_(self._shift) if inputs.dtype == torch.uint8 else x

    def draw_changes(self, batches: Sequence[Tensor], keys: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """Return what changes the images of each batch at random, moved to the device at once.

        None where the dataset is not augmented.

        Args:
            batches: indices, int64 [B] or [K, B].
            keys: of each batch, int64 [] or [K], on the CPU: those of its steps.
        """
        if self._augment == "none":
            return [None] * len(batches)
        (height, width), kind = self._inputs.shape[2:], self._augment
        pairs = zip(batches, keys, strict=True)
        made = [draw_changes(key, batch.numel(), height, width, kind) for batch, key in pairs]
        return move_together(made, self.device)

    def batch(self, indices: Tensor, drawn: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return inputs and targets.

        Args:
            indices: int64 [...], on the CPU or at ``home``.
            drawn: what changes images at random, see the method of this name; without it they are as they
                are.

        Returns:
            Inputs [..., *shape] and targets [..., *their shape].
        """
        where = indices.reshape(-1).to(self._inputs.device)
        inputs = self._inputs.index_select(0, where).to(self.device)
        blank = None
        if drawn is not None:
            inputs, blank = apply_changes(inputs, drawn, self._augment)
        x = self.normalised(inputs)
        if blank is not None:
            x.masked_fill_(blank, 0)
        y = self._targets.index_select(0, where).to(self.device)
        x = x.contiguous(memory_format=self._layout if self._images else torch.contiguous_format)
        if indices.dim() == 1:
            return x, y
        return x.view(*indices.shape, *x.shape[1:]), y.view(*indices.shape, *y.shape[1:])


def _can_fit(inputs: Tensor, device: torch.device) -> bool:
    """Return whether the inputs take at most half of the GPU memory that this process may still take."""
    free, total = torch.cuda.mem_get_info(device)
    cap = total * torch.cuda.get_per_process_memory_fraction() - torch.cuda.memory_reserved(device)
    return math.prod(inputs.shape) * inputs.element_size() <= min(free, cap) / 2


_PURPOSE = 0x61756776  # tells these draws from what a loss may draw with the same key
_DRAWS = 8  # numbers per image


def draw_changes(keys: Tensor, count: int, height: int, width: int, kind: Augmentation) -> Tensor:
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
    rule = {"fedbn": _rotation_numbers, "fedgh": _erasure_numbers, "reflect": _shift}[kind]
    return torch.column_stack([draws[:, 0] < 0.5, *rule(draws[:, 1:], height, width)]).float()


def apply_changes(images: Tensor, numbers: Tensor, kind: Augmentation) -> tuple[Tensor, Tensor]:
    """Return augmented images, and where they show nothing.

    Args:
        images: [N, C, H, W] of any dtype.
        numbers: what :func:`draw_changes` has returned for them, where the images are.
        kind: which augmentation.

    Returns:
        Images like the given ones, and bool [N, 1, H, W], true where they are to be blank (what they hold
        there has no meaning).
    """
    n, channels, height, width = images.shape
    flip, *drawn = (column[:, None, None] for column in numbers.unbind(1))
    rule = {"fedbn": _rotate_images, "fedgh": _erase_and_shift, "reflect": _shift_and_reflect}[kind]
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


def _rotation_numbers(draws: Tensor, height: int, width: int) -> list[Tensor]:
    """Return the cosine and the sine of every image's angle."""
    angle = (2 * draws[:, 0] - 1) * math.radians(30)
    return [angle.cos(), angle.sin()]


def _rotate_images(drawn: Sequence[Tensor], height: int, width: int) -> Source:
    """Turn about the middle."""
    cos, sin = drawn
    y = (torch.arange(height, device=cos.device) + 0.5 - height / 2)[:, None]  # of the pixels' middles
    x = torch.arange(width, device=cos.device) + 0.5 - width / 2
    rows = (sin * x + cos * y).add_(height / 2).floor_().int()
    columns = (cos * x - sin * y).add_(width / 2).floor_().int()
    return rows, columns, None


def _erasure_numbers(draws: Tensor, height: int, width: int) -> list[Tensor]:
    """Return the shift, and the first row and column of a rectangle and those behind it."""
    erase, area, ratio, top, left, down, right = draws.unbind(1)
    area = height * width * (0.04 + 0.16 * area)
    ratio = (math.log(0.5) + 2 * math.log(2) * ratio).exp()
    tall = (area * ratio).sqrt().round().clamp(max=height)
    wide = (area / ratio).sqrt().round().clamp(max=width)
    top, left = (top * (height - tall + 1)).floor(), (left * (width - wide + 1)).floor()
    tall = tall.where(erase < 0.5, 0)
    return [(down * 9).floor() - 4, (right * 9).floor() - 4, top, left, top + tall, left + wide]


def _erase_and_shift(drawn: Sequence[Tensor], height: int, width: int) -> Source:
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


def _shift_and_reflect(drawn: Sequence[Tensor], height: int, width: int) -> Source:
    """Shift, and reflect at the edges."""
    down, right = (numbers.int() for numbers in drawn)
    y = torch.arange(height, dtype=torch.int32, device=down.device)[:, None] + down
    x = torch.arange(width, dtype=torch.int32, device=down.device) + right
    shape = (len(down), height, width)
    return _mirror_places(y, height).expand(shape), _mirror_places(x, width).expand(shape), None


def _mirror_places(place: Tensor, size: int) -> Tensor:
    """Return which of so many pixels a place outside shows: one beyond the last shows the last but one."""
    return size - 1 - (size - 1 - place.abs()).abs()
