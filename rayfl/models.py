"""The models that a run has trained, read back from its checkpoints to be looked at."""

from __future__ import annotations

from pathlib import Path

import torch

from rayfl.config.parser import resumed
from rayfl.engine import Inline
from rayfl.engine.models import Models, bench
from rayfl.errors import UserError
from rayfl.record.checkpoint import Checkpoints


def load_models(folder: str | Path, round: int | None = None) -> Models:
    """Read the models of a run, finished or not; the data are loaded again from where the run had them.

    Args:
        folder: the run folder.
        round: the number of completed rounds after which; a run keeps its last two checkpoints. By default
            the newest.
    """
    federation = resumed(folder)
    checkpoints = Checkpoints(Path(folder) / "checkpoints")
    manifest = checkpoints.newest()[0] if round is None else checkpoints.after(round)
    if manifest is None:
        raise UserError(
            f"{folder} has no checkpoint, so its models are gone: run it with checkpoint_every above 0"
        )
    federation.engine = Inline(device="cpu", threads=torch.get_num_threads())
    federation.engine.resolve()
    data = federation.federated_data()
    checkpoints.check_settings(manifest, federation.deciding(data))
    worker, server = bench(federation.plan(), data)
    worker.restore(str(checkpoints.folder), manifest.clients.values())
    server.restore(str(checkpoints.folder), manifest.server)
    return Models(worker, server, manifest.round)
