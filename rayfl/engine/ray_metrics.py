"""Numbers of every round as metrics of Ray's, which its dashboard shows and Prometheus collects."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ray.util.metrics import Gauge

from rayfl.evaluation.metrics import round_figure
from rayfl.record.history import round_totals

ROUND_METRICS = {
    "round": "Rounds that are done.",
    "loss": "Mean training loss of the last round.",
    "figure": "Test figure, such as accuracy from 0 to 1, of the last evaluation, by the run's protocol.",
    "round_seconds": "Seconds of the last round.",
    "up_bytes": "Bytes that clients have sent in the last round.",
    "down_bytes": "Bytes that clients have received in the last round.",
    "dropped_clients": "Clients whose update was left out in the last round.",
}
"""Name, without ``rayfl_`` before it -> what it is."""


class RayMetrics:
    """Reports every round to Ray; a callback like :class:`rayfl.callbacks.Callback`.

    Args:
        run: the name of the run, which tags its numbers.
    """

    def __init__(self, run: str) -> None:
        self._gauges = {
            name: Gauge(f"rayfl_{name}", description=text, tag_keys=("run",))
            for name, text in ROUND_METRICS.items()
        }
        for gauge in self._gauges.values():
            gauge.set_default_tags({"run": run})

    def start(self, run: Any, round: int) -> bool:
        """Begin to count seconds."""
        self._began = time.monotonic()
        return False

    def after_round(self, run: Any, record: Mapping[str, Any]) -> bool:
        """Report a round to Ray."""
        began, self._began = self._began, time.monotonic()
        totals = round_totals(record)
        values = {
            "round": totals["round"] + 1,
            "loss": totals["loss"],
            "figure": round_figure(record, run.population, run.protocol),
            "round_seconds": self._began - began,
            "up_bytes": totals["up"],
            "down_bytes": totals["down"],
            "dropped_clients": totals["dropped"],
        }
        for name, value in values.items():
            if value is not None:
                self._gauges[name].set(value)
        return False

    def end(self) -> None:
        """Do nothing: there is nothing to release."""
