"""Back to the newest checkpoint: when a run is resumed, and when processes die."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rayfl.engine.base import Gone, Lost
from rayfl.engine.session import Session
from rayfl.errors import BadCode, Conflict, Damaged, Shortage, UserError, shortage
from rayfl.record.checkpoint import Checkpoints, Manifest
from rayfl.record.folder import RunFolder, read_config
from rayfl.record.history import CONFIG, METRICS, SUMMARY, read_lines, read_records
from rayfl.running.result import Result
from rayfl.settings.description import flat
from rayfl.system.own_code import changed
from rayfl.system.text import counted, warn

UNTIL = " to round "
"""Stands in records between a module that was replaced during a run, and its last round before."""


def finished(path: Path, rounds: int) -> Result | None:
    """Return the records of a run that is over and has no checkpoint to go on from."""
    if Checkpoints(path / "checkpoints").rounds or not (path / SUMMARY).is_file():
        return None
    result = Result.load(path)
    return result if result.complete and result.summary["rounds"] == rounds else None


def check_device(path: Path, device: str) -> None:
    """Refuse to go on with a run on another device than it has had, where nobody has asked for that.

    Args:
        path: the run folder.
        device: what ``engine.device: auto`` means here.
    """
    before = flat(read_config(path)).get("engine.device", device)
    if before not in (device, "auto"):
        raise Conflict(
            path,
            f"has been run on {before}, and would go on on {device}, which has other last bits",
            f"allow that by --engine.device {device}, or give the options with which it ran on {before}",
        )


Cohort = Callable[[int], list[int]]
"""Round -> the clients that its sampling chooses."""


def to_resume(
    path: Path, rounds: int, settings: dict[str, Any], cohort: Cohort, any_code: bool = False
) -> Manifest | None:
    """Return the checkpoint with which a run goes on; None where it has to start again.

    Args:
        path: the run folder.
        rounds: how many the run is to have.
        settings: its own that decide the numbers, with the digests of its data and of the user's own code.
            What was replaced of the code is then there, too, under ``module to round N``.
        cohort: its own.
        any_code: whether the code may be another one than before.

    Raises:
        UserError: data, settings, code or cohorts are not those of the run in the folder, or it has more
            rounds.
    """
    manifest = newest(path, settings, None if any_code else cohort)
    recorded = manifest.settings.get("code", {}) if manifest else {}
    other = changed({name: recorded[name] for name in recorded if UNTIL not in name}, settings["code"])
    if other and not any_code:
        raise Conflict(
            path,
            f"was run with other code of your own: {', '.join(other)}",
            "Restore it, allow it by --code changed, or start anew with another --output",
        )
    if manifest and other:
        warn(f"{path} goes on with other code of your own than it had: {', '.join(other)}")
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


def newest(path: Path, settings: Mapping[str, Any], cohort: Cohort | None) -> Manifest | None:
    """Return the newest checkpoint that is intact and complete, None where none has been written.

    Raises:
        UserError: it is of another run, or its last round would have other clients now.
    """
    checkpoints = Checkpoints(path / "checkpoints")
    rounds = [(r["cohort"], {*r["dropped"]}) for r in read_records(path)] if checkpoints.rounds else []

    def trained(manifest: Manifest) -> set[int]:
        checkpoints.check_settings(manifest, settings)
        if len(rounds) < manifest.round:
            raise Damaged(
                path / METRICS,
                f"ends after {counted(len(rounds), 'round')}, before the checkpoint after {manifest.round}",
            )
        return set[int]().union(*({*ids} - dropped for ids, dropped in rounds[: manifest.round]))

    manifest, damage = checkpoints.newest(trained)
    for text in damage:
        warn(f"{text}; going back to the checkpoint before it")
    if manifest and cohort and cohort(manifest.round - 1) != rounds[manifest.round - 1][0]:
        raise BadCode(
            "sampling",
            f"chooses other clients for round {manifest.round - 1} than {path} has",
            "it must not go by what a callback tells it; other code is allowed by --code changed",
        )
    return manifest


def restored(
    session: Session, path: Path, manifest: Manifest | None, settings: Mapping[str, Any], cohort: Cohort
) -> Manifest | None:
    """Give the processes the state of a checkpoint; where some die, start anew from the newest one.

    Returns:
        The checkpoint from which the run goes on.
    """
    while True:
        try:
            session.restore(path / "checkpoints", manifest)
            return manifest
        except Exception as error:
            lost = loss_of(session, error)
            if isinstance(lost, Gone):
                begun = (path / CONFIG).is_file()
                way = f"go on with --resume {path}" if begun else "start the run again"
                raise Shortage("", lost, way) from error
            manifest = newest(path, settings, cohort)
            tell_of(lost, manifest)


@contextmanager
def needing_room(path: Path) -> Iterator[None]:
    """Make one sentence of it where a disk or Ray's object store is full, wherever that has shown.

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
        way = f"go on with --resume {path}" if (path / CONFIG).is_file() else "start the run again"
        raise Shortage(f"{full}; then {way}") from None


def loss_of(session: Session, error: Exception, folder: RunFolder | None = None) -> Gone | Lost:
    """Return what has been lost, cleared up so that the run can be restored; raise what is no loss.

    Args:
        session: the processes.
        error: what has been raised.
        folder: the run's, which then has no record of a round that the server could not complete.
    """
    if isinstance(error, Gone):
        return error
    try:
        session.check()
        if isinstance(error, Lost):
            session.clear(error)
            return error
    except Gone as gone:
        return gone
    if folder is not None and (failed := session.failed_step()) is not None:
        with suppress(UserError):  # the error says more
            folder.truncate(failed)
    raise error


def tell_of(lost: Gone | Lost, manifest: Manifest | None) -> None:
    """Warn of a loss, and say from where the run goes on."""
    where = f"the checkpoint after {counted(manifest.round, 'round')}" if manifest else "the start"
    warn(f"{lost}; going on from {where}")
