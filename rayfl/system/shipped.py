"""The tables of experiments and the tune spaces that come with rayfl, found by name from any folder."""

import os
import re
from pathlib import Path
from typing import Literal

from rayfl import ROOT
from rayfl.errors import Unknown
from rayfl.system.text import did_you_mean

Kind = Literal["examples", "tune_spaces"]


def folder(kind: Kind) -> Path:
    """Return their folder: in the installed package, or beside it in a checkout."""
    inside = ROOT / kind
    return inside if inside.is_dir() else ROOT.parent / kind


def names(kind: Kind) -> list[str]:
    """Return the names of all of a kind, such as ``fedco2/t3`` or ``fdse``."""
    home = folder(kind)
    found = [
        path.relative_to(home).with_suffix("").as_posix()
        for path in home.rglob("*.yaml")
        if "clusters" not in path.parts
        and (kind == "tune_spaces" or path.parent != home)  # examples at the top are single runs
    ]
    return sorted(found, key=lambda name: re.sub(r"\d+", lambda number: number[0].zfill(9), name))


def _could_be_a_name(given: str) -> bool:
    return given.isprintable() and len(given) <= 100


def find(given: str, kind: Kind) -> Path:
    """Return the file that a command line names: the user's, or one that comes with rayfl.

    Args:
        given: a path, or a name such as ``fedco2/t3``.
        kind: the folder in which names are looked up.

    Raises:
        UserError: there is neither.
    """
    path = Path(os.path.expanduser(given))
    if path.suffix in (".yaml", ".yml") or not _could_be_a_name(given) or path.exists():
        return path  # a missing file is reported when it is read
    known = names(kind)
    if given in known:
        return folder(kind) / f"{given}.yaml"
    hint = f"{did_you_mean(given, known)} There are {', '.join(known)}"
    raise Unknown(given, f"is no file, and none of this name comes with rayfl{hint}")
