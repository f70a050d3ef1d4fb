"""Tune spaces: a base experiment, what is searched around it, and how; in YAML.

The settings have the names of the command line of ``rayfl.run``, and the kinds of search those of Ray Tune.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from rayfl.data.task import WORST_FIGURE
from rayfl.errors import BadValue, Conflict, Missing, UserError, error_context
from rayfl.evaluation.metrics import Metric
from rayfl.federation import federation_of
from rayfl.jobs.cells import Job
from rayfl.jobs.table_file import (
    Table,
    check_seeds,
    folder_name,
    is_table,
    read_file_of,
    slug_of,
)
from rayfl.record.checks import Cell
from rayfl.record.folder import check_is
from rayfl.record.history import SWEEP
from rayfl.running.settings import data_options
from rayfl.settings import at_least
from rayfl.settings.description import LOCATION_SETTINGS, RESUMABLE, changes_data, config_of, flatten_config
from rayfl.settings.reader import DottedSettings, build_object, flatten_settings, merge_layers
from rayfl.settings.yaml_file import read_mapping
from rayfl.system.files import explain_read_errors, read_json, write_file
from rayfl.system.text import one_line, short_repr

SearchKind = Literal["grid_search", "choice", "uniform", "loguniform", "quniform", "randint"]
Mode = Literal["max", "min"]
SearcherName = Literal["optuna", "hyperopt", "bohb"]

MOST_TRIALS = 2000
"""Trials of a sweep: each is a federation, and checking its settings takes about a second."""
PAUSING = ("hyperband", "bohb")
"""Schedulers that pause trials, and resume them when others have as many rounds."""

RANGES: dict[str, tuple[str, Callable[..., bool]]] = {
    "uniform": ("[LOW, HIGH], the lower end first", lambda low, high: low < high),
    "loguniform": ("[LOW, HIGH], the lower end first and above 0", lambda low, high: 0 < low < high),
    "quniform": (
        "[LOW, HIGH, STEP], the step above 0 and within the range",
        lambda low, high, step: 0 < step <= high - low,
    ),
    "randint": (
        "[LOW, HIGH], whole numbers of at most 64 bits, the lower end first",
        lambda low, high: type(low) is type(high) is int and -(2**63) <= low < high < 2**63,
    ),
}
"""Kind of a search in a range -> its values in words, and whether numbers are such values."""

_CELL_KEYS = ("config", "row", "column")  # keys of the base that are no settings
_SWEEP_KEYS = ("seed", "output", "resume", "cell", "search")  # settings that the sweep sets itself
_LONGEST_NAME = 80  # characters of a point in folder names


@dataclass(frozen=True)
class Dimension:
    """One key that is searched.

    Attributes:
        key: a setting, or any name whose values mean bundles of settings.
        kind: how, in Ray Tune's words: ``grid_search`` takes all values, ``choice`` one of them, and the
            others draw from a range.
        values: of ``grid_search`` and ``choice``; of the others the lower and the upper end, which
            ``randint`` leaves out, and of ``quniform`` the step.
        bundles: text of a value -> the settings that it means; empty if the key is a setting.
    """

    key: str
    kind: SearchKind
    values: tuple[Any, ...]
    bundles: Mapping[str, DottedSettings] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse settings that the sweep sets or that change no result, and what is no list or range."""
        place = f"search.{self.key}"
        for name in (self.key, *self._settings_inside):
            if name in _SWEEP_KEYS:
                raise Conflict(place, f"has {name!r}, which the sweep decides (seeds are in 'seeds')")
            if name.partition(".")[0] in RESUMABLE[1:]:  # all but the number of rounds
                raise Conflict(place, f"has {name!r}, which changes no result", "put it into base")
        if self.is_listed:
            wanted = "a list of values, none of them twice"
            fits = 0 < len(self.values) == len({json.dumps(v, sort_keys=True) for v in self.values})
        else:
            wanted, is_range = RANGES[self.kind]
            fits = False
            with suppress(TypeError):  # more or fewer values than the kind has
                fits = all(type(x) in (int, float) for x in self.values) and is_range(*self.values)
        if not fits:
            raise BadValue(place, f": {self.kind} is {short_repr([*self.values])}", f"it must be {wanted}")

    @property
    def _settings_inside(self) -> list[str]:
        return [key for settings in self.bundles.values() for key in settings]

    @property
    def is_listed(self) -> bool:
        """Whether all values are listed."""
        return self.kind in ("grid_search", "choice")

    @property
    def is_drawn(self) -> bool:
        """Whether values are drawn."""
        return self.kind != "grid_search"

    @property
    def end_values(self) -> list[Any]:
        """All values of a list, or the ends of a range."""
        return [self.fit_to_range(value) for value in (self.values if self.is_listed else self.values[:2])]

    @property
    def changes_scoring(self) -> bool:
        """Whether points with different values cannot be compared: they are scored on different data."""
        return any(map(_changes_scoring, self._settings_inside or [self.key]))

    def settings(self, value: Any) -> DottedSettings:
        """Return the settings that a value means."""
        return dict(self.bundles[str(value)]) if self.bundles else {self.key: value}

    def fit_to_range(self, value: Any) -> Any:
        """Return a drawn value with the type, the steps and the bounds of the range."""
        value = value.item() if hasattr(value, "item") else value
        if self.is_listed:
            return value
        low, high, *rest = self.values
        if self.kind in ("uniform", "loguniform"):
            return float(min(max(value, low), high))
        step = rest[0] if rest else 1
        last = high - 1 if self.kind == "randint" else math.floor(high / step + 1e-9)
        steps = min(max(round(value / step), math.ceil(low / step - 1e-9)), last)
        whole = all(isinstance(x, int) for x in self.values)
        return steps * step if whole else float(f"{steps * step:.12g}")


@dataclass(frozen=True)
class SearchPoint:
    """One combination of the searched values.

    Attributes:
        label: the values, for display.
        values: every searched key -> its value, which may be the base's; None for a bundle that is not
            used.
        settings: the complete settings of ``rayfl.run``, but for the seed and the folder.
        rounds: of its federations.
        name: of its folder, unique.
    """

    label: str
    values: dict[str, Any]
    settings: DottedSettings
    rounds: int
    name: str = ""

    def trial_job(self, seed: int, output: Path) -> Job:
        """Return the trial of the point with a seed, in the folder of a sweep."""
        folder = (output / "trials" / self.name / f"seed-{seed}").absolute()
        column = self.settings["cell"]["column"]
        return Job(self.label, column, seed, self.rounds, folder, self.settings)


@dataclass(frozen=True, kw_only=True)
class Space:
    """A tune space, as its file describes it and ``sweep.json`` records it.

    Attributes:
        sweep: names the folder of the sweep.
        base: the settings that the search varies.
        search: each is swept by itself: the product of its grids, times the draws.
        title: for display.
        samples: draws, each for all combinations of grid values; points of a searcher.
        draw_seed: of the draws, and of the searcher.
        metric: by which points are compared, on validation data.
        mode: whether large or small values of it are good; if not given, as the metric says.
        best: whether to choose a best point on validation data; otherwise there are only test curves.
        scheduler: name and options of Ray Tune's scheduler; all times are rounds.
        searcher: the algorithm that draws points by earlier scores; None for grids and random draws.
        seeds: every point is run with each of them.
        at_once: trials at once; None for as many as the cluster holds.
        base_name: the cell or file of the base, for display.
        changes: settings that win over the base; searched values win over them.
        root: the default folder of data sets.
    """

    sweep: str
    base: dict[str, Any]
    search: tuple[tuple[Dimension, ...], ...]
    title: str = ""
    samples: Annotated[int, at_least(1)] = 1
    draw_seed: Annotated[int, at_least(0)] = 0
    metric: Metric = "figure"
    mode: Mode | None = None
    best: bool = True
    scheduler: dict[str, Any] = field(default_factory=lambda: {"name": "none"})
    searcher: SearcherName | None = None
    seeds: tuple[int, ...] = (0,)
    at_once: Annotated[int, at_least(1)] | None = None
    base_name: str = "base"
    changes: dict[str, Any] = field(default_factory=dict)
    root: str | None = None

    @classmethod
    def load(cls, path: str | Path) -> Space:
        """Read a tune space."""
        path = Path(path)
        content = read_file_of(path, "tune space")
        with error_context(path):
            made = {name: value for name, value in content.items() if value is not None}
            if isinstance(made.get("scheduler"), str):
                made["scheduler"] = {"name": made["scheduler"]}
            made["at_once"] = None if made.get("at_once") == "auto" else made.get("at_once")
            if "base" in made:
                made["base"], made["base_name"] = _read_base(path, made["base"])
            if search := made.get("search"):
                made["search"] = tuple(map(_read_search, search if isinstance(search, list) else [search]))
            root = os.environ.get("RAYFL_DATA")
            space = build_object(cls, made | {"root": root and str(Path(root).absolute())})
            return replace(space, sweep=folder_name("sweep", space.sweep))

    @classmethod
    def load_from_folder(cls, folder: Path) -> Space:
        """Read the tune space of a sweep's folder."""
        check_is(folder, "sweep")
        with explain_read_errors(folder / SWEEP, "restore it from a copy, or start the sweep anew"):
            try:
                content = read_json(folder / SWEEP)
                content["search"] = [
                    [build_object(Dimension, one) for one in search] for search in content["search"]
                ]
                return build_object(cls, content)
            except (UserError, KeyError, TypeError) as error:  # users do not write this file: it is damaged
                raise ValueError(str(error)) from error

    def save(self, folder: Path) -> None:
        """Write the tune space into the folder of its sweep."""
        write_file(folder / SWEEP, json.dumps(asdict(self), indent=1) + "\n")

    @property
    def result_settings(self) -> dict[str, Any]:
        """What must not change when a sweep is resumed, as JSON values."""
        found: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        for name in ("base", "changes"):
            found[name] = {k: v for k, v in found[name].items() if k.partition(".")[0] not in RESUMABLE[1:]}
        return {name: value for name, value in found.items() if name not in ("at_once", "root")}

    @property
    def worst_score(self) -> float:
        """The score of a trial without a score, or with NaN."""
        return WORST_FIGURE if self.mode == "min" else -WORST_FIGURE

    @property
    def keys(self) -> list[str]:
        """The searched keys, in the order of the file."""
        return list(dict.fromkeys(d.key for search in self.search for d in search))

    @property
    def data_keys(self) -> list[str]:
        """The searched keys that change the data on which trials are scored."""
        return list(dict.fromkeys(d.key for search in self.search for d in search if d.changes_scoring))

    @property
    def point_count(self) -> int:
        """How many points there are, including repeated ones."""
        return sum(self.count_points(search) for _, search in self.searched_parts())

    def count_points(self, search: Sequence[Dimension]) -> int:
        """Return how many points a part of the sweep has."""
        grid = math.prod(len(d.values) for d in search if not d.is_drawn)
        return grid * (self.samples if any(d.is_drawn for d in search) else 1)

    def __post_init__(self) -> None:
        """Refuse options that exclude each other, and an empty search."""
        check_seeds(self.seeds)
        if not isinstance(name := self.scheduler.get("name"), str):
            raise BadValue("scheduler", "must be a name, or a mapping with a name")
        if not all([self.search, *self.search]):
            raise Missing("search", "is missing", "a tune space must name what is searched")
        if (planned := self.point_count * len(self.seeds)) > MOST_TRIALS:
            raise Conflict(
                "search",
                f"has {self.point_count:,} points, with {len(self.seeds):,} seeds {planned:,} trials, more "
                f"than {MOST_TRIALS:,}",
                "search fewer values, or draw random points (samples)",
            )
        dimensions = [d for search in self.search for d in search]
        kind, chooses = ("searcher", self.searcher) if self.searcher else ("scheduler", name)
        if self.searcher is None and name == "none":
            return
        if not self.best:
            raise Conflict("best", f"is false, and {kind} {chooses} would choose between trials")
        if mixed := [d.key for d in dimensions if d.changes_scoring and d.is_drawn]:
            problem = f"{chooses} compares trials, and {mixed[0]} gives them different data"
            raise Conflict(kind, problem, "list its values under grid_search, and each is searched by itself")
        if self.searcher and (
            grid := [d.key for d in dimensions if not d.is_drawn and not d.changes_scoring]
        ):
            raise Conflict(
                "searcher",
                f"{self.searcher} and a grid exclude each other",
                f"make {grid[0]} a choice or a range, or leave the searcher out",
            )
        if self.searcher and not all(any(d.is_drawn for d in search) for search in self.search):
            raise Conflict("searcher", f"{self.searcher} has nothing to draw", "give choices or ranges")
        if (self.searcher == "bohb") != (name == "bohb"):
            raise Conflict("searcher", "bohb and scheduler bohb go together", "give both or none")
        if name in PAUSING and self.at_once is not None:
            raise Conflict("scheduler", f"{name} pauses trials, which at_once would count: leave at_once out")

    def with_changes(self, changes: Mapping[str, Any]) -> Space:
        """Return the space with settings that win over the base; searched values win over them."""
        return replace(self, changes=self.changes | with_absolute_root(dict(changes)))

    def searched_parts(self) -> Iterator[tuple[dict[str, Any], tuple[Dimension, ...]]]:
        """Yield what is searched separately: the values that all trials share, and the dimensions.

        Trials with different data cannot be compared, so grids over the data are an outer loop for schedulers
        and searchers.
        """
        compares = self.searcher is not None or self.scheduler["name"] != "none"
        for number, search in enumerate(self.search):
            outer = [d for d in search if compares and d.changes_scoring]
            for values in itertools.product(*(d.values for d in outer)):
                fixed = {d.key: value for d, value in zip(outer, values, strict=True)}
                yield {"search": number, **fixed}, tuple(d for d in search if d not in outer)

    def example_points(self) -> list[SearchPoint]:
        """Return the points of all grids, with every listed value and both ends of drawn dimensions once.

        Changes that every point replaces are refused.
        """
        found: dict[str, SearchPoint] = {}
        for number, search in enumerate(self.search):
            first = {d.key: d.end_values[0] for d in search if d.is_drawn}
            grids = [[(d.key, value) for value in d.values] for d in search if not d.is_drawn]
            configs = [first | dict(values) for values in itertools.product(*grids)]
            configs += [configs[0] | {d.key: end} for d in search if d.is_drawn for end in d.end_values[1:]]
            for config in configs:
                point = self.point_of(config | {"search": number})
                found.setdefault(point.name, point)
        for key, value in self.changes.items():
            searched = all(key in {d.key for d in search} for search in self.search)
            if searched or all(point.settings.get(key) != value for point in found.values()):
                why = "what the tune space searches replaces it in every point"
                raise Conflict(f"--{key}", f"has no effect, because {why}", "leave it out")
        return list(found.values())

    def point_of(self, config: Mapping[str, Any], strict: bool = True) -> SearchPoint:
        """Return the point of a trial's configuration.

        Args:
            config: ``search``, the number of the search, and its keys with the drawn values.
            strict: whether to refuse a point that cannot work.
        """
        search = self.search[config["search"]]
        own = {d.key: d.fit_to_range(config[d.key]) for d in search}
        searched = (with_absolute_root(d.settings(own[d.key])) for d in search)
        settings = merge_layers(self.base, self.changes, *searched)
        known = data_options(settings.get("data"))  # another data set drops the place of the data
        places = {"data.root": self.root} if self.root else {}
        places |= {key: value for key, value in self.changes.items() if key in LOCATION_SETTINGS}
        settings = {k: v for k, v in places.items() if k.removeprefix("data.") in known} | settings
        try:
            federation = federation_of(settings)
            complete, rounds = flatten_config(config_of(federation), shown=True), federation.rounds
        except UserError as error:
            if strict:
                text = ", ".join(f"{key}={value}" for key, value in own.items())
                raise error.within(f"the point {text} cannot work") from error
            complete, rounds = {}, 0
        values = {}
        for key in self.keys:
            found = complete.get(key)  # numbers of the federation: the base may have texts
            values[key] = found if isinstance(found, int | float) else own.get(key, settings.get(key, found))
        label = one_line(
            ", ".join(f"{short_key(k, self.keys)}={display_value(values[k], 6)}" for k in self.keys)
        )
        exact = "-".join(f"{short_key(k, self.keys)}={values[k]}" for k in self.keys)
        name = slug_of(exact)[:_LONGEST_NAME]
        if name != exact:
            name += "-" + hashlib.sha256(json.dumps(values, default=str).encode()).hexdigest()[:8]
        place = asdict(Cell(table=self.sweep, row=label, column=self.base_name))
        return SearchPoint(label, values, settings | {"cell": place}, rounds, name)


def with_absolute_root(settings: DottedSettings) -> DottedSettings:
    """Return settings with an absolute folder of data sets, for processes in other folders."""
    root = settings.get("data.root")
    return settings | ({"data.root": str(Path(root).absolute())} if isinstance(root, str) else {})


SAME_IMAGES = ("augment", "normalise", "image_size", "verify", "download", "cache")
"""Options of data sets that keep the division and the images, so that points may be compared."""


def _changes_scoring(key: str) -> bool:
    """Return whether a setting changes the data or the protocol by which federations are scored."""
    return key.partition(".")[0] == "protocol" or (
        changes_data(key) and key.removeprefix("data.") not in SAME_IMAGES
    )


def display_value(value: Any, digits: int = 4) -> str:
    """Return a value for display, numbers with the given number of digits."""
    return "-" if value is None else f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def short_key(key: str, keys: Sequence[str]) -> str:
    """Return the last part of a key, if no other key has it."""
    last = key.rpartition(".")[2]
    return last if sum(k.rpartition(".")[2] == last for k in keys) == 1 else key


# ---- reading


def _read_base(path: Path, content: Any) -> tuple[DottedSettings, str]:
    if isinstance(content, str):
        content = {"config": content}
    if not isinstance(content, dict):
        raise BadValue("base", "must be a file, or map settings to values")
    own = {str(key): value for key, value in content.items() if key not in _CELL_KEYS}
    if decided := [key for key in own if key in _SWEEP_KEYS]:
        raise Conflict(f"base.{decided[0]}", "is for the sweep to decide")
    file = path.parent / str(content["config"]) if "config" in content else None
    if file is not None and is_table(file):
        settings = Table.load(file).asked_cell(content, own, "base.")
        column = settings.pop("cell")["column"]
        return with_absolute_root(settings), one_line(column)
    if named := [key for key in _CELL_KEYS[1:] if key in content]:
        raise Missing("base.config", f"must be a table: base names a {named[0]} of one")
    if file is None:
        return with_absolute_root(own), "base"
    settings = flatten_settings(read_mapping(file, "configuration"), file.parent)
    kept = {key: value for key, value in settings.items() if key.partition(".")[0] not in _SWEEP_KEYS}
    return with_absolute_root(merge_layers(kept, own)), one_line(file.stem)


def _read_search(content: Any) -> tuple[Dimension, ...]:
    if not isinstance(content, dict) or not content:
        raise BadValue("search", "must map settings to how they are searched, or be a list of such mappings")
    return tuple(_read_dimension(str(key), how) for key, how in content.items())


def _read_dimension(key: str, content: Any) -> Dimension:
    kinds = get_args(SearchKind)
    content = {"grid_search": content} if isinstance(content, list) else content
    if not isinstance(content, dict) or len(content) != 1 or next(iter(content)) not in kinds:
        problem = f"must be one of {', '.join(kinds)}, such as {{grid_search: [0.1, 1.0]}}"
        raise BadValue(f"search.{key}", problem)
    kind, what = next(iter(content.items()))
    named = isinstance(what, dict) and kind not in RANGES and all(isinstance(v, dict) for v in what.values())
    if not named and not isinstance(what, list):
        example = "{grid_search: {code: {method.reg: code, method.lam: 0.5}}}"
        raise BadValue(
            f"search.{key}", f": {kind} must be a list, or map names to settings, such as {example}"
        )
    bundles = {str(name): {str(k): v for k, v in what[name].items()} for name in what} if named else {}
    return Dimension(key, kind, tuple(what), bundles)
