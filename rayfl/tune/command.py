"""Command line: ``rayfl tune SPACE`` runs a sweep; ``--help`` lists the options."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonargparse
from rich.console import Console

from rayfl.config.command_line import add_common_options, parse_with_options
from rayfl.config.help import Parser
from rayfl.config.parser import federation_from
from rayfl.config.table_file import (
    Settings,
    changes_of,
    first_seeds,
    layered,
    of_data,
    options,
)
from rayfl.engine import Ray
from rayfl.errors import UserError, exit_code
from rayfl.federation import Federation
from rayfl.files import held, refuse_links
from rayfl.imports import from_here
from rayfl.jobs.progress import TableProgress
from rayfl.record.description import RESUMABLE
from rayfl.record.folder import check_kind
from rayfl.shipped import find
from rayfl.shown import complain, counted
from rayfl.terminal import Terminal
from rayfl.tune.outcome import Best, points_table, result_of, write_all
from rayfl.tune.space import Space, check_population, scored_on
from rayfl.tune.trials import Sweep, Trials

MOST_TRIALS = 2000
"""Trials of a sweep: each is a federation, and a second of looking at its settings."""


def parser() -> jsonargparse.ArgumentParser:
    """Return the parser of the command line."""
    made = Parser(
        prog="rayfl tune",
        usage="rayfl tune SPACE [OPTIONS]",
        description="Run a sweep on Ray Tune: a federation for each point of a search space and each seed, "
        "several at once. The best point is chosen on validation data and reported with test data. All "
        "options of rayfl run are taken too, such as --data.root DATA --engine.actors 1: they hold for all "
        f"trials, and win over the base. With --resume only {', '.join(RESUMABLE[1:])} may be given.",
    )
    made.add_argument(
        "space", metavar="SPACE", nargs="?", type=str | None, default=None,
        help="the tune space: a YAML file, or the name of one that comes with rayfl, such as fdse",
    )  # fmt: skip
    made.add_argument(
        "--resume",
        type=str | None,
        default=None,
        metavar="FOLDER",
        help="go on with a sweep that was stopped or killed; finished trials are not repeated",
    )
    add_common_options(made, "sweep", "points")
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
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0 when all trials are over, 1 if some have failed, 2 after an error of the user's, 130 if the sweep
        was told to stop.
    """
    return exit_code(from_here()(lambda: run(parse_with_options(parser(), arguments))))


def run(given: Any) -> int:
    """Run a sweep as the parsed command line asks for; see :func:`main`.

    Raises:
        KeyboardInterrupt: after a SIGINT, when the trials have ended.
    """
    for name, value in (("samples", given.samples), ("at_once", given.at_once)):
        if value is not None and value < 1:
            raise UserError(f"--{name} is {value}: it must be at least 1")
    changes = changes_of(given, "sweep")
    console = Terminal()
    if given.resume is not None:
        sweep, output = _resumed(given, changes), Path(given.resume)
    else:
        sweep, output = _new(given, changes, console)
    console.print(f"{sweep.name}: {sweep.title}", style="bold", markup=False, soft_wrap=True)
    trials = len(sweep.points) * len(sweep.seeds)
    console.print(
        f"{counted(len(sweep.points), 'point')}, {counted(trials, 'trial')}, in {output}",
        soft_wrap=True,
        markup=False,
    )
    if given.list:
        for point in sweep.points:
            console.print(point.label, soft_wrap=True, markup=False)
        return 0
    federation = federation_from(options(sweep.points[0].settings))
    own = federation.engine.address if isinstance(federation.engine, Ray) else None
    Ray(address=given.address or own).check_address()
    if given.resume is None:
        check(sweep)
        sweep.save(output)
    with held(output):
        return _run(sweep, output, federation, console, given.address)


def _run(sweep: Sweep, output: Path, federation: Federation, console: Console, address: str | None) -> int:
    from rayfl.tune.sweep import Ended
    from rayfl.tune.sweep import run as run_trials

    trials = Trials(sweep, output.absolute(), sweep.jobs(output))
    ended = Ended.load(trials)
    jobs = list(trials.jobs.values())
    at_once = sweep.at_once or os.cpu_count() or 1
    interrupt: KeyboardInterrupt | None = None
    with TableProgress(jobs, at_once, console=console, items="trials") as progress:
        try:
            complete = run_trials(trials, ended, progress, federation, address)
        except KeyboardInterrupt as error:
            complete, interrupt = False, error
    results = [
        result_of(point, trials.of_point(number), sweep.metric) for number, point in enumerate(sweep.points)
    ]
    best = Best.of(results, sweep.mode) if sweep.best and complete else None
    console.print(points_table(sweep.title or sweep.name, results, sweep.metric, best))
    if not complete:
        console.print(f"Stopped; go on with --resume {output}", soft_wrap=True, markup=False)
        if interrupt is not None:
            raise interrupt
        return 128 + signal.SIGINT
    written = write_all(
        sweep.title,
        sweep.name,
        results,
        sweep.metric,
        best,
        sweep.seeds,
        output,
        "tensorboard" in federation.loggers,
    )
    console.print(f"Written: {', '.join(map(str, written))}", soft_wrap=True, markup=False)
    failed = {name: why for name, (end, why) in ended.why.items() if end == "failed"}
    for name, why in failed.items():
        complain(f"rayfl: failed: {trials.jobs[name]}: {why}")
    return 1 if failed else 0


# ---- planning


def _new(given: Any, changes: Settings, console: Console) -> tuple[Sweep, Path]:
    if given.space is None:
        raise UserError("name a tune space, such as fdse, or a sweep's folder with --resume")
    space = Space.load(find(given.space, "tune_spaces"))
    if given.samples is not None and not space.draws:
        raise UserError(f"--samples has no effect, because {given.space} draws no values: leave it out")
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
    if given.at_once is not None and sweep.scheduler.name == "pbt":
        raise UserError("--at_once has no effect: scheduler pbt keeps all its trials alive; leave it out")
    points = [replace(p, settings=layered(p.settings, changes)) for p in sweep.points]
    return replace(sweep, points=points, at_once=given.at_once or sweep.at_once)


def _everywhere(settings: Settings) -> Settings:
    """Return settings that mean the same in processes that run in other folders."""
    root = settings.get("data.root")
    return settings | ({"data.root": str(Path(root).absolute())} if isinstance(root, str) else {})


def check(sweep: Sweep) -> None:
    """Refuse a sweep that cannot choose, and points that cannot work, before anything is started."""
    about, data = "", None
    if sweep.scheduler.name in ("asha", "median") and len(set(scored_on(sweep.points))) > 1:
        raise UserError(
            f"scheduler {sweep.scheduler.name} stops the worse trials, and the points of this sweep have "
            "different data, clients or protocols, so that their accuracies cannot be compared: use "
            "scheduler none, or a sweep for each setting of the data"
        )
    for point in sorted(sweep.points, key=lambda point: of_data(point.settings)):
        federation = federation_from(options(point.settings | {"seed": sweep.seeds[0]}))
        if federation.eval_every == 0:
            raise UserError("eval_every is 0, so there is nothing to compare: set it to at least 1")
        if sweep.scheduler.name == "pbt" and sweep.scheduler.interval % federation.eval_every:
            raise UserError(
                f"scheduler.interval is {sweep.scheduler.interval}: it must be a multiple of eval_every, "
                f"{federation.eval_every}"
            )
        try:
            if data is None or of_data(point.settings) != about:
                about, data = of_data(point.settings), federation.federated_data()
            federation.check(data)
        except UserError as error:
            raise UserError(f"the point {point.label} cannot work: {error}") from error
        if sweep.best and not data.counts("val").any():
            raise UserError(
                "a sweep chooses by validation data, and the data have no validation split: give "
                "some, for example with --data.val_fraction 0.1"
            )
