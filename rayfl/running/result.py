"""The result of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayfl.evaluation.run_records import RunRecords
from rayfl.record.folder import RunFolder

if TYPE_CHECKING:  # imported when they are used: a run should not wait for them
    from rayfl.engine.models import Models
    from rayfl.report.plot import Plot


class Result(RunRecords):
    """The records of a run, finished or not, with its models and its pictures.

    Examples:
        >>> from rayfl import Result
        >>> result = Result.load("runs/first")
        >>> result.complete
        True
        >>> result.clients.query("view == 'personal'").groupby("client")["figure"].max().index.tolist()
        [0, 1, 2, 3]
    """

    @property
    def models(self) -> Models:
        """The models of all clients after the last checkpoint, without the data."""
        from rayfl.running.saved_models import load_models

        return load_models(self.folder, data=False)

    @property
    def plot(self) -> Plot:
        """Pictures of the run: ``result.plot.rounds()``, ``result.plot.labels()``..."""
        from rayfl.report.plot import Plot

        return Plot(self)


def finish_records(folder: RunFolder) -> Result:
    """Write the tables of a run that is over, and return its records."""
    result = Result.load(folder.path)
    folder.finish(result.clients, result.summary)
    return result
