"""A tiny tune space."""

from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2] / "tune_spaces"
SPACES = sorted(ROOT.glob("*.yaml"))

TINY = """\
sweep: tiny
title: A tiny sweep
base:
  method: Ditto
  data: Synthetic
  data.train: 200
  data.test: 60
  data.val_fraction: 0.2
  net: LeNet
  clients: 4
  rounds: 3
  training.batch_size: 20
  training.lr: 0.1
  checkpoint_every: 1
  loggers: []
  engine: Inline
  engine.device: cpu
search:
  method.mu: {grid_search: [0.0, 1.0]}
"""


def write(folder: Path, **changes: str) -> str:
    """Write the tiny space with some of its entries replaced; ``more`` is added to its base."""
    content = yaml.safe_load(TINY)
    for key, text in changes.items():
        if key == "more":
            content["base"] |= yaml.safe_load(text)
        elif text:
            content |= yaml.safe_load(text)
        else:
            del content[key]
    path = folder / "space.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return str(path)
