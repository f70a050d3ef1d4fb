"""Digits-Five on small files in the layouts of the originals and of FedBN's preparation."""

import hashlib
import os
import pickle

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat
from sklearn.model_selection import StratifiedShuffleSplit

from rayfl.data import TEST, TRAIN, UNUSED, DigitsFive
from rayfl.data.sets import digits_five as module
from rayfl.errors import BadData, Conflict, Damaged, Missing
from tests.data.test_files import Malicious
from tests.support.digits_five import (
    DOMAINS,
    WRITE,
    write_mnist,
    write_mnist_m,
    write_svhn,
)
from tests.support.refusals import refused


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """All five domains as originals: their folder, and what is in them by domain."""
    root = tmp_path_factory.mktemp("digits")
    return root, {name: write(root) for name, write in WRITE.items()}


@pytest.fixture(autouse=True)
def folder(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("RAYFL_CACHE", str(folder))
    return folder


def prepare(root, found, name, part=74.0):
    """Write FedBN's prepared files of a domain, divided as its script does it."""
    images, labels = (np.concatenate(column) for column in zip(*found))
    train, test = next(
        StratifiedShuffleSplit(n_splits=1, test_size=0.2, random_state=0).split(images, labels)
    )
    folder = root / name
    (folder / "partitions").mkdir(parents=True)
    for k in range(10):
        mine = train[int(part * k) : int(part * (k + 1))]
        content = (images[mine], labels[mine])
        (folder / "partitions" / f"train_part{k}.pkl").write_bytes(pickle.dumps(content, protocol=4 + k % 2))
    (folder / "test.pkl").write_bytes(pickle.dumps((images[test], labels[test]), protocol=4))
    return folder


def load(root, **options):
    return DigitsFive(root=str(root), **({"verify": False} | options)).load()


def sizes(dataset):
    return {
        name: tuple(int(((dataset.domains == d) & (dataset.origin == o)).sum()) for o in (TRAIN, TEST))
        for d, name in enumerate(dataset.domain_names)
    }


def test_originals(originals):
    root, found = originals
    dataset = load(root)
    assert dataset.shape == (3, 28, 28)
    assert dataset.domain_names == DOMAINS
    assert dataset.class_names == tuple("0123456789")
    assert (dataset.mean, dataset.std, dataset.augment) == ((0.5,) * 3, (0.5,) * 3, "none")
    assert sizes(dataset) == dict.fromkeys(DOMAINS, (743, 190))
    for d, name in enumerate(DOMAINS):
        images, labels = (np.concatenate(column) for column in zip(*found[name]))
        train, test = next(
            StratifiedShuffleSplit(n_splits=1, test_size=0.2, random_state=0).split(labels, labels)
        )
        for origin, expected in ((TRAIN, train[:743]), (TEST, test)):
            mine = (dataset.domains == d) & (dataset.origin == origin)
            assert np.array_equal(dataset.labels[mine], labels[expected])
            corner = images[expected][:, 0, 0].reshape(len(expected), -1)
            shown = np.broadcast_to(corner, (len(expected), 3))
            off = np.abs(dataset.inputs[mine][:, :, 0, 0].astype(int) - shown)
            assert off.max() <= (1 if name == "USPS" else 0)  # text of four digits


def test_each_client_has_a_domain(originals):
    data = DigitsFive(root=str(originals[0]), verify=False).federate(10, 0)
    assert [s.domain for s in data.clients] == [0, 1, 2, 3, 4] * 2
    assert sorted(data.counts("train").tolist()) == [371] * 5 + [372] * 5
    assert not data.counts("val").any()


@pytest.mark.parametrize(("quantity", "n"), [(0.2, 148), (1, 743)])
def test_quantity_below_one(originals, quantity, n, folder):
    dataset = load(originals[0], domains=["MNIST"], quantity=quantity)
    assert sizes(dataset) == {"MNIST": (n, 190)}
    whole = load(originals[0], domains=["MNIST"])
    first = np.flatnonzero(whole.origin == TRAIN)[:n]
    assert np.array_equal(np.flatnonzero(dataset.origin == TRAIN), first)
    assert len(list(folder.iterdir())) == 1
    with refused(Conflict, "data.quantity"):
        load(originals[0], quantity=2)


def test_quantity_takes_whole_parts():
    for quantity, n in ((2, 1487), (3, 2231), (5, 3719), (10, 7438)):
        assert DigitsFive(quantity=quantity)._images_in_use("MNIST", 7438) == n
    with refused(Conflict, "data.quantity"):
        DigitsFive(root="X", scale="full", quantity=2)


def test_full_scale(originals):
    dataset = load(originals[0], scale="full", domains=["USPS", "SVHN"], image_size=32)
    assert dataset.domain_names == ("SVHN", "USPS")
    assert dataset.shape == (3, 32, 32)
    assert sizes(dataset) == {"SVHN": (760, 190), "USPS": (760, 190)}


def test_prepared_files_give_what_the_originals_give(originals, tmp_path):
    """Ten parts of 74 instead of 743.8 images: all that a small file has."""
    root, found = originals
    prepare(tmp_path / "digit", found["SVHN"], "SVHN")
    quantity = 0.9  # 668 images, within both
    ours, theirs = (load(r, domains=["SVHN"], quantity=quantity) for r in (root, tmp_path))
    for origin in (TRAIN, TEST):
        a, b = (np.flatnonzero(p.origin == origin) for p in (ours, theirs))
        assert np.array_equal(ours.inputs[a], theirs.inputs[b])
        assert np.array_equal(ours.labels[a], theirs.labels[b])
    with refused(Conflict, "data.scale"):
        load(tmp_path, domains=["SVHN"], scale="full")


def test_checksums_of_prepared_files(originals, tmp_path, monkeypatch):
    """These are grey images."""
    folder = prepare(tmp_path, originals[1]["USPS"], "USPS")
    assert len(module._checksums()) == 55
    with refused(Damaged, "train_part0.pkl"):
        load(tmp_path, domains=["USPS"], verify=True)
    files = {path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in folder.rglob("*.pkl")}
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    assert sums.keys() < module._checksums().keys()
    monkeypatch.setattr(module, "_checksums", lambda: sums)
    dataset = load(tmp_path, domains=["USPS"], verify=True, quantity=0.5)
    assert (dataset.inputs[:, 0] == dataset.inputs[:, 2]).all()
    assert sizes(dataset) == {"USPS": (371, 190)}
    assert (dataset.origin == UNUSED).sum() == 740 - 371


def test_a_prepared_file_may_hold_arrays_only(originals, tmp_path):
    folder = prepare(tmp_path, originals[1]["USPS"], "USPS")
    attack = Malicious(os.system, f"touch {tmp_path / 'marker'}")
    (folder / "test.pkl").write_bytes(pickle.dumps((attack, [1])))
    with refused(Damaged, "test.pkl"):
        load(tmp_path, domains=["USPS"])
    assert not (tmp_path / "marker").exists()


def test_layouts_of_mnist_m(originals, tmp_path):
    root, found = originals
    expected = load(root, domains=["MNIST-M"], quantity=0.5)
    arrays = tmp_path / "arrays" / "MNIST_M"
    arrays.mkdir(parents=True)
    (train, train_label), (test, test_label) = found["MNIST-M"]
    content = {"train": train[:600], "train_label": train_label[:600], "valid": train[600:]}
    content |= {"valid_label": train_label[600:], "test": test, "test_label": test_label}
    (arrays / "mnistm_data.pkl").write_bytes(pickle.dumps(content))
    original = tmp_path / "original" / "mnist_m"
    for name, (images, labels) in zip(("train", "test"), found["MNIST-M"]):
        (original / f"mnist_m_{name}").mkdir(parents=True)
        lines = []
        for k, (image, label) in enumerate(zip(images, labels)):
            Image.fromarray(image).save(original / f"mnist_m_{name}" / f"{k:08d}.png")
            lines.append(f"{k:08d}.png {label}\n")
        (original / f"mnist_m_{name}_labels.txt").write_text("".join(lines))
    for other in (arrays.parent, original.parent):
        dataset = load(other, domains=["mnist_m"], quantity=0.5)
        assert np.array_equal(dataset.inputs, expected.inputs)
        assert np.array_equal(dataset.labels, expected.labels)


def test_images_of_mnist_m_have_one_size(tmp_path):
    folder = tmp_path / "mnist_m"
    for name in ("train", "test"):
        (folder / f"mnist_m_{name}").mkdir(parents=True)
        (folder / f"mnist_m_{name}_labels.txt").write_text("")
    for k in (0, 1):
        Image.new("RGB", (32 - k, 32)).save(folder / "mnist_m_train" / f"{k}.png")
    for text, kind in (("", Damaged), ("0.png 3\n1.png 4\n", BadData)):
        (folder / "mnist_m_train_labels.txt").write_text(text)
        with refused(kind, "mnist_m_train_labels.txt"):
            load(tmp_path, domains=["MNIST-M"])


# ---- what is missing or damaged


def test_a_missing_domain_is_named(tmp_path):
    write_mnist(tmp_path)
    with refused(Missing, "synth_train_32x32.mat (original)") as caught:
        load(tmp_path, domains=["MNIST", "SynthDigits"])
    message = str(caught.value)
    assert str(tmp_path / "SynthDigits" / "partitions" / "train_part0.pkl") in message
    assert "--data.domains" in message
    with refused(Missing, "data.root"):
        DigitsFive().load()


def test_a_missing_file_is_named(tmp_path):
    found = write_mnist(tmp_path)
    original = tmp_path / "MNIST" / "raw"
    (original / "t10k-labels-idx1-ubyte").unlink()
    with refused(Missing, original / "t10k-labels-idx1-ubyte"):
        load(tmp_path, domains=["MNIST"])
    (original / "train-images-idx3-ubyte").unlink()
    path = prepare(tmp_path, found, "MNIST") / "partitions" / "train_part7.pkl"
    path.unlink()
    with refused(Missing, path):
        load(tmp_path, domains=["MNIST"])


ZEROS = np.zeros((4, 4, 3, 2), np.uint8)
OTHER_SIZE = np.zeros((28, 28, 3, 150), np.uint8)


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("SVHN/train_32x32.mat", b"no matlab", {}),
        ("SVHN/train_32x32.mat", None, {"verify": True}),
        ("SVHN/test_32x32.mat", {"X": ZEROS[:, :, 0, 0], "y": [1]}, {}),
        ("SVHN/test_32x32.mat", {"X": ZEROS.astype(float), "y": [1, 2]}, {}),
        ("SVHN/test_32x32.mat", {"X": ZEROS, "y": [1, 11]}, {}),
        ("SVHN", {"X": OTHER_SIZE, "y": [1] * 150}, {}),
        ("mnist_m/mnist_m_test.npz", b"x", {"domains": ["MNIST-M"]}),
    ],
)
def test_damaged_files(tmp_path, name, content, options):
    write_svhn(tmp_path)
    write_mnist_m(tmp_path)
    path = tmp_path / name if "." in name else tmp_path / "SVHN" / "test_32x32.mat"
    if isinstance(content, dict):
        savemat(path, content)
    elif content:
        path.write_bytes(content)
    with refused(Damaged, name):
        load(tmp_path, **{"domains": ["SVHN"]} | options)


def test_what_was_published_is_known_domain_by_domain(originals):
    some = DigitsFive(root=str(originals[0]), verify=False, domains=["MNIST", "USPS"])
    contents = some.contents(some.load())
    assert contents["images"] == {"MNIST": 950, "USPS": 950}
    # Ten parts of 743.8 images for training, and a fifth of the originals for testing
    assert contents["published"] == {
        **{"MNIST": 7438 + 14_000, "SVHN": 7438 + 19_858, "USPS": 7438 + 1860},
        **{"SynthDigits": 7438 + 97_791, "MNIST-M": 7438 + 13_601},
    }
    assert DigitsFive(scale="full").published_sizes()["USPS"] == 7291 + 2007
