"""Scoring: how well each view does what is learned on a client's samples, and at what loss.

``Method.scores`` is a coroutine for one client. What it awaits, the calls of nets, is made for many clients
at once: those that wait with the same weights share a call.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Container, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rayfl.data.task import NOT_ASKED, Task
from rayfl.errors import BadCode
from rayfl.evaluation.measures import Measure, or_none
from rayfl.system.text import short_repr
from rayfl.training.client import NetCall
from rayfl.training.examples import Examples
from rayfl.training.losses import BatchLoss, Loss, resolve_loss
from rayfl.training.noise import step_keys
from rayfl.training.step import start_all

BATCH = 512
"""Most samples of a client that ``Method.scores`` sees at once."""
CALL = 128
"""Samples in a call with weights that clients share, filled up with zeros: the last bits of scores depend on
the size of the call, and must not depend on which clients are scored where."""
ALIGNED = 16
"""They also depend on where a row lies in memory: each has its fixed place among so many."""
BLOCK = 2048
"""Samples of clients that are scored at a time; one client may have more."""
BLOCK_BYTES = 2**28
"""Most bytes of their inputs, or of their states."""
Scoring = Coroutine[NetCall, Tensor, Mapping[str, Tensor]]
"""What ``Method.scores`` returns before it is awaited: scores [B, classes] by view."""
Predict = Callable[[Tensor], Scoring]
"""What is asked for scores of inputs [B, ...]: a method, for one client."""


class Score(NamedTuple):
    """The sum of the figure over some samples and their mean loss, which is None where a view has none.

    The figure is the task's: of classes 1 for a correct prediction.

    ``measured`` has the metrics that were asked for, by name; None where one is undefined.
    """

    score: float | None
    loss: float | None
    measured: Mapping[str, float | None] = {}


ClientScores = dict[str, dict[str, Score]]
"""What a client's models score: part of its data (val, test) -> view -> score."""


def answer_at_once(scoring: Scoring) -> Mapping[str, Tensor]:
    """Make each call of a net when it is awaited, with the inputs as they are; gradients pass through."""
    with start_all([check_scoring(scoring)], NetCall) as under_way:
        while call := under_way.waiting.get(0):
            under_way.advance(0, call.run(call.x))
    found: Mapping[str, Tensor] = under_way.results[0]
    return found


def answer_together(
    scorings: Sequence[Scoring], clients: Sequence[int], shared: Container[int]
) -> list[Mapping[str, Tensor]]:
    """Make calls with the same weights together, in one fixed size, and those with own weights one by one.

    Args:
        scorings: of several clients, each with inputs of its own.
        clients: whose they are.
        shared: the ``id`` of each Params that clients have in common.
    """
    with start_all([check_scoring(each) for each in scorings], NetCall) as under_way:
        while waiting := dict(under_way.waiting):
            groups: dict[Any, list[int]] = {}
            for k, call in waiting.items():
                own, x = -1 if id(call.w) in shared else k, call.x
                key = (own, id(call.w), id(call.net), call.cut, x.shape[1:], x.dtype)
                groups.setdefault(key, []).append(k)
            for (own, *_), ks in groups.items():
                call, xs = waiting[ks[0]], [waiting[k].x for k in ks]
                whose = [clients[k] for k in ks]
                outputs: Sequence[Tensor] = [call.run(xs[0])] if own >= 0 else ()
                if not outputs:
                    sizes = [len(x) for x in xs]
                    rows = _call_in_fixed_size(call, torch.cat(xs), sizes, whose).split(sizes)
                    # Copied, because some kernels' last bits depend on how their input lies in memory.
                    outputs = [part.clone() for part in rows]
                for k, output in zip(ks, outputs, strict=True):
                    under_way.advance(k, output)
    return under_way.results


def answer_for_all(scoring: Scoring, sizes: Sequence[int], clients: Sequence[int]) -> Mapping[str, Tensor]:
    """Make the calls of one coroutine with the inputs of many clients, as :func:`answer_together` would.

    Args:
        scoring: what scores all of them.
        sizes: samples of each client.
        clients: whose they are.
    """
    with start_all([check_scoring(scoring)], NetCall) as under_way:
        while call := under_way.waiting.get(0):
            under_way.advance(0, _call_in_fixed_size(call, call.x, sizes, clients))
    found: Mapping[str, Tensor] = under_way.results[0]
    return found


def check_scoring(scoring: Any) -> Any:
    """Refuse scores that are not those of a coroutine."""
    if not inspect.iscoroutine(scoring):
        problem = f"returns {short_repr(scoring)} at once"
        raise BadCode("scores", problem, "it must be an `async def`, which awaits client.eval")
    return scoring


def _call_in_fixed_size(call: NetCall, x: Tensor, sizes: Sequence[int], clients: Sequence[int]) -> Tensor:
    """Return what a net makes of clients' inputs, whose places mod ALIGNED follow one another from a first.

    The first is that of the client: a hash of its number, because those that are scored together may have
    numbers of one remainder.
    """
    counted = np.array(sizes)
    firsts = (np.array(clients) * 0x9E3779B1 & 0xFFFFFFFF) >> 28
    within = np.arange(counted.sum()) - np.repeat(np.cumsum(counted) - counted, counted)
    residues = (np.repeat(firsts, counted) + within) % ALIGNED
    counts = np.bincount(residues, minlength=ALIGNED)
    earlier = np.arange(len(residues)) - (np.cumsum(counts) - counts)[np.sort(residues)]
    places = np.empty_like(residues)
    places[np.argsort(residues, kind="stable")] = earlier * ALIGNED + np.sort(residues)
    where = torch.from_numpy(places).to(x.device)
    size = -(-int(counts.max()) * ALIGNED // CALL) * CALL
    filled = torch.empty_strided((size, *x.shape[1:]), x.stride(), dtype=x.dtype, device=x.device).zero_()
    filled[where] = x  # in the layout of the inputs
    return torch.cat([call.run(part) for part in filled.split(CALL)])[where]


class _Piece(NamedTuple):
    """Samples of a client that are scored at once: their places, and what changes their images at random."""

    client: int
    places: Tensor
    changes: Tensor | None


def score_clients(
    predicts: Mapping[int, Predict],
    samples: Mapping[int, Tensor],
    examples: Examples,
    shared: Container[int] = (),
    without_loss: frozenset[str] = frozenset(),
    keys: Mapping[int, int] | None = None,
    measures: Sequence[Measure] = (),
) -> dict[int, dict[str, Score]]:
    """Score every view of some clients.

    Args:
        predicts: client -> what gives its scores; the largest score is the prediction. If it is the same for
            all, it is asked once for many clients.
        samples: client -> int64 [n], the places of its samples in the dataset, at least one.
        examples: the dataset.
        shared: see :func:`answer_together`.
        without_loss: views whose scores are not logits, for which cross-entropy has no meaning.
        keys: for images augmented as in training, client -> what they are drawn from.
        measures: metrics of all samples.
    """
    if not samples:
        return {}
    scored: list[Mapping[str, Tensor]] = []
    pieces, alike = _cut_pieces(samples, examples, keys), len({*predicts.values()}) < len(predicts)
    with torch.no_grad():
        for block in _cut_blocks(pieces, examples):
            inputs = _read_inputs(block, examples)
            clients, sizes = [piece.client for piece in block], [len(piece.places) for piece in block]
            if alike:
                scored.append(answer_for_all(predicts[clients[0]](inputs), sizes, clients))
                continue
            # Copied, because some kernels' last bits depend on how their input lies in memory.
            own = [part.clone() for part in inputs.split(sizes)]
            scorings = [predicts[i](x) for i, x in zip(clients, own, strict=True)]
            scored.append(_join(answer_together(scorings, clients, shared)))
    views = _join(scored)
    targets = examples.targets(torch.cat([piece.places for piece in pieces]))
    counts = [len(own) for own in samples.values()]
    rows = score_rows(views, targets, counts, examples.task, without_loss, measures)
    return dict(zip(samples, rows, strict=True))


def _join(found: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Put scores one below the other, on the CPU; views that share them in all parts share them then, too."""
    joined: dict[tuple[int, ...], Tensor] = {}
    views = {}
    for view in found[0]:
        parts = tuple(id(scores[view]) for scores in found)
        if parts not in joined:
            joined[parts] = torch.cat([scores[view] for scores in found]).cpu()
        views[view] = joined[parts]
    return views


def _cut_pieces(
    samples: Mapping[int, Tensor], examples: Examples, keys: Mapping[int, int] | None
) -> list[_Piece]:
    parts = {i: own.split(BATCH) if len(own) > BATCH else (own,) for i, own in samples.items()}
    flat = [(i, part) for i, own in parts.items() for part in own]
    changes: Sequence[Tensor | None] = [None] * len(flat)
    if keys:
        drawn_from = [key for i, own in parts.items() for key in step_keys(keys[i], len(own)).unbind()]
        changes = examples.draw_changes([part for _, part in flat], drawn_from)
    return [_Piece(i, part, change) for (i, part), change in zip(flat, changes, strict=True)]


def _cut_blocks(pieces: Iterable[_Piece], examples: Examples) -> Iterator[list[_Piece]]:
    """Yield pieces that are read at a time."""
    most = min(BLOCK, BLOCK_BYTES // examples.bytes_per_input)
    block: list[_Piece] = []
    count = 0
    for piece in pieces:
        block.append(piece)
        count += len(piece.places)
        if count >= most:
            yield block
            block, count = [], 0
    if block:
        yield block


def _read_inputs(block: Sequence[_Piece], examples: Examples) -> Tensor:
    """Return the inputs of pieces, one below the other."""
    if block[0].changes is not None:
        return torch.cat([examples.batch(piece.places, piece.changes)[0] for piece in block])
    return examples.batch(torch.cat([piece.places for piece in block]))[0]


def score_rows(
    views: Mapping[str, Tensor],
    targets: Tensor,
    counts: Sequence[int],
    task: Task,
    without_loss: frozenset[str] = frozenset(),
    measures: Sequence[Measure] = (),
) -> list[dict[str, Score]]:
    """Score every view of several clients, whose samples lie one after the other.

    Args:
        views: scores [n, ..., outputs] by view, on the CPU.
        targets: [n, ...].
        counts: samples of each client, at least one.
        task: what is learned.
        without_loss: as in :func:`score_clients`.
        measures: as in :func:`score_clients`.
    """
    found: list[dict[str, Score]] = [{} for _ in counts]
    loss = resolve_loss(None, task)
    twins: dict[tuple[int, bool], str] = {}  # views of one model share scores
    for view, scores in views.items():
        if (twin := twins.setdefault((id(scores), view in without_loss), view)) != view:
            for own in found:
                own[view] = own[twin]
            continue
        means: list[float | None] = [None] * len(counts)
        if view not in without_loss:
            means = [or_none(mean) for mean in _mean_losses(loss, scores, targets, counts)]
        for own, total, mean in zip(found, sum_figures(task, scores, targets, counts), means, strict=True):
            own[view] = Score(total, mean)
        if measures:
            rows = zip(scores.split(list(counts)), targets.split(list(counts)), strict=True)
            for own, (part, y) in zip(found, rows, strict=True):
                measured = {m.name: m.value(part, y, view not in without_loss) for m in measures}
                own[view] = own[view]._replace(measured=measured)
    return found


def sum_figures(task: Task, scores: Tensor, targets: Tensor, counts: Sequence[int]) -> Sequence[float | None]:
    """Return the task's figure of every client times its samples; None where it is undefined."""
    if task.is_mean:
        each = task.per_sample(scores, targets)
        return _sums(each.long() if each.dtype == torch.bool else each.double(), counts).tolist()
    rows = zip(scores.split(list(counts)), targets.split(list(counts)), counts, strict=True)
    figures = ((task.of_client(part, own), count) for part, own, count in rows)
    return [None if figure is None or math.isnan(figure) else figure * count for figure, count in figures]


def _mean_losses(loss: Loss, scores: Tensor, targets: Tensor, counts: Sequence[int]) -> list[float]:
    """Return the mean loss of every client."""
    if isinstance(loss, BatchLoss) or (targets.dtype == torch.int64 and targets.dim() > 1):
        rows = zip(scores.split(list(counts)), targets.split(list(counts)), strict=True)
        return [loss.mean(part, own).item() if (own != NOT_ASKED).any() else math.nan for part, own in rows]
    return (_sums(loss.per_sample(scores, targets).double(), counts) / np.array(counts)).tolist()


def _sums(values: Tensor, counts: Sequence[int]) -> Any:
    """Return the sums of clients' values, which lie one after the other: [clients]."""
    return np.add.reduceat(values.numpy(), np.cumsum([0, *counts[:-1]]))


def replaced(views: dict[str, Any], by: str | None) -> dict[str, Any]:
    """Return what is known of a client's views, by name, with another one in the place of ``personal``."""
    return views if by is None or "personal" not in views else {**views, "personal": views[by]}
