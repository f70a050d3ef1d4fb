"""Read files that may be damaged or a stranger's; write files whole or not at all; lock them.

Functions that read raise ``OSError`` for a file that cannot be read, ``ValueError`` for wrong content, and
nothing else; :func:`explain_read_errors` makes one message of both. rayfl never waits for a file for ever.
"""

from __future__ import annotations

import codecs
import errno
import fcntl
import json
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

from pydantic import TypeAdapter, ValidationError

from rayfl.errors import Damaged, InUse, Missing, Shortage, UserError
from rayfl.system.memory import check_memory
from rayfl.system.text import short_repr

_OF_SYSTEMS = ("__MACOSX", "Thumbs.db", "desktop.ini")
"""Files that archives and file managers leave among data, besides those that begin with a dot."""
_JSON_BYTES = 12  # of memory that a byte of JSON needs at most, as text, numbers and arrays
MAKE_ROOM = "make room or choose another place"
"""What to do if a file cannot be written."""


def open_file(path: str | Path) -> BufferedReader:
    """Open a file for reading.

    Raises:
        OSError: it cannot be opened, or is not a regular file: reading a pipe may never end.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a character that no name of a file has, such as NUL
        raise OSError(errno.EINVAL, str(error), str(path)) from error
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise _not_regular(path) from error
        raise
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise _not_regular(path)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def _not_regular(path: str | Path) -> OSError:
    return OSError(errno.EINVAL, "it is not a regular file", str(path))


def read_file(path: str | Path) -> bytes:
    """Return what is in a file; see :func:`open_file`."""
    with open_file(path) as file:
        return file.read()


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number in JSON")


_JSON = json.JSONDecoder(parse_constant=_no_number)


def parse_json(content: bytes) -> Any:
    """Return the value of JSON in UTF-8.

    Raises:
        ValueError: it is no JSON, is nested too deeply to be read, or has NaN or text that is no Unicode.
    """
    text = content.removeprefix(codecs.BOM_UTF8).decode()
    try:
        value = _JSON.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if "\\ud" in text or "\\uD" in text:  # half a character, which cannot be written again
        json.dumps(value, ensure_ascii=False).encode()
    return value


def read_json(path: str | Path) -> Any:
    """Return the value in a JSON file; see :func:`open_file` and :func:`parse_json`."""
    with open_file(path) as file:
        size = _JSON_BYTES * os.fstat(file.fileno()).st_size
        check_memory(size, f"the content of {path}", "use a smaller file or a larger machine")
        return parse_json(file.read())


def convert_content(schema: Any, content: Any) -> Any:
    """Return the content of a file as a type that pydantic knows.

    Raises:
        ValueError: it has another form; the message names the first such place.
    """
    try:
        return _type_adapter(schema).validate_python(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"] if "[" not in str(part))  # which names a type
        raise ValueError(f"{where or 'it'} is {short_repr(first['input'])}: {first['msg']:.80}") from None


@cache
def _type_adapter(schema: Any) -> TypeAdapter[Any]:
    return TypeAdapter(schema)


@contextmanager
def explain_read_errors(path: str | Path, advice: str = "restore it from a copy") -> Iterator[None]:
    """Say in one line which file cannot be read, or holds something else than it should, and what to do.

    Args:
        path: the file that is read meanwhile.
        advice: what to do where its content is damaged.
    """
    try:
        yield
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.strerror:  # of the system, not of a library that decodes
            raise Missing(path, f"cannot be read: {error.strerror}") from error
        raise Damaged(path, f"is damaged ({error})", advice) from error


@contextmanager
def explain_decode_errors(path: str | Path, advice: str) -> Iterator[None]:
    """Like :func:`explain_read_errors`, around a library that decodes: it may raise anything."""
    with explain_read_errors(path, advice):
        try:
            yield
        except (UserError, OSError, ValueError):
            raise
        except Exception as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error


def folder_entries(folder: str | Path) -> list[os.DirEntry[str]]:
    """Return the entries of a folder, by name, without files of the system, such as ``._1.png``."""
    found = sorted(os.scandir(folder), key=lambda entry: entry.name)
    return [each for each in found if not each.name.startswith(".") and each.name not in _OF_SYSTEMS]


# ---- writing


@contextmanager
def explain_write_errors(path: str | Path, advice: str = MAKE_ROOM) -> Iterator[None]:
    """Say in one line which file cannot be written, and what to do."""
    try:
        yield
    except OSError as error:
        raise Shortage(path, f"cannot be written: {error.strerror or error}", f"; {advice}") from error


class Disk:
    """The operations that change files. Tests replace it by one that fails: ``tests.support.faults``."""

    def create(self, path: Path) -> IO[bytes]:
        """Open a new file next to another, with a name that begins like that."""
        if not path.name:  # "." or "/"
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        return path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp").open("xb")

    def open_end(self, path: Path) -> IO[bytes]:
        """Open a file to write at its end."""
        return path.open("ab", buffering=0)

    def write(self, file: IO[bytes], content: bytes) -> int:
        """Write; return the number of bytes written."""
        return file.write(content)

    def sync(self, file: IO[bytes]) -> None:
        """Flush a file to the disk, so that it survives a power failure."""
        file.flush()
        os.fsync(file.fileno())

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file, and replace one that has the name."""
        os.replace(old, new)

    def remove(self, path: Path) -> None:
        """Remove a file if it exists."""
        path.unlink(missing_ok=True)

    def sync_folder(self, folder: Path) -> None:
        """Flush the names in a folder to the disk."""
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            with suppress(OSError):  # some file systems do not offer it
                os.fsync(descriptor)
        finally:
            os.close(descriptor)


disk = Disk()


def write_file(path: Path, content: str | bytes, advice: str = MAKE_ROOM) -> None:
    """Write a whole file, whose folder is made if need be; see :func:`replace_file`."""
    with explain_write_errors(path, advice), replace_file(path) as file:
        disk.write(file, content.encode() if isinstance(content, str) else content)
        disk.sync(file)


@contextmanager
def replace_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file to write, which replaces another when it is complete.

    A kill or a crash at any moment leaves the old file or the new one, never a part. Several processes may
    write the same file at once.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with disk.create(path) as file:
        temporary = Path(file.name)
        try:
            yield file
            file.close()
            disk.rename(temporary, path)
        except BaseException:
            with suppress(OSError):
                disk.remove(temporary)
            raise


def append_to_file(path: Path, content: bytes) -> None:
    """Append to a file: everything, or nothing if the disk is full."""
    with (
        explain_write_errors(path, f"the earlier lines are intact; {MAKE_ROOM}"),
        disk.open_end(path) as file,
    ):
        end = file.tell()
        try:
            written = 0
            while written < len(content):
                written += disk.write(file, content[written:])
        except OSError:
            with suppress(OSError):
                file.truncate(end)
            raise


def sync_file(path: Path) -> None:
    """Flush a file to the disk, so that what was appended survives a power failure."""
    with explain_write_errors(path), disk.open_end(path) as file:
        disk.sync(file)


def lock_descriptor(descriptor: int, wait: bool = False) -> bool:
    """Lock an open file or folder, until it is closed everywhere, or the last process that has it open ends.

    Args:
        descriptor: of the file or folder.
        wait: whether to wait while another process has locked it.

    Returns:
        False where another process has locked it; True also on a file system without locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        pass
    return True


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock the folder of a run or a sweep against other processes, until this process ends at the latest."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if not lock_descriptor(descriptor):
            raise InUse(folder, "is being run by another process", "wait until it has ended, or stop it")
        yield
    finally:
        os.close(descriptor)
