"""How a command reports an error: in one line, with the traceback of the user's own code below it."""

from __future__ import annotations

import errno
import signal
import traceback
from collections.abc import Callable

from rayfl.errors import BadCode, BadValue, Missing, Shortage, UserError, out_of_memory, shortage, text_of
from rayfl.system.log import warnings_shown
from rayfl.system.own_code import RAYFL, is_own
from rayfl.system.streams import lasting_output
from rayfl.system.text import complain, one_line

LONGEST = 1500
"""Most characters of an error line; the longest ones list all nets."""


def exit_code(command: Callable[[], int | None], shows: bool = False) -> int:
    """Run a command; report an error in one line on standard error, and warnings likewise.

    Files that cannot be read or written, too little memory, and errors in the user's own code, such as a net
    or a data set, count as user errors. The traceback of the user's code follows. Standard output that is
    closed or full does not end the command.

    Args:
        command: what to run.
        shows: whether its output is all that it does, so that a full disk there is an error.

    Returns:
        The command's result (None is 0), 2 after a user error, 130 after Ctrl-C.
    """
    with lasting_output() as lost:
        code = _code(command)
        if shows and (error := lost()) is not None and error.errno != errno.EPIPE:
            return refuse(Shortage("standard output", f": {error.strerror}"))
        return code


def _code(command: Callable[[], int | None]) -> int:
    try:
        with warnings_shown():
            return command() or 0
    except KeyboardInterrupt:
        complain("rayfl: interrupted")
        return 128 + signal.SIGINT
    except (Exception, SystemExit) as error:
        told, cause = _told(error)
        if told is None:
            raise  # more likely a mistake of ours
        return refuse(told, cause)


def _told(error: BaseException) -> tuple[UserError | None, BaseException | None]:
    """Return an error as a user error, None for a bug; and the error of the user's own code behind it."""
    if isinstance(error, UserError):
        return error, _own(error.__cause__, called=True)[0]
    if out_of_memory(error):
        text = f" ({text})" if (text := one_line(text_of(error))) else ""
        return Shortage(f"not enough memory{text}: use less data, smaller inputs or fewer clients"), None
    if (full := shortage(error)) is not None:
        return Shortage(f"{full}; then start it again"), None
    if (fault := own_fault(error)) is not None:
        return fault, error
    if isinstance(error, OSError) and error.filename is not None:
        return Missing(error.filename, f": {error.strerror or error}"), None
    if isinstance(error, ValueError) and "embedded null" in str(error):
        return BadValue("a path contains the character NUL: remove it"), None
    return None, None


def refuse(error: UserError, cause: BaseException | None = None) -> int:
    """Print an error, and the traceback of the user's own code behind it; return the exit code."""
    complain(f"rayfl: error: {in_one_line(str(error))}")
    if cause is not None:
        told = traceback.TracebackException.from_exception(cause)
        own = [frame for frame in told.stack if is_own(frame.filename)]
        told.stack = traceback.StackSummary.from_list(own or told.stack)
        complain("".join(told.format()).rstrip())
    return 2


def in_one_line(text: str) -> str:
    """Return a message as one line of limited length, with escapes for control characters."""
    line = one_line(" ".join(part.strip() for part in text.splitlines()))
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 305]} ... {line[-300:]}"


def own_fault(error: BaseException) -> BadCode | None:
    """Return the error that the user's own code has raised; None if there is none."""
    cause, place, file = _own(error)
    return None if cause is None else BadCode(place, f"{file}raised {type(cause).__name__}: {text_of(cause)}")


def _own(found: BaseException | None, called: bool = False) -> tuple[BaseException | None, str, str]:
    """Return the error that the user's own code has raised, in the chain of causes, and where.

    The user's own code is code that rayfl has called, outside of rayfl and of Python's packages.

    Args:
        found: the error.
        called: whether rayfl has called all frames of its traceback, not only those after rayfl's.
    """
    while found is not None:
        place = file = ""
        for frame, line in traceback.walk_tb(found.__traceback__):
            code = frame.f_code
            if code.co_filename.startswith(RAYFL):
                called = called or code.co_filename != __file__
            elif called and is_own(code.co_filename):
                place, file = code.co_qualname, f"({code.co_filename}:{line}) "
        if isinstance(found, SyntaxError) and found.filename and is_own(found.filename):
            place, file = f"{found.filename}:{found.lineno}", ""
        if place:
            return found, place, file
        called = True  # rayfl has called the code that caught it and raised another
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
    return None, "", ""
