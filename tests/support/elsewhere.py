"""A device of its own for machines that have none: like a GPU, it refuses to compute with what is on the CPU.

Its tensors hold their numbers in the CPU's memory, and say that they are on PyTorch's device ``meta``. What a
GPU does, they do: results stay on the device, ``.to`` and ``.cpu`` move, and an operation that is given
tensors of both places ends the test, but for the few in which PyTorch allows it. The numbers are the CPU's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

ELSEWHERE = torch.device("meta")

aten = torch.ops.aten
MOVES = (aten._to_copy.default, aten.copy_.default)
"""Operations that carry numbers from one place to the other."""
BY_INDEX = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)
"""Operations whose indices may be on the CPU."""
ALIKE = (aten.cat.default, aten.stack.default, aten.index_select.default, aten.gather.default)
"""Operations that take no tensor of the other place, not even one without dimensions."""
UNDETERMINED = (aten.cumsum.default,)
"""Operations of floats that have no deterministic kernel on a GPU."""


class Far(Tensor):
    """A tensor on the device; ``near`` holds its numbers."""

    near: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, near: Tensor) -> Far:
        """Make one of the same shape, layout and type."""
        made: Far = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            near.size(),
            strides=near.stride(),
            storage_offset=near.storage_offset(),
            dtype=near.dtype,
            device=ELSEWHERE,
        )
        made.near = near
        return made

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Carry out an operation that takes one."""
        return _carry_out(operation, args, kwargs or {})

    def tolist(self) -> Any:
        """Return the numbers."""
        return self.cpu().tolist()


class Everywhere(TorchDispatchMode):
    """Also sees the operations that make a tensor on the device, or move one there or back.

    Attributes:
        moves: how many moves there have been, in both directions: a GPU finishes all its work for each.
        operations: how many there have been on tensors of the device.
    """

    moves = operations = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [isinstance(x, Far) for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        found = _carry_out(operation, args, kwargs or {})
        self.operations += any(given)
        if operation in MOVES:
            self.moves += len({*given, isinstance(found, Far)}) > 1
        elif operation is aten._local_scalar_dense.default:
            self.moves += given[0]
        return found


def _carry_out(operation: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    given = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    far, wanted = any(isinstance(x, Far) for x in given), kwargs.get("device")
    to_there = _is_there(wanted) if wanted is not None else far and operation is not aten.copy_.default
    if not far and not to_there:
        return operation(*args, **kwargs)
    if far and operation not in MOVES:
        _refuse_mixed(operation, args, given)
        if operation in UNDETERMINED and given[0].is_floating_point():
            raise RuntimeError(f"{operation} of floats has no deterministic kernel on the device")
    if kwargs.get("generator") is not None:
        raise RuntimeError(f"{operation} draws on the device with a generator of the CPU")
    near_args, near_kwargs = pytree.tree_map(lambda x: x.near if isinstance(x, Far) else x, (args, kwargs))
    if wanted is not None:
        near_kwargs["device"] = torch.device("cpu")
    same = {id(x.near): x for x in given if isinstance(x, Far)}  # what is changed in place, and returned

    def arrived(found: Any) -> Any:
        if not isinstance(found, Tensor):
            return found
        if id(found) in same:
            return same[id(found)]
        return Far(found) if to_there else found

    return pytree.tree_map(arrived, operation(*near_args, **near_kwargs))


def _refuse_mixed(operation: Any, args: Any, given: list[Tensor]) -> None:
    """Refuse tensors of both places, as a GPU does."""
    if operation in BY_INDEX and isinstance(args[0], Far):
        given = [x for x in pytree.tree_leaves(args[2:]) if isinstance(x, Tensor)]
    here = [x for x in given if not isinstance(x, Far) and (x.dim() or operation in ALIKE)]
    if here:
        raise RuntimeError(f"{operation} takes tensors of the device and, of shape {here[0].shape}, the CPU")


def _is_there(device: Any) -> bool:
    return torch.device(device) == ELSEWHERE


@contextmanager
def elsewhere() -> Iterator[Everywhere]:
    """Let ``ELSEWHERE`` be such a device in this block."""
    with pytest.MonkeyPatch.context() as patch, Everywhere() as everywhere:
        # These make tensors without an operation; on the device `meta` they would have no numbers.
        for maker in (torch.tensor, torch.as_tensor):
            patch.setattr(torch, maker.__name__, _moving(maker))
        patch.setattr(
            Tensor, "new_tensor", lambda like, data: torch.tensor(data, dtype=like.dtype, device=like.device)
        )
        yield everywhere


def _moving(make: Any) -> Any:
    """Return a maker of tensors that makes those for the device on the CPU, and moves them."""

    def made(*args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is None or not _is_there(device):
            return make(*args, device=device, **kwargs)
        return make(*args, **kwargs).to(device)

    return made
