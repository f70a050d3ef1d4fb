"""Methods beside independent forms: plain PyTorch, from papers and pages alone, without a look at rayfl's."""

import re
from pathlib import Path

import pytest

from rayfl.methods import METHODS
from tests.methods.forms.cases import CASES
from tests.methods.forms.changes import CHANGES
from tests.methods.forms.parity import (
    OTHER_LOSS,
    SETTINGS,
    TASKS,
    compare,
    differences,
    federated,
    formed,
    method_of,
)

LIMIT = 1e-9
BASIC = [name for name in CASES if " " not in name]
BY_LOSS = next(name for name in CASES if name.startswith("FedDGGA "))
LEARNERS = [BY_LOSS if name == "FedDGGA" else name for name in BASIC]


@pytest.mark.parametrize(
    ("name", "division", "execution"),
    [
        *((name, division, run) for name in BASIC for division in SETTINGS for run in ("loop", "stacked")),
        *((name, "shares, another loss", "loop") for name in CASES if name not in BASIC),
    ],
)
def test_a_method_equals_its_independent_form(name: str, division: str, execution: str) -> None:
    found = compare(name, SETTINGS.get(division, OTHER_LOSS), execution)
    assert max(found.values()) < LIMIT, found


@pytest.mark.parametrize("execution", ["loop", "stacked"])
@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for kind in TASKS for name in LEARNERS if kind in method_of(name).facts.tasks],
)
def test_so_it_does_with_other_tasks(name: str, kind: str, execution: str) -> None:
    found = compare(name, TASKS[kind], execution)
    assert max(found.values()) < LIMIT, found


@pytest.mark.parametrize("place", range(3), ids=["sign", "factor", "mean"])
@pytest.mark.parametrize("name", BASIC)
def test_a_small_mistake_shows(name: str, place: int) -> None:
    outcome, _ = formed(name)
    with CHANGES[name][place]():
        run, _ = federated(name)
        found = differences(name, outcome, run)
    assert max(found.values()) > 100 * LIMIT, found


def test_the_page_of_parity_has_every_method_and_no_large_difference() -> None:
    page = (Path(__file__).parents[2] / "docs" / "parity.md").read_text()
    rows = dict(re.findall(r"^\| \[[^|]+\]\([^|]+/(\w+)\.py\) \|(.*)\|$", page, re.M))
    assert rows.keys() == {name.lower().replace("-", "") for name in BASIC} > {n.lower() for n in METHODS}
    for row in rows.values():
        found = [float(cell) for cell in row.split("|") if cell.strip() != "–"]
        assert len(found) >= 4
        assert max(found) < LIMIT
    for name in (name for name in CASES if name not in BASIC):
        assert f"| `{name.partition(' ')[2]}` |" in page
