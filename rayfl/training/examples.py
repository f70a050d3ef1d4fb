"""Batches of inputs in the form that nets take."""

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rayfl.data import Dataset
from rayfl.training.augment import drawn, moved
from rayfl.training.state import as_tensor, move_together


class Examples:
    """A dataset's inputs and labels as tensors, delivered by index, normalised, in the layout of the nets.

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
        inputs, labels = as_tensor(dataset.inputs), as_tensor(dataset.labels)
        if device.type != "cpu" and _fits(inputs, device):
            inputs, labels = inputs.to(device), labels.to(device)
        self._inputs, self._labels = inputs, labels
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

    def unlabelled(self) -> "Examples":
        """Return the same inputs as they are, never augmented, with the label -1, which no loss takes."""
        examples = copy.copy(self)
        examples._labels = torch.full_like(self._labels, -1)
        examples._augment = "none"
        return examples

    def private_copy(self, tensor: Tensor) -> Tensor:
        """Return a copy of a weight for training; one of four dimensions gets the images' memory layout."""
        return tensor.detach().clone(
            memory_format=self._layout if tensor.dim() == 4 else torch.contiguous_format
        )

    def labels(self, indices: Tensor) -> Tensor:
        """Return the labels for indices, both int64 [n] on the CPU."""
        return self._labels[indices.to(self._labels.device)].cpu()

    def normalised(self, inputs: Tensor) -> Tensor:
        """Return inputs as nets take them: bytes scaled to [0, 1] and normalised, others as they are.

        Args:
            inputs: [n, ...], as the dataset has them.
        """
        x = inputs.to(self._dtype)
        return x.mul_(self._scale).add_(self._shift) if inputs.dtype == torch.uint8 else x

    def drawn(self, batches: Sequence[Tensor], keys: Sequence[Tensor]) -> Sequence[Tensor | None]:
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
        made = [drawn(key, batch.numel(), height, width, kind) for batch, key in pairs]
        return move_together(made, self.device)

    def batch(self, indices: Tensor, drawn: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return inputs and labels.

        Args:
            indices: int64 [...], on the CPU or at ``home``.
            drawn: what changes images at random, see the method of this name; without it they are as they
                are.

        Returns:
            Inputs [..., *shape] and labels, int64 [...].
        """
        where = indices.reshape(-1).to(self._inputs.device)
        inputs = self._inputs.index_select(0, where).to(self.device)
        blank = None
        if drawn is not None:
            inputs, blank = moved(inputs, drawn, self._augment)
        x = self.normalised(inputs)
        if blank is not None:
            x.masked_fill_(blank, 0)
        y = self._labels.index_select(0, where).to(self.device)
        x = x.contiguous(memory_format=self._layout if self._images else torch.contiguous_format)
        if indices.dim() == 1:
            return x, y
        return x.view(*indices.shape, *x.shape[1:]), y.view(indices.shape)


def _fits(inputs: Tensor, device: torch.device) -> bool:
    """Say whether the inputs take at most half of the GPU memory that this process may still take."""
    free, total = torch.cuda.mem_get_info(device)
    cap = total * torch.cuda.get_per_process_memory_fraction() - torch.cuda.memory_reserved(device)
    return math.prod(inputs.shape) * inputs.element_size() <= min(free, cap) / 2
