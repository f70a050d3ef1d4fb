"""Which values a trial has had from which round on, where population based training changes trials."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rayfl.config.table_file import Settings
from rayfl.files import read_json, reading, write_file
from rayfl.record.checkpoint import Checkpoints

SCHEDULE = ".schedule.json"
"""How the file ends that lies beside a run folder."""


def schedule_of(folder: Path) -> Path:
    """Return the file that tells the values of a run folder's trial."""
    return folder.with_name(folder.name + SCHEDULE)


def read_schedule(folder: Path) -> list[dict[str, Any]]:
    """Return the stages of a trial: first ``round``, ``values``, and the ``trial`` that had them then."""
    path = schedule_of(folder)
    if not path.exists():
        return []
    with reading(path, "restore it from a copy, or start the sweep anew"):
        stages: list[dict[str, Any]] = read_json(path)
        if not isinstance(stages, list) or not all(map(_is_stage, stages)):
            raise ValueError("a stage has no round, values and trial")
    return stages


def _is_stage(stage: Any) -> bool:
    return (
        isinstance(stage, dict)
        and type(stage.get("round")) is int
        and isinstance(stage.get("values"), dict)
        and isinstance(stage.get("trial"), str)
    )


def begin(folder: Path, name: str, values: Settings, copied: bool) -> Settings:
    """Note from which round on a trial has which values; return those with which it goes on.

    Args:
        folder: the run folder.
        name: of the trial.
        values: as the scheduler has them.
        copied: whether the trial goes on from a checkpoint that belongs to these values; one that does not,
            because its process has died, keeps the values that it had.
    """
    stages = read_schedule(folder)
    if stages and not copied:
        kept: Settings = stages[-1]["values"]
        return kept
    if not stages or (stages[-1]["values"], stages[-1]["trial"]) != (values, name):
        manifest, _ = Checkpoints(folder / "checkpoints").newest()
        stages.append({"round": manifest.round if manifest else 0, "values": values, "trial": name})
    write_file(schedule_of(folder), json.dumps(stages, indent=1) + "\n")
    return values
