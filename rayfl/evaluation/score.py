"""Scoring: how many of a client's samples each view classifies correctly, and at what loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rayfl.evaluation.measures import Measure
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
        keys = [None] * len(batches) if key is None else step_keys(key, len(batches)).unbind()
        for part, step in zip(batches, keys, strict=True):
            x, y = examples.batch(part, step)
            if measures:
                labels.append(y)
            for view, scores in predict(x).items():
                if measures:
                    kept.setdefault(view, []).append(scores)
                correct[view] = correct.get(view, 0) + int((scores.argmax(1) == y).sum())
                if view not in without_loss:
                    total = F.cross_entropy(scores, y, reduction="none").double().sum().item()
                    loss[view] = loss.get(view, 0.0) + total
    n = len(indices)
    found = {view: Score(hits, loss[view] / n if view in loss else None) for view, hits in correct.items()}
    if not measures:
        return found
    y = torch.cat(labels).cpu()
    for view, parts in kept.items():
        scores = torch.cat(parts).cpu()
        measured = {m.name: m.value(scores, y, view not in without_loss) for m in measures}
        found[view] = found[view]._replace(measured=measured)
    return found
