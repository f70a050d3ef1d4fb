"""Go back to the newest checkpoint: when a run is resumed, and when processes die."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rayfl.engine.base import ClusterLost, WorkersLost
from rayfl.engine.session import Session
from rayfl.errors import BadCode, Conflict, Damaged, Shortage, UserError, shortage
from rayfl.record.checkpoint import Checkpoints, Manifest
from rayfl.record.folder import RunFolder, read_config
from rayfl.record.history import CONFIG, METRICS, SUMMARY, read_lines, read_records
from rayfl.running.result import Result
from rayfl.settings.description import flatten_config
from rayfl.system.own_code import UNTIL, changed_code
from rayfl.system.text import counted, warn


def finished_result(path: Path, rounds: int) -> Result | None:
    """Return the result of a run that is over and has no checkpoint; else None."""
    if Checkpoints(path / "checkpoints").rounds or not (path / SUMMARY).is_file():
        return None
    result = Result.load(path)
    return result if result.complete and result.summary["rounds"] == rounds else None


def check_device(path: Path, device: str) -> None:
    """Refuse to resume a run on another device than before, unless the user asks for it.

    Args:
        path: the run folder.
        device: what ``engine.device: auto`` means here.
    """
    before = flatten_config(read_config(path)).get("engine.device", device)
    if before not in (device, "auto"):
        problem = f"has been run on {before}, and would go on on {device}, which has other last bits"
        raise Conflict(path, problem, f"allow that by --engine.device {device}, or give that of before")


CohortChooser = Callable[[int], list[int]]
"""Round -> the clients that its sampling chooses."""


def checkpoint_to_resume(
    path: Path, rounds: int, settings: dict[str, Any], cohort: CohortChooser, any_code: bool = False
) -> Manifest | None:
    """Return the checkpoint from which a run goes on; None if it starts again.

    Args:
        path: the run folder.
        rounds: the total number of rounds.
        settings: those that decide the numbers, with digests of its data and of code. What was replaced is
            added, under ``module to round N``.
        cohort: chooses its cohorts.
        any_code: whether the code may be another one than before.

    Raises:
        UserError: data, settings, code or cohorts are not those of the run in the folder, or it has more
            rounds.
    """
    manifest = newest_checkpoint(path, settings, None if any_code else cohort)
    recorded = manifest.settings.get("code", {}) if manifest else {}
    other = changed_code(recorded, settings["code"])
    if other and not any_code:
        remedy = "Restore it, allow it by --code changed, or start anew with another --output"
        raise Conflict(path, f"was run with other code: {', '.join(other)}", remedy)
    if other:
        warn(f"{path} goes on with other code than it had: {', '.join(other)}")
    before, here = (code.get("processor") for code in (recorded, settings["code"]))
    if before not in (None, here):
        warn(f"{path} was run on {before}, and goes on on {here}: its last bits may differ")
        other.append("processor")
    if manifest:
        recorded = {f"{n}{UNTIL}{manifest.round}" if n in other else n: recorded[n] for n in recorded}
    settings["code"] = {**recorded, **settings["code"]}
    done = manifest.round if manifest else sum(1 for _ in read_lines(path / METRICS))
    if done > rounds:
        problem = f"is {rounds}, and {path} has completed {counted(done, 'round')}"
        raise Conflict("rounds", problem, "give a larger --rounds")
    if manifest is None and done:
        warn(f"{path} has no checkpoint: {counted(done, 'round')} must be run again")
    if manifest:
        Checkpoints(path / "checkpoints").keep_names()
    return manifest


def newest_checkpoint(
    path: Path, settings: Mapping[str, Any], cohort: CohortChooser | None
) -> Manifest | None:
    """Return the newest checkpoint that is intact and complete; None if there is none.

    Raises:
        UserError: it is of another run, or its last round would have other clients now.
    """
    checkpoints = Checkpoints(path / "checkpoints")
    rounds = [(r["cohort"], {*r["dropped"]}) for r in read_records(path)] if checkpoints.rounds else []

    def trained(manifest: Manifest) -> set[int]:
        checkpoints.check_settings(manifest, settings)
        if len(rounds) < manifest.round:
            ends = f"ends after {counted(len(rounds), 'round')}, before the checkpoint after {manifest.round}"
            raise Damaged(path / METRICS, ends)
        return set[int]().union(*({*ids} - dropped for ids, dropped in rounds[: manifest.round]))

    manifest, damage = checkpoints.newest_intact(trained)
    for text in damage:
        warn(f"{text}; going back to the checkpoint before it")
    if manifest and cohort and cohort(manifest.round - 1) != rounds[manifest.round - 1][0]:
        problem = f"chooses other clients for round {manifest.round - 1} than {path} has"
        remedy = "it must not go by callbacks, nor by `rounds` without `uses_rounds`; or allow --code changed"
        raise BadCode("sampling", problem, remedy)
    return manifest


def restore_session(
    session: Session,
    path: Path,
    manifest: Manifest | None,
    settings: Mapping[str, Any],
    cohort: CohortChooser,
) -> Manifest | None:
    """Load a checkpoint into the processes; if some die, try again with the newest one.

    Returns:
        The checkpoint from which the run goes on.
    """
    while True:
        try:
            session.restore(path / "checkpoints", manifest)
            return manifest
        except Exception as error:
            lost = handle_loss(session, error)
            if isinstance(lost, ClusterLost):
                raise Shortage("", lost, _way_on(path)) from error
            manifest = newest_checkpoint(path, settings, cohort)
            warn_of_loss(lost, manifest)


@contextmanager
def disk_full_as_error(path: Path) -> Iterator[None]:
    """Raise a one-line error if a disk or Ray's object store is full.

    Args:
        path: the run folder.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if (full := shortage(error)) is None:
            raise
        raise Shortage(f"{full}; then {_way_on(path)}") from None


def _way_on(path: Path) -> str:
    """Return what to do when a run has failed through no fault of its settings."""
    return f"go on with --resume {path}" if (path / CONFIG).is_file() else "start the run again"


def handle_loss(
    session: Session, error: Exception, folder: RunFolder | None = None
) -> ClusterLost | WorkersLost:
    """Return the loss behind an error, cleared up so that the run can be restored; raise any other error.

    Args:
        session: the processes.
        error: the error.
        folder: the run folder, from which the record of a round that has failed on the server is removed.
    """
    if isinstance(error, ClusterLost):
        return error
    try:
        session.check()
        if isinstance(error, WorkersLost):
            session.clear_loss(error)
            return error
    except ClusterLost as gone:
        return gone
    if folder is not None and (failed := session.failed_step()) is not None:
        with suppress(UserError):  # the error says more
            folder.truncate(failed)
    raise error


def warn_of_loss(lost: ClusterLost | WorkersLost, manifest: Manifest | None) -> None:
    """Warn of a loss, with the round from which the run goes on."""
    where = f"the checkpoint after {counted(manifest.round, 'round')}" if manifest else "the start"
    warn(f"{lost}; going on from {where}")
