"""The one exception that is meant for people, and how command lines tell of it."""

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rayfl.shown import complain, told


class UserError(Exception):
    """Something the user can put right: a bad setting, missing or damaged data, an impossible request.

    The message says what is wrong and what to do. The command lines print it without a traceback and exit
    with code 2.
    """


def exit_code(command: Callable[[], int | None]) -> int:
    """Run a command; tell what is wrong in one line on standard error, and so of every warning.

    Files that cannot be read or written, and too little memory, count as errors of the user's, too.

    Returns:
        What the command returns (None is 0), 2 after an error of the user's, 130 after Ctrl-C.
    """
    try:
        with _warnings_told():
            return command() or 0
    except UserError as error:
        return _refused(str(error))
    except OSError as error:
        if error.filename is None:  # not about a file: more likely a mistake of ours
            raise
        return _refused(f"{error.filename}: {error.strerror or error}")
    except MemoryError as error:
        told = f" ({error})" if str(error) else ""
        return _refused(f"not enough memory{told}: use less data, smaller images or fewer clients")
    except KeyboardInterrupt:
        complain("rayfl: interrupted")
        return 128 + signal.SIGINT


def _refused(text: str) -> int:
    complain(f"rayfl: error: {text}")
    return 2


class _Formatter(logging.Formatter):
    """Names may come from anywhere, in warnings as in errors."""

    def format(self, record: logging.LogRecord) -> str:
        return told(super().format(record))


@contextmanager
def _warnings_told() -> Iterator[None]:
    """Show what rayfl's loggers have to say in the form of all other warnings."""
    shown = logging.StreamHandler()
    shown.setLevel(logging.WARNING)
    shown.setFormatter(_Formatter("warning: %(message)s"))
    logger = logging.getLogger("rayfl")
    logger.addHandler(shown)
    try:
        yield
    finally:
        logger.removeHandler(shown)
