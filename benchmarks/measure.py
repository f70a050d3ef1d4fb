"""Runs a script as a process of its own and measures it from outside: rounds, start-up, memory."""

import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
from workload import WARMUP

HERE = Path(__file__).resolve().parent
TIME_LIMIT = 3600.0
RAY_DAEMONS = (  # parts of the command lines of Ray's own processes
    "/ray/core/", "/ray/_private/", "/ray/autoscaler/", "/ray/dashboard/",
    "ray::DashboardAgent", "ray::RuntimeEnvAgent", "ray::IDLE",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """What one process did."""

    seconds: list[float]
    """Wall time of each round, as the process recorded it."""
    ready: float
    """From the command to the end of the first round, in seconds."""
    clock: float
    """From the end of the first round to the end of the last, in seconds, seen from outside."""
    peak: float | None
    """Peak PSS of all its processes in MB, Ray's daemons apart; None where it was not asked for."""
    daemons: float | None
    """Peak PSS of Ray's daemons in MB."""
    info: dict[str, str]
    """``name`` and ``torch``."""

    @property
    def round(self) -> float:
        """Median seconds of a round after the warm-up."""
        return statistics.median(self.seconds[WARMUP:] or self.seconds)


def launch(command: list[str], folder: Path, memory: bool = False) -> Run:
    """Run ``command``, which makes ``folder/run`` with its records.

    Memory is only sampled where asked for: it costs the process time.

    Raises:
        SystemExit: the process failed; the message has the end of its log.
    """
    folder.mkdir(parents=True)
    records = folder / "run" / "engine.jsonl"
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment |= {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONUNBUFFERED": "1"}
    environment["RAY_worker_niceness"] = "0"  # else whoever else works here slows actors, and no other loop
    first = peak = daemons = 0.0
    started = time.time()
    with (folder / "log.txt").open("w") as log:
        process = psutil.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
        try:
            while process.poll() is None:
                if not first and records.exists() and records.stat().st_size:
                    first = time.time()
                if memory:
                    own, rays = _pss(process)
                    peak, daemons = max(peak, own), max(daemons, rays)
                if time.time() - started > TIME_LIMIT:
                    raise SystemExit(f"{' '.join(command)}: not finished after {TIME_LIMIT:.0f} s")
                time.sleep(1.0 if first else 0.05)
        finally:
            _end(process)
    note = folder / "run" / "info.json"  # written when all rounds are done
    if not note.exists():
        tail = (folder / "log.txt").read_text(errors="replace")[-3000:]
        raise SystemExit(f"{tail}\n{' '.join(command)} failed with exit code {process.returncode}")
    if process.returncode != 0:
        print(f"note: exit code {process.returncode} after the last round", file=sys.stderr)
    written = records.stat().st_mtime
    first = first or written
    seconds = [float(json.loads(line)["seconds"]) for line in records.read_text().splitlines()]
    info = json.loads(note.read_text())
    sizes = (peak, daemons) if memory else (None, None)
    return Run(seconds, first - started, written - first, *sizes, info)


def wait_for_quiet(limit: float = 20.0, seconds: int = 30) -> None:
    """Wait until the machine is at most ``limit`` per cent busy, or say so after ``seconds``."""
    for _ in range(seconds):
        busy = psutil.cpu_percent(1.0)
        if busy < limit:
            return
    print(f"note: others keep the machine {busy:.0f} % busy; figures will be off", file=sys.stderr)


def _pss(root: psutil.Process) -> tuple[float, float]:
    """Return the PSS in MB of a process and its descendants: its own ones, and Ray's daemons among them."""
    own = daemons = 0.0
    for process in _tree(root):
        try:
            command = " ".join(process.cmdline())
            size = process.memory_full_info().pss / 1e6
        except psutil.Error:
            continue
        if any(name in command for name in RAY_DAEMONS):
            daemons += size
        else:
            own += size
    return own, daemons


def _tree(root: psutil.Process) -> list[psutil.Process]:
    try:
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


def _end(root: psutil.Process) -> None:
    """Stop a process and its descendants, where they still run."""
    for process in reversed(_tree(root)):
        try:
            process.kill()
        except psutil.Error:
            continue
    root.wait()
