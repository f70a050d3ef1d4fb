"""The scores of a sweep: metrics on validation data, at the rounds that a run's protocol chooses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rayfl.evaluation.metrics import Metric, Validation, measure
from rayfl.evaluation.protocol import Protocol
from rayfl.record.history import read_population, read_records
from rayfl.report.text import mean_and_std
from rayfl.running.result import Result


class RoundScores:
    """Scores the rounds of a run one by one.

    Args:
        folder: the run folder.
        protocol: of the run.
        metric: of the sweep.
    """

    def __init__(self, folder: Path, protocol: Protocol, metric: Metric) -> None:
        self._folder, self._protocol, self._metric = folder, protocol, metric
        self._validation: Validation | None = None

    def score(self, record: Mapping[str, Any]) -> float | None:
        """Return the validation score of a round, or None. Call it for every round, in order."""
        if self._validation is None:  # partition.json is written before the first round
            self._validation = Validation(read_population(self._folder), self._protocol)
        found = self._validation.scores(record)
        if found is None:
            return None
        population = self._validation.population
        return measure(*found, population, "val", self._protocol, self._metric)


def validation_score(run: Result, metric: Metric) -> float | None:
    """Return the validation score of a run at the rounds that its protocol chooses, or None."""
    headline, scores = run.summary["headline"], RoundScores(run.folder, run.protocol, metric)
    if headline is None:
        return None
    each = {record["round"]: scores.score(record) for record in read_records(run.folder)}
    return mean_and_std([each[number] for number in headline["rounds"]])[0]
