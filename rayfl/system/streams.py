"""Standard output and error that may be closed or full: a command goes on without them."""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from rayfl.system.text import warn


class Outlet(io.FileIO):
    """A file to write to, which swallows everything once it cannot be written to any more.

    Attributes:
        lost: why it cannot be written to; None while it can.

    Args:
        descriptor: of the file, which stays open.
        told: called with the error when the file is lost.
    """

    def __init__(self, descriptor: int, told: Callable[[OSError], None] = lambda error: None) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.lost: OSError | None = None
        self._told = told

    def write(self, data: Any) -> int:
        """Write all bytes, or pass over them; return their number."""
        left = memoryview(data).cast("B")
        size = len(left)
        while left and self.lost is None:
            try:
                left = left[os.write(self.fileno(), left) :]
            except BlockingIOError:
                select.select([], [self.fileno()], [])
            except OSError as error:
                self.lost = error
                self._told(error)
        return size


@contextlib.contextmanager
def lasting_output() -> Iterator[Callable[[], OSError | None]]:
    """Go on if standard output or error is closed or full; escape characters that they cannot show.

    Yields:
        A function that returns why standard output is lost; None if it is not.
    """
    before = sys.stdout, sys.stderr
    sys.stderr = _lasting(sys.stderr)
    sys.stdout = _lasting(sys.stdout, _tell)
    try:
        yield lambda: _lost(sys.stdout)
    finally:
        for stream in (sys.stdout, sys.stderr):
            _lost(stream)
        sys.stdout, sys.stderr = before


def _tell(error: OSError) -> None:
    if not isinstance(error, BrokenPipeError):  # the reader has stopped, as in `| head -1`
        warn(f"standard output cannot be written: {error.strerror}")


def _lasting(stream: TextIO | None, told: Callable[[OSError], None] = lambda error: None) -> TextIO:
    """Return a replacement of a stream of the process; other streams, as in notebooks, stay."""
    if stream is None:  # the process was started without it
        return open(os.devnull, "w")
    if stream not in (sys.__stdout__, sys.__stderr__) or not isinstance(stream, io.TextIOWrapper):
        return stream
    with contextlib.suppress(OSError):
        stream.flush()
    outlet: Any = Outlet(stream.fileno(), told)
    return io.TextIOWrapper(
        outlet if stream.write_through else io.BufferedWriter(outlet),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _lost(stream: TextIO) -> OSError | None:
    """Flush a stream; return why it is lost, or None."""
    stream.flush()
    buffer = getattr(stream, "buffer", None)
    outlet = getattr(buffer, "raw", buffer)
    return outlet.lost if isinstance(outlet, Outlet) else None
