"""Command line: ``rayfl tune SPACE`` runs a sweep; ``--help`` lists the options."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from rayfl.commands.command_line import Parser, parser_of_function
from rayfl.errors import Conflict, Missing
from rayfl.federation import Federation
from rayfl.jobs.table_file import SeedCount, changes_of, find_file, first_seeds
from rayfl.settings import at_least
from rayfl.settings.description import RESUMABLE
from rayfl.settings.imports import local_imports
from rayfl.settings.reader import DottedSettings
from rayfl.system.error_report import exit_code
from rayfl.system.terminal import Terminal
from rayfl.system.text import complain, counted
from rayfl.tune.space import Space


@dataclass
class SweepOptions:
    """Run a sweep on Ray Tune: a federation for each point of a search space and each seed, several at once.

    The best point is chosen on validation data and reported with test data. All options of rayfl run are
    taken too, such as --data.root DATA --engine.actors 1: they hold for all trials, and win over the base.
    With --resume only those of the engine, of checkpoints and of loggers may be given.

    Args:
        space: the tune space: a YAML file, or the name of one that comes with rayfl, such as fdse.
        resume: go on with a sweep that was stopped or killed; finished trials are not repeated.
        rounds: rounds; default: the file's.
        seeds: number of seeds; default: the file's.
        output: folder; default: runs/<sweep>.
        code: changed: run points anew that other code of your own has made.
        list: list the points, and run nothing.
        samples: random draws; default: the file's.
        at_once: trials at once; default: what the cluster holds.
        address: the Ray cluster to join, such as auto; default: the engine's address, or a new local cluster.
    """

    space: str | None
    resume: str | None = None
    rounds: int | None = None
    seeds: SeedCount | None = None
    output: str | None = None
    code: Literal["changed"] | None = None
    list: bool = False
    samples: Annotated[int, at_least(1)] | None = None
    at_once: Annotated[int, at_least(1)] | None = None
    address: str | None = None


def parser() -> Parser:
    """Return the parser of the command line."""
    named, usage = {"space": "SPACE", "resume": "FOLDER"}, "rayfl tune SPACE [OPTIONS]"
    return parser_of_function(SweepOptions, named, root=Federation, prog="rayfl tune", usage=usage)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0 when all trials are over, 1 if some have failed, 2 after an error of the user's, 130 if the sweep
        was told to stop.
    """
    return exit_code(local_imports()(lambda: run_sweep(parser().read(arguments))))


def run_sweep(given: Any) -> int:
    """Run a sweep as the parsed command line asks for; see :func:`main`.

    Raises:
        KeyboardInterrupt: after a SIGINT, when the trials have ended.
    """
    changes, console, resume = changes_of(given, "sweep"), Terminal(), given.resume is not None
    space, output = _resumed_sweep(given, changes) if resume else _new_sweep(given, changes)
    from rayfl.tune import sweep

    sweep.scheduler_of(space.scheduler, 1)
    console.print(f"{space.sweep}: {space.title}", style="bold", soft_wrap=True)
    trials = counted(space.point_count * len(space.seeds), "trial")
    console.print(f"{counted(space.point_count, 'point')}, {trials}, in {output}", soft_wrap=True)
    if given.list:
        space.example_points()  # refuses points that cannot work
        for dimension in itertools.chain(*space.search):
            line = f"{dimension.key}: {dimension.kind} {list(dimension.values)}"
            console.print(line, soft_wrap=True)
        return 0
    swept = sweep.run(space, output, resume=resume, code=given.code, address=given.address, console=console)
    if not swept.complete:
        return 128 + signal.SIGINT
    console.print(f"Written: {', '.join(map(str, swept.written))}", soft_wrap=True)
    for job, why in swept.failed.items():
        complain(f"rayfl: failed: {job}: {why}")
    return 1 if swept.failed else 0


def _new_sweep(given: Any, changes: DottedSettings) -> tuple[Space, Path]:
    if given.space is None:
        raise Missing("SPACE", "must name a tune space, such as fdse; or give a sweep's folder with --resume")
    space = Space.load(find_file(given.space, "tune_spaces"))
    if given.samples is not None and not any(d.is_drawn for d in itertools.chain(*space.search)):
        raise Conflict("--samples", f"has no effect, because {given.space} draws no values", "leave it out")
    seeds, at_once = first_seeds(space.seeds, given.seeds), given.at_once or space.at_once
    space = replace(space, seeds=seeds, at_once=at_once, samples=given.samples or space.samples)
    output = Path(given.output or Path("runs", space.sweep)).expanduser()
    return space.with_changes(changes), output


def _resumed_sweep(given: Any, changes: DottedSettings) -> tuple[Space, Path]:
    for name in ("space", "rounds", "seeds", "samples", "output"):
        if getattr(given, name) is not None:
            raise Conflict("--resume", f"takes everything from the folder: leave out the {name}")
    allowed = RESUMABLE[1:]
    if odd := [key for key in changes if key.partition(".")[0] not in allowed]:
        raise Conflict(f"--{odd[0]}", f": with --resume only {', '.join(allowed)} may change")
    space = Space.load_from_folder(Path(given.resume))
    space = replace(space, at_once=given.at_once or space.at_once)
    return space.with_changes(changes), Path(given.resume)
