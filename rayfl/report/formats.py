"""Tables as files: Markdown, HTML, LaTeX, CSV and JSON, with every name escaped for its format."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape
from rich.table import Table
from rich.text import Text

from rayfl.errors import BadValue
from rayfl.report.page import render
from rayfl.system.files import write_file
from rayfl.system.text import csv_cell, escape_latex, escape_markdown, one_line

if TYPE_CHECKING:
    import pandas as pd  # imported where tables are made: the import is slow, and runs do not need it

Records = Sequence[Mapping[str, Any]]

STYLES = {"best": "bold", "second": "underline"}
"""Text style of a rank."""
MARKS = "Bold: the best of the {where}; underlined: the second."
SIGNS = ("‡", "§", "¶", "‖")
"""The sign at the start of a warning is also put behind the figure."""


def ranked_cell(text: str, rank: str = "") -> Text:
    """Return the cell of a table, which shows its rank: "best", "second" or none."""
    return Text(text, STYLES.get(rank, ""))


def signed_texts(warnings: Iterable[str]) -> list[str]:
    """Return the warnings that have a sign, each once."""
    return [text for text in dict.fromkeys(warnings) if text.startswith(SIGNS)]


def warning_signs(warnings: Iterable[str]) -> str:
    """Return what stands behind the figure that warnings are about."""
    return "".join(text[0] for text in signed_texts(warnings))


def markdown_text(table: Table, notes: Sequence[str]) -> str:
    """Return a table as Markdown, with its title above and a list of notes below."""
    frame = _frame(table, escape_markdown, "**{}**", "<ins>{}</ins>")
    rows = [list(frame.columns), ["---"] * len(frame.columns), *frame.values.tolist()]
    title, *listed = map(escape_markdown, (str(table.title), *notes))
    lines = [f"# {title}", "", *(f"| {' | '.join(row)} |" for row in rows), ""]
    return "\n".join([*lines, *(f"- {note}" for note in listed), ""])


def html_text(table: Table, notes: Sequence[str]) -> str:
    """Return a table as a self-contained HTML page."""
    import pandas as pd

    frame = _frame(table, lambda text: escape(one_line(text)), "<b>{}</b>", "<u>{}</u>")
    with pd.option_context("display.max_colwidth", None):  # which would cut texts
        shown = frame.to_html(index=False, escape=False, border=0)
    return (
        render(
            "saved_table.html",
            title=one_line(str(table.title)),
            left=[number for number, side in enumerate(_sides(table), 1) if side == "l"],
            table=Markup(shown),
            notes=map(one_line, notes),
        )
        + "\n"
    )


def latex_text(table: Table, notes: Sequence[str], warnings: Sequence[str] = ()) -> str:
    """Return a LaTeX table, with booktabs' rules and the notes in its caption.

    Args:
        table: the table.
        notes: sentences of the caption.
        warnings: written as comments above the table.
    """
    frame = _frame(table, escape_latex, r"\textbf{{{}}}", r"\underline{{{}}}")
    caption = " ".join(
        [f"{escape_latex(one_line(str(table.title))).rstrip('.')}.", *map(escape_latex, notes)]
    )
    sides = "".join(_sides(table))
    text = frame.to_latex(index=False, escape=False, column_format=sides, caption=caption, position="t")
    text = text.replace("\\begin{tabular}", "\\centering\n\\begin{tabular}", 1)
    comments = ["Needs \\usepackage{booktabs}.", *warnings]
    return "".join(f"% {one_line(line)}\n" for line in comments) + text


def csv_text(records: Records) -> str:
    """Return records as CSV, a column for each key; no text is a formula in a spreadsheet."""
    import pandas as pd

    lines = [{csv_cell(key): csv_cell(value) for key, value in each.items()} for each in records]
    return pd.DataFrame(lines, dtype=object).to_csv(
        index=False, lineterminator="\r\n"
    )  # 3 must not become 3.0


def write_table(
    path: Path,
    table: Table,
    notes: Sequence[str],
    records: Records,
    warnings: Sequence[str] = (),
    **more: Any,
) -> None:
    """Write a table to a file in the format of the file's ending.

    Args:
        path: of the file.
        table: as it is laid out, for Markdown, HTML and LaTeX.
        notes: sentences about it.
        records: its figures, for CSV and JSON. CSV has the number of
            seeds, the warnings as one text, and no other list or mapping.
        warnings: about single figures.
        more: further keys of the JSON file.
    """
    lines = [*notes, *warnings]
    content = {"title": one_line(str(table.title)), "cells": list(records), **more}
    makers: dict[str, Callable[[], str]] = {
        ".md": lambda: markdown_text(table, lines),
        ".html": lambda: html_text(table, lines),
        ".tex": lambda: latex_text(table, notes, warnings),
        ".csv": lambda: csv_text([_flat_record(record) for record in records]),
        ".json": lambda: json.dumps(content, indent=1, ensure_ascii=False) + "\n",
    }
    write_file(path, makers[path.suffix](), "choose another place")


SUFFIXES = (".md", ".csv", ".json", ".html", ".tex")
"""Formats of tables."""


def check_ending(path: Path) -> None:
    """Refuse a file whose ending names no format."""
    if path.suffix not in SUFFIXES:
        raise BadValue(path, "names no format of tables", f"its ending must be one of {', '.join(SUFFIXES)}")


def _flat_record(record: Mapping[str, Any]) -> dict[str, Any]:
    cells = {**record, "warnings": "; ".join(record["warnings"]), "seeds": len(record["seeds"])}
    return {key: value for key, value in cells.items() if not isinstance(value, list | dict)}


def _frame(table: Table, escaped: Callable[[str], str], best: str, second: str) -> pd.DataFrame:
    """Return the escaped texts of a table; texts with a rank are put into its pattern."""
    import pandas as pd

    patterns = {STYLES["best"]: best, STYLES["second"]: second}

    def marked(found: object) -> str:
        style = str(found.style) if isinstance(found, Text) else ""
        return patterns.get(style, "{}").format(escaped(str(found)))

    columns = [[marked(found) for found in column.cells] for column in table.columns]
    heads = [escaped(str(column.header).replace("\n", " ")) for column in table.columns]
    return pd.DataFrame(list(zip(*columns)), columns=heads)


def _sides(table: Table) -> list[str]:
    return ["r" if column.justify == "right" else "l" for column in table.columns]
