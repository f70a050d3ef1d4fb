"""Load the models of a run from its checkpoints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from rayfl.data import FederatedData
from rayfl.engine.models import Models, local_pair
from rayfl.errors import Damaged, Missing
from rayfl.evaluation.metrics import Validation
from rayfl.record.checkpoint import Checkpoints
from rayfl.record.history import PARTITION, read_history, read_partition, read_population, read_records
from rayfl.running.settings import RunSettings, recorded_settings
from rayfl.system.own_code import FROZEN, changed_code
from rayfl.system.text import warn


def load_models(folder: str | Path, round: int | Literal["best"] | None = None, data: bool = True) -> Models:
    """Read the models of a run, finished or not.

    Args:
        folder: the run folder.
        round: the number of completed rounds after which; a run keeps its last two checkpoints. ``best``:
            after the evaluation that is best on validation data, which a run with ``checkpoint_keep=best``
            keeps. By default the newest.
        data: whether the data are loaded again, from where the run had them. Without them models predict and
            leave as files just the same, and ``Models.batch`` has nothing to give. A method with
            ``personalise`` needs them in any case.

    Examples:
        >>> import torch
        >>> from rayfl import load_models
        >>> models = load_models("runs/first")
        >>> models
        Models of 4 clients after 3 rounds: personal, global
        >>> models.scores(2, torch.zeros(5, 3, 32, 32))["personal"].shape
        torch.Size([5, 10])
    """
    run = recorded_settings(RunSettings, folder)
    checkpoints = Checkpoints(Path(folder) / "checkpoints")
    if round == "best":
        validation = Validation(read_population(Path(folder)), run.protocol)
        if not sum(map(validation.is_best, read_records(Path(folder)))):
            raise Missing(folder, "has no evaluation on validation data, so none is the best")
        round = validation.best
    manifest = checkpoints.newest_intact()[0] if round is None else checkpoints.checkpoint_after(round)
    if manifest is None:
        raise Missing(folder, "has no checkpoint, so no models", "run it with checkpoint_every above 0")
    record = read_partition(Path(folder))
    personalises = run.method.overrides("personalise")
    # a summary of many clients is not enough
    without = not data and not personalises and isinstance(record["clients"], list)
    found = _recorded_data(folder, record) if without else run.federated_data()
    settings = run.result_settings(None if without else found)
    if without:
        settings["division"] = manifest.settings.get("division")
    checkpoints.check_settings(manifest, settings)
    if other := changed_code(manifest.settings.get("code", {}), run.code()):
        warn(f"{folder} was run with other code ({', '.join(other)}): models may score otherwise")
    plan = replace(run.plan(), frozen=manifest.settings.get("code", {}).get(FROZEN, ""))
    worker, server = local_pair(plan, found)
    worker.restore(str(checkpoints.folder), manifest.clients.values())
    server.restore(str(checkpoints.folder), manifest.server)
    first = read_history(Path(folder)).first
    trained = set(np.flatnonzero(first < manifest.round).tolist())
    return Models(worker, server, manifest.round, trained, has_data=not without)


def _recorded_data(folder: str | Path, record: dict[str, object]) -> FederatedData:
    try:
        return FederatedData.from_record(record)
    except (KeyError, TypeError, ValueError, OverflowError, MemoryError) as error:
        raise Damaged(Path(folder) / PARTITION, f"is damaged ({error})", "restore it or load data") from error
