"""The tables of docs/results.md, made from the summaries in docs/results/ and the papers' printed numbers.

``python -m docs.results_page`` writes them anew into the page, each below its marker,
``<!-- numbers: NAME -->``, and draws the picture of all methods.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from rayfl.config.table_file import Table, slug
from rayfl.evaluation.metrics import AVERAGES
from rayfl.papers.printed import printed_table
from rayfl.report.text import mean_and_std, number

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results.md"
FOLDER = ROOT / "docs" / "results"
EXAMPLES = ROOT / "examples"
SEEDS = {"fdse": 2}  # of the other papers' runs: 0

OFFICE, PACS = "Office-Caltech10", "PACS"
FEDIOS, CIFAR100 = "Office-Caltech-10 N=4", "CIFAR-100 N=5"
PATHOLOGICAL, DIRICHLET = "CIFAR10 Pathological", "CIFAR10 Dirichlet"
DCPFL = "CIFAR10 K=10"
NIID = "CIFAR-10 Dirichlet"


class Run:
    """The published summary of the run of one cell of a table."""

    def __init__(self, table: str, row: str, column: str, seed: int | None = None) -> None:
        self.table, self.row, self.column = table, row, column
        seed = SEEDS.get(table.partition("_")[0], 0) if seed is None else seed
        self.path = FOLDER / table / f"{slug(row)}--{slug(column)}--seed-{seed}.json"
        self.summary: dict[str, Any] = json.loads(self.path.read_text())

    @property
    def completed(self) -> int:
        """Rounds of the run."""
        return int(self.summary["completed"])

    def headline(self) -> str:
        """What the declared protocol counts."""
        headline = self.summary["headline"]
        return cell(headline["accuracy"], headline["std"])

    def domain(self, name: str) -> str:
        """The headline of one domain."""
        return cell(self.summary["headline"]["domains"][name]["accuracy"])

    def average(self, how: str) -> str:
        """The rounds of the headline under another average over clients."""
        return cell(self.summary["headline"]["averages"][how]["accuracy"])

    def value(self, choice: str, view: str = "", point: str = "", average: str = "") -> float:
        """An accuracy under a choice of rounds; view, point and average are by default the headline's."""
        return float(self.chosen(choice, view, point)[self._average(average)])

    def shown(self, choice: str, view: str = "", point: str = "", average: str = "") -> str:
        """The same as the page shows it, with the deviation over the evaluations where there are several."""
        chosen = self.chosen(choice, view, point)
        several = len(chosen["rounds"]) > 1
        std = chosen["over_rounds"][self._average(average)] if several else None
        return cell(self.value(choice, view, point, average), std)

    def evaluations(self, choice: str) -> int:
        """How many evaluations a choice averages."""
        return len(self.chosen(choice)["rounds"])

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


# ---- the tables


Rows = list[list[str]]


def _with_three(table: str, column: str, rows: list[str], paper: str = "") -> Rows:
    """Rows of headline, last round and mean of the last five evaluations, and of what is printed."""
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
    head = ["", "headline", "last round", "mean of the last five evaluations", "printed, after 1,500 rounds"]
    found = _with_three("fedco2_t3", column, FEDCO2_T3[column], "fedco2_t3")
    own = run("fedco2_t3", "Fed-CO2", column)
    for view in ("online", "offline"):
        shown = [own.shown(choice, view) for choice in ("headline", "last", "last_k")]
        found.append([f"Fed-CO2, {view} model alone", *shown, ""])
    return [head, *found]


LONG = "fedco2_t3_1500"
"""Two rows of Table 3 with all rounds of the paper."""
MILESTONES = (300, 600, 900, 1200, 1500)


def fedco2_t3_long() -> Rows:
    """Table 3 of Fed-CO2, two rows with all rounds."""
    rounds = [f"after {count:,}" for count in MILESTONES]
    found = [["", "headline", "mean of the last five evaluations", *rounds, "printed"]]
    views = [(row, "") for row in ("FedPer", "Fed-CO2")] + [("Fed-CO2", "online"), ("Fed-CO2", "offline")]
    for row, view in views:
        own = run(LONG, row, DIRICHLET)
        shown = [own.shown(choice, view) for choice in ("headline", "last_k")]
        name, beside = (
            (row, printed("fedco2_t3", row, DIRICHLET)) if not view else (f"{row}, {view} model alone", [""])
        )
        found.append([name, *shown, *(cell(own.after(count, view)) for count in MILESTONES), *beside])
    return found


def fedco2_t7() -> Rows:
    """Table 7 of Fed-CO2."""
    domains = ["MNIST", "USPS", "MNIST-M"]
    head = ["", "headline", *domains, *(f"printed {name}" for name in domains)]
    found = []
    for row in ("FedBN", "Fed-CO2"):
        own = run("fedco2_t7", row, "Digits-Five")
        name = f"{row}, {own.completed} rounds"
        found.append([name, own.headline(), *map(own.domain, domains), *printed("fedco2_t7", row, *domains)])
    for view in ("online", "offline"):
        own = run("fedco2_t7", "Fed-CO2", "Digits-Five")
        shown = [cell(own.chosen("headline", view)["domains"][name]["mean"]) for name in domains]
        found.append([f"Fed-CO2, {view} model alone", own.shown("headline", view), *shown, "", "", ""])
    return [head, *found]


def fedco2_t1() -> Rows:
    """Table 1 of Fed-CO2."""
    domains = ["amazon", "caltech", "dslr", "webcam"]
    head = ["", "headline", *domains, "last round", "mean of the last five evaluations", "printed"]
    found = []
    for row in ("SingleSet", "FedAvg", "FedBN", "Fed-CO2"):
        own = run("fedco2_t1", row, OFFICE)
        each = [own.headline(), *map(own.domain, domains), own.shown("last"), own.shown("last_k")]
        found.append([row, *each, *printed("fedco2_t1", row, "Avg")])
    return [head, *found]


def fedco2_transfers() -> Rows:
    """The rows of Fed-CO2's Table 5 on Office-Caltech10."""
    head = ["", "headline", "last round", "mean of the last five evaluations"]
    rows = ["no transfer", "no intra-client transfer", "no inter-client transfer"]
    return [head, *_with_three("fedco2_transfers", OFFICE, rows)]


FDSE_T1 = {
    OFFICE: ["Local", "FedAvg", "Ditto", "PartialFed", "FedBN", "FedFA", "FedHEAL", "FDSE"],
    PACS: ["Local", "FedAvg", "Ditto", "FedBN", "FDSE"],
}


FDSE_T3 = ["none", "B", "C", "A B"]


def fdse(column: str, last: str = "mean of the last five evaluations") -> Rows:
    """Table 1 of FDSE, and on Office-Caltech10 Table 3."""
    head = ["", "headline (ALL)", "AVG", "ALL, last round", f"ALL, {last}", "printed ALL", "printed AVG"]
    rows = [("fdse_t1", row, "fdse_t1") for row in (*FDSE_T1[column], "FDSE (code)")]
    if column == OFFICE:
        rows += [("fdse_t3", row, "fdse_t3") for row in FDSE_T3]
    found = []
    for table, row, paper in rows:
        own = run(table, row, column)
        known = printed_table(paper)
        assert known is not None
        beside = printed(paper, row, f"{column} ALL", f"{column} AVG") if row in known.rows else ["", ""]
        name = f"{row} (Table 3)" if table == "fdse_t3" else row
        shown = [own.headline(), own.average("mean_clients"), own.shown("last"), own.shown("last_k")]
        found.append([name, *shown, *beside])
    return [head, *found]


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
        each = [run(table, "Local", OFFICE, seed).headline() for seed in FDSE_SEEDS[:count]]
        over = over_seeds(table, "Local", OFFICE, FDSE_SEEDS[:count]) if count > 1 else each[0]
        found.append([name, over, *each, *[""] * (3 - count)])
    return [["", "headline (ALL)", *(f"seed {seed}" for seed in FDSE_SEEDS)], *found]


FDSE_T2 = {
    "FedAvg": ("FedAvg", "unseen"),
    "FedBN, not adapted": ("FedBN", "unseen"),
    "FedBN": ("FedBN", "unseen_adapted"),
    "FDSE, not adapted": ("FDSE", "unseen"),
    "FDSE": ("FDSE", "unseen_adapted"),
    "FDSE, step 0": ("FDSE", "unseen_control"),
}


def fdse_t2_values(row: str, choice: str) -> list[float]:
    """Return the accuracies of Table 2 of FDSE, for the domains C, A, D and W."""
    method, point = FDSE_T2[row]
    return [run("fdse_t2", method, f"Office {d}").value(choice, point=point) for d in "CADW"]


def mean(values: list[float]) -> float:
    """Return the mean."""
    return sum(values) / len(values)


def fdse_t2() -> Rows:
    """Table 2 of FDSE, on Office-Caltech10."""
    head = [
        "",
        "headline",
        "caltech",
        "amazon",
        "dslr",
        "webcam",
        "last round",
        "mean of the last five evaluations",
    ]
    known = printed_table("fdse_t2")
    assert known is not None
    found = []
    for row in FDSE_T2:
        each = {choice: fdse_t2_values(row, choice) for choice in ("best_val", "last", "last_k")}
        beside = printed("fdse_t2", row, "Office AVG") if row in known.rows else [""]
        shown = [cell(mean(each["best_val"])), *map(cell, each["best_val"])]
        found.append([row, *shown, cell(mean(each["last"])), cell(mean(each["last_k"])), *beside])
    return [[*head, "printed"], *found]


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


OVER_SEEDS = {"headline, mean over seeds": "headline"}
BOTH_OVER_SEEDS = {**OVER_SEEDS, "last five evaluations, mean over seeds": "last_k"}


def three_seeds(
    rows: Mapping[str, str],
    column: str,
    choices: Mapping[str, str] = OVER_SEEDS,
    seeds: Sequence[int] = (0, 1, 2),
    in_paper: str = "",
) -> Rows:
    """Means over three seeds, and what each of them has.

    Args:
        rows: row -> the table that it is in.
        column: of these tables.
        choices: heading -> choice of rounds; each seed is shown by the last one.
        seeds: of the runs.
        in_paper: the column of the printed numbers, where it has another name.
    """
    *_, last = choices.values()
    which = "" if last == "headline" else ", last five"
    found = []
    for row, table in rows.items():
        over = [over_seeds(table, row, column, seeds, choice) for choice in choices.values()]
        each = map(cell, each_seed(table, row, column, seeds, last))
        known = printed_table(table)
        beside = printed(table, row, in_paper or column) if known and row in known.rows else [""]
        found.append([row, *over, *each, *beside])
    return [["", *choices, *(f"seed {seed}{which}" for seed in seeds), "printed"], *found]


def fdse_seeds(table: str, rows: Sequence[str]) -> Rows:
    """Rows of FDSE's tables on Office-Caltech10 over three seeds."""
    in_paper = f"{OFFICE} ALL"
    return three_seeds(dict.fromkeys(rows, table), OFFICE, BOTH_OVER_SEEDS, FDSE_SEEDS, in_paper)


def fedco2_t3_seeds(column: str) -> Rows:
    """Table 3 of Fed-CO2 over three seeds."""
    return three_seeds(dict.fromkeys(T3_SEEDS, "fedco2_t3"), column, BOTH_OVER_SEEDS)


ONLY_OFFICE = {"MOON", "FedRoD", "LG-FedAvg", "FedGH", "FedKD"}


def fedios(column: str) -> Rows:
    """Tables 1 and 7 of FediOS."""
    head = ["", "headline", "last round", "the common model alone, after aggregation", "printed"]
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
    return [["", f"headline, {sides[0]}", *sides[1:], "printed"], *found]


DCPFL_ROWS = ["Local-T", "FedAvg", "FML", "FedGH", "DC-PFL", "DC-PFL w/o AL", "DC-PFL w/o GC"]


def dcpfl() -> Rows:
    """Table 1 of DC-PFL."""
    head = ["", "headline", "best by validation", "mean of the last five evaluations", "printed, all data"]
    found = []
    for row in DCPFL_ROWS:
        own = run("dcpfl_t1", row, DCPFL)
        each = [own.headline(), own.shown("best_val"), own.shown("last_k")]
        found.append([row, *each, *printed("dcpfl_t1", row, DCPFL)])
    return [head, *found]


def dcpfl_fifth() -> Rows:
    """Table 1 of DC-PFL with a fifth of the data."""
    found = []
    for row in DCPFL_ROWS:
        over = [over_seeds("dcpfl_fifth", row, DCPFL, range(3), c) for c in ("headline", "last_k")]
        each = [cell(value) for value in each_seed("dcpfl_fifth", row, DCPFL)]
        found.append([row, *over, *each, *printed("dcpfl_t1", row, DCPFL)])
    seeds = [f"seed {seed}" for seed in range(3)]
    return [["", "headline", "mean of the last five evaluations", *seeds, "printed, all data"], *found]


NIID_ROWS = ["FedAvg", "SCAFFOLD"]


def niid_best(row: str) -> float:
    """Return the accuracy of the round that is best on the test images."""
    own = run("outside_niid_bench", row, NIID)
    (view,) = (v for v in own.summary["views"] if (v["point"], v["view"]) == ("after_aggregation", "global"))
    return float(max(view["each"]["test"]["pooled"]))


def niid_bench() -> Rows:
    """Flower's niid_bench."""
    head = ["", "headline", "mean of the last five evaluations", "best round by test", "printed, best round"]
    found = []
    for row in NIID_ROWS:
        own = run("outside_niid_bench", row, NIID)
        shown = [own.headline(), own.shown("last_k"), cell(niid_best(row))]
        found.append([row, *shown, *printed("outside_niid_bench", row, NIID)])
    return [head, *found]


EMBEDDED = FOLDER / "embedded_methods.json"
"""Row -> column -> seed -> view -> mean over clients after each round, of examples/embedded/methods.yaml."""


def embedded_values(row: str, column: str, view: str) -> list[float]:
    """Return the accuracies after the last round, one per seed; none where the method has no such view."""
    seeds = json.loads(EMBEDDED.read_text())[row][column]
    return [each[view][-1] for each in seeds.values() if view in each]


def embedded_seeds() -> dict[tuple[str, str], list[str]]:
    """Return the seeds that each cell has, by row and column."""
    known = json.loads(EMBEDDED.read_text())
    return {(row, column): list(seeds) for row, own in known.items() for column, seeds in own.items()}


def embedded() -> Rows:
    """All methods on embedded digits."""
    places = [(column, view) for column in ("domains", "labels") for view in ("personal", "global")]
    found = [["", *(f"{column}, {view}" for column, view in places)]]
    for row in json.loads(EMBEDDED.read_text()):
        values = [embedded_values(row, *place) for place in places]
        found.append([row, *map(_over_seeds, values)])
    return found


def _over_seeds(values: list[float]) -> str:
    mean, std = mean_and_std(values)
    return "" if mean is None else cell(mean, std)


def draw_embedded(path: Path) -> None:
    """Draw personal and global accuracies of all methods, the best personal ones on top."""
    figure = Figure((7.2, 8.0), layout="constrained")
    for ax, column in zip(figure.subplots(1, 2), ("domains", "labels")):
        rows = json.loads(EMBEDDED.read_text())
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
        ax.set_yticks(range(len(order)), order, fontsize=8)
        low, high = (100 * mean(embedded_values(row, column, "personal")) for row in (order[0], order[-1]))
        ax.set(title=column, xlabel="test accuracy in %", xlim=(low - 4, high + 2))
        ax.grid(axis="x", alpha=0.4)
        ax.legend(loc="upper left", fontsize=8)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def tables() -> dict[str, Rows]:
    """Return the rows of every table of the page, the first with the headings."""
    return {
        "embedded_methods": embedded(),
        "fedco2_t3 pathological": fedco2_t3(PATHOLOGICAL),
        "fedco2_t3 pathological seeds": fedco2_t3_seeds(PATHOLOGICAL),
        "fedco2_t3 dirichlet": fedco2_t3(DIRICHLET),
        "fedco2_t3 dirichlet seeds": fedco2_t3_seeds(DIRICHLET),
        "fedco2_t3 long": fedco2_t3_long(),
        "fedco2_t7": fedco2_t7(),
        "fedco2_t1": fedco2_t1(),
        "fedco2_transfers": fedco2_transfers(),
        "fdse_t1 office": fdse(OFFICE),
        "fdse_t1 seeds": fdse_seeds("fdse_t1", FDSE_T1_SEEDS),
        "fdse_local": fdse_local(),
        "fdse_t3 seeds": fdse_seeds("fdse_t3", FDSE_T3),
        "fdse_t1 pacs": fdse(PACS, "mean of all three evaluations"),
        "fdse_t2": fdse_t2(),
        "fedios office": fedios(FEDIOS),
        "fedios seeds": three_seeds({row: FEDIOS_ROWS[row] for row in FEDIOS_SEEDS}, FEDIOS),
        "fedios 64": fedios_64(),
        "fedios cifar100": fedios(CIFAR100),
        "dcpfl_t1": dcpfl(),
        "dcpfl fifth": dcpfl_fifth(),
        "niid_bench": niid_bench(),
    }


def markdown(rows: Rows) -> str:
    """Return a table as Markdown."""
    lines = ["|" + "|".join(f" {text} " if text else " " for text in row) + "|" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


MARKER = re.compile(r"<!-- numbers: ([^>]+) -->\n\n((?:\|.*\n)*)")


def shown_tables(page: str) -> dict[str, str]:
    """Return the tables that a page has below markers, by their names."""
    return {name: text.rstrip("\n") for name, text in MARKER.findall(page)}


def renewed(page: str) -> str:
    """Return the page with all tables made anew."""
    made = tables()
    return MARKER.sub(lambda m: f"<!-- numbers: {m[1]} -->\n\n{markdown(made[m[1]])}\n", page)


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
    draw_embedded(ROOT / "docs" / "images" / "results_embedded_methods.png")
