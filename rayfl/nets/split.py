"""The one shape that every net of the project has: convolutions, hidden layers, head."""

import copy
import itertools
from collections import OrderedDict
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy

from rayfl.errors import BadCode, Conflict

Shape = tuple[int, ...]
"""Of one input: channels, height and width of an image; the length of a vector or of a text."""

CUTS: dict[str, tuple[str, ...]] = {"last_layer": ("head",), "fc_stack": ("fc", "head")}
"""Where a net may be cut into extractor and classifier: the parts that form the classifier of each cut."""


class SplitNet(nn.Module):
    """A classifier in three parts, ``head(fc(conv(x)))``.

    Entries are named after the parts (``conv.0.weight``, ``fc.3.bias``, ``head.weight``), so their names do
    not depend on where a method cuts the net into extractor and classifier (``CUTS``).

    Layers do not overwrite their inputs (``inplace``). BatchNorm layers lose their count of batches
    (``num_batches_tracked``), the only integers among the entries; the running statistics do not need it.
    Weights that layers share become one parameter.

    Args:
        conv: maps inputs, such as images [B, C, H, W], to flat features [B, F].
        fc: the hidden fully connected layers, [B, F] to [B, D]; an empty ``nn.Sequential`` where there are
            none.
        head: the last linear layer, [B, D] to [B, classes].

    Attributes:
        head_name: of the head in the module that was split, whose own forward the whole net then runs; None
            where no module was.
        uncut: name of a net whose parts do not make the whole in train mode; empty for others.
        frozen_layers: names of modules that count as frozen though they have no parameters.
        draws: whether code of its own draws from PyTorch's global generator in train mode.
    """

    def __init__(self, conv: nn.Module, fc: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.conv = conv
        self.fc = fc
        self.head = head
        self.head_name: str | None = None
        self.uncut = ""
        self.draws = False
        self.frozen_layers = frozenset[str]()
        for layer in self.modules():
            if getattr(layer, "inplace", False) is True:
                layer.inplace = False  # type: ignore[assignment]  # overwriting does not go with vmap
        drop_batch_counts(self)
        refuse_odd_weights(self)
        share_weights(self)

    def features(self, x: Tensor) -> Tensor:
        """Return the input of the head, [B, D], for inputs [B, ...]."""
        features: Tensor = self.fc(self.conv(x))
        return features

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores, [B, classes], of inputs [B, ...]."""
        if not self.head_name:
            scores: Tensor = self.head(self.features(x))
            return scores
        nothing = self.conv.get_submodule(self.head_name)
        self.conv.set_submodule(self.head_name, self.head)
        try:
            scores = self.conv(x)
        finally:
            self.conv.set_submodule(self.head_name, nothing)
        return scores

    def own_name(self, entry: str) -> str:
        """Return the name that a weight has in the module that was split, or in this one without such."""
        part, _, name = entry.partition(".")
        if self.head_name is None:
            return entry
        return f"{self.head_name}.{name}".lstrip(".") if part == "head" else name

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
        if not self.head_name:
            return self.head
        self.conv.set_submodule(self.head_name, self.head)
        return self.conv


def drop_batch_counts(net: nn.Module) -> None:
    """Set ``num_batches_tracked = None`` in every normalisation layer of ``net``."""
    for name, module in net.named_modules():
        layer: Any = module
        if getattr(layer, "num_batches_tracked", None) is None or isinstance(layer, LazyModuleMixin):
            continue
        if layer.momentum is None:
            problem = f"({type(layer).__name__}) has momentum=None, a plain average over all batches"
            raise BadCode(f"layer {name!r}", problem, "give it a momentum such as 0.1")
        layer.num_batches_tracked = None


def refuse_odd_weights(net: nn.Module) -> None:
    """Refuse layers that change weights in every call or take statistics of others, and odd parameters."""
    for name, layer in net.named_modules():
        place, kind = f"layer {name!r}", type(layer).__name__
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
            raise BadCode(place, f"({kind}) changes weights in any call", "leave max_norm out")
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.sparse:
            raise BadCode(place, f"({kind}) has sparse gradients", "leave sparse out")
        if isinstance(layer, nn.SyncBatchNorm):
            raise BadCode(place, f"({kind}) takes other clients' batches", "use nn.BatchNorm2d")
    for name, parameter in net.named_parameters():
        if parameter.is_complex():
            remedy = "use two parameters, and torch.complex in the forward pass"
            raise BadCode(f"parameter {name!r}", "of the net has complex numbers", remedy)


def share_weights(net: nn.Module) -> None:
    """Make parameters in the same memory one parameter; refuse those in a part of another's memory."""
    there: dict[tuple[int, int, tuple[int, ...]], tuple[str, nn.Parameter]] = {}
    for path, layer in net.named_modules():
        for own, parameter in layer.named_parameters(recurse=False):
            if is_lazy(parameter) or parameter.is_meta or not parameter.numel():
                continue
            start, strides = parameter.data_ptr(), parameter.stride()
            reach = sum((n - 1) * step for n, step in zip(parameter.shape, strides, strict=True))
            place = start, start + (reach + 1) * parameter.element_size(), strides
            layer._parameters[own] = there.setdefault(place, (f"{path}.{own}", parameter))[1]
    for one, other in itertools.pairwise(sorted(there, key=itemgetter(0))):
        if other[0] < one[1]:
            problem = f"of the net is a view of {there[one][0]!r}, and would be trained apart"
            remedy = "let the forward compute with that one, as in x @ self.first.weight.T"
            raise BadCode(f"parameter {there[other][0]!r}", problem, remedy)


def own_entries(module: nn.Module) -> list[str]:
    """Return the names of a module's own weights: parameters, and what it keeps as buffers of floats.

    Other buffers are constants: whole numbers and truth values, and those that are not persistent.
    """
    return [name for name, _ in module.named_parameters(recurse=False)] + [
        name
        for name, buffer in module.named_buffers(recurse=False)
        if buffer.is_floating_point() and name not in module._non_persistent_buffers_set
    ]


def flat_features(name: str, conv: nn.Module, shape: Shape) -> int:
    """Return how many features convolutions and poolings make of an image, flattened.

    Args:
        name: of the net, for the error.
        conv: the convolutions and poolings, which end with a flatten.
        shape: channels, height and width of an image.
    """
    channels, height, width = shape
    found = _count_features(conv, shape)
    if not found:
        least = next(side for side in itertools.count(1) if _count_features(conv, (channels, side, side)))
        problem = f"{name} needs images of at least {least}x{least} pixels, these have {height}x{width}"
        raise Conflict("net", problem, "choose another net or larger images")
    return found


def _count_features(conv: nn.Module, shape: Shape) -> int:
    """Return how many numbers come out of ``conv`` for an image of this shape; 0 where it is too small."""
    try:
        with torch.no_grad():  # not on the meta device, which imports SymPy and the compiler for seconds
            return copy.deepcopy(conv).eval()(torch.zeros(1, *shape)).shape[1]
    except RuntimeError:
        return 0
