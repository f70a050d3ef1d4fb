"""The numbers of every round as a CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

from rayfl.callbacks.callback import Run
from rayfl.callbacks.logger import Logger, scalars
from rayfl.system.files import write_file
from rayfl.system.text import csv_cell


class CSV(Logger):
    """Writes ``rounds.csv`` in the run folder: a line for each round, a column for each number.

    A number that a round does not have, such as an accuracy in rounds without evaluation, is an empty cell.
    """

    name = "csv"

    def open(self, run: Run, round: int) -> int:
        """Write the earlier rounds."""
        self._write_all(run)
        return round

    def write(self, run: Run, record: Mapping[str, Any]) -> None:
        """Add the round; where it has numbers that no round before it had, write the whole file again."""
        values = scalars(record, run.population)
        if values.keys() <= {*self._columns}:
            with (run.path / "rounds.csv").open("a", newline="", encoding="utf-8") as file:
                csv.writer(file, lineterminator="\n").writerow(self._row(record, values))
        else:
            self._write_all(run)

    def close(self) -> None:
        """Do nothing: the file is closed after every round."""

    def _write_all(self, run: Run) -> None:
        found = [(record, scalars(record, run.population)) for record in run.records()]
        self._columns = list(dict.fromkeys(tag for _, values in found for tag in values))
        rows = [["round", *map(csv_cell, self._columns)], *(self._row(*each) for each in found)]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        write_file(run.path / "rounds.csv", text.getvalue())

    def _row(self, record: Mapping[str, Any], values: Mapping[str, float]) -> list[Any]:
        return [record["round"], *(values.get(tag, "") for tag in self._columns)]
