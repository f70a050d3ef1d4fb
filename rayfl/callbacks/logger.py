"""What loggers have in common: each round is logged once, and no failure ends the run."""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rayfl.callbacks.callback import Callback, Run
from rayfl.evaluation.metrics import client_metrics
from rayfl.record.config_file import read_config
from rayfl.record.history import Population, evaluations, round_totals
from rayfl.settings.description import flat
from rayfl.system.files import read_json, write_file
from rayfl.system.text import one_line, warn


class Logger(Callback):
    """Writes the numbers of every round for another program to show.

    Rounds that the log lacks are written when a run is resumed, and no round is written twice. A logger that
    fails warns once, and the run goes on without it.
    """

    name: str

    def __init__(self) -> None:
        self._logged = 0  # rounds that the log has
        self._failed = False

    def start(self, run: Run, round: int) -> bool:
        """Open the log, and write the earlier rounds that it lacks."""
        self._attempt(lambda: self._catch_up(run, round))
        return False

    def after_round(self, run: Run, record: Mapping[str, Any]) -> bool:
        """Write a round."""
        self._attempt(lambda: self._take(run, record))
        return False

    def end(self) -> None:
        """Close the log."""
        self._attempt(self.close)

    @abstractmethod
    def open(self, run: Run, round: int) -> int:
        """Open the log of a run, also one that is open already.

        Args:
            run: the run.
            round: the one that comes next.

        Returns:
            How many rounds, from the first one on, need not be written again.
        """

    @abstractmethod
    def write(self, run: Run, record: Mapping[str, Any]) -> None:
        """Write the numbers of a round; ``record`` is its line of ``metrics.jsonl``."""

    @abstractmethod
    def close(self) -> None:
        """Close the log, if it is open."""

    def _catch_up(self, run: Run, round: int) -> None:
        self._logged = self.open(run, round)
        if self._logged < round:
            for record in run.records():
                self._take(run, record)

    def _take(self, run: Run, record: Mapping[str, Any]) -> None:
        if record["round"] >= self._logged:
            self.write(run, record)
            self._logged = record["round"] + 1

    def _attempt(self, step: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            step()
        except (Exception, SystemExit) as error:  # whatever a library may raise
            self._failed = True
            warn(
                f"the logger {self.name} has failed, and the run goes on without it: "
                f"{type(error).__name__}: {one_line(str(error))}"
            )


class Tracker(Logger):
    """A logger whose log is outside of the run folder; a file in it says which one, and what it has."""

    @abstractmethod
    def connect(self, run: Run, log: str | None) -> str:
        """Open a log, or a new one, and return what names it.

        Args:
            run: the run.
            log: its name; None for a new one.
        """

    @abstractmethod
    def send(self, step: int, record: Mapping[str, Any], population: Population) -> None:
        """Add the numbers of a round to the log."""

    def open(self, run: Run, round: int) -> int:
        """Go on with the log that the run folder names."""
        self.close()
        self._note = run.path / f"{self.name}.json"
        found: dict[str, Any] = {"log": None, "rounds": 0}
        if self._note.exists():
            found = read_json(self._note)
        self.log = self.connect(run, found["log"])
        self._write_note(found["rounds"])
        return int(found["rounds"])

    def write(self, run: Run, record: Mapping[str, Any]) -> None:
        """Note the round first: if the process dies now, the log may lack a round, and has none twice."""
        self._write_note(record["round"] + 1)
        self.send(record["round"], record, run.population)

    def _write_note(self, rounds: int) -> None:
        write_file(self._note, json.dumps({"log": self.log, "rounds": rounds}))


def settings_of(run: Run) -> dict[str, Any]:
    """Return the settings of a run by their dotted names, for people."""
    return flat(read_config(run.path), shown=True)


def scalars(record: Mapping[str, Any], population: Population) -> dict[str, float]:
    """Return tag -> value of the numbers of one round.

    Args:
        record: a line of ``metrics.jsonl``.
        population: the clients.
    """
    totals = round_totals(record)
    values = {"bytes/up": totals["up"], "bytes/down": totals["down"]}
    if totals["loss"] is not None:
        values["train/loss"] = totals["loss"]
    for name, value in record.get("figures", {}).items():
        known = _known(value if isinstance(value, list) else [value])
        if known and not isinstance(value, list):
            values[f"figures/{name}"] = known[0]
        elif known:
            ends = {"mean": float(np.mean(known)), "min": min(known), "max": max(known)}
            values |= {f"figures/{name}/{end}": number for end, number in ends.items()}
    for (point, view, split), score in evaluations(record, len(population)):
        found = client_metrics(np.array(score["correct"], dtype=np.float64), population, split)
        for name in ("mean", "pooled"):
            if not math.isnan(found[name]):
                values[f"accuracy/{split}/{point}/{view}/{name}"] = found[name]
        for name in sorted(score.keys() - {"correct", "loss"}):
            if known := [value for value in score[name] if value is not None]:
                values[f"{name}/{split}/{point}/{view}/mean"] = float(np.mean(known))
    return {one_line(tag): value for tag, value in values.items()}


def _known(figures: list[float | None]) -> list[float]:
    """Return the finite ones; the others are null when the record is read again."""
    return [figure for figure in figures if figure is not None and math.isfinite(figure)]


def distributions(record: Mapping[str, Any], population: Population) -> dict[str, np.ndarray]:
    """Return tag -> the values of all clients that have one, float64 [clients], of one round.

    Args:
        record: a line of ``metrics.jsonl``.
        population: the clients.
    """
    values: dict[str, Any] = {"train/loss": record["loss"]}
    for (point, view, split), score in evaluations(record, len(population)):
        samples = np.where(population.samples[split] > 0, population.samples[split], np.nan)
        where = f"{split}/{point}/{view}"
        values[f"accuracy/{where}"] = np.array(score["correct"], dtype=np.float64) / samples
        values |= {f"{name}/{where}": score[name] for name in score.keys() - {"correct", "loss"}}
    arrays = {one_line(tag): np.array(found, dtype=np.float64) for tag, found in values.items()}
    known = {tag: found[np.isfinite(found)] for tag, found in arrays.items()}
    return {tag: found for tag, found in known.items() if len(found)}
