"""What a net must not do in its calls: remember something, or mix the inputs of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from rayfl.errors import BadCode
from rayfl.nets.split import own_entries


def check_batches(net: nn.Module, name: str, like: Tensor) -> None:
    """Refuse a net whose scores of an input depend on what else is in the batch.

    Args:
        net: in eval mode.
        name: of the net, for errors.
        like: two inputs; token ids with the largest of the data.
    """
    first = like[0] if like.is_floating_point() else torch.zeros_like(like[0])
    with torch.no_grad():
        scores = net(torch.stack([first, like[1]]))[:1]
        again = net(torch.stack([first, first]))
    if not torch.allclose(again, scores.expand_as(again), rtol=1e-4, atol=1e-5, equal_nan=True):
        problem = f"{name}: its scores of an input depend on what else is in the batch, also in eval mode"
        remedy = "sequences need batch_first=True, and BatchNorm its running statistics"
        raise BadCode("net", problem, remedy)


def check_weights(net: nn.Module, name: str, like: Tensor) -> None:
    """Refuse a net that computes with parameters it holds in a second place, where they are never renewed.

    Args:
        net: in eval mode; its layers may hold on to what they compute.
        name: of the net, for errors.
        like: two inputs.
    """
    held = {entry: p for entry, p in net.named_parameters() if p.requires_grad}
    if not _trained_leaves(net(like)) <= {*held.values()}:
        problem = f"{name} computes with a tensor that is to be trained and is none of its parameters"
        raise BadCode("net", problem, "make it an nn.Parameter of a layer, or use nn.ParameterList")
    others = {entry: p.detach().clone().requires_grad_() for entry, p in held.items()}
    used, reached = _weights_of(net(like), held), _weights_of(functional_call(net, others, (like,)), others)
    if lost := [entry for entry in held if entry in used and entry not in reached]:
        problem = (
            f"{name} computes with {lost[0]!r} from a second place, such as a list, where it is not trained"
        )
        raise BadCode("net", problem, "take it from its layer in each call")


def _trained_leaves(scores: Tensor) -> set[Tensor]:
    """Return the tensors that scores have been computed from and that gradients reach."""
    waiting, seen = [scores.grad_fn], set[Any]()
    for node in waiting:
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [before for before, _ in node.next_functions]
    return {node.variable for node in seen if hasattr(node, "variable")}


def _weights_of(scores: Tensor, weights: Mapping[str, Tensor]) -> set[str]:
    """Return the names of the weights that scores depend on."""
    if not scores.requires_grad:
        return set()
    found = torch.autograd.grad(scores.sum(), list(weights.values()), allow_unused=True)
    return {entry for entry, gradient in zip(weights, found, strict=True) if gradient is not None}


def buffers(net: nn.Module, weights: bool) -> dict[str, Tensor]:
    """Return a net's buffers by name: those among its weights, or the constants."""
    return {
        f"{path}.{name}".lstrip("."): buffer
        for path, module in net.named_modules()
        for name, buffer in module.named_buffers(recurse=False)
        if (name in own_entries(module)) == weights
    }


def attributes(net: nn.Module) -> dict[str, Any]:
    """Return the numbers and tensors that the layers of a net hold as plain attributes, by name."""
    return {
        f"{path}.{name}".lstrip("."): value.clone() if isinstance(value, Tensor) else value
        for path, module in net.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, int | float | Tensor)
    }


def changed_value(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    """Return the name of what has another value than before; None if there is nothing."""
    return next((name for name, value in after.items() if _is_different(before.get(name), value)), None)


def generators() -> dict[str, Any]:
    """Return the states of the global generators that nets draw from."""
    state = np.random.get_state(legacy=False)["state"]  # noqa: NPY002, it is others that must not use it
    numpy = (state["pos"], state["key"].tobytes())
    return {"PyTorch": torch.get_rng_state().numpy().tobytes(), "NumPy": numpy}


def _is_different(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return not torch.equal(one, other)
    return type(one) is not type(other) or one != other
