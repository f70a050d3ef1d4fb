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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rayfl import ROOT
from rayfl.errors import BadValue, Conflict, Missing, Unknown, UserError, error_context
from rayfl.federation import Federation
from rayfl.methods import METHODS
from rayfl.record.checks import Cell
from rayfl.report.significance import REFERENCE
from rayfl.running.settings import with_data_root
from rayfl.settings.description import changes_data, changes_experiment, class_name
from rayfl.settings.reader import DottedSettings, build_object, flatten_settings, merge_layers, parse_words
from rayfl.settings.yaml_file import read_mapping, read_yaml
from rayfl.system.text import did_you_mean, one_line, short_repr

YamlText = str | int | float
"""A text; YAML takes some for numbers."""

FILE_KINDS = {
    "table file": ({"table", "columns", "rows"}, "a table of experiments: run it with rayfl table"),
    "tune space": ({"sweep", "search"}, "a tune space: run it with rayfl tune"),
    "configuration": ({"method"}, "a configuration of a run: run it with rayfl run --config"),
}
"""Kind of file -> the top-level names that identify it, and what to do with it."""

DECIDED = ("seed", "output", "cell", "config", "resume", "row", "column")
"""Options that a table or sweep sets for its runs."""

MOST_SEEDS = 1000
LONGEST_NAME = 200
"""Bytes of a folder's name; file systems take 255."""


@dataclass(frozen=True)
class _TableFile:
    """What a table file holds."""

    table: YamlText
    columns: Any
    rows: Any
    title: YamlText | None = None
    seeds: Any = (0,)
    base: Any = None
    missing: list[str] = field(default_factory=list)
    reference: YamlText = REFERENCE


@dataclass(frozen=True)
class TableRow:
    """A row: the settings of its cells, and additional ones for single columns."""

    settings: DottedSettings
    at: dict[str, DottedSettings]


@dataclass(frozen=True)
class Table:
    """A table of experiments, as its file describes it.

    Attributes:
        path: the file.
        name: the name in reports and of folders, such as ``fedco2_t3``.
        title: for display.
        seeds: one run of every cell per seed.
        base: settings of all cells.
        columns: name -> settings.
        rows: name -> row.
        missing: methods of rows that rayfl does not have yet; such rows are left out.
        reference: the row that reports compare the others with, if it exists.
    """

    path: Path
    name: str
    title: str
    seeds: tuple[int, ...]
    base: DottedSettings
    columns: dict[str, DottedSettings]
    rows: dict[str, TableRow]
    missing: frozenset[str] = frozenset()
    reference: str = REFERENCE

    @classmethod
    def load(cls, path: str | Path) -> Table:
        """Read a table file."""
        path = Path(path)
        content = read_mapping(path, "table file")
        check_file_kind(path, content, "table file")
        with error_context(path):
            file = build_object(_TableFile, content)
            folder_name("table", file.table)
            columns = {
                key: _read_settings(f"columns.{key}", own)
                for key, own in _named_settings(file, "columns").items()
            }
            rows = {
                key: _read_row(f"rows.{key}", own, columns)
                for key, own in _named_settings(file, "rows").items()
            }
            _check_methods({class_name(row.settings["method"]) for row in rows.values()}, file.missing)
            for names in (columns, rows):
                _check_folders(names)
            for name in (str(file.table), *columns, *rows):
                if name != one_line(name):
                    raise BadValue(f"the name {name!r} has characters that cannot be shown: rename it")
            base, seeds = _read_settings("base", file.base), check_seeds(file.seeds)
            if (reference := str(file.reference)) not in (REFERENCE, *rows):
                raise Unknown("reference", f"{reference!r} is no row{_name_hint(reference, rows)}")
        return cls(
            path,
            str(file.table),
            on_one_line(file.title),
            seeds,
            base,
            columns,
            rows,
            frozenset(file.missing),
            reference,
        )

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
        return method if method in self.missing else None

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
        for name in names:
            if name not in found and class_name(name) not in found:
                raise Unknown(kind, f"{name!r} is not in {self.path}{_name_hint(name, known)}")
        chosen = [found.get(name, found.get(class_name(name))) for name in names]
        return [name for name in known if name in chosen]


def check_file_kind(path: Path, content: Mapping[Any, Any], wanted: str) -> None:
    """Refuse a file of another kind, and name the command that takes it."""
    for kind, (names, use) in FILE_KINDS.items():
        if names <= content.keys():
            if kind != wanted:
                raise BadValue(path, f"is {use} {path}")
            return


def check_seeds(seeds: Any) -> tuple[int, ...]:
    """Return the seeds that a file lists."""
    fine = isinstance(seeds, list | tuple) and seeds and all(type(seed) is int for seed in seeds)
    if not fine or len(set(seeds)) < len(seeds):
        raise BadValue("seeds", f"must be a list of different whole numbers, not {short_repr(seeds)}")
    return tuple(seeds)


def first_seeds(seeds: Sequence[int], count: int | None) -> tuple[int, ...]:
    """Return the requested number of seeds: those of a file, then the smallest other ones."""
    if count is None:
        return tuple(seeds)
    if not 1 <= count <= MOST_SEEDS:
        raise BadValue("--seeds", f"is {count}", f"it must be at least 1 and at most {MOST_SEEDS}")
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


def on_one_line(title: Any) -> str:
    """Return a title as one line; an empty one if it is missing."""
    return one_line(" ".join(str("" if title is None else title).split()))


def folder_name(key: str, name: Any) -> str:
    """Return the name of a table or sweep in the form for its folder.

    Args:
        key: of the name in the file.
        name: the name.
    """
    if not (found := slug_of(str(name))):
        raise BadValue(key, f"is {name!r}", "it must have letters or digits, because it names a folder")
    if len(found.encode()) > LONGEST_NAME:
        raise BadValue(key, f"is {short_repr(name)}: it is too long to name a folder")
    return found


def data_key(settings: DottedSettings) -> str:
    """Return the settings of the data and their division, as one text to compare."""
    return json.dumps({k: v for k, v in sorted(settings.items()) if changes_data(k) or k == "seed"})


def is_table(path: Path) -> bool:
    """Return whether a file is a table of experiments."""
    try:
        content = read_yaml(path)
    except UserError:
        return False
    return isinstance(content, dict) and FILE_KINDS["table file"][0] <= content.keys()


def _named_settings(file: _TableFile, key: str) -> dict[str, Any]:
    content = getattr(file, key)
    if not isinstance(content, dict):
        raise BadValue(key, "must map names to settings")
    return {str(name): settings for name, settings in content.items()}


def _read_row(place: str, content: Any, columns: Collection[str]) -> TableRow:
    content = dict(content) if isinstance(content, dict) else {}
    at = content.pop("at", None) or {}
    if not isinstance(at, dict):
        raise BadValue(f"{place}.at", "must map columns to settings")
    for column in at:
        if column not in columns:
            raise Unknown(f"{place}.at", f"has settings at {column!r}, and there is no such column")
    settings = _read_settings(place, content)
    if not isinstance(settings.get("method"), str):
        raise Missing(place, "names no method")
    return TableRow(
        settings, {column: _read_settings(f"{place}.at.{column}", inner) for column, inner in at.items()}
    )


def _check_methods(named: Collection[str], missing: Collection[str]) -> None:
    """Refuse unknown methods that are not listed as missing, and listed ones that exist or have no row."""
    for method in sorted(missing):
        if method in METHODS or method not in named:
            why = "rayfl has it" if method in METHODS else "no row has it"
            raise Conflict("missing", f"lists the method {method!r}, and {why}", "remove it from the list")
    for method in sorted(named):
        if "." not in method and method not in METHODS and method not in missing:
            hint = _name_hint(method, METHODS)
            raise Unknown("method", f"{method!r} is unknown{hint}; list those to come under missing")


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
        folder = slug_of(name).lower()
        if len(folder.encode()) > LONGEST_NAME:
            raise BadValue(f"{short_repr(name)} is too long: it names a run folder")
        if not folder or folder in folders:
            other = f"{name!r} and {folders[folder]!r}" if folder else f"{name!r}"
            raise Conflict(f"{other} must differ in letters and digits: they name run folders")
        folders[folder] = name


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
