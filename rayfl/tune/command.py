"""Command line: ``python -m rayfl.tune SPACE`` runs a sweep; ``--help`` lists the options."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

import jsonargparse
from rich.console import Console

from rayfl.config.command_line import parse_with_options
from rayfl.config.parser import federation_from
from rayfl.config.table_file import (
    DECIDED,
    Settings,
    changes_of,
    first_seeds,
    layered,
    of_data,
    options,
    slug,
)
from rayfl.errors import UserError, exit_code
from rayfl.federation import Federation
from rayfl.files import held, read_json, refuse_links, write_file
from rayfl.jobs.cells import Job
from rayfl.jobs.progress import TableProgress
from rayfl.record.checks import check_config
from rayfl.record.description import RESUMABLE
from rayfl.record.folder import check_is, check_kind
from rayfl.record.history import SWEEP
from rayfl.shown import complain
from rayfl.terminal import Terminal
from rayfl.tune.outcome import Best, points_table, result_of, write_all
from rayfl.tune.space import Dimension, Kind, Metric, Point, Scheduler, Space, check_population, scored_on

MOST_TRIALS = 2000
"""Trials of a sweep: each is a federation, and a second of looking at its settings."""


def parser() -> jsonargparse.ArgumentParser:
    """Return the parser of the command line."""
    made = jsonargparse.ArgumentParser(
        exit_on_error=False,
        prog="python -m rayfl.tune",
        allow_abbrev=False,
        description="Run a sweep on Ray Tune: a federation for each point of a search space and each seed, "
        "several at once. The best point is chosen on validation data and reported with test data. All "
        "options of rayfl.run are taken too, such as --data.root DATA --engine.actors 1: they hold for all "
        f"trials, and win over the base. With --resume only {', '.join(RESUMABLE[1:])} may be given.",
    )
    made.add_argument(
        "space", metavar="SPACE", nargs="?", type=str | None, default=None,
        help="the tune space, such as tune_spaces/fdse.yaml",
    )  # fmt: skip
    made.add_argument(
        "--resume",
        type=str | None,
        default=None,
        metavar="FOLDER",
        help="go on with a sweep that was stopped or killed; finished trials are not repeated",
    )
    made.add_argument(
        "--set",
        nargs="+",
        action="append",
        type=str,
        default=[],
        metavar="KEY=VALUE",
        help="another way to write options of rayfl.run: --set training.lr=0.05 is --training.lr 0.05",
    )
    made.add_argument("--rounds", type=int | None, default=None, help="rounds; default: the base's")
    made.add_argument("--seeds", type=int | None, default=None, help="number of seeds; default: the file's")
    made.add_argument("--samples", type=int | None, default=None, help="random draws; default: the file's")
    made.add_argument(
        "--at_once", type=int | None, default=None, help="trials at once; default: what the cluster holds"
    )
    made.add_argument(
        "--address",
        type=str | None,
        default=None,
        help="the Ray cluster to join, such as auto; default: the engine's address, or a new local cluster",
    )
    made.add_argument("--output", type=str | None, default=None, help="folder; default: runs/<sweep>")
    made.add_argument("--list", action="store_true", help="list the points, and run nothing")
    return made


@dataclass(frozen=True)
class Sweep:
    """A sweep as ``sweep.json`` keeps it: everything that is needed to go on with it.

    Attributes:
        name: of the space.
        title: of the space.
        points: all of them.
        seeds: every point is run with each.
        metric: what is compared.
        mode: whether large or small values of it are good.
        best: whether a best point is chosen.
        scheduler: how trials are cut short.
        dimensions: what population based training changes; none otherwise.
        at_once: trials at once; None for what the cluster holds.
    """

    name: str
    title: str
    points: list[Point]
    seeds: list[int]
    metric: Any
    mode: Any
    best: bool
    scheduler: Scheduler
    dimensions: list[Dimension]
    at_once: int | None

    @classmethod
    def of(cls, space: Space, points: list[Point]) -> Sweep:
        """Return the sweep of a space."""
        changed = space.searches[0] if space.scheduler.name == "pbt" else ()
        return cls(
            space.name, space.title, points, list(space.seeds), space.metric, space.mode, space.best,
            space.scheduler, list(changed), space.at_once,
        )  # fmt: skip

    @classmethod
    def load(cls, folder: Path) -> Sweep:
        """Read the sweep of a folder.

        Raises:
            UserError: there is none, or it is damaged.
        """
        path = folder / SWEEP
        check_is(folder, "sweep")
        try:
            content = read_json(path)
            content["points"] = [Point(**point) for point in content["points"]]
            content["scheduler"] = Scheduler(**content["scheduler"])
            content["dimensions"] = [
                Dimension(**(d | {"values": tuple(d["values"])})) for d in content["dimensions"]
            ]
            sweep = cls(**content)
            sweep.check()
        except (OSError, ValueError, TypeError, KeyError, AttributeError, UserError) as error:
            raise UserError(f"{path} is damaged: restore it from a copy, or start the sweep anew") from error
        return sweep

    def check(self) -> None:
        """Raise ``ValueError`` unless all values are such as a tune space can give."""
        whole = [
            *self.seeds,
            *(p.rounds for p in self.points),
            *([] if self.at_once is None else [self.at_once]),
        ]
        fine = [
            all(isinstance(text, str) for text in (self.name, self.title, *(p.label for p in self.points))),
            set(map(type, whole)) <= {int} and self.seeds and len(set(self.seeds)) == len(self.seeds),
            self.at_once is None or self.at_once >= 1,
            self.metric in get_args(Metric) and self.mode in ("max", "min") and type(self.best) is bool,
            self.points and all(_is_point(p) for p in self.points),
            all(p.values.keys() == self.points[0].values.keys() for p in self.points),
            all(
                d.kind in get_args(Kind) and d.key in p.settings for d in self.dimensions for p in self.points
            ),
        ]
        if not all(fine):
            raise ValueError

    def save(self, folder: Path) -> None:
        """Write the sweep."""
        write_file(folder / SWEEP, json.dumps(asdict(self), indent=1) + "\n")

    def jobs(self, output: Path) -> dict[str, Job]:
        """Return name -> trial; seeds come last, so that every point is there once before one is repeated."""
        return {
            trial_name(number, seed): Job(
                point.label,
                point.settings["cell"]["column"],
                seed,
                point.rounds,
                (output / "trials" / f"{number:03d}-{slug(point.label)[:80]}" / f"seed-{seed}").absolute(),
                point.settings,
            )
            for seed in self.seeds
            for number, point in enumerate(self.points)
        }

    def of_point(self, jobs: Mapping[str, Job], number: int) -> list[Job]:
        """Return the trials of a point."""
        return [jobs[trial_name(number, seed)] for seed in self.seeds]


def _is_point(point: Point) -> bool:
    """Say whether a point that was read has the values and the settings of one."""
    named = isinstance(point.values, dict) and isinstance(point.settings, dict) and point.rounds >= 1
    if not named or (set(DECIDED) - {"cell"}) & point.settings.keys():
        return False
    check_config({"cell": point.settings["cell"]})
    return point.settings["cell"] is not None


def trial_name(number: int, seed: int) -> str:
    """Return the name of the trial of a point with a seed."""
    return f"{number:03d}-seed-{seed}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0 when all trials are over, 1 if some have failed, 2 after an error of the user's, 130 if the sweep
        was told to stop.
    """
    return exit_code(lambda: run(parse_with_options(parser(), arguments)))


def run(given: Any) -> int:
    """Run a sweep as the parsed command line asks for; see :func:`main`."""
    changes = changes_of(given, "sweep")
    console = Terminal()
    if given.resume is not None:
        sweep, output = _resumed(given, changes), Path(given.resume)
    else:
        sweep, output = _new(given, changes, console)
    console.print(f"{sweep.name}: {sweep.title}", style="bold", markup=False, soft_wrap=True)
    trials = len(sweep.points) * len(sweep.seeds)
    console.print(f"{len(sweep.points)} points, {trials} trials, in {output}", soft_wrap=True, markup=False)
    if given.list:
        for point in sweep.points:
            console.print(point.label, soft_wrap=True, markup=False)
        return 0
    federation = federation_from(options(sweep.points[0].settings))
    if given.resume is None:
        check(sweep)
        sweep.save(output)
    with held(output):
        return _run(sweep, output, federation, console, given.address)


def _run(sweep: Sweep, output: Path, federation: Federation, console: Console, address: str | None) -> int:
    from rayfl.tune.sweep import Ended, Plan
    from rayfl.tune.sweep import run as run_trials

    jobs = sweep.jobs(output)
    values = _values(sweep) if sweep.dimensions else {name: {} for name in jobs}
    plan = Plan(
        output.absolute(), jobs, values, tuple(sweep.dimensions), sweep.metric, sweep.mode, sweep.scheduler,
        sweep.at_once,
    )  # fmt: skip
    ended = Ended.load(plan)
    with TableProgress(
        list(jobs.values()), sweep.at_once or os.cpu_count() or 1, console=console
    ) as progress:
        complete = run_trials(plan, ended, progress, federation, address)
    results = [
        result_of(point, sweep.of_point(jobs, number), sweep.metric)
        for number, point in enumerate(sweep.points)
    ]
    best = Best.of(results, sweep.mode) if sweep.best and complete else None
    console.print(points_table(sweep.title or sweep.name, results, sweep.metric, best))
    if not complete:
        console.print(f"Stopped; go on with --resume {output}", soft_wrap=True, markup=False)
        return 128 + signal.SIGINT
    written = write_all(
        sweep.title, sweep.name, results, sweep.metric, best, sweep.seeds, output, federation.tensorboard
    )
    console.print(f"Written: {', '.join(map(str, written))}", soft_wrap=True, markup=False)
    failed = {name: why for name, (end, why) in ended.why.items() if end == "failed"}
    for name, why in failed.items():
        complain(f"rayfl: failed: {jobs[name]}: {why}")
    return 1 if failed else 0


def _values(sweep: Sweep) -> dict[str, Settings]:
    """Return the values with which each trial begins that population based training may change."""
    keys = [d.key for d in sweep.dimensions]
    return {
        trial_name(number, seed): {key: point.settings[key] for key in keys}
        for number, point in enumerate(sweep.points)
        for seed in sweep.seeds
    }


# ---- planning


def _new(given: Any, changes: Settings, console: Console) -> tuple[Sweep, Path]:
    if given.space is None:
        raise UserError("name a tune space, such as tune_spaces/fdse.yaml, or a sweep's folder with --resume")
    space = Space.load(given.space)
    for name, value in (("samples", given.samples), ("at_once", given.at_once)):
        if value is not None and value < 1:
            raise UserError(f"--{name} is {value}: it must be at least 1")
    space = replace(space, seeds=first_seeds(space.seeds, given.seeds))
    space = replace(space, samples=given.samples or space.samples, at_once=given.at_once or space.at_once)
    if space.scheduler.name == "pbt":
        check_population(space)
    output = Path(given.output or Path("runs", space.name))
    check_kind(output, "sweep")
    if not given.list and output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"{output} already exists; choose another --output, or go on with --resume {output}")
    planned = space.count * len(space.seeds)
    if planned > MOST_TRIALS:
        raise UserError(
            f"{space.count:,} points with {len(space.seeds):,} seeds are {planned:,} trials, more than "
            f"{MOST_TRIALS:,}: search fewer values, or draw random points (samples)"
        )
    with console.status(f"Checking {space.count:,} points"):
        points = space.points(_everywhere(changes))
    points = [replace(point, settings=_everywhere(point.settings)) for point in points]
    return Sweep.of(space, points), output


def _resumed(given: Any, changes: Settings) -> Sweep:
    if given.space is not None:
        raise UserError("--resume takes the tune space from the folder; give one of the two")
    for name in ("rounds", "seeds", "samples", "output"):
        if getattr(given, name) is not None:
            raise UserError(f"--resume takes everything from the folder; remove --{name}")
    allowed = RESUMABLE[1:]
    if odd := [key for key in changes if key.partition(".")[0] not in allowed]:
        raise UserError(f"--{odd[0]}: with --resume only {', '.join(allowed)} may change")
    sweep = Sweep.load(Path(given.resume))
    refuse_links(Path(given.resume))
    points = [replace(p, settings=layered(p.settings, changes)) for p in sweep.points]
    return replace(sweep, points=points, at_once=given.at_once or sweep.at_once)


def _everywhere(settings: Settings) -> Settings:
    """Return settings that mean the same in processes that run in other folders."""
    root = settings.get("data.root")
    return settings | ({"data.root": str(Path(root).absolute())} if isinstance(root, str) else {})


def check(sweep: Sweep) -> None:
    """Refuse a sweep that cannot choose, before anything is started.

    Raises:
        UserError: the data are missing or have no validation part, nothing would be evaluated, a scheduler
            would compare trials on different data, or the first point with some data cannot work with them.
    """
    seen: set[str] = set()
    if sweep.scheduler.name in ("asha", "median") and len(set(scored_on(sweep.points))) > 1:
        raise UserError(
            f"scheduler {sweep.scheduler.name} stops the worse trials, and the points of this sweep have "
            "different data, clients or protocols, so that their accuracies cannot be compared: use "
            "scheduler none, or a sweep for each setting of the data"
        )
    for point in sweep.points:
        federation = federation_from(options(point.settings | {"seed": sweep.seeds[0]}))
        if federation.eval_every == 0:
            raise UserError("eval_every is 0, so there is nothing to compare: set it to at least 1")
        if sweep.scheduler.name == "pbt" and sweep.scheduler.interval % federation.eval_every:
            raise UserError(
                f"scheduler.interval is {sweep.scheduler.interval}: it must be a multiple of eval_every, "
                f"{federation.eval_every}"
            )
        if (about := of_data(point.settings)) in seen:
            continue
        seen.add(about)
        data = federation.federated_data()
        federation.check(data)
        if sweep.best and not any(len(shard.val) for shard in data.shards):
            raise UserError(
                "a sweep chooses by validation data, and the data have no validation part: give "
                "some, for example with --data.val_fraction 0.1"
            )
