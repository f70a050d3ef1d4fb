"""Training many clients in one call.

A stack takes the losses of the loop and makes its update. It gives each client what the loop gives it, up to
rounding, because a stacked call contains only clients whose next batch has the same size: nothing is padded
or masked, so BatchNorm statistics and means are those of the real batch.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from rayfl.training.client import Client, Fitted, GradientRule, Request, inside_loss
from rayfl.training.dropout import draw_from
from rayfl.training.loop import fit_loop, total_loop
from rayfl.training.net import Batch, Net
from rayfl.training.noise import step_keys
from rayfl.training.optimisers import SGD, Descent
from rayfl.training.params import Params
from rayfl.training.state import move_together
from rayfl.training.step import (
    LocalUpdate,
    Observer,
    Working,
    epoch_loss,
    keep_memory,
    recall,
    scalar,
    start_all,
    take_step,
)


def run_stacked(updates: Sequence[LocalUpdate], observe: Observer) -> list[Any]:
    """Drive the coroutines together: fits at which clients wait and that belong together run as one stack.

    Clients may be in different phases; a stack holds those whose requests differ in nothing but per-client
    values handed over as ``start``, ``extra`` and data.
    """
    with start_all(updates) as under_way:
        while waiting := under_way.waiting:
            stack = _next_stack(waiting, updates)
            requests = [waiting[k] for k in stack]
            answers = total_stacked(requests) if requests[0].total else fit_stacked(requests)
            for k, answer in zip(stack, answers, strict=True):
                if isinstance(answer, Fitted):
                    observe(k, answer)
                under_way.advance(k, answer)
    return under_way.results


def discrepancy(updates: Sequence[LocalUpdate], tolerance: float) -> str:
    """Drive the updates of some clients to their ends in a loop, and say how stacks would give anything else.

    Every fit has only the first step of each of its losses, on a few samples, and every total has as little.
    What is compared are losses, buffers, and gradients before the clip and the optimiser, with the method's
    rules: in a few steps from weights that are moved a little, because what is 0 hides what lies below it.

    Args:
        updates: of clients some of which would share a stack.
        tolerance: what counts as rounding, relative to 1 and to the larger value.

    Returns:
        What a stack raises, or that it differs; nothing where it does not.
    """
    # Warnings are for the run itself, which tells of values that losses capture.
    with warnings.catch_warnings(action="ignore"), start_all(updates) as under_way:
        while waiting := under_way.waiting:
            stack = _next_stack(waiting, updates)
            requests = [waiting[k] for k in stack]
            size = min([FEW, *(len(batch) for r in requests for batch in r.batches[:1])])
            requests = [_first_steps(request, size) for request in requests]
            if why := _steps_differ(_error_at(requests), size, tolerance):
                return why
            for k, request in zip(stack, requests, strict=True):
                under_way.advance(k, _run_in_loop(request))
    return ""


FEW = 5
"""Samples of a batch that are enough to compare a stack with the loop."""
_GRADIENT = Descent(SGD(), 0.1, 0.0, 0.0, 0.0)
"""A step that takes a tenth of the gradient itself from the weights."""


def _first_steps(request: Request, size: int) -> Request:
    turns = request.batches[:: max(1, request.epoch_length)][: len(request.losses)]
    return replace(request, batches=[batch[:size] for batch in turns], epoch_length=1)


def _error_at(requests: Sequence[Request]) -> list[Request]:
    """Return requests whose parameters are a little off, each tensor by random numbers of its own."""
    draw, known = torch.Generator().manual_seed(0), dict[int, Tensor]()
    nets = (net for request in requests for net in (request.client.net, *request.client.nets.values()))
    names = {name for net in nets for name in net.train_names}

    def moved(t: Tensor) -> Tensor:
        if id(t) not in known:  # what clients share they share afterwards
            known[id(t)] = t + 0.1 * torch.randn(t.shape, generator=draw).to(t) / t.shape[1:].numel() ** 0.5
        return known[id(t)]

    def moved_weights(leaf: Any) -> Any:
        if not isinstance(leaf, Params):
            return leaf
        return Params({n: moved(t) if n in names else t for n, t in leaf.items()}, leaf.train_names)

    given = [(request.start, request.extra) for request in requests]
    found = pytree.tree_map(moved_weights, given, is_leaf=lambda leaf: isinstance(leaf, Params))
    return [replace(r, start=start, extra=extra) for r, (start, extra) in zip(requests, found, strict=True)]


def _steps_differ(requests: Sequence[Request], size: int, tolerance: float) -> str:
    """Say how a stack takes a few steps otherwise, on fewer and fewer samples; nothing where it does not.

    Each begins where the last one has led in the loop, so that rounding does not grow.
    """
    for samples in range(size, min(size, 3) - 1, -1):
        tried = [
            replace(r, batches=[batch[:samples] for batch in r.batches], descent=_GRADIENT) for r in requests
        ]
        looped = [_run_in_loop(request) for request in tried]
        try:
            stacked = total_stacked(tried) if tried[0].total else fit_stacked(tried)
        except Exception as error:
            return f"it raises {type(error).__name__}: {error}".splitlines()[0]
        if not are_close(looped, stacked, tolerance):
            return "losses or gradients differ by more than rounding"
        if not tried[0].total:
            requests = [replace(r, start=fit.weights) for r, fit in zip(requests, looped, strict=True)]
    return ""


def _run_in_loop(request: Request) -> Any:
    return total_loop(request) if request.total else fit_loop(request)


def are_close(one: Any, other: Any, tolerance: float) -> bool:
    """Return whether two results agree, relative to 1 and to the larger value; what is NaN in both does."""
    pairs = zip(pytree.tree_leaves(one), pytree.tree_leaves(other), strict=True)
    doubled = ([torch.as_tensor(leaf).double() for leaf in pair] for pair in pairs)
    return all(torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True) for a, b in doubled)


def _next_stack(waiting: dict[int, Request], updates: Sequence[Any]) -> list[int]:
    """Choose the stack that is least far in its method, so that stragglers catch up and stacks stay large.

    Only the line at which a coroutine waits tells how far it is: clients that leave out a phase, as in
    Fed-CO2 when they train for the first time, have the others' next phase as their first.
    """
    stacks: dict[Any, list[int]] = {}
    for k, request in waiting.items():
        stacks.setdefault(_stack_key(request), []).append(k)
    return min(stacks.values(), key=lambda stack: updates[stack[0]].cr_frame.f_lineno)


def fit_stacked(requests: Sequence[Request]) -> list[Fitted]:
    """Carry out the fits of clients that differ in data, ``start`` and ``extra`` only, in vmapped calls."""
    first, count = requests[0], len(requests)
    examples, descent = first.client._examples, first.descent
    extras, dims, extra_spec = _stack_extras([r.extra for r in requests], first.client._examples.device)
    start = pytree.tree_map(lambda *t: torch.stack(t), *[r.start for r in requests])
    work = Working(start, lambda t: t.detach().contiguous().clone(memory_format=torch.contiguous_format))
    trained, buffers = [t.detach() for t in work.trained], work.buffers
    memory = descent.optimiser.memory(trained, descent.momentum, (count,))
    keeps = first.client._kept is not None
    for k, request in enumerate(requests if keeps else ()):
        recall(request, [m[k] for m in memory])
    loss_sum = torch.zeros(count, dtype=torch.float64, device=examples.device)
    before, after = (_stacked_rule(rule, dims, extra_spec) for rule in (first.before_clip, first.after_clip))
    fit_of_all = replace(first, before_clip=before, after_clip=after)

    def one_loss(loss: Callable[..., Any], w: Any, batch: Batch, extra_leaves: list[Any]) -> Tensor:
        draw_from(batch.key)
        return scalar(loss(w, batch, pytree.tree_unflatten(extra_leaves, extra_spec)))

    for epoch, rows, batch in _stacked_batches(requests):
        now = [_rows(t, rows).detach().requires_grad_() for t in trained]
        stats = [_rows(b, rows) for b in buffers]
        remembered = [_rows(m, rows) for m in memory]
        extra = [e if d is None else _rows(e, rows) for e, d in zip(extras, dims, strict=True)]
        losses_of = vmap(partial(one_loss, epoch_loss(first, epoch)), in_dims=(0, _batch_dims(batch), dims))
        with inside_loss():
            losses = losses_of(work.assemble(now, stats, live=True), batch, extra)
        take_step(fit_of_all, work, losses.sum(), now, remembered, extra, stacked=True)
        with torch.no_grad():
            if rows is None:
                loss_sum += losses.detach()
                trained, buffers, memory = [t.detach() for t in now], stats, remembered
            else:
                loss_sum.index_add_(0, rows, losses.detach().double())
                parts = [*now, *stats, *remembered]
                for full, part in zip([*trained, *buffers, *memory], parts, strict=True):
                    full.index_copy_(0, rows, part.detach())
    first.client.net.release()
    for k, request in enumerate(requests if keeps else ()):
        keep_memory(request, [m[k].clone() for m in memory])
    final = work.assemble(trained, buffers, live=False)
    means = loss_sum.tolist()
    return [
        Fitted(
            pytree.tree_map(lambda t, k=k: t[k].clone(), final),  # a row would keep the whole stack alive
            len(r.batches),
            means[k] / max(1, len(r.batches)),
            descent.effective_steps(len(r.batches)),
        )
        for k, r in enumerate(requests)
    ]


def total_stacked(requests: Sequence[Request]) -> list[Any]:
    """Carry out the totals of clients that differ in data, ``start`` and ``extra`` only."""
    first, count = requests[0], len(requests)
    extras, dims, extra_spec = _stack_extras([r.extra for r in requests], first.client._examples.device)
    start = pytree.tree_map(lambda *t: torch.stack(t), *[r.start for r in requests])

    def one_value(w: Any, batch: Batch, extra_leaves: list[Any]) -> Any:
        return first.losses[0](w, batch, pytree.tree_unflatten(extra_leaves, extra_spec))

    totals: Any = None
    with torch.no_grad():
        for _, rows, batch in _stacked_batches(requests):
            extra = [e if d is None else _rows(e, rows) for e, d in zip(extras, dims, strict=True)]
            with inside_loss():
                values_of = vmap(one_value, in_dims=(0, _batch_dims(batch), dims))
                values = values_of(pytree.tree_map(lambda t, r=rows: _rows(t, r), start), batch, extra)
            if totals is None:
                totals = pytree.tree_map(lambda v: v.new_zeros((count, *v.shape[1:])), values)
            places = torch.arange(count, device=batch.y.device) if rows is None else rows
            pytree.tree_map(lambda t, v, p=places: t.index_add_(0, p, v), totals, values)
    first.client.net.release()
    return [pytree.tree_map(lambda t, k=k: t[k].clone(), totals) for k in range(count)]


def _batch_dims(batch: Batch) -> Any:
    return Batch(0, 0, 0, batch.counts if batch.counts is None else 0)  # type: ignore[arg-type]  # dimensions


def _rows(stack: Tensor, rows: Tensor | None) -> Tensor:
    return stack if rows is None else stack.index_select(0, rows)


def _stacked_rule(rule: GradientRule | None, dims: list[int | None], extra_spec: Any) -> GradientRule | None:
    """Return a rule for a whole stack, which takes the leaves of ``extra``."""
    if rule is None:
        return None

    def rule_once(g: Any, w: Any, leaves: list[Any]) -> Any:
        return rule(g, w, pytree.tree_unflatten(leaves, extra_spec))

    return vmap(rule_once, in_dims=(0, 0, dims))


def _stacked_batches(requests: Sequence[Request]) -> Iterator[tuple[int, Tensor | None, Batch]]:
    """Yield (epoch, rows, batch): clients whose next batch has one size, and their batches stacked.

    ``rows`` is None for all clients. Whatever says which samples they are moves to a GPU before the first
    batch, and at once: each move lets the GPU finish what it has to do, and it would never be ahead.
    """
    examples = requests[0].client._examples
    keys = [step_keys(r.key, len(r.batches)) for r in requests]
    turns = list(_stacked_calls(requests))
    now = [torch.stack([keys[k][step] for k, step in clients]) for _, clients in turns]
    indices = [torch.stack([requests[k].batches[step] for k, step in clients]) for _, clients in turns]
    rows = [torch.tensor([k for k, _ in clients]) for _, clients in turns]
    own = [r.client._batch_counts for r in requests]
    counts = None if own[0] is None else torch.stack([each for each in own if each is not None])
    now_there, rows_there = (move_together(each, examples.device) for each in (now, rows))
    drawn = [None] * len(turns) if requests[0].total else examples.draw_changes(indices, now)
    for (epoch, clients), changes, key_there, place, row in zip(
        turns, drawn, now_there, move_together(indices, examples.home), rows_there, strict=True
    ):
        x, y = examples.batch(place, changes)
        some = None if len(clients) == len(requests) else row
        yield epoch, some, Batch(x, y, key_there, counts if counts is None else _rows(counts, some))


def _stacked_calls(requests: Sequence[Request]) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Yield the epoch and the clients, each with the number of its batch, of one stacked call after another.

    Epoch by epoch, full batches first and then the remainders, so that full batches stay together and each
    distinct size of a remainder costs one call per epoch.
    """
    # the last batch of an epoch may be larger than a full one, where BatchNorm has had one sample added to it
    full = max((len(r.batches[0]) for r in requests if r.epoch_length > 1), default=0)
    done = [0] * len(requests)
    while unfinished := [k for k, r in enumerate(requests) if done[k] < len(r.batches)]:
        epoch = {k: done[k] // requests[k].epoch_length for k in unfinished}
        behind = [k for k in unfinished if epoch[k] == min(epoch.values())]
        size = {k: len(requests[k].batches[done[k]]) for k in behind}
        turn = full if full in size.values() else max(size.values())
        ks = [k for k in behind if size[k] == turn]
        yield epoch[ks[0]], [(k, done[k]) for k in ks]
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
        elif isinstance(head, int | float | str) and all(v == head for v in column):
            leaves.append(head)
            dims.append(None)
        else:
            dtype = torch.float64 if isinstance(head, float) else None
            leaves.append(torch.tensor(column, dtype=dtype, device=device))
            dims.append(0)
    return leaves, dims, spec


# ---- what may share a stack


def _stack_key(request: Request) -> Any:
    def describe(leaf: Any) -> Any:
        return (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, Tensor) else type(leaf)

    start, start_spec = pytree.tree_flatten(request.start)
    extra, extra_spec = pytree.tree_flatten(request.extra)
    return (
        id(request.client.net),
        *(_captured_values(f) for f in (request.losses, request.before_clip, request.after_clip)),
        request.descent,
        request.total,
        start_spec,
        tuple(map(describe, start)),
        extra_spec,
        tuple(map(describe, extra)),
    )


def _captured_values(thing: Any) -> Any:
    """Identify a function by its code and by everything it captures.

    Only the first client's function is called for a whole stack. Tensors, Params and other objects count by
    identity, so a loss that captures a client's own value is never run for another client: it costs speed,
    not correctness.
    """
    if isinstance(thing, int | float | str | bytes | bool | type(None) | torch.dtype | types.CodeType):
        return thing
    if isinstance(thing, Client):
        # its own facts cannot be read inside a loss
        return ("client", id(thing.net), *map(id, thing.nets.values()))
    if isinstance(thing, Net):
        return ("net", id(thing))
    if isinstance(thing, tuple):
        return tuple(map(_captured_values, thing))
    if isinstance(thing, types.MethodType):
        return (_captured_values(thing.__self__), _captured_values(thing.__func__))
    if isinstance(thing, types.FunctionType):
        cells = [c.cell_contents for c in thing.__closure__ or ()]
        defaults = [*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]
        return (thing.__code__, *(_captured_values(v) for v in [*cells, *defaults]))
    return id(thing)
