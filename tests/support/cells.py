"""Cells of tables: run in this process, and with times that a test chooses."""

import json
import subprocess
from types import SimpleNamespace

import pytest

from rayfl.jobs import cells
from rayfl.jobs.cells import Job
from rayfl.run import main


def run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(command: list[str], **options: object) -> SimpleNamespace:
        code = main(command[3:])
        return SimpleNamespace(pid=0, returncode=code, poll=lambda: code)

    monkeypatch.setattr(cells, "subprocess", SimpleNamespace(**vars(subprocess) | {"Popen": start}))
    monkeypatch.setattr(cells, "POLL", 0.0)


def record(of: Job, seconds: list[float], finished: bool = False) -> None:
    """Write the times of a cell's rounds, beside other lines."""
    of.folder.mkdir(exist_ok=True)
    lines = [json.dumps({"round": k, "seconds": s}) for k, s in enumerate(seconds)]
    (of.folder / "engine.jsonl").write_text("\n".join(['{"other": 1}', *lines, '{"torn']))
    if finished:
        (of.folder / "summary.json").write_text(json.dumps({"completed": len(seconds)}))
