"""Folders of sweeps and tables whose files are damaged or made up."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from rayfl.commands.table import plan_cells
from rayfl.errors import Damaged, Missing, Unknown
from rayfl.federation import federation_of
from rayfl.jobs.table_file import Table
from rayfl.tune.space import Space
from tests.hostile.harness import Case

TINY = {
    **{"data": "Synthetic", "data.train": 60, "data.test": 20, "data.val_fraction": 0.2, "net": "LeNet"},
    **{"clients": 2, "rounds": 1, "engine": "Inline", "quiet": True, "loggers": []},
}
SPACE = {"sweep": "mine", "base": {"method": "Ditto", **TINY}, "search": {"method.mu": [0.1, 1.0]}}
TABLE = {
    "table": "mine",
    "seeds": [0],
    "base": TINY,
    "columns": {"C": {}},
    "rows": {"R": {"method": "FedAvg"}},
}
CELL, TRIAL = "folder/R/C/seed-0", "trials/mu=0.1/seed-0"

_made = tempfile.TemporaryDirectory(prefix="hostile-")


@cache
def _sweep() -> Path:
    """Make a sweep of two points that is over."""
    folder = Path(_made.name, "sweep")
    folder.mkdir()
    (folder.parent / "space.yaml").write_text(yaml.safe_dump(SPACE))
    space = Space.load(folder.parent / "space.yaml")
    space.save(folder)
    for point in space.example_points():
        output = str(point.trial_job(0, folder).folder)
        federation_of(point.settings | {"seed": 0, "output": output}).run()
    return folder


@cache
def _table() -> Path:
    """Make a table of one cell that is finished."""
    folder = Path(_made.name, "table")
    folder.mkdir()
    (folder.parent / "table.yaml").write_text(yaml.safe_dump(TABLE))
    (cell,), _ = plan_cells(Table.load(folder.parent / "table.yaml"), ["R"], ["C"], [0], {}, folder)
    federation_of(cell.settings | {"seed": 0, "output": str(cell.folder)}).run()
    return folder


def sweep(*path: Any) -> Callable[[Path], None]:
    """Set a value in ``sweep.json``."""

    def prepare(folder: Path) -> None:
        shutil.copytree(_sweep(), folder / "folder")
        file = folder / "folder" / "sweep.json"
        content = json.loads(file.read_text())
        *above, last, value = path
        place = content
        for key in above:
            place = place[key]
        place[last] = value
        file.write_text(json.dumps(content))

    return prepare


def in_sweep(name: str, content: bytes | None) -> Callable[[Path], None]:
    """Write a file in the folder of a sweep; None makes a fifo."""
    return lambda folder: _write(shutil.copytree(_sweep(), folder / "folder"), name, content)


def in_cell(name: str, content: bytes | None) -> Callable[[Path], None]:
    """Write a file in the run folder of a table's cell."""

    def prepare(folder: Path) -> None:
        shutil.copytree(_table(), folder / "folder")
        (folder / "table.yaml").write_text(yaml.safe_dump(TABLE))
        _write(folder / CELL, name, content)

    return prepare


def _write(folder: Path, name: str, content: bytes | None) -> None:
    (path,) = [*folder.glob(name)] or [folder / name]
    path.unlink(missing_ok=True)
    if content is None:
        os.mkfifo(path)
    else:
        path.write_bytes(content)


RESUME = "tune --resume folder"
RUN = "table table.yaml --output folder"
SWEEP = "folder/sweep.json"
NESTED = b"[" * 100_000 + b"\n{}\n"

CASES = [
    *(
        Case(f"sweep: {key} {value!r:.20}", RESUME, Damaged, SWEEP, prepare=sweep(key, value))
        for key, values in {
            "sweep": (None,),
            "title": ({},),
            "search": (None, [], [[]], [[{"key": "x"}]], [[{"key": "x", "kind": "grid", "values": [1]}]]),
            "base": (None, "x"),
            "seeds": (None, [], [0, 0], [True]),
            "metric": ("speed", []),
            "mode": ("most",),
            "best": (1,),
            "scheduler": ("x", 3, [], {}),
            "samples": (0,),
            "at_once": ("x", 0, 1.5, True),
            "more": (1,),
        }.items()
        for value in values
    ),
    Case("sweep: unknown setting", RESUME, Unknown, "nonsense", prepare=sweep("base", "nonsense", 1)),
    *(
        Case(f"sweep.json {content!r:.20}", RESUME, Damaged, SWEEP, prepare=in_sweep("sweep.json", content))
        for content in (NESTED, b"\xff", b"[]")
    ),
    Case("sweep.json as fifo", RESUME, Missing, "folder", prepare=in_sweep("sweep.json", None)),
    *(
        Case(f"trial: {name}", RESUME, Damaged, name, prepare=in_sweep(f"{TRIAL}/{name}", content))
        for name, content in (("summary.json", b"{}"), ("metrics.jsonl", b"[]\n{}\n"), ("config.yaml", b"[]"))
    ),
    *(
        Case(f"cell: {name} {content!r:.20}", RUN, kind, name, prepare=in_cell(name, content), writes=True)
        for name, content, kind in (
            ("summary.json", b"{}", Damaged),
            ("summary.json", b'{"completed": "1"}', Damaged),
            ("summary.json", NESTED, Damaged),
            ("summary.json", None, Missing),
            ("metrics.jsonl", b"[]\n{}\n", Damaged),
            ("partition.json", b"\xff", Damaged),
            ("partition.json", None, Missing),
            ("config.yaml", b"- 1\n", Damaged),
            ("config.yaml", b"seed: {}\n", Damaged),
        )
    ),
]
