"""A sweep as ``sweep.json`` keeps it, and its trials."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from rayfl.config.declared import check_seeds, declared
from rayfl.config.table_file import DECIDED, Settings, slug
from rayfl.errors import UserError
from rayfl.files import read_json, reading, write_file
from rayfl.jobs.cells import Job
from rayfl.record.checks import check_config
from rayfl.record.folder import check_is
from rayfl.record.history import SWEEP
from rayfl.tune.schedule import read_schedule
from rayfl.tune.space import Comparison, Dimension, Point, Space


@dataclass(frozen=True, kw_only=True)
class Sweep(Comparison):
    """A sweep as ``sweep.json`` keeps it: everything that is needed to go on with it.

    Attributes:
        points: all of them.
        dimensions: what population based training changes; none otherwise.
    """

    points: list[Point]
    dimensions: list[Dimension] = field(default_factory=list)

    @classmethod
    def of(cls, space: Space, points: list[Point]) -> Sweep:
        """Return the sweep of a space."""
        changed = space.searches[0] if space.scheduler.name == "pbt" else ()
        common = {f.name: getattr(space, f.name) for f in fields(Comparison)}
        return cls(**common, points=points, dimensions=list(changed))

    @classmethod
    def load(cls, folder: Path) -> Sweep:
        """Read the sweep of a folder."""
        check_is(folder, "sweep")
        path = folder / SWEEP
        with reading(path, "restore it from a copy, or start the sweep anew"):
            try:
                sweep = declared(cls, read_json(path), "sweep")
                sweep.check()
            except UserError as error:  # nobody writes this file by hand: it is damaged
                raise ValueError(str(error)) from error
        return sweep

    def check(self) -> None:
        """Raise ``ValueError`` unless all values are such as a tune space can give."""
        check_seeds(self.seeds)
        for point in self.points:
            if (set(DECIDED) - {"cell"}) & point.settings.keys() or point.rounds < 1:
                raise ValueError("a point has settings that a sweep decides, or no rounds")
            check_config({"cell": point.settings.get("cell")})
            if point.settings.get("cell") is None or point.values.keys() != self.points[0].values.keys():
                raise ValueError("a point has no cell, or other values than the first")
            if any(d.key not in point.settings for d in self.dimensions):
                raise ValueError("a point lacks a setting that is searched")

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


def trial_name(number: int, seed: int) -> str:
    """Return the name of the trial of a point with a seed."""
    return f"{number:03d}-seed-{seed}"


@dataclass(frozen=True)
class Trials:
    """The trials of a sweep, as they are to be run.

    Attributes:
        sweep: the sweep.
        output: its folder.
        jobs: name -> trial, in the order in which they are started.
    """

    sweep: Sweep
    output: Path
    jobs: Mapping[str, Job]

    def of_point(self, number: int) -> list[Job]:
        """Return the trials of a point."""
        return [self.jobs[trial_name(number, seed)] for seed in self.sweep.seeds]

    def values(self, name: str) -> Settings:
        """Return the values with which a trial goes on that population based training may change."""
        if self.sweep.dimensions and (stages := read_schedule(self.jobs[name].folder)):
            return dict(stages[-1]["values"])
        return {d.key: self.jobs[name].settings[d.key] for d in self.sweep.dimensions}
