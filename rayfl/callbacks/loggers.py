"""Loggers, for other programs to show: each round is logged once, and no failure ends the run."""

from __future__ import annotations

import json
import math
import os
import re
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

import numpy as np

from rayfl.callbacks.callback import Callback, Run
from rayfl.errors import BadValue, Missing
from rayfl.evaluation.metrics import client_metrics, counted_columns
from rayfl.evaluation.protocol import Protocol
from rayfl.record.folder import read_config
from rayfl.record.history import Population, evaluations, round_totals
from rayfl.settings.description import flatten_config
from rayfl.settings.imports import is_installed
from rayfl.system.files import read_json, write_file
from rayfl.system.text import one_line, warn

if TYPE_CHECKING:  # at run time where a log is opened: each takes a second or more
    from mlflow import MlflowClient
    from torch.utils.tensorboard import SummaryWriter


class Logger(Callback):
    """Writes the numbers of every round for another program to show.

    Rounds that the log lacks are written when a run is resumed, and no round is written twice. A logger that
    fails warns once, and the run goes on without it.
    """

    name: str
    _logged = 0  # rounds that the log has
    _failed = False

    def start(self, run: Run, round: int) -> bool:
        """Open the log, and write the earlier rounds that it lacks."""
        self._attempt(lambda: self._catch_up(run, round))
        return False

    def after_round(self, run: Run, record: Mapping[str, Any]) -> bool:
        """Write a round."""
        self._attempt(lambda: self._write_once(run, record))
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
        for record in run.records() if self._logged < round else ():
            self._write_once(run, record)

    def _write_once(self, run: Run, record: Mapping[str, Any]) -> None:
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
    def send(self, run: Run, record: Mapping[str, Any]) -> None:
        """Add the numbers of a round to the log."""

    def open(self, run: Run, round: int) -> int:
        """Go on with the log that the run folder names."""
        self.close()
        self._note = run.path / f"{self.name}.json"
        found: Any = read_json(self._note) if self._note.exists() else {"log": None, "rounds": 0}
        self.log = self.connect(run, found["log"])
        self._write_note(found["rounds"])
        return int(found["rounds"])

    def write(self, run: Run, record: Mapping[str, Any]) -> None:
        """Note the round first: if the process dies now, the log may lack a round, and has none twice."""
        self._write_note(record["round"] + 1)
        self.send(run, record)

    def _write_note(self, rounds: int) -> None:
        write_file(self._note, json.dumps({"log": self.log, "rounds": rounds}))


def flat_settings(run: Run) -> dict[str, Any]:
    """Return the settings of a run by their dotted names, for people."""
    return flatten_config(read_config(run.path), shown=True)


def scalars(record: Mapping[str, Any], population: Population, protocol: Protocol) -> dict[str, float]:
    """Return tag -> value of the numbers of one round.

    Args:
        record: a line of ``metrics.jsonl``.
        population: the clients.
        protocol: says whether attackers count.
    """
    totals = round_totals(record)
    values = {"bytes/up": totals["up"], "bytes/down": totals["down"]}
    if totals["loss"] is not None:
        values["train/loss"] = totals["loss"]
    for name, value in record.get("figures", {}).items():
        found = np.array(value, dtype=np.float64)  # what is not finite is null when the record is read again
        known = found[np.isfinite(found)]
        if len(known) and found.ndim:
            ends = {"mean": known.mean(), "min": known.min(), "max": known.max()}
            values |= {f"figures/{name}/{end}": float(number) for end, number in ends.items()}
        elif len(known):
            values[f"figures/{name}"] = float(known[0])
    for (point, view, split), score in evaluations(record, len(population)):
        columns = counted_columns(score, population, protocol)
        metrics = client_metrics(columns["score"], population, split)
        for name in ("mean", "pooled"):
            if not math.isnan(metrics[name]):
                values[f"{population.figure.name}/{split}/{point}/{view}/{name}"] = metrics[name]
        for name in sorted(columns.keys() - {"score", "loss"}):
            if len(defined := columns[name][~np.isnan(columns[name])]):
                values[f"{name}/{split}/{point}/{view}/mean"] = float(defined.mean())
    return {one_line(tag): value for tag, value in values.items()}


def distributions(
    record: Mapping[str, Any], population: Population, protocol: Protocol
) -> dict[str, np.ndarray]:
    """Return tag -> the values of all clients that have one and count, float64 [clients], of one round.

    Args:
        record: a line of ``metrics.jsonl``.
        population: the clients.
        protocol: says whether attackers count.
    """
    values: dict[str, Any] = {"train/loss": record["loss"]}
    for (point, view, split), score in evaluations(record, len(population)):
        columns = counted_columns(score, population, protocol)
        samples = np.where(population.samples[split] > 0, population.samples[split], np.nan)
        where = f"{split}/{point}/{view}"
        values[f"{population.figure.name}/{where}"] = columns["score"] / samples
        values |= {f"{name}/{where}": columns[name] for name in columns.keys() - {"score", "loss"}}
    arrays = {one_line(tag): np.array(found, dtype=np.float64) for tag, found in values.items()}
    return {tag: found[known] for tag, found in arrays.items() if (known := np.isfinite(found)).any()}


class TensorBoard(Logger):
    """Writes scalars and histograms over clients of every round to ``tensorboard/`` in the run folder."""

    name = "tensorboard"
    _events: SummaryWriter | None = None

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
        for tag, value in scalars(record, run.population, run.protocol).items():
            self._events.add_scalar(tag, value, record["round"])
        for tag, values in distributions(record, run.population, run.protocol).items():
            self._events.add_histogram(tag, values, record["round"], bins=BINS)

    def close(self) -> None:
        """Close the file."""
        if self._events is not None:
            self._events.close()
            self._events = None


BINS = 30
"""Of a histogram; TensorBoard shows as many."""


class MLflow(Tracker):
    """Sends settings and the numbers of every round to MLflow.

    MLflow's own variables say where it writes: ``MLFLOW_TRACKING_URI`` and ``MLFLOW_EXPERIMENT_NAME``, which
    is ``rayfl`` by default.
    """

    name = "mlflow"
    _client: MlflowClient | None = None

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
            settings = [Param(key, f"{value}"[:LONGEST_VALUE]) for key, value in flat_settings(run).items()]
            for start in range(0, len(settings), AT_ONCE):
                client.log_batch(log, params=settings[start : start + AT_ONCE])
        else:
            client.update_run(log, status="RUNNING")
        self._client = client
        return log

    def send(self, run: Run, record: Mapping[str, Any]) -> None:
        """Add the numbers of a round; characters that MLflow does not take in names become ``_``."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        values = {
            re.sub(r"[^\w\-. :/]", "_", tag): x
            for tag, x in scalars(record, run.population, run.protocol).items()
        }
        metrics = [Metric(tag, float(value), now, record["round"]) for tag, value in values.items()]
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
LONGEST_VALUE = 500
"""Characters of a parameter that all versions of MLflow take."""


class WandB(Tracker):
    """Sends settings, the numbers of every round and histograms over clients to Weights & Biases.

    Its own variables say how: ``WANDB_PROJECT``, which is ``rayfl`` by default, ``WANDB_MODE``, and others.
    """

    name = "wandb"
    _run: Any = None

    def connect(self, run: Run, log: str | None) -> str:
        """Go on with a run of Weights & Biases, or make one with the run's settings; ask for no key."""
        import wandb  # takes a second

        quiet = wandb.Settings(silent=True, console="off")
        if wandb.setup(quiet).settings.mode == "online" and not wandb.login(prompt=False):
            raise PermissionError("there is no API key: call `wandb login` first, or set WANDB_MODE=offline")
        self._run = wandb.init(
            project=wandb.setup().settings.project or "rayfl",
            id=log or uuid4().hex[:8],
            name=run.path.absolute().name,
            config=flat_settings(run) if log is None else None,
            resume="allow",
            reinit="create_new",  # leaves runs of the caller's own alone
            settings=quiet,
        )
        return str(self._run.id)

    def send(self, run: Run, record: Mapping[str, Any]) -> None:
        """Add the numbers of a round, and histograms."""
        import wandb

        found = distributions(record, run.population, run.protocol)
        histograms = {f"{tag}/clients": wandb.Histogram(values.tolist()) for tag, values in found.items()}
        self._run.log({**scalars(record, run.population, run.protocol), **histograms}, step=record["round"])

    def close(self) -> None:
        """End the run."""
        if self._run is not None:
            self._run.finish()
            self._run = None


Name = Literal["tensorboard", "mlflow", "wandb"]

LOGGERS: dict[Name, type[Logger]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def check_loggers(names: Sequence[Name]) -> None:
    """Refuse a logger that is named twice, or whose package is not installed.

    Raises:
        UserError: there is one.
    """
    for place, name in enumerate(names):
        if name in names[:place]:
            raise BadValue("loggers", f"has {name} twice")
        if not is_installed(name):
            extra = "" if name == "tensorboard" else f"'rayfl[{name}]'"
            raise Missing(
                "loggers", f"has {name}, which is not installed: pip install {extra or name}, or leave it out"
            )
