"""A run in MLflow."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rayfl.callbacks.callback import Run
from rayfl.callbacks.logger import Tracker, scalars, settings_of
from rayfl.record.history import Population

if TYPE_CHECKING:
    from mlflow import MlflowClient


class MLflow(Tracker):
    """Sends settings and the numbers of every round to MLflow.

    MLflow's own variables say where it writes: ``MLFLOW_TRACKING_URI`` and ``MLFLOW_EXPERIMENT_NAME``, which
    is ``rayfl`` by default.
    """

    name = "mlflow"

    def __init__(self) -> None:
        super().__init__()
        self._client: MlflowClient | None = None

    def connect(self, run: Run, log: str | None) -> str:
        """Go on with a run of MLflow's, or make one with the run's settings as parameters."""
        # MLflow's telemetry draws from Python's generator in a thread, as if a method had done it.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow import MlflowClient  # takes seconds
        from mlflow.entities import Param

        client = MlflowClient()
        self._rounds = run.rounds
        if log is None:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "rayfl")
            found = client.get_experiment_by_name(name)
            experiment = client.create_experiment(name) if found is None else found.experiment_id
            log = client.create_run(experiment, run_name=run.path.absolute().name).info.run_id
            settings = [Param(key, f"{value}"[:LONGEST]) for key, value in settings_of(run).items()]
            for start in range(0, len(settings), AT_ONCE):
                client.log_batch(log, params=settings[start : start + AT_ONCE])
        else:
            client.update_run(log, status="RUNNING")
        self._client = client
        return log

    def send(self, step: int, record: Mapping[str, Any], population: Population) -> None:
        """Add the numbers of a round; characters that MLflow does not take in names become ``_``."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        values = {re.sub(r"[^\w\-. :/]", "_", tag): x for tag, x in scalars(record, population).items()}
        metrics = [Metric(tag, float(value), now, step) for tag, value in values.items()]
        assert self._client is not None
        for start in range(0, len(metrics), AT_ONCE):
            self._client.log_batch(self.log, metrics=metrics[start : start + AT_ONCE])

    def close(self) -> None:
        """End the run: ``FINISHED`` after its last round, ``KILLED`` before."""
        if self._client is not None:
            status = "FINISHED" if self._logged >= self._rounds else "KILLED"
            self._client.set_terminated(self.log, status=status)
            self._client = None


AT_ONCE = 100
"""Parameters that MLflow takes in one call; of metrics it takes more."""
LONGEST = 500
"""Characters of a parameter that all versions of MLflow take."""
