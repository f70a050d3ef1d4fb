"""State as plain values: nested dicts of Params, tensors, numbers, bools and None, apart and together.

The one form serves what travels between processes (one flat buffer per dtype) and what is written to disk
(named tensors and a JSON structure). Anything else in a state is refused by name.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from rayfl.training.params import Params

State = dict[str, Any]


def is_finite(leaf: Any) -> bool:
    """Return whether a tensor or a number is free of NaN and infinity; anything else counts as finite."""
    if isinstance(leaf, float):
        return math.isfinite(leaf)
    if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
        return True
    # one pass and no copy: the sum is finite unless an entry is not, or they are so large that it overflows
    return math.isfinite(leaf.sum().item()) or bool(torch.isfinite(leaf).all())


def leaves_of(tree: Any) -> list[Any]:
    """Return the tensors and plain values of a nest, in its order; PyTorch's own walk takes far longer."""
    if isinstance(tree, Params):
        return list(tree.tensors.values())
    if isinstance(tree, dict):
        return [leaf for part in tree.values() for leaf in leaves_of(part)]
    return [leaf for part in tree for leaf in leaves_of(part)] if isinstance(tree, list | tuple) else [tree]


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return a nest of dicts and Params with another value in the place of each of its own."""
    if isinstance(tree, Params):
        tensors = {name: function(tensor) for name, tensor in tree.tensors.items()}
        return Params(tensors, tree.train_names, tree.live)
    if isinstance(tree, dict):
        return {key: map_leaves(function, part) for key, part in tree.items()}
    return function(tree)


def all_finite(tree: Any) -> bool:
    """Return whether all tensors and numbers of a nest are free of NaN and infinity.

    A GPU finishes its work for each question, so that it is asked once about all that it holds.
    """
    leaves = leaves_of(tree)
    on_gpu = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.device.type != "cpu"]
    sums = [leaf.sum().double() for leaf in on_gpu if leaf.is_floating_point()]
    if sums and torch.stack(sums).isfinite().all():
        leaves = [leaf for leaf in leaves if not isinstance(leaf, Tensor) or leaf.device.type == "cpu"]
    return all(map(is_finite, leaves))


def take_apart(tree: Any, path: str = "state") -> tuple[Any, dict[str, Tensor]]:
    """Split a state into a JSON-able structure and its tensors by path.

    Args:
        tree: nested dicts (keys: str or int) of Params, tensors, numbers, bools and None.
        path: name of the whole, the first part of every tensor's path.

    Raises:
        TypeError: something else is in the state, or two entries have one path (keys such as 1 and "1");
            the message has it.
    """
    tensors: dict[str, Tensor] = {}
    return _structure(tree, path, tensors), tensors


def _structure(node: Any, at: str, tensors: dict[str, Tensor]) -> Any:
    """Return the structure of a nest, and add its tensors to the others."""
    if isinstance(node, Params):
        for name, tensor in node.tensors.items():
            _add(tensors, f"{at}/{name}", tensor)
        return {"params": list(node.tensors), "train": [n for n in node.tensors if n in node.train_names]}
    if isinstance(node, Tensor):
        _add(tensors, at, node)
        return {"tensor": True}
    if isinstance(node, dict):
        for key in node:
            if not isinstance(key, str | int) or isinstance(key, bool):
                raise TypeError(f"{at}: the key {key!r} is neither a string nor an integer")
        return {"dict": [[key, _structure(child, f"{at}/{key}", tensors)] for key, child in node.items()]}
    if node is None or isinstance(node, bool | int | float):
        return {"value": node}
    raise TypeError(
        f"{at} is a {type(node).__name__}: a state holds nested dicts of Params, tensors, numbers, bools "
        "and None, nothing else"
    )


def _add(tensors: dict[str, Tensor], at: str, tensor: Tensor) -> None:
    if at in tensors:
        raise TypeError(f"{at} is the path of two entries: one would overwrite the other")
    tensors[at] = tensor


def put_together(structure: Any, tensors: dict[str, Tensor], path: str = "state") -> Any:
    """Invert ``take_apart``."""
    if "params" in structure:
        return Params({n: tensors[f"{path}/{n}"] for n in structure["params"]}, frozenset(structure["train"]))
    if "tensor" in structure:
        return tensors[path]
    if "dict" in structure:
        return {key: put_together(child, tensors, f"{path}/{key}") for key, child in structure["dict"]}
    return structure["value"]


@dataclass(frozen=True)
class Packed:
    """A state ready to travel: one contiguous NumPy buffer per dtype, which Ray shares without copying."""

    structure: Any
    layout: list[tuple[str, str, tuple[int, ...], int]]  # path, dtype, shape; first number in its buffer
    buffers: dict[str, np.ndarray]


def pack(tree: Any) -> Packed:
    """Copy a state into one flat buffer per dtype; what it has several times goes into it once."""
    structure, tensors = take_apart(tree)
    layout: list[tuple[str, str, tuple[int, ...], int]] = []
    parts: dict[str, list[Tensor]] = {}
    sizes: dict[str, int] = {}
    starts: dict[int, int] = {}
    for path, tensor in tensors.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        if id(tensor) not in starts:
            starts[id(tensor)] = sizes.get(dtype, 0)
            sizes[dtype] = starts[id(tensor)] + tensor.numel()
            parts.setdefault(dtype, []).append(tensor.detach().reshape(-1).cpu())
        layout.append((path, dtype, tuple(tensor.shape), starts[id(tensor)]))
    return Packed(structure, layout, {dtype: _as_array(torch.cat(p)) for dtype, p in parts.items()})


def _as_array(flat: Tensor) -> np.ndarray:
    """Return a vector as an array; as one of integers of its width where NumPy has no such type."""
    try:
        return flat.numpy()
    except TypeError:
        return flat.view({1: torch.int8, 2: torch.int16}[flat.element_size()]).numpy()


def unpack(packed: Packed) -> Any:
    """Invert ``pack``.

    What was one tensor is one again. Each gets memory of its own: the bits of some CPU kernels depend on how
    their input is aligned.
    """
    flat = {dtype: as_tensor(buffer).view(getattr(torch, dtype)) for dtype, buffer in packed.buffers.items()}
    tensors: dict[str, Tensor] = {}
    found: dict[tuple[str, tuple[int, ...], int], Tensor] = {}
    for path, dtype, shape, start in packed.layout:
        if (dtype, shape, start) not in found:
            part = flat[dtype][start : start + math.prod(shape)]
            found[dtype, shape, start] = part.view(shape).clone()
        tensors[path] = found[dtype, shape, start]
    return put_together(packed.structure, tensors)


def to_device(tree: Any, device: torch.device | str) -> Any:
    """Return a nest with its tensors on a device.

    Those that are not there move in one transfer per dtype, because a GPU finishes its work for each. They
    get memory of their own, as if each had moved by itself.
    """
    kind = torch.device(device).type
    if all(leaf.device.type == kind for leaf in leaves_of(tree) if isinstance(leaf, Tensor)):
        return tree
    leaves, spec = pytree.tree_flatten(tree)
    away: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for k, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor) and leaf.device.type != kind:
            away.setdefault((leaf.dtype, leaf.device), []).append(k)
    for places in away.values():
        there = move_together([leaves[k].detach() for k in places], torch.device(device))
        for k, part in zip(places, there, strict=True):
            leaves[k] = part.clone()
    return pytree.tree_unflatten(leaves, spec)


def move_together(tensors: Sequence[Tensor], device: torch.device) -> Sequence[Tensor]:
    """Return tensors of one type and place on a device, as views of one that has moved.

    A GPU first finishes its work for each move.
    """
    if not tensors or tensors[0].device.type == device.type:
        return tensors
    flat = torch.cat([each.reshape(-1) for each in tensors]).to(device)
    parts = flat.split([each.numel() for each in tensors])
    return [part.view(each.shape) for part, each in zip(parts, tensors, strict=True)]


def canonical(tree: Any, device: torch.device | str = "cpu") -> Any:
    """Return a state on a device, with every tensor as ``unpack`` and checkpoints give it back.

    That is an object of its own here, whose numbers lie in the order of its shape, from the beginning of its
    memory. The bits of some kernels depend on how their input lies, and those of a stack on which tensors are
    one object for all clients: a state that has not travelled must be like one that has. Memory is not copied
    without need.
    """
    here = to_device(tree, device)
    return map_leaves(lambda leaf: own_tensor(leaf) if isinstance(leaf, Tensor) else leaf, here)


def own_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor in memory of its own or as it is, in the layout that checkpoints give it back in.

    One of a single input channel counts as contiguous in the channels-last layout too, and the strides then
    decide by which kernel a convolution computes.
    """
    t = tensor.detach()
    if not t.is_contiguous() or t.storage_offset():
        return t.clone(memory_format=torch.contiguous_format)
    return t.view(-1).view(t.shape) if 1 in t.shape else t


def as_tensor(array: np.ndarray) -> Tensor:
    """Return the array as a tensor that shares its memory, also where the array is read-only.

    An array that runs backwards, such as ``x[::-1]``, is copied, because no tensor can.
    """
    if min(array.strides, default=0) < 0:
        array = np.ascontiguousarray(array)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
