"""The tables of docs/results.md and docs/results/, made from summaries and the papers' printed numbers.

``python -m docs.results_page`` writes them anew into the pages, each below its marker,
``<!-- numbers: NAME -->``, and draws two pictures. It also writes the sentences that count what has
results, and those on speed in other pages, from a record; and it puts † behind methods that nobody has
compared with their papers, and ‡ behind those that have trained on validation data.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from scipy.stats import kendalltau

from rayfl.data.task import Numbers
from rayfl.evaluation.metrics import AVERAGES
from rayfl.jobs.table_file import Table, slug_of
from rayfl.methods import METHODS
from rayfl.report.printed import printed_table
from rayfl.report.significance import FEWEST, LEVEL, REFERENCE, differences, holm, p_of_pairs
from rayfl.report.text import mean_and_std, number
from rayfl.settings.description import display_name

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results.md"
FOLDER = ROOT / "docs" / "results"
TABLES = ROOT / "docs" / "experiments.md"
SPEED = [ROOT / "README.md", ROOT / "benchmarks" / "README.md", ROOT / "docs" / "from_flower.md"]
"""Pages that say how fast rayfl is."""
SPEEDS = json.loads((ROOT / "benchmarks" / "records" / "2026-11-22-2553eda.json").read_text())
"""The newest record of ``benchmarks/engine.py`` with peers."""
EXAMPLES = ROOT / "examples"
SEEDS = {"fdse": 2}  # of the other papers' runs: 0

TUNED = FOLDER / "embedded_tuned.json"
"""Row -> what its search has chosen, at what cost, and seed -> accuracy of the tuned row."""
EMBEDDED = FOLDER / "embedded_methods.json"
"""Row -> column -> seed -> view -> mean over clients after each round, of examples/embedded/methods.yaml.
Rows of now also have ``rayfl``, as a run's summary has it.
"""
ROBUST = FOLDER / "robust_attacks.json"
"""Row -> column -> seed -> view -> mean over honest clients after the last round, of
examples/robust/attacks.yaml; and ``rayfl``, as the runs' summaries have it.
"""
COMMITS: dict[str, str] = json.loads((FOLDER / "commits.json").read_text())
"""Published before runs recorded their code: file, or row of ``EMBEDDED`` -> the commit that published it."""

DETAILS = {
    "fedco2_t3": ("fedco2_t3", "fedco2_t3_1500", "fedco2_t3_bfloat16"),
    "fdse_t1": ("fdse_t1", "fdse_t3", "fdse_local_1", "fdse_local_5", "fdse_local_50"),
    "fedios_t1": ("fedios_t1", "fedios_t7", "fedios_bases", "fedios_64"),
    "dcpfl_t1": ("dcpfl_t1", "dcpfl_fifth"),
    "outside_niid_bench": ("outside_niid_bench",),
    "published_feddbe": ("published_feddbe",),
    "school_marks": ("school_marks",),
    "shakespeare_characters": ("shakespeare_characters",),
    "text_adapters": ("text_adapters",),
    "embedded_methods": (),
    "robust_attacks": (),
}
"""Page in docs/results/ -> the folders of summaries that it shows."""

OFFICE = "Office-Caltech10"
FEDIOS, CIFAR100 = "Office-Caltech-10 N=4", "CIFAR-100 N=5"
PATHOLOGICAL, DIRICHLET = "CIFAR10 Pathological", "CIFAR10 Dirichlet"
DCPFL = "CIFAR10 K=10"
NIID = "CIFAR-10 Dirichlet"
PFLLIB = "CIFAR-10"


@cache
def _by_validation() -> set[str]:
    """Return the methods that train on validation data, by the names of their rows."""
    trained = [name for name, cls in METHODS.items() if cls().facts.validation != "unused"]
    return {display_name(f"rayfl.methods.{name}") for name in trained}


class Run:
    """The published summary of the run of one cell of a table."""

    def __init__(self, table: str, row: str, column: str, seed: int | None = None) -> None:
        self.table, self.row, self.column = table, row, column
        seed = SEEDS.get(table.partition("_")[0], 0) if seed is None else seed
        self.path = FOLDER / table / f"{slug_of(row)}--{slug_of(column)}--seed-{seed}.json"
        self.summary: dict[str, Any] = json.loads(self.path.read_text())

    @property
    def completed(self) -> int:
        """Rounds of the run."""
        return int(self.summary["completed"])

    @property
    def name(self) -> str:
        """The row, with ‡ where its method has trained on validation data, too."""
        known = self.row in _by_validation() and self.summary["views"][0]["best_val"]
        return f"{self.row}‡" if known else self.row

    def headline(self) -> str:
        """What the declared protocol counts."""
        return cell(self.summary["headline"]["figure"])

    def domain(self, name: str) -> str:
        """The headline of one domain."""
        return cell(self.summary["headline"]["domains"][name]["figure"])

    def average(self, how: str) -> str:
        """The rounds of the headline under another average over clients."""
        return cell(self.summary["headline"]["averages"][how]["figure"])

    def value(self, choice: str, view: str = "", point: str = "", average: str = "") -> float:
        """An accuracy under a choice of rounds; view, point and average are by default the headline's."""
        return float(self.chosen(choice, view, point)[self._average(average)])

    def shown(self, choice: str, view: str = "", point: str = "", average: str = "") -> str:
        """The same as the page shows it."""
        return cell(self.value(choice, view, point, average))

    def _average(self, average: str) -> str:
        return AVERAGES[average or self.summary["headline"]["average"]]  # type: ignore[index]

    def chosen(self, choice: str, view: str = "", point: str = "") -> dict[str, Any]:
        """The summary of a view under a choice of rounds, or of those of the headline."""
        choose = self.summary["headline"]["choose"]
        found: dict[str, Any] = self._view(view, point)[choose if choice == "headline" else choice]
        return found

    def after(self, rounds: int, view: str = "") -> float:
        """The accuracy of a view after so many rounds."""
        each = self._view(view)["each"]["test"]
        return float(each[self._average("")][each["rounds"].index(rounds - 1)])

    def scored_rounds(self, view: str = "") -> list[int]:
        """Return after how many rounds a view was scored."""
        return [k + 1 for k in self._view(view)["each"]["test"]["rounds"]]

    def _view(self, view: str, point: str = "") -> dict[str, Any]:
        headline = self.summary["headline"]
        wanted = (point or headline["point"], view or headline["view"])
        (entry,) = (v for v in self.summary["views"] if (v["point"], v["view"]) == wanted)
        return dict(entry)


USED: list[Run] = []


@cache
def run(table: str, row: str, column: str, seed: int | None = None) -> Run:
    """Return the run of a cell."""
    USED.append(Run(table, row, column, seed))
    return USED[-1]


def each_seed(
    table: str, row: str, column: str, seeds: Iterable[int] = range(3), choice: str = "headline"
) -> list[float]:
    """Return an accuracy of the runs with these seeds, under a choice of rounds."""
    return [run(table, row, column, seed).value(choice) for seed in seeds]


def over_seeds(table: str, row: str, column: str, seeds: Iterable[int], choice: str = "headline") -> str:
    """Return mean and deviation over runs with these seeds, under a choice of rounds."""
    mean, std = mean_and_std(each_seed(table, row, column, seeds, choice))
    assert mean is not None
    return cell(mean, std)


def seeds_of(table: str, row: str, column: str) -> set[int]:
    """Return the seeds with which a cell has run."""
    found = (FOLDER / table).glob(f"{slug_of(row)}--{slug_of(column)}--seed-*.json")
    return {int(path.stem.rpartition("-")[2]) for path in found}


def ahead(
    own: tuple[str, str], other: tuple[str, str], column: str, seeds: Iterable[int], choice: str = "headline"
) -> list[float]:
    """Return by how much a table's row is ahead of another one with each seed, in points."""
    first, second = (each_seed(*cell, column, list(seeds), choice) for cell in (own, other))
    return [100 * (a - b) for a, b in zip(first, second)]


def points(differences: Sequence[float]) -> str:
    """Return mean and deviation of paired differences, with a sign."""
    average, std = mean_and_std(differences)
    assert average is not None
    return f"{round(average, 1) + 0:+.1f}" + (f" ± {std:.1f}" if std is not None else "")


def cell(accuracy: float, std: float | None = None) -> str:
    """Return an accuracy in [0, 1] as the page shows it: in per cent, with one decimal."""
    return f"{100 * accuracy:.1f}" + (f" ± {100 * std:.1f}" if std is not None else "")


def printed(table: str, row: str, *columns: str) -> list[str]:
    """Return what the paper prints in a row."""
    known = printed_table(table)
    assert known is not None
    return [number(*known.rows[row][column]) for column in columns]


def setting(path: str, row: str, column: str, key: str) -> Any:
    """Return a setting of a table file."""
    return Table.load(ROOT / "examples" / path).settings(row, column, {})[key]


# ---- methods that nobody has compared with their papers


def _plain(text: str) -> str:
    return " ".join(text.replace("*", "").lower().split())


UNVERIFIED = {
    path.stem
    for path in (ROOT / "docs" / "methods").glob("*.md")
    if "not verified against the" in _plain(path.read_text())
}
"""Pages of methods that say so."""


def marked(row: str) -> str:
    """Return the name of a row, with † where its method's page says that it is not verified."""
    return f"{row}†" if re.sub(r"\W", "", row).lower() in UNVERIFIED else row


def with_marks(page: str) -> str:
    """Return a page with † behind the names of such methods, but not in commands."""
    rows = "|".join(map(re.escape, embedded_runs()))
    name = re.compile(rf"(?<![\w-])({rows})(?![\w-])†?")
    parts = page.split("```")
    parts[::2] = [name.sub(lambda m: marked(m[1]), part) for part in parts[::2]]
    return "```".join(parts)


# ---- the tables


Rows = list[list[str]]


def _with_three(table: str, column: str, rows: list[str], paper: str = "") -> Rows:
    """Rows of reported, last round and mean of the last five, and of what is printed."""
    found = []
    for row in rows:
        own = run(table, row, column)
        shown = [own.headline(), own.shown("last"), own.shown("last_k")]
        found.append([row, *shown, *(printed(paper, row, column) if paper else [])])
    return found


FEDCO2_T3 = {
    PATHOLOGICAL: ["SingleSet", "FedAvg", "FedPer", "FedBN", "Fed-CO2"],
    DIRICHLET: ["SingleSet", "FedAvg", "FedProx", "FedPer", "MOON", "FedRoD", "FedBN", "Fed-CO2"],
}


T3_SEEDS = ["SingleSet", "FedAvg", "FedPer", "FedBN", "Fed-CO2"]


def fedco2_t3(column: str) -> Rows:
    """Table 3 of Fed-CO2."""
    head = ["", "reported", "last round", "mean of the last five", "printed, after 1,500 rounds"]
    found = _with_three("fedco2_t3", column, FEDCO2_T3[column], "fedco2_t3")
    own = run("fedco2_t3", "Fed-CO2", column)
    for view in ("online", "offline"):
        shown = [own.shown(choice, view) for choice in ("headline", "last", "last_k")]
        found.append([f"Fed-CO2, {view} model alone", *shown, ""])
    return [head, *found]


LONG = "fedco2_t3_1500"
"""Two rows of Table 3 with all rounds of the paper."""
MILESTONES = (300, 600, 900, 1200, 1500)


def fedco2_t3_bfloat16() -> Rows:
    """Two rows of Table 3 of Fed-CO2 in both precisions."""
    found = [["", "reported", "last round", "mean of the last five"]]
    for row in ("FedAvg", "FedBN"):
        for name, table in (("bfloat16", "fedco2_t3_bfloat16"), ("float32", "fedco2_t3")):
            found += [[f"{row}, {name}", *each[1:]] for each in _with_three(table, DIRICHLET, [row])]
    return found


def fedco2_t3_long() -> Rows:
    """Table 3 of Fed-CO2, two rows with all rounds."""
    rounds = [f"after {count:,}" for count in MILESTONES]
    found = [["", "reported", "mean of the last five", *rounds, "printed"]]
    views = [(row, "") for row in ("FedPer", "Fed-CO2")] + [("Fed-CO2", "online"), ("Fed-CO2", "offline")]
    for row, view in views:
        own = run(LONG, row, DIRICHLET)
        shown = [own.shown(choice, view) for choice in ("headline", "last_k")]
        name, beside = (
            (row, printed("fedco2_t3", row, DIRICHLET)) if not view else (f"{row}, {view} model alone", [""])
        )
        found.append([name, *shown, *(cell(own.after(count, view)) for count in MILESTONES), *beside])
    return found


FDSE_T1 = ["Local", "FedAvg", "Ditto", "PartialFed", "FedBN", "FedFA", "FedHEAL", "FDSE"]


FDSE_T3 = ["none", "B", "C", "A B"]


def fdse() -> Rows:
    """Tables 1 and 3 of FDSE on Office-Caltech10."""
    head = ["", "reported (ALL)", "AVG", "ALL, last round", "ALL, mean of the last five"]
    rows = [("fdse_t1", row) for row in (*FDSE_T1, "FDSE (code)")] + [("fdse_t3", row) for row in FDSE_T3]
    found = []
    for table, row in rows:
        own = run(table, row, OFFICE)
        known = printed_table(table)
        assert known is not None
        beside = printed(table, row, f"{OFFICE} ALL", f"{OFFICE} AVG") if row in known.rows else ["", ""]
        name = f"{row} (Table 3)" if table == "fdse_t3" else own.name
        shown = [own.headline(), own.average("mean_clients"), own.shown("last"), own.shown("last_k")]
        found.append([name, *shown, *beside])
    return [[*head, "printed ALL", "printed AVG"], *found]


FDSE_LOCAL = {
    "1 epoch": ("fdse_local_1", 3),
    "5 epochs": ("fdse_local_5", 3),
    "50 epochs": ("fdse_local_50", 1),
}
"""Epochs in all -> the folder of the runs of Local, and how many seeds of the public code they have."""
FDSE_SEEDS = (2, 4388, 15)
FDSE_T1_SEEDS = ["Local", "FedAvg", "Ditto", "FedBN", "FDSE", "FDSE (code)"]


def fdse_local() -> Rows:
    """Local of FDSE's Table 1 at a constant rate, by how long it trains."""
    found = []
    for name, (table, count) in FDSE_LOCAL.items():
        each = each_seed(table, "Local", OFFICE, FDSE_SEEDS[:count])
        found.append([name, _over_seeds(each), str(count)])
    return [["", "reported (ALL)", "seeds"], *found]


def mean(values: list[float]) -> float:
    """Return the mean."""
    return sum(values) / len(values)


FEDIOS_ROWS = {
    "Local": "fedios_t1",
    "FedAvg": "fedios_t1",
    "FedPer": "fedios_bases",
    "LG-FedAvg": "fedios_bases",
    "FedGH": "fedios_bases",
    "FedKD": "fedios_bases",
    "MOON": "fedios_t1",
    "Ditto": "fedios_t1",
    "FedRoD": "fedios_t1",
    "FediOS": "fedios_t1",
    "FediOS, identity basis": "fedios_bases",
    "FediOS, uniform basis": "fedios_bases",
    "w/o L_re": "fedios_t7",
    "FediOS, cosine": "fedios_t7",
    "w/o personal extractors": "fedios_t7",
    "w/o orthogonal projections": "fedios_t7",
}

FEDIOS_SEEDS = [
    *("Local", "FedAvg", "MOON", "Ditto", "FedRoD", "FediOS"),
    *("FediOS, cosine", "w/o personal extractors", "w/o orthogonal projections"),
]


OVER_SEEDS = {"reported, mean over seeds": "headline"}
BOTH_OVER_SEEDS = {**OVER_SEEDS, "last five, mean over seeds": "last_k"}


def three_seeds(
    rows: Mapping[str, str],
    column: str,
    choices: Mapping[str, str] = OVER_SEEDS,
    seeds: Sequence[int] = (0, 1, 2),
    in_paper: str = "",
    *,
    own: tuple[str, str],
) -> Rows:
    """Means over three seeds.

    Args:
        rows: row -> the table that it is in.
        column: of these tables.
        choices: heading -> choice of rounds.
        seeds: of the runs.
        in_paper: the column of the printed numbers, where it has another name.
        own: table and row of the paper's own method. Of it the differences to the others are shown: pairs of
            runs with the same seed have the same data, which most of the ± beside means is about.
    """
    found = []
    for row, table in rows.items():
        over = [over_seeds(table, row, column, seeds, choice) for choice in choices.values()]
        known = printed_table(table)
        beside = printed(table, row, in_paper or column) if known and row in known.rows else [""]
        by = "" if (table, row) == own else points(ahead(own, (table, row), column, seeds))
        found.append([row, *over, by, *beside])
    return [["", *choices, f"{own[1]} ahead by", "printed"], *found]


def fdse_seeds(table: str, rows: Sequence[str]) -> Rows:
    """Rows of FDSE's tables on Office-Caltech10 over three seeds."""
    in_paper = f"{OFFICE} ALL"
    own = ("fdse_t1", "FDSE")
    return three_seeds(dict.fromkeys(rows, table), OFFICE, BOTH_OVER_SEEDS, FDSE_SEEDS, in_paper, own=own)


def fedco2_t3_seeds(column: str) -> Rows:
    """Table 3 of Fed-CO2 over three seeds."""
    own = ("fedco2_t3", "Fed-CO2")
    return three_seeds(dict.fromkeys(T3_SEEDS, "fedco2_t3"), column, BOTH_OVER_SEEDS, own=own)


def fedios_seeds() -> Rows:
    """Tables 1 and 7 of FediOS over three seeds."""
    rows = {row: FEDIOS_ROWS[row] for row in FEDIOS_SEEDS}
    return three_seeds(rows, FEDIOS, own=("fedios_t1", "FediOS"))


ONLY_OFFICE = {"MOON", "FedRoD", "LG-FedAvg", "FedGH", "FedKD"}


def fedios(column: str) -> Rows:
    """Tables 1 and 7 of FediOS."""
    head = ["", "reported", "last round", "the common model alone, after aggregation", "printed"]
    found = []
    for row, table in FEDIOS_ROWS.items():
        if column == CIFAR100 and (table == "fedios_t7" or row in ONLY_OFFICE):
            continue
        own = run(table, row, column)
        known = printed_table(table)
        views = {view["view"] for view in own.summary["views"] if view["point"] == "after_aggregation"}
        common = own.shown("last_k", "global", "after_aggregation") if "global" in views else ""
        beside = printed(table, row, column) if known and row in known.rows else [""]
        name = "FedGH, a tenth of the learning rate" if row == "FedGH" else row
        found.append([name, own.headline(), own.shown("last"), common, *beside])
    return [head, *found]


FEDIOS_64 = {"FediOS": 2, "w/o personal extractors": 2, "w/o orthogonal projections": 1}
"""Row of FediOS with images of 64 pixels -> how many seeds it has."""


def fedios_64() -> Rows:
    """The ablation of FediOS with images of 64 pixels."""
    sides = [f"{side} pixels, seed {seed}" for side in (64, 32) for seed in (0, 1)]
    found = []
    for row, count in FEDIOS_64.items():
        large = [run("fedios_64", row, FEDIOS, seed).headline() for seed in range(count)]
        small = [run(FEDIOS_ROWS[row], row, FEDIOS, seed).headline() for seed in (0, 1)]
        found.append([row, *large, *[""] * (2 - count), *small, *printed("fedios_t7", row, FEDIOS)])
    return [["", f"reported, {sides[0]}", *sides[1:], "printed"], *found]


DCPFL_ROWS = ["Local-T", "FedAvg", "FML", "FedGH", "DC-PFL", "DC-PFL w/o AL", "DC-PFL w/o GC"]


def dcpfl() -> Rows:
    """Table 1 of DC-PFL."""
    head = ["", "reported", "best by validation", "mean of the last five", "printed, all data"]
    found = []
    for row in DCPFL_ROWS:
        own = run("dcpfl_t1", row, DCPFL)
        each = [own.headline(), own.shown("best_val"), own.shown("last_k")]
        found.append([row, *each, *printed("dcpfl_t1", row, DCPFL)])
    return [head, *found]


def dcpfl_fifth() -> Rows:
    """Table 1 of DC-PFL with a fifth of the data."""
    own = ("dcpfl_fifth", "DC-PFL")
    head, *found = three_seeds(dict.fromkeys(DCPFL_ROWS, "dcpfl_fifth"), DCPFL, OVER_SEEDS, own=own)
    beside = [printed("dcpfl_t1", row, DCPFL) for row in DCPFL_ROWS]
    return [[*head[:-1], "printed, all data"], *([*row[:-1], *known] for row, known in zip(found, beside))]


NIID_ROWS = ["FedAvg", "SCAFFOLD"]


def niid_best(row: str) -> float:
    """Return the accuracy of the round that is best on the test images."""
    own = run("outside_niid_bench", row, NIID)
    (view,) = (v for v in own.summary["views"] if (v["point"], v["view"]) == ("after_aggregation", "global"))
    return float(max(view["each"]["test"]["pooled"]))


def niid_bench() -> Rows:
    """Flower's niid_bench."""
    head = ["", "reported", "mean of the last five", "best round by test", "printed, best round"]
    found = []
    for row in NIID_ROWS:
        own = run("outside_niid_bench", row, NIID)
        shown = [own.headline(), own.shown("last_k"), cell(niid_best(row))]
        found.append([row, *shown, *printed("outside_niid_bench", row, NIID)])
    return [head, *found]


SCHOOL_ROWS = {
    "FedAvg": "0.02564",
    "Local": "0.02628",
    "Ditto": "",
    "MR-MTL, 0.1": "",
    "MR-MTL, 1": "0.02394",
}
"""Row -> what the paper prints, with noise for privacy."""


def school() -> Rows:
    """Mean squared errors of pupils' marks."""
    text, rows = Numbers.figure.text, []
    for row, beside in SCHOOL_ROWS.items():
        each = each_seed("school_marks", row, "School", sorted(seeds_of("school_marks", row, "School")))
        rows.append([row, text(*mean_and_std(each)), beside])
    return [["", "reported", "printed, epsilon 6"], *rows]


CHARACTER_ROWS = ["FedAvg", "Local", "FedPer"]


def shakespeare() -> Rows:
    """Accuracy of next characters, learned from one or from each position of a text."""
    columns = ["Last character", "Every character"]
    shown = [
        [row, *(over_seeds("shakespeare_characters", row, column, range(3)) for column in columns)]
        for row in CHARACTER_ROWS
    ]
    return [["", *(f"reported, {column.lower()}" for column in columns)], *shown]


TEXT_ROWS = ["FedIT", "FedSA-LoRA", "FFA-LoRA", "FedPer", "Ditto", "Local"]


def text_adapters() -> Rows:
    """What adapters of a sentence encoder learn, and what a client sends."""
    found = [["", "reported", "sent by a client in a round, kB"]]
    share = setting("text/adapters.yaml", TEXT_ROWS[0], "docstrings", "participation")
    for row in TEXT_ROWS:
        ran = run("text_adapters", row, "docstrings").summary
        sent = ran["up"] / ran["completed"] / round(ran["clients"] * share)
        shown = over_seeds("text_adapters", row, "docstrings", range(3))
        found.append([row, shown, f"{sent / 1000:.0f}"])
    return found


PFLLIB_ROWS = {
    "Local": ("Local", ""),
    "FedAvg": ("FedAvg-FT", "global"),
    "FedAvg-FT": ("FedAvg-FT", ""),
    "FedPer": ("FedPer", ""),
    "FedALA": ("FedALA", ""),
    "FedBABU": ("FedBABU", ""),
    "FedDBE": ("FedDBE", ""),
}
"""Row -> the row of the run that has it, and the view; empty: the headline's."""
PFLLIB_CURVES: dict[str, dict[str, list[float]]] = json.loads((FOLDER / "pfllib_curves.json").read_text())
"""Row -> ``rounds`` and ``accuracy``, pooled, in [0, 1], as PFLlib's own code prints them."""


def feddbe_runs() -> dict[str, tuple[Run, str]]:
    """Return row -> run and view, in FedDBE's setting, which is PFLlib's, on CIFAR-10."""
    return {row: (run("published_feddbe", own, PFLLIB), view) for row, (own, view) in PFLLIB_ROWS.items()}


def feddbe() -> Rows:
    """The rows of FedDBE's setting that have run longest."""
    head = ["", "reported, best round by test", "last round", "mean of the last five"]
    head += ["last round, mean of clients", "printed, best of up to 2,000 rounds"]
    found, runs = [head], feddbe_runs()
    longest = max(own.completed for own, _ in runs.values())
    for row, (own, view) in runs.items():
        if own.completed < longest:
            continue
        shown = [own.shown(choice, view) for choice in ("headline", "last", "last_k")]
        shown.append(own.shown("last", view, average="mean_clients"))
        found.append([row, *shown, *printed("published_feddbe", row, PFLLIB)])
    return found


def feddbe_by_rounds() -> Rows:
    """All rows of FedDBE's setting, in the rounds after which all of them were scored."""
    runs = feddbe_runs()
    common = sorted(set.intersection(*(set(own.scored_rounds(view)) for own, view in runs.values())))
    rows = [[row, *(cell(own.after(k, view)) for k in common)] for row, (own, view) in runs.items()]
    return [["", *(f"after round {k}" for k in common)], *rows]


def pfllib_pairs(row: str) -> dict[int, tuple[float, float]]:
    """Return round -> accuracy with rayfl and with PFLlib's code, where both were scored."""
    (own, view), other = feddbe_runs()[row], PFLLIB_CURVES[row]
    theirs = dict(zip(map(int, other["rounds"]), other["figure"]))
    return {k: (own.after(k, view), theirs[k]) for k in own.scored_rounds(view) if k in theirs}


def pfllib_curves() -> Rows:
    """The same clients in rayfl and in PFLlib's own code, by rounds."""
    pairs = {row: pfllib_pairs(row) for row in PFLLIB_CURVES}
    head = ["rounds", *(f"{row}, {whose}" for row in pairs for whose in ("rayfl", "PFLlib"))]
    found = [head]
    for k in sorted({k for own in pairs.values() for k in own if k % 10 == 0}):
        each = [map(cell, own[k]) if k in own else ("", "") for own in pairs.values()]
        found.append([str(k), *chain.from_iterable(each)])
    return found


def draw_pfllib(path: Path) -> None:
    """Draw the curves of rayfl and of PFLlib's own code over each other."""
    figure = Figure((7.2, 3.2), layout="constrained")
    for ax, row in zip(figure.subplots(1, len(PFLLIB_CURVES)), PFLLIB_CURVES):
        pairs = pfllib_pairs(row)
        for k, (whose, colour) in enumerate({"rayfl": "#0072B2", "PFLlib": "#D55E00"}.items()):
            ax.plot(list(pairs), [100 * both[k] for both in pairs.values()], color=colour, label=whose)
        ax.set(title=row, xlabel="rounds", ylabel="test accuracy in %, pooled")
        ax.grid(alpha=0.4)
        ax.legend(fontsize=8)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def embedded_values(row: str, column: str, view: str) -> list[float]:
    """Return the accuracies after the last round, one per seed; none where the method has no such view."""
    seeds = embedded_runs()[row][column]
    return [each[view][-1] for each in seeds.values() if view in each]


@cache
def embedded_runs() -> dict[str, dict[str, dict[str, Any]]]:
    """Return row -> column -> seed -> view -> accuracies; a row's fine-tuned model is its personal one."""
    known = json.loads(EMBEDDED.read_text())
    for seeds in (seeds for own in known.values() for column, seeds in own.items() if column != "rayfl"):
        for views in seeds.values():
            views["personal"] = views.pop("finetuned", views["personal"])
    return {row: {c: seeds for c, seeds in own.items() if c != "rayfl"} for row, own in known.items()}


def embedded_ahead(row: str, column: str, view: str) -> list[float]:
    """Return by how much a row is ahead of FedAvg with each seed, in points."""
    pairs = zip(*(embedded_values(r, column, view) for r in (row, "FedAvg")))
    return [100 * (own - other) for own, other in pairs]


def embedded() -> Rows:
    """All methods on embedded digits."""
    places = [(column, view) for column in ("domains", "labels") for view in ("personal", "global")]
    found = [["", *(f"{column}, {view}" for column, view in places), "labels, personal: ahead of FedAvg by"]]
    for row in embedded_runs():
        values = [embedded_values(row, *place) for place in places]
        by = "" if row == "FedAvg" else points(embedded_ahead(row, "labels", "personal"))
        found.append([row, *map(_over_seeds, values), by])
    return found


def tuned_places() -> dict[str, dict[str, dict[str, float]]]:
    """Return column -> row -> seed -> personal accuracy in column labels, of rows as they are and tuned."""
    places: dict[str, dict[str, dict[str, float]]] = {"as it is": {}, "tuned": {}}
    for row, choice in json.loads(TUNED.read_text()).items():
        default = {s: views["personal"][-1] for s, views in embedded_runs()[row]["labels"].items()}
        places["as it is"][row] = default
        places["tuned"][row] = choice.get("tuned", {}) if choice["chosen"] else default
    return places


def embedded_tuned() -> Rows:
    """The same, each row with the best of eight points of its own tune space, column labels."""
    found = [["", "as it is", "tuned", "chosen on validation data"]]
    places = tuned_places().values()
    for row, choice in json.loads(TUNED.read_text()).items():
        both = [_over_seeds([*rows[row].values()]) for rows in places]
        what = ", ".join(f"`{each}`" for each in choice["chosen"]) or "as it is"
        found.append([row, *both, what])
    return found


def _over_seeds(values: list[float]) -> str:
    mean, std = mean_and_std(values)
    return "" if mean is None else cell(mean, std)


def draw_embedded(path: Path) -> None:
    """Draw personal and global accuracies of all methods, the best personal ones on top."""
    figure = Figure((7.2, 8.0), layout="constrained")
    for ax, column in zip(figure.subplots(1, 2), ("domains", "labels")):
        rows = embedded_runs()
        order = sorted(rows, key=lambda row: mean(embedded_values(row, column, "personal")))
        for view, colour, mark in (("global", "#D55E00", "D"), ("personal", "#0072B2", "o")):
            there = [row for row in order if embedded_values(row, column, view)]
            pairs = [mean_and_std(embedded_values(row, column, view)) for row in there]
            ax.errorbar(
                [100 * (m or 0) for m, _ in pairs],
                [order.index(row) for row in there],
                xerr=[100 * (std or 0) for _, std in pairs],
                fmt=mark,
                color=colour,
                markersize=4,
                linewidth=1,
                label=view,
            )
        ax.set_yticks(range(len(order)), [*map(marked, order)], fontsize=8)
        low, high = (100 * mean(embedded_values(row, column, "personal")) for row in (order[0], order[-1]))
        ax.set(title=column, xlabel="test accuracy in %", xlim=(low - 4, high + 2))
        ax.grid(axis="x", alpha=0.4)
        ax.legend(loc="upper left", fontsize=8)
    figure.savefig(path, dpi=110, metadata={"Software": None})


ATTACKS = ("LabelFlip", "SignFlip", "ALIE", "IPM")
RULES = {"Mean": "#999999", "Median": "#E69F00", "TrimmedMean": "#009E73", "MultiKrum": "#0072B2"}
"""Rule -> its colour."""
ROBUST_VIEWS = {
    "FedAvg": ("FedAvg", "global"),
    "Ditto, personal": ("Ditto", "personal"),
    "FedPer, personal": ("FedPer", "personal"),
    "Fed-CO2, personal": ("Fed-CO2", "personal"),
    "Fed-CO2, offline": ("Fed-CO2", "offline"),
    "Fed-CO2, online": ("Fed-CO2", "online"),
}
"""Row of the page -> method and view. What Ditto's server has learned is what FedAvg's has."""


@cache
def robust_runs() -> dict[str, dict[str, dict[str, Any]]]:
    """Return row -> column -> seed -> view -> accuracy of honest clients after the last round."""
    found: dict[str, dict[str, dict[str, Any]]] = json.loads(ROBUST.read_text())["runs"]
    return found


def robust_values(method: str, rule: str, attack: str, view: str) -> list[float]:
    """Return the accuracies of honest clients after the last round, one per seed that has not diverged."""
    return [each[view] for each in robust_runs()[f"{method}, {rule}"][attack].values()]


def robust_mean() -> Rows:
    """Accuracies of honest clients under attacks, where the server takes the mean."""
    found = [["with Mean", "no attack", *ATTACKS]]
    for row, (method, view) in ROBUST_VIEWS.items():
        own = [robust_values(method, "Mean", attack, view) for attack in ("none", *ATTACKS)]
        diverged = (f", {3 - len(each)} diverged" if len(each) < 3 else "" for each in own)
        found.append([row, *(f"{_over_seeds(each)}{more}" for each, more in zip(own, diverged))])
    return found


def best_rule(method: str, attack: str, view: str) -> tuple[float, str]:
    """Return the highest accuracy under an attack of rules other than the mean, and whose it is."""
    return max((mean(robust_values(method, rule, attack, view)), rule) for rule in list(RULES)[1:])


def robust_rules() -> Rows:
    """The same with the rule that is best."""
    found = [["with the best other rule, by test", "no attack", *ATTACKS]]
    for row, (method, view) in ROBUST_VIEWS.items():
        if view == "offline":  # no rule sees it
            continue
        best = (best_rule(method, attack, view) for attack in ("none", *ATTACKS))
        found.append([row, *(f"{cell(accuracy)} {rule}" for accuracy, rule in best)])
    return found


def draw_robust(path: Path) -> None:
    """Draw accuracies of personal models as bars, and of what servers have learned as lines across them."""
    figure = Figure((7.2, 5.4), layout="constrained")
    columns = ("none", *ATTACKS)
    views = {"FedAvg": "", "Ditto": "global", "FedPer": "", "Fed-CO2": "online"}
    for ax, (method, common) in zip(figure.subplots(2, 2).flat, views.items()):
        for k, (rule, colour) in enumerate(RULES.items()):
            places = [c + 0.2 * (k - 1.5) for c in range(len(columns))]
            pairs = [mean_and_std(robust_values(method, rule, c, "personal")) for c in columns]
            own, spread = ([100 * (each[n] or 0) for each in pairs] for n in (0, 1))
            error = {"elinewidth": 0.8}
            ax.bar(places, own, 0.2, yerr=spread, color=colour, error_kw=error, label=rule)
            if common:
                height = [100 * mean(robust_values(method, rule, c, common)) for c in columns]
                ax.plot(places, height, "k_", markersize=8, markeredgewidth=1.5)
        ax.set_xticks(range(len(columns)), columns, fontsize=8)
        ax.set(title=method, ylabel="test accuracy in %", ylim=(0, 90))
        ax.grid(axis="y", alpha=0.4)
    figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(path, dpi=110, metadata={"Software": None})


# ---- what papers claim


@dataclass(frozen=True)
class Claims:
    """That a paper's method is ahead of others: the rows of a table of it, of which rayfl has runs.

    Attributes:
        title: the table.
        page: with the details, in docs/results/.
        own: table and row of the paper's method.
        rivals: column -> row -> table.
        tested: column -> data and rounds.
        printed: the paper's table, its row of the method, and what its columns have behind the name.
    """

    title: str
    page: str
    own: tuple[str, str]
    rivals: Mapping[str, Mapping[str, str]]
    tested: Mapping[str, str]
    printed: tuple[str, str, str] | None = None


def _rows(table: str, *rows: str) -> dict[str, str]:
    return dict.fromkeys(rows, table)


T3_RIVALS = ("FedPer", "FedBN", "SingleSet", "FedAvg")
CLAIMS = [
    Claims(
        "Fed-CO2, Table 3",
        "fedco2_t3",
        ("fedco2_t3", "Fed-CO2"),
        {
            PATHOLOGICAL: _rows("fedco2_t3", *T3_RIVALS),
            DIRICHLET: _rows("fedco2_t3", *T3_RIVALS, "FedRoD", "FedProx", "MOON"),
        },
        {
            PATHOLOGICAL: "CIFAR-10, two classes a client, 300 of 1,500 rounds",
            DIRICHLET: "CIFAR-10, Dirichlet, 300 of 1,500 rounds",
        },
    ),
    Claims(
        "FDSE, Table 1",
        "fdse_t1",
        ("fdse_t1", "FDSE"),
        {OFFICE: _rows("fdse_t1", *(row for row in FDSE_T1 if row != "FDSE"))},
        {OFFICE: "Office-Caltech10, 64 pixels, 120 of 500 rounds"},
        ("fdse_t1", "FDSE", " ALL"),
    ),
    Claims(
        "FDSE, Table 3",
        "fdse_t1",
        ("fdse_t1", "FDSE"),
        {OFFICE: _rows("fdse_t3", *FDSE_T3)},
        {OFFICE: "Office-Caltech10, 64 pixels, 120 of 500 rounds"},
        ("fdse_t3", "A B C", " ALL"),
    ),
    Claims(
        "FediOS, Table 1",
        "fedios_t1",
        ("fedios_t1", "FediOS"),
        {
            FEDIOS: _rows("fedios_t1", "Ditto", "FedRoD", "Local", "FedAvg", "MOON"),
            CIFAR100: _rows("fedios_t1", "Local", "Ditto", "FedAvg"),
        },
        {
            FEDIOS: "Office-Caltech10, 32 pixels, 48 of 120 rounds",
            CIFAR100: "part of CIFAR-100, 15 of 100 rounds",
        },
    ),
    Claims(
        "FediOS, Table 7",
        "fedios_t1",
        ("fedios_t1", "FediOS"),
        {FEDIOS: _rows("fedios_t7", "w/o personal extractors", "w/o orthogonal projections")},
        {FEDIOS: "Office-Caltech10, 32 pixels, 48 of 120 rounds"},
        ("fedios_t7", "FediOS", ""),
    ),
    Claims(
        "DC-PFL, Table 1",
        "dcpfl_t1",
        ("dcpfl_fifth", "DC-PFL"),
        {DCPFL: _rows("dcpfl_fifth", *(row for row in DCPFL_ROWS if row != "DC-PFL"))},
        {DCPFL: "a fifth of CIFAR-10, 30 of 100 rounds"},
        ("dcpfl_t1", "DC-PFL", ""),
    ),
    Claims(
        "Flower, niid_bench",
        "outside_niid_bench",
        ("outside_niid_bench", "SCAFFOLD"),
        {NIID: _rows("outside_niid_bench", "FedAvg")},
        {NIID: "CIFAR-10, Dirichlet, all 50 rounds"},
    ),
]


@dataclass(frozen=True)
class Told:
    """A claim, and what rayfl's runs say of it.

    Attributes:
        claims: the table.
        column: of it.
        row: behind which the paper's method is claimed not to be.
        seeds: that both have.
        differences: by which the paper's method is ahead with each seed, in points.
        printed: by which it is ahead in the paper.
        p: of the paired t-test, after Holm's correction for all tests of the table; None for too few seeds.
    """

    claims: Claims
    column: str
    row: str
    seeds: list[int]
    differences: list[float]
    printed: float
    p: float | None = None

    @property
    def verdict(self) -> str:
        """Whether the claim holds in these runs."""
        if self.p is None or self.p >= LEVEL:
            return "cannot be told"
        return "holds" if mean(self.differences) > 0 else "does not hold"


def told(claims: Claims, choice: str = "headline") -> list[Told]:
    """Test the claims of a table under a choice of rounds, by default what its protocol reports."""
    found, p = [], []
    name, own, suffix = claims.printed or (*claims.own, "")
    for column, rows in claims.rivals.items():
        for row, table in rows.items():
            seeds = sorted(seeds_of(*claims.own, column) & seeds_of(table, row, column))
            by = ahead(claims.own, (table, row), column, seeds, choice)
            beside = [float(printed(name, each, column + suffix)[0].split()[0]) for each in (own, row)]
            found.append(Told(claims, column, row, seeds, by, beside[0] - beside[1]))
            if len(seeds) >= FEWEST:
                p.append(p_of_pairs([each / 100 for each in by], [0.0] * len(by)))
    corrected = iter(holm(p))
    return [replace(each, p=next(corrected)) if len(each.seeds) >= FEWEST else each for each in found]


@cache
def all_told(choice: str = "headline") -> list[Told]:
    """Return all claims."""
    return [each for claims in CLAIMS for each in told(claims, choice)]


def claims_table() -> Rows:
    """The claims of each table and data setting, by what the runs say of them."""
    found = all_told()
    heads = ["holds", "does not hold", "cannot be told"]
    heads = [head for head in heads if any(each.p is not None and each.verdict == head for each in found)]
    rows = [["the paper puts", "tested on", *(f"{head}, p" for head in heads), "one seed, no test"]]
    for claims in CLAIMS:
        own = (claims.printed or claims.own)[1]
        for column, rivals in claims.rivals.items():
            cells: dict[str, list[str]] = {head: [] for head in (*heads, "")}
            for each in found:
                if (each.claims, each.column) == (claims, column):
                    name = run(rivals[each.row], each.row, column).name
                    if each.p is None:
                        cells[""].append(name)
                    else:
                        shown = f"{each.p:.3f}" if each.p >= 0.0005 else "< 0.0005"
                        cells[each.verdict].append(f"{name} {shown}")
            title = f"[{claims.title}](results/{claims.page}.md): {own} before"
            rows.append([title, claims.tested[column], *map(", ".join, cells.values())])
    return rows


# ---- sentences that count


def claims_counted() -> str:
    """How many claims hold, and which the last five evaluations tell otherwise."""
    found, later = all_told(), all_told("last_k")
    verdicts = [each.verdict for each in found]
    few = sum(each.p is None for each in found)
    pairs = [(each, other) for each, other in zip(found, later) if each.verdict != other.verdict]
    others = [
        f"{a.claims.own[1]} before {a.row} ({a.claims.tested[a.column]}): {b.verdict}" for a, b in pairs
    ]
    return (
        f"Of {len(verdicts)} claims, {verdicts.count('holds')} hold in these runs, "
        f"{verdicts.count('does not hold')} do not, and {verdicts.count('cannot be told')} cannot be told, "
        f"{few} of them because they have one seed. By the mean of the last five evaluations, other verdicts "
        f"are: {'; '.join(others) or 'none'}."
    )


def embedded_tested() -> str:
    """Which differences on embedded digits are more than chance."""
    places: dict[str, dict[str, dict[str, float]]] = {"domains": {}, "labels": {}}
    for row, own in embedded_runs().items():
        for column, seeds in own.items():
            places[column][row] = {seed: views["personal"][-1] for seed, views in seeds.items()}
    found = differences(places, dict.fromkeys(places, REFERENCE))
    more = [f"{d.row} ({d.place}, {d.difference * 100:+.1f})" for d in found if d.significant]
    return (
        f"Of the {len(found)} differences from {REFERENCE} of the same column, {len(more)} are more than "
        f"chance (Holm's correction): {', '.join(more)}."
    )


def tuned_counted() -> str:
    """Say which rates the searches have chosen, and how many best points lie at an edge."""
    choices = [choice["chosen"] for choice in json.loads(TUNED.read_text()).values()]
    rates = [next((each for each in chosen if each.startswith("training.lr")), "") for chosen in choices]
    rates = [each.rstrip("!").partition("=")[2] or "0.1" for each in rates]
    counts = ", ".join(f"{rates.count(rate)} {rate}" for rate in sorted(set(rates), key=float))
    edges = sum(any(each.endswith("!") for each in chosen) for chosen in choices)
    return (
        f"Of the learning rates 0.01, 0.03, 0.1, 0.3 and 1, the {len(choices)} rows choose: {counts}. In "
        f"{edges} of them a value lies at the edge of what was tried (!): there may be a better one beyond."
    )


def tuned_compared() -> str:
    """Say what tuning changes in the order of the rows, and which tuned rows are ahead of FedAvg, tuned."""
    places = tuned_places()
    means = {
        column: {row: mean(each.values()) for row, each in rows.items()} for column, rows in places.items()
    }
    gains = [100 * (means["tuned"][row] - before) for row, before in means["as it is"].items()]
    order = {column: sorted(rows, key=rows.__getitem__, reverse=True) for column, rows in means.items()}
    tau = kendalltau(*([rows.index(row) for row in order["tuned"]] for rows in order.values())).statistic
    found = differences(places, dict.fromkeys(places, REFERENCE))
    sure = [sum(d.place == column and d.significant for d in found) for column in places]
    better, worse = (sum(sign * gain > 0.05 for gain in gains) for sign in (1, -1))
    best = [", ".join(rows[:5]) for rows in order.values()]
    moved = [rows.index(REFERENCE) + 1 for rows in order.values()]
    return (
        f"Tuned, {better} of {len(gains)} rows are better (at most by {max(gains):.1f} points) and {worse} "
        f"worse (at most by {-min(gains):.1f}): a choice on one seed need not be right for others. The best "
        f"five are {best[0]} as they are, and {best[1]} tuned; Kendall's tau of the two orders is {tau:.2f}. "
        f"{REFERENCE} moves from place {moved[0]} to {moved[1]}. More than chance (after Holm) are the "
        f"differences from {REFERENCE} of {sure[0]} rows as they are and of {sure[1]} tuned ones."
    )


def tables_counted() -> str:
    """Which tables of the four papers have results."""
    papers = {"fedco2": "Fed-CO2", "fedios": "FediOS", "dcpfl": "DC-PFL", "fdse": "FDSE"}
    files = [path for paper in papers for path in sorted((EXAMPLES / paper).glob("*.yaml"))]
    names = {f"{path.parent.name}/{path.stem}": Table.load(path).name for path in files}
    done = [name for name, table in names.items() if (FOLDER / table).is_dir()]
    listed = ", ".join(f"`{name}`" for name in done)
    return (
        f"Of the {len(names)} table files of the four papers, {len(done)} have [results](results.md), each "
        f"with a part of its rows and columns: {listed}."
    )


def speed() -> Rows:
    """Return what each workload takes beside peers, and the memory."""
    shown = [(name, of_raw, SPEEDS["first_round_after_s"][name]) for name, of_raw in SPEEDS["of_raw"].items()]
    rows = [["", *shown[0][1], "rayfl's first round after, s", "rayfl's peak PSS, MB"]]
    for name, of_raw, first in shown:
        ratios = (f"{middle:.2f} ({low:.2f}-{high:.2f})" for middle, low, high in of_raw.values())
        middle, low, high = first
        rows.append([name, *ratios, f"{middle} ({low}-{high})", f"{SPEEDS['peak_pss_mb'][name]:,}"])
    return rows


def speed_counted() -> str:
    """Between which ratios all workloads are."""
    each = list(SPEEDS["of_raw"].values())
    medians = {name: [workload[name][0] for workload in each] for name in each[0]}
    spans = [f"{min(own):.1f} to {max(own):.1f} times with {name}" for name, own in medians.items()]
    return (
        f"A round on two CPU cores takes, compared with a plain PyTorch loop, {', '.join(spans)} (medians of "
        f"{len(each)} workloads, measured on {SPEEDS['date']})."
    )


@cache
def published() -> dict[str, dict[str, Any]]:
    """Return everything in docs/results/ that runs have made, by its name in ``COMMITS``."""
    paths = sorted(FOLDER.glob("*/*.json"))
    files = {f"{path.parent.name}/{path.name}": json.loads(path.read_text()) for path in paths}
    rows = json.loads(EMBEDDED.read_text())
    files[ROBUST.name] = json.loads(ROBUST.read_text())
    return files | {f"{EMBEDDED.name} {row}": content for row, content in rows.items()}


def footnote() -> str:
    """What † means."""
    return "† Not verified against the full text of the method's paper; its page says what it follows."


def sentences() -> dict[str, str]:
    """Return the sentences that are written, by their names."""
    return {
        "claims counted": claims_counted(),
        "tables counted": tables_counted(),
        "embedded tested": embedded_tested(),
        "footnote": footnote(),
        "speed counted": speed_counted(),
        "embedded tuned counted": tuned_counted(),
        "embedded tuned compared": tuned_compared(),
        "on validation data": "‡ Trained on validation data, too.",
    }


@cache
def tables() -> dict[str, Rows]:
    """Return the rows of every table of the pages, the first with the headings."""
    return {
        "claims": claims_table(),
        "fedco2_t3 pathological": fedco2_t3(PATHOLOGICAL),
        "fedco2_t3 pathological seeds": fedco2_t3_seeds(PATHOLOGICAL),
        "fedco2_t3 dirichlet": fedco2_t3(DIRICHLET),
        "fedco2_t3 dirichlet seeds": fedco2_t3_seeds(DIRICHLET),
        "fedco2_t3 long": fedco2_t3_long(),
        "fedco2_t3 bfloat16": fedco2_t3_bfloat16(),
        "fdse_t1 office": fdse(),
        "fdse_t1 seeds": fdse_seeds("fdse_t1", FDSE_T1_SEEDS),
        "fdse_local": fdse_local(),
        "fdse_t3 seeds": fdse_seeds("fdse_t3", FDSE_T3),
        "fedios office": fedios(FEDIOS),
        "fedios seeds": fedios_seeds(),
        "fedios 64": fedios_64(),
        "fedios cifar100": fedios(CIFAR100),
        "dcpfl_t1": dcpfl(),
        "dcpfl fifth": dcpfl_fifth(),
        "niid_bench": niid_bench(),
        "school_marks": school(),
        "shakespeare_characters": shakespeare(),
        "text_adapters": text_adapters(),
        "published_feddbe": feddbe(),
        "published_feddbe by rounds": feddbe_by_rounds(),
        "pfllib curves": pfllib_curves(),
        "embedded_methods": embedded(),
        "embedded_tuned": embedded_tuned(),
        "robust mean": robust_mean(),
        "robust rules": robust_rules(),
        "speed": speed(),
    }


def markdown(rows: Rows) -> str:
    """Return a table as Markdown."""
    lines = ["|" + "|".join(f" {text} " if text else " " for text in row) + "|" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


MARKER = re.compile(r"<!-- numbers: ([^>]+) -->\n\n((?:[^\n]+\n)*)")


def written(page: str) -> dict[str, str]:
    """Return what a page has below markers, by their names."""
    return {name: text.rstrip("\n") for name, text in MARKER.findall(page)}


@cache
def made() -> dict[str, str]:
    """Return all that is written into the pages, by the names of its markers."""
    whole = sentences() | {name: markdown(rows) for name, rows in tables().items()}
    return {name: with_marks(text) for name, text in whole.items()}


def renewed(page: str) -> str:
    """Return a page with all that is written made anew."""
    whole = made()
    return MARKER.sub(lambda m: f"<!-- numbers: {m[1]} -->\n\n{whole[m[1]]}\n", page)


PAGES = [PAGE, *(FOLDER / f"{name}.md" for name in DETAILS)]
"""All pages with results."""

if __name__ == "__main__":
    for path in (*PAGES, TABLES):
        path.write_text(with_marks(renewed(path.read_text())))
    for path in SPEED:
        path.write_text(renewed(path.read_text()))
    draw_embedded(ROOT / "docs" / "images" / "results_embedded_methods.png")
    draw_robust(ROOT / "docs" / "images" / "results_robust_attacks.png")
    draw_pfllib(ROOT / "docs" / "images" / "results_published_feddbe.png")
