"""The numbers that papers print in their tables, and where our runs have the same figures."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from importlib import resources

import yaml
from pydantic import TypeAdapter

from rayfl.errors import Unknown

PAPERS = ("fedco2", "fedios", "dcpfl", "fdse", "outside", "published")


@dataclass(frozen=True, kw_only=True)
class CellFigure:
    """A figure of a run; by default the headline.

    Attributes:
        average: over clients, at the rounds and view of the headline: ``mean``, ``pooled``, ``weighted`` or
            ``worst_decile``.
        domain: only the clients of this domain.
        view: a view instead of the headline's.
        points: evaluation points; the scores are those at the first of them that the run has.
    """

    average: str = ""
    domain: str = ""
    view: str = ""
    points: tuple[str, ...] = ()


HEADLINE = CellFigure()


@dataclass(frozen=True)
class Column:
    """A printed column, and where our runs have its figures.

    Attributes:
        cell: the column of the table file whose runs have the figure.
        figure: the figure of a run.
        mean_of: instead of these, the printed columns whose mean this column is.
    """

    cell: str = ""
    figure: CellFigure = HEADLINE
    mean_of: tuple[str, ...] = ()


@dataclass(frozen=True)
class Printed:
    """A table of a paper.

    Attributes:
        name: such as ``fedco2_t3``.
        paper: the paper.
        number: its number in the paper.
        title: what it shows.
        columns: name -> where our figures are.
        spread: the meaning of ± in the paper; empty: no ± is printed.
        rows: name -> column -> printed mean and deviation; either may be missing.
        same: our rows that are compared with a row of another name.
        figures: our rows that show another row's runs: name -> that row, and the figure; None: the columns'
            figures, for the same setting under another name.
        notes: about the printed numbers.
        unreachable: row (or ``*``) -> column (or ``*``) -> why we cannot reproduce the number.
    """

    name: str
    paper: str
    number: str
    title: str
    columns: dict[str, Column]
    spread: str = ""
    # int: whole numbers stay whole in JSON and CSV.
    rows: dict[str, dict[str, tuple[int | float | None, int | float | None]]] = field(default_factory=dict)
    same: dict[str, str] = field(default_factory=dict)
    figures: dict[str, tuple[str, CellFigure | None]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unreachable: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, list[Column]]:
        """Return for every column the columns that it averages; by default itself."""
        return {
            name: [self.columns[part] for part in column.mean_of] or [column]
            for name, column in self.columns.items()
        }

    def reason(self, row: str, column: str) -> str | None:
        """Return why we cannot reproduce a printed number; None: no known reason."""
        reasons = (self.unreachable.get(r, {}).get(c) for r in (row, "*") for c in (column, "*"))
        return next(filter(None, reasons), None)


def printed_table(name: str) -> Printed | None:
    """Return the table of that name; None: no paper has it."""
    paper, _, table = name.partition("_")
    return known_tables().get(paper, {}).get(table)


@cache
def known_tables() -> dict[str, dict[str, Printed]]:
    """Return paper -> its tables with printed numbers or a layout, by their names within it."""
    return {paper: _read_paper(paper) for paper in PAPERS}


def _read_paper(paper: str) -> dict[str, Printed]:
    text = resources.files("rayfl.report").joinpath("papers", f"{paper}.yaml").read_text()
    content = yaml.safe_load(text)
    for short, table in content["tables"].items():
        table |= {"name": f"{paper}_{short}", "paper": content["paper"]}
        for row, values in table.get("rows", {}).items():
            pairs = [value if isinstance(value, list) else (value, None) for value in values]
            table["rows"][row] = dict(zip(table["columns"], pairs))
        for row, where in table.get("figures", {}).items():
            table["figures"][row] = (where["row"], where.get("figure"))
    return TypeAdapter(dict[str, Printed]).validate_python(content["tables"])


def find_printed(paper: str, table: str) -> Printed:
    """Return a table of a paper."""
    tables = known_tables()
    if paper not in tables:
        raise Unknown("--against", f"{paper}: there is no such paper; there are {', '.join(tables)}")
    if table not in tables[paper]:
        raise Unknown("--against", f"{paper} {table}: {paper} has {', '.join(tables[paper])}")
    return tables[paper][table]
