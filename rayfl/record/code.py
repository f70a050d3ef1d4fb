"""The user's own code that decides a run's numbers: which it is, and whether it is what records name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from rayfl.errors import Conflict
from rayfl.own_code import digests
from rayfl.record.description import deciding

CHANGED = "changed"
"""What people ask for who want to go on with other code."""
_UNTIL = " to round "
"""Stands in records between a module that has changed during a run, and its last round before."""


def code_of(config: str) -> dict[str, str]:
    """Return the digests of the user's own code that a configuration names, and of what that imports.

    Args:
        config: as ``dump`` writes it.
    """
    return digests(text for text in _texts(deciding(yaml.safe_load(config))) if "." in text)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


def changed(recorded: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return what of the recorded code is not there now as it was; runs of earlier versions have none."""
    return [name for name in recorded if now.get(name) != recorded[name]]


def check_unchanged(place: str | Path, recorded: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Refuse code that is not as it was.

    Args:
        place: the folder whose records are looked at.
        recorded: module or definition -> digest.
        now: likewise, of this process.
    """
    if other := changed(recorded, now):
        told = f"was made with other code of your own ({', '.join(other)}): restore that code, or give"
        raise Conflict(place, f"{told} --code {CHANGED}, or choose another --output")


def latest(recorded: Mapping[str, str]) -> dict[str, str]:
    """Return the code with which a run has gone on last."""
    return {name: digest for name, digest in recorded.items() if _UNTIL not in name}


def carried_on(recorded: Mapping[str, str], now: Mapping[str, str], round: int) -> dict[str, str]:
    """Return the code of a run that goes on with what is there now, and all that it had before.

    Args:
        recorded: the code of its records.
        now: the code of this process.
        round: how many rounds there are with the recorded code.
    """
    before = {name: digest for name, digest in recorded.items() if _UNTIL in name}
    replaced = {f"{name}{_UNTIL}{round}": recorded[name] for name in changed(latest(recorded), now)}
    return {**now, **before, **replaced}


def whole(code: Mapping[str, str]) -> str:
    """Return one digest of all code."""
    return hashlib.sha256(json.dumps(code, sort_keys=True).encode()).hexdigest()[:16]
