"""The one exception that is meant for people, and how command lines tell of it."""

from __future__ import annotations

import errno
import os
import signal
import traceback
from collections.abc import Callable
from typing import Any, Self

from rayfl.log import warnings_shown
from rayfl.own_code import RAYFL, is_own
from rayfl.shown import complain, one_line
from rayfl.streams import lasting_output

LONGEST = 1500
"""Characters of a line of error; the longest ones list all nets."""


class UserError(Exception):
    """Something the user can put right: a bad setting, missing or damaged data, an impossible request.

    The message is one sentence that says what is wrong and what to do. The command lines print it without a
    traceback and exit with code 2. Whatever takes settings, files or data may raise it; docstrings name it
    only where a caller reacts to it. Its class is the kind of the mistake.

    Attributes:
        place: where the mistake is: a setting by its full name (``training.lr``), an option of a command
            without its dashes, a file, a client (``client 3``), a class of the user's or a member of it;
            empty where it has no place.
    """

    def __init__(self, *said: object) -> None:
        """Take the place, with which the sentence begins, and its rest; or all of it, without a place."""
        place, text = said if len(said) == 2 else ("", *said)
        self.place = str(place).lstrip("-")
        gap = "" if not self.place or str(text).startswith((":", ",", ";", ".")) else " "
        super().__init__(f"{place}{gap}{text}")

    def at(self, place: object) -> Self:
        """Return this error with another place; its sentence stays."""
        self.place = str(place)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep place and sentence apart on the way between processes."""
        return _again, (type(self), self.place, str(self))

    def within(self, where: object) -> UserError:
        """Return it as what was found in something, of which its sentence tells first.

        Kind and place stay; an error without a place is at what it was found in.
        """
        return _again(type(self), self.place or str(where), f"{where}: {self}")


def _again(kind: type[UserError], place: str, sentence: str) -> UserError:
    error = kind(sentence)
    error.place = place
    return error


class BadValue(UserError):
    """A value of another type than its setting has, or outside its bounds."""


class Unknown(UserError):
    """A name that there is not: of an option, a class, a column, a domain, a view."""


class Missing(UserError):
    """Something is needed and not given, or not there: an option, a file, a package."""


class Conflict(UserError):
    """Settings that may be right alone and do not go together, or not with these data or this net."""


class Damaged(UserError):
    """A file or a folder whose content cannot be used."""


class BadData(UserError):
    """Data that cannot be used, or not be divided as asked."""


class BadCode(UserError):
    """A class or a function of the user's that has the wrong form, returns the wrong thing or raises."""


class Shortage(UserError):
    """Too little memory, disk, processors or hosts, or no connection to them."""


class InUse(UserError):
    """A folder or a file that another process uses, or that holds something else already."""


def exit_code(command: Callable[[], int | None], shows: bool = False) -> int:
    """Run a command; tell what is wrong in one line on standard error, and so of every warning.

    Files that cannot be read or written, and too little memory, count as errors of the user's, too. So does
    what code of the user's own raises, such as a net or a data set: its frames of the traceback follow.
    Standard output that is closed or full does not end the command.

    Args:
        command: what to run.
        shows: whether what it prints is all that it does, so that a full disk there is an error.

    Returns:
        What the command returns (None is 0), 2 after an error of the user's, 130 after Ctrl-C.
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
    """Return what to say of an error, None where it is ours; and what code of the user's own has raised."""
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


def shortage(error: BaseException | None) -> str | None:
    """Say what is full, a disk or Ray's object store, and what to do; None where that is not why.

    Args:
        error: what has been raised, on any host; what has led to it is looked at, too.
    """
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            place = "" if error.filename is None else f"{error.filename}: "
            return f"{place}{os.strerror(error.errno)}: make room"
        names = {cls.__name__ for cls in type(error).__mro__}  # Ray's, which need not be there
        if names & {"ObjectStoreFullError", "OutOfDiskError"}:
            return (
                "Ray's object store is full, and so is the disk to which it spills (of RAY_TMPDIR or TMPDIR, "
                "else of /var/tmp): make room there, or name a folder on a larger disk by TMPDIR"
            )
        of_task = getattr(error, "cause", None)  # Ray's; others may have something else there
        error = of_task if isinstance(of_task, BaseException) else error.__cause__ or error.__context__
    return None


def out_of_memory(error: BaseException) -> bool:
    """Say whether there was too little memory on a host; PyTorch's CPU allocator has no class for that."""
    of_torch = isinstance(error, RuntimeError) and "DefaultCPUAllocator" in text_of(error)
    return of_torch or isinstance(error, MemoryError)


def text_of(error: BaseException) -> str:
    """Return the text of an error, also where code of the user's own makes it, and raises."""
    try:
        return str(error)
    except Exception:
        return "an error whose text cannot be made"


def refuse(error: UserError, cause: BaseException | None = None) -> int:
    """Tell of an error, and below it of what code of the user's own has raised; return the exit code."""
    complain(f"rayfl: error: {in_one_line(str(error))}")
    if cause is not None:
        told = traceback.TracebackException.from_exception(cause)
        own = [frame for frame in told.stack if is_own(frame.filename)]
        told.stack = traceback.StackSummary.from_list(own or told.stack)
        complain("".join(told.format()).rstrip())
    return 2


def in_one_line(text: str) -> str:
    """Return a message as one line of a bounded length, with escapes for what a terminal would act on."""
    line = one_line(" ".join(part.strip() for part in text.splitlines()))
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 305]} ... {line[-300:]}"


def own_fault(error: BaseException) -> BadCode | None:
    """Say what code of the user's own has raised; None if no such code has led to an error."""
    cause, place, file = _own(error)
    return None if cause is None else BadCode(place, f"{file}raised {type(cause).__name__}: {text_of(cause)}")


def _own(found: BaseException | None, called: bool = False) -> tuple[BaseException | None, str, str]:
    """Return the error, or what has led to it, that code of the user's own has raised, and where.

    The user's own is what rayfl has called, and what lies neither in rayfl nor among Python's packages.

    Args:
        found: the error.
        called: whether rayfl has called all that its traceback holds, not only what comes after rayfl there.
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
        called = True  # whoever has caught it and raised another was called by rayfl
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
    return None, "", ""
