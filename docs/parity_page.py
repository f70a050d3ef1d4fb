"""The tables of docs/parity.md: how far rayfl's methods are from independent forms.

``python -m docs.parity_page`` computes them anew, in about a minute, and writes each below its marker,
``<!-- numbers: NAME -->``.
"""

from collections.abc import Iterable
from math import ceil, log10
from pathlib import Path

from docs.results_page import MARKER, markdown
from rayfl.record.description import display_name
from tests.methods.forms.cases import CASES
from tests.methods.forms.parity import DIVISIONS, compare

PAGE = Path(__file__).parent / "parity.md"
RUNS = [(division, execution) for division in DIVISIONS for execution in ("loop", "stacked")]


def bound(values: Iterable[float]) -> str:
    """Return the power of ten that is not below any of the differences; none without any."""
    largest = max(values, default=None)
    return "none" if largest is None else f"1e{ceil(log10(largest))}" if largest else "0"


def cell(name: str, division: str, execution: str) -> str:
    """Return the largest differences of what the server holds, what clients keep, and all scores."""
    found = compare(name, execution, division)
    weights = [[found.pop(key)] if key in found else [] for key in ("server", "clients")]
    return ", ".join(map(bound, [*weights, found.values()]))


def title(name: str) -> str:
    """Return the name of a method as its paper writes it."""
    return display_name(f"rayfl.methods.{name.removesuffix('-FT')}") + "-FT" * name.endswith("-FT")


def rows_of_methods() -> list[list[str]]:
    """Return a row for each method."""
    rows = [["method", "form", *(f"{division}, {execution}" for division, execution in RUNS)]]
    for name in (name for name in CASES if " " not in name):
        page = f"[{title(name)}](methods/{name.lower().removesuffix('-ft')}.md)"
        form = f"[form](../tests/methods/forms/{name.lower().replace('-', '')}.py)"
        rows.append([page, form, *(cell(name, *run) for run in RUNS)])
    return rows


def rows_of_options() -> list[list[str]]:
    """Return a row for each of the further settings."""
    rows = [["method", "options", "shares, loop"]]
    for name in (name for name in CASES if " " in name):
        method, _, options = name.partition(" ")
        rows.append([title(method), f"`{options}`", cell(name, "shares", "loop")])
    return rows


def written() -> str:
    """Return the page with its tables made anew."""
    tables = {"methods": markdown(rows_of_methods()), "options": markdown(rows_of_options())}
    return MARKER.sub(lambda m: f"<!-- numbers: {m[1]} -->\n\n{tables[m[1]]}\n", PAGE.read_text())


if __name__ == "__main__":
    PAGE.write_text(written())
