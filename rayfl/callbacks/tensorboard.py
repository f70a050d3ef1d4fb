"""TensorBoard events of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rayfl.callbacks.callback import Run
from rayfl.callbacks.logger import Logger, distributions, scalars

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoard(Logger):
    """Writes scalars and histograms over clients of every round to ``tensorboard/`` in the run folder."""

    name = "tensorboard"

    def __init__(self) -> None:
        super().__init__()
        self._events: SummaryWriter | None = None

    def open(self, run: Run, round: int) -> int:
        """Begin a file that takes the place of what was written of this round and of later ones.

        Of what another process wrote, the last rounds may be missing, so the file takes the place of all.
        """
        self.close()
        self._folder = run.path / "tensorboard"
        self._purge = min(self._logged, round) if self._folder.exists() else None
        return self._purge or 0

    def write(self, run: Run, record: Mapping[str, Any]) -> None:
        """Write the round's scalars and histograms."""
        if self._events is None:
            from torch.utils.tensorboard import SummaryWriter  # takes a second

            self._events = SummaryWriter(str(self._folder), purge_step=self._purge, flush_secs=10)
        for tag, value in scalars(record, run.population).items():
            self._events.add_scalar(tag, value, record["round"])
        for tag, values in distributions(record, run.population).items():
            self._events.add_histogram(tag, values, record["round"], bins=BINS)

    def close(self) -> None:
        """Close the file."""
        if self._events is not None:
            self._events.close()
            self._events = None


BINS = 30
"""Of a histogram; TensorBoard shows as many."""
