"""Training client after client: the reference execution."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils import _pytree as pytree

from rayfl.training.client import Fitted, Request, inside_loss
from rayfl.training.dropout import seed_step
from rayfl.training.net import Batch
from rayfl.training.noise import step_keys
from rayfl.training.state import move_together, own_tensor
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


def run_loop(updates: Sequence[LocalUpdate], observe: Observer) -> list[Any]:
    """Start all coroutines, then drive one after another to its end; return what each returns.

    Args:
        updates: what ``Method.local_update`` returned for each client.
        observe: told of every finished fit.
    """
    with start_all(updates) as under_way:
        for k in range(len(updates)):
            while (request := under_way.waiting.get(k)) is not None:
                answer = total_loop(request) if request.total else fit_loop(request)
                if not request.total:
                    observe(k, answer)
                under_way.advance(k, answer)
    return under_way.results


def fit_loop(request: Request) -> Fitted:
    """Carry out one client's fit."""
    client, examples, descent = request.client, request.client._examples, request.descent
    work = Working(request.start, lambda t: examples.private_copy(t))
    trained, buffers = work.trained, work.buffers
    weights = work.assemble(trained, buffers, live=True)
    memory = descent.optimiser.memory(trained, descent.momentum, ())
    recall(request, memory)
    loss_sum = torch.zeros((), dtype=torch.float64, device=examples.device)
    for epoch, batch in _loop_batches(request):
        with seed_step(batch.key) if client._draws else nullcontext():
            with inside_loss(batch.key):
                loss = scalar(epoch_loss(request, epoch)(weights, batch, request.extra))
            take_step(request, work, loss, trained, memory, request.extra, stacked=False)
        loss_sum += loss.detach()
    keep_memory(request, memory)
    steps = len(request.batches)
    final = work.assemble([own_tensor(t) for t in trained], buffers, live=False)
    return Fitted(final, steps, loss_sum.item() / max(1, steps), descent.effective_steps(steps))


def total_loop(request: Request) -> Any:
    """Carry out one client's total."""
    total = None
    with torch.no_grad():
        for epoch, batch in _loop_batches(request):
            with inside_loss():
                value = epoch_loss(request, epoch)(request.start, batch, request.extra)
            total = value if total is None else pytree.tree_map(torch.add, total, value)
    return total


def _loop_batches(request: Request) -> Iterator[tuple[int, Batch]]:
    examples = request.client._examples
    keys = step_keys(request.key, len(request.batches))
    keys_there = keys.to(examples.device).unbind()
    places = move_together(request.batches, examples.home)
    drawn = [None] * len(places) if request.total else examples.draw_changes(request.batches, keys.unbind())
    counts = request.client._batch_counts
    for number, (indices, changes) in enumerate(zip(places, drawn, strict=True)):
        x, y = examples.batch(indices, changes)
        yield number // request.epoch_length, Batch(x, y, keys_there[number], counts)
