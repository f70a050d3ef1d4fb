"""Methods beside independent forms: plain PyTorch, from papers and pages alone, without a look at rayfl's."""

import re
from pathlib import Path

import pytest

from rayfl.methods import METHODS
from tests.methods.forms.cases import CASES
from tests.methods.forms.changes import CHANGES
from tests.methods.forms.parity import DIVISIONS, compare, differences, federated, formed

LIMIT = 1e-9


@pytest.mark.parametrize(
    ("name", "division", "execution"),
    [
        *((name, division, run) for name in METHODS for division in DIVISIONS for run in ("loop", "stacked")),
        *((name, "shares", "loop") for name in CASES if name not in METHODS),
    ],
)
def test_a_method_equals_its_independent_form(name: str, division: str, execution: str) -> None:
    found = compare(name, execution, division)
    assert max(found.values()) < LIMIT, found


@pytest.mark.parametrize("place", range(3), ids=["sign", "factor", "mean"])
@pytest.mark.parametrize("name", METHODS)
def test_a_small_mistake_shows(name: str, place: int) -> None:
    outcome, _ = formed(name, "shares")
    with CHANGES[name][place]():
        run, _ = federated(name, "shares")
    found = differences(name, outcome, run)
    assert max(found.values()) > 100 * LIMIT, found


def test_the_page_of_parity_has_every_method_and_no_large_difference() -> None:
    page = (Path(__file__).parents[2] / "docs" / "parity.md").read_text()
    rows = {
        name: re.findall(rf"^\| \[[^|]+\]\(methods/{name.lower()}\.md\) .*", page, re.M) for name in METHODS
    }
    assert all(len(found) == 1 for found in rows.values()), rows
    for (row,) in rows.values():
        differences = [n for cell in row.split("|")[3:-1] for n in cell.strip().split(", ") if n != "none"]
        assert len(differences) >= 8
        assert max(map(float, differences)) < LIMIT
    for name in (name for name in CASES if name not in METHODS):
        assert f"| `{name.partition(' ')[2]}` |" in page
