"""Folders that PFLlib's scripts write, written here with NumPy as they do it, and those that rayfl writes."""

import io
import json
import os
import pickle
import zipfile

import numpy as np
import pytest

from rayfl.commands.data import main
from rayfl.data import TEST, TRAIN, Arrays, Dirichlet, FromFile, PFLlibFiles, Synthetic, write_pfllib_files
from rayfl.errors import BadData, Conflict, Damaged, InUse, Missing
from tests.data.test_files import Malicious
from tests.support.refusals import refused, told

NAMES = {"current": "{}/{}.npz", "early": "{0}/{0}{1}_.npz"}


def write(folder, train, test, layout="current", **config):
    """Write the dictionary of every client as ``save_file`` of PFLlib does."""
    for part, clients in (("train", train), ("test", test)):
        (folder / part).mkdir(parents=True, exist_ok=True)
        for client, content in enumerate(clients):
            with (folder / NAMES[layout].format(part, client)).open("wb") as file:
                np.savez_compressed(file, data=content)
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    return PFLlibFiles(root=str(folder))


def images(*values, labels=None):
    """Return grey images, each of one value."""
    x = np.array(values, np.float32)[:, None, None, None] * np.ones((1, 1, 28, 28), np.float32)
    return {"x": x, "y": np.array(labels or [0] * len(values), np.int64)}


@pytest.mark.parametrize("layout", NAMES)
def test_the_clients_are_those_of_the_files_in_their_order(tmp_path, layout):
    """Client 10 is the last one, not the one after client 1."""
    train = [images(client / 10, -client / 10, labels=[client % 3, 2]) for client in range(11)]
    test = [images(client / 10 - 0.05, labels=[1]) for client in range(11)]
    data = write(tmp_path, train, test, layout, num_clients=11, num_classes=5).federate(None, 0)
    dataset = data.dataset
    assert (dataset.shape, dataset.inputs.dtype, dataset.classes) == ((1, 28, 28), np.float32, 5)
    assert not dataset.warnings
    assert dataset.origin.tolist() == [TRAIN] * 22 + [TEST] * 11
    for held, *files in zip(data.clients, train, test, strict=True):
        for indices, content in zip((held.train, held.test), files):
            np.testing.assert_array_equal(dataset.inputs[indices], content["x"])
            assert dataset.labels[indices].tolist() == content["y"].tolist()


def test_what_else_scripts_write(tmp_path):
    """Series as float64, characters, texts with lengths, and lists of black and white images."""
    texts = np.array([([7, 3, 0], 3), ([5, 0, 0], 3)], dtype=object)
    ink = [[[[1, 0], [0, 1]]], [[[0, 0], [0, 0]]]]
    labels = np.array([1, 0])
    kinds = {
        "HAR": (np.full((2, 9, 1, 4), 0.1), labels, np.float32, np.full((2, 9, 1, 4), 0.1, np.float32)),
        "Shakespeare": (np.array([[1, 79], [2, 0]], np.int32), labels, np.int64, [[1, 79], [2, 0]]),
        "AGNews": (texts, labels, np.int64, [[7, 3, 0], [5, 0, 0]]),
        "Omniglot": ([np.array(each, bool) for each in ink], [1, 0], np.float32, ink),
    }
    for name, (x, y, dtype, expected) in kinds.items():
        content = {"x": x, "y": y}
        dataset = write(tmp_path / name, [content], [content]).load()
        np.testing.assert_array_equal(dataset.inputs[:2], expected)
        assert dataset.inputs.dtype == dtype
        assert (dataset.labels.tolist(), dataset.class_names) == ([1, 0, 1, 0], ("0", "1"))


def test_files_of_an_older_division_are_not_read(tmp_path):
    data = write(tmp_path, [images(0.5, 1)] * 3, [images(0)] * 3, num_clients=2)
    divided = data.federate(None, 0)
    assert divided.counts("train").tolist() == [2, 2]
    assert len(divided.dataset.warnings) == 1
    (tmp_path / "config.json").unlink()
    assert len(data.federate(None, 0)) == 3
    write(tmp_path, [], [], num_clients=4)
    with refused(Missing, "train/3.npz"):
        data.load()
    (tmp_path / "config.json").write_text('{"num_clients": "2"}')
    with refused(Damaged, "config.json"):
        data.load()


def test_a_folder_of_something_else(tmp_path):
    with refused(Missing, "data.root"):
        PFLlibFiles().load()
    with refused(Missing, "train"):
        PFLlibFiles(root=str(tmp_path)).load()
    with refused(BadData, "PFLlibFiles"):
        write(tmp_path, [images(0, labels=[7])], [images(0)], num_classes=3).load()
    with refused(BadData, tmp_path):
        write(tmp_path, [images(0), {"x": np.zeros((1, 4)), "y": [0]}], [images(0)] * 2).load()


@pytest.mark.parametrize("where", ["x", "y", "in x", "all"])
def test_a_malicious_file_is_refused_before_anything_runs(tmp_path, where):
    evil = Malicious(os.system, f"touch {tmp_path / 'ran'}")
    content = {"x": images(0) | {"x": evil}, "y": images(0) | {"y": evil}, "all": evil}
    content["in x"] = images(0) | {"x": np.array([evil], dtype=object)}
    data = write(tmp_path, [images(0), content[where]], [images(0)] * 2)
    with refused(Damaged, tmp_path / "train" / "1.npz"):
        data.load()
    assert not (tmp_path / "ran").exists()


def entry(content, more=b"", name="data", packing=zipfile.ZIP_STORED):
    """Return an .npz file with one pickled object, and what else is said to follow it."""
    packed, npy = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(npy, {"descr": "|O", "fortran_order": False, "shape": ()})
    with zipfile.ZipFile(packed, "w", packing) as archive:
        archive.writestr(f"{name}.npy", npy.getvalue() + pickle.dumps(content, 4) + more)
    return packed.getvalue()


PIXEL = np.float32(0.1)
GOOD = np.array(images(PIXEL))
DAMAGED = {
    "empty": b"",
    "cut": entry(GOOD)[:-40],
    "another pixel": entry(GOOD).replace(PIXEL.tobytes(), np.float32(0.5).tobytes(), 1),
    "another name": entry(GOOD, name="x"),
    "no array": entry(images(0)),
    "no dictionary": entry(np.array([1, 2])),
    "two objects": entry(GOOD, b"."),
    "no labels": entry(np.array({"x": np.zeros((1, 2))})),
    "fewer labels": entry(np.array({"x": np.zeros((3, 2)), "y": np.zeros(2, int)})),
    "no samples": entry(np.array({"x": np.float32(1), "y": np.int64(1)})),
    "lists that differ": entry(np.array({"x": [[1], [1, 2]], "y": [0, 0]})),
    "words": entry(np.array({"x": [["to"], ["be"]], "y": [0, 0]})),
    "a file that fills the memory": entry(GOOD, bytes(65_000_000), packing=zipfile.ZIP_DEFLATED),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files(tmp_path, name):
    data = write(tmp_path, [images(0)], [images(0)])
    (tmp_path / "test" / "0.npz").write_bytes(entry(GOOD))
    assert data.load().inputs[1].max() == PIXEL
    (tmp_path / "test" / "0.npz").write_bytes(DAMAGED[name])
    with refused(Damaged, tmp_path / "test" / "0.npz"):
        data.load()


# --- what rayfl writes


def pictures(**options):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (60, 3, 4, 4), np.uint8)
    x[0], x[1] = 0, 255
    return Arrays(x, rng.integers(0, 4, 60), mean=[0.5] * 3, std=[0.5, 0.25, 0.5], **options)


@pytest.mark.parametrize("layout", NAMES)
def test_an_export_has_the_same_clients_inputs_and_labels(tmp_path, layout):
    data = pictures(partition=Dirichlet(alpha=1.0)).federate(3, 0)
    write_pfllib_files(data, tmp_path / "out", layout)
    read = PFLlibFiles(root=str(tmp_path / "out")).federate(None, 5)
    assert (len(read), read.dataset.classes) == (3, 4)
    mean, std = np.reshape([0.5] * 3, (3, 1, 1)), np.reshape([0.5, 0.25, 0.5], (3, 1, 1))
    for client in range(3):
        for part in ("train", "test"):
            mine, theirs = data.clients[client].split(part), read.clients[client].split(part)
            wanted = (data.dataset.inputs[mine] / 255 - mean) / std
            np.testing.assert_allclose(read.dataset.inputs[theirs], wanted, atol=1e-6)
            assert read.dataset.labels[theirs].tolist() == data.dataset.labels[mine].tolist()
            file = tmp_path / "out" / NAMES[layout].format(part, client)
            content = np.load(file, allow_pickle=True)["data"].tolist()  # as PFLlib does it
            np.testing.assert_array_equal(content["x"], read.dataset.inputs[theirs])
            assert (content["x"].dtype, content["y"].dtype) == (np.float32, np.int64)
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == {"num_clients": 3, "num_classes": 4}


def test_the_command_exports_what_a_run_would_use(tmp_path, capsys):
    options = ["--data", "Synthetic", "--data.train", "90", "--data.test", "30", "--data.shape", "[1,2,2]"]
    path = tmp_path / "out"
    assert main(["export", str(path), *options, "--clients", "3", "--seed", "4", "--layout", "early"]) == 0
    assert capsys.readouterr().out.endswith(f"Written: {path}\n")
    assert sorted(each.name for each in (path / "test").iterdir()) == [f"test{i}_.npz" for i in range(3)]
    read = PFLlibFiles(root=str(path)).federate(None, 0)
    data = Synthetic(train=90, test=30, shape=(1, 2, 2)).federate(3, 4)
    for mine, theirs in zip(data.clients, read.clients):
        np.testing.assert_array_equal(data.dataset.inputs[mine.train], read.dataset.inputs[theirs.train])
    with told(InUse, path):
        assert main(["export", str(path), *options]) == 2


def test_what_pfllib_lacks_is_said_or_refused(tmp_path, caplog):
    """Token ids are written as they are, validation samples are not, and all clients need test samples."""
    x = np.arange(60).reshape(20, 3)
    data = Arrays(x, np.arange(20) % 2, val_fraction=0.5)
    write_pfllib_files(data.federate(2, 0), tmp_path / "ids")
    assert len(caplog.records) == 1
    assert "8 validation samples" in caplog.text
    read = PFLlibFiles(root=str(tmp_path / "ids")).load()
    assert read.inputs.dtype == np.int64
    assert len(read) == 12
    assert {*map(tuple, read.inputs.tolist())} < {*map(tuple, x.tolist())}
    division = tmp_path / "division.json"
    division.write_text(json.dumps({"clients": [{"train": [0], "test": [1]}, {"train": [2]}]}))
    data = pictures(partition=FromFile(path=str(division))).federate(2, 0)
    with refused(Conflict, "data.partition"):
        write_pfllib_files(data, tmp_path / "out")
    assert not (tmp_path / "out").exists()
