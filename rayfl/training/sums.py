"""How uploads are combined: declared per key, accumulated where the clients are, the same bits in any order.

An accumulator adds float64 vectors into two sums of fixed quanta. Splitting a number x by

    high = (x + C) - C,  C = 1.5 * 2^52 * q

rounds it to a multiple of q, and sums of such multiples are exact in float64 as long as all of them stay
below 2^53 q; so they do not depend on the order, on how the terms were grouped, or on the number of
processes. The rest, x - high, is rounded to the finer quantum of the second sum (compare the
pre-rounding of Demmel and Nguyen, "Fast reproducible floating-point summation", ARITH 2013). With quanta 2^-7
and 2^-47, numbers whose magnitudes add up to at most 2^43 are summed with an error of at most 2^-48 each.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors
from torch.utils import _pytree as pytree

from rayfl.errors import BadCode, Conflict
from rayfl.system.text import short_repr
from rayfl.training.params import Params
from rayfl.training.state import as_tensor, canonical, leaves_of, pack, take_apart, unpack

LIMIT = 2.0**43
"""Largest sum of norms of all uploads times their weights; beyond it training has diverged."""
_COARSE, _FINE = 1.5 * 2.0**52 * 2.0**-7, 1.5 * 2.0**52 * 2.0**-47
_MOST_TERMS = 2**13  # of which the sums of what is below the coarse quantum are exact
_WIDE = (torch.float32, torch.float64, torch.int64, torch.bfloat16)  # into which every sum below LIMIT fits
_PIECE = 2**16
"""Entries that are added at a time: few enough for the cache, with the copies that additions make."""


_LEAST_WEIGHT = 2.0**-20
"""Smallest sum of uploaded weights: their rounding, 2^-48 each, must not show in the mean."""


@dataclass(frozen=True)
class Reduction:
    """How the server combines what clients upload under a key, and what that is to the download.

    Attributes:
        replaces: the key of the download whose place an upload takes: by it the client predicts right after
            training, and by the difference of both it has changed the weights that it received. True stands
            for the upload's own key, where the download has it; False for none.
        adds_to: the key of the download of which an upload is a change already.
        before: whether it is uploaded before the round's training, by ``Method.before_round``.
    """

    replaces: str | bool = field(default=True, kw_only=True)
    adds_to: str | None = field(default=None, kw_only=True)
    before: bool = field(default=False, kw_only=True)

    def base(self, key: str) -> str:
        """Return the download's key that belongs to an upload key, where the download has it; "" for none."""
        if self.before:
            return ""
        return self.adds_to or (key if self.replaces is True else self.replaces or "")


@dataclass(frozen=True)
class Mean(Reduction):
    """The mean over the participants, weighted by ``samples`` (n_i / sum n_j) or ``uniform`` (1 / |S|).

    By default the ``run`` decides, by ``averaging``. Any other text is the upload key of a number that every
    participant sends, its weight: 0 or more, of a size about 1, and above 0 for one of them at least. That
    key is declared, too::

        {"weights": Mean("trust"), "trust": Sum()}
    """

    by: str = "run"

    @property
    def key(self) -> str | None:
        """The upload key of the weights, if they are uploaded."""
        return None if self.by in ("run", "samples", "uniform") else self.by


@dataclass(frozen=True)
class Sum(Reduction):
    """The sum over the participants, which takes no client's place; of truth values it counts the true."""

    replaces: str | bool = field(default=False, kw_only=True)


@dataclass(frozen=True)
class Gather(Reduction):
    """Every participant's own payload, by client number; prefer a sum if it is enough: it sends less."""


Prepared = dict[str, tuple[Any, Tensor, Any, float, float]]
"""Upload key -> payload, all its numbers as one vector, template, norm of the vector, weight."""


class ExactSum:
    """A sum of float64 vectors whose bits do not depend on the order of its terms.

    Args:
        size: the number of entries.
    """

    def __init__(self, size: int) -> None:
        self.high = torch.zeros(size, dtype=torch.float64)
        self.low = torch.zeros(size, dtype=torch.float64)
        self.terms = 0
        self.reach = 0

    def add(self, term: Tensor, reach: int) -> None:
        """Add a float64 vector with entries of magnitude up to ``reach``; it is used as scratch space."""
        self._count(1, reach)
        for total, rest, piece in _pieces(self.high, self.low, term):
            high = piece + _COARSE
            high -= _COARSE
            total += high
            piece -= high
            piece += _FINE
            piece -= _FINE
            rest += piece

    def merge(self, other: ExactSum) -> None:
        """Add all terms of another sum."""
        high, low, terms = other.high, other.low, other.terms
        if terms > 1 and self.terms + terms > _MOST_TERMS:
            high, low, terms = *_carry_over(high, low), 1
        self._count(terms, other.reach)
        self.high += high
        self.low += low

    def value(self) -> Tensor:
        """Return the sum, float64."""
        return self.high + self.low

    def __getstate__(self) -> tuple[Any, ...]:
        return self.high.numpy(), self.low.numpy(), self.terms, self.reach  # arrays travel without a copy

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        high, low, self.terms, self.reach = state
        self.high, self.low = as_tensor(high), as_tensor(low)

    def _count(self, terms: int, reach: int) -> None:
        if self.terms + terms > _MOST_TERMS:
            self.high, self.low = _carry_over(self.high, self.low)
            self.terms = 1
        self.terms += terms
        self.reach += reach
        if self.reach > LIMIT:
            raise Conflict(
                "the uploads",
                f"add up to {self.reach:.0e}: training diverges. Try a smaller training.lr or training.clip",
            )


def _carry_over(high: Tensor, low: Tensor) -> tuple[Tensor, Tensor]:
    """Return two sums of the same value, of which the second is no larger than that of a single term."""
    over = low + _COARSE
    over -= _COARSE
    return high + over, low - over


@dataclass
class Accumulated:
    """The part of one upload key that one process has accumulated: what travels to the server.

    Attributes:
        template: shapes, dtypes and structure of an upload.
        total: the exact sum of weighted uploads; None for ``Gather``.
        weight: the sum of the weights, which are integers; of uploaded ones their number, as their sum is
            the last entry of ``total``.
        each: client number -> payload, for ``Gather``.
    """

    template: Any = None
    total: ExactSum | None = None
    weight: int = 0
    each: dict[int, Any] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes that travel to the server."""
        exact = 0 if self.total is None else 2 * self.total.high.numel() * 8
        return exact + sum(payload_bytes(payload) for payload in self.each.values())

    def __getstate__(self) -> tuple[Any, ...]:
        return self.template, self.total, self.weight, pack(self.each)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.template, self.total, self.weight, each = state
        self.each = unpack(each)

    def merge(self, other: Accumulated) -> None:
        """Add what another process has accumulated."""
        self.each.update(other.each)
        self.weight += other.weight
        if other.total is None:
            return
        if self.total is None:
            self.template, self.total = other.template, ExactSum(len(other.total.high))
        _same_structure(self.template, other.template)
        self.total.merge(other.total)


class Accumulator:
    """Accumulates the uploads of one process's clients, group by group.

    A group is a fixed set of clients, formed before clients are placed, and always on one process. Within
    it float64 sums are taken in the order of the clients; across groups the sum is exact.

    Args:
        reductions: upload key -> how it is combined.
        group_of: client -> its group; clients that are not in it are a group each.
        left_out: upload keys of means that a client need not send.
    """

    def __init__(
        self,
        reductions: Mapping[str, Reduction],
        group_of: Mapping[int, tuple[int, ...]] | None = None,
        left_out: Iterable[str] = (),
    ) -> None:
        self._reductions = dict(reductions)
        self._needed = needed_for_means(reductions) - {*left_out}
        self._group_of = group_of or {}
        self._parts: dict[str, Accumulated] = {}
        self._open: tuple[int, ...] = ()  # the group that is being accumulated
        self._sums: dict[str, tuple[Tensor, int]] = {}  # its weighted sums, and how large each may be

    def prepare(self, upload: Mapping[str, Any], samples: int) -> tuple[str | None, Prepared]:
        """Flatten an upload and say what is wrong with it.

        What is gathered or summed may be left out. A mean would be that of the others, and not show it.

        Returns:
            None or a description of the first bad payload (NaN, infinity, beyond ``LIMIT``) or weight, and
            what ``add`` takes.

        Raises:
            TypeError: a key is not declared, a mean lacks, or something can neither be added up nor travel.
        """
        if odd := upload.keys() - self._reductions.keys():
            known = ", ".join(map(repr, self._reductions)) or "nothing"
            raise TypeError(f"uploads {min(odd)!r}, but `uploads` of the method declares {known}")
        if lack := lack_of_means(self._needed, upload):
            raise TypeError(lack)
        prepared: Prepared = {}
        for key, payload in upload.items():
            reduction = self._reductions[key]
            added_up = payload
            if isinstance(reduction, Gather):
                take_apart(payload, f"the upload {key!r}")
                # whole numbers that are not added up may be of any size, such as seeds
                added_up = _no_whole(payload)
            vector, template = flatten_payload(added_up)
            weight: float = samples if isinstance(reduction, Mean) and reduction.by == "samples" else 1
            if isinstance(reduction, Mean) and reduction.key is not None:
                found = _uploaded_weight(upload[reduction.key])
                if found is None:
                    return (
                        f"upload {reduction.key!r} is {short_repr(upload[reduction.key])}: as a weight of "
                        f"the mean of {key!r} it must be one finite number, 0 or more"
                    ), prepared
                weight = found
                vector = torch.cat([vector, vector.new_ones(1)])  # whose sum is that of the weights
            # the norm is an upper bound of the largest entry, and several times cheaper
            wide = vector if vector.dtype in (torch.float32, torch.float64) else vector.float()
            norm = math.sqrt(square) if (square := wide.dot(wide).item()) >= 0 else math.nan
            if not norm * weight <= LIMIT:
                finite = bool(torch.isfinite(vector).all())
                what = f"has a norm of {norm:.0e}: training has diverged" if finite else "is not finite"
                return f"upload {key!r} {what}", prepared
            prepared[key] = (payload, vector, template, norm, weight)
        return None, prepared

    def add(self, client: int, upload: Prepared, samples: int) -> None:
        """Add a prepared upload; the clients of a group come one after another."""
        group = self._group_of.get(client, (client,))
        if group != self._open:
            self._end_group()
            self._open = group
        for key, (payload, vector, template, norm, weight) in upload.items():
            reduction = self._reductions[key]
            part = self._parts.setdefault(key, Accumulated())
            if isinstance(reduction, Gather):
                part.each[client] = canonical(payload)
                continue
            if part.total is None:
                part.template, part.total = template, ExactSum(vector.numel())
            _same_structure(part.template, template)
            part.weight += samples if isinstance(reduction, Mean) and reduction.by == "samples" else 1
            reach = math.ceil(norm * weight)
            if key in self._sums:
                total, before = self._sums[key]
                for piece, term in _pieces(total, vector):
                    piece.add_(term, alpha=weight)
                self._sums[key] = total, before + reach
            else:
                self._sums[key] = vector.to(torch.float64, copy=True).mul_(weight), reach

    def parts(self) -> dict[str, Accumulated]:
        """Return what has been accumulated, by upload key."""
        self._end_group()
        return self._parts

    def _end_group(self) -> None:
        for key, (vector, reach) in self._sums.items():
            total = self._parts[key].total
            assert total is not None
            total.add(vector.cpu(), reach)
        self._sums = {}


def needed_for_means(reductions: Mapping[str, Reduction]) -> set[str]:
    """Return the upload keys of means, and of their weights where these are uploaded."""
    means = {key: each.key for key, each in reductions.items() if isinstance(each, Mean)}
    return {*means, *filter(None, means.values())}


def lack_of_means(needed: Collection[str], upload: Mapping[str, Any]) -> str:
    """Return what an upload lacks of what means need, as text; empty if nothing.

    Such a mean would be that of the others, and not show it.
    """
    lacking = min({*needed} - upload.keys(), default=None)
    wanted = "which `uploads` of the method needs for a mean"
    return "" if lacking is None else f"does not upload {lacking!r}, {wanted}"


def merge_parts(parts: Iterable[dict[str, Accumulated]]) -> dict[str, Accumulated]:
    """Return what several processes have accumulated as if one had; it is no more bytes than a part."""
    found: dict[str, Accumulated] = {}
    for part in parts:
        for key, accumulated in part.items():
            found.setdefault(key, Accumulated()).merge(accumulated)
    return found


def combine(reductions: Mapping[str, Reduction], parts: Iterable[dict[str, Accumulated]]) -> dict[str, Any]:
    """Combine what all processes have accumulated into the uploads as ``Method.aggregate`` gets them.

    Keys that nobody uploaded are absent. Gathered payloads are in the order of the client numbers. Means of
    integers and plain numbers are floats.
    """
    result: dict[str, Any] = {}
    for key, whole in merge_parts(parts).items():
        reduction = reductions[key]
        if isinstance(reduction, Gather):
            result[key] = dict(sorted(whole.each.items()))
        elif whole.total is not None and (whole.weight or isinstance(reduction, Sum)):
            vector, is_mean = whole.total.value(), isinstance(reduction, Mean)
            if isinstance(reduction, Mean) and reduction.key is not None:
                if vector[-1] < _LEAST_WEIGHT:
                    raise BadCode(
                        f"the weights {reduction.key!r}",
                        f"of the mean of {key!r} add up to {vector[-1]:.1e} in this round",
                        "one of them must be above 0, and of a size about 1",
                    )
                vector = vector[:-1] / vector[-1]
            elif is_mean:
                vector = vector / whole.weight
            result[key] = unflatten_payload(whole.template, vector, is_mean, f"the sum of {key!r}")
    return result


def payload_bytes(payload: Any) -> int:
    """Return the bytes of a payload: every tensor's numbers at their own width, and 4 for a plain number."""
    if isinstance(payload, Params):
        return payload.nbytes
    leaves = leaves_of(payload)
    return sum([leaf.nbytes if isinstance(leaf, Tensor) else 4 * (leaf is not None) for leaf in leaves])


def _pieces(*vectors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """Cut vectors of one length into pieces for the cache; short ones, which are many, are left whole.

    So are those on a GPU, where every piece costs a launch.
    """
    if vectors[0].numel() <= _PIECE or vectors[0].device.type != "cpu":
        return [vectors]
    return zip(*(vector.split(_PIECE) for vector in vectors), strict=True)


def weighted_mean(
    items: Mapping[int, Any] | Sequence[Any], weights: Mapping[int, float] | Sequence[float]
) -> Any:
    """Return the mean of gathered payloads, with weights that the server has made of all of them.

    Args:
        items: client -> payload, as ``Gather`` gives them, or a list; Params, tensors, numbers or nests of
            them, all of one structure.
        weights: client -> weight, or a list in the same order; 0 or more, and not all 0. They need not add up
            to 1.

    Returns:
        The payload sum_i w_i x_i / sum_i w_i, computed in float64, in the structure of the first one.

    Raises:
        BadCode: the weights are not one for each payload, or not as said above; or structures differ.

    Examples:
        >>> import torch
        >>> from rayfl.training import weighted_mean
        >>> weighted_mean([torch.tensor([1.0, 0.0]), torch.tensor([5.0, 4.0])], weights=[3, 1])
        tensor([2., 1.])
    """
    if isinstance(items, Mapping):
        if not isinstance(weights, Mapping) or weights.keys() != items.keys():
            raise BadCode("weighted_mean", ": what is gathered by client needs a weight for each client")
        weights, items = [weights[client] for client in items], list(items.values())
    numbers = torch.tensor([float(weight) for weight in weights], dtype=torch.float64)
    usable = bool(((numbers >= 0) & (numbers < math.inf)).all()) and bool(numbers.sum() > 0)
    if len(items) != len(numbers) or not usable:
        raise BadCode(
            "weighted_mean",
            f": the weights of {len(items)} payloads are {short_repr(list(weights))}",
            "they must be as many finite numbers, 0 or more, and not all 0",
        )
    total, template = torch.zeros(0), None
    for item, weight in zip(items, (numbers / numbers.sum()).tolist(), strict=True):
        vector, own = flatten_payload(item)
        if template is None:
            total, template = torch.zeros(vector.numel(), dtype=torch.float64, device=vector.device), own
        _same_structure(template, own)
        total.add_(vector, alpha=weight)
    return unflatten_payload(template, total, True)


def _uploaded_weight(value: Any) -> float | None:
    """Return a number that a client uploads as its weight; None if it is none, or negative."""
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if not isinstance(value, int | float) or not 0 <= value <= LIMIT:
        return None
    return float(value)


def _no_whole(payload: Any) -> list[Tensor | float]:
    """Return the tensors and numbers of a payload that are no whole ones."""
    whole = (bool, int)
    return [
        x
        for x in pytree.tree_leaves(payload)
        if (x.is_floating_point() or x.is_complex() if isinstance(x, Tensor) else not isinstance(x, whole))
    ]


def flatten_payload(payload: Any) -> tuple[Tensor, Any]:
    """Return all numbers of a payload as one floating vector, and its template: shapes, dtypes, structure."""
    if isinstance(payload, Params):  # the usual case, without the detour over pytrees
        tensors = list(payload.tensors.values())
        kinds: list[Any] = [(t.shape, t.dtype) for t in tensors]
        spec: Any = (tuple(payload.tensors), payload.train_names)
    else:
        leaves, spec = pytree.tree_flatten(payload)
        kinds = [(x.shape, x.dtype) if isinstance(x, Tensor) else type(x) for x in leaves]
        if odd := [x for x in leaves if not isinstance(x, Tensor | int | float)]:
            raise TypeError(
                f"uploads {short_repr(odd[0])}: it must upload Params, tensors, numbers, or dicts of them; "
                "torch.as_tensor makes a tensor of an array"
            )
        device = next((x.device for x in leaves if isinstance(x, Tensor)), None)
        tensors = [
            x if isinstance(x, Tensor) else torch.tensor(x, dtype=torch.float64, device=device)
            for x in leaves
        ]
    if not tensors:
        return torch.zeros(0), (kinds, spec)
    with torch.no_grad():
        flat = [t if t.is_floating_point() else t.double() for t in tensors]
        return _flatten_dense_tensors(flat), (kinds, spec)


def _same_structure(a: Any, b: Any) -> None:
    if a != b:
        (kinds, spec), (others, other_spec) = a, b
        odd = [pair for pair in zip(kinds, others, strict=False) if pair[0] != pair[1]]
        what = f"{odd[0][0]} and {odd[0][1]}" if odd else f"{spec} and {other_spec}"
        raise BadCode("the uploads", f"of clients differ in structure, among them {what}", "use Gather()")


def unflatten_payload(template: Any, vector: Tensor, mean: bool, what: str = "") -> Any:
    """Return a combined payload in the structure of the uploads; sums of truth values are whole numbers.

    Args:
        template: of the uploads.
        vector: all numbers.
        mean: whether it is a mean, or a sum.
        what: the name of a sum, for the message.

    Raises:
        UserError: a sum is too large for the type of the uploads.
    """
    kinds, spec = template
    leaves: list[Any] = []
    start = 0
    for kind in kinds:
        if isinstance(kind, type):
            number = vector[start].item()
            leaves.append(number if mean else (int if kind is bool else kind)(number))
            start += 1
            continue
        shape, dtype = kind
        size = torch.Size(shape).numel()
        if mean and not dtype.is_floating_point:
            dtype = torch.float64
        elif dtype == torch.bool:
            dtype = torch.int64
        part = vector[start : start + size].reshape(shape)
        if not mean and dtype not in _WIDE and not _is_in_range(dtype, part):
            raise BadCode(
                what,
                f"in this round has numbers up to {part.abs().max():g}, too large for {dtype}",
                "upload wider ones, by t.long() or t.float()",
            )
        leaves.append(part.to(dtype, copy=True))
        start += size
    if isinstance(spec, tuple):
        return Params(dict(zip(spec[0], leaves, strict=True)), spec[1])
    return pytree.tree_unflatten(leaves, spec)


def _is_in_range(dtype: torch.dtype, numbers: Tensor) -> bool:
    """Return whether numbers are in the range of a type."""
    range = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return bool(((numbers >= range.min) & (numbers <= range.max)).all())
