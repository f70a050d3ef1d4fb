"""Which cell of which table of experiments a run is."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Cell:
    """The place of a run in a table of experiments; reports sort runs by it.

    Args:
        table: the table's name, such as ``fedco2_t3``.
        row: name of the row.
        column: name of the column.
        changed: settings that differ from those of the table file, as ``key=value``.
    """

    table: str
    row: str
    column: str
    changed: list[str] = field(default_factory=list)
