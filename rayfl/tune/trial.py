"""A trial: a federation with its own run folder, inside a process of Ray Tune.

A trial leaves nothing but its run folder. A restarted trial reports the rounds that are recorded there, and
goes on from its last checkpoint.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ray import tune

from rayfl.callbacks.callback import Callback, Run
from rayfl.engine import Ray
from rayfl.errors import Conflict, UserError
from rayfl.evaluation.metrics import Metric, Validation, measure
from rayfl.federation import federation_of
from rayfl.jobs.cells import Job
from rayfl.record.history import CONFIG, PARTITION, read_population, read_records
from rayfl.report.text import mean_and_std
from rayfl.running.result import Result
from rayfl.running.run import FederationRun
from rayfl.settings.reader import DottedSettings
from rayfl.system.error_report import own_fault
from rayfl.system.files import lock_descriptor
from rayfl.system.own_code import changed_code
from rayfl.tune.space import PAUSING, Space

STOPPED = ".stopped"
"""Suffix of the empty file beside the run folder of a trial that a scheduler has stopped."""
_ROUND = "round"  # file in Ray Tune's checkpoints with the number of completed rounds


@dataclass(frozen=True)
class SweepContext:
    """What every trial of a sweep needs.

    Attributes:
        space: the tune space.
        output: the folder of the sweep.
        engine: settings of its engine that follow from its share of the cluster.
        command: the sweep's command line, for the records.
        code: what decides numbers besides settings and data, see ``RunSettings.code``, where it was started.
    """

    space: Space
    output: Path
    engine: DottedSettings
    command: tuple[str, ...]
    code: Mapping[str, str]


def run_trial(config: Mapping[str, Any], order: SweepContext) -> None:
    """Run a trial to its end. Errors of its settings or the user's code are reported, and not retried.

    Args:
        config: ``search``, ``seed``, and the searched keys, drawn by Ray Tune.
        order: of the sweep.
    """
    sys.orig_argv = list(order.command)  # instead of the command line of Ray's worker
    for library in ("ray.train", "ray.tune"):  # they report every checkpoint
        logging.getLogger(library).setLevel(logging.WARNING)
    trial = Trial(order)
    try:
        job = order.space.point_of(config).trial_job(config["seed"], order.output)
        with _lock_folder(job.folder):
            trial.run(job)
    except Exception as error:
        known = error if isinstance(error, UserError) else own_fault(error)
        trial.report_score(trial.shown, None, failed=str(known or f"{type(error).__name__}: {error}"))


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Wait until no other process uses the run folder: one of a killed sweep may take a moment to end."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("w") as file:
        lock_descriptor(file.fileno(), wait=True)
        yield


class Trial(Callback):
    """Reports every evaluated round to Ray Tune once, and the last one when all files are written.

    Attributes:
        shown: completed rounds at the last report.
    """

    _validation: Validation | None = None  # before there are clients

    def __init__(self, order: SweepContext) -> None:
        self._space, self._order, self.shown = order.space, order, 0
        if (checkpoint := tune.get_checkpoint()) is not None:  # the trial was paused
            with checkpoint.as_directory() as place:
                self.shown = int(Path(place, _ROUND).read_text())

    def run(self, job: Job) -> None:
        """Report the recorded rounds, and run the federation to its end."""
        settings = {"seed": job.seed, "quiet": True, "output": str(job.folder)}
        federation = federation_of(job.settings | self._order.engine | settings)
        here = federation.code()
        if other := changed_code({n: d for n, d in self._order.code.items() if n in here}, here):
            raise Conflict(other[0], "is another one on this host than where the sweep was started")
        self._rounds = job.rounds
        if (job.folder / PARTITION).exists():
            self._validation = Validation(read_population(job.folder), federation.protocol)
            for record in read_records(job.folder):
                self.after_round(None, record)
        if job.folder.with_name(job.folder.name + STOPPED).exists():
            return
        if job.is_finished:
            run = Result.load(job.folder)
        else:
            engine = federation.engine
            if isinstance(engine, Ray):  # this process is in the cluster already
                federation = replace(federation, engine=replace(engine, address=None))
            begun = (job.folder / CONFIG).is_file()
            made = federation.resume(job.folder) if begun else FederationRun(federation)
            run = replace(made, in_group=isinstance(engine, Ray)).run(callbacks=[self])
        self.report_score(job.rounds, validation_score(run, self._space.metric))

    def start(self, run: Run, round: int) -> bool:
        """Go on with the recorded rounds, if there are any; they count in the scores of later ones."""
        self._validation = self._validation or Validation(run.population, run.protocol)
        return False

    def after_round(self, run: Run | None, record: Mapping[str, Any]) -> bool:
        """Report the round, after a checkpoint if the trial may be paused."""
        assert self._validation is not None
        done, score = record["round"] + 1, round_score(self._validation, record, self._space.metric)
        if "evaluation" in record and self.shown < done < self._rounds:
            if run is not None and self._space.scheduler["name"] in PAUSING:
                run.save()
            self.report_score(done, score)
        return False

    def report_score(self, done: int, score: float | None, **more: str) -> None:
        """Report a score, or the worst one if there is none."""
        self.shown = done
        result = {"round": done, "score": self._space.worst_score if score is None else score, **more}
        if self._space.scheduler["name"] not in PAUSING:
            tune.report(result)
            return
        with tempfile.TemporaryDirectory() as place:
            Path(place, _ROUND).write_text(str(done))
            tune.report(result, checkpoint=tune.Checkpoint.from_directory(place))


# ---- scores: metrics on validation data, at the rounds that a run's protocol chooses


def round_score(validation: Validation, record: Mapping[str, Any], metric: Metric) -> float | None:
    """Return the validation score of a round, or None. Call it for every round, in order."""
    if (found := validation.scores(record)) is None:
        return None
    return measure(*found, validation.population, "val", validation.protocol, metric)


def validation_score(run: Result, metric: Metric) -> float | None:
    """Return the validation score of a run at the rounds that its protocol chooses, or None."""
    headline, validation = run.summary["headline"], Validation(run.history.population, run.protocol)
    if headline is None:
        return None
    each = {record["round"]: round_score(validation, record, metric) for record in read_records(run.folder)}
    return mean_and_std([each[number] for number in headline["rounds"]])[0]
