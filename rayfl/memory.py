"""How much memory is free."""

from __future__ import annotations

import contextlib
from pathlib import Path

from rayfl.errors import UserError

GROUP = Path("/sys/fs/cgroup")


def available_memory() -> float:
    """Return the bytes of memory that are free for more; infinity where nobody says."""
    free = float("inf")
    with contextlib.suppress(OSError, ValueError, KeyError):
        free = 1024.0 * _figures(Path("/proc/meminfo"))["MemAvailable:"]
    with contextlib.suppress(OSError, ValueError):  # "max" where the container has no limit of its own
        limit = int((GROUP / "memory.max").read_text())
        used = int((GROUP / "memory.current").read_text())
        with contextlib.suppress(OSError, ValueError, KeyError):  # copies of files, which give way
            used -= _figures(GROUP / "memory.stat")["inactive_file"]
        free = min(free, float(limit - used))
    return free


def check_memory(size: float, what: str, remedy: str) -> None:
    """Refuse what would not fit: the system would let it begin, and end the process halfway.

    Args:
        size: bytes that are needed.
        what: what needs them, for the message.
        remedy: what to do about it.

    Raises:
        UserError: fewer bytes are free.
    """
    if size > (free := available_memory()):
        raise UserError(
            f"{what} need {size / 1e9:,.1f} GB of memory, and {free / 1e9:,.1f} are free: {remedy}"
        )


def _figures(path: Path) -> dict[str, int]:
    """Return the first number behind every name of a file with a name in each line."""
    return {name: int(number) for name, number, *_ in map(str.split, path.read_text().splitlines())}
