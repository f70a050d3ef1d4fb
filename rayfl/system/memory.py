"""How much memory is free, and what the search for garbage need not look at."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path

import psutil

GROUP = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
"""Says in which control group this process is; in a container that is mostly the topmost one."""


def available_memory() -> float:
    """Return the bytes of memory that are free for more, within the limits of a container or a batch job."""
    free = float(psutil.virtual_memory().available)
    for group in _groups():
        with contextlib.suppress(OSError, ValueError):  # "max" where the group has no limit of its own
            limit = int((group / "memory.max").read_text())
            used = int((group / "memory.current").read_text())
            with contextlib.suppress(OSError, ValueError, KeyError):  # copies of files, which give way
                used -= _figures(group / "memory.stat")["inactive_file"]
            free = min(free, float(limit - used))
    return free


def _groups() -> list[Path]:
    """Return the folders of this process's control group and of all above it, each with a limit or none."""
    names: tuple[str, ...] = ()
    with contextlib.suppress(OSError):
        for line in OWN.read_text().splitlines():
            if line.startswith("0::/"):
                names = Path(line.removeprefix("0::/")).parts
    return [GROUP.joinpath(*names[:count]) for count in range(len(names) + 1)]


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
        raise Shortage(
            "", f"{what} need {size / 1e9:,.1f} GB of memory, and {free / 1e9:,.1f} are free", advice
        )


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Import what stays without a search for garbage in it, and without one soon after.

    PyTorch alone makes some 190,000 objects, and the searches take a process a third of a second. A program
    that steers the collector itself is left alone.
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


def _figures(path: Path) -> dict[str, int]:
    """Return the first number behind every name of a file with a name in each line."""
    return {name: int(number) for name, number, *_ in map(str.split, path.read_text().splitlines())}
