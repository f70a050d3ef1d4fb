"""Our cells beside printed ones: figures, deviations, what is warned of."""

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

import rayfl
from rayfl import evaluation
from rayfl.commands import report
from rayfl.errors import Missing, Unknown
from rayfl.evaluation.protocol import CHOSEN_ON_TEST
from rayfl.evaluation.run_records import RunRecords
from rayfl.report import paper_tables
from rayfl.report.formats import SUFFIXES
from rayfl.report.paper_tables import (
    OTHER_DATA,
    Entry,
    compare,
    entry_records,
    figure,
    footnotes,
    grid,
    write_tables,
)
from rayfl.report.printed import CellFigure, find_printed, printed_table
from rayfl.report.run_page import run_page
from rayfl.report.summary import sentences
from rayfl.report.table_page import table_page
from rayfl.report.text import number
from rayfl.running.result import Result
from tests.support.records import pool, write_run
from tests.support.refusals import refused, told

OFFICE = ("amazon", "caltech", "dslr", "webcam")


def office(folder: Path, row: str = "FedBN", **run) -> Path:
    run = {"protocol": evaluation.FedCO2Feature(), "domains": OFFICE, "clients": 4, **run}
    return write_run(folder, cell=("fedco2_t1", row, "Office-Caltech10"), **run)


def test_domains_and_their_mean_over_seeds(tmp_path):
    folders = [office(tmp_path / str(seed), seed=seed) for seed in range(3)]
    entries = compare("fedco2_t1", folders)
    assert [entry.column.lower() for entry in entries] == [*OFFICE, "avg"]
    found = []
    for run in map(Result.load, folders):
        scores = run.history.scores["after_aggregation", "personal", "test"]
        place = list(scores.rounds).index(run.summary["headline"]["rounds"][0])
        found.append([*100 * scores.figure[place], 100 * scores.figure[place].mean()])
    for entry, values in zip(entries, np.transpose(found), strict=True):
        assert entry.mean == pytest.approx(np.mean(values))
        assert entry.std == pytest.approx(np.std(values, ddof=1))
        assert entry.values == pytest.approx(dict(enumerate(values)))
        assert (entry.spread, entry.seeds, entry.warnings) == ("seeds", [0, 1, 2], [])
    assert (entries[-1].printed_mean, entries[-1].printed_std) == (70.5, 2.0)
    assert entries[-1].difference == pytest.approx(entries[-1].mean - 70.5)


def test_the_page_of_a_run_has_the_printed_numbers_and_reads_the_run_once(tmp_path, monkeypatch):
    run = RunRecords.load(office(tmp_path / "run"))
    monkeypatch.setattr(RunRecords, "load", None)
    page = run_page(run)
    assert (
        '"90.0">90.00</td><td class="number" data-value="63.0">63.00<' in page
    )  # Amazon, ours and the paper's
    for text in (f"{100 * run.figure:.2f}", "70.50"):  # the mean of ours, and of the paper
        assert f">{text}<" in page


def test_a_round_chosen_on_test_data_is_labelled_everywhere(tmp_path):
    best = evaluation.Default(choose="best_test")
    folder = write_run(tmp_path / "run", cell=("own", "FedBN", "digits"), protocol=best)
    run, entries = Result.load(folder), compare("own", [folder])
    for path in write_tables(entries, "A table", tmp_path, "FedAvg"):
        assert CHOSEN_ON_TEST in path.read_text(), path
    (record,) = entry_records(entries)
    figures = {"mean", "std", "values", "interval", "difference", "worst_decile", "client_std"}
    assert {f"{name} ({CHOSEN_ON_TEST})" for name in figures} <= record.keys()
    assert not figures & record.keys()
    shown = f"{100 * run.figure:.2f}¶"
    assert shown in (tmp_path / "table.tex").read_text()
    page = table_page("A table", entries, [folder], tmp_path, planned=1)
    assert CHOSEN_ON_TEST in page
    assert page.count(shown) == 3  # in the table, the list of cells and that of runs
    assert f"Test accuracy, {CHOSEN_ON_TEST}" in run_page(run)
    assert CHOSEN_ON_TEST in sentences(run.summary)[0]
    assert rayfl.Plot(run).bars().figure.get_suptitle() == CHOSEN_ON_TEST
    assert rayfl.Plot(run, choose="last").bars().figure.get_suptitle() == ""


def test_one_seed_has_no_deviation_but_that_over_evaluations(tmp_path):
    (entry, *_) = compare("fedco2_t1", [office(tmp_path / "a")])
    assert (entry.std, entry.spread, entry.further) == (None, "", {})  # of one domain
    run = {"protocol": evaluation.FedCO2CIFAR(), "eval_every": 1, "val": False}
    folder = write_run(tmp_path / "b", cell=("fedco2_t3", "Fed-CO2", "CIFAR10 Dirichlet"), **run)
    entries = compare("fedco2_t3", [folder])
    headline = Result.load(folder).summary["headline"]
    (entry,) = (e for e in entries if e.column == "CIFAR10 Dirichlet")
    assert entry.mean == pytest.approx(100 * headline["figure"])
    assert entry.std == pytest.approx(100 * headline["std"])
    assert (entry.spread, entry.printed_mean, entry.printed_std) == ("evaluations", 77.45, 0.3)
    assert len(entries) == 1, "cells without runs are left out"


def test_what_is_warned_of(tmp_path):
    folders = [
        office(tmp_path / "a", changed=("rounds=300", "clients=3"), stop_after=4),
        office(tmp_path / "b", seed=1, changed=("rounds=300",)),
    ]
    (entry, *_) = compare("fedco2_t1", folders[:1])
    assert entry.warnings == ["with rounds=300, clients=3", "only 4 of 10 rounds yet"]
    assert entry.values == {}, "no test of cells that are not complete"
    unscored = office(tmp_path / "0", changed=("rounds=300",), stop_after=0)
    (entry, *_) = compare("fedco2_t1", [unscored])
    assert (entry.mean, entry.warnings[0]) == (None, "with rounds=300")
    (whole, *_) = compare("fedco2_t1", folders[1:])
    (entry, *_) = compare("fedco2_t1", folders)
    assert entry.warnings == ["with rounds=300", "without the seeds that are not complete yet (0)"]
    assert (entry.seeds, entry.mean, entry.values) == ([1], whole.mean, whole.values)
    run = {"protocol": evaluation.FedCO2Last(), "domains": OFFICE, "clients": 4}
    folder = write_run(tmp_path / "c", cell=("fedco2_t9", "FedAvg", "Office-Caltech10"), **run)
    (entry, *_) = compare("fedco2_t9", [folder])
    assert "out of reach: the code behind it gave every image the label of another one" in entry.warnings[0]


def test_a_printed_number_out_of_reach_is_told_of_by_its_row_and_column(tmp_path, monkeypatch):
    folders = [office(tmp_path / "0")]
    (entry, *_) = compare("fedco2_t1", folders)
    printed = paper_tables.printed_table("fedco2_t1")
    there = replace(printed, unreachable={entry.row: {entry.column: "nobody knows how"}})
    monkeypatch.setattr(paper_tables, "printed_table", lambda name: there)
    found = {(e.row, e.column): e.warnings for e in compare("fedco2_t1", folders)}
    assert "out of reach: nobody knows how" in found.pop((entry.row, entry.column))
    assert not any("out of reach" in text for warnings in found.values() for text in warnings)


def test_reduced_data_are_told_of_and_others_not_averaged(tmp_path):
    """Reduced data bring a warning, and different data are not averaged."""
    published = {"amazon": 958, "caltech": 1123, "dslr": 157, "webcam": 295}
    whole = pool("a" * 64, published, **published)
    part = pool("b" * 64, published, **(published | {"amazon": 100}))
    runs = [office(tmp_path / str(k), seed=k, pool=data) for k, data in enumerate((whole, whole, part))]
    same = compare("fedco2_t1", runs[:2])
    assert all(entry.mean is not None and entry.warnings == [] for entry in same)
    (alone, *_) = compare("fedco2_t1", runs[2:])
    assert alone.data != same[0].data  # by which figures are compared that stand in one column
    assert alone.mean is not None
    assert alone.warnings == ["reduced data: amazon has 100 of 958 published images"]
    for entry in compare("fedco2_t1", runs):
        assert (entry.mean, entry.std, entry.seeds) == (None, None, [0, 1, 2])
        assert entry.warnings == [*alone.warnings, "no mean, because its seeds have different data"]


def test_rows_on_other_data_are_marked_in_every_format(tmp_path):
    """And take no part in ranks and tests; whatever the page, terminal or file."""
    data = {"FedAvg": "a", "FedBN": "a", "Fed-CO2": "b"}
    folders = [
        office(tmp_path / row / str(seed), row, seed=seed, level=0.5 + 0.1 * k, pool=pool(data[row] * 64))
        for k, row in enumerate(data)
        for seed in range(3)
    ]
    entries = compare("fedco2_t1", folders, list(data))
    cells = list(grid(entries, "T").columns[-1].cells)
    assert ["§" in str(cell) for cell in cells] == [False, False, True]
    assert [cell.style for cell in cells] == ["underline", "bold", ""]
    write_tables(entries, "T", tmp_path, "FedAvg")
    for ending in SUFFIXES:  # five figures; and what the sign means, where it stands alone
        text = (tmp_path / f"table{ending}").read_text()
        assert text.count("§") == (5 if ending in (".csv", ".json") else 6)
    page = table_page("T", entries, folders, tmp_path, planned=9)
    assert page.count(f">{number(entries[-1].mean, entries[-1].std)}§<") == 2  # also in the list of cells
    assert f"<p>{OTHER_DATA}.</p>" in page
    assert {test["row"] for test in json.loads((tmp_path / "table.json").read_text())["tests"]} == {"FedBN"}


def test_files_and_the_page_have_intervals_and_the_grid_a_line(tmp_path):
    folders = [office(tmp_path / str(seed), seed=seed) for seed in range(3)]
    entries = compare("fedco2_t1", folders)
    write_tables(entries, "T", tmp_path, "FedAvg")
    (cell, *_) = json.loads((tmp_path / "table.json").read_text())["cells"]
    assert cell["seeds"] == [0, 1, 2]
    assert cell["interval"] == pytest.approx(4.3027 / 3**0.5 * cell["std"], rel=1e-4)
    (row, *_) = csv.DictReader((tmp_path / "table.csv").open())
    assert (row["seeds"], row["interval"]) == ("3", str(cell["interval"]))
    assert f">{cell['interval']:.2f}<" in table_page("T", entries, folders, tmp_path, planned=3)
    assert "2.48 with 3 seeds" in " ".join(footnotes(entries)), "which the terminal shows"
    assert "2.48 with 3 seeds" in (tmp_path / "table.tex").read_text()
    assert compare("fedco2_t1", folders[:1])[0].interval is None


def test_seeds_that_differ_are_not_averaged(tmp_path):
    """Be it in length, in a setting, or in code of the user's own."""
    alike = {"rounds": 10, "mu": 0.1, "code": {"mine.Mine": "a"}}
    runs = [office(tmp_path / str(k), seed=k, **alike) for k in range(2)]
    assert all(entry.mean is not None and entry.warnings == [] for entry in compare("fedco2_t1", runs))
    for what, other in (
        ("numbers of rounds", {"rounds": 4}),
        ("settings (method.mu)", {"mu": 0.9}),
        ("settings (code.mine.Mine)", {"code": {"mine.Mine": "b"}}),
    ):
        odd = office(tmp_path / what, seed=2, **alike | other)
        for entry in compare("fedco2_t1", [*runs, odd]):
            assert (entry.mean, entry.values, entry.seeds) == (None, {}, [0, 1, 2])
            assert entry.warnings == [f"no mean, because its seeds have different {what}"]


def test_a_seed_that_ended_early_goes_with_longer_ones(tmp_path):
    """It would have ended there with more rounds, too; accuracies of level 0 do not rise."""
    run = {"protocol": evaluation.FedCO2Feature(patience=2), "domains": OFFICE, "clients": 4}
    early = office(tmp_path / "early", **run, level=0.0, stop_after=8, eval_every=1)
    assert Result.load(early).summary["early"]
    longer = [office(tmp_path / str(k), seed=k, rounds=20, eval_every=1, **run) for k in (1, 2)]
    for entry in compare("fedco2_t1", [early, *longer]):
        assert (entry.seeds, entry.warnings) == ([0, 1, 2], [])
        assert entry.mean is not None


def test_a_mean_over_columns_and_other_figures_of_the_same_runs(tmp_path):
    def folder(letter: str, seed: int, row: str = "FDSE") -> Path:
        run = {"seed": seed, "protocol": evaluation.FDSE(), "level": 0.6 + 0.1 * "CADW".index(letter)}
        place = tmp_path / row / letter / str(seed)
        return unseen(write_run(place, cell=("fdse_t2", row, f"Office {letter}"), **run))

    folders = [folder(letter, seed) for letter in "CADW" for seed in (2, 15)] + [folder("C", 333)]
    entries = {(e.row, e.column): e for e in compare("fdse_t2", folders)}
    parts = [entries["FDSE", f"Office {letter}"] for letter in "CADW"]
    assert [part.seeds for part in parts] == [[2, 15, 333], *[[2, 15]] * 3]
    mean = entries["FDSE", "Office AVG"]
    assert mean.seeds == [2, 15], "the seeds that all parts have"
    adapted = CellFigure(average="mean", points=("unseen_adapted",))
    by_seed = [
        np.mean([figure(Result.load(tmp_path / f"FDSE/{x}/{s}"), adapted)[0] for x in "CADW"])
        for s in (2, 15)
    ]
    assert mean.mean == pytest.approx(np.mean(by_seed))
    assert mean.std == pytest.approx(np.std(by_seed, ddof=1))
    assert (mean.printed_mean, mean.printed_std) == (75.52, None)
    before = entries["FDSE, not adapted", "Office C"]
    assert (before.mean, before.printed_mean) == (pytest.approx(48.0), 40.17)
    assert entries["FDSE, step 0", "Office C"].printed_mean is None
    assert "DomainNet AVG" not in {column for _, column in entries}


def unseen(folder: Path) -> Path:
    """Turn the last client of a run into a new client: 48 % as it comes, 80 % with the first seed adapted."""
    seed = yaml.safe_load((folder / "config.yaml").read_text())["seed"]
    shares = {"unseen": 0.48, "unseen_adapted": 0.8 if seed == 2 else 0.4, "unseen_control": 0.6}
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        for point, share in shares.items() if "evaluation" in line else ():
            scores = {"score": [None] * 5 + [int(share * 25 + 0.5)], "loss": [None] * 6}
            line["evaluation"][point] = {"personal": {"test": scores}}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_figures_of_a_run(tmp_path):
    run = Result.load(write_run(tmp_path / "run", clients=20))
    entry = next(v for v in run.summary["views"] if v["view"] == "global")
    mean = CellFigure(average="mean")
    assert figure(run, CellFigure())[0] == 100 * run.summary["headline"]["figure"]
    assert figure(run, CellFigure(view="global", average="pooled")) == (100 * entry["last"]["pooled"], None)
    assert figure(run, CellFigure(average="worst_decile"))[0] < figure(run, mean)[0]
    ink = run.summary["headline"]["domains"]["ink"]["figure"]
    assert figure(run, CellFigure(domain="INK"))[0] == 100 * ink
    assert figure(run, CellFigure(domain="charcoal")) == (None, None)
    assert figure(run, CellFigure(view="online", average="mean")) == (None, None)
    assert figure(run, replace(mean, points=("unseen", "after_aggregation")))[0] == pytest.approx(
        figure(run, mean)[0]
    )
    assert figure(run, replace(mean, points=("unseen",))) == (None, None)


def test_a_table_that_no_paper_prints(tmp_path):
    folders = [
        write_run(tmp_path / f"{row}{column}", cell=("mine", row, column), mu=column)
        for row in ("b", "a")
        for column in ("2", "1")
    ]
    entries = compare("mine", folders, ["a", "b"], ["1", "2"])
    assert [(e.row, e.column) for e in entries] == [("a", "1"), ("a", "2"), ("b", "1"), ("b", "2")]
    assert entries[0].mean == pytest.approx(100 * Result.load(folders[3]).figure)
    assert [c.header for c in grid(entries, "x").columns] == ["", "1", "2"]
    with refused(Missing, "runs"):
        compare("yours", folders)


def test_a_column_that_the_paper_does_not_print_is_shown(tmp_path):
    """Somebody has added it to the file of a paper's table."""
    run = {"protocol": evaluation.FedCO2Feature(), "domains": OFFICE, "clients": 4}
    folders = [office(tmp_path / "a")]
    folders.append(write_run(tmp_path / "b", cell=("fedco2_t1", "FedBN", "mine"), **run))
    printed = printed_table("fedco2_t1")
    entries = compare(printed.name, folders, ["FedBN"], ["Office-Caltech10", "mine"])
    assert [e.column for e in entries] == [*printed.columns, "mine"]
    assert entries[-1].mean == pytest.approx(100 * Result.load(folders[1]).figure)
    assert (entries[-1].printed_mean, entries[-1].difference) == (None, None)


def test_markdown_has_the_printed_numbers_in_brackets(tmp_path):
    entry = Entry("a|b", "C", 61.234, 1.0, "seeds", [0, 1], 63.0, 1.6, ["with rounds=3"])
    other = replace(entry, column="D", std=None, spread="", printed_mean=None)
    write_tables([entry, other], "T", tmp_path, "b")
    text = (tmp_path / "table.md").read_text()
    assert "| a\\|b | 61.23 ± 1.00 (63.00 ± 1.60) | 61.23 |" in text
    assert "- with rounds=3" in text
    assert "Printed numbers are in brackets." in text
    assert "63.00" not in (tmp_path / "table.tex").read_text()
    assert number(None) == "n/a"
    assert entry.difference == pytest.approx(-1.766)


def test_the_best_of_a_column_on_the_same_data(tmp_path):
    """Bold, underlined, and with a star where it differs from the reference over three seeds."""

    def cell(row: str, *values: float) -> Entry:
        seeds = list(range(len(values)))
        return Entry(row, "C", float(np.mean(values)), 1.0, "seeds", seeds, values=dict(zip(seeds, values)))

    entries = [cell("a", 80, 81, 82), cell("b", 70, 71, 72.1), cell("d", 80, 81)]
    write_tables(entries, "T", tmp_path, "b")
    shown = grid(entries, "T", "b").columns[1]
    assert [(str(text), text.style) for text in shown.cells] == [
        ("81.00 ± 1.00*", "bold"),
        ("71.03 ± 1.00", ""),
        ("80.50 ± 1.00", "underline"),
    ]
    (test,) = json.loads((tmp_path / "table.json").read_text())["tests"]
    assert (test["place"], test["reference"], test["row"], test["seeds"]) == ("C", "b", "a", [0, 1, 2])
    text = (tmp_path / "table.tex").read_text()
    assert "paired t-test over seeds, p \\textless{} 0.05 after Holm's correction for 1 test)" in text
    assert "Our $\\pm$: sample standard deviation over seeds." in text
    assert "Not tested: " in text
    assert not any("*" in str(text) for text in grid(entries, "T").columns[1].cells), "there is no FedAvg"


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    office(tmp_path / "runs" / "a", changed=("rounds=10",))
    office(tmp_path / "runs" / "b", seed=1, row="Fed-CO2")
    write_run(tmp_path / "runs" / "c")
    assert report.main([str(tmp_path / "runs"), "--against", "fedco2", "t1"]) == 0
    said = capsys.readouterr().out
    assert "Fed-CO2 (Cai et al., NeurIPS 2023), Table 1" in said
    first, second = [line for line in said.splitlines() if line.lstrip().startswith("WebCam")]
    assert "90.50 ± 2.30" in first
    assert "with rounds=10" in first
    assert "96.60 ± 1.50" in second
    assert "Printed ±: standard deviation over 5 runs." in said


def test_bad_input(tmp_path):
    office(tmp_path / "a")
    for paper, table, kind, place in (
        ("fedco3", "t1", Unknown, "against"),
        ("fedco2", "t6", Unknown, "against"),
        ("fedco2", "t2", Missing, "runs"),
    ):
        with told(kind, place):
            assert report.main([str(tmp_path / "a"), "--against", paper, table]) == 2
    assert find_printed("fdse", "t1") is printed_table("fdse_t1")
    assert printed_table("mine") is None


def test_a_copied_cell_counts_once_and_one_with_other_numbers_has_no_mean(tmp_path):
    folders = [office(tmp_path / str(seed), seed=seed) for seed in (0, 1)]
    copy = shutil.copytree(folders[0], tmp_path / "copy")
    (*_, copied), (*_, mean) = compare("fedco2_t1", [*folders, copy]), compare("fedco2_t1", folders)
    assert (copied.mean, copied.std, copied.values) == (mean.mean, mean.std, mean.values)
    assert copied.seeds == [0, 1]
    assert [str(copy) in text for text in copied.warnings] == [True]
    other = office(tmp_path / "other", level=0.5)
    (*_, differs) = compare("fedco2_t1", [*folders, other])
    assert differs.mean is None
    assert any(str(other) in text for text in differs.warnings)
