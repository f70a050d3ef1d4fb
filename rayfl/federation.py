"""A federation: the settings of an experiment, which can be run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rayfl.callbacks.callback import Callback
from rayfl.data import Data
from rayfl.errors import BadCode, Conflict
from rayfl.record.folder import read_config
from rayfl.record.history import CONFIG
from rayfl.running.result import Result
from rayfl.running.run import FederationRun
from rayfl.running.settings import RunSettings, recorded_settings, with_data_root
from rayfl.settings.description import config_of, differing_keys
from rayfl.settings.reader import build_object, flatten_settings, merge_layers


class Federation(RunSettings):
    """One experiment, ready to run.

    Examples:
        >>> from rayfl import Federation, Inline
        >>> from rayfl.data import Dirichlet, Synthetic
        >>> from rayfl.methods import FedProx
        >>> federation = Federation(
        ...     method=FedProx(mu=0.1),
        ...     data=Synthetic(train=200, test=50, partition=Dirichlet(alpha=0.3)),
        ...     clients=4,
        ...     rounds=2,
        ...     engine=Inline(),
        ...     output="runs/first",
        ...     quiet=True,
        ... )
        >>> result = federation.run()
        >>> result
        Result(folder='runs/first', rounds=2 of 2, accuracy=0...)
    """

    def __post_init__(self) -> None:
        if type(self) is not Federation:
            raise BadCode(
                type(self).__name__,
                "is derived from Federation: config.yaml records only its options, and a resumed run would "
                "go on without your changes",
                "Make a Federation, and put what is yours into a method, a data set or a partition",
            )
        super().__post_init__()

    def run(self, callbacks: Sequence[Callback] = ()) -> Result:
        """Run all rounds; return the records. See :meth:`rayfl.running.run.FederationRun.run`."""
        return FederationRun(self).run(callbacks)

    def resume(self, folder: str | Path, any_code: bool = False) -> FederationRun:
        """Return the run in a folder, to go on where its last checkpoint is; it must have these settings.

        Args:
            folder: the run folder.
            any_code: whether code of your own may be other than what the run has had so far.
        """
        found = self.clients
        if found is None and Path(folder, CONFIG).is_file():
            found = read_config(Path(folder)).get("clients")
        settings = replace(self, output=str(folder), clients=found)
        return FederationRun(settings, resumes=True, any_code=any_code)


def federation_of(settings: Mapping[str, Any]) -> Federation:
    """Build a federation from a mapping of settings."""
    return build_object(Federation, with_data_root(dict(settings)))


def resumed(
    folder: str | Path,
    changes: Mapping[str, Any] | None = None,
    data: Data | None = None,
    any_code: bool = False,
) -> FederationRun:
    """Return the run in a folder, to go on where its last checkpoint is.

    Args:
        folder: the run folder.
        changes: settings among ``RESUMABLE`` that take the place of the recorded ones, by their dotted names,
            as in ``{"rounds": 30, "engine.device": "cpu"}``.
        data: the same data again, if the configuration cannot hold them: ``rayfl.data.Arrays``.
        any_code: whether code of your own may be other than what the run has had so far.

    Examples:
        >>> from rayfl import resumed
        >>> resumed("runs/first", {"rounds": 3}).run()
        Result(folder='runs/first', rounds=3 of 3, accuracy=0...)
    """
    federation = recorded = recorded_settings(Federation, folder)
    if changes:
        layers = (flatten_settings(config_of(recorded)), flatten_settings(changes))
        federation = build_object(Federation, merge_layers(*layers))
    if federation.cell and "cell" not in (changes or {}) and federation.rounds != recorded.rounds:
        others = [text for text in federation.cell.changed if not text.startswith("rounds=")]
        cell = replace(federation.cell, changed=[*others, f"rounds={federation.rounds}"])
        federation = replace(federation, cell=cell)
    if data is not None:
        recorded, federation = federation, replace(federation, data=data)
        if other := differing_keys(recorded.result_settings(), federation.result_settings()):
            raise Conflict(Path(folder) / CONFIG, f"is of a run with other data: {', '.join(other)} differ")
    return federation.resume(folder, any_code)
