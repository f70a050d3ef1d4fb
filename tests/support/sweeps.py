"""A tiny tune space, and a method that tells where it runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from rayfl.methods import Cohort, FedAvg
from rayfl.training import Client, State

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


class Tells(FedAvg):
    """Leaves a file that names the placement group of every process."""

    def __init__(self, folder: str = "", mu: float = 0.0) -> None:
        self.folder = folder
        self.mu = mu

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Tell, and train."""
        self._tell("client")
        return await super().local_update(client, state, down)

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        """Tell, and aggregate."""
        self._tell("server")
        return super().aggregate(server, up, cohort)

    def _tell(self, who: str) -> None:
        import os

        from ray.util import get_current_placement_group

        group = get_current_placement_group()
        name = f"{self.mu:g} {who} {os.getpid()} {group and group.id.hex()}"
        if self.folder:
            (Path(self.folder) / name).touch()
