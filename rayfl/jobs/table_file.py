"""Table files: experiments as rows (methods) and columns (data settings), in YAML.

A file has a name (``table``), a ``title``, ``seeds``, and four layers of settings under the names of the
command line of ``rayfl.run``: ``base`` for all cells, ``columns``, ``rows``, and within a row ``at``, for
single columns of it. Later layers win.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from rayfl import ROOT
from rayfl.errors import BadValue, Conflict, Missing, Unknown, UserError, error_context
from rayfl.federation import Federation
from rayfl.methods import METHODS
from rayfl.record.checks import Cell
from rayfl.report.significance import REFERENCE
from rayfl.running.settings import with_data_root
from rayfl.settings import at_least, at_most
from rayfl.settings.description import changes_data, changes_experiment, class_name
from rayfl.settings.reader import DottedSettings, build_object, flatten_settings, merge_layers, parse_words
from rayfl.settings.yaml_file import read_mapping
from rayfl.system.text import did_you_mean, one_line, short_repr

FILE_KINDS = {
    "table file": ({"table", "columns", "rows"}, "a table of experiments: run it with rayfl table"),
    "tune space": ({"sweep", "search"}, "a tune space: run it with rayfl tune"),
    "configuration": ({"method"}, "a configuration of a run: run it with rayfl run --config"),
}
"""Kind of file -> the top-level names that identify it, and what to do with it."""

DECIDED = ("seed", "output", "cell", "config", "resume", "row", "column")
"""Options that a table or sweep sets for its runs."""

SeedCount = Annotated[int, at_least(1), at_most(1000)]
"""How many seeds a command is asked to run."""
LONGEST_NAME = 200
"""Bytes of a folder's name; file systems take 255."""


@dataclass(frozen=True)
class TableRow:
    """A row: the settings of its cells, and additional ones for single columns."""

    settings: DottedSettings
    at: dict[str, DottedSettings]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of experiments, as its file describes it.

    Attributes:
        path: the file.
        table: the name in reports and of folders, such as ``fedco2_t3``.
        columns: name -> settings.
        rows: name -> row.
        title: for display; by default the name.
        seeds: one run of every cell per seed.
        base: settings of all cells.
        missing: methods of rows that rayfl does not have yet; such rows are left out.
        reference: the row that reports compare the others with, if it exists.
    """

    path: Path
    table: str
    columns: dict[str, DottedSettings]
    rows: dict[str, TableRow]
    title: str = ""
    seeds: tuple[int, ...] = (0,)
    base: DottedSettings = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    reference: str = REFERENCE

    def __post_init__(self) -> None:
        """Refuse names that are no folders, names of nothing, and unknown methods."""
        folder_name("table", self.table)
        check_seeds(self.seeds)
        for names in ([self.table], self.columns, self.rows):
            _check_folders(names)
        known = [*METHODS, *self.missing]
        for name, row in self.rows.items():
            method = class_name(row.settings["method"])
            if "." not in method and method not in known:
                hint = _name_hint(method, known)
                raise Unknown("method", f"{method!r} is unknown{hint}; list those to come under missing")
            if odd := row.at.keys() - self.columns.keys():
                problem = f"has settings at {min(odd)!r}, and there is no such column"
                raise Unknown(f"rows.{name}.at", problem)
        if self.reference not in (REFERENCE, *self.rows):
            raise Unknown("reference", f"{self.reference!r} is no row{_name_hint(self.reference, self.rows)}")

    @property
    def name(self) -> str:
        """The name in reports and of folders."""
        return self.table

    @classmethod
    def load(cls, path: str | Path) -> Table:
        """Read a table file."""
        path = Path(path)
        content = read_file_of(path, "table file")
        with error_context(path):
            made = {"path": path, "title": content.get("title") or content.get("table", "")}
            made["base"] = _read_settings("base", content.get("base"))
            for key, read in (("columns", _read_settings), ("rows", _read_row)):
                if key in content:
                    made[key] = _read_named(key, content[key], read)
            return build_object(cls, content | made)

    def settings(self, row: str, column: str, changes: Mapping[str, Any] | None = None) -> DottedSettings:
        """Return the settings of a cell, with changes, and its place in the table."""
        (row,), (column,) = self.choose("row", [row]), self.choose("column", [column])
        chosen = self.rows[row]
        layers = (self.base, self.columns[column], chosen.settings, chosen.at.get(column, {}), changes or {})
        changed = {name: value for name, value in (changes or {}).items() if changes_experiment(name)}
        texts = [f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in changed.items()]
        place = Cell(table=self.name, row=row, column=column, changed=texts)
        return with_data_root(merge_layers(*layers)) | {"cell": asdict(place)}

    def asked_cell(self, asked: Mapping[str, Any], changes: DottedSettings, above: str) -> DottedSettings:
        """Return the settings of the cell that is asked for; the only row or column need not be named.

        Args:
            asked: ``row`` and ``column``, as far as they are given.
            changes: as for :meth:`settings`.
            above: what stands before ``row`` and ``column`` where the user gives them.
        """
        chosen = {}
        for kind in ("row", "column"):
            known, name = self.choose(kind, None), asked.get(kind)
            if name is None and len(known) != 1:
                problem = f"is not said: {self.path} is a table, of whose {kind}s one must be chosen"
                raise Missing(f"{above}{kind}", f"{problem} ({', '.join(known)})")
            chosen[kind] = known[0] if name is None else str(name)
        return self.settings(chosen["row"], chosen["column"], changes)

    def missing_method(self, settings: Mapping[str, Any]) -> str | None:
        """Return the settings' method if the file lists it as missing from rayfl; None otherwise."""
        method = settings.get("method")
        return method if method in self.missing and method not in METHODS else None  # also those of later

    def choose(self, kind: str, names: Sequence[str] | None) -> list[str]:
        """Return the rows or columns of these names in the order of the file; all if None are named.

        Args:
            kind: ``row`` or ``column``.
            names: the names asked for.
        """
        known = self.rows if kind == "row" else self.columns
        if names is None:
            return list(known)
        found = {class_name(own): own for own in known} | {own: own for own in known}
        chosen = [found.get(name, found.get(class_name(name))) for name in names]
        if None in chosen:
            name = names[chosen.index(None)]
            raise Unknown(kind, f"{name!r} is not in {self.path}{_name_hint(name, known)}")
        return [name for name in known if name in chosen]


def read_file_of(path: Path, wanted: str) -> dict[str, Any]:
    """Read a file of a kind, of which another kind is refused with the command that takes it.

    Returns:
        Its content; names and titles, of which YAML takes some for numbers, are texts, titles in one line.
    """
    content = read_mapping(path, wanted)
    kind = next((kind for kind, (names, _) in FILE_KINDS.items() if names <= content.keys()), wanted)
    if kind != wanted:
        raise BadValue(path, f"is {FILE_KINDS[kind][1]} {path}")
    for key in content.keys() & {"table", "sweep", "title", "reference"}:
        if isinstance(content[key], str | int | float):
            text = str(content[key])
            content[key] = one_line(" ".join(text.split())) if key == "title" else text
    return content


def check_seeds(seeds: Sequence[int]) -> None:
    """Refuse no seeds, and one that is there twice."""
    if not 0 < len(seeds) == len(set(seeds)):
        raise BadValue("seeds", f"must be different whole numbers, not {short_repr(seeds)}")


def first_seeds(seeds: Sequence[int], count: int | None) -> tuple[int, ...]:
    """Return the requested number of seeds: those of a file, then the smallest other ones."""
    if count is None:
        return tuple(seeds)
    others = (seed for seed in itertools.count() if seed not in seeds)
    return tuple(itertools.islice(itertools.chain(seeds, others), count))


def changes_of(given: Any, what: str) -> DottedSettings:
    """Return the settings that options of ``rayfl.run`` and ``--rounds`` change.

    Args:
        given: the parsed command line.
        what: ``table`` or ``sweep``, which sets all other options.
    """
    for name, value in given.settings.items():
        if name in DECIDED:
            raise Conflict(f"--{name}", f"{value}: the {what} decides {name}")
    settings = parse_words(flatten_settings(given.settings), Federation)
    return settings | ({} if given.rounds is None else {"rounds": given.rounds})


def slug_of(name: str) -> str:
    """Return a name in a form that can be part of a path."""
    return re.sub(r"[^\w.=+-]+", "-", name).strip("-.")


def folder_name(key: str, name: str) -> str:
    """Return the name of a table or sweep in the form for its folder.

    Args:
        key: of the name in the file.
        name: the name.
    """
    found = slug_of(name)
    if not 0 < len(found.encode()) <= LONGEST_NAME:
        needs = f"it must have letters or digits, and at most {LONGEST_NAME} bytes, because it names a folder"
        raise BadValue(key, f": the name is {short_repr(name)}", needs)
    return found


def data_key(settings: DottedSettings) -> str:
    """Return the settings of the data and their division, as one text to compare."""
    return json.dumps({k: v for k, v in sorted(settings.items()) if changes_data(k) or k == "seed"})


def is_table(path: Path) -> bool:
    """Return whether a file is a table of experiments."""
    try:
        return FILE_KINDS["table file"][0] <= read_mapping(path, "table file").keys()
    except UserError:
        return False


def _read_named(place: str, content: Any, read: Callable[[str, Any], Any]) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise BadValue(place, "must map names to settings")
    return {str(name): read(f"{place}.{name}", own) for name, own in content.items()}


def _read_row(place: str, content: Any) -> TableRow:
    content = dict(content) if isinstance(content, dict) else {}
    at = _read_named(f"{place}.at", content.pop("at", None) or {}, _read_settings)
    settings = _read_settings(place, content)
    if not isinstance(settings.get("method"), str):
        raise Missing(place, "names no method", "write it into each row, as in method: FedPer")
    return TableRow(settings, at)


def _read_settings(place: str, content: Any) -> DottedSettings:
    """Check that settings are options with values; a mapping is the value of one option."""
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise BadValue(place, f"must map options to values, and is {short_repr(content)}")
    for option in content:
        if option in DECIDED:
            raise Conflict(f"{place}.{option}", "is for the table to decide", "leave it out")
    return flatten_settings(content)


def _check_folders(names: Collection[str]) -> None:
    folders: dict[str, str] = {}
    for name in names:
        if name != one_line(name):
            raise BadValue(f"the name {name!r} has characters that cannot be shown: rename it")
        other = folders.setdefault(folder_name("", name).lower(), name)
        if other != name:
            raise Conflict(f"{name!r} and {other!r} must differ in letters and digits: they name run folders")


def _name_hint(wrong: str, known: Collection[str]) -> str:
    return f"{did_you_mean(wrong, known)} There are {', '.join(known)}"


Kind = Literal["examples", "tune_spaces"]


def shipped_folder(kind: Kind) -> Path:
    """Return where what comes with rayfl is: in the installed package, or beside it in a checkout."""
    inside = ROOT / kind
    return inside if inside.is_dir() else ROOT.parent / kind


def shipped_names(kind: Kind) -> list[str]:
    """Return the names of what there is, such as ``fedco2/t3`` or ``fdse``."""
    home = shipped_folder(kind)
    found = [
        path.relative_to(home).with_suffix("").as_posix()
        for path in home.rglob("*.yaml")
        if "clusters" not in path.parts
        and (kind == "tune_spaces" or path.parent != home)  # there: single runs
    ]
    return sorted(found, key=lambda name: re.sub(r"\d+", lambda number: number[0].zfill(9), name))


def find_file(given: str, kind: Kind) -> Path:
    """Return the file that a command line means: one of the user's, or else one that comes with rayfl.

    Args:
        given: a path, or a name such as ``fedco2/t3``.
        kind: the folder in which names are looked up.

    Raises:
        UserError: the name is of neither.
    """
    path = Path(os.path.expanduser(given))
    could_be_a_name = given.isprintable() and len(given) <= 100
    if path.suffix in (".yaml", ".yml") or not could_be_a_name or path.exists():
        return path  # whoever reads it says so if it is not there
    known = shipped_names(kind)
    if given in known:
        return shipped_folder(kind) / f"{given}.yaml"
    raise Unknown(given, f"is no file, and none of this name comes with rayfl{_name_hint(given, known)}")
