"""TensorBoard events of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
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
        """Begin a file that takes the place of what was written of this round and of later ones."""
        self.close()
        self._folder = run.path / "tensorboard"
        if not self._folder.exists():
            self._purge = None
            return 0
        self._purge = min(self._logged or _rounds_in(self._folder), round)
        return self._purge

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


def _rounds_in(folder: Path) -> int:
    """Return how many rounds the files of an earlier process have from the first one on, each as a whole.

    Its last rounds may be missing where it was killed, and those in which the run had no such logger.
    """
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    rounds = 0
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in EventFileLoader(str(path)).Load():
            if event.HasField("session_log"):  # from whose step on earlier files do not count
                rounds = min(rounds, event.step)
            elif event.HasField("summary"):
                rounds = event.step  # this one may not be there as a whole
    return rounds


BINS = 30
"""Of a histogram; TensorBoard shows as many."""
