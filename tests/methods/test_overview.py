"""The overview of all methods in the documentation."""

import re
from pathlib import Path

import pytest

from docs.results_page import cell, embedded_runs, embedded_values, feddbe, mean
from rayfl.methods import METHODS
from rayfl.nets import DigitModel
from rayfl.report.printed import known_tables
from rayfl.settings.description import class_name
from rayfl.training.net import Net
from tests.methods.cases import CASES, counts
from tests.support.tables import TABLES

PAGE = Path(__file__).parents[2] / "docs" / "methods" / "README.md"
UNITS = {"": 1e6, "kB": 1e3}
"""Of traffic; MB where the page names none."""


def overview() -> dict[str, list[str]]:
    """Return the cells of each method's line in the table of costs, from the bytes on."""
    table = PAGE.read_text().split("## What they cost")[1].split("\n## ")[0]
    lines = re.findall(r"^\| \[([\w-]+)\]\(\w+\.md\) \| (.*) \|$", table, re.MULTILINE)
    return {class_name(name): cells.split(" | ")[1:] for name, cells in lines}


def test_every_method_is_in_the_overview() -> None:
    assert sorted(overview()) == sorted(METHODS)
    assert all(len(cells) == 5 for cells in overview().values())


def test_the_papers_are_those_whose_tables_have_the_method() -> None:
    papers = {"fedco2": "Fed-CO2", "fedios": "FediOS", "dcpfl": "DC-PFL", "fdse": "FDSE"}
    found: dict[str, list[str]] = {name: [] for name in METHODS}
    for paper, shown in papers.items():
        tables = [TABLES[f"{paper}_{table}"] for table in known_tables()[paper]]
        for method in {row.settings["method"] for table in tables for row in table.rows.values()}:
            found[method].append(shown)
    assert {name: cells[3] for name, cells in overview().items()} == {
        name: ", ".join(papers) or "–" for name, papers in found.items()
    }


def test_the_page_names_the_methods_of_different_nets() -> None:
    text = PAGE.read_text().split("**Different nets.**")[1].split("\n\n")[0]
    named = {class_name(word) for word in re.findall(r"[\w-]+", text)} & METHODS.keys()
    assert named == {name for name, method in METHODS.items() if method().facts.nets != "equal"}


def test_the_bytes_are_those_of_the_net() -> None:
    """Four bytes a number of ``DigitModel``, with five clients that have samples of all ten classes."""
    numbers = counts(Net(lambda: DigitModel().build((3, 28, 28), 10)))
    for name, cells in overview().items():
        down, up = CASES[name].traffic(numbers, 10, 5)
        for sent, shown in ((up, cells[0]), (down, cells[1])):
            if shown.endswith("*") or None in sent.values():  # of a net of its own, or by its ranks
                assert name in ("FDSE", "FedFA", "FedSR", "FedKD")
                continue
            value, _, unit = shown.partition(" ")
            expected = 4 * sum(count or 0 for count in sent.values())
            assert float(value) * UNITS[unit] == pytest.approx(expected, abs=0.005 * UNITS[unit]), name


def test_what_each_method_learns() -> None:
    text = PAGE.read_text().split("## What they learn")[1].split("\n## ")[0]
    *_, vectors, classes = re.findall(r"^\| .* \| (.*) \|$", text, re.MULTILINE)
    told = {class_name(name): 3 for name in re.findall(r"[\w-]+", vectors)}
    told |= {class_name(name): 1 for name in re.findall(r"[\w-]+", classes.partition(", unless")[0])}
    found = {name: len(method().facts.tasks) for name, method in METHODS.items()}
    assert {name: count for name, count in found.items() if count < 4} == told


def test_which_method_names_two_and_what_their_table_has() -> None:
    """Both are rows of a table of the page that the case names; accuracies are those of the named column."""
    text = (PAGE.parent / "which.md").read_text()
    cases = re.findall(r"^\| ([A-Z]): [^|]+ \| ([^|]+) \| ([^|]+) \| ([^|]*)\|$", text, re.MULTILINE)
    assert [case for case, *_ in cases] == list("ABCDEFGHIJ")
    for case, methods, tables, highest in cases:
        pages = {PAGE.parent / link for link in re.findall(r"\]\(([^)#]+)", tables)}
        known = {
            row for page in pages for row in re.findall(r"^\| \[?([\w-]+)", page.read_text(), re.MULTILINE)
        }
        names = re.findall(r"\[([\w-]+)\]", methods)
        assert len(names) == 2, case
        assert set(names) <= known, case
        if "embedded_methods" in tables:
            column, view = re.findall(r", (\w+), (\w+):", tables)[0]
            found = {row: embedded_values(row, column, view) for row in embedded_runs()}
            values = {row: cell(mean(each)) for row, each in found.items() if each}
        elif "published_feddbe" in tables:
            values = {row: best for row, best, *_ in feddbe()[1:]}
        else:
            continue
        assert tables.endswith(f": {', '.join(values[name] for name in names)}"), case
        assert highest.strip() == max(values.values()), case
