"""The one shape that every net of the project has: convolutions, hidden layers, head."""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from rayfl.errors import BadCode, Conflict

Shape = tuple[int, ...]
"""Of one input: channels, height and width of an image; the length of a vector or of a text."""

CUTS: dict[str, tuple[str, ...]] = {"last_layer": ("head",), "fc_stack": ("fc", "head")}
"""Where a net may be cut into extractor and classifier: the parts that form the classifier of each cut."""


class SplitNet(nn.Module):
    """A classifier in three parts, ``head(fc(conv(x)))``.

    Entries are named after the parts (``conv.0.weight``, ``fc.3.bias``, ``head.weight``), so their names do
    not depend on where a method cuts the net into extractor and classifier (``CUTS``).

    BatchNorm layers lose their count of batches (``num_batches_tracked``), the only integers among the
    entries; the running statistics do not need it.

    Args:
        conv: maps inputs, such as images [B, C, H, W], to flat features [B, F].
        fc: the hidden fully connected layers, [B, F] to [B, D]; an empty ``nn.Sequential`` where there are
            none.
        head: the last linear layer, [B, D] to [B, classes].
    """

    def __init__(self, conv: nn.Module, fc: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.conv = conv
        self.fc = fc
        self.head = head
        self.head_name: str | None = None  # in the module that this net was made of by taking it out
        drop_batch_counts(self)
        refuse_odd_weights(self)
        refuse_shared(self)

    def features(self, x: Tensor) -> Tensor:
        """Return the input of the head, [B, D], for inputs [B, ...]."""
        features: Tensor = self.fc(self.conv(x))
        return features

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores, [B, classes], of inputs [B, ...]."""
        scores: Tensor = self.head(self.features(x))
        return scores

    def plain(self) -> nn.Module:
        """Return the net under its own names, with counts of batches of 0; this object is used up.

        It is the module that was split, or an ``nn.Sequential`` of the three parts.
        """
        for layer in self.modules():
            counted = "num_batches_tracked" in layer._buffers
            if counted and getattr(layer, "running_mean", None) is not None:
                layer.num_batches_tracked = torch.tensor(0)
        if self.head_name is None:
            return nn.Sequential(OrderedDict(conv=self.conv, fc=self.fc, head=self.head))
        above, _, own = self.head_name.rpartition(".")
        if not own:
            return self.head
        self.conv.get_submodule(above)._modules[own] = self.head
        return self.conv


def drop_batch_counts(net: nn.Module) -> None:
    """Set ``num_batches_tracked = None`` in every normalisation layer of ``net``."""
    for name, module in net.named_modules():
        layer: Any = module
        if isinstance(module, nn.SyncBatchNorm):
            raise BadCode(f"layer {name!r}", "(SyncBatchNorm) averages over processes: use nn.BatchNorm2d")
        if getattr(layer, "num_batches_tracked", None) is None or isinstance(layer, LazyModuleMixin):
            continue
        if layer.momentum is None:
            raise BadCode(
                f"layer {name!r}",
                f"({type(layer).__name__}) has momentum=None, a plain average over all batches, which "
                "federated nets do not support; give it a momentum such as 0.1",
            )
        layer.num_batches_tracked = None


def refuse_odd_weights(net: nn.Module) -> None:
    """Refuse layers that change their weights in every call, or whose weights or gradients are of a kind
    that neither sums nor optimisers take.
    """
    for name, layer in net.named_modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and (layer.max_norm is not None or layer.sparse):
            option = "sparse" if layer.max_norm is None else "max_norm"
            why = (
                "has gradients of no dense form" if layer.max_norm is None else "changes weights in any call"
            )
            raise BadCode(f"layer {name!r}", f"({type(layer).__name__}) {why}: leave {option} out")
    for name, parameter in net.named_parameters():
        if parameter.is_complex():
            raise BadCode(
                f"parameter {name!r}",
                "of the net has complex numbers, and rayfl trains real ones: use two parameters, and "
                "torch.complex in the forward pass",
            )


def refuse_shared(net: nn.Module) -> None:
    """Refuse parameters that several layers share: a net's weights are told apart by their names."""
    names: dict[nn.Parameter, str] = {}
    for name, parameter in net.named_parameters(remove_duplicate=False):
        if names.setdefault(parameter, name) != name:
            raise BadCode(
                f"parameter {name!r}",
                f"of the net is also {names[parameter]!r}, and federated nets do not share parameters "
                "between layers: give each its own",
            )


def own_entries(module: nn.Module) -> list[str]:
    """Return the names of a module's own weights: parameters, and what it keeps as buffers of floats.

    Other buffers are constants: whole numbers and truth values, and those that are not persistent.
    """
    return [name for name, _ in module.named_parameters(recurse=False)] + [
        name
        for name, buffer in module.named_buffers(recurse=False)
        if buffer.is_floating_point() and name not in module._non_persistent_buffers_set
    ]


def flat_features(name: str, conv: nn.Sequential, channels: int, shape: Shape) -> int:
    """Return how many features convolutions and poolings make of an image, flattened.

    Args:
        name: of the net, for the error.
        conv: the convolutions and poolings.
        channels: what the last convolution puts out.
        shape: channels, height and width of an image.
    """
    height, width = (output_side(conv, side) for side in shape[1:])
    if height < 1 or width < 1:
        least = smallest_side(conv)
        raise Conflict(
            "net",
            f"{name} needs images of at least {least}x{least} pixels, these have {shape[1]}x{shape[2]}; "
            "choose another net or larger images",
        )
    return channels * height * width


def smallest_side(conv: nn.Sequential) -> int:
    """Return the smallest height or width in pixels of which ``conv`` leaves at least one."""
    side = 1
    while output_side(conv, side) < 1:
        side += 1
    return side


def output_side(conv: nn.Sequential, side: int) -> int:
    """Return what the convolutions and poolings of ``conv`` leave of a height or width; 0 if nothing."""
    for layer in conv:
        if isinstance(layer, nn.AdaptiveAvgPool2d):
            side = _single(layer.output_size)
        if not isinstance(layer, nn.Conv2d | nn.MaxPool2d):
            continue
        kernel, stride, padding = (_single(v) for v in (layer.kernel_size, layer.stride, layer.padding))
        side = (side + 2 * padding - kernel) // stride + 1
        if side < 1:
            return 0
    return side


def _single(value: Any) -> int:
    """Return the number behind a square layer's ``5`` or ``(5, 5)``."""
    return int(value if isinstance(value, int) else value[0])
