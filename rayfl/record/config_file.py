"""A run's ``config.yaml``, read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rayfl.record.checks import Config
from rayfl.record.history import CONFIG
from rayfl.settings.yaml_file import read_mapping
from rayfl.system.files import fit, reading


def read_config(folder: Path) -> dict[str, Any]:
    """Return the configuration of a run folder."""
    path = folder / CONFIG
    config = read_mapping(path, "configuration")
    with reading(path):
        fit(Config, config)
    return config
