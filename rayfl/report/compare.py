"""Groups of runs that repeat an experiment, and the table that compares them."""

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from rich.table import Table
from rich.text import Text

from rayfl.data.dataset import SPLITS
from rayfl.data.task import ACCURACY, Figure, figure_titles
from rayfl.errors import Unknown
from rayfl.evaluation.metrics import AVERAGES, CHOICES
from rayfl.evaluation.protocol import CHOSEN_ON_TEST
from rayfl.evaluation.run_records import Curve, RunRecords, run_folders
from rayfl.report import significance
from rayfl.report.formats import MARKS, ranked_cell, warning_signs
from rayfl.report.summary import other_models
from rayfl.report.text import (
    AVERAGE_NAMES,
    CHOICE_NAMES,
    as_text,
    choice_headings,
    mean_and_std,
    number,
    plain_table,
    range_text,
    size,
)
from rayfl.settings.description import changes_data, changes_experiment, flatten_config
from rayfl.system.own_code import FROZEN, MARKED
from rayfl.system.text import counted, did_you_mean, one_line

_Item = TypeVar("_Item")
_Key = TypeVar("_Key", bound=Hashable)

COMPONENTS = ("method", "data", "data.partition")
SAMPLES = "samples (train/val/test)"


@dataclass
class RunGroup:
    """Runs that are repetitions of one experiment, on the same data.

    Attributes:
        config: their facts; "various" if they differ.
        runs: all of them.
        complete: whether they have all rounds; incomplete runs are in separate groups.
        name: in a legend.
        look: of its lines, see :func:`rayfl.report.method_looks.looks_of`.
    """

    config: dict[str, Any]
    runs: list[RunRecords]
    complete: bool
    name: str = ""
    look: int = 0

    @property
    def seeds(self) -> dict[int, list[RunRecords]]:
        """Seed -> runs: a mean is over seeds, and the value of a seed is the mean of its runs."""
        return group_by(self.runs, lambda run: int(run.config.get("seed", 0)))


# ---- samples: runs that count once


def group_by(items: Iterable[_Item], key: Callable[[_Item], _Key]) -> dict[_Key, list[_Item]]:
    """Return key -> the items that have it; keys and items stay in their order."""
    found: dict[_Key, list[_Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def facts(run: RunRecords) -> dict[str, Any]:
    """Return what is known of how a run was made: its configuration, flat, and its code."""
    code = {f"code.{path}": digest for path, digest in run.code.items()}
    return flatten_config(run.config, shown=True) | code


def key_of(run: RunRecords, counts: Callable[[str], bool], **more: object) -> str:
    """Return what is equal for runs that belong together: what their data held, and some of their facts.

    Args:
        run: one of them.
        counts: whether a fact counts, by its name.
        more: further facts.
    """
    known = {name: value for name, value in facts(run).items() if counts(name)}
    return json.dumps(known | more | {"": data_of(run)}, sort_keys=True, default=str)


def sample_key(run: RunRecords) -> Hashable:
    """Return what is equal for runs that should have the same scores."""
    return key_of(run, lambda name: changes_experiment(name) or name in ("seed", "data.seed"))


def read_runs(
    runs: Iterable[RunRecords | str | Path], **headline: str | None
) -> tuple[list[RunRecords], list[str]]:
    """Return the :func:`samples` of results and of the runs in folders.

    Args:
        runs: results, run folders, or folders that hold some.
        headline: see :meth:`RunRecords.scored`.
    """
    found: list[RunRecords] = []
    for run in runs:
        found += [run] if isinstance(run, RunRecords) else map(RunRecords.load, run_folders([Path(run)]))
    check_recorded(found, **{name: headline.get(name) for name in ("point", "view")})
    return samples(run.scored(**headline) for run in found)


def samples(
    runs: Iterable[RunRecords], same: Callable[[RunRecords], Hashable] = sample_key
) -> tuple[list[RunRecords], list[str]]:
    """Return one run for each sample, and sentences about the runs that are left out.

    Runs with equal scores are one sample, wherever their folders lie, and the one with most rounds
    stands for all; a copy that was made while a run went on has its first rounds. Runs with different scores
    all stay: :func:`conflicts_of` names them.

    Args:
        runs: the runs; a run given twice counts once.
        same: returns the key that runs share if they should have the same scores.
    """
    known = {run.folder: run for run in runs}
    copies: dict[Path, list[Path]] = {}
    for alike in group_by(sorted(known.values(), key=lambda run: -run.summary["completed"]), same).values():
        for run in alike:
            wholes = (whole for whole in alike if whole.folder in copies and _scores_agree(whole, run))
            copies.setdefault(next(wholes, run).folder, []).append(run.folder)
    said = [
        one_line(f"Left out, with the settings, seed and numbers of {folder}: {', '.join(map(str, others))}.")
        for folder, (_, *others) in copies.items()
        if others
    ]
    return [run for folder, run in known.items() if folder in copies], said


def conflicts_of(runs: Iterable[RunRecords], same: Callable[[RunRecords], Hashable] = sample_key) -> str:
    """Name :func:`samples` that should have had the same scores, and have others; empty without any."""
    return "; ".join(
        f"seed {found[0].config.get('seed', 0)} has different numbers in "
        + one_line(" and ".join(str(run.folder) for run in found))
        for found in group_by(runs, same).values()
        if len(found) > 1
    )


CONFLICT = "another version or another processor may give them; name one of these runs"
"""What to know and do about runs that are :func:`conflicts_of`."""


def _scores_agree(one: RunRecords, other: RunRecords) -> bool:
    """Return whether two runs have the same scores wherever both have some."""
    places = ["round", "point", "view", "part", "client"]
    both = one.clients.merge(other.clients, on=places, suffixes=("", " there"))
    shared = [name for name in one.clients if f"{name} there" in both and name != "loss"]
    figures = shared[shared.index("figure") :]
    return not any((both[name] - both[f"{name} there"]).abs().gt(0).any() for name in figures)


# ---- groups


def data_of(run: RunRecords) -> str:
    """Return what identifies the data set of a run: its digest.

    If no digest was recorded, the numbers of samples identify it.
    """
    contents = run.history.population.contents
    return contents.sha256 if contents else f"not recorded, {sizes_of([run])}"


def sizes_of(runs: Sequence[RunRecords]) -> str:
    """Return the clients' numbers of samples: "2,000/200/400" for train, val and test."""
    return "/".join(range_text(int(run.history.population.samples[p].sum()) for run in runs) for p in SPLITS)


def data_warnings(run: RunRecords) -> list[str]:
    """Return warnings about a run's data: reduced, not verified, or for other uses than their names say."""
    contents, warnings = run.history.population.contents, []
    published, images = (contents.published, contents.images) if contents else ({}, {})
    there = {name: images.get(name, count) for name, count in published.items()}
    if fewer := [name for name, count in published.items() if there[name] < count]:
        counts = (f"{name} has {there[name]:,} of {published[name]:,} published images" for name in fewer)
        warnings.append(f"reduced data: {', '.join(counts)}")
    if missing := [name for name in published if name not in images]:
        warnings.append(f"without the domains {', '.join(missing)}")
    config = flatten_config(run.config)
    if (published or not contents) and config.get("data.verify") is False:
        warnings.append("data not verified (data.verify=false)")
    if run.history.population.trains_on_val:
        warnings.append("‡ trained on validation data, too")
    if (source := config.get("data.test_from", "published")) != "published":
        warnings.append(f"test samples are a part of each client's own (data.test_from={source})")
    if run.protocol.choose == "best_test":
        warnings.append(f"¶ {CHOSEN_ON_TEST}")
    return warnings


def machine_warnings(runs: Sequence[RunRecords], among: Sequence[RunRecords]) -> list[str]:
    """Return warnings about runs with other versions or frozen weights than most of those beside them."""
    every, warnings = [run.machine for run in among], []
    for name in MARKED:
        counts = Counter(machine[name] for machine in every if name in machine)
        usual = max(counts, key=counts.__getitem__, default="")
        odd = dict.fromkeys(run.machine.get(name, usual) for run in runs)
        if others := [value for value in odd if value != usual]:
            there = f"{name} {' and '.join(others)}, where most runs have {usual}"
            warnings.append(f"‖ {there}: last bits may differ")
    folders = {run.folder for run in runs}
    for like in group_by(
        among, lambda run: (repr(run.config.get("net")), run.config.get("seed", 0))
    ).values():
        if len({run.machine.get(FROZEN) for run in like}) > 1 and folders & {run.folder for run in like}:
            warnings.append(f"‖ {FROZEN} of the same net and seed are not the same in all runs")
    return warnings


def _divides(key: str) -> bool:
    """Return whether a setting says what the data are, or how they are divided among the clients."""
    return changes_data(key) and changes_experiment(key)


def _never_averaged(key: str) -> bool:
    """Return whether runs that differ in a fact are never grouped: of data, protocol, view and code."""
    return _divides(key) or key.startswith(("protocol", "view", "code."))


def group_runs(runs: Iterable[RunRecords], by: Sequence[str] = ()) -> list[RunGroup]:
    """Put runs on the same data together that differ only in their seed, or runs equal in the keys ``by``.

    Runs with different data, protocols, views or code are never grouped.
    """
    counts = (lambda key: key in by or _never_averaged(key)) if by else changes_experiment
    groups: dict[str, RunGroup] = {}
    known: set[str] = set()
    for run in runs:
        config, view = facts(run), {"view": (run.summary["headline"] or {}).get("view")} if by else {}
        known |= config.keys()
        config |= view
        same = key_of(run, counts, **view)
        group = groups.setdefault(f"{run.complete} {same}", RunGroup(config, [], run.complete))
        group.config = {n: x if config.get(n) == x else "various" for n, x in group.config.items()}
        group.runs.append(run)
    for name in by:
        if name not in known:
            raise Unknown("by", f"{name}: no run has this key{keys_hint(name, known)}")
    return list(groups.values())


def keys_hint(wrong: str, known: Iterable[str]) -> str:
    """Return how a sentence about a wrong key ends: with the one that was meant, and with all there are."""
    keys = sorted(known)
    whole = next((key for key in keys if key.endswith(f".{wrong}")), None)  # mu is method.mu
    near = f"; did you mean {whole}?" if whole else did_you_mean(wrong, keys)
    return f"{near} The keys are {', '.join(keys)}"


def varying_keys(groups: Sequence[RunGroup]) -> list[str]:
    """Return the keys in which groups differ, in the order of the configuration.

    A key of a component counts only if two groups with the same component differ in it: ``mu`` does not
    distinguish FedProx from FedAvg, which has none.
    """
    varying = []
    for key in filter(changes_experiment, dict.fromkeys(key for group in groups for key in group.config)):
        owner, known = key.rpartition(".")[0], [group.config for group in groups if key in group.config]
        pairs = {(str(config.get(owner)), str(config[key])) for config in known}
        if len(pairs) > len({component for component, _ in pairs}):
            varying.append(key)
    return varying


def labels(
    groups: Sequence[RunGroup], by: Sequence[str] = (), contents: bool = True
) -> tuple[list[str], list[list[str]]]:
    """Return headings, and per group the cells, that describe what was run.

    The first three are method, data and partition, with the options in which groups differ (the partition
    with all of its options); the others are the remaining keys in which groups differ. If runs were grouped
    ``by`` keys, these are shown, and data, protocol, view and code, which are never averaged. Data that
    differ although their options are the same, such as a part of a data set, show their number of samples
    and the start of their digest, unless ``contents`` is false.
    """
    apart = [key for key in varying_keys(groups) if not by or _never_averaged(key)]
    keys = list(dict.fromkeys([*by, *apart]))
    others = [k for k in keys if k.rpartition(".")[0] not in COMPONENTS and k not in COMPONENTS]
    headings, cells = list(map(one_line, ["method", "data", "partition", *others])), []
    for group in groups:
        parts = [_component(group, name, keys) for name in COMPONENTS]
        cells.append([one_line(text) for text in [*parts, *(str(group.config.get(k, "")) for k in others)]])
    runs = [group.runs[0] for group in groups]  # the data of others in a group are the same
    held = [_contents(place, cells, runs) if contents else "" for place in range(len(runs))]
    for row, what in zip(cells, held):
        row[1] += what
    return headings, cells


def _contents(place: int, cells: Sequence[Sequence[str]], runs: Sequence[RunRecords]) -> str:
    """Return what the data of a run held, where its cells do not tell it from those of other runs."""
    mine, contents = cells[place], runs[place].history.population.contents
    alike = {r.history.population.contents and data_of(r) for r, row in zip(runs, cells) if row[1] == mine[1]}
    if len(alike) == len({data_of(run) for run, row in zip(runs, cells) if row == mine}) == 1:
        return ""
    held = f"{sum(contents.images.values()):,} samples, {contents.sha256[:6]}" if contents else ""
    return f" [{held or data_of(runs[place])}]"


def _component(group: RunGroup, name: str, keys: Sequence[str]) -> str:
    """Return a component as it would be constructed: its class and the options to be shown."""
    own = [k for k in group.config if k.rpartition(".")[0] == name and k not in COMPONENTS]
    shown = own if name == "data.partition" else [k for k in own if k in keys]
    values = ", ".join(f"{k.rpartition('.')[2]}={group.config[k]}" for k in shown)
    return str(group.config.get(name, "n/a")) + (f"({values})" if values else "")


def short_labels(groups: Sequence[RunGroup], by: Sequence[str] = (), contents: bool = True) -> list[str]:
    """Return one label per group that holds only what tells the groups apart (see :func:`labels`)."""
    headings, cells = labels(groups, by, contents)
    shown = [i for i in range(len(headings)) if i == 0 or len({row[i] for row in cells}) > 1]
    names = []
    for group, row in zip(groups, cells):
        parts = [row[i] if i < 3 else f"{headings[i]}={row[i]}" for i in shown]
        if not group.complete:
            parts.append(f"{_completed_text(group)} rounds only")
        names.append(", ".join(parts))
    return names


def check_recorded(runs: Sequence[RunRecords], **asked: str | None) -> None:
    """Refuse a ``point``, a ``view``, a ``quantity`` or a metric (``--measure``) that no run has recorded."""
    places = [place for run in runs for place in run.history.views()]
    scores = [scores for run in runs for scores in run.history.scores.values()]
    metrics = sorted({name for each in scores for name in each.measures})
    recorded = {
        "point": sorted({point for point, _ in places}),
        "view": sorted({view for _, view in places}),
        "quantity": ["figure", "loss", *metrics],
        "--measure": metrics,
    }
    for option, value in asked.items():
        if value is not None and value not in recorded[option]:
            there, near = ", ".join(recorded[option]) or "none", did_you_mean(value, recorded[option])
            raise Unknown(option, f"{value}: no run has recorded it{near} There are {there}")


def missing_scores(run: RunRecords) -> str:
    """Say what a run has not recorded of what its headline is made of; empty where nothing is missing."""
    protocol, entry, end = run.protocol, run.view, run.summary["rounds"]
    if entry is None or not entry["evaluations"]:
        return f"not recorded: {protocol.view}, {as_text(protocol.point)}"
    if entry[protocol.choose] is None:
        what = "scores on validation data" if protocol.needs_validation else "scores that count"
        return f"not recorded: {what}, {as_text(protocol.point)}"
    if run.summary["early"] or not run.complete:
        return ""
    due = {round for round in range(end) if protocol.counts(round, end)}
    missing = due.difference(entry["each"]["test"]["rounds"])
    return f"{len(missing)} of the {counted(len(due), 'round')} that count were not evaluated" * bool(missing)


COLUMNS = ("headline", "common", *CHOICES)
"""The figures of the comparison; ``common`` is the headline's on a common test set, where there is one."""
FURTHER = {"common": "common\ntest (G)", "worst_decile": "worst\ndecile", "client_std": "std over\nclients"}
"""Further figures of the headline's rounds, and their headings."""


def figures(group: RunGroup, measure: str | None = None) -> dict[str, list[float | None]]:
    """Return :func:`run_figures` of each seed of a group, means over its runs; None where runs conflict."""
    seeds = [[run_figures(run, measure) for run in own] for own in group.seeds.values()]
    apart = bool(conflicts_of(group.runs))
    return {
        column: [None if apart else mean_and_std([each.get(column) for each in own])[0] for own in seeds]
        for column in dict.fromkeys(column for own in seeds for each in own for column in each)
    }


def run_figures(run: RunRecords, measure: str | None = None) -> dict[str, float | None]:
    """Return the figures of a run as printed: ``COLUMNS``, ``FURTHER``, further metrics, the epsilon spent.

    With a ``measure`` there is this metric in ``COLUMNS``. Clients and evaluations without it do not count.
    """
    how, chosen, scale = AVERAGES[run.protocol.average], run.chosen, run.figure_kind.scale
    common = {"common": chosen["common"]} if "common" in chosen else {}
    choices = {name: (run.view or {}).get(name) or {} for name in CHOICES}
    places = {"headline": chosen, **common, **choices}
    if measure is not None:
        return {name: each.get("measures", {}).get(measure, {}).get(how) for name, each in places.items()}
    found = {name: each.get(how) for name, each in places.items()}
    found |= {"worst_decile": chosen.get("worst_decile"), "client_std": chosen.get("std")}
    shown = {name: None if value is None else scale * value for name, value in found.items()}
    shown |= {"epsilon": run.summary["epsilon"]} if "epsilon" in run.summary else {}
    return shown | {name: values[how] for name, values in chosen.get("measures", {}).items()}


def rounds_to(curve: Curve, target: float, sign: int = 1) -> int | None:
    """Return the completed rounds when a curve first reaches a target; None: never."""
    rounds, figures = curve
    reached = rounds[sign * (figures - target) >= -1e-9]  # 57 % of 100 samples is 56.99999999999999
    return int(reached[0]) if len(reached) else None


def over_seeds(repeats: Iterable[Sequence[Curve]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the rounds that all curves have, and the values of each seed there: [seeds, rounds].

    Args:
        repeats: for each seed the curves of its runs; there is one.
    """
    every = list(repeats)
    rounds = reduce(np.intersect1d, [x for curves in every for x, _ in curves])
    return rounds, np.array([np.mean([y[np.isin(x, rounds)] for x, y in curves], axis=0) for curves in every])


def target_costs(runs: Sequence[RunRecords], target: float) -> dict[str, list[int | None]]:
    """Return the ``rounds``, and the ``bytes`` sent and received, until runs reach a target.

    Args:
        runs: the runs; None stands for one that no evaluation of which reaches the target.
        target: a test figure as it is printed, of the headline's view and averaged as the headline.
    """
    done = [rounds_to(run.curve(), target, run.figure_kind.sign) for run in runs]
    sent = [[each["up"] + each["down"] for each in run.history.rounds] for run in runs]
    spent = [None if count is None else sum(own[:count]) for count, own in zip(done, sent)]
    return {"rounds": done, "bytes": spent}


@dataclass(frozen=True)
class Entry:
    """A cell of a table: our figure and, where there is one, the printed one; shares in per cent.

    Attributes:
        row: name of the row.
        column: name of the column, as printed.
        mean: our mean over runs.
        std: our deviation; None: a single figure.
        spread: what the deviation is over: a key of ``SPREADS``, or empty.
        seeds: seeds of our runs.
        printed_mean: the paper's figure.
        printed_std: its deviation.
        warnings: about this cell.
        values: our figure for each seed; empty while runs are incomplete.
        data: identifies the data of our runs.
        further: of a cell that is one headline, means over seeds of ``FURTHER`` and further metrics.
        kind: of figure.
    """

    row: str
    column: str
    mean: float | None
    std: float | None
    spread: str
    seeds: list[int]
    printed_mean: float | None = None
    printed_std: float | None = None
    warnings: list[str] = field(default_factory=list)
    values: dict[int, float] = field(default_factory=dict)
    data: str = ""
    further: dict[str, float | None] = field(default_factory=dict)
    kind: Figure = ACCURACY

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        if self.mean is None or self.printed_mean is None:
            return None
        return self.mean - self.printed_mean

    @property
    def by_test(self) -> bool:
        """Whether test data have chosen the round."""
        return f"¶ {CHOSEN_ON_TEST}" in self.warnings

    @property
    def interval(self) -> float | None:
        """Half the width of the 95 % interval of our mean over seeds."""
        return significance.interval(self.std if self.spread == "seeds" else None, len(self.seeds))


def ranks_of(entries: Iterable[Entry]) -> dict[tuple[str, str], str]:
    """Return by row and column which figure is the best of its column on the same data, and the second."""
    found: dict[tuple[str, str], str] = {}
    for (column, _), cells in group_by(entries, lambda entry: (entry.column, entry.data)).items():
        ranks = significance.ranks({entry.row: entry.mean for entry in cells}, cells[0].kind)
        found |= {(row, column): rank for row, rank in ranks.items()}
    return found


def scores_of(entries: Iterable[Entry]) -> dict[str, significance.RowScores]:
    """Return column -> row -> the figure of each seed."""
    columns = group_by(entries, lambda entry: entry.column)
    return {column: {entry.row: entry.values for entry in cells} for column, cells in columns.items()}


@dataclass(frozen=True)
class Comparison:
    """The comparison of groups of runs: figures and bytes per round.

    Attributes:
        groups: one row each.
        by: the keys by which runs were grouped; empty: all keys.
        measure: a further metric that replaces the figure.
        target: a test figure as it is printed; columns say after how many rounds and bytes it is reached.
    """

    groups: Sequence[RunGroup]
    by: Sequence[str] = ()
    measure: str | None = None
    target: float | None = None

    @cached_property
    def entries(self) -> dict[str, list[Entry | None]]:
        """The figures: column -> the cell of each group, whose row is the group's place."""
        shown = [figures(group, self.measure) for group in self.groups]
        columns = dict.fromkeys(column for each in shown for column in each)
        return {
            column: [self._entry(place, column, each.get(column)) for place, each in enumerate(shown)]
            for column in columns
        }

    def _entry(self, place: int, column: str, values: Sequence[float | None] | None) -> Entry | None:
        if values is None:
            return None
        group = self.groups[place]
        known = {seed: v for seed, v in zip(group.seeds, values) if v is not None and group.complete}
        run, (mean, std), seeds = group.runs[0], mean_and_std(values), list(group.seeds)
        shared = key_of(run, lambda key: _divides(key) or key.startswith("protocol"), complete=group.complete)
        entry = Entry(str(place), column, mean, std, "seeds", seeds, None, None, self.warnings(group), known)
        return replace(entry, data=shared, kind=run.figure_kind)

    def warnings(self, group: RunGroup) -> list[str]:
        """Return the warnings about the data and the machines of a group."""
        found = dict.fromkeys(text for run in group.runs for text in data_warnings(run))
        return [*found, *machine_warnings(group.runs, [run for each in self.groups for run in each.runs])]

    @cached_property
    def ranks(self) -> dict[tuple[str, str], str]:
        """Row and column -> which figure is the best of those on the same data, and which the second.

        Incomplete runs have no rank: the best of them would look like the best of all. Of a metric nobody
        says whether more is better.
        """
        shown = filter(None, (each for name in COLUMNS for each in self.entries.get(name, ())))
        return {} if self.measure else ranks_of(each for each in shown if each.values)

    @cached_property
    def headlines(self) -> dict[str, significance.RowScores]:
        """The headlines of complete groups by block, row and seed."""
        entries = [] if self.measure else self.entries["headline"]
        return scores_of(replace(entry, column=entry.data) for entry in entries if entry)

    @cached_property
    def tests(self) -> list[significance.Difference]:
        """Tests of rows, by their places, against the one of FedAvg in their block, where there is one."""
        known = [group.config.get("method") == significance.REFERENCE for group in self.groups]
        mine = {block: [row for row in rows if known[int(row)]] for block, rows in self.headlines.items()}
        references = {block: rows[0] for block, rows in mine.items() if len(rows) == 1}
        return significance.differences(self.headlines, references)

    @cached_property
    def names(self) -> list[str]:
        """The short labels of the groups."""
        return short_labels(self.groups, self.by)

    def named_tests(self) -> list[significance.Difference]:
        """Return the tests of the headlines with the names of the rows."""
        names = {str(place): name for place, name in enumerate(self.names)}
        return [
            replace(each, place="headline", reference=names[each.reference], row=names[each.row])
            for each in self.tests
        ]

    def table(self, columns: Sequence[str] = ()) -> Table:
        """Return the comparison as a table; ``columns`` are the headings to show, by default all."""
        groups, (headings, cells) = self.groups, labels(self.groups, self.by)
        # data and partition, where they are the same in all groups
        constant = [i for i in (1, 2) if len({row[i] for row in cells}) == 1 and cells[0][i] != "n/a"]
        sizes = [sizes_of(group.runs) for group in groups]
        same = [f"{sizes[0]} {SAMPLES}"] if len(set(sizes)) == 1 else []
        what = ", ".join([*(cells[0][i] for i in constant), *same])
        kinds = figure_titles(group.runs[0].figure_kind for group in groups)
        table = plain_table(one_line(f"Test {self.measure or kinds}") + (f": {what}" if what else ""))
        table.caption, table.caption_justify = "\n".join(self.caption()), "left"
        shown = [i for i, name in enumerate(headings) if i not in constant and name != "rounds"]
        texts: dict[str, list[str | Text]] = {headings[i]: [row[i] for row in cells] for i in shown}
        known = dict(texts) if same else texts | {SAMPLES.replace(" ", "\n"): [*sizes]}
        known["seeds"] = [_seeds_text(group) for group in groups]
        known["rounds"] = [_completed_of_planned(group) for group in groups]
        (headline, cells_of_headline), *others = self._figure_columns().items()
        known[headline] = cells_of_headline
        if self.tests:
            paired = {each.row: f"{each.difference:+.2f} ± {each.interval:.2f}" for each in self.tests}
            against = [paired.get(str(row), "") for row in range(len(groups))]
            known[f"minus\n{significance.REFERENCE}"] = [*against]
        if self.target is not None:
            costs = [target_costs(group.runs, self.target) for group in groups]
            goal = f"{self.target:g}{groups[0].runs[0].figure_kind.unit}"
            known[f"rounds to\n{goal}"] = [range_text(each["rounds"]) for each in costs]
            known[f"bytes to\n{goal}"] = [range_text(each["bytes"], size) for each in costs]
        known |= others
        for way in ("up", "down"):
            known[f"{way} per\nround"] = [size(_bytes_per_round(group.runs, way)) for group in groups]
        chosen = _chosen_headings(known, columns)
        for heading in chosen:
            if heading in texts:
                table.add_column(heading, vertical="bottom", overflow="fold")
            else:
                table.add_column(heading, justify="right", no_wrap=True)
        for group, *line in zip(groups, *map(known.__getitem__, chosen)):
            table.add_row(*line, style=None if group.complete else "yellow")
        return table

    def _figure_columns(self) -> dict[str, list[str | Text]]:
        """Return the figures, the headline's first, with their ranks and the signs of their warnings."""
        titles = choice_headings(run.view for group in self.groups for run in group.runs if run.view)
        return {
            (titles | FURTHER).get(name, one_line(name)): [self._cell(entry) for entry in entries]
            for name, entries in self.entries.items()
        }

    def _cell(self, entry: Entry | None) -> Text:
        if entry is None:
            return Text("n/a")
        is_figure = not self.measure and entry.column in (*COLUMNS, *FURTHER)
        mean, std = entry.mean, entry.std
        text = entry.kind.text(mean, std) if is_figure else number(mean, std, decimals=4)
        if entry.column == "headline":
            text += "*" * any(each.row == entry.row and each.significant for each in self.tests)
            text += warning_signs(entry.warnings)
        elif mean is not None and entry.column not in CHOICES and entry.by_test:
            text += "¶"  # it is of the round that was chosen so
        return ranked_cell(text, self.ranks.get((entry.row, entry.column), ""))

    def records(self) -> list[dict[str, Any]]:
        """Return the figures of the table, a record per group, for CSV and JSON.

        Shares are in per cent, ``std`` is over seeds, a mean ± ``interval`` is its 95 % interval, and ``up``
        and ``down`` are bytes per round. With a ``target``, there are also ``rounds_to_target`` and
        ``bytes_to_target``: least and largest as text, and those of each run, null where it is not reached.
        """
        headings, cells = labels(self.groups, self.by)
        found = []
        for place, (group, row) in enumerate(zip(self.groups, cells)):
            record: dict[str, Any] = dict(zip(headings, row)) | {"samples": sizes_of(group.runs)}
            record |= {"seeds": list(group.seeds), "runs": len(group.runs)}
            completed = min(run.summary["completed"] for run in group.runs)
            record |= {"completed": completed, "rounds": group.config["rounds"]}
            values = figures(group, self.measure)
            for entry in filter(None, (entries[place] for entries in self.entries.values())):
                column = entry.column
                if column not in CHOICES and entry.by_test:
                    column = f"{column} ({CHOSEN_ON_TEST})"
                record |= {column: entry.mean, f"{column}_std": entry.std}
                record |= {f"{column}_values": values[entry.column], f"{column}_interval": entry.interval}
            for name, costs in target_costs(group.runs, self.target).items() if self.target else ():
                record |= {"target": self.target, f"{name}_to_target": range_text(costs, str)}
                record[f"{name}_to_target_values"] = costs
            record["warnings"] = self.warnings(group)
            record |= {direction: _bytes_per_round(group.runs, direction) for direction in ("up", "down")}
            found.append(record)
        return found

    def caption(self) -> list[str]:
        """Say what the numbers of the table are, and what should be known of their data: sentences."""
        runs, text = [run for group in self.groups for run in group.runs], []
        for protocol in dict.fromkeys(run.protocol for run in runs):
            headlines = [run.summary["headline"] for run in runs if run.protocol == protocol]
            views = " or ".join(dict.fromkeys(h["view"] for h in headlines if h)) or protocol.view
            scored = f"{views}, {as_text(protocol.point)}, {AVERAGE_NAMES[protocol.average]}"
            text.append(f"Protocol {protocol}: {scored}; headline: {CHOICE_NAMES[protocol.choose]}.")
        if any(len(group.runs) > 1 for group in self.groups):
            text.append("± is the sample standard deviation over seeds.")
        text += significance.describe_intervals(len(group.seeds) for group in self.groups)
        complete = all(group.complete for group in self.groups)
        if not complete:
            text.append(
                "Incomplete runs are scored on the rounds they have, and not mixed with complete ones."
            )
        where = "rows on the same data" if complete else "complete rows on the same data"
        text += [MARKS.format(where=where)] if self.ranks else []
        text += significance.describe_tests(self.headlines, self.tests, significance.REFERENCE)
        return text + self._told_warnings()

    def _told_warnings(self) -> list[str]:
        """Return the warnings about runs, each with the groups that it is true of."""
        found: dict[str, list[str]] = {}
        for name, group in zip(self.names, self.groups):
            warnings = [*self.warnings(group), *filter(None, map(missing_scores, group.runs))]
            warnings += [text for run in group.runs for text in other_models(run.summary["headline"] or {})]
            if conflict := conflicts_of(group.runs):
                warnings.append(f"no mean, because {conflict} ({CONFLICT})")
            for text in dict.fromkeys(warnings):
                found.setdefault(text, []).append(name)
        return [
            f"{'All rows' if len(names) == len(self.groups) else '; '.join(names)}: {text}."
            for text, names in found.items()
        ]


def _chosen_headings(known: Iterable[str], names: Sequence[str]) -> list[str]:
    """Return the headings with some names, all if none are named."""
    found = {heading.replace("\n", " "): heading for heading in known}
    if odd := [name for name in names if name not in found]:
        near = did_you_mean(odd[0], found)
        raise Unknown("columns", f"have no {odd[0]}{near} There are {', '.join(found)}")
    return [found[name] for name in names or found]


def _seeds_text(group: RunGroup) -> str:
    seeds = len(group.seeds)
    return f"{seeds}" + f" ({len(group.runs)} runs)" * (seeds != len(group.runs))


def _completed_of_planned(group: RunGroup) -> str:
    """Return the rounds of a group, which may differ where it was made by some keys: "10", "2 to 5 of 10"."""
    text = range_text(run.summary["rounds"] for run in group.runs)
    short = any(run.summary["completed"] < run.summary["rounds"] for run in group.runs)
    return f"{_completed_text(group)} of {text}" if short else text


def _completed_text(group: RunGroup) -> str:
    return range_text(run.summary["completed"] for run in group.runs)


def _bytes_per_round(runs: Sequence[RunRecords], direction: str) -> float | None:
    """Return the mean bytes of a round in one direction, over all its clients."""
    rounds = sum(run.summary["completed"] for run in runs)
    return sum(run.summary[direction] for run in runs) / rounds if rounds else None
