"""Runs in processes of their own, which tests wait for and look at."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any


def wait_until(reached: Callable[[], bool], process: subprocess.Popen[Any]) -> None:
    """Return when ``reached``, with the process still running."""
    while not reached():
        try:
            process.wait(0.02)
        except subprocess.TimeoutExpired:
            continue
        said = process.stderr or process.stdout
        raise AssertionError(f"the process has ended early: {said.read() if said else ''}")


def rounds_of(run: Path) -> int:
    """Return how many rounds a run has recorded, 0 where it has not begun."""
    metrics = run / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0
