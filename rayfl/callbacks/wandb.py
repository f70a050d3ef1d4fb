"""A run in Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from rayfl.callbacks.callback import Run
from rayfl.callbacks.logger import Tracker, distributions, scalars, settings_of
from rayfl.record.history import Population


class WandB(Tracker):
    """Sends settings, the numbers of every round and histograms over clients to Weights & Biases.

    Its own variables say how: ``WANDB_PROJECT``, which is ``rayfl`` by default, ``WANDB_MODE``, and others.
    """

    name = "wandb"

    def __init__(self) -> None:
        super().__init__()
        self._run: Any = None

    def connect(self, run: Run, log: str | None) -> str:
        """Go on with a run of Weights & Biases, or make one with the run's settings; ask for no key."""
        import wandb  # takes a second

        quiet = wandb.Settings(silent=True, console="off")
        if wandb.setup(quiet).settings.mode == "online" and not wandb.login(prompt=False):
            raise PermissionError("there is no API key: call `wandb login` first, or set WANDB_MODE=offline")
        self._run = wandb.init(
            project=wandb.setup().settings.project or "rayfl",
            id=log or uuid4().hex[:8],
            name=run.path.absolute().name,
            config=settings_of(run) if log is None else None,
            resume="allow",
            reinit="create_new",  # leaves runs of the caller's own alone
            settings=quiet,
        )
        return str(self._run.id)

    def send(self, step: int, record: Mapping[str, Any], population: Population) -> None:
        """Add the numbers of a round, and histograms."""
        import wandb

        found = distributions(record, population)
        histograms = {f"{tag}/clients": wandb.Histogram(values.tolist()) for tag, values in found.items()}
        self._run.log({**scalars(record, population), **histograms}, step=step)

    def close(self) -> None:
        """End the run."""
        if self._run is not None:
            self._run.finish()
            self._run = None
