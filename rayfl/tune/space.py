"""Tune spaces: a base experiment, what is searched around it, and how; in YAML.

The settings have the names of the command line of ``rayfl.run``. Random points are drawn from ``draw_seed``
and the number of the draw alone, so the same file gives the same points.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
import yaml

from rayfl.arguments import check_arguments, fits
from rayfl.config.declared import Text, check_kind, check_seeds, declared
from rayfl.config.parser import federation_from
from rayfl.config.table_file import (
    Settings,
    Table,
    data_options,
    folder_name,
    is_table,
    layered,
    on_one_line,
    options,
    rooted,
)
from rayfl.errors import UserError
from rayfl.federation import Federation
from rayfl.randomness import numpy_generator
from rayfl.record.cell import Cell
from rayfl.record.description import PLACES, RESUMABLE, about_data, dump, flat
from rayfl.settings import above, at_least, at_most
from rayfl.shown import one_line
from rayfl.yaml_file import read_mapping

Kind = Literal["grid", "choice", "uniform", "loguniform", "randint"]
Metric = Literal["accuracy", "worst_decile", "loss"]
Mode = Literal["max", "min"]
SchedulerName = Literal["none", "asha", "median", "pbt"]

FARTHEST = 1e300
"""Ends of ranges; what is drawn lies between them, and their difference must be a number, too."""

_EXPONENT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+")  # numbers that YAML 1.1 takes for texts: 1e-3

_NAMED = ("config", "row", "column")  # what the base may name besides settings
_DECIDED = ("seed", "output", "resume", "cell")  # settings that belong to the sweep


@dataclass(frozen=True)
class Dimension:
    """One key that is searched.

    Attributes:
        key: a setting, or any name where every value stands for a bundle of settings.
        kind: ``grid`` takes all values; the others draw: one of the values, or from a range.
        values: of ``grid`` and ``choice``.
        bundles: text of a value -> the settings that it stands for; empty where the key is a setting.
        low: lower end of a range, included.
        high: upper end; included but for ``randint``, as in NumPy and Ray.
    """

    key: str
    kind: Kind
    values: tuple[Any, ...] = ()
    bundles: Mapping[str, Settings] = field(default_factory=dict)
    low: float = 0.0
    high: float = 0.0

    def settings(self, value: Any) -> Settings:
        """Return the settings that a value stands for."""
        return dict(self.bundles[str(value)]) if self.bundles else {self.key: value}

    def draw(self, rng: np.random.Generator) -> Any:
        """Draw a value."""
        if self.kind == "choice":
            return self.values[int(rng.integers(len(self.values)))]
        if self.kind == "randint":
            return int(rng.integers(int(self.low), int(self.high)))
        if self.kind == "loguniform":
            return float(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))
        return float(rng.uniform(self.low, self.high))


@dataclass(frozen=True)
class Scheduler:
    """How trials are cut short, or changed while they run. All times are rounds.

    Args:
        name: ``none`` runs all trials to their end; ``asha`` stops the worse ones at rungs, by successive
            halving (Li et al., MLSys 2020); ``median`` stops trials below the median of the others (Golovin
            et al., KDD 2017); ``pbt`` lets bad trials go on as changed copies of good ones, population based
            training (Jaderberg et al., 2017).
        grace: rounds before a trial may be stopped (``asha``, ``median``).
        reduction: one trial in so many survives a rung (``asha``).
        min_trials: trials that must have come as far before one is stopped (``median``).
        interval: rounds between two chances to be copied (``pbt``).
        quantile: share of the trials that are replaced, and that may be copied (``pbt``).
        resample: probability that a changed value is drawn anew instead of moved a little (``pbt``).
    """

    name: SchedulerName = "none"
    grace: Annotated[int, at_least(1)] = 1
    reduction: Annotated[float, above(1)] = 3.0
    min_trials: Annotated[int, at_least(1)] = 3
    interval: Annotated[int, at_least(1)] = 5
    quantile: Annotated[float, above(0), at_most(0.5)] = 0.25
    resample: Annotated[float, at_least(0), at_most(1)] = 0.25

    def __post_init__(self) -> None:
        check_arguments(Scheduler, vars(self), "scheduler")


@dataclass(frozen=True)
class Point:
    """One combination of the searched values.

    Attributes:
        label: the values that tell it from the others, for people.
        values: every searched key -> its value, also where that is the base's; None for a bundle that is
            not in use.
        settings: the complete settings of ``rayfl.run``, but for the seed and the folder.
        rounds: of its federations.
    """

    label: str
    values: dict[str, Any]
    settings: Settings
    rounds: int


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What is compared how: what a tune space and its sweep have in common.

    Attributes:
        name: names the folder of the sweep.
        title: what it is about.
        metric: what is compared, on validation data.
        mode: whether large or small values of it are good.
        best: whether a best point is chosen, on validation data; without, test curves are all there is.
        scheduler: how trials are cut short.
        seeds: every point is run with each of them.
        at_once: trials at once; None for as many as the cluster holds.
    """

    name: str
    title: str = ""
    metric: Metric = "accuracy"
    mode: Mode = "max"
    best: bool = True
    scheduler: Scheduler = Scheduler()
    seeds: tuple[int, ...] = (0,)
    at_once: Annotated[int, at_least(1)] | None = None


@dataclass(frozen=True, kw_only=True)
class _File:
    """What the file of a tune space holds."""

    sweep: Text
    base: Any
    search: Any
    title: Text | None = None
    samples: Annotated[int, at_least(1)] = 1
    draw_seed: Annotated[int, at_least(0)] = 0
    metric: Metric = "accuracy"
    mode: Mode | None = None
    best: bool = True
    scheduler: Any = None
    seeds: Any = (0,)
    at_once: Annotated[int, at_least(1)] | Literal["auto"] = "auto"


@dataclass(frozen=True, kw_only=True)
class Space(Comparison):
    """A tune space, as its file describes it.

    Attributes:
        base: the settings around which is searched.
        base_name: the cell or file that they are from, for people.
        searches: each is swept by itself: the product of its grids, times the draws.
        samples: draws per combination of grid values, where a search has random dimensions.
        draw_seed: of the draws.
    """

    base: Settings
    base_name: str
    searches: tuple[tuple[Dimension, ...], ...]
    samples: int = 1
    draw_seed: int = 0

    @classmethod
    def load(cls, path: str | Path) -> Space:
        """Read a tune space."""
        path = Path(path)
        content = read_mapping(path, "tune space")
        check_kind(path, content, "tune space")
        try:
            return _space(path, declared(_File, content, "tune space"))
        except UserError as error:
            raise UserError(f"{path}: {error}") from error

    @property
    def keys(self) -> list[str]:
        """The searched keys, in the order of the file."""
        return list(dict.fromkeys(d.key for search in self.searches for d in search))

    @property
    def count(self) -> int:
        """How many points there are, before those are left out that are there twice."""
        grids = (math.prod(len(d.values) for d in search if d.kind == "grid") for search in self.searches)
        drawn = (any(d.kind != "grid" for d in search) for search in self.searches)
        return sum(grid * (self.samples if random else 1) for grid, random in zip(grids, drawn, strict=True))

    @property
    def draws(self) -> bool:
        """Whether there are random draws."""
        return any(d.kind != "grid" for search in self.searches for d in search)

    def points(self, changes: Mapping[str, Any] | None = None) -> list[Point]:
        """Return all points, each once.

        Args:
            changes: settings that win over the base; searched values win over them, so that a key that is
                searched everywhere, or replaced in every point, is refused.
        """
        changes = dict(changes or {})
        for key in changes:
            if all(key in {d.key for d in search} for search in self.searches):
                raise UserError(f"--{key} has no effect, because the tune space searches {key}: leave it out")
        base = layered(self.base, changes)
        found: dict[str, tuple[dict[str, Any], Settings, Federation, dict[str, Any]]] = {}
        for own in self._combinations():
            settings = layered(base, *(d.settings(value) for d, value in own))
            settings = rooted(_with_places(settings, changes))
            text = ", ".join(f"{d.key}={value}" for d, value in own)
            try:
                federation = federation_from(options(settings))
            except UserError as error:
                raise UserError(f"the point {text} cannot work: {error}") from error
            complete = flat(yaml.safe_load(dump(federation)), shown=True)
            key = json.dumps({k: v for k, v in complete.items() if not k.startswith("cell")}, sort_keys=True)
            found.setdefault(key, ({d.key: value for d, value in own}, settings, federation, complete))
        for key, value in changes.items():
            if all(settings.get(key) != value for _, settings, _, _ in found.values()):
                raise UserError(
                    f"--{key} has no effect, because what the tune space searches replaces {key} in every "
                    "point: leave it out"
                )
        entries = [
            (self._values(own, settings, complete), settings, federation)
            for own, settings, federation, complete in found.values()
        ]
        varying = [k for k in self.keys if len({str(values[k]) for values, _, _ in entries}) > 1]
        points: list[Point] = []
        for number, (values, settings, federation) in enumerate(entries):
            label = ", ".join(f"{_short(k, self.keys)}={tidy(values[k])}" for k in varying) or "base"
            label = one_line(label)
            if any(label == other.label for other in points):
                label = f"{label} ({number})"  # draws that differ only in digits that are not shown
            place = asdict(Cell(self.name, label, self.base_name, []))
            points.append(Point(label, values, settings | {"cell": place}, federation.rounds))
        return points

    def _combinations(self) -> Iterator[list[tuple[Dimension, Any]]]:
        draws = itertools.count()
        for search in self.searches:
            grids = [d for d in search if d.kind == "grid"]
            drawn = [d for d in search if d.kind != "grid"]
            for values in itertools.product(*(d.values for d in grids)):
                fixed = list(zip(grids, values, strict=True))
                for _ in range(self.samples if drawn else 1):
                    number = next(draws)
                    own = [(d, d.draw(self._rng(number, k))) for k, d in enumerate(drawn)]
                    yield sorted([*fixed, *own], key=lambda pair: search.index(pair[0]))

    def _rng(self, number: int, dimension: int) -> np.random.Generator:
        return numpy_generator(self.draw_seed, "sweep", number, dimension)

    def _values(
        self, own: Mapping[str, Any], settings: Settings, complete: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the value of every searched key at a point, as far as the base says it where it does not.

        Numbers are those of the federation: the base and the command line may have them as texts.
        """
        values = {}
        for search in self.searches:
            for d in search:
                found = complete.get(d.key)
                if d.key in own:
                    values[d.key] = own[d.key]
                elif d.bundles:
                    inside = (v for v in d.values if d.settings(v).items() <= settings.items())
                    values.setdefault(d.key, next(inside, None))
                else:
                    number = isinstance(found, int | float)
                    values.setdefault(d.key, found if number else settings.get(d.key, found))
        return {key: values[key] for key in self.keys}


def _with_places(settings: Settings, changes: Settings) -> Settings:
    """Return settings with the asked-for places of data, which a searched data set drops as another's."""
    lost = {key: value for key, value in changes.items() if key in PLACES and key not in settings}
    known = data_options(settings.get("data")) if lost else {}
    return settings | {key: value for key, value in lost.items() if key.removeprefix("data.") in known}


SAME_IMAGES = ("augment", "normalise", "image_size", "verify", "download", "cache")
"""Options of data sets that leave the division and its images as they are, and so may be compared."""


def scored_on(points: Sequence[Point]) -> list[str]:
    """Return for each point, as a text to compare, on what it is scored: its data, clients and protocol.

    Accuracies of points with different texts are no measure of which one is better.
    """
    keys = sorted({key for point in points for key in point.settings | point.values if _decides_score(key)})
    return [
        json.dumps({key: point.values.get(key, point.settings.get(key)) for key in keys}, default=str)
        for point in points
    ]


def _decides_score(key: str) -> bool:
    """Return whether a setting says on what federations are scored, and not how they learn."""
    return key.partition(".")[0] == "protocol" or (
        about_data(key) and key.removeprefix("data.") not in SAME_IMAGES
    )


def tidy(value: Any) -> str:
    """Return a value for people, numbers with four digits."""
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _short(key: str, keys: Sequence[str]) -> str:
    """Return the last part of a key, if no other key has it."""
    last = key.rpartition(".")[2]
    return last if sum(k.rpartition(".")[2] == last for k in keys) == 1 else key


# ---- reading


def _space(path: Path, file: _File) -> Space:
    base, base_name = _base(path, file.base)
    searches = file.search if isinstance(file.search, list) else [file.search]
    space = Space(
        name=folder_name("sweep", file.sweep),
        title=on_one_line(file.title),
        base=base,
        base_name=one_line(base_name),
        searches=tuple(_search(search) for search in searches),
        samples=file.samples,
        draw_seed=file.draw_seed,
        metric=file.metric,
        mode=file.mode or ("min" if file.metric == "loss" else "max"),
        best=file.best,
        scheduler=_scheduler(file.scheduler),
        seeds=check_seeds(file.seeds),
        at_once=None if file.at_once == "auto" else file.at_once,
    )
    if not space.best and space.scheduler.name != "none":
        raise UserError(f"best is false, and scheduler {space.scheduler.name} would choose between trials")
    if space.scheduler.name == "pbt":
        check_population(space)
    return space


def _base(path: Path, content: Any) -> tuple[Settings, str]:
    if isinstance(content, str):
        content = {"config": content}
    if not isinstance(content, dict):
        raise UserError("base must be a file, or map settings to values")
    own = {str(key): value for key, value in content.items() if key not in _NAMED}
    if decided := [key for key in own if key in _DECIDED]:
        raise UserError(f"base has {decided[0]!r}, which the sweep decides")
    if "config" not in content:
        if named := [key for key in _NAMED if key in content]:
            raise UserError(f"base names a {named[0]}, and no table: give its file as config")
        return layered({}, own), "base"
    file = path.parent / str(content["config"])
    if is_table(file):
        return _cell(Table.load(file), content, own)
    if named := [key for key in ("row", "column") if key in content]:
        raise UserError(f"base names a {named[0]}, and {file} is no table")
    settings = flat(read_mapping(file, "configuration"))
    kept = {key: value for key, value in settings.items() if key.partition(".")[0] not in _DECIDED}
    return layered(kept, own), file.stem


def _cell(table: Table, content: Mapping[str, Any], own: Settings) -> tuple[Settings, str]:
    chosen = {}
    for kind in ("row", "column"):
        known = table.choose(kind, None)
        if kind not in content and len(known) != 1:
            raise UserError(f"{table.path} is a table: base must name a {kind} ({', '.join(known)})")
        chosen[kind] = str(content.get(kind, known[0]))
    settings = table.settings(chosen["row"], chosen["column"], own)
    settings.pop("cell")
    return settings, chosen["column"]


def _search(content: Any) -> tuple[Dimension, ...]:
    if not isinstance(content, dict) or not content:
        raise UserError("search must map settings to how they are searched, or be a list of such mappings")
    return tuple(_dimension(str(key), how) for key, how in content.items())


def _dimension(key: str, content: Any) -> Dimension:
    kinds = get_args(Kind)
    if key in _DECIDED:
        raise UserError(f"search has {key!r}, which the sweep decides (seeds are in 'seeds')")
    _check_decides(key, [key])
    if isinstance(content, list):
        content = {"grid": content}
    if not isinstance(content, dict) or len(content) != 1 or next(iter(content)) not in kinds:
        raise UserError(f"search.{key} must be one of {', '.join(kinds)}, such as {{grid: [0.1, 1.0]}}")
    kind, what = next(iter(content.items()))
    if isinstance(what, list):
        what = [float(x) if isinstance(x, str) and _EXPONENT.fullmatch(x) else x for x in what]
    if kind in ("grid", "choice"):
        return _listed(key, kind, what)
    if not isinstance(what, list) or len(what) != 2 or not all(_is_number(x) for x in what):
        raise UserError(f"search.{key}: {kind} must have two numbers, a lower and an upper end")
    low, high = what
    if kind == "randint" and not all(fits(x, int) for x in what):
        raise UserError(f"search.{key}: the ends of randint must be whole numbers of at most 64 bits")
    if not all(abs(x) < FARTHEST for x in what) and kind != "randint":
        raise UserError(f"search.{key}: {kind} is {what}: its ends must be numbers below {FARTHEST:g}")
    if not low < high or (kind == "loguniform" and low <= 0):
        above = " above 0" if kind == "loguniform" else ""
        raise UserError(f"search.{key}: {kind} is {what}: the lower end must lie{above} below the upper end")
    return Dimension(key, kind, low=low, high=high)


def _check_decides(key: str, settings: Sequence[str]) -> None:
    """Refuse settings that change no result; the engine also says what every trial gets of the cluster."""
    for name in settings:
        if name.partition(".")[0] in RESUMABLE[1:]:  # all but the number of rounds
            raise UserError(f"search.{key} has {name!r}, which changes no result: put it into base")


def _listed(key: str, kind: Kind, what: Any) -> Dimension:
    if isinstance(what, dict) and what and all(isinstance(v, dict) for v in what.values()):
        bundles = {str(name): {str(k): v for k, v in settings.items()} for name, settings in what.items()}
        if decided := [k for settings in bundles.values() for k in settings if k in _DECIDED]:
            raise UserError(f"search.{key} has {decided[0]!r}, which the sweep decides")
        _check_decides(key, [k for settings in bundles.values() for k in settings])
        return Dimension(key, kind, tuple(what), bundles)
    if not isinstance(what, list) or not what:
        raise UserError(
            f"search.{key}: {kind} must be a list of values, or map names to settings, such as "
            "{code: {method.reg: code, method.lam: 0.5}}"
        )
    if len({json.dumps(v, sort_keys=True) for v in what}) < len(what):
        raise UserError(f"search.{key}: {kind} has a value twice")
    return Dimension(key, kind, tuple(what))


def _scheduler(content: Any) -> Scheduler:
    content = {"name": content} if isinstance(content, str) else content
    if content is None:
        return Scheduler()
    if not isinstance(content, dict) or not isinstance(content.get("name"), str):
        names = ", ".join(get_args(SchedulerName))
        raise UserError(f"scheduler must be one of {names}, or a mapping with a name")
    return declared(Scheduler, content, "scheduler", "scheduler.")


def check_population(space: Space) -> None:
    """Refuse what population based training cannot do: it changes federations in the middle."""
    if space.at_once is not None:
        raise UserError(
            "scheduler pbt keeps all its trials alive, and where there is no room for all they take turns: "
            "leave at_once out"
        )
    if len(space.seeds) > 1:
        raise UserError(
            "scheduler pbt copies federations between trials, so all must have the same data: give one seed"
        )
    if len(space.searches) > 1:
        raise UserError("scheduler pbt needs one search, not a list of them")
    for d in space.searches[0]:
        inside = d.key.startswith(("training.", "method."))
        if not inside or d.bundles or not all(_is_number(v) for v in d.values):
            raise UserError(
                f"scheduler pbt changes settings in the middle of a federation, and {d.key} is not one that "
                "can: search numbers among training.* and method.*"
            )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
