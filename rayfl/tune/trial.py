"""A trial: a federation with its own run folder, inside a process of Ray Tune.

The run folder is all that a trial leaves. A trial that is started again goes on from its last checkpoint; one
that population based training has made a copy of another takes over the other's checkpoint and records first.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray import tune

from rayfl.callbacks.callback import Callback, Run
from rayfl.config.parser import federation_from
from rayfl.config.table_file import Settings, layered, options
from rayfl.engine import Ray
from rayfl.errors import UserError
from rayfl.federation import Federation
from rayfl.files import lock
from rayfl.jobs.cells import Job
from rayfl.record.checkpoint import Checkpoints
from rayfl.record.history import CONFIG, ENGINE, METRICS, PARTITION, SUMMARY, read_records
from rayfl.tune.schedule import SCHEDULE, begin, schedule_of
from rayfl.tune.scores import RoundScores
from rayfl.tune.space import Metric

COPY = "copy-"
"""How folders begin in which copies are laid out."""
_RECORDS = (METRICS, ENGINE, PARTITION)


@dataclass(frozen=True)
class Order:
    """What every trial of a sweep has to know.

    Attributes:
        jobs: name of the trial -> its run folder, settings and seed.
        metric: what is compared.
        interval: rounds between two checkpoints for copying; None where trials are never copied.
        replays: whether a scheduler wants to see the rounds again that an earlier session has recorded.
        command: the sweep's command line, for the records.
    """

    jobs: Mapping[str, Job]
    metric: Metric
    interval: int | None
    replays: bool
    command: tuple[str, ...]


def run_trial(config: Mapping[str, Any], order: Order) -> None:
    """Run a trial to its end; an error of the user's is reported, so that it does not end the others.

    Args:
        config: ``values``, the settings that population based training may have changed.
        order: of the sweep.
    """
    try:
        _run(tune.get_context().get_trial_name(), config["values"], order)
    except UserError as error:
        tune.report({"failed": str(error)})


def _run(name: str, values: Settings, order: Order) -> None:
    sys.orig_argv = list(order.command)  # that of a worker of Ray tells nobody anything
    for library in ("ray.train", "ray.tune"):  # which tell of every checkpoint
        logging.getLogger(library).setLevel(logging.WARNING)
    job = order.jobs[name]
    with _alone(job.folder):
        _run_alone(name, job, values, order)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other process has the run folder: that of a killed sweep may take a moment to end."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("w") as file:
        lock(file.fileno(), wait=True)
        yield


def _run_alone(name: str, job: Job, values: Settings, order: Order) -> None:
    checkpoint = tune.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as found:
            take_over(Path(found), job.folder)
    if order.interval:
        values = begin(job.folder, name, values, copied=checkpoint is not None)
    federation = federation_of(job, values)
    if checkpoint is not None:  # of a trial with other values, which training may change
        Checkpoints(job.folder / "checkpoints").take_over(federation.deciding())
    scores = RoundScores(job.folder, federation.protocol, order.metric)
    if federation.resumes and (job.folder / PARTITION).exists():
        for record in read_records(job.folder):
            score = scores.score(record)
            if order.replays:
                _report(record, score)
    if not job.finished:
        federation.callbacks.append(Reporter(job, scores, order.interval))
        federation.run()
    if order.interval is None:  # population based training could make a copy of a run that is over
        *_, last = read_records(job.folder)
        _report(last, scores.score(last))


def federation_of(job: Job, values: Settings) -> Federation:
    """Return the federation of a trial, in this process's placement group; one that has begun goes on."""
    settings = layered(job.settings, values) | {"seed": job.seed, "quiet": True, "output": str(job.folder)}
    federation = federation_from(options(settings))
    if (job.folder / CONFIG).is_file():
        federation = federation.resume(job.folder)
    if isinstance(federation.engine, Ray):
        federation.engine.in_group = True
        federation.engine.address = None  # this process is in the cluster already
    return federation


class Reporter(Callback):
    """Tells Ray Tune of every evaluated round but the last, which is told when all is written.

    Args:
        job: the trial.
        scores: what is told, round by round.
        interval: rounds between two checkpoints for copying; None for none.
    """

    def __init__(self, job: Job, scores: RoundScores, interval: int | None) -> None:
        self._job, self._scores, self._interval = job, scores, interval

    def after_round(self, run: Run, record: Mapping[str, Any]) -> bool:
        """Report the round, with a copy of all that the run needs to go on where it is time for one."""
        done = record["round"] + 1
        if done == self._job.rounds:
            return False
        if self._interval and done % self._interval == 0:
            run.save()
            with snapshot(self._job.folder, done) as copied:
                _report(record, self._scores.score(record), tune.Checkpoint.from_directory(copied))
        else:
            _report(record, self._scores.score(record))
        return False


def _report(
    record: Mapping[str, Any], score: float | None, checkpoint: tune.Checkpoint | None = None
) -> None:
    if score is not None:
        tune.report({"round": record["round"] + 1, "score": score}, checkpoint=checkpoint)


# ---- copies


@contextmanager
def snapshot(folder: Path, rounds: int) -> Iterator[Path]:
    """Lay out all that a copy of a run needs to go on after so many rounds, in a folder that goes again.

    Checkpoint files are never changed in place, so they are linked where the file system can.
    """
    checkpoints = folder / "checkpoints"
    manifest = Checkpoints(checkpoints).after(rounds)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=COPY) as place:
        copied = Path(place)
        for name in (manifest.server, *manifest.clients.values(), f"manifest-{rounds:06d}.json"):
            _link(checkpoints / name, copied / name)
        for name in _RECORDS:
            shutil.copyfile(folder / name, copied / name)
        shutil.copyfile(schedule_of(folder), copied / schedule_of(folder).name)
        yield copied


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def take_over(copied: Path, folder: Path) -> None:
    """Put a snapshot in the place of what a run folder has of records and checkpoints."""
    checkpoints = folder / "checkpoints"
    shutil.rmtree(checkpoints, ignore_errors=True)
    checkpoints.mkdir(parents=True)
    (folder / SUMMARY).unlink(missing_ok=True)
    for name in _RECORDS:
        shutil.copyfile(copied / name, folder / name)
    (schedule,) = copied.glob(f"*{SCHEDULE}")
    shutil.copyfile(schedule, schedule_of(folder))
    for file in sorted(copied.glob("*.safetensors")) + sorted(copied.glob("manifest-*")):  # manifest last
        shutil.copyfile(file, checkpoints / file.name)
    if not (folder / CONFIG).exists():
        (folder / CONFIG).write_text("{}\n")  # the run writes its own when it goes on
