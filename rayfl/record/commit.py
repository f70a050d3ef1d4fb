"""The commit that is checked out around a folder, read from git's files.

git itself is not asked: it runs commands that the repository's own configuration names, such as
``core.fsmonitor``, and the folder may be a stranger's.
"""

import re
from pathlib import Path

from rayfl.files import open_file

_LARGEST = 2**24  # bytes that are read of a file
_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_NAME = re.compile(r"refs(/[\w@+=,-][\w.@+=,-]*)+")  # no part begins with a dot, so none is ".."


def checked_out(folder: Path) -> str | None:
    """Return the hash of the commit that is checked out in the repository that a folder is in.

    Returns:
        None where there is no repository, no commit yet, or what is there is not understood.
    """
    try:
        for place in (folder.absolute(), *folder.absolute().parents):
            git = place / ".git"
            if git.is_dir():
                return _head(git, git)
            if git.is_file():  # of a worktree or a submodule, and says where the rest is
                own = place / _read(git).removeprefix("gitdir:").strip()
                common = own / "commondir"
                return _head(own, own / _read(common).strip() if common.is_file() else own)
    except (OSError, ValueError):
        pass
    return None


def _head(own: Path, common: Path) -> str | None:
    """Follow HEAD.

    Args:
        own: the folder of the worktree.
        common: the folder that all worktrees share, which has the branches.
    """
    text = _read(own / "HEAD").strip()
    for _ in range(5):  # as many names of names as git follows
        if _HASH.fullmatch(text):
            return text
        name = text.removeprefix("ref:").strip()
        if not _NAME.fullmatch(name):
            return None
        found = [place / name for place in (own, common) if (place / name).is_file()]
        text = _read(found[0]).strip() if found else _packed(common, name)
    return None


def _packed(common: Path, name: str) -> str:
    path = common / "packed-refs"
    lines = (line.split() for line in _read(path).splitlines()) if path.is_file() else ()
    return next((line[0] for line in lines if len(line) == 2 and line[1] == name), "")


def _read(path: Path) -> str:
    """Return the text of a file, up to a limit; see :func:`~rayfl.files.open_file`."""
    with open_file(path) as file:
        return file.read(_LARGEST).decode()
