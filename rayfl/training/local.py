"""The one training loop, in two executions: client after client (loop), or many in one call (stacked).

Both take the same losses and make the same update. The loop is the reference; a stack gives each client what
the loop gives it, up to rounding, because a stacked call contains only clients whose next batch has the same
size: nothing is padded or masked, so BatchNorm statistics and means are those of the real batch.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from rayfl.training.client import Client, Fitted, Optimiser, Request, inside_loss
from rayfl.training.net import Batch, Net
from rayfl.training.noise import step_keys
from rayfl.training.params import Params

LocalUpdate = Coroutine[Request, Any, Any]
Observer = Callable[[int, Fitted], None]
"""Told of every finished fit: the position of the client among the coroutines, and the result."""


class _UnderWay:
    """Clients' updates, and how far they are: at which request each waits, or what it has returned."""

    def __init__(self, updates: Sequence[LocalUpdate]) -> None:
        self.updates = updates
        self.results: list[Any] = [None] * len(updates)
        self.waiting: dict[int, Request] = {}

    def start(self) -> None:
        """Let all come to their first request."""
        for k in range(len(self.updates)):
            self.advance(k, None)

    def advance(self, k: int, answer: Any) -> None:
        """Let a coroutine go on with the answer to its request, to its next request or its end."""
        try:
            self.waiting[k] = self.updates[k].send(answer)
        except StopIteration as end:
            self.waiting.pop(k, None)
            self.results[k] = end.value

    def close(self) -> None:
        """Give up those that have not come to their end."""
        for update in self.updates:
            update.close()


def run_loop(updates: Sequence[LocalUpdate], observe: Observer) -> list[Any]:
    """Start all coroutines, then drive one after another to its end; return what each returns.

    Args:
        updates: what ``Method.local_update`` returned for each client.
        observe: told of every finished fit.
    """
    with closing(_UnderWay(updates)) as under_way:
        under_way.start()
        for k in range(len(updates)):
            while (request := under_way.waiting.get(k)) is not None:
                answer = total_loop(request) if request.total else fit_loop(request)
                if not request.total:
                    observe(k, answer)
                under_way.advance(k, answer)
    return under_way.results


def run_stacked(updates: Sequence[LocalUpdate], observe: Observer) -> list[Any]:
    """Drive the coroutines together: the fits at which clients wait are grouped, and each group runs at once.

    Clients may be in different phases; a group holds those whose requests differ in nothing but per-client
    values handed over as ``start``, ``extra`` and data.
    """
    with closing(_UnderWay(updates)) as under_way:
        under_way.start()
        while waiting := under_way.waiting:
            group = _next_group(waiting, updates)
            requests = [waiting[k] for k in group]
            answers = total_stacked(requests) if requests[0].total else fit_stacked(requests)
            for k, answer in zip(group, answers, strict=True):
                if isinstance(answer, Fitted):
                    observe(k, answer)
                under_way.advance(k, answer)
    return under_way.results


def _next_group(waiting: dict[int, Request], updates: Sequence[LocalUpdate]) -> list[int]:
    """Choose the group that is least far in its method, so that stragglers catch up and groups stay large."""
    groups: dict[Any, list[int]] = {}
    for k, request in waiting.items():
        groups.setdefault(_group_key(request), []).append(k)
    _warn_if_captures_split(groups, waiting)

    def line(group: list[int]) -> int:
        frame = getattr(updates[group[0]], "cr_frame", None)
        return frame.f_lineno if frame is not None else 0

    return min(groups.values(), key=line)


# ---- the update, shared by both executions


class Working:
    """The private copy of the weights under training: flat lists of tensors, and the nets they form.

    Args:
        start: a net's weights or several nets' by name.
        copy: makes the private copy of a tensor.
    """

    def __init__(self, start: Params | dict[str, Params], copy: Callable[[Tensor], Tensor]) -> None:
        self._single = isinstance(start, Params)
        nets = {"": start} if isinstance(start, Params) else start
        self.trained: list[Tensor] = []
        self.buffers: list[Tensor] = []
        self.net_of: list[int] = []  # the number of the net of each trained tensor
        self._layout: list[tuple[str, list[tuple[str, bool]], frozenset[str]]] = []
        for number, (name, w) in enumerate(nets.items()):
            for entry, tensor in w.tensors.items():
                if entry in w.train_names:
                    self.trained.append(copy(tensor).requires_grad_())
                    self.net_of.append(number)
                else:
                    self.buffers.append(copy(tensor))
            self._layout.append((name, [(e, e in w.train_names) for e in w.tensors], w.train_names))

    def assemble(self, trained: Sequence[Tensor], buffers: Sequence[Tensor] | None, live: bool) -> Any:
        """Return tensors in the structure of ``start``; without ``buffers`` the trainable entries only."""
        next_trained, next_buffer = iter(trained), iter(buffers or ())
        nets = {}
        for name, entries, train_names in self._layout:
            tensors = {
                entry: next(next_trained) if train else next(next_buffer)
                for entry, train in entries
                if train or buffers is not None
            }
            nets[name] = Params(tensors, train_names, live)
        return nets[""] if self._single else nets


def _leaves(found: Any, given: Any) -> list[Tensor]:
    """Return the tensors of the gradients that a rule has ``found``, in the order of those it was ``given``.

    Raises:
        KeyError: the rule returns other names than it was given.
    """
    pairs = [(found, given)] if isinstance(given, Params) else [(found[net], given[net]) for net in given]
    for theirs, ours in pairs:
        if theirs.keys() != ours.keys():
            odd = sorted(theirs.keys() ^ ours.keys())
            raise KeyError(f"a rule of fit must return the names that it was given; {odd[:3]} differ")
    return [theirs[name] for theirs, ours in pairs for name in ours]


def _gradients(loss: Tensor, trained: list[Tensor]) -> tuple[list[Tensor], list[int]]:
    """Return gradients, zeros where the loss does not depend on a tensor, and the places where it does.

    Like an optimiser that meets ``grad is None``, the update leaves the others alone.
    """
    if not trained:  # a fit that only renews buffers
        return [], []
    found = torch.autograd.grad(loss, trained, allow_unused=True)
    used = [i for i, g in enumerate(found) if g is not None]
    return [torch.zeros_like(t) if g is None else g for g, t in zip(found, trained, strict=True)], used


def _sgd(
    trained: list[Tensor],
    gradients: list[Tensor],
    velocity: list[Tensor] | None,
    optimiser: Optimiser,
    used: list[int],
) -> None:
    """Take one step of SGD in place; nothing in it looks across the clients of a stack."""
    if len(used) < len(trained):
        trained, gradients = [trained[i] for i in used], [gradients[i] for i in used]
        velocity = [velocity[i] for i in used] if velocity is not None else None
    if not trained:
        return
    if optimiser.weight_decay:
        gradients = list(torch._foreach_add(gradients, trained, alpha=optimiser.weight_decay))
    if velocity is not None:
        torch._foreach_mul_(velocity, optimiser.momentum)
        torch._foreach_add_(velocity, gradients)
        gradients = velocity
    torch._foreach_add_(trained, gradients, alpha=-optimiser.lr)


def _clip(gradients: list[Tensor], net_of: list[int], limit: float, stacked: bool) -> list[Tensor]:
    """Scale each net's gradient to a norm of at most ``limit``, per client."""
    clipped = list(gradients)
    for net in set(net_of):
        mine = [i for i, n in enumerate(net_of) if n == net]
        if stacked:
            flat = [gradients[i].reshape(len(gradients[i]), -1) for i in mine]
            norms = torch.stack([g.norm(dim=1) for g in flat]).norm(dim=0)
        else:
            norms = torch.stack([gradients[i].norm() for i in mine]).norm()
        scale = (limit / (norms + 1e-6)).clamp(max=1.0)
        for i in mine:
            clipped[i] = (
                gradients[i] * scale.view(-1, *[1] * (gradients[i].dim() - 1))
                if stacked
                else (gradients[i] * scale)
            )
    return clipped


def _scalar(loss: Tensor) -> Tensor:
    return loss if loss.dim() == 0 else loss.mean()


# ---- loop


def fit_loop(request: Request) -> Fitted:
    """Carry out one client's fit."""
    images, optimiser = request.client._images, request.optimiser
    work = Working(request.start, lambda t: images.private_copy(t))
    trained, buffers = work.trained, work.buffers
    weights = work.assemble(trained, buffers, live=True)
    velocity = [torch.zeros_like(t) for t in trained] if optimiser.momentum else None
    loss_sum = torch.zeros((), dtype=torch.float64, device=images.device)
    for epoch, batch in _batches(request):
        with inside_loss():
            loss = _scalar(_loss_of(request, epoch)(weights, batch, request.extra))
        gradients, used = _gradients(loss, trained)
        with torch.no_grad():
            if request.regularise is not None:
                gradients = _ruled(request.regularise, work, gradients, trained, request.extra)
            if optimiser.clip:
                gradients = _clip(gradients, work.net_of, optimiser.clip, stacked=False)
            if request.correct is not None:
                gradients = _ruled(request.correct, work, gradients, trained, request.extra)
            _sgd(trained, gradients, velocity, optimiser, used)
            loss_sum += loss.detach()
    steps = len(request.batches)
    final = work.assemble([_plain(t.detach()) for t in trained], buffers, live=False)
    return Fitted(final, steps, loss_sum.item() / max(1, steps), optimiser.effective_steps(steps))


def _plain(t: Tensor) -> Tensor:
    """Return a weight in the memory layout that it has when it is read from a checkpoint.

    One of a single input channel counts as contiguous in the channels-last layout too, and the strides then
    decide by which kernel a convolution computes.
    """
    t = t.contiguous()
    return t.view(-1).view(t.shape) if 1 in t.shape else t


def total_loop(request: Request) -> Any:
    """Carry out one client's total."""
    total = None
    with torch.no_grad():
        for epoch, batch in _batches(request):
            with inside_loss():
                value = _loss_of(request, epoch)(request.start, batch, request.extra)
            total = value if total is None else pytree.tree_map(torch.add, total, value)
    return total


def _loss_of(request: Request, epoch: int) -> Callable[..., Any]:
    return request.losses[epoch % len(request.losses)]


def _batches(request: Request) -> Iterator[tuple[int, Batch]]:
    images = request.client._images
    keys = step_keys(request.key, len(request.batches))
    keys_there = keys.to(images.device).unbind()
    for number, (key, indices) in enumerate(zip(keys.unbind(), request.batches, strict=True)):
        x, y = images.batch(indices, None if request.total else key)
        yield number // request.epoch_length, Batch(x, y, keys_there[number])


def _ruled(
    rule: Callable[[Any, Any, Any], Any],
    work: Working,
    gradients: list[Tensor],
    trained: list[Tensor],
    extra: Any,
) -> list[Tensor]:
    now = work.assemble([t.detach() for t in trained], None, live=False)
    given = work.assemble(gradients, None, live=False)
    with inside_loss():
        return _leaves(rule(given, now, extra), given)


# ---- stacked


def fit_stacked(requests: Sequence[Request]) -> list[Fitted]:
    """Carry out the fits of clients that differ in data, ``start`` and ``extra`` only, in vmapped calls."""
    first, count = requests[0], len(requests)
    images, optimiser = first.client._images, first.optimiser
    extras, dims, extra_spec = _stack_extras([r.extra for r in requests], first.client._images.device)
    start = pytree.tree_map(lambda *t: torch.stack(t), *[r.start for r in requests])
    work = Working(start, lambda t: t.detach().contiguous().clone(memory_format=torch.contiguous_format))
    trained, buffers = [t.detach() for t in work.trained], work.buffers
    velocity = [torch.zeros_like(t) for t in trained] if optimiser.momentum else None
    loss_sum = torch.zeros(count, dtype=torch.float64, device=images.device)

    def one_loss(loss: Callable[..., Any], w: Any, batch: Batch, extra_leaves: list[Any]) -> Tensor:
        return _scalar(loss(w, batch, pytree.tree_unflatten(extra_leaves, extra_spec)))

    for epoch, rows, batch in _stacked_batches(requests):
        now = [_rows(t, rows).detach().requires_grad_() for t in trained]
        stats = [_rows(b, rows) for b in buffers]
        speed = None if velocity is None else [_rows(v, rows) for v in velocity]
        extra = [e if d is None else _rows(e, rows) for e, d in zip(extras, dims, strict=True)]
        losses_of = vmap(partial(one_loss, _loss_of(first, epoch)), in_dims=(0, 0, dims))
        with inside_loss():
            losses = losses_of(work.assemble(now, stats, live=True), batch, extra)
        gradients, used = _gradients(losses.sum(), now)
        with torch.no_grad():
            if first.regularise is not None:
                gradients = _ruled_stacked(first.regularise, work, gradients, now, extra, dims, extra_spec)
            if optimiser.clip:
                gradients = _clip(gradients, work.net_of, optimiser.clip, stacked=True)
            if first.correct is not None:
                gradients = _ruled_stacked(first.correct, work, gradients, now, extra, dims, extra_spec)
            _sgd(now, gradients, speed, optimiser, used)
            if rows is None:
                loss_sum += losses.detach()
                trained, buffers, velocity = [t.detach() for t in now], stats, speed
            else:
                loss_sum.index_add_(0, rows, losses.detach().double())
                parts = [*now, *stats, *(speed or [])]
                for full, part in zip([*trained, *buffers, *(velocity or [])], parts, strict=True):
                    full.index_copy_(0, rows, part.detach())
    first.client.net.release()
    final = work.assemble(trained, buffers, live=False)
    means = loss_sum.tolist()
    return [
        Fitted(
            pytree.tree_map(lambda t, k=k: t[k].clone(), final),  # a row would keep the whole stack alive
            len(r.batches),
            means[k] / max(1, len(r.batches)),
            optimiser.effective_steps(len(r.batches)),
        )
        for k, r in enumerate(requests)
    ]


def total_stacked(requests: Sequence[Request]) -> list[Any]:
    """Carry out the totals of clients that differ in data, ``start`` and ``extra`` only."""
    first, count = requests[0], len(requests)
    extras, dims, extra_spec = _stack_extras([r.extra for r in requests], first.client._images.device)
    start = pytree.tree_map(lambda *t: torch.stack(t), *[r.start for r in requests])

    def one_value(w: Any, batch: Batch, extra_leaves: list[Any]) -> Any:
        return first.losses[0](w, batch, pytree.tree_unflatten(extra_leaves, extra_spec))

    values_of = vmap(one_value, in_dims=(0, 0, dims))
    totals: Any = None
    with torch.no_grad():
        for _, rows, batch in _stacked_batches(requests):
            extra = [e if d is None else _rows(e, rows) for e, d in zip(extras, dims, strict=True)]
            with inside_loss():
                values = values_of(pytree.tree_map(lambda t, r=rows: _rows(t, r), start), batch, extra)
            if totals is None:
                totals = pytree.tree_map(lambda v: v.new_zeros((count, *v.shape[1:])), values)
            places = torch.arange(count, device=batch.y.device) if rows is None else rows
            pytree.tree_map(lambda t, v, p=places: t.index_add_(0, p, v), totals, values)
    first.client.net.release()
    return [pytree.tree_map(lambda t, k=k: t[k].clone(), totals) for k in range(count)]


def _rows(stack: Tensor, rows: Tensor | None) -> Tensor:
    return stack if rows is None else stack.index_select(0, rows)


def _ruled_stacked(
    rule: Callable[[Any, Any, Any], Any],
    work: Working,
    gradients: list[Tensor],
    trained: list[Tensor],
    extra: list[Any],
    dims: list[int | None],
    extra_spec: Any,
) -> list[Tensor]:
    def one(g: Any, w: Any, leaves: list[Any]) -> Any:
        return rule(g, w, pytree.tree_unflatten(leaves, extra_spec))

    now = work.assemble([t.detach() for t in trained], None, live=False)
    stacked_rule = vmap(one, in_dims=(0, 0, dims))
    given = work.assemble(gradients, None, live=False)
    with inside_loss():
        return _leaves(stacked_rule(given, now, extra), given)


def _stacked_batches(requests: Sequence[Request]) -> Iterator[tuple[int, Tensor | None, Batch]]:
    """Yield (epoch, rows, batch): clients whose next batch has one size, and their batches stacked.

    Epoch by epoch, full batches first and then the remainders, so that full batches stay together and each
    distinct size of a remainder costs one call per epoch. ``rows`` is None for all clients.
    """
    images = requests[0].client._images
    device = images.device
    keys = [step_keys(r.key, len(r.batches)) for r in requests]
    # the last batch of an epoch may be larger than a full one, where BatchNorm has had one sample added to it
    full = max((len(r.batches[0]) for r in requests if r.epoch_length > 1), default=0)
    done = [0] * len(requests)
    while True:
        unfinished = [k for k, r in enumerate(requests) if done[k] < len(r.batches)]
        if not unfinished:
            return
        epoch = {k: done[k] // requests[k].epoch_length for k in unfinished}
        behind = [k for k in unfinished if epoch[k] == min(epoch.values())]
        size = {k: len(requests[k].batches[done[k]]) for k in behind}
        turn = full if full in size.values() else max(size.values())
        ks = [k for k in behind if size[k] == turn]
        rows = None if len(ks) == len(requests) else torch.tensor(ks, device=device)
        now = torch.stack([keys[k][done[k]] for k in ks])
        indices = torch.stack([requests[k].batches[done[k]] for k in ks])
        x, y = images.batch(indices, None if requests[0].total else now)
        yield epoch[ks[0]], rows, Batch(x, y, now.to(device))
        for k in ks:
            done[k] += 1


def _stack_extras(
    extras: Sequence[Any], device: torch.device | None = None
) -> tuple[list[Any], list[int | None], Any]:
    """Stack ``extra`` leaf by leaf; a leaf that is one object or number for all clients stays single."""
    flat = [pytree.tree_flatten(e)[0] for e in extras]
    spec = pytree.tree_flatten(extras[0])[1]
    leaves: list[Any] = []
    dims: list[int | None] = []
    for column in zip(*flat, strict=True):
        head = column[0]
        if all(v is head for v in column):
            leaves.append(head)
            dims.append(None)
        elif isinstance(head, Tensor):
            leaves.append(torch.stack(column))
            dims.append(0)
        elif all(v == head for v in column):
            leaves.append(head)
            dims.append(None)
        else:
            dtype = torch.float64 if isinstance(head, float) else None
            leaves.append(torch.tensor(column, dtype=dtype, device=device))
            dims.append(0)
    return leaves, dims, spec


# ---- what may share a stack


def _group_key(request: Request) -> Any:
    def describe(leaf: Any) -> Any:
        return (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, Tensor) else type(leaf)

    start, start_spec = pytree.tree_flatten(request.start)
    extra, extra_spec = pytree.tree_flatten(request.extra)
    return (
        id(request.client.net),
        *(_captured(f) for f in (request.losses, request.regularise, request.correct)),
        request.optimiser,
        request.total,
        start_spec,
        tuple(map(describe, start)),
        extra_spec,
        tuple(map(describe, extra)),
    )


def _captured(thing: Any) -> Any:
    """Identify a function by its code and by everything it captures.

    Only the first client's function is called for a whole stack. Tensors, Params and other objects count by
    identity, so a loss that captures a client's own value is never run for another client: it costs speed,
    not correctness.
    """
    if isinstance(thing, int | float | str | bytes | bool | type(None) | torch.dtype | types.CodeType):
        return thing
    if isinstance(thing, Client):
        return ("client", id(thing.net))  # its own facts cannot be read inside a loss
    if isinstance(thing, Net):
        return ("net", id(thing))
    if isinstance(thing, tuple):
        return tuple(map(_captured, thing))
    if isinstance(thing, types.MethodType):
        return (_captured(thing.__self__), _captured(thing.__func__))
    if isinstance(thing, types.FunctionType):
        cells = [c.cell_contents for c in thing.__closure__ or ()]
        defaults = [*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]
        return (thing.__code__, *(_captured(v) for v in [*cells, *defaults]))
    return id(thing)


def _warn_if_captures_split(groups: dict[Any, list[int]], waiting: dict[int, Request]) -> None:
    alike: dict[Any, set[Any]] = {}  # groups that only what their functions capture tells apart
    for key, members in groups.items():
        request = waiting[members[0]]
        functions = (*request.losses, request.regularise, request.correct)
        codes = tuple(getattr(f, "__code__", None) for f in functions)
        alike.setdefault((codes, key[0], key[4:]), set()).add(key[1:4])
    for ((code, *_), *_), captures in alike.items():
        if code is not None and len(captures) > 1:
            warnings.warn(
                f"{code.co_name} ({code.co_filename}:{code.co_firstlineno}) captures values of single "
                "clients, which keeps their fits from being stacked: pass them to fit as `extra`",
                stacklevel=2,
            )
