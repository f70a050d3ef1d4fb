"""TensorBoard events of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfl.callbacks.callback import Callback, Run
from rayfl.evaluation.metrics import client_metrics
from rayfl.files import writing
from rayfl.record.history import Population, evaluations, round_totals
from rayfl.shown import one_line

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoard(Callback):
    """Writes the scalars of every round to ``tensorboard/`` in the run folder."""

    def __init__(self) -> None:
        self._events: SummaryWriter | None = None

    def start(self, run: Run, round: int) -> bool:
        """Begin a file that takes the place of what was written of this round and of later ones."""
        self.end()
        self._folder = run.path / "tensorboard"
        self._purge = round if self._folder.exists() else None
        return False

    def after_round(self, run: Run, record: Mapping[str, Any]) -> bool:
        """Write the round's scalars."""
        with writing(self._folder):
            if self._events is None:
                from torch.utils.tensorboard import SummaryWriter  # takes a second

                self._events = SummaryWriter(str(self._folder), purge_step=self._purge, flush_secs=10)
            for tag, value in event_values(record, run.population).items():
                self._events.add_scalar(one_line(tag), value, record["round"])
        return False

    def end(self) -> None:
        """Close the file."""
        if self._events is not None:
            with writing(self._folder):
                self._events.close()
            self._events = None


def event_values(record: Mapping[str, Any], population: Population) -> dict[str, float]:
    """Return tag -> value of the TensorBoard scalars of one round."""
    totals = round_totals(record)
    values = {"bytes/up": totals["up"], "bytes/down": totals["down"]}
    if totals["loss"] is not None:
        values["train/loss"] = totals["loss"]
    for name, value in record.get("figures", {}).items():
        if not isinstance(value, list):
            values[f"figures/{name}"] = value
        elif value:
            ends = {"mean": np.mean(value), "min": min(value), "max": max(value)}
            values |= {f"figures/{name}/{end}": float(number) for end, number in ends.items()}
    for (point, view, split), score in evaluations(record):
        found = client_metrics(np.array(score["correct"], dtype=np.float64), population, split)
        for name in ("mean", "pooled"):
            if not math.isnan(found[name]):
                values[f"accuracy/{split}/{point}/{view}/{name}"] = found[name]
        for name in sorted(score.keys() - {"correct", "loss"}):
            if known := [value for value in score[name] if value is not None]:
                values[f"{name}/{split}/{point}/{view}/mean"] = float(np.mean(known))
    return values
