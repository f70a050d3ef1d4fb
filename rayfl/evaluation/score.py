"""Scoring: how many of a client's samples each view classifies correctly, and at what loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rayfl.evaluation.measures import Measure, or_none
from rayfl.training.examples import Examples
from rayfl.training.noise import step_keys

BATCH = 512
"""Samples scored at once."""


class Score(NamedTuple):
    """Correct predictions and mean loss over some samples; the loss is None where a view has none.

    ``measured`` has the metrics that were asked for, by name; None where one is undefined.
    """

    correct: int
    loss: float | None
    measured: Mapping[str, float | None] = {}


TOGETHER = 256
"""Samples of several clients that are scored at once."""


ClientScores = dict[str, dict[str, Score]]
"""What a client's models score: part of its data (val, test) -> view -> score."""


def score(
    predict: Callable[[Tensor], Mapping[str, Tensor]],
    examples: Examples,
    indices: Tensor,
    without_loss: frozenset[str] = frozenset(),
    key: int | None = None,
    measures: Sequence[Measure] = (),
) -> dict[str, Score]:
    """Score every view of one client on some of its samples.

    Args:
        predict: inputs [B, ...] -> scores [B, classes] by view; the largest score is the prediction.
        examples: the dataset.
        indices: int64 [n], at least one sample.
        without_loss: views whose scores are not logits, for which cross-entropy has no meaning.
        key: for images augmented as in training, what they are drawn from.
        measures: metrics of all samples; only for these are the scores of all batches kept.
    """
    kept: dict[str, list[Tensor]] = {}
    labels: list[Tensor] = []
    correct: dict[str, int] = {}
    loss: dict[str, float] = {}
    with torch.no_grad():
        batches = indices.split(BATCH)
        drawn: Sequence[Tensor | None] = [None] * len(batches)
        if key is not None:
            drawn = examples.draw_changes(batches, step_keys(key, len(batches)).unbind())
        for part, changes in zip(batches, drawn, strict=True):
            x, y = examples.batch(part, changes)
            if measures:
                labels.append(y)
            counted: dict[tuple[int, bool], tuple[int, float | None]] = {}  # views of one model share scores
            views = predict(x)
            for view, scores in views.items():
                if measures:
                    kept.setdefault(view, []).append(scores)
                which = (id(scores), view not in without_loss)
                if which not in counted:
                    counted[which] = _count(scores, y, with_loss=which[1])
                right, total = counted[which]
                correct[view] = correct.get(view, 0) + right
                if total is not None:
                    loss[view] = loss.get(view, 0.0) + total
    n = len(indices)
    means = {view: or_none(total / n) for view, total in loss.items()}
    found = {view: Score(right, means.get(view)) for view, right in correct.items()}
    if not measures:
        return found
    y = torch.cat(labels).cpu()
    for view, parts in kept.items():
        scores = torch.cat(parts).cpu()
        measured = {m.name: m.value(scores, y, view not in without_loss) for m in measures}
        found[view] = found[view]._replace(measured=measured)
    return found


def _count(scores: Tensor, y: Tensor, with_loss: bool) -> tuple[int, float | None]:
    """Return how many predictions are right, and the sum of the losses."""
    right = int((scores.argmax(1) == y).sum())
    if not with_loss:
        return right, None
    return right, F.cross_entropy(scores, y, reduction="none").double().sum().item()


def score_rows(
    views: Mapping[str, Tensor],
    labels: Tensor,
    counts: Sequence[int],
    without_loss: frozenset[str] = frozenset(),
    measures: Sequence[Measure] = (),
) -> list[dict[str, Score]]:
    """Score every view of several clients, whose samples lie one after the other.

    Args:
        views: scores [n, classes] by view, on the CPU.
        labels: int64 [n].
        counts: samples of each client, at least one.
        without_loss: as in :func:`score`.
        measures: as in :func:`score`.
    """
    starts = np.cumsum([0, *counts[:-1]])
    found: list[dict[str, Score]] = [{} for _ in counts]
    for view, scores in views.items():
        right = np.add.reduceat((scores.argmax(1) == labels).numpy().astype(np.int64), starts).tolist()
        means: list[float | None] = [None] * len(counts)
        if view not in without_loss:
            losses = F.cross_entropy(scores, labels, reduction="none").double().numpy()
            means = [or_none(mean) for mean in (np.add.reduceat(losses, starts) / np.array(counts)).tolist()]
        for own, hits, loss in zip(found, right, means, strict=True):
            own[view] = Score(hits, loss)
        if measures:
            rows = zip(scores.split(list(counts)), labels.split(list(counts)), strict=True)
            for own, (part, y) in zip(found, rows, strict=True):
                measured = {m.name: m.value(part, y, view not in without_loss) for m in measures}
                own[view] = own[view]._replace(measured=measured)
    return found


def replaced(views: dict[str, Any], by: str | None) -> dict[str, Any]:
    """Return what is known of a client's views, by name, with another one in the place of ``personal``."""
    return views if by is None or "personal" not in views else {**views, "personal": views[by]}


def cut(ids: Sequence[int], samples: Sequence[int]) -> list[tuple[int, ...]]:
    """Cut clients into those that are scored together, which never depends on where this is done.

    Args:
        ids: client numbers.
        samples: how many samples of each are scored.
    """
    groups: list[list[int]] = [[]]
    full = 0
    for i, n in zip(ids, samples, strict=True):
        if groups[-1] and full + n > TOGETHER:
            groups.append([])
            full = 0
        groups[-1].append(i)
        full += n
    return [tuple(group) for group in groups if group]
