"""The one exception that is meant for people and its kinds, and what other errors mean."""

from __future__ import annotations

import copyreg
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Self


class UserError(Exception):
    """Something the user can put right: a bad setting, missing or damaged data, an impossible request.

    Its text is one sentence, put together where it is shown: "place problem: remedy". The command lines
    print it without a traceback and exit with code 2. Whatever takes settings, files or data may raise it;
    docstrings name it only where a caller reacts to it. Its class is the kind of the mistake.

    Attributes:
        place: where the mistake is: a setting by its full name (``training.lr``), an option of a command
            without its dashes, a file, a client (``client 3``), a class of the user's or a member of it;
            empty where it has no place.
        problem: what is wrong.
        remedy: what to do about it; empty where the problem says it. With a capital it is a sentence of its
            own.
        context: in what it was found, of which the sentence tells first: a file, a row of a table; or empty.
    """

    def __init__(self, place: object, problem: object = None, remedy: object = "") -> None:
        """Take the place, what is wrong and what to do; or what is wrong alone, which has no place."""
        said = ("", place) if problem is None else (place, problem)
        super().__init__(*map(str, (*said, remedy)))
        shown, self.problem, self.remedy = self.args
        self.place = shown.lstrip("-")
        self.context = ""

    def __str__(self) -> str:
        """Return the sentence."""
        said = _join_sentence(self.args[0], " ", self.problem)
        said = _join_sentence(said, ". " if self.remedy[:1].isupper() else ": ", self.remedy)
        return _join_sentence(self.context, ": ", said)

    def __reduce__(self) -> tuple[object, ...]:
        """Keep all of it on the way between processes, also of a class with a constructor of its own."""
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]

    def within(self, context: object = "", place: object = "") -> Self:
        """Return it as what was found in something, of which the sentence tells first, or at another place.

        Args:
            context: in what it was found; an error without a place is at that.
            place: the other place, with which its own part of the sentence begins if there is no context.
        """
        found = copy(self)
        found.context = ": ".join(filter(None, (str(context), self.context)))
        found.place = str(place or self.place or context)
        if place and not context:
            found.args = (found.place, *self.args[1:])
        return found


def _join_sentence(first: str, gap: str, second: str) -> str:
    """Put two pieces of a sentence together; what begins with a mark follows without a gap."""
    return first + (gap if first and second and second[0] not in ":,;." else "") + second


@contextmanager
def error_context(context: object = "", place: object = "") -> Iterator[None]:
    """Let an error of the block tell first in what it was found; see :meth:`UserError.within`."""
    try:
        yield
    except UserError as error:
        raise error.within(context, place) from error.__cause__


class BadValue(UserError):
    """A value of another type than its setting has, or outside its bounds."""


class Unknown(UserError):
    """An unknown name: of an option, a class, a column, a domain, a view."""


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


def shortage(error: BaseException | None) -> str | None:
    """Return what is full, a disk or Ray's object store, and what to do; None if that is not the cause.

    Args:
        error: an error of any host; its causes count, too.
    """
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            place = "" if error.filename is None else f"{error.filename}: "
            return f"{place}{os.strerror(error.errno)}: make room"
        names = {cls.__name__ for cls in type(error).__mro__}  # Ray's; Ray may be missing
        if names & {"ObjectStoreFullError", "OutOfDiskError"}:
            return (
                "Ray's object store is full, and so is the disk to which it spills (of RAY_TMPDIR or TMPDIR, "
                "else of /var/tmp): make room there, or name a folder on a larger disk by TMPDIR"
            )
        of_task = getattr(error, "cause", None)  # Ray's; others may have something else there
        error = of_task if isinstance(of_task, BaseException) else error.__cause__ or error.__context__
    return None


def out_of_memory(error: BaseException) -> bool:
    """Return whether a host had too little memory; PyTorch's CPU allocator has no class for that."""
    of_torch = isinstance(error, RuntimeError) and "DefaultCPUAllocator" in text_of(error)
    return of_torch or isinstance(error, MemoryError)


def text_of(error: BaseException) -> str:
    """Return the text of an error, even if the user's own code for it raises."""
    try:
        return str(error)
    except Exception:
        return "an error whose text cannot be made"
