"""A sweep: its trials on Ray Tune, several at once on one cluster, and what has become of them."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import ray
from ray import tune
from ray.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    TrialScheduler,
)

from rayfl.config.table_file import Settings
from rayfl.engine import Engine, Ray
from rayfl.engine.cluster import PULSE, Cluster
from rayfl.engine.placement import reservation
from rayfl.errors import UserError
from rayfl.evaluation.protocol import read_protocol
from rayfl.evaluation.result import read_config
from rayfl.federation import Federation
from rayfl.files import write_file
from rayfl.jobs.cells import Job
from rayfl.jobs.progress import TableProgress
from rayfl.record.history import PARTITION, complete_lines, read_records
from rayfl.signals import answered
from rayfl.tune.scores import RoundScores
from rayfl.tune.space import Dimension, Metric
from rayfl.tune.trial import COPY, Order, run_trial
from rayfl.tune.trials import Trials

ENDED = "ended.jsonl"
"""A line per trial that is over: its name, and why."""
End = Literal["finished", "stopped", "failed"]
RESTARTS = 3
"""How often a trial whose process or host has died is started again."""
LOOK = 50
"""Steps of Ray Tune, of about 0.1 s, between two looks whether waiting trials can still be placed."""


@dataclass
class Ended:
    """What has become of trials: the lines of ``ended.jsonl``.

    Attributes:
        path: the file.
        why: name -> how the trial ended, and for one that failed the reason.
    """

    path: Path
    why: dict[str, tuple[End, str]] = field(default_factory=dict)

    @classmethod
    def load(cls, trials: Trials) -> Ended:
        """Read what an earlier session has noted; whether a trial is finished, its records alone say."""
        found = cls(trials.output / ENDED)
        if found.path.exists():
            lines = list(complete_lines(found.path))
            whole = sum(len(text) for text, _ in lines)
            if whole < found.path.stat().st_size:  # a crash has torn the last one
                write_file(found.path, b"".join(text for text, _ in lines))
            for _, line in lines:
                end: Any = line.get("end")
                name, reason = line.get("trial"), line.get("reason", "")
                known = end in get_args(End) and isinstance(reason, str)
                if not isinstance(name, str) or name not in trials.jobs or not known:
                    raise UserError(f"{found.path} is damaged: a line is of no trial; restore it from a copy")
                found.why[name] = (end, reason)
        found.why = {name: why for name, why in found.why.items() if why[0] != "finished"}
        found.why |= {name: ("finished", "") for name, job in trials.jobs.items() if job.finished}
        return found

    def note(self, name: str, end: End, reason: str = "") -> None:
        """Note that a trial is over."""
        self.why[name] = (end, reason)
        entry = {"trial": name, "end": end} | ({"reason": reason} if reason else {})
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def over(self, name: str) -> bool:
        """Return whether a trial need not be run again; one that has failed is tried again."""
        return name in self.why and self.why[name][0] != "failed"


@dataclass(frozen=True)
class Share:
    """What a trial gets of the cluster.

    Attributes:
        bundles: what it reserves, a bundle for each actor; those of a federation without actors run in the
            trial's own process, which has the one bundle.
        engine: settings of its engine that follow from it.
        at_once: trials at once; None for as many as fit.
    """

    bundles: list[dict[str, float]]
    engine: Settings
    at_once: int | None


def share(
    engine: Engine, clients: int, nodes: Sequence[Mapping[str, float]], trials: int, at_once: int | None
) -> Share:
    """Work out what a trial gets: actors ``auto`` share the cluster among the trials that run at once.

    Args:
        engine: of the base, not resolved.
        clients: the population.
        nodes: the resources of every node.
        trials: how many there are.
        at_once: as asked for; None for as many as the cluster holds.
    """
    resolved = copy(engine)
    resolved.resolve()  # here, because the process of a trial with actors has no GPU of its own
    try:
        if not isinstance(engine, Ray):
            gpus = 1.0 if resolved.device == "cuda" else 0.0
            wanted = reservation(nodes, 1, 1, None, float(engine.threads), gpus)
            return Share([wanted.bundle], {}, at_once)
        actors, hosted, cpus = engine.asked
        if actors is None and hosted is None:
            room = reservation(nodes, 10**6, None, None, cpus, engine.gpus_per_actor).actors
            at_once = min(trials, at_once or room)
            actors = max(1, min(clients, room // at_once))
        wanted = reservation(nodes, clients, actors, hosted, cpus, engine.gpus_per_actor)
    except UserError as error:
        raise UserError(f"a trial can never be placed on this cluster: {error}") from error
    settings = {
        "engine.device": resolved.device,
        "engine.actors": wanted.actors,
        "engine.clients_per_actor": "auto",
        "engine.cpus_per_actor": wanted.cpus,
    }
    return Share([wanted.bundle] * wanted.actors, settings, at_once)


def run(
    trials: Trials, ended: Ended, progress: TableProgress, federation: Federation, address: str | None = None
) -> bool:
    """Run all trials that are not over.

    Args:
        trials: of the sweep.
        ended: what an earlier session has done; trials that end are added to it.
        progress: where people are told.
        federation: of any trial; its engine is that of all.
        address: the Ray cluster to join; by default the engine's, or a new local one.

    Returns:
        Whether all trials are over; False after a SIGTERM or SIGHUP.

    Raises:
        KeyboardInterrupt: after a SIGINT.
    """
    waiting = {name: job for name, job in trials.jobs.items() if not ended.over(name)}
    if not waiting:
        return True
    for name in waiting:
        ended.why.pop(name, None)
    engine = federation.engine
    own = engine.address if isinstance(engine, Ray) else None
    cluster = Cluster(Ray(address=address or own))
    cluster.wait()
    try:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        clients = federation.clients or len(federation.federated_data())
        part = share(engine, clients, nodes, len(waiting), trials.sweep.at_once)
        jobs = {name: replace(job, settings=job.settings | part.engine) for name, job in waiting.items()}
        watcher = Watcher(trials, part, ended, progress, cluster.gone)
        with _quiet_tune(), _stoppable() as forwarded:
            _tuner(trials, part, jobs, ended, watcher).fit()
    except _Broken as broken:
        raise UserError(str(broken)) from None
    finally:
        cluster.close()
    complete = all(name in ended.why for name in waiting)
    if not complete and not forwarded:
        raise KeyboardInterrupt
    return complete


def _tuner(
    trials: Trials, part: Share, jobs: Mapping[str, Job], ended: Ended, watcher: Watcher
) -> tune.Tuner:
    sweep = trials.sweep
    pbt = sweep.scheduler.name == "pbt"
    order = Order(
        jobs,
        sweep.metric,
        interval=sweep.scheduler.interval if pbt else None,
        replays=sweep.scheduler.name in ("asha", "median"),
        command=tuple(sys.orig_argv),
    )
    head: list[dict[str, float]] = [{}] if "engine.actors" in part.engine else []
    trainable = tune.with_resources(
        tune.with_parameters(run_trial, order=order),
        tune.PlacementGroupFactory([*head, *part.bundles], strategy="PACK"),
    )
    names = list(jobs)
    space: dict[str, Any] = {"name": tune.grid_search(names)}
    space["values"] = tune.sample_from(lambda spec: trials.values(spec.config["name"]))
    scratch = trials.output / "tune"
    shutil.rmtree(scratch, ignore_errors=True)  # of an earlier session, from which nothing is read
    for left in (trials.output / "trials").glob(f"*/{COPY}*"):
        shutil.rmtree(left, ignore_errors=True)
    return tune.Tuner(
        trainable,
        param_space=space,
        tune_config=tune.TuneConfig(
            scheduler=scheduler_of(trials, ended),
            max_concurrent_trials=None if pbt else part.at_once,  # a population lives as a whole
            reuse_actors=True,
            trial_name_creator=_name_of,
            trial_dirname_creator=_name_of,
        ),
        run_config=tune.RunConfig(
            name=scratch.name,
            storage_path=str(trials.output.resolve()),
            callbacks=[watcher],
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=RESTARTS),
            checkpoint_config=tune.CheckpointConfig(num_to_keep=4 if pbt else None),
        ),
    )


def _name_of(trial: Any) -> str:
    return str(trial.config["name"])


# ---- schedulers


def scheduler_of(trials: Trials, ended: Ended) -> TrialScheduler:
    """Return the scheduler, which has seen what trials of an earlier session have shown."""
    sweep, wanted = trials.sweep, trials.sweep.scheduler
    common = {"time_attr": "round", "metric": "score", "mode": sweep.mode}
    if wanted.name == "none":
        return FIFOScheduler()
    if wanted.name == "pbt":
        return PopulationBasedTraining(
            **common,
            perturbation_interval=wanted.interval,
            hyperparam_mutations={"values": {d.key: _mutation(d) for d in sweep.dimensions}},
            quantile_fraction=wanted.quantile,
            resample_probability=wanted.resample,
            custom_explore_fn=partial(_inside, sweep.dimensions),
            log_config=False,
            require_attrs=False,
        )
    rounds = max(job.rounds for job in trials.jobs.values())
    scheduler: TrialScheduler
    if wanted.name == "asha":
        grace = min(wanted.grace, rounds)
        scheduler = ASHAScheduler(
            **common, max_t=rounds, grace_period=grace, reduction_factor=wanted.reduction
        )
    else:
        scheduler = MedianStoppingRule(
            **common,
            grace_period=wanted.grace,
            min_samples_required=wanted.min_trials,
            min_time_slice=math.inf,  # a trial never waits for others to come as far
        )
    for name, job in trials.jobs.items():
        if ended.over(name):
            _show_again(scheduler, name, job, sweep.metric)
    return scheduler


def _show_again(scheduler: TrialScheduler, name: str, job: Job, metric: Metric) -> None:
    """Show a scheduler the scores of a trial that is over."""
    if not (job.folder / PARTITION).exists():
        return
    past = _PastTrial(name)
    scheduler.on_trial_add(None, past)
    scores = RoundScores(job.folder, read_protocol(read_config(job.folder)), metric)
    for record in read_records(job.folder):
        score = scores.score(record)
        if score is not None:
            scheduler.on_trial_result(None, past, {"round": record["round"] + 1, "score": score})


@dataclass(frozen=True)
class _PastTrial:
    """What schedulers want to know of a trial."""

    trial_id: str


def _mutation(d: Dimension) -> Any:
    """Return what population based training may make of a value."""
    if d.values:
        return sorted(d.values)
    kinds = {"uniform": tune.uniform, "loguniform": tune.loguniform, "randint": tune.randint}
    whole = d.kind == "randint"
    return kinds[d.kind](int(d.low) if whole else d.low, int(d.high) if whole else d.high)


def _inside(dimensions: Sequence[Dimension], config: dict[str, Any]) -> dict[str, Any]:
    """Bring changed values back into their ranges."""
    values = dict(config["values"])
    for d in dimensions:
        if not d.values:
            top = d.high - 1 if d.kind == "randint" else d.high
            values[d.key] = type(values[d.key])(min(max(values[d.key], d.low), top))
    return config | {"values": values}


# ---- while it runs


class _Broken(BaseException):
    """Ray itself is gone. No Exception, after which Ray Tune would tidy up, with the help of what is gone."""


class Watcher(tune.Callback):
    """Tells people of trials, notes those that are over, and ends a sweep that can never go on.

    Args:
        trials: of the sweep.
        part: what a trial gets.
        ended: where the end of trials is noted.
        progress: where people are told.
        gone: says which of Ray's own processes is gone.
    """

    def __init__(
        self,
        trials: Trials,
        part: Share,
        ended: Ended,
        progress: TableProgress,
        gone: Callable[[], str | None],
    ) -> None:
        self._trials, self._part, self._ended, self._progress = trials, part, ended, progress
        self._gone, self._seen = gone, time.monotonic()

    def __getstate__(self) -> dict[str, Any]:
        """Ray Tune writes its callbacks to disk, from where nobody reads them."""
        return {}

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """See that Ray itself is there."""
        if time.monotonic() - self._seen < PULSE:
            return
        self._seen = time.monotonic()
        if part := self._gone():
            raise _Broken(
                f"{part} is gone, and with it all trials: go on with --resume {self._trials.output}"
            )

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Show what runs, and look whether what waits has room on the hosts that are left."""
        running = [self._trials.jobs[_own(t)] for t in trials if t.status == "RUNNING"]
        waiting = [t for t in trials if t.status in ("PENDING", "PAUSED")]
        self._progress.show(running, [self._trials.jobs[_own(t)] for t in waiting])
        if not running and waiting and iteration % LOOK == LOOK - 1:
            self._look()

    def _look(self) -> None:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        bundle = self._part.bundles[0]
        try:
            reservation(
                nodes, 1, len(self._part.bundles), None, bundle.get("CPU", 0.0), bundle.get("GPU", 0.0)
            )
        except UserError as error:
            raise UserError(
                f"hosts have left the cluster, and no trial can be placed any more: {error}; go on with "
                f"--resume {self._trials.output}"
            ) from error

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Note the end of a trial that has run to its end, was stopped, or has reported its failure."""
        name = _own(trial)
        job = self._trials.jobs[name]
        reason = (trial.last_result or {}).get("failed")
        if job.finished:
            self._end(name, "finished")
        elif reason is not None:
            self._end(name, "failed", str(reason))
        else:
            self._end(name, "stopped")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Note the failure of a trial whose process has died too often."""
        lines = [
            line for line in str(trial.error_file and Path(trial.error_file).read_text()).splitlines() if line
        ]
        self._end(_own(trial), "failed", lines[-1].strip() if lines else "its process died")

    def _end(self, name: str, end: End, reason: str = "") -> None:
        job = self._trials.jobs[name]
        self._ended.note(name, end, reason)
        rounds = f" after {len(job.seconds())} rounds" if end == "stopped" else ""
        self._progress.tell(f"{job}: {'FAILED: ' + reason if end == 'failed' else end + rounds}")


def _own(trial: Any) -> str:
    """Return the name of a trial; the one in its configuration is that of the trial whose copy it is."""
    return str(trial.custom_trial_name or trial.trial_id)


@contextlib.contextmanager
def _quiet_tune() -> Iterator[None]:
    """Keep Ray Tune from writing what the run folders have, from changing directories, and from talk."""
    wanted = {
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
        "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a trial that has failed reports its reason alone
        "RAY_AIR_NEW_OUTPUT": "0",
        "RAY_CHDIR_TO_TRIAL_DIR": "0",
        "TUNE_FUNCTION_THREAD_TIMEOUT_S": "10",
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    logger = logging.getLogger("ray.tune")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


@contextlib.contextmanager
def _stoppable() -> Iterator[list[int]]:
    """Let SIGTERM and SIGHUP end the sweep as SIGINT does, on which alone Ray Tune acts.

    Ray Tune leaves handlers of its own behind. Afterwards signals go to those who had them before.

    Yields:
        The signals that have come and are not SIGINT.
    """
    here = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGUSR1)}

    forwarded: list[int] = []

    def forward(number: int) -> None:
        forwarded.append(number)
        signal.raise_signal(signal.SIGINT)

    try:
        with answered(forward, (signal.SIGTERM, signal.SIGHUP)):
            yield forwarded
    finally:
        for number, handler in before.items() if here else ():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
