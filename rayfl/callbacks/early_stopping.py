"""Early stopping: a run ends where its validation accuracy has not become better for long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rayfl.callbacks.callback import Callback, Run
from rayfl.evaluation.metrics import Patience, Validation


class EarlyStopping(Callback):
    """Ends a run when the protocol's patience has run out.

    It goes by the records alone, so that a resumed run ends where one that was never stopped does.
    """

    def start(self, run: Run, round: int) -> bool:
        """Read the rounds so far."""
        self._patience = Patience(run.protocol.patience)
        self._validation = Validation(run.population, run.protocol)
        over = False
        for record in run.records():
            over = self.after_round(run, record)
        return over

    def after_round(self, run: Run, record: Mapping[str, Any]) -> bool:
        """Say whether the patience has run out."""
        return self._patience.ends(record["round"], self._validation.accuracy(record))
