"""Checkpoints: what is written comes back, and what is damaged is found and named."""

import hashlib
import os
import pickle
from pathlib import Path

import pytest
import torch

from rayfl.errors import Damaged, Missing, Shortage
from rayfl.record.checkpoint import KEEP, Checkpoints, Manifest
from rayfl.training import Params
from rayfl.training.state import take_apart
from tests.support.refusals import refused


def state(value: float = 1.0) -> dict:
    w = Params({"a": torch.full((3,), float(value)), "b": torch.zeros(2, 2)}, frozenset("a"))
    return {"weights": w, "heads": {3: w, 11: None}, "known": torch.tensor([True, False]), "n": 4, "x": 0.1}


def equal(a, b) -> bool:
    (one, tensors), (other, found) = take_apart(a), take_apart(b)
    same = tensors.keys() == found.keys() and all(
        t.dtype == found[n].dtype and torch.equal(t, found[n]) for n, t in tensors.items()
    )
    return one == other and same


def write(checkpoints: Checkpoints, round: int, value: float | None = None, clients: int = 2) -> Manifest:
    """Write and commit the checkpoint before a round."""
    value = float(round) if value is None else value
    files = {
        k: checkpoints.write_clients(k, {16 * k: state(value + k), 16 * k + 5: {}}) for k in range(clients)
    }
    manifest = Manifest(round, checkpoints.write_server(state(value)), files, {"scores": [round, None]}, {})
    checkpoints.commit(manifest)
    return manifest


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints")


def names(checkpoints: Checkpoints) -> set[str]:
    return {path.name for path in checkpoints.folder.iterdir()}


def test_what_is_written_comes_back(checkpoints):
    written = write(checkpoints, 4)
    found, damage = checkpoints.newest_intact()
    assert found == written
    assert not damage
    assert equal(checkpoints.read(found.server), state(4))
    rows = checkpoints.read(found.clients[1])
    assert list(rows) == [16, 21]
    assert equal(rows[16], state(5))
    assert rows[21] == {}
    assert rows[16]["weights"].train_names == {"a"}


def test_losses_that_are_not_finite_come_back(checkpoints):
    losses = [0.5, None, float("inf"), float("-inf"), float("nan")]
    name = checkpoints.write_server(state(1))
    checkpoints.commit(Manifest(3, name, {}, {"after_training": {"personal": {"loss": losses}}}, {}))
    found, damage = checkpoints.newest_intact()
    assert not damage
    assert repr(found.progress["after_training"]["personal"]["loss"]) == repr(losses)


def test_the_newest_is_that_of_the_largest_number(checkpoints):
    for round in (999_990, 1_000_000, 1_000_010):
        write(checkpoints, round)
    assert checkpoints.newest_intact()[0].round == 1_000_010
    assert {path.name for path in checkpoints.folder.glob("manifest-*")} == {
        "manifest-1000000.json",
        "manifest-1000010.json",
    }


def test_nothing_written_yet(checkpoints):
    assert checkpoints.newest_intact() == (None, [])
    assert checkpoints.write_clients(0, {}) is None
    assert not checkpoints.folder.exists()
    assert checkpoints.read(checkpoints.write_server({})) == {}


def test_tensors_that_are_views_are_written_by_value(checkpoints):
    base = torch.arange(12.0).reshape(3, 4)
    views = {"row": base[1], "transposed": base.T, "same": base, "grown": torch.ones(1).expand(4)}
    found = checkpoints.read(checkpoints.write_server(views))
    assert equal(found, {n: t.clone() for n, t in views.items()})


def test_equal_states_have_equal_names_and_bytes(checkpoints, tmp_path):
    other = Checkpoints(tmp_path / "elsewhere")
    one = checkpoints.write_clients(2, {32: state(1), 40: state(2)})
    assert other.write_clients(2, {40: state(2), 32: state(1)}) == one  # in whatever order they are hosted
    assert checkpoints.write_clients(3, {32: state(1), 40: state(2)}) != one
    for made in (checkpoints, other):
        write(made, 2)
        write(made, 4)
    assert names(checkpoints) == names(other)
    for name in names(checkpoints):
        assert (checkpoints.folder / name).read_bytes() == (other.folder / name).read_bytes()


def test_the_newest_are_kept_and_nothing_else_of_ours(checkpoints):
    """What an interrupted checkpoint left is removed, too."""
    write(checkpoints, 2)
    (checkpoints.folder / "notes.txt").write_text("mine")
    (checkpoints.folder / "copy").mkdir()
    checkpoints.write_server(state(99))  # and then the power failed
    (checkpoints.folder / "server-0.safetensors.77.tmp").write_bytes(b"half")
    assert checkpoints.newest_intact()[0].round == 2
    for round in (4, 6, 10):
        last = write(checkpoints, round)
    left = names(checkpoints) - {"notes.txt", "copy"}
    manifests = {n for n in left if n.startswith("manifest")}
    assert manifests == {"manifest-000006.json", "manifest-000010.json"}
    assert len(manifests) == KEEP
    assert len(left) == KEEP * (1 + 1 + 2) == len(names(checkpoints)) - 2
    assert {last.server, *last.clients.values()} <= left


def test_files_that_an_older_checkpoint_shares_are_kept(checkpoints):
    for round in (2, 4, 6):
        write(checkpoints, round, value=1.0)
    assert len(names(checkpoints)) == KEEP + 3
    assert checkpoints.newest_intact()[0].round == 6


def test_checkpoints_of_rounds_that_were_rolled_back_are_removed(checkpoints):
    for round in (2, 4, 6):
        write(checkpoints, round)
    write(checkpoints, 3)
    assert checkpoints.newest_intact()[0].round == 3
    assert not any("000004" in n or "000006" in n for n in names(checkpoints))


# ---- damage


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def garbage(path: Path) -> None:
    path.write_bytes(b"\xff\x00 no json")


DAMAGES = [truncate, flip, garbage, Path.unlink]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", ["server", "clients", "manifest"])
def test_damage_is_found_and_the_checkpoint_before_serves(checkpoints, damage, kind):
    write(checkpoints, 2)
    manifest = write(checkpoints, 4)
    files = {"server": manifest.server, "clients": manifest.clients[1], "manifest": "manifest-000004.json"}
    name = files[kind]
    damage(checkpoints.folder / name)
    found, complaints = checkpoints.newest_intact()
    assert found is not None
    assert found.round == 2
    assert equal(checkpoints.read(found.server), state(2))
    if (kind, damage) != ("manifest", Path.unlink):
        (complaint,) = complaints
        assert name in complaint
        assert "damaged" in complaint or "cannot be read" in complaint
    if kind != "manifest":
        with refused(Missing if damage is Path.unlink else Damaged, checkpoints.folder / name):
            checkpoints.read(name)
    write(checkpoints, 4)  # the replay mends it
    assert checkpoints.newest_intact() == (manifest, [])


def test_no_checkpoint_is_intact(checkpoints):
    first, second = write(checkpoints, 2), write(checkpoints, 4)
    for manifest in (first, second):
        truncate(checkpoints.folder / manifest.server)
    with refused(Damaged, checkpoints.folder) as caught:
        checkpoints.newest_intact()
    assert first.server in str(caught.value)
    assert second.server in str(caught.value)


def test_files_that_other_hosts_wrote_elsewhere(checkpoints):
    server = checkpoints.write_server(state())
    missing = "clients-00000-0123.safetensors"
    with refused(Missing, missing):
        checkpoints.commit(Manifest(2, server, {0: missing}, {}, {}))
    assert checkpoints.newest_intact() == (None, [])


def test_a_full_disk_leaves_the_checkpoint_before_intact(checkpoints, monkeypatch):
    write(checkpoints, 2)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with refused(Shortage, "clients-00000-*.safetensors"):
        write(checkpoints, 4)
    with refused(Shortage, "server-*.safetensors"):
        checkpoints.write_server(state(4))
    assert checkpoints.newest_intact()[0].round == 2
    assert not any(n.endswith(".tmp") for n in names(checkpoints))


def test_what_a_power_failure_leaves_is_whole(checkpoints, monkeypatch):
    """Content is on the disk before its name, all names before the manifest's, and that before removals."""
    for round in (2, 4):
        write(checkpoints, round)
    fsync, replace, unlink, done = os.fsync, os.replace, Path.unlink, []

    def synced(descriptor: int) -> None:
        fsync(descriptor)
        found = os.fstat(descriptor)
        written = {path.stat().st_ino: path.name for path in checkpoints.folder.glob("*.tmp")}
        name = written.get(found.st_ino)
        done.append(("sync", name.rsplit(".", 2)[0], found.st_size) if name else ("sync", "folder"))

    def renamed(source: Path, target: Path) -> None:
        replace(source, target)
        done.append(("rename", target.name))

    def removed(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok)
        done.append(("remove", path.name))

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    monkeypatch.setattr(Path, "unlink", removed)
    manifest = write(checkpoints, 6)
    expected = []
    for name in (*manifest.clients.values(), manifest.server, "manifest-000006.json"):
        if name.startswith("manifest"):
            expected.append(("sync", "folder"))
        expected += [("sync", name, (checkpoints.folder / name).stat().st_size), ("rename", name)]
    expected += 2 * [("sync", "folder")]  # its own name, too
    assert done[: len(expected)] == expected
    removals = done[len(expected) :]  # the oldest manifest and its three files
    assert [kind for kind, _ in removals] == ["remove"] * 4


def test_a_state_that_cannot_be_written_is_refused_by_name(checkpoints):
    with pytest.raises(TypeError, match="state/5/bad is a list"):
        checkpoints.write_clients(0, {5: {"bad": [1]}})
    assert not checkpoints.folder.exists()


class Evil:
    """Would run a command if it were unpickled."""

    def __reduce__(self):
        return (os.mkdir, ("evil-was-here",))


def test_malicious_content_runs_nothing(checkpoints, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = pickle.dumps(Evil())
    name = f"server-{hashlib.sha256(content).hexdigest()[:24]}.safetensors"
    checkpoints.folder.mkdir()
    (checkpoints.folder / name).write_bytes(content)
    with refused(Damaged, name):
        checkpoints.read(name)
    (checkpoints.folder / "manifest-000001.json").write_bytes(content)
    with refused(Damaged, "checkpoints"):
        checkpoints.newest_intact()
    assert not (tmp_path / "evil-was-here").exists()
