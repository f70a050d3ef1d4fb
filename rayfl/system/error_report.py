"""How a command reports an error: in one line, with the traceback of the user's own code below it."""

from __future__ import annotations

import io
import os
import signal
import sys
import traceback
from collections.abc import Callable

from rayfl.errors import BadCode, BadValue, Missing, Shortage, UserError, out_of_memory, shortage, text_of
from rayfl.system.log import warnings_shown
from rayfl.system.own_code import RAYFL, is_own
from rayfl.system.text import complain, one_line

MAX_LINE = 1500
"""Most characters of an error line; the longest ones list all nets."""


def exit_code(command: Callable[[], int | None]) -> int:
    """Run a command; tell what is wrong in one line on standard error, and so of every warning.

    Files that cannot be read or written, and too little memory, count as errors of the user's, too. So does
    what code of the user's own raises, such as a net or a data set: its frames of the traceback follow.
    Characters that standard output and error cannot show are escaped.

    Args:
        command: what to run.

    Returns:
        What the command returns (None is 0), 2 after an error of the user's, 130 after Ctrl-C, 141 if nobody
        reads standard output any more, as in ``| head -1``.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with warnings_shown():
            code = command() or 0
            print(end="", flush=True)
            return code
    except KeyboardInterrupt:
        complain("rayfl: interrupted")
        return 128 + signal.SIGINT
    except (Exception, SystemExit) as error:
        if (lost := _lost_output(error)) is not None:
            if isinstance(lost, BrokenPipeError):
                return 128 + signal.SIGPIPE
            return report_error(Shortage("standard output", f": {lost.strerror}"))
        fault, cause = _as_user_error(error)
        if fault is None:
            raise  # more likely a mistake of ours
        return report_error(fault, cause)


def _lost_output(raised: BaseException) -> OSError | None:
    """Return why standard output cannot be written, and let what is left of it go nowhere; None if it can."""
    try:
        # An empty text breaks no pipe where Python has no buffer.
        print(end="\n" if isinstance(raised, BrokenPipeError) else "", flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error
    return None


def _as_user_error(error: BaseException) -> tuple[UserError | None, BaseException | None]:
    """Return an error as a user error, None for a bug; and the error of the user's own code behind it."""
    if isinstance(error, UserError):
        return error, _own_error(error.__cause__, called=True)[0]
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


def report_error(error: UserError, cause: BaseException | None = None) -> int:
    """Print an error, and the traceback of the user's own code behind it; return the exit code."""
    complain(f"rayfl: error: {in_one_line(str(error))}")
    if cause is not None:
        trace = traceback.TracebackException.from_exception(cause)
        own = [frame for frame in trace.stack if is_own(frame.filename)]
        trace.stack = traceback.StackSummary.from_list(own or trace.stack)
        complain("".join(trace.format()).rstrip())
    return 2


def in_one_line(text: str) -> str:
    """Return a message as one line of limited length, with escapes for control characters."""
    line = one_line(" ".join(part.strip() for part in text.splitlines()))
    return line if len(line) <= MAX_LINE else f"{line[: MAX_LINE - 305]} ... {line[-300:]}"


def own_fault(error: BaseException) -> BadCode | None:
    """Return the error that the user's own code has raised; None if there is none."""
    cause, place, file = _own_error(error)
    return None if cause is None else BadCode(place, f"{file}raised {type(cause).__name__}: {text_of(cause)}")


def own_place(error: BaseException) -> str:
    """Return where an error was raised: the last line of the user's own code, or else of rayfl's."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    mine = [frame for frame in frames if is_own(frame[0])]
    file, line = (mine or [frame for frame in frames if frame[0].startswith(RAYFL)] or frames)[-1]
    return f"{file}:{line}"


def _own_error(found: BaseException | None, called: bool = False) -> tuple[BaseException | None, str, str]:
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
