"""Small federations, and what must be equal of two runs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from rayfl import Federation, Inline, Ray, Training, resumed
from rayfl.commands.run import run_from
from rayfl.data import Dirichlet, Synthetic
from rayfl.methods import FedAvg
from rayfl.nets import LeNet
from rayfl.running.settings import RunSettings
from rayfl.training import Client, State


def federation_from(arguments: Sequence[str]) -> RunSettings:
    """The settings of the run that a command line asks for."""
    return run_from(arguments).settings


def small(output: Path, **changes: Any) -> Federation:
    """A federation of twelve uneven clients that runs in about half a second."""
    momentum = float(changes.get("method", FedAvg()).facts.works_with.get("momentum", 0.5))
    settings: dict[str, Any] = {
        "method": FedAvg(),
        "data": Synthetic(
            train=900, test=240, shape=(3, 20, 20), partition=Dirichlet(alpha=1.0), val_fraction=0.1
        ),
        "net": LeNet(),
        "clients": 12,
        "participation": 0.5,
        "rounds": 4,
        "training": Training(lr=0.05, batch_size=20, momentum=momentum),
        "engine": Inline(),
        "checkpoint_every": 2,
        "loggers": [],
        "quiet": True,
        "output": str(output),
    }
    return Federation(**(settings | changes))


class Poisoned(FedAvg):
    """Client 2's update is not a number in round 1, or another one."""

    at: int = 1

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Train, then spoil the update."""
        up, state = await super().local_update(client, state, down)
        if client.id == 2 and client.round == self.at:
            up = {"weights": up["weights"] * torch.nan}
        return up, state


def records_of(folder: Path) -> list[dict[str, Any]]:
    """What a run has recorded of each of its rounds."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def bytes_of_run(folder: Path, settings: bool = True) -> dict[str, bytes]:
    """What must not depend on how a run was carried out: metrics and the newest checkpoint.

    Args:
        folder: of the run.
        settings: whether those that the checkpoint carries count.
    """
    kept = [folder / "metrics.jsonl", folder / "partition.json"]
    newest = max((folder / "checkpoints").glob("manifest-*.json"))
    text = newest.read_text()
    kept += [newest, *(f for f in (folder / "checkpoints").glob("*.safetensors") if f.name in text)]
    found = {str(f.relative_to(folder)): f.read_bytes() for f in kept}
    if not settings:
        manifest = json.loads(text)["manifest"]
        del manifest["settings"]
        found[str(newest.relative_to(folder))] = json.dumps(manifest).encode()
    return found


INLINE_AND_RAY = Inline(), Ray(actors=2)


def same_bytes(
    folder: Path, *engines: Any, resumed_after: int = 0, make: Any = small, **settings: Any
) -> list[Path]:
    """See that a federation gives the same bytes with each engine, and where it goes on after some rounds.

    Args:
        folder: for the runs, whose folders are returned.
        engines: ``Inline()`` where none are given; the first one has the run that goes on.
        resumed_after: so many rounds; 0 tries no run that goes on.
        make: makes a federation of a folder and settings.
        settings: of the federation; with ``rounds`` where one goes on.
    """
    engines = engines or INLINE_AND_RAY[:1]
    runs: list[dict[str, Any]] = [settings | {"engine": engine} for engine in engines]
    if resumed_after:
        runs.append(runs[0] | {"rounds": resumed_after})
    folders = [folder / str(k) for k in range(len(runs))]
    for each, changed in zip(folders, runs, strict=True):
        make(each, **changed).run()
    if resumed_after:
        resumed(folders[-1], {"rounds": settings["rounds"], "quiet": True}).run()
    for other in folders[1:]:
        assert bytes_of_run(other) == bytes_of_run(folders[0])
    return folders
