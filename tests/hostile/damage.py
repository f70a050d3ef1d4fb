"""What takes the place of a file or folder that rayfl wants to read."""

import os
import shutil
from pathlib import Path


def into_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def into_fifo(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove(path)
    os.mkfifo(path)


def into_loop(path: Path) -> None:
    _remove(path)
    path.symlink_to(path.name)


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
