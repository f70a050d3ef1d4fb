"""Checkpoints: state in safetensors files named by their content, and a manifest renamed into place last.

``checkpoints/`` of a run folder holds

* ``server-<hash>.safetensors``: the server's state,
* ``clients-<number>-<hash>.safetensors``: the personal states of a fixed block of client numbers, 16 or,
  where states are large, fewer; a block none of whose clients has trained has no file,
* ``manifest-<round>.json``: the files that make up the state before a round.

Nothing in them depends on processes, hosts or times, so equal runs have equal checkpoints. A file whose
content is in an older checkpoint already is not written again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import safetensors
import safetensors.torch
from pydantic import Field

from rayfl.errors import Conflict, Damaged, Missing, UserError
from rayfl.settings.description import differing_keys
from rayfl.system import files
from rayfl.system.files import convert_content, explain_read_errors, parse_json, read_file, write_file
from rayfl.training.state import State, put_together, take_apart

CLIENTS_PER_FILE = 16
"""Most clients whose states share a file."""
BYTES_PER_FILE = 256 * 2**20
"""Most bytes of such a file, which is written and read in memory."""
KEEP = 2
"""Checkpoints that are kept: the newest and the one before it, in case the newest is damaged."""
_FORMAT = 2
_MANIFEST = re.compile(r"manifest-\d+\.json")
_FULL = "earlier checkpoints are intact, so make room and resume the run"
_ANEW = "or start the run anew with another --output"
_OURS = ("server-", "clients-", "manifest-")  # names of files that may be removed


@dataclass(frozen=True)
class Manifest:
    """A checkpoint; it names only files in its own folder.

    Attributes:
        round: the next round to run.
        server: name of the server's file.
        clients: number of the client file -> its name.
        clients_per_file: how many clients' states share a file.
        stateless: the clients that have trained and keep no state.
        progress: the driver's state, as JSON in which numbers may be NaN or infinite.
        settings: everything that decides the run's numbers: settings by name, the digest of the divided
            data as ``division``, and what code and machines made the numbers as ``code``.
    """

    round: int
    server: Annotated[str, Field(pattern=r"^server-[0-9a-f]{24}\.safetensors$")]
    clients: dict[int, Annotated[str, Field(pattern=r"^clients-[0-9]{5,}-[0-9a-f]{24}\.safetensors$")]]
    progress: dict[str, Any]
    settings: dict[str, Any]
    clients_per_file: Annotated[int, Field(strict=True, ge=1, le=CLIENTS_PER_FILE)] = CLIENTS_PER_FILE
    stateless: list[int] = field(default_factory=list)


def clients_per_file(largest: int) -> int:
    """Return how many clients have their states in one file.

    Args:
        largest: bytes of the largest state.
    """
    return max(1, min(CLIENTS_PER_FILE, BYTES_PER_FILE // max(1, largest)))


class Checkpoints:
    """The checkpoints of a run.

    Args:
        folder: their folder; made when the first one is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write_server(self, state: State) -> str:
        """Write the server's state; return the file's name."""
        return self._write("server", state)

    def write_clients(self, number: int, rows: dict[int, State]) -> str | None:
        """Write the state of the clients of one file; return its name, or None if none has any.

        Args:
            number: the number of the client file.
            rows: client -> state, of those that have one.
        """
        return self._write(f"clients-{number:05d}", dict(sorted(rows.items()))) if rows else None

    def commit(self, manifest: Manifest, best: int = 0) -> None:
        """Make this checkpoint the newest, and remove older ones that are not kept.

        Args:
            manifest: the checkpoint.
            best: completed rounds of one that is kept however old it is; 0 for none.
        """
        for name in (manifest.server, *manifest.clients.values()):
            if not (self.folder / name).exists():
                remedy = "on several hosts the run folder must be on storage that all of them share"
                raise Missing(self.folder / name, "is not there", remedy)
        body = {"format": _FORMAT, **vars(manifest)}
        body["clients"] = {str(number): name for number, name in manifest.clients.items()}
        text = json.dumps({"sha256": _hash(_compact(body)), "manifest": body}, sort_keys=True, indent=1)
        files.disk.sync_folder(self.folder)  # the names of its files, before the manifest that needs them
        write_file(self.folder / f"manifest-{manifest.round:06d}.json", text, _FULL)
        self.keep_names()
        self._prune(manifest.round, best)

    def keep_names(self) -> None:
        """Bring the names of all files to the disk: before files of older checkpoints are removed, and before
        a run resumes from a checkpoint whose driver may have died too early to do so.
        """
        files.disk.sync_folder(self.folder)
        files.disk.sync_folder(self.folder.parent)  # the folder's own name, which may be new

    def check_settings(self, manifest: Manifest, settings: Mapping[str, Any]) -> None:
        """Refuse a checkpoint of another run; code may have changed.

        Args:
            manifest: the checkpoint.
            settings: those of the run that resumes from it.
        """
        recorded = manifest.settings
        for key in (name for name in differing_keys(recorded, settings) if name != "code"):
            there, here = recorded.get(key), settings.get(key)
            place, are = f"{key:.200}", f"is {here!r:.200} in the configuration, and {there!r:.200}"
            if key == "division":
                place, are = "data", ", or their division among the clients, are not those"
                before, now = (each.get("code", {}).get("processor") for each in (recorded, settings))
                if before != now:
                    are = f" that rayfl makes depend on the kind of processor ({now} here){are}"
            what = f"{are} in the checkpoint after {manifest.round} rounds in {self.folder}"
            raise Conflict(place, what, f"go on with what the run was begun with, {_ANEW}")

    @property
    def rounds(self) -> list[int]:
        """Numbers of completed rounds of all checkpoints, intact or not, ascending."""
        return sorted(map(_round_of, self._manifests()))

    def newest_intact(
        self, trained: Callable[[Manifest], Collection[int]] = lambda manifest: ()
    ) -> tuple[Manifest | None, list[str]]:
        """Return the newest intact and complete checkpoint, and what is wrong with newer ones.

        Args:
            trained: returns the clients that trained before a checkpoint, by the records; raises
                ``UserError`` if the records end before it.

        Returns:
            None if no checkpoint has been written.

        Raises:
            UserError: none is intact, or a later version of rayfl has written one.
        """
        damage: list[str] = []
        for path in self._manifests():
            try:
                manifest = _read_manifest(path)
                self._content(manifest.server)
                there = {*manifest.stateless}
                for name in manifest.clients.values():
                    there.update(_clients_in(self._content(name)))
                if missing := set(trained(manifest)) - there:
                    problem = f"is incomplete: client {min(missing)} has trained, and no file has its state"
                    raise Damaged(path, problem)
                return manifest, damage
            except Conflict:  # intact, and of another run or version of rayfl
                raise
            except UserError as error:
                damage.append(str(error))
        if damage:
            problem = f"has no intact checkpoint: {'; '.join(damage)}"
            raise Damaged(self.folder, problem, f"Restore the files from a copy, {_ANEW}")
        return None, []

    def checkpoint_after(self, round: int) -> Manifest:
        """Return the checkpoint after so many completed rounds."""
        path = self.folder / f"manifest-{round:06d}.json"
        if path not in self._manifests():
            there = ", ".join(map(str, self.rounds)) or "none"
            problem = f"has no checkpoint after {round} rounds; it has those after {there}"
            remedy = "choose one of these; only checkpoint_keep=best keeps that of the best evaluation"
            raise Missing(self.folder, problem, remedy)
        return _read_manifest(path)

    def read(self, name: str) -> Any:
        """Return the state in a file: the server's, or client -> state."""
        content = self._content(name)
        try:
            # Copied, because some kernels' last bits depend on how their input lies in memory; see `unpack`.
            tensors = {path: tensor.clone() for path, tensor in safetensors.torch.load(content).items()}
            return put_together(_structure_in(content), tensors)
        except (safetensors.SafetensorError, ValueError, LookupError, TypeError, RecursionError) as error:
            problem = f"holds no state ({error})"
            raise Damaged(self.folder / name, problem, f"restore it from a copy, {_ANEW}") from error

    def _manifests(self) -> list[Path]:
        """Return the manifests, the newest first."""
        with explain_read_errors(self.folder):
            try:
                names = os.listdir(self.folder)
            except FileNotFoundError:
                return []
        found = [self.folder / name for name in names if _MANIFEST.fullmatch(name)]
        return sorted(found, key=lambda path: (_round_of(path), path.name), reverse=True)

    def _content(self, name: str) -> bytes:
        path = self.folder / name
        with explain_read_errors(path):
            content = read_file(path)
        if _hash(content) != path.stem.rsplit("-", 1)[-1]:
            raise Damaged(path, "is damaged: its content does not match its name")
        return content

    def _write(self, stem: str, state: State | dict[int, State]) -> str:
        structure, tensors = take_apart(state)
        content = safetensors.torch.save(
            {path: t.detach().cpu().contiguous().clone() for path, t in tensors.items()},
            {"structure": json.dumps(structure, separators=(",", ":"))},
        )
        name = f"{stem}-{_hash(content)}.safetensors"
        path = self.folder / name
        with suppress(OSError):
            if read_file(path) == content:
                return name
        write_file(path, content, _FULL)  # also a damaged file of this name
        return name

    def _prune(self, newest: int, best: int) -> None:
        """Remove files that the kept checkpoints do not need, and remains of interrupted ones."""
        manifests = self._manifests()
        later = [p for p in manifests if _round_of(p) > newest]  # of a run that was rolled back
        rest = [p for p in manifests if p not in later]
        kept = rest[:KEEP] + [p for p in rest[KEEP:] if _round_of(p) == best]
        needed = {p.name for p in kept}
        for path in kept:
            try:
                manifest = _read_manifest(path)
            except UserError:
                continue
            needed.update([manifest.server, *manifest.clients.values()])
        for path in sorted(self.folder.iterdir()):
            if path.name not in needed and path.name.startswith(_OURS):
                files.disk.remove(path)


def _round_of(path: Path) -> int:
    return int(path.stem.rsplit("-", 1)[-1])


def _read_manifest(path: Path) -> Manifest:
    try:
        content = json.loads(read_file(path))
        body = content["manifest"]
        if _hash(_compact(body)) != content["sha256"]:
            raise ValueError("its checksum differs")
        if body["format"] != _FORMAT:
            problem = f"has the format {body['format']!r:.20}, which this version of rayfl cannot read"
            raise Conflict(path, problem, f"go on with the version that wrote it, {_ANEW}")
        manifest: Manifest = convert_content(Manifest, body)
        convert_content(dict[str, str], manifest.settings.get("code", {}))
        if manifest.round != _round_of(path):
            raise ValueError("its round is not that of its name")
        return manifest
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise Damaged(path, "is damaged") from error


def _compact(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":"), sort_keys=True).encode()


def _structure_in(content: bytes) -> Any:
    """Return the structure of the state in a checkpoint file, from the file's header."""
    size = int.from_bytes(content[:8], "little")
    return parse_json(parse_json(content[8 : 8 + size])["__metadata__"]["structure"].encode())


def _clients_in(content: bytes) -> list[int]:
    """Return the clients whose states a file has; none if it holds no states, which its reader reports."""
    with suppress(ValueError, LookupError, TypeError, AttributeError):
        return [id for id, _ in _structure_in(content)["dict"] if type(id) is int]
    return []


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:24]
