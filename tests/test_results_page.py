"""The pages of results say what the summaries in docs/results/ say, in their tables and their sentences."""

import csv
import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby

import pytest

from docs import results_page as pages
from docs.results_page import DCPFL, DIRICHLET, FEDIOS, OFFICE, PATHOLOGICAL, mean, printed, run, setting
from rayfl.jobs.table_file import Table
from rayfl.methods import METHODS
from rayfl.report.printed import known_tables
from rayfl.report.significance import LEVEL

TEXTS = {path.stem: path.read_text() for path in pages.PAGES}


def paper(table: str, row: str, column: str) -> float:
    return float(printed(table, row, column)[0].split()[0])


def seeds_of(table: str, row: str, column: str, choice: str = "headline", seeds=range(3)) -> list[float]:
    return [100 * each for each in pages.each_seed(table, row, column, seeds, choice)]


# ---- the numbers in the sentences of each page, in their order


def fedco2_t3() -> list[float | str]:
    long, per = (run(pages.LONG, row, DIRICHLET) for row in ("Fed-CO2", "FedPer"))
    beside = [paper("fedco2_t3", row, DIRICHLET) for row in ("Fed-CO2", "FedPer")]
    return [100 * (long.value("headline") - per.value("headline")), beside[0] - beside[1]]


def published_feddbe() -> list[float | str]:
    pairs = (pages.pfllib_pairs(row) for row in pages.PFLLIB_CURVES)
    return [max(100 * abs(a - b) for k, (a, b) in own.items() if k >= 20) for own in pairs]


NUMBERS: dict[str, Callable[[], list[float | str]]] = {
    "results": lambda: [str(LEVEL)],
    "embedded_methods": list,
    "fedco2_t3": fedco2_t3,
    "fdse_t1": list,
    "fedios_t1": list,
    "dcpfl_t1": lambda: [f"{100 / 595:.2f}", f"{run('dcpfl_t1', 'Local-T', DCPFL).summary['loss']:.4f}"],
    "outside_niid_bench": list,
    "published_feddbe": published_feddbe,
    "school_marks": list,
    "shakespeare_characters": list,
    "text_adapters": list,
    "robust_attacks": list,
}


def joined(text: str) -> str:
    return " ".join(text.split())


def prose(page: str) -> str:
    """Return the sentences of a page that are not written by the script, without code and settings."""
    text = re.sub(r"```.*?```", "", pages.MARKER.sub("", TEXTS[page]), flags=re.S)
    text = joined("\n".join(line for line in text.splitlines() if not line.startswith(("|", "!["))))
    return re.sub(r"`[^`]*`|alpha \d\.\d|\.5 and \.5", "", text)


@pytest.mark.parametrize("page", TEXTS)
def test_sentences_have_the_numbers_of_the_summaries_and_the_papers_and_no_others(page):
    shown = re.findall(r"(?<![\w.])-?\d*\.\d+", prose(page))
    assert shown == [each if isinstance(each, str) else f"{each:.1f}" for each in NUMBERS[page]()]
    words = "one|two|three|four|five|six|seven|eight|nine|ten|a|some"
    assert re.findall(rf"(?<![\d.])\d+ (?:points?|%|per cent)|\b(?:{words}) points?", prose(page)) == []


@pytest.mark.parametrize(
    ("page", "row", "column", "file"),
    [
        ("fedco2_t3", "Fed-CO2", PATHOLOGICAL, "fedco2/t3.yaml"),
        ("fdse_t1", "FDSE", OFFICE, "fdse/t1.yaml"),
        ("fedios_t1", "FediOS", FEDIOS, "fedios/t1.yaml"),
        ("fedios_t1", "FediOS", pages.CIFAR100, "fedios/t1.yaml"),
        ("dcpfl_t1", "DC-PFL", DCPFL, "dcpfl/t1.yaml"),
    ],
)
def test_pages_say_how_many_of_the_rounds_have_run(page, row, column, file):
    done, whole = run(page, row, column).completed, setting(file, row, column, "rounds")
    assert f"{done} of the paper's {whole:,} rounds" in joined(TEXTS[page])


def test_all_that_is_written_is_what_the_summaries_and_the_papers_say():
    """Tables, what they count, and † behind methods that nobody has compared with their papers."""
    whole, shown = pages.made(), {}
    for path in (*pages.PAGES, pages.TABLES, *pages.SPEED):
        text = path.read_text()
        again = f"{path.name}: python -m docs.results_page writes it anew"
        for name, found in pages.written(text).items():
            assert found == whole[name], again
            shown[name] = found
        if path in pages.SPEED:
            continue
        assert text == pages.with_marks(text), again
        assert ("†" in re.sub("† Not verified.*", "", text)) == ("footnote" in pages.written(text)), path.name
        if path != pages.TABLES and path != pages.PAGE:
            lines = sum(line.startswith("|") for line in text.splitlines())
            assert lines == sum(
                each.count("\n") + 1 for each in pages.written(text).values() if each[0] == "|"
            )
    assert shown.keys() == whole.keys()


def test_marks_stand_behind_names_of_unverified_methods_alone():
    """Not in commands; and a mark goes when a method's page says no more that it is not verified."""
    text = "```\nrayfl run --method {0}\n```\n{0}{1} and FedAvg"
    for row in pages.embedded_runs():
        page = re.sub(r"\W", "", row).lower()
        assert pages.with_marks(text.format(row, "")) == text.format(
            row, "†" if page in pages.UNVERIFIED else ""
        )
    assert pages.with_marks(text.format("FedProx", "†")) == text.format("FedProx", "")


def test_the_first_number_is_of_the_declared_protocol():
    others = {"claims", "pfllib curves", "published_feddbe by rounds", "embedded_methods"}
    others |= {"embedded_tuned", "robust mean", "robust rules", "speed"}
    for name, (head, *rows) in pages.tables().items():
        assert name in others or head[1].startswith("reported"), name
        assert name in others or all(re.match(r"\d", row[1]) for row in rows)
    for path in pages.FOLDER.glob("*/*.json"):
        headline = json.loads(path.read_text())["headline"]
        row, column, seed = path.stem.split("--")
        own = pages.Run(path.parent.name, row, column, int(seed.removeprefix("seed-")))
        assert own.value("headline") == headline["figure"]
        assert own.chosen("headline")["rounds"] == headline["rounds"]


def test_deviations_are_over_seeds():
    """But for those that papers print; one run has none."""
    over = {"fdse_local", "dcpfl fifth", "embedded_methods", "school_marks", "shakespeare_characters"}
    over |= {"embedded_tuned", "robust mean", "text_adapters"}
    for name, (head, *rows) in pages.tables().items():
        own = [k for k, heading in enumerate(head) if not heading.startswith("printed")]
        found = {head[k] for row in rows for k in own if "±" in row[k]}
        assert not found or name in over or "seeds" in name, (name, found)


# ---- what can be told


def test_what_holds():
    """The claims table, and the overview of the pages, which repeats it in words."""
    found = pages.all_told()
    holds = [(each.claims.page, each.row) for each in found if each.verdict == "holds"]
    rows = ("FedBN", "SingleSet", "FedAvg")
    assert sorted(holds) == sorted([*[("fedco2_t3", row) for row in rows] * 2, ("fedios_t1", "MOON")])
    assert all(each.printed > 0 for each in found), "the paper has it ahead"
    (nearly,) = (each.p for each in found if each.row == "w/o orthogonal projections")
    assert LEVEL < nearly < 0.06, "just above the level"
    for each in found:
        assert each.verdict == "cannot be told" or (each.p is not None and each.p < LEVEL)
        assert (each.p is None) == (len(each.seeds) < 3)


def test_a_claim_that_is_refuted_would_be_said_to_be():
    """Its verdict depends on the sign and on p alone."""
    first = pages.all_told()[0]
    for differences, p, verdict in (
        ([-2.0, -2.1, -1.9], 0.01, "does not hold"),
        ([2.0, 2.1, 1.9], 0.01, "holds"),
        ([2.0, 2.1, 1.9], LEVEL, "cannot be told"),
        ([-2.0], None, "cannot be told"),
    ):
        assert replace(first, differences=differences, p=p).verdict == verdict


@pytest.mark.parametrize("page", TEXTS)
def test_bold_text_claims_nothing_of_a_method(page):
    rows = {row for table in pages.tables().values() for row, *_ in table[1:]} | set(METHODS)
    for bold in re.findall(r"\*\*(.+?)\*\*", TEXTS[page], flags=re.S):
        assert not rows & set(re.findall(r"[\w-]+", bold)), bold


def ordered(values: dict[str, float]) -> list[str]:
    """Return names, the highest value first."""
    return sorted(values, key=lambda name: -values[name])


@pytest.mark.parametrize(
    ("choice", "order"),
    [
        ("headline", "FDSE FedBN Ditto FedAvg Local"),
        ("last_k", "FDSE FedBN Ditto FedAvg Local"),
        ("last", "FedBN Local FedAvg Ditto FDSE"),
    ],
)
def test_the_order_of_fdse_depends_on_which_rounds_count(choice, order):
    found = {r: seeds_of("fdse_t1", r, OFFICE, choice, pages.FDSE_SEEDS) for r in order.split()}
    assert ordered({row: mean(each) for row, each in found.items()}) == order.split()


def test_what_else_pages_say_without_numbers():
    for row in ("Fed-CO2", "FedPer"):
        rounds = setting("fedco2/t3.yaml", row, DIRICHLET, "rounds")
        assert run(pages.LONG, row, DIRICHLET).completed == rounds
    for column in (PATHOLOGICAL, DIRICHLET):
        above = mean(seeds_of("fedco2_t3", "FedPer", column)) - paper("fedco2_t3", "FedPer", column)
        assert above > 4, "far above its printed number"
    one, five = (mean(seeds_of(f"fdse_local_{n}", "Local", OFFICE, seeds=pages.FDSE_SEEDS)) for n in (1, 5))
    assert max(one, five) < paper("fdse_t1", "Local", f"{OFFICE} ALL") - 20
    views = [
        run(table, row, FEDIOS).summary["views"]
        for table, row in (("fedios_t7", "w/o L_re"), ("fedios_t1", "FediOS"))
    ]
    assert views[0] == views[1]
    for row in pages.NIID_ROWS:
        assert abs(100 * pages.niid_best(row) - paper("outside_niid_bench", row, pages.NIID)) < 1
    rounds = {row: own.completed for row, (own, _) in pages.feddbe_runs().items()}
    assert rounds == dict.fromkeys(pages.PFLLIB_ROWS, 200) | {"FedBABU": 150, "FedDBE": 150}


def test_the_page_is_short():
    assert len(TEXTS["results"].split()) <= 950


# ---- which code made them


def test_every_summary_says_which_code_made_it():
    """By a digest of the sources; those of before, which become fewer, by the commit that published them."""
    known = pages.published()
    new = {name for name, content in known.items() if "rayfl" in content}
    assert pages.COMMITS.keys() == known.keys() - new, (
        "a new run has its code under rayfl, as summary.json has it"
    )
    assert all(re.fullmatch(r"[0-9a-f]{7,}", commit) for commit in pages.COMMITS.values())
    assert len(pages.COMMITS) <= 187


def test_every_summary_is_on_a_page():
    pages.tables()
    for numbers in NUMBERS.values():
        numbers()
    assert {own.path for own in pages.USED} == set(pages.FOLDER.glob("*/*.json"))
    assert {path.parent.name for path in pages.FOLDER.glob("*/*.json")} == {
        f for own in pages.DETAILS.values() for f in own
    }


def test_the_summaries_are_those_of_known_tables():
    known = {f"{name}_{table}" for name, found in known_tables().items() for table in found}
    ours = {"fedco2_t3_bfloat16", pages.LONG, "fedios_bases", "fedios_64", "dcpfl_fifth"}
    ours |= {
        "school_marks",
        "shakespeare_characters",
        "text_adapters",
        *(table for table, _ in pages.FDSE_LOCAL.values()),
    }
    assert {folder.name for folder in pages.FOLDER.iterdir() if folder.is_dir()} <= known | ours


def test_all_methods_have_the_options_that_the_page_says():
    """The table file gives these rows options other than their methods' defaults, and no others."""
    table = Table.load(pages.EXAMPLES / "embedded" / "methods.yaml")

    def own(row: str, column: str) -> str:
        settings = table.settings(row, column, {})
        method = METHODS[settings["method"]]()
        given = {key.partition(".")[2]: settings[key] for key in settings if key.startswith("method.")}
        odd = [f"`{name}={value}`" for name, value in given.items() if getattr(method, name) != value]
        return f"{row} ({', '.join(odd)})" if odd else ""

    in_both = [own(row, "domains") for row in table.rows if own(row, "domains")]
    in_labels = [own(row, "labels") for row in table.rows if own(row, "labels")]
    (other,) = (each for each in in_labels if each not in in_both)
    assert [each for each in in_labels if each != other] == in_both
    said = f"default options, except {', '.join(in_both)} and, in the column labels, {other}."
    assert said in joined(TEXTS["embedded_methods"])


def test_all_methods_have_three_seeds_on_embedded_digits():
    runs = pages.embedded_runs()
    assert {tuple(sorted(seeds)) for own in runs.values() for seeds in own.values()} == {("0", "1", "2")}
    assert list(runs) == list(Table.load(pages.EXAMPLES / "embedded" / "methods.yaml").rows)


def test_what_is_said_of_all_methods():
    def means(column, view="personal"):
        found = {row: pages.embedded_values(row, column, view) for row in pages.embedded_runs()}
        return {row: mean(each) for row, each in found.items() if each}

    values, common = means("domains"), means("domains", "global")
    domains, local = ordered(values), values["Local"]
    level = ["FedProto", "DC-PFL", "FD", "FedGH", "LG-FedAvg"]
    level += ["FediOS", "Fed-CO2", "APFL", "FedFomo", "FedBABU"]
    assert set(domains[: len(level) + 1]) == {*level, "Local"}
    assert max(values[name] for name in level) - local < 0.015
    one_for_all = ["FedAvg", "FedProx", "MOON", "SCAFFOLD", "FedDyn", "FedAvgM", "FedHEAL", "FedFA", "FedSR"]
    assert max(values[name] for name in one_for_all) < local - 0.03
    before = common["FedAvg-FT"]
    assert (values["FedAvg-FT"] - before) / (local - before) > 0.5
    assert common["PartialFed"] < min(common[name] for name in one_for_all) - 0.3
    assert domains[:2] == ["Fed-CO2", "FedBABU"]
    values = means("labels")
    labels = ordered(values)
    assert abs(values["FedAvg-FT"] - means("labels", "global")["FedAvg-FT"]) < 0.01
    assert set(labels[:2]) == {"FedRep", "FedRoD"}
    assert set(labels[2:5]) == {"FedDBE", "FedPAC", "FedBABU"}
    assert set(labels[5:10]) == {"FedALA", "FedDyn", "COPA", "Fed-CO2", "FedPer"}
    assert labels[-1] == "FedProto"
    assert values["Local"] < values["FedPer"] - 0.05


def test_what_is_said_of_attacks():
    def figure(row, attack, rule="Mean"):
        method, view = pages.ROBUST_VIEWS[row]
        return mean(pages.robust_values(method, rule, attack, view))

    lost = {
        row: {attack: figure(row, "none") - figure(row, attack) for attack in pages.ATTACKS}
        for row in pages.ROBUST_VIEWS
    }
    less = [
        attack for attack in pages.ATTACKS if lost["FedPer, personal"][attack] < lost["FedAvg"][attack] - 0.01
    ]
    assert less == ["LabelFlip", "SignFlip", "IPM"]
    like = [
        attack for attack in pages.ATTACKS if lost["Ditto, personal"][attack] > 0.7 * lost["FedAvg"][attack]
    ]
    assert like == ["LabelFlip", "ALIE", "IPM"]
    assert max(map(abs, lost["Fed-CO2, offline"].values())) < 0.015
    least = {row: each["IPM"] for row, each in lost.items() if "personal" in row}
    assert min(least, key=least.__getitem__) == "Fed-CO2, personal"
    for row in set(pages.ROBUST_VIEWS) - {"Fed-CO2, offline"}:
        assert abs(figure(row, "none", "MultiKrum") - figure(row, "none")) < 0.01
        assert figure(row, "SignFlip", "MultiKrum") > figure(row, "none") - 0.015
        for rule in ("Median", "TrimmedMean"):
            assert figure(row, "none", rule) < figure(row, "none") - 0.015
    for rule in list(pages.RULES)[1:]:
        assert figure("FedAvg", "IPM", rule) < figure("FedAvg", "IPM") - 0.1
        assert figure("FedPer, personal", "IPM", rule) > figure("FedPer, personal", "IPM") + 0.05


def test_what_is_said_of_adapters():
    order = ordered({row: mean(seeds_of("text_adapters", row, "docstrings")) for row in pages.TEXT_ROWS})
    assert order[:2] == ["FedPer", "Local"]
    assert set(order[-2:]) == {"FedIT", "FFA-LoRA"}


def test_what_was_changed_in_fedper():
    page = (pages.FOLDER.parent / "methods" / "fedper.md").read_text()
    for one in json.loads((pages.FOLDER / "fedper_changes.json").read_text()):
        percent = {int(rounds): f"{100 * accuracy:.1f}" for rounds, accuracy in one["figure"].items()}
        assert one["rayfl"]["sources"]
        if one["column"] == "CIFAR10 Dirichlet":
            cells = " | ".join(percent.get(rounds, "") for rounds in range(20, 101, 20))
            assert f"| {one['changed']} | {cells} |" in page
        else:
            assert re.search(rf"\b{percent[max(percent)]} after {max(percent)} rounds", page)


def test_the_page_of_protocols_follows_from_its_evaluations() -> None:
    """Each row: the last round, the best by validation and by test (the earliest of equals), and G."""
    page = (pages.FOLDER.parent / "protocols.md").read_text()
    with (pages.FOLDER / "protocols.csv").open() as file:
        rows = list(csv.DictReader(file))
    for place, own in groupby(rows, lambda row: (row["test_from"], row["view"])):
        evaluations = list(own)
        assert len(evaluations) == 12
        chosen = [evaluations[-1]]
        chosen += [
            max(evaluations, key=lambda row: float(row[by])) for by in ("validation_mean", "test_mean")
        ]
        cells = [f"{row['test_mean']} ({row['test_pooled']})" for row in chosen]
        division, view = place[0], place[1].replace("finetuned", "fine-tuned")
        assert f"| {division} | {view} | {' | '.join(cells)} | {chosen[0]['common_mean'] or '-'} |" in page
