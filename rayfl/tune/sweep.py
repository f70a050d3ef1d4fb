"""A sweep: its trials on Ray Tune, several at once on one cluster, and their outcome."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from unittest.mock import patch

import ray
from ray import tune
from ray.tune import schedulers
from ray.tune.logger import TBXLoggerCallback
from ray.tune.search import BasicVariantGenerator, Repeater, Searcher, create_searcher
from rich.console import Console

from rayfl.engine import Ray
from rayfl.engine.cluster import PULSE, Cluster, wait_seconds
from rayfl.engine.hosts import ask_hosts
from rayfl.engine.ray_engine import TrialResources, trial_resources
from rayfl.errors import BadValue, Conflict, InUse, Missing, Shortage, Unknown, UserError, error_context
from rayfl.federation import Federation
from rayfl.jobs.cells import Job, check_code, code_of
from rayfl.jobs.progress import TableProgress
from rayfl.jobs.table_file import data_key, find_file
from rayfl.record.folder import check_folder_kind, read_summary
from rayfl.record.history import SUMMARY, complete_lines
from rayfl.report.page import PAGE, write_page
from rayfl.running.result import Result
from rayfl.settings.arguments import arguments_of, convert_value
from rayfl.settings.reader import DottedSettings
from rayfl.system.files import lock_folder, write_file
from rayfl.system.signals import handle_signals
from rayfl.system.terminal import Terminal
from rayfl.system.text import counted
from rayfl.tune.outcome import BestPoints, PointResult, points_table, result_of, table_of, write_all
from rayfl.tune.space import PAUSING, Dimension, SearchPoint, Space, federation_of
from rayfl.tune.sweep_page import sweep_page
from rayfl.tune.trial import STOPPED, SweepContext, run_trial

if TYPE_CHECKING:
    import pandas as pd

SCHEDULERS = {
    "none": "FIFOScheduler",
    "asha": "ASHAScheduler",
    "median": "MedianStoppingRule",
    "hyperband": "HyperBandScheduler",
    "bohb": "HyperBandForBOHB",
}
SEARCHER_PACKAGES = {"optuna": "'rayfl[optuna]'", "hyperopt": "hyperopt", "bohb": "hpbandster ConfigSpace"}
SWEEP_OPTIONS = {"time_attr", "metric", "mode", "max_t", "min_time_slice"}
"""Options of schedulers that the sweep sets."""
QUIET_VARIABLES = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_FUNCTION_THREAD_TIMEOUT_S": "10",
}
"""Keeps Ray Tune from writing files that run folders have, from changing directories, and from printing."""
RESTARTS = 3
"""How often a trial is restarted after its process or host has died."""
ROOM_CHECK = 5.0
"""Seconds without a running trial, after which waiting ones must fit on the remaining hosts."""


@dataclass(frozen=True)
class SweepResult:
    """The results of a sweep.

    Attributes:
        grids: Ray Tune's results, for each part that is searched by itself.
        results: of the points that have begun.
        best: the best of them; empty if none is chosen, or not all trials have ended.
        failed: trial -> reason.
        complete: whether all trials have ended.
        written: paths of the files.
    """

    grids: list[tune.ResultGrid]
    results: list[PointResult]
    best: BestPoints
    failed: dict[Job, str]
    complete: bool
    written: list[Path] = field(default_factory=list)

    @property
    def points(self) -> pd.DataFrame:
        """A line per point: searched values, seeds, rounds, means and deviations, and whether it is best."""
        return table_of(self.results, self.best)


def run(
    space: Space | str | Path,
    output: str | Path | None = None,
    *,
    resume: bool = False,
    code: Literal["changed"] | None = None,
    address: str | None = None,
    console: Console | None = None,
) -> SweepResult:
    """Run or resume a sweep.

    Args:
        space: a tune space, its file, or the name of one that comes with rayfl.
        output: the folder; ``runs/<sweep>`` by default.
        resume: whether to resume the sweep of that folder, which must be of the same space.
        code: ``changed`` to repeat trials that were made with other code of the user's own; searchers and
            schedulers then choose again, too.
        address: the Ray cluster to join; by default the engine's, or a new local one.
        console: for the output.

    Raises:
        KeyboardInterrupt: after a SIGINT, when the trials have ended.
    """
    space = space if isinstance(space, Space) else Space.load(find_file(str(space), "tune_spaces"))
    output, console = Path(output or Path("runs", space.sweep)), console or Terminal()
    scheduler_of(space.scheduler, 1)
    if resume:
        before = Space.load_from_folder(output)
        space = replace(space, mode=space.mode or before.mode)
        kept, asked = before.result_settings, space.result_settings
        if other := [name for name in asked if asked[name] != kept[name]]:
            raise Conflict(output, f"has a sweep of another space: {', '.join(other)} differ")
        for summary in sorted(output.glob(f"trials/*/seed-*/{SUMMARY}")):  # damaged files are reported first
            Result.load(summary.parent)
            read_summary(summary.parent)
    else:
        check_folder_kind(output, "sweep")
        if output.exists() and (not output.is_dir() or any(output.iterdir())):
            raise InUse(output, f"already exists; choose another --output, or go on with --resume {output}")
    points = space.example_points()
    federation = federation_of(points[0].settings)
    cluster = federation.engine if isinstance(federation.engine, Ray) else Ray()
    cluster = replace(cluster, address=address or cluster.address)
    cluster.check_address()
    if not resume:
        space = check_sweep(space, points)
        space.save(output)
    with lock_folder(output):
        settings = [point.settings for point in points]
        check_code(output.glob("trials/*/seed-*/"), settings, remove=code is not None)
        chosen = (*output.glob("searcher-*.jsonl"), *output.glob(f"trials/*/*{STOPPED}"))
        for path in chosen if code else ():
            path.unlink()
        rounds = max(point.rounds for point in points)
        return _run_trials(space, output.absolute(), rounds, federation, cluster, console)


def _run_trials(
    space: Space, output: Path, rounds: int, federation: Federation, asked: Ray, console: Console
) -> SweepResult:
    planned = space.point_count * len(space.seeds)
    logging.getLogger("ray.tune").setLevel(logging.ERROR)
    shutil.rmtree(output / "tune", ignore_errors=True)  # an earlier session's, which is never read
    grids: list[tune.ResultGrid] = []
    cluster = Cluster(asked.address)
    cluster.wait_until_up()
    try:
        alive = [node for node in ray.nodes() if node["Alive"]]
        if not cluster.is_own:
            ask_hosts({}, [node["NodeID"] for node in alive], ray.get)
        nodes = [node["Resources"] for node in alive]
        clients = federation.clients or len(federation.federated_data())
        wait = wait_seconds(asked.wait)
        part = trial_resources(federation.engine, clients, nodes, planned, space.at_once, may_grow=wait > 0)
        code = code_of(point.settings for point in space.example_points())
        order = SweepContext(space, output, part.engine, tuple(sys.orig_argv), code)
        board, wait = "tensorboard" in federation.loggers, max(wait, ROOM_CHECK)
        watcher = SweepWatcher(order, part, planned, rounds, cluster.dead_process, board, wait)
        at_once = part.at_once or os.cpu_count() or 1
        with (
            TableProgress(watcher.cells, at_once, console=console, items="trials") as watcher.progress,
            patch.dict(os.environ, QUIET_VARIABLES),
            _forward_signals() as forwarded,
        ):
            due = 0
            for number, (fixed, search) in enumerate(space.searched_parts()):
                grids.append(_make_tuner(watcher, fixed, search, number).fit())
                due += space.count_points(search) * len(space.seeds)
                if len(watcher.ended) < due:
                    break
    except _RayGone as broken:
        raise Shortage(str(broken)) from None
    finally:
        cluster.close()
    points: dict[str, tuple[SearchPoint, dict[Path, Job]]] = {}
    for point, job in watcher.trials.values():  # of trials with the same folder only the first counts
        points.setdefault(point.name, (point, {}))[1].setdefault(job.folder, job)
    begun = enumerate(points.values())
    results = [result_of(k, point, list(jobs.values()), space.metric) for k, (point, jobs) in begun]
    complete = len(watcher.ended) == planned
    chooses = space.best and complete
    best = BestPoints.from_results(results, str(space.mode), space.data_keys) if chooses else BestPoints()
    console.print(points_table(space, results, best))
    written = write_all(space, results, best, output) if complete else []
    if complete and write_page(output, lambda: sweep_page(space, results, best, output)):
        written.append(output / PAGE)
    if not complete:
        over = f"{len(watcher.ended)} of {counted(planned, 'trial')} are over, so no point is the best"
        console.print(f"{over}; go on with --resume {output}", soft_wrap=True, markup=False)
        if not forwarded:
            raise KeyboardInterrupt
    return SweepResult(grids, results, best, watcher.failed, complete, written)


def _make_tuner(
    watcher: SweepWatcher, fixed: DottedSettings, search: Sequence[Dimension], number: int
) -> tune.Tuner:
    order, part, space = watcher.order, watcher.part, watcher.order.space
    samples = space.samples if any(d.is_drawn for d in search) else 1
    pauses = space.scheduler["name"] in PAUSING  # paused trials would count towards at_once
    at_once = None if pauses else part.at_once
    param_space = fixed | {d.key: search_domain(d) for d in search}
    if space.searcher is None:
        param_space["seed"] = tune.grid_search(list(space.seeds))
    else:
        samples *= len(space.seeds)
    head: list[dict[str, float]] = [{}] if "engine.actors" in part.engine else []
    trainable = tune.with_resources(
        tune.with_parameters(run_trial, order=order),
        tune.PlacementGroupFactory([*head, *part.bundles], strategy="PACK"),
    )
    return tune.Tuner(
        trainable,
        param_space=param_space,
        tune_config=tune.TuneConfig(
            metric="score",
            mode=space.mode,
            search_alg=searcher_of(space, at_once or 0, order.output / f"searcher-{number}.jsonl"),
            scheduler=scheduler_of(space.scheduler, watcher.rounds),
            num_samples=samples,
            max_concurrent_trials=at_once if space.searcher else None,
            reuse_actors=True,
            trial_dirname_creator=lambda trial: trial.trial_id,
        ),
        run_config=tune.RunConfig(
            name=str(number),
            storage_path=str((order.output / "tune").resolve()),
            callbacks=[watcher, *([TBXLoggerCallback()] if watcher.board else [])],
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=RESTARTS),
            checkpoint_config=tune.CheckpointConfig(num_to_keep=1 if pauses else None),
        ),
    )


# ---- before it runs


def check_sweep(space: Space, points: Sequence[SearchPoint]) -> Space:
    """Refuse a sweep that cannot choose, and points that cannot work; return it with its mode."""
    about, data = "", None
    for point in sorted(points, key=lambda point: data_key(point.settings)):
        federation = federation_of(point.settings | {"seed": space.seeds[0]})
        if federation.eval_every == 0:
            raise Conflict("eval_every", "is 0, so there is nothing to compare", "set it to at least 1")
        with error_context(f"the point {point.label} cannot work"):
            if federation.protocol.choose == "best_test":
                problem = "is best_test, and a sweep never goes by test data"
                raise Conflict("protocol.choose", problem, "choose best_val, or last")
            if data is None or data_key(point.settings) != about:
                about, data = data_key(point.settings), federation.federated_data()
            federation.check(data)
        if space.best and not data.counts("val").any():
            problem = "goes by validation data, and the data have no validation split"
            raise Conflict("best", problem, "give some, for example with --data.val_fraction 0.1")
    assert data is not None
    higher = data.dataset.task.figure.higher and space.metric != "loss"
    return replace(space, mode=space.mode or ("max" if higher else "min"))


# ---- schedulers and searchers


def scheduler_of(asked: Mapping[str, Any], rounds: int) -> Any:
    """Return a scheduler of Ray Tune.

    Args:
        asked: its name and options.
        rounds: of the longest trial.
    """
    name, given = asked["name"], {key: value for key, value in asked.items() if key != "name"}
    if name not in SCHEDULERS:
        raise BadValue("scheduler", f"is {name!r}", f"it must be one of {', '.join(SCHEDULERS)}")
    made = getattr(schedulers, SCHEDULERS[name])
    known = arguments_of(made)
    options = {key: kind for key, kind in known.items() if key not in SWEEP_OPTIONS}
    for key, value in given.items():
        if key not in options:
            problem = f"is no option of {name}, which has {', '.join(options) or 'none'}"
            raise Unknown(f"scheduler.{key}", problem)
        convert_value(f"scheduler.{key}", value, options[key])
    decided: dict[str, Any] = {"time_attr": "round", "max_t": rounds, "min_time_slice": float("inf")}
    decided |= {"grace_period": min(given.get("grace_period", 1), rounds)}  # Ray Tune's default is in seconds
    try:
        return made(**given | {key: value for key, value in decided.items() if key in known})
    except (AssertionError, ArithmeticError, ValueError) as error:
        raise BadValue("scheduler", f"{name} cannot be made: {error}") from error


def search_domain(dimension: Dimension) -> Any:
    """Return Ray Tune's search domain of a dimension."""
    made = getattr(tune, dimension.kind)
    return made(list(dimension.values)) if dimension.is_listed else made(*dimension.values)


def searcher_of(space: Space, at_once: int, path: Path) -> Any:
    """Return Ray Tune's search algorithm for a part of a sweep.

    Args:
        space: the tune space.
        at_once: trials at once; 0 for as many as fit. Searchers are limited elsewhere.
        path: the file that records the points of a searcher.
    """
    if space.searcher is None:
        return BasicVariantGenerator(
            max_concurrent=at_once, constant_grid_search=True, random_state=space.draw_seed
        )
    seed = {"seed": space.draw_seed, "random_state_seed": space.draw_seed}  # a searcher takes one of the two
    try:
        made = create_searcher(space.searcher, metric="score", mode=space.mode, **seed)
    except (ImportError, AssertionError) as error:
        problem = f"{space.searcher} needs a package that is not installed"
        raise Missing("searcher", problem, f"pip install {SEARCHER_PACKAGES[space.searcher]}") from error
    if len(space.seeds) > 1:
        made = Repeater(made, len(space.seeds), set_index=False)
    return ReplayedSearcher(made, space, path)


class ReplayedSearcher(Searcher):
    """A search algorithm that continues where an earlier session has stopped.

    All calls of it are recorded. When the sweep is resumed, they are repeated in the same order, which gives
    the algorithm the same state. The points that it has drawn before are run first.

    Args:
        searcher: of Ray Tune; with several seeds, a Repeater of one.
        space: the tune space.
        path: the file.
    """

    def __init__(self, searcher: Searcher, space: Space, path: Path) -> None:
        super().__init__(metric=searcher.metric, mode=searcher.mode)
        self.searcher, self._space, self._path = searcher, space, path
        self._drawn: list[dict[str, Any]] = []
        self._trials: dict[str, str] = {}  # Ray Tune's id of a trial -> its number
        self._last: dict[str, tuple[int, float]] = {}  # trial -> last reported round and score
        self._over: set[str] = set()

    def set_search_properties(self, metric: Any, mode: Any, config: Any, **spec: Any) -> bool:
        """Set the space, and repeat the recorded calls."""
        done = self.searcher.set_search_properties(metric, mode, config, **spec)
        lines = list(complete_lines(self._path)) if self._path.exists() else []
        write_file(self._path, b"".join(text for text, _ in lines))  # without an incomplete last line
        for _, line in lines:
            if "point" not in line:
                self._tell_searcher(line)
            elif _plain_point(self.searcher.suggest(str(len(self._drawn)))) == line["point"]:
                self._drawn.append(line["point"])
            else:
                raise Conflict(
                    "searcher",
                    f"{self._space.searcher} draws other points than in {self._path}, as another version of "
                    "its package may",
                    "install the earlier one, or start the sweep anew",
                )
        return bool(done)

    def suggest(self, trial_id: str) -> Any:
        """Return the next recorded point, or draw a new one."""
        number = len(self._trials)
        if number == len(self._drawn):
            point = self.searcher.suggest(str(number))
            if point is None or point == Searcher.FINISHED:
                return point
            self._drawn.append(_plain_point(point))
            self._append_line({"point": self._drawn[number]})
        self._trials[trial_id] = str(number)
        seeds = self._space.seeds  # each point is run with each seed
        return self._drawn[number] | {"seed": seeds[number % len(seeds)]}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Report a round, unless it was reported before."""
        trial, kept = self._trials[trial_id], ("round", "score", "hyperband_info")
        if result["round"] > self._last.get(trial, (0, 0.0))[0]:
            line = {"trial": trial, **{key: result[key] for key in kept if key in result}}
            self._append_line(line)
            self._tell_searcher(line)

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        """Report the end of a trial, unless it was reported before."""
        trial = self._trials[trial_id]
        if trial not in self._over:
            score = (result or {}).get("score", self._last.get(trial, (0, self._space.worst_score))[1])
            self._append_line({"trial": trial, "end": score})
            self._tell_searcher({"trial": trial, "end": score})

    def _tell_searcher(self, line: Mapping[str, Any]) -> None:
        trial = line["trial"]
        if "end" in line:
            self._over.add(trial)
            self.searcher.on_trial_complete(trial, {"score": line["end"]})
        else:
            self._last[trial] = line["round"], line["score"]
            self.searcher.on_trial_result(trial, {"training_iteration": line["round"], **line})

    def on_pause(self, trial_id: str) -> None:
        """Pass the pause on, which BOHB needs."""
        self.searcher.on_pause(self._trials[trial_id])

    def on_unpause(self, trial_id: str) -> None:
        """Pass the end of the pause on, which BOHB needs."""
        self.searcher.on_unpause(self._trials[trial_id])

    def get_state(self) -> dict[str, Any]:
        """Return an empty state: Ray Tune's copy is never read."""
        return {}

    def _append_line(self, line: Mapping[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _plain_point(point: Any) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(point, default=lambda value: value.item()))
    return plain


# ---- while it runs


class _RayGone(BaseException):
    """Ray itself has died. Not an Exception, after which Ray Tune would use Ray to clean up."""


@dataclass(eq=False)
class SweepWatcher(tune.Callback):
    """Reports trials to the user, records those that ended, and ends a sweep that cannot continue.

    Args:
        order: of the sweep.
        part: the resources of a trial.
        planned: the number of trials.
        rounds: of the longest trial.
        dead_process: returns which of Ray's own processes has died.
        board: whether Ray Tune also writes files for TensorBoard.
        wait: seconds to wait for hosts while no trial runs.

    Attributes:
        trials: Ray Tune's id of a started trial -> its point and its job.
        ended: the same ids, of those that are over.
        failed: trial -> why it has failed.
        cells: all trials, with placeholders for those that have not started.
        progress: the display for the user.
    """

    order: SweepContext
    part: TrialResources
    planned: int
    rounds: int
    dead_process: Callable[[], str | None]
    board: bool
    wait: float
    progress: TableProgress = field(init=False)
    trials: dict[str, tuple[SearchPoint, Job]] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    failed: dict[Job, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin with placeholders for all trials."""
        place = self.order.output / "to come"
        self.cells = [Job("", "", 0, self.rounds, place, {}) for _ in range(self.planned)]
        self._seen = self._ran = time.monotonic()

    def __getstate__(self) -> dict[str, Any]:
        """Return an empty state: Ray Tune's copy on disk is never read."""
        return {}

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Check that Ray's own processes are alive."""
        if time.monotonic() - self._seen < PULSE:
            return
        self._seen = time.monotonic()
        if part := self.dead_process():
            raise _RayGone(f"{part} is gone, and with it all trials: go on with --resume {self.order.output}")

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Show running trials, and check that waiting ones fit on the remaining hosts."""
        running = [self._job_of(t) for t in trials if t.status == "RUNNING"]
        waiting = [t for t in trials if t.status in ("PENDING", "PAUSED")]
        self.progress.show_jobs(running, [*map(self._job_of, waiting), *self.cells[len(self.trials) :]])
        if running or not waiting:
            self._ran = time.monotonic()
        elif time.monotonic() - self._ran > self.wait:
            try:
                self.part.check([node["Resources"] for node in ray.nodes() if node["Alive"]])
            except UserError as error:
                raise Shortage(f"{error}; go on with --resume {self.order.output}") from error
            self._ran = time.monotonic()

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Record the end of a trial that finished, was stopped, or reported its failure."""
        job = self._job_of(trial)
        reason = (trial.last_result or {}).get("failed")
        if job.is_finished:
            self._note_end(trial, "finished")
        elif reason is not None:
            self._note_failure(trial, str(reason))
        else:
            job.folder.with_name(job.folder.name + STOPPED).touch()
            self._note_end(trial, f"stopped after {len(job.round_seconds())} rounds")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Record the failure of a trial whose process has died too often."""
        text = Path(trial.error_file).read_text() if trial.error_file else ""
        self._note_failure(trial, (text.strip() or "its process died").splitlines()[-1].strip())

    def _note_failure(self, trial: Any, reason: str) -> None:
        self.failed[self._job_of(trial)] = reason
        self._note_end(trial, f"FAILED: {reason}")

    def _note_end(self, trial: Any, end: str) -> None:
        self.ended.add(trial.trial_id)
        self.progress.print_line(f"{self._job_of(trial)}: {end}")

    def _job_of(self, trial: Any) -> Job:
        if trial.trial_id not in self.trials:
            point = self.order.space.point_of(trial.config, strict=False)  # the trial reports the error
            job = point.trial_job(trial.config["seed"], self.order.output)
            if len(self.trials) < len(self.cells):
                self.cells[len(self.trials)] = job
            self.trials[trial.trial_id] = point, job
        return self.trials[trial.trial_id][1]


@contextlib.contextmanager
def _forward_signals() -> Iterator[list[int]]:
    """Let SIGTERM and SIGHUP end the sweep as SIGINT does, the only signal that Ray Tune handles.

    Ray Tune leaves its own handlers behind; the earlier ones are restored at the end.

    Yields:
        The signals received, without SIGINT.
    """
    forwarded: list[int] = []

    def forward(number: int) -> None:
        forwarded.append(number)
        signal.raise_signal(signal.SIGINT)

    with handle_signals(forward, (signal.SIGTERM, signal.SIGHUP), (signal.SIGINT, signal.SIGUSR1)):
        yield forwarded
