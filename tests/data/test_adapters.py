"""Data sets of torchvision and of Hugging Face's library."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Subset, TensorDataset
from torchvision.datasets import FakeData

from rayfl.data import TEST, TRAIN, VAL, ByUser, HuggingFaceData, TorchvisionData, from_torchvision
from rayfl.errors import BadData, BadValue, Damaged, Missing, Shortage, Unknown
from tests.support.refusals import refused


def fake(size=20):
    return FakeData(size, (3, 8, 8), 2)


def test_pictures_of_torchvision_keep_their_pixels_also_by_name():
    data = from_torchvision(fake(), mean=[0.5] * 3, std=[0.5] * 3).load()
    assert data.inputs.dtype == np.uint8
    assert np.array_equal(data.inputs[3], np.asarray(fake()[3][0]).transpose(2, 0, 1))
    assert data.labels.tolist() == [int(label) for _, label in fake()]
    assert len(data.indices(TEST)) == 4
    arguments = {"size": 20, "image_size": [3, 8, 8], "num_classes": 2}
    found = TorchvisionData(path="torchvision.datasets.FakeData", arguments=arguments).load()
    assert np.array_equal(found.inputs, data.inputs)
    assert found.domain_names == ("FakeData",)


def test_tensors_and_a_test_set():
    x = torch.arange(24.0).reshape(6, 4)
    one = TensorDataset(x, torch.tensor([0, 1, 0, 1, 0, 1]))
    users = {"users": ["a"] * 6, "users_test": ["a"] * 6, "users_val": ["a"] * 6}
    data = from_torchvision(one, one, one, **users).load()
    assert np.array_equal(data.inputs, np.concatenate([x, x, x]))
    assert data.origin.tolist() == [TRAIN] * 6 + [VAL] * 6 + [TEST] * 6
    assert data.user_names == ("a",)


CLASSES = ["cat", "dog", "fox"]


def pictured(order, shown=(0, 1, 2, 0)):
    """Samples of these classes, counted in some order."""
    made = TensorDataset(torch.arange(8.0).reshape(4, 2), torch.tensor([order.index(i) for i in shown]))
    made.classes = [CLASSES[i] for i in order]
    return made


def test_classes_of_later_parts_of_torchvision_go_by_their_names():
    """Whatever their numbers, and also where a part lacks classes or is a subset of a data set."""
    train = pictured([0, 1, 2])
    wanted = from_torchvision(train, train, train).load()
    other = from_torchvision(train, Subset(pictured([2, 0, 1]), range(4)), pictured([1, 2, 0])).load()
    assert other.digest() == wanted.digest()
    for names in (None, ["Cat", "Dog", "Fox"]):
        few = from_torchvision(train, pictured([2, 0], [2, 0, 0, 2]), **({"names": names} if names else {}))
        assert few.load().labels[4:].tolist() == [2, 0, 0, 2]
        assert few.load().class_names == tuple(names or CLASSES)
    for less in (pictured([0, 1], [0, 1, 1, 0]), TensorDataset(*pictured([0, 1, 2]).tensors)):
        with refused(BadData, "Arrays"):
            from_torchvision(less, pictured([0, 1, 2]))


@pytest.mark.parametrize(
    ("options", "kind", "place"),
    [
        ({"path": "torchvision.datasets.CIFAR10"}, Unknown, "data.path"),
        ({"path": "os.system"}, Unknown, "data.path"),
        ({"arguments": {"transform": "x"}}, BadValue, "data.arguments"),
        ({"path": "SVHN", "root": "x", "arguments": {"download": True}}, BadValue, "data.arguments"),
        ({"arguments": {"colour": 1}}, BadData, "torchvision.datasets.FakeData"),
        ({"arguments": {"size": 10**12}}, Shortage, ""),
        ({"path": "FashionMNIST"}, Missing, "data.root"),
        ({"path": "FashionMNIST", "root": "nowhere"}, BadData, "torchvision.datasets.FashionMNIST"),
        ({"arguments": {"size": 0}}, BadData, "FakeData: the training samples"),
    ],
)
def test_what_torchvision_data_refuse(options, kind, place):
    with refused(kind, place):
        TorchvisionData(**options).load()


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ([(np.zeros(2), 0), (np.zeros(3), 1)], "train_set"),
        ([("text", 0)], "train_set: sample 0"),
        ([(Image.new("I;16", (4, 4)), 0)], "train_set: sample 0"),
        ([(np.zeros(2), np.nan)], "Arrays: the training samples"),
        ([], "Arrays: the training samples"),
    ],
)
def test_what_is_no_data_set(given, place):
    with refused(BadData, place):
        from_torchvision(given)


# --- Hugging Face


def write(folder: Path, columns, **features) -> str:
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_dict(columns)
    for name, kind in features.items():
        made = made.cast_column(name, kind)
    splits = {"train": made, "validation": made.select([2]), "test": made.select([0, 1])}
    datasets.DatasetDict(splits).save_to_disk(folder)
    return str(folder)


COLUMNS = {"x": [[1, 2], [3, 4], [5, 6], [7, 8]], "label": [0, 1, 0, 1], "who": ["b", "a", "b", "a"]}


def test_lists_of_hugging_face(tmp_path: Path):
    data = HuggingFaceData(root=write(tmp_path / "d", COLUMNS), x="x", users="who")
    found, as_numbers = data.load(), replace(data, task="numbers").load()
    assert (found.task.kind, as_numbers.task.kind) == ("classes", "numbers")
    assert found.inputs.dtype == np.int64
    assert found.inputs.tolist() == [*COLUMNS["x"], [5, 6], [1, 2], [3, 4]]
    assert found.indices(VAL).tolist() == [4]
    assert found.indices(TEST).tolist() == [5, 6]
    assert found.user_names == ("a", "b")
    assert isinstance(data.partition, ByUser)


def test_pictures_of_hugging_face(tmp_path: Path):
    datasets = pytest.importorskip("datasets")
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 6, 3)).astype(np.uint8)
    columns = {"image": [Image.fromarray(p) for p in pixels], "label": [0, 1, 0, 1]}
    root = write(tmp_path / "d", columns, label=datasets.ClassLabel(names=["cat", "owl"]))
    found = HuggingFaceData(root=root, test_fraction=0.5).load()
    assert np.array_equal(found.inputs[:4], pixels.transpose(0, 3, 1, 2))
    assert found.class_names == ("cat", "owl")


def test_classes_of_splits_of_hugging_face_go_by_their_names(tmp_path: Path):
    datasets = pytest.importorskip("datasets")
    digests = set()
    for number, names in enumerate((["ill", "well"], ["well", "ill", "unused"])):
        parts = {}
        for split, order in (("train", ["ill", "well"]), ("test", names)):
            labels = [order.index(name) for name in ("ill", "well", "well", "ill")]
            made = datasets.Dataset.from_dict({"x": COLUMNS["x"], "label": labels})
            parts[split] = made.cast_column("label", datasets.ClassLabel(names=order))
        datasets.DatasetDict(parts).save_to_disk(tmp_path / str(number))
        digests.add(HuggingFaceData(root=str(tmp_path / str(number)), x="x").load().digest())
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("options", "parts"),
    [({}, [4, 1, 2]), ({"test": "validation"}, [4, 0, 1]), ({"val": "test"}, [3, 2, 1])],
)
def test_published_splits_are_used_by_their_names(tmp_path: Path, options, parts):
    data = HuggingFaceData(root=write(tmp_path / "d", COLUMNS), x="x", **options)
    partition = data.federate(1, 0).describe()
    assert [partition["clients"][0][split] for split in ("train", "val", "test")] == parts
    assert "'train' for training" in partition["remarks"][0]


@pytest.mark.parametrize(
    ("options", "kind", "place"),
    [
        ({"root": None}, Missing, "data.root"),
        ({"root": "nowhere"}, Missing, "nowhere"),
        ({"train": "all"}, Unknown, "d"),
        ({"x": "image"}, Unknown, "d"),
        ({"x": "who"}, BadData, "HuggingFaceData: the training samples"),
    ],
)
def test_what_hugging_face_data_refuse(tmp_path: Path, options, kind, place):
    root = write(tmp_path / "d", COLUMNS)
    with refused(kind, place):
        HuggingFaceData(**({"root": root, "x": "x"} | options)).load()


def test_a_split_of_hugging_face_without_samples(tmp_path: Path):
    root, made = write(tmp_path / "d", COLUMNS), pytest.importorskip("datasets").Dataset.from_dict(COLUMNS)
    made.select([]).save_to_disk(Path(root) / "test")
    with refused(Damaged, root):
        HuggingFaceData(root=root, x="x", users="who").load()


@pytest.mark.parametrize("name", ["../../other.arrow", "/etc/passwd", "..", "", "a\\b", 3])
def test_files_of_hugging_face_lead_nowhere_else(tmp_path: Path, name):
    """A folder from a stranger names its files itself; those of its own folder alone."""
    root = write(tmp_path / "d", COLUMNS)
    path = tmp_path / "d" / "train" / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"_data_files": [{"filename": name}]}))
    with refused(Damaged, root):
        HuggingFaceData(root=root, x="x").load()
    write(tmp_path / "e", COLUMNS)
    (tmp_path / "e" / "dataset_dict.json").write_text(json.dumps({"splits": [name]}))
    with refused(Damaged, tmp_path / "e"):
        HuggingFaceData(root=str(tmp_path / "e"), x="x").load()


def test_files_of_hugging_face_that_cannot_be_read(tmp_path: Path, monkeypatch):
    root = Path(write(tmp_path / "d", COLUMNS))
    with monkeypatch.context() as patch, refused(Shortage):
        patch.setattr("rayfl.system.memory.available_memory", lambda: 10.0)
        HuggingFaceData(root=str(root), x="x").load()
    (root / "dataset_dict.json").write_text("{")
    with refused(Damaged, root):
        HuggingFaceData(root=str(root), x="x").load()
    monkeypatch.setitem(sys.modules, "datasets", None)
    with refused(Missing, "data"):
        HuggingFaceData(root=str(root)).load()
