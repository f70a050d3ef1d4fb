"""``rayfl runs [FOLDER ...]``: list the runs below folders, and how far each has got."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from rich.table import Table
from rich.text import Text

from rayfl.commands.command_line import Parser, parser_of_function
from rayfl.errors import InUse, Missing, UserError
from rayfl.evaluation.run_records import RunRecords, run_folders
from rayfl.record.history import CONFIG, LOG, METRICS
from rayfl.report.formats import csv_text
from rayfl.report.text import plain_table
from rayfl.settings.description import flatten_config
from rayfl.system.error_report import exit_code
from rayfl.system.files import lock_folder, read_file
from rayfl.system.terminal import Terminal
from rayfl.system.text import counted, one_line, print_note, warn

SHOWN_FACTS = ("folder", "method", "data", "state", "headline", "rounds", "age")
"""Those of the table; CSV and JSON have all."""


def parser() -> Parser:
    """Return the parser of the command line."""
    return parser_of_function(list_runs, {"folders": "FOLDER"}, prog="rayfl runs")


def list_runs(folders: Sequence[str] | None, format: Literal["table", "csv", "json"] = "table") -> None:
    """List runs, the one with the newest round first: method, data, whether it is running, finished, stopped
    or failed, the figure that its protocol reports, completed rounds, and the time since the last one.

    Args:
        folders: folders that hold runs; default: runs.
        format: how to print the list.
    """
    found, records = run_folders(map(Path, folders or ["runs"])), list[dict[str, Any]]()
    if not any((folder / CONFIG).is_file() for folder in found):
        raise Missing(found[0], "has no run", "name a folder that holds some")
    for folder in found:
        try:
            records.append(run_record(RunRecords.load(folder)))
        except (UserError, OSError) as error:
            warn(f"left out: {error}")
    records.sort(key=lambda record: str(record["last_round"]), reverse=True)
    if format == "table":
        return Terminal(width=None if Terminal().is_terminal else 200).print(runs_table(records))
    text = json.dumps(records, indent=1) if format == "json" else csv_text(records)
    print_note(text.replace("\r", "").strip())


def run_record(run: RunRecords) -> dict[str, Any]:
    """Return what the list says of a run; ``figure`` is as ``summary.json`` has it."""
    config, kind, summary = flatten_config(run.config, shown=True), run.figure_kind, run.summary
    figure = (summary["headline"] or {}).get("figure")
    last_round = datetime.fromtimestamp((run.folder / METRICS).stat().st_mtime, UTC)
    return {
        "folder": str(run.folder),
        "method": config.get("method"),
        "data": ", ".join(str(config[name]) for name in ("data", "data.partition") if config.get(name)),
        "state": "finished" if run.complete else unfinished_state(run),
        "headline": kind.shown(figure) + kind.unit * (figure is not None),
        "rounds": f"{summary['completed']} of {summary['rounds']}",
        "age": age_text((datetime.now(UTC) - last_round).total_seconds()),
        "figure": figure,
        "completed": summary["completed"],
        "last_round": last_round.isoformat(timespec="seconds"),
    }


def unfinished_state(run: RunRecords) -> Literal["running", "failed", "stopped"]:
    """Return whether a process runs what lacks rounds, or how that has ended."""
    try:
        with lock_folder(run.folder):
            pass  # at once: a run that starts meanwhile needs the lock
    except InUse:
        return "running"
    log = b"".join(map(read_file, run.folder.glob(LOG)))  # nothing where there is none
    levels = re.findall(rb"^\S+ (\w+) (?!KeyboardInterrupt)", log, re.MULTILINE)  # of the messages
    return "failed" if levels[-1:] == [b"ERROR"] else "stopped"


def age_text(seconds: float) -> str:
    """Return a duration in the largest unit that fits into it: ``5 min``."""
    units = {"d": 86400, "h": 3600, "min": 60, "s": 1}
    return next((f"{seconds // units[unit]:.0f} {unit}" for unit in units if seconds >= units[unit]), "0 s")


def runs_table(records: Sequence[Mapping[str, Any]]) -> Table:
    """Return the list as a table; where a terminal lacks room, it cuts the data first."""
    table = plain_table(counted(len(records), "run"))
    table.padding = 0, 1, 0, 0
    for name in SHOWN_FACTS:
        table.add_column(name, justify="right" if name in SHOWN_FACTS[4:] else "left", no_wrap=name != "data")
    for record in records:
        table.add_row(
            *(Text(one_line(f"{record[c]}"), no_wrap=True, overflow="ellipsis") for c in SHOWN_FACTS)
        )
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 2 after an error of the user's."""
    return exit_code(lambda: list_runs(**vars(parser().read(arguments))))
