"""Data of one's own: arrays from Python, and from files."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

import rayfl
from rayfl.data import IID, TEST, TRAIN, VAL, ArrayFiles, Arrays, ByUser
from rayfl.data.dataset import Dataset
from rayfl.data.readers.files import FileData
from rayfl.data.readers.tables import column
from rayfl.errors import BadData, BadValue, Conflict, Missing
from rayfl.nets import MLP
from tests.support.federations import INLINE_AND_RAY, bytes_of_run, same_bytes, small
from tests.support.refusals import refused

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 5)).astype(np.float32)
Y = np.arange(60) % 3
USERS = np.repeat([7, 3, 5, 9], 15)


def rows(dataset, origin):
    return {tuple(row) for row in dataset.inputs[dataset.origin == origin]}


# --- Arrays


def test_arrays_and_tensors_are_the_same_data():
    """A test set that is given stands after the training samples."""
    one = Arrays(X[:40], Y[:40], X[40:], Y[40:]).load()
    other = Arrays(*(torch.from_numpy(a) for a in (X[:40], Y[:40], X[40:], Y[40:]))).load()
    assert one.digest() == other.digest()
    assert np.array_equal(one.inputs, X)
    assert np.array_equal(one.labels, Y)
    assert one.origin.tolist() == [TRAIN] * 40 + [TEST] * 20
    assert one.class_names == ("0", "1", "2")
    assert one.users is None


def test_a_part_is_for_testing_of_each_class_and_user():
    """Of 60 samples in three classes 20 % are 12, four of a class; of 15 of a user they are three."""
    dataset = Arrays(X, Y).load()
    assert np.bincount(dataset.labels[dataset.origin == TEST]).tolist() == [4, 4, 4]
    dataset = Arrays(X, Y, users=USERS, test_fraction=0.2).load()
    assert dataset.user_names == ("3", "5", "7", "9")
    assert dataset.users[:31:15].tolist() == [2, 0, 1]
    assert np.bincount(dataset.users[dataset.origin == TEST]).tolist() == [3, 3, 3, 3]
    assert rows(dataset, TEST) == rows(Arrays(X, Y, users=USERS).load(), TEST)


def test_samples_for_validation(tmp_path: Path):
    """They are used as they are given, and test samples are of the training samples alone."""
    data = Arrays(X[:40], Y[:40], x_val=X[40:], y_val=Y[40:], users=USERS[:40], users_val=USERS[:20])
    divided = data.federate(1, 0)
    assert [divided.counts(split).tolist() for split in ("train", "val", "test")] == [[32], [20], [8]]
    assert rows(data.load(), VAL) == {tuple(row) for row in X[40:]}
    np.savez(tmp_path / "train.npz", x=X[:40], y=Y[:40], who=USERS[:40])
    np.savez(tmp_path / "val.npz", x=X[40:], y=Y[40:], who=USERS[:20])
    files = ArrayFiles(root=str(tmp_path), train="train.npz", val="val.npz", users="who").load()
    assert files.origin.tolist() == data.load().origin.tolist()
    assert rows(files, VAL) == rows(data.load(), VAL)


@pytest.mark.parametrize(
    ("y", "names"),
    [
        (np.where(Y, 900_000, 2), ["2", "900000"]),
        (Y - 1, ["-1", "0", "1"]),
        (["well" if each else "ill" for each in Y], ["ill", "well"]),
        (np.array(["well", "ill", "ill"], object)[Y], ["ill", "well"]),
        (Y > 0, ["False", "True"]),
        (Y, ["0", "1", "2"]),
    ],
)
def test_labels_are_names_of_classes(y, names):
    """Where they are not 0, 1, 2, ... a remark says so; there are no classes between them."""
    partition = Arrays(X, y).federate(1, 0).describe()
    assert partition["class_names"] == names
    remarks = partition.get("remarks", [])
    assert len(remarks) == (names != ["0", "1", "2"])
    assert all(f"in this order: {', '.join(names)}" in remark for remark in remarks)


def test_pictures_of_another_form_are_read_and_remarked(tmp_path: Path, capsys):
    pictures = RNG.integers(0, 256, (20, 28, 28, 3)).astype(np.uint8)
    y = np.arange(20) % 2
    usual = Arrays(pictures.transpose(0, 3, 1, 2), y).federate(1, 0)
    assert "remarks" not in usual.describe()
    data = Arrays(pictures, y + 1)
    small(tmp_path, data=data, net=MLP(), clients=1, rounds=1, quiet=False).run()
    labels, channels = json.loads((tmp_path / "partition.json").read_text())["remarks"]
    shown = capsys.readouterr().out
    assert labels in shown
    assert channels in shown
    assert "3 channels come last" in channels
    assert np.array_equal(data.load().inputs, usual.dataset.inputs)
    grey = Arrays(pictures[..., 0], y).load()
    assert np.array_equal(grey.inputs[:, 0], pictures[..., 0])
    assert "one channel" in grey.remarks[-1]


def test_kinds_of_inputs():
    images = RNG.integers(0, 256, (6, 1, 4, 4)).astype(np.uint8)
    y = [0, 1, 0, 1, 0, 1]
    assert Arrays(images, y).load().std == (1.0,)
    assert Arrays(images, y, mean=[0.5], std=[0.5]).load().mean == (0.5,)
    assert Arrays(np.ones((6, 7), np.int32), y).load().inputs.dtype == np.int64
    assert Arrays(torch.ones(6, 2, 9, dtype=torch.bfloat16), y).load().shape == (2, 9)
    assert Arrays(np.ones((6, 2)), y, names=["a", "b", "c"]).load().classes == 3


def test_partition_and_domains():
    assert isinstance(Arrays(X, Y).partition, IID)
    assert isinstance(Arrays(X, Y, users=USERS).partition, ByUser)
    dataset = Arrays(X, Y, domains=["b"] * 30 + ["a"] * 30).load()
    assert dataset.domain_names == ("a", "b")
    assert dataset.domains.tolist() == [1] * 30 + [0] * 30


NAN = np.where(np.arange(300).reshape(60, 5) == 157, np.nan, X)
GREY = np.zeros((60, 1, 2, 2), np.uint8)

TRAINING = "Arrays: the training samples"

BAD = [
    ({"x": X.tolist()}, BadData, TRAINING),
    ({"x": X[:, 0]}, BadData, TRAINING),
    ({"x": X.astype(object)}, BadData, TRAINING),
    ({"x": X > 0}, BadData, TRAINING),
    ({"x": np.zeros((60, 5), np.uint8)}, BadData, TRAINING),
    ({"x": X[:0], "y": Y[:0]}, BadData, TRAINING),
    ({"x": np.zeros((60, 0))}, BadData, TRAINING),
    ({"x": NAN}, BadData, TRAINING),
    ({"x": np.full((60, 2), 1e300)}, BadData, TRAINING),
    ({"x": np.full((60, 2), -1)}, BadData, TRAINING),
    ({"x": np.full((60, 2), 2**62)}, BadData, TRAINING),
    ({"x": np.ma.masked_less(X, 0)}, BadData, ""),
    ({"y": None}, BadData, TRAINING),
    ({"y": []}, BadData, TRAINING),
    ({"y": [[0], [1, 2]] * 30}, BadData, TRAINING),
    ({"y": np.ma.masked_equal(Y, 1)}, BadData, ""),
    ({"y": Y[:59]}, BadData, TRAINING),
    ({"y": Y - 1, "names": ["a", "b", "c"]}, BadData, "Arrays"),
    ({"names": ["a", "b"]}, BadData, "Arrays"),
    ({"names": "abc"}, BadValue, "data.names"),
    ({"users": USERS[:59]}, BadData, "Arrays"),
    ({"users": X[:, 0]}, BadData, "Arrays"),
    ({"domains": [None] * 60}, BadData, "Arrays"),
    ({"users": [["a"], ["a", "b"]] * 30}, BadData, "Arrays"),
    ({"mean": [0.5]}, Conflict, "data.mean"),
    ({"x": GREY, "mean": [np.nan]}, BadValue, "data.mean"),
    ({"x": GREY, "std": [np.inf]}, BadValue, "data.std"),
    ({"x": GREY, "std": [0.0]}, BadValue, "data.std"),
    ({"test_fraction": 1.0}, BadValue, "data.test_fraction"),
    ({"x_test": X}, BadData, "Arrays: the test samples"),
    ({"y_test": Y}, BadData, "Arrays: the test samples"),
    ({"users_test": USERS}, BadData, "Arrays: the test samples"),
    ({"x_test": X[:, :4], "y_test": Y}, BadData, "Arrays"),
    ({"x_test": X[:0], "y_test": Y[:0]}, BadData, "Arrays: the test samples"),
    ({"x_test": X, "y_test": Y, "users": USERS}, BadData, "Arrays"),
    ({"sha256": "0"}, Conflict, "data.sha256"),
    ({"x_val": X[:, :4], "y_val": Y}, BadData, "Arrays"),
    ({"y": np.array(["a", "b", "c"])[Y], "x_test": X[:1], "y_test": ["d"]}, BadData, "Arrays"),
    ({"y": np.array(["a", "b", "c"])[Y], "x_test": X[:1], "y_test": [0]}, BadData, "Arrays"),
]


@pytest.mark.parametrize(("changes", "kind", "place"), BAD, ids=range(len(BAD)))
def test_bad_arrays(changes, kind, place):
    with refused(kind, place):
        Arrays(**({"x": X, "y": Y} | changes))


@pytest.mark.parametrize("options", [{"test_fraction": 0.0}, {"users": np.arange(60)}])
def test_somebody_needs_test_samples(options):
    with refused(BadData, "data.partition"):
        Arrays(X, Y, **options).federate(2, 0)


def federation(folder, **changes):
    data = Arrays(X, Y, users=USERS, val_fraction=0.1)
    settings = {"data": data, "net": MLP(), "clients": 4, "participation": 1.0}
    return small(folder, **(settings | changes))


def test_run_and_resume(tmp_path: Path):
    """A run that goes on has the bytes of one that was never stopped; other arrays are refused."""
    federation(tmp_path / "whole").run()
    part = tmp_path / "part"
    federation(part, rounds=2).run()
    assert "sha256: " + Arrays(X, Y, users=USERS).sha256 in (part / "config.yaml").read_text()
    before = bytes_of_run(part)
    with refused(Missing, "data"):
        rayfl.resumed(part, {"rounds": 4}).run()
    for other in (Arrays(X + 1, Y, users=USERS, val_fraction=0.1), Arrays(X, Y, val_fraction=0.1)):
        with refused(Conflict, "config.yaml"):
            rayfl.resumed(part, data=other)
    assert bytes_of_run(part) == before
    again = Arrays(X, Y, users=USERS, val_fraction=0.1)
    rayfl.resumed(part, {"rounds": 4}, data=again).run()
    assert bytes_of_run(part) == bytes_of_run(tmp_path / "whole")


@pytest.mark.parametrize("mapped", [False, True])
def test_arrays_reach_actors(tmp_path: Path, kept_actors, mapped):
    """Two actors, also where they share a folder's files, give what one process gives, byte for byte."""
    changes = {"rounds": 1}
    if mapped:
        for name, array in {"x": X, "y": Y, "who": USERS}.items():
            np.save(tmp_path / f"{name}.npy", array)
        changes["data"] = ArrayFiles(train=str(tmp_path), users="who")
    same_bytes(tmp_path, *INLINE_AND_RAY, make=federation, **changes)


# --- ArrayFiles


def saved(folder: Path, kind: str) -> ArrayFiles:
    for name, part in (("train", slice(40)), ("test", slice(40, 60))):
        arrays = {"x": X[part], "y": Y[part], "who": USERS[part]}
        if kind == "npz":
            np.savez_compressed(folder / f"{name}.npz", **arrays)
        elif kind == "npy":
            (folder / name).mkdir()
            for key, array in arrays.items():
                np.save(folder / name / f"{key}.npy", array)
    end = {"npz": ".npz", "npy": ""}[kind]
    return ArrayFiles(root=str(folder), train=f"train{end}", test=f"test{end}", users="who")


@pytest.mark.parametrize("kind", ["npz", "npy"])
def test_files_hold_what_arrays_hold(tmp_path: Path, kind):
    dataset = saved(tmp_path, kind).load()
    wanted = Arrays(X[:40], Y[:40], X[40:], Y[40:], users=USERS[:40], users_test=USERS[40:]).load()
    for field in ("inputs", "labels", "users", "origin"):
        assert np.array_equal(getattr(dataset, field), getattr(wanted, field))
    assert dataset.user_names == ("3", "5", "7", "9")


def test_a_folder_alone_is_mapped(tmp_path: Path):
    """The array is that of the file: nothing is copied, also in Fortran's order."""
    np.save(tmp_path / "x.npy", np.asfortranarray(X))
    np.save(tmp_path / "y.npy", Y)
    dataset = ArrayFiles(train=str(tmp_path)).load()
    assert not dataset.inputs.flags.owndata
    assert not dataset.inputs.flags.writeable
    assert np.array_equal(dataset.inputs, X)


def test_a_member_without_ending_is_not_read_in_the_place_of_an_array(tmp_path: Path):
    """NumPy would take it for the array of this name, whose size has been looked at."""
    np.savez(tmp_path / "t.npz", x=X, y=Y)
    with zipfile.ZipFile(tmp_path / "t.npz", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x", bytes(10**8))
    assert np.array_equal(ArrayFiles(train=str(tmp_path / "t.npz")).load().inputs, X)


class Hospitals(FileData):
    """A data set of one's own, whose samples have users."""

    def load(self) -> Dataset:
        """Make it."""
        data = Arrays(X, Y, users=np.arange(len(X)) % 3, test_fraction=0.5).load()
        return replace(data, remarks=())


@pytest.mark.parametrize(("given", "expected"), [(None, ByUser), (IID(), IID)])
def test_users_of_any_data_are_the_clients_unless_a_partition_is_named(tmp_path: Path, given, expected):
    data = Hospitals(partition=given)
    federated = data.federate(3, seed=0)
    users = [{int(i) for i in federated.dataset.users[client.train]} for client in federated.clients]
    assert (users == [{0}, {1}, {2}]) == (expected is ByUser)
    assert type(data.partition) is expected
    assert any("users" in remark for remark in federated.remarks) == (expected is ByUser)
    assert Hospitals(partition=data.partition).federate(3, seed=0).digest() == federated.digest()


def test_columns_of_foreign_types_are_refused():
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.ones((3, 2, 2), np.float32))
    for values in (tensors, pa.array([[1], [1, 2]]), pa.array([1, None])):
        with refused(BadData, "t.parquet"):
            column("t.parquet", "x", pa.chunked_array([values]))


@pytest.mark.parametrize("name", ["t.csv", "x.npy"])
def test_other_files_are_bad_data_and_not_damaged(tmp_path: Path, name):
    (tmp_path / name).write_text("age,y\n50,1\n")
    with refused(BadData, name):
        ArrayFiles(train=str(tmp_path / name)).load()
