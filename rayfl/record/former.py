"""Configurations of runs of before, read as if they had been written today."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_WITHOUT_FILES = ("rayfl.data.EmbeddedDigits", "rayfl.data.Synthetic")


def without_unused(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without options that data sets had, and never used."""
    data = config.get("data")
    if not isinstance(data, dict) or data.get("class_path") not in _WITHOUT_FILES:
        return dict(config)
    options = data.get("init_args")
    if not isinstance(options, dict):
        return dict(config)
    used = {name: value for name, value in options.items() if name not in ("root", "verify")}
    return {**config, "data": {**data, "init_args": used}}
