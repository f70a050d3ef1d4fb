"""The one exception that is meant for people and its kinds, and what other errors mean."""

from __future__ import annotations

import errno
import os
from typing import Any, Self


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
        """Take the place, with which the sentence begins, and its rest; or the whole sentence."""
        place, text = said if len(said) == 2 else ("", *said)
        self.place = str(place).lstrip("-")
        gap = "" if not self.place or str(text).startswith((":", ",", ";", ".")) else " "
        super().__init__(f"{place}{gap}{text}")

    def at(self, place: object) -> Self:
        """Return this error with another place; its sentence stays."""
        self.place = str(place)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep place and sentence apart when it is pickled."""
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
