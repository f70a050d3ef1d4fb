"""What a sweep compares: metrics on validation data, at the rounds that a run's protocol chooses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rayfl.evaluation.metrics import (
    Validation,
    average,
    client_metrics,
    mean_loss,
    none_if_nan,
)
from rayfl.evaluation.protocol import Protocol
from rayfl.evaluation.result import Result
from rayfl.record.history import Population, read_population, read_records
from rayfl.report.text import mean_and_std
from rayfl.tune.space import Metric


def measure(
    correct: np.ndarray,
    loss: np.ndarray,
    population: Population,
    split: str,
    protocol: Protocol,
    metric: Metric,
) -> float | None:
    """Return one metric of one evaluation over its clients; None where there is nothing to compute it from.

    There is no loss where that of a scored client is not finite: without its worst clients, a point whose
    training has diverged would look better than it is.

    Args:
        correct: float64 [clients]; NaN for clients without a score.
        loss: float64 [clients]; NaN for clients without one.
        population: the clients.
        split: the part of their data that was scored.
        protocol: says how validation accuracies are averaged, and by which weights losses are.
        metric: which one.
    """
    if metric == "loss":
        if np.isnan(loss[(population.samples[split] > 0) & ~np.isnan(correct)]).any():
            return None
        (mean,) = mean_loss(loss[None], population.samples[split], population, protocol.choose_by)
        return none_if_nan(float(mean))
    found = client_metrics(correct, population, split)
    return none_if_nan(
        found["worst_decile"] if metric == "worst_decile" else average(found, protocol.choose_by)
    )


class RoundScores:
    """Scores the rounds of a run as they come.

    Args:
        folder: the run folder.
        protocol: of the run.
        metric: what the sweep compares.
    """

    def __init__(self, folder: Path, protocol: Protocol, metric: Metric) -> None:
        self._folder, self._protocol, self._metric = folder, protocol, metric
        self._validation: Validation | None = None

    def score(self, record: Mapping[str, Any]) -> float | None:
        """Return the validation score of a round; None in a round without one. Every round must be given."""
        if self._validation is None:  # the folder has its partition with the first round
            self._validation = Validation(read_population(self._folder), self._protocol)
        found = self._validation.scores(record)
        if found is None:
            return None
        population = self._validation.population
        return measure(*found, population, "val", self._protocol, self._metric)


def validation_score(run: Result, metric: Metric) -> float | None:
    """Return the validation score of a run at the rounds that its protocol chooses; None without any."""
    headline, scores = run.summary["headline"], RoundScores(run.folder, run.protocol, metric)
    if headline is None:
        return None
    each = {record["round"]: scores.score(record) for record in read_records(run.folder)}
    return mean_and_std([each[number] for number in headline["rounds"]])[0]
