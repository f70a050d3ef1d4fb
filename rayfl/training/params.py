"""The weights of a net as one value: parameters and buffers together, with arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


class Params(Mapping[str, Tensor]):
    """A mapping from names to tensors: the parameters *and* the buffers of a net, in a fixed order.

    Arithmetic works name by name and keeps the left operand's order; both operands must have the same
    names. Nothing is changed in place. BatchNorm statistics are entries like any other, so what happens to
    them is never implicit.

    Attributes:
        tensors: name -> tensor.
        train_names: the names that training changes by gradient; the rest are buffers.
        live: true only for the private working copy inside a fit, which alone may run in train mode.

    Examples:
        >>> import torch
        >>> from rayfl.training import Params
        >>> weights = Params({"w": torch.tensor([3.0, 4.0])}, frozenset({"w"}))
        >>> weights.norm(), (weights - 0.5 * weights).tensors
        (tensor(5.), {'w': tensor([1.5000, 2.0000])})
    """

    __slots__ = ("_nbytes", "live", "tensors", "train_names")
    __array_ufunc__ = None  # NumPy's numbers leave `2 * params` to the methods below

    def __init__(self, tensors: dict[str, Tensor], train_names: frozenset[str], live: bool = False) -> None:
        self.tensors = tensors
        self.train_names = train_names
        self.live = live
        self._nbytes: int | None = None

    def __getitem__(self, name: str) -> Tensor:
        try:
            return self.tensors[name]
        except KeyError:
            raise KeyError(f"{name!r} is no entry, as where a net has it frozen") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def keys(self) -> KeysView[str]:
        """Return the names, in order."""
        return self.tensors.keys()

    def __repr__(self) -> str:
        shapes = ", ".join(f"{n}: {tuple(t.shape)}" for n, t in self.tensors.items())
        return f"Params({shapes})"

    __hash__ = object.__hash__  # identity, as for tensors: `==` on values is not defined

    def __eq__(self, other: object) -> bool:
        return self is other

    # ---- arithmetic

    def map(self, function: Callable[[Tensor], Tensor]) -> Params:
        """Return the Params with ``function`` applied to every tensor."""
        return Params({n: function(t) for n, t in self.tensors.items()}, self.train_names)

    def _map_pairs(self, other: Any, function: Callable[[Tensor, Any], Tensor]) -> Params:
        if not isinstance(other, Params):
            return self.map(lambda t: function(t, other))
        if self.tensors.keys() != other.tensors.keys():
            odd = sorted(self.tensors.keys() ^ other.tensors.keys())
            raise KeyError(f"the two Params have different names, among them {odd[:3]}")
        return Params({n: function(t, other.tensors[n]) for n, t in self.tensors.items()}, self.train_names)

    def __add__(self, other: Params | Tensor | float) -> Params:
        return self._map_pairs(other, torch.add)

    def __sub__(self, other: Params | Tensor | float) -> Params:
        return self._map_pairs(other, torch.sub)

    def __mul__(self, other: Params | Tensor | float) -> Params:
        return self._map_pairs(other, torch.mul)

    def __truediv__(self, other: Params | Tensor | float) -> Params:
        return self._map_pairs(other, torch.div)

    __rmul__ = __mul__
    __radd__ = __add__

    def __neg__(self) -> Params:
        return self.map(torch.neg)

    def dot(self, other: Params) -> Tensor:
        """Return the inner product over all entries (0-d tensor)."""
        products = [t.sum() for t in (self * other).tensors.values()]
        return torch.stack(products).sum() if products else torch.zeros(())

    def sq_norm(self) -> Tensor:
        """Return the squared Euclidean norm over all entries (0-d tensor)."""
        return self.dot(self)

    def norm(self) -> Tensor:
        """Return the Euclidean norm over all entries (0-d tensor)."""
        return self.sq_norm().sqrt()

    def zeros(self) -> Params:
        """Return zeros of the same names and shapes."""
        return self.map(torch.zeros_like)

    def clone(self) -> Params:
        """Return a copy that shares no memory."""
        return self.map(torch.clone)

    def to(self, *args: Any, **kwargs: Any) -> Params:
        """Return the Params on another device or in another dtype; see ``torch.Tensor.to``."""
        return self.map(lambda t: t.to(*args, **kwargs))

    # ---- parts

    def select(self, keep: Callable[[str], bool]) -> Params:
        """Return the entries whose name satisfies ``keep``; the tensors are shared, not copied."""
        kept = {n: t for n, t in self.tensors.items() if keep(n)}
        return Params(kept, self.train_names.intersection(kept), self.live)

    def trainable(self) -> Params:
        """Return the parameters without the buffers."""
        return self.select(self.train_names.__contains__)

    def merge(self, other: Params) -> Params:
        """Return all entries of both; where a name is in both, ``other``'s."""
        names = self.train_names | other.train_names
        return Params({**self.tensors, **other.tensors}, names, self.live and other.live)

    def replace(self, tensors: Mapping[str, Tensor]) -> Params:
        """Return the same entries, with these tensors in the places of those of their names."""
        if odd := sorted(tensors.keys() - self.tensors.keys()):
            raise KeyError(f"there are no entries {odd[:3]} to be replaced")
        live = self.live and tensors.keys() <= self.train_names  # others' statistics must not change
        return Params({**self.tensors, **tensors}, self.train_names, live)

    @staticmethod
    def stack(items: Iterable[Params]) -> Params:
        """Return many Params of the same names and shapes as one: every entry has a first dimension more."""
        first, *others = items
        if odd := [other for other in others if other.tensors.keys() != first.tensors.keys()]:
            names = sorted(first.tensors.keys() ^ odd[0].tensors.keys())
            raise KeyError(f"Params of different names are not stacked; among them are {names[:3]}")
        stacked = {n: torch.stack([t, *(o.tensors[n] for o in others)]) for n, t in first.tensors.items()}
        return Params(stacked, first.train_names)

    def numel(self) -> int:
        """Return the number of numbers in all entries."""
        return sum(t.numel() for t in self.tensors.values())

    @property
    def nbytes(self) -> int:
        """The bytes of all entries."""
        if self._nbytes is None:  # asked once a round for what a thousand clients receive
            self._nbytes = sum([t.nbytes for t in self.tensors.values()])
        return self._nbytes


def _flatten(params: Params) -> tuple[list[Tensor], Any]:
    return list(params.tensors.values()), (tuple(params.tensors), params.train_names, params.live)


def _flatten_with_keys(params: Params) -> tuple[list[tuple[Any, Tensor]], Any]:
    tensors, context = _flatten(params)
    return [(pytree.MappingKey(n), t) for n, t in zip(context[0], tensors, strict=True)], context


def _unflatten(tensors: Any, context: Any) -> Params:
    names, train_names, live = context
    return Params(dict(zip(names, tensors, strict=True)), train_names, live)


pytree.register_pytree_node(Params, _flatten, _unflatten, flatten_with_keys_fn=_flatten_with_keys)
