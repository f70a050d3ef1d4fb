"""The latest scores of all clients, of whom few may have been scored in this round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rayfl.data import FederatedData
from rayfl.evaluation.score import ClientScores


class LatestScores:
    """The scores of all clients: after aggregation those of now, after training from when each trained last.

    Attributes:
        clients: int64, who is scored: all that train, which those without training samples do not.
        splits: of the data on which they are scored.

    Args:
        data: says which clients have which splits.
        progress: what a checkpoint has kept of an earlier process.
        some: whether evaluations score some of the clients, and records name them.
    """

    def __init__(self, data: FederatedData, progress: Mapping[str, Any], some: bool = False) -> None:
        self._some = some
        self._population = len(data)
        self.clients = np.flatnonzero(data.counts("train")[: data.seen])
        val = ("val",) if data.counts("val").any() else ()
        self.splits: tuple[str, ...] = (*val, *data.test_splits)
        self._trained: dict[str, Any] = progress.get("after_training", {})

    def keep(self, scores: Mapping[int, ClientScores]) -> None:
        """Keep the scores of clients right after their training."""
        personal = {
            i: {split: {v: s for v, s in views.items() if v != "global"} for split, views in splits.items()}
            for i, splits in scores.items()
        }  # one client's trained copy is not the global model
        self._fill(self._trained, personal)

    def evaluation(self, current: Mapping[int, ClientScores], after_training: bool) -> dict[str, Any]:
        """Return the ``evaluation`` of a metrics line.

        Args:
            current: the scores after aggregation.
            after_training: whether clients are also scored right after training.
        """
        found = self.points({"after_aggregation": current})
        for splits in found["after_aggregation"].values() if self._some else ():
            for split, column in splits.items():
                clients = [i for i, score in enumerate(column["score"]) if score is not None]
                some = {name: [values[i] for i in clients] for name, values in column.items()}
                splits[split] = {"clients": clients, **some}
        if after_training:
            found["after_training"] = {
                view: {split: {k: list(v) for k, v in column.items()} for split, column in splits.items()}
                for view, splits in self._trained.items()
            }
        return found

    def points(self, scores: Mapping[str, Mapping[int, ClientScores]]) -> dict[str, Any]:
        """Return scores as columns over all clients: evaluation point -> view -> split -> columns."""
        return {point: self._fill({}, found) for point, found in scores.items()}

    def progress(self) -> dict[str, Any]:
        """Return what a checkpoint has to keep."""
        return {"after_training": self._trained} if self._trained else {}

    def _fill(self, columns: dict[str, Any], scores: Mapping[int, ClientScores]) -> dict[str, Any]:
        for client, splits in scores.items():
            for split, views in splits.items():
                for view, one in views.items():
                    of_view = columns.setdefault(view, {})
                    if (column := of_view.get(split)) is None:  # once: it has an entry for everybody
                        column = {"score": [None] * self._population, "loss": [None] * self._population}
                        of_view[split] = column
                    column["score"][client] = one.score
                    column["loss"][client] = one.loss
                    for name, value in one.measured.items():
                        column.setdefault(name, [None] * self._population)[client] = value
        return columns
