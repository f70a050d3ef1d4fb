"""From settings, as files and command lines give them, to a federation; and back from a run folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from rayfl.data import Data
from rayfl.errors import Conflict, Damaged, UserError
from rayfl.federation import Federation
from rayfl.record.config_file import read_config
from rayfl.record.folder import check_is
from rayfl.settings.arguments import arguments_of
from rayfl.settings.description import differing
from rayfl.settings.reader import Flat, class_named, flattened, layered, read


def federation_of(settings: Mapping[str, Any]) -> Federation:
    """Build the federation that a mapping of settings stands for."""
    return read(Federation, rooted(dict(settings)))


def resumed(
    folder: str | Path,
    changes: Mapping[str, Any] | None = None,
    data: Data | None = None,
    any_code: bool = False,
) -> Federation:
    """Build the federation of a run folder, to go on where its last checkpoint is.

    Args:
        folder: the run folder.
        changes: settings among ``RESUMABLE`` that take the place of the recorded ones, by their dotted names,
            as in ``{"rounds": 30, "engine.device": "cpu"}``.
        data: the same data again, where the run's configuration cannot hold them: ``rayfl.data.Arrays``.
        any_code: whether code of your own may be other than what the run has had so far.
    """
    path = Path(folder) / "config.yaml"
    check_is(path.parent, "run", path.name)
    config = read_config(path.parent)
    try:
        federation = read(Federation, recorded := flattened(config))
    except UserError as error:
        raise Damaged(path, f"cannot be used: {error}") from error
    if changes:
        rounds, federation = federation.rounds, read(Federation, layered(recorded, flattened(changes)))
        if federation.cell and "cell" not in changes and federation.rounds != rounds:
            others = [text for text in federation.cell.changed if not text.startswith("rounds=")]
            federation.cell = replace(federation.cell, changed=[*others, f"rounds={federation.rounds}"])
    if data is not None:
        federation = _with_data(federation, data, path)
    return federation.resume(folder, any_code)


def _with_data(federation: Federation, data: Data, path: Path) -> Federation:
    """Return a federation with data that must be those of its configuration."""
    given = copy(federation)
    given.data = data
    if other := differing(federation.deciding(), given.deciding()):
        raise Conflict(path, f"is of a run with other data: {', '.join(other)} differ")
    return given


def rooted(settings: Flat) -> Flat:
    """Add the folder of data sets from the environment, where data are in files and nothing else is said."""
    root = os.environ.get("RAYFL_DATA")
    if not root or settings.get("data.root") is not None or "root" not in data_options(settings.get("data")):
        return settings
    return settings | {"data.root": root}


def data_options(name: Any) -> dict[str, Any]:
    """Return the options of a data set; none of one that does not exist, which is refused elsewhere."""
    if not isinstance(name, str):
        return {}
    try:
        return arguments_of(class_named(Data, name, "data"))
    except UserError:
        return {}
