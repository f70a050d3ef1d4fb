"""Messages while rayfl works: warnings on standard error, and all messages in a run's ``run.log``.

All use the logger ``rayfl`` of Python's ``logging``, so that a program can send them elsewhere.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Literal, Self

from rayfl.system.text import indent_message

Level = Literal["debug", "info", "warning"]

log = logging.getLogger("rayfl")


class _Formatter(logging.Formatter):
    """Escapes names in messages, which may come from anywhere."""

    converter = time.gmtime  # type: ignore[assignment]  # as Python's own documentation does

    def format(self, record: logging.LogRecord) -> str:
        return indent_message(super().format(record))


class _WarningHandler(logging.StreamHandler):
    """Prints warnings in the form of rayfl's other messages."""

    def __init__(self) -> None:
        super().__init__()
        self.setLevel(logging.WARNING)
        self.setFormatter(_Formatter("warning: %(message)s"))


@contextmanager
def warnings_shown() -> Iterator[None]:
    """Show warnings on standard error, once even if a command and its run both ask for it."""
    if any(isinstance(handler, _WarningHandler) for handler in log.handlers):
        yield
        return
    shown = _WarningHandler()
    log.addHandler(shown)
    try:
        yield
    finally:
        log.removeHandler(shown)


class RunLog:
    """The messages of a run, for a file in its folder; use it as a context manager.

    The folder is made late: earlier messages wait in memory.

    Args:
        level: the least important messages that are kept.
    """

    def __init__(self, level: Level) -> None:
        self._level = logging.getLevelName(level.upper())
        self._handler = MemoryHandler(10_000, flushLevel=logging.CRITICAL + 1, flushOnClose=False)
        self._handler.setLevel(self._level)

    def __enter__(self) -> Self:
        self._before = log.level
        log.addHandler(self._handler)
        log.setLevel(self._level)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:  # the caller shows it; here it is logged
            text = f"{type(error).__name__}: {error}"
            self._handler.handle(log.makeRecord(log.name, logging.ERROR, __file__, 0, "%s", (text,), None))
        log.setLevel(self._before)
        log.removeHandler(self._handler)
        if (file := self._handler.target) is not None:
            self._handler.flush()
            with suppress(OSError):
                file.close()
        self._handler.close()

    def open(self, path: Path) -> None:
        """Append the messages so far to a file, and from now on every message at once.

        Raises:
            OSError: it cannot be written, or is a pipe, on which writing may never end.
        """
        if path.is_fifo():
            raise OSError("it is a pipe")
        file = _LogFile(path, encoding="utf-8")
        file.setFormatter(_Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%SZ"))
        self._handler.setTarget(file)
        self._handler.flush()
        self._handler.flushLevel = self._level


class _LogFile(logging.FileHandler):
    """A log file that may become full: only a run's records must not be lost."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Leave the message out."""
