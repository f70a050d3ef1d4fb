"""How much memory is free, how many CPUs there are, and imports without garbage collection."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import psutil

CGROUP_ROOT = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")
"""Names the control group of this process; in a container it is mostly the topmost one."""


def available_memory() -> float:
    """Return the bytes of free memory, within the limits of a container or a batch job."""
    free = float(psutil.virtual_memory().available)
    for group in _control_groups():
        with contextlib.suppress(OSError, ValueError):  # "max" if the group has no limit of its own
            limit = int((group / "memory.max").read_text())
            used = int((group / "memory.current").read_text())
            with contextlib.suppress(OSError, ValueError, KeyError):  # cached files, which can be dropped
                used -= _numbers_by_name(group / "memory.stat")["inactive_file"]
            free = min(free, float(limit - used))
    return free


def _control_groups() -> list[Path]:
    """Return the folders of this process's control group and of all above it."""
    names: tuple[str, ...] = ()
    with contextlib.suppress(OSError):
        for line in OWN_CGROUP.read_text().splitlines():
            if line.startswith("0::/"):
                names = Path(line.removeprefix("0::/")).parts
    return [CGROUP_ROOT.joinpath(*names[:count]) for count in range(len(names) + 1)]


def count_cpus() -> int:
    """Return how many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_memory(size: float, what: str, advice: str) -> None:
    """Refuse what would not fit: the system would let it begin, and end the process halfway.

    Args:
        size: bytes that are needed.
        what: what needs them, for the message.
        advice: what to do about it.

    Raises:
        Shortage: fewer bytes are free.
    """
    from rayfl.errors import Shortage  # not before an actor keeps searches for garbage off

    if size > (free := available_memory()):
        problem = f"{what} need {size / 1e9:,.1f} GB of memory, and {free / 1e9:,.1f} are free"
        raise Shortage("", problem, advice)


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Pause garbage collection while the body imports, and exempt the imported objects from the next ones.

    PyTorch alone makes some 190,000 objects, and collections take a third of a second. A program that
    controls the collector itself is left alone.
    """
    if not gc.isenabled() or gc.get_freeze_count():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.unfreeze()  # the two together move everything to the oldest generation, unread
        gc.enable()


def _numbers_by_name(path: Path) -> dict[str, int]:
    """Return name -> number of a file with a name and a number in each line."""
    return {name: int(number) for name, number, *_ in map(str.split, path.read_text().splitlines())}
