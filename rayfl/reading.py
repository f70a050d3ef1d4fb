"""Reading files that may be damaged or come from a stranger: rayfl waits for none of them without end.

Functions that read raise ``OSError`` for a file that cannot be read and ``ValueError`` for content that is
not what it should be, and nothing else. The caller knows what the file is for, names it and says what to do.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any

from rayfl.errors import UserError


def open_file(path: str | Path) -> BufferedReader:
    """Open a file for reading.

    Raises:
        OSError: it cannot be opened, or is not a regular file: a pipe could be waited for without end.
        ValueError: the path has a NUL in it.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise _irregular(path) from error
        raise
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise _irregular(path)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def _irregular(path: str | Path) -> OSError:
    return OSError(errno.EINVAL, "it is not a regular file", str(path))


def read_file(path: str | Path) -> bytes:
    """Return what is in a file; see :func:`open_file`."""
    with open_file(path) as file:
        return file.read()


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number in JSON")


_JSON = json.JSONDecoder(parse_constant=_no_number)


def parse_json(content: bytes) -> Any:
    """Return what JSON in UTF-8 says.

    Raises:
        ValueError: it is no JSON, is nested too deeply to be read, or has NaN or text that is no Unicode.
    """
    text = content.decode()
    try:
        value = _JSON.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if "\\ud" in text or "\\uD" in text:  # half a character, which cannot be written again
        json.dumps(value, ensure_ascii=False).encode()
    return value


def read_json(path: str | Path) -> Any:
    """Return what a file of JSON says; see :func:`open_file` and :func:`parse_json`."""
    return parse_json(read_file(path))


def refuse_links(folder: Path, *inside: str) -> None:
    """Refuse a folder with links to what lies outside of it, through which others' files would be changed.

    Args:
        folder: it may be a link itself.
        inside: folders in it to be looked at, too.

    Raises:
        UserError: there is such a link.
    """
    home = os.path.realpath(folder)
    for above in (folder, *(folder / name for name in inside)):
        try:
            links = [entry.path for entry in os.scandir(above) if entry.is_symlink()]
        except OSError:
            continue  # whoever reads it says so
        for link in links:
            if os.path.commonpath([home, os.path.realpath(link)]) != home:
                raise UserError(
                    f"{link} is a link that leads out of {folder}: put what it leads to in its place"
                )
