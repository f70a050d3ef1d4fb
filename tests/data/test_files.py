import bz2
import errno
import hashlib
import os
import pickle
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torchvision
from PIL import Image

from rayfl.data import CIFAR10, CIFAR100, MNIST, TEST, TRAIN, USPS
from rayfl.data.readers.files import unpickle
from rayfl.data.sets.mnist import _libsvm
from rayfl.errors import Damaged, Missing, Shortage
from tests.support.image_files import RNG, idx, write_cifar10, write_cifar100, write_mnist
from tests.support.refusals import refused


def write_usps(root, n=5):
    root.mkdir(parents=True, exist_ok=True)
    pixels = {}
    for file in ("usps.bz2", "usps.t.bz2"):
        values = np.round(RNG.uniform(-1, 1, (n, 256)), 4)
        labels = np.arange(n) % 10 + 1
        lines = [
            f"{label} " + " ".join(f"{k}:{v:g}" for k, v in enumerate(row, 1)) + " \n"
            for label, row in zip(labels, values)
        ]
        (root / file).write_bytes(bz2.compress("".join(lines).encode()))
        pixels[file] = values
    return pixels


# --- CIFAR
# -------------------------------------------------------------------------------------------------------


def test_cifar10_reads_batches_in_order(tmp_path):
    _, rows = write_cifar10(tmp_path)
    dataset = CIFAR10(root=str(tmp_path), verify=False).load()
    assert dataset.inputs.shape == (24, 3, 32, 32)
    assert np.array_equal(dataset.inputs[4:8].reshape(4, -1), rows["data_batch_2"][0])
    assert dataset.labels[20:].tolist() == rows["test_batch"][1]
    assert dataset.origin.tolist() == [TRAIN] * 20 + [TEST] * 4
    assert dataset.class_names[3] == "class3"
    assert dataset.mean == (0.4914, 0.4822, 0.4465)
    assert dataset.std == (0.2023, 0.1994, 0.2010)


@pytest.mark.parametrize(
    ("labels", "classes", "expected"), [("fine", 100, [3, 99, 42]), ("coarse", 20, [0, 19, 8])]
)
def test_cifar100_fine_and_coarse(tmp_path, labels, classes, expected):
    write_cifar100(tmp_path)
    dataset = CIFAR100(root=str(tmp_path), verify=False, labels=labels).load()
    assert dataset.classes == classes
    assert dataset.labels.tolist() == expected * 2
    above, below = dataset.superclasses, dataset.subclasses
    assert (below if labels == "fine" else above) is None
    other = above if labels == "fine" else below
    assert other.tolist() == ([0, 19, 8] if labels == "fine" else [3, 99, 42]) * 2
    assert (dataset.mean, dataset.std) == ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))


@pytest.mark.parametrize("kind", [CIFAR10, CIFAR100])
def test_other_normalisation_of_cifar(kind):
    half, imagenet = (kind(normalise=normalise) for normalise in ("half", "imagenet"))
    assert half.mean_and_std == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    assert imagenet.mean_and_std == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert half.settings()["normalise"] == "half"


def test_other_sizes_of_cifar(tmp_path, monkeypatch):
    """Every image is scaled as PIL does it; another set of files has a cache of its own."""
    monkeypatch.setenv("RAYFL_CACHE", str(tmp_path / "cache"))
    _, rows = write_cifar10(tmp_path / "data")
    options = {"verify": False, "normalise": "half", "image_size": 48}
    dataset = CIFAR10(root=str(tmp_path / "data"), **options).load()
    assert dataset.inputs.shape == (24, 3, 48, 48)
    assert dataset.labels[20:].tolist() == rows["test_batch"][1]
    assert dataset.std == (0.5, 0.5, 0.5)
    old = Image.fromarray(rows["test_batch"][0][3].reshape(3, 32, 32).transpose(1, 2, 0))
    new = np.asarray(old.resize((48, 48), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert np.array_equal(dataset.inputs[23], new)
    write_cifar10(tmp_path / "more", per_file=5)
    assert len(CIFAR10(root=str(tmp_path / "more"), **options).load()) == 30
    assert len(list((tmp_path / "cache").iterdir())) == 2


@pytest.mark.parametrize("kind", ["CIFAR10", "CIFAR100", "MNIST", "USPS"])
def test_checksums_are_those_of_torchvision(kind):
    theirs = getattr(torchvision.datasets, kind)
    if kind == "MNIST":
        packed = {file: md5 for file, md5 in MNIST.md5.items() if file.endswith(".gz")}
        assert packed == {f"MNIST/raw/{file}": md5 for file, md5 in theirs.resources}
        assert list(packed) == [f"{file}.gz" for file in MNIST.files()]
    elif kind == "USPS":
        assert USPS.md5 == {name: md5 for _, name, md5 in theirs.split_list.values()}
    else:
        ours = CIFAR10 if kind == "CIFAR10" else CIFAR100
        meta = (theirs.meta["filename"], theirs.meta["md5"])
        files = [meta, *theirs.train_list, *theirs.test_list]
        assert list(ours.md5.items()) == [(f"{theirs.base_folder}/{file}", md5) for file, md5 in files]


class Malicious:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(("function", "protocol"), [(os.system, 0), (os.system, 5), (eval, 2), (np.load, 4)])
def test_a_malicious_pickle_is_refused_before_anything_runs(tmp_path, function, protocol):
    folder, _ = write_cifar10(tmp_path / "data")
    marker = tmp_path / "marker"
    argument = {os.system: f"touch {marker}", eval: f"open({str(marker)!r}, 'w')"}.get(function, str(marker))
    attack = pickle.dumps({"data": Malicious(function, argument), "labels": []}, protocol=protocol)
    (folder / "data_batch_1").write_bytes(attack)
    with refused(Damaged, "data_batch_1") as caught:
        CIFAR10(root=str(tmp_path / "data"), verify=False).load()
    assert "which a data file never needs" in str(caught.value)
    assert not marker.exists()


def test_bytes_of_a_pickle_are_decoded_as_latin1_only(tmp_path):
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_bytes(pickle.dumps({"a": b"\xe9", "x": np.arange(3)}, protocol=2))
    content = unpickle(good)
    assert content["a"] == b"\xe9"
    assert content["x"].tolist() == [0, 1, 2]
    bad.write_bytes(good.read_bytes().replace(b"latin1", b"rot_13"))
    with refused(Damaged, bad):
        unpickle(bad)


# --- missing files, root, download
# -------------------------------------------------------------------------------


FILES = [
    (CIFAR10, write_cifar10, "cifar-10-batches-py/batches.meta"),
    (CIFAR10, write_cifar10, "cifar-10-batches-py/data_batch_4"),
    (CIFAR100, write_cifar100, "cifar-100-python/meta"),
    (MNIST, write_mnist, "MNIST/raw/train-images-idx3-ubyte"),
    (MNIST, partial(write_mnist, packed=True), "MNIST/raw/t10k-labels-idx1-ubyte.gz"),
    (USPS, write_usps, "usps.t.bz2"),
]


@pytest.mark.parametrize(("kind", "write", "file"), FILES)
def test_a_file_that_is_missing_closed_or_not_the_published_one(tmp_path, monkeypatch, kind, write, file):
    """The place is named; there is no advice to replace a file that may not be read."""
    write(tmp_path)
    path = tmp_path / file
    sums = dict.fromkeys(kind.md5, "") | {
        each.relative_to(tmp_path).as_posix(): hashlib.md5(each.read_bytes()).hexdigest()
        for each in tmp_path.rglob("*")
        if each.is_file()
    }
    with pytest.raises(Damaged):
        kind(root=str(tmp_path)).load()
    monkeypatch.setattr(kind, "md5", sums | {file: "0"})
    with refused(Damaged, path):
        kind(root=str(tmp_path)).load()
    monkeypatch.setattr(kind, "md5", sums)
    assert len(kind(root=str(tmp_path)).load())

    def refuse(usual, found, *arguments, **options):
        if Path(found).name == path.name:
            raise PermissionError(errno.EACCES, "Permission denied", str(found))
        return usual(found, *arguments, **options)

    for (owner, call), verify in product(((os, "open"), (Path, "is_file")), (True, False)):
        usual = getattr(owner, call)
        with monkeypatch.context() as patch, refused(Missing, path.name) as caught:
            patch.setattr(owner, call, lambda *given, usual=usual, **more: refuse(usual, *given, **more))
            kind(root=str(tmp_path), verify=verify).load()
        assert "delete" not in str(caught.value)
    path.unlink()
    missing = path if path.suffix != ".gz" else path.with_suffix("")
    with refused(Missing, missing) as caught:
        kind(root=str(tmp_path), verify=False).load()
    assert "download=True" in str(caught.value)
    assert "https://" in str(caught.value)
    for download in (False, True):
        with refused(Missing, "data.root"):
            kind(download=download).load()


@pytest.mark.parametrize(("kind", "write"), [each[:2] for each in (*FILES[1:4], FILES[5])])
def test_download_runs_once_and_only_if_files_are_missing(tmp_path, monkeypatch, kind, write):
    calls = []

    def fetch(root, train=True, download=False):
        assert download
        if not calls:
            write(root)
        calls.append(root)

    monkeypatch.setattr(torchvision.datasets, kind.__name__, fetch)
    data = kind(root=str(tmp_path / "new"), verify=False, download=True)
    first, fetched = data.load(), len(calls)
    assert set(calls) == {tmp_path / "new"}
    assert np.array_equal(first.inputs, data.load().inputs)
    assert len(calls) == fetched


def test_a_failed_download_is_explained(tmp_path, monkeypatch):
    def fetch(root, download):
        raise RuntimeError("no route to host")

    monkeypatch.setattr(torchvision.datasets, "MNIST", fetch)
    with refused(Shortage, "data.download"):
        MNIST(root=str(tmp_path), download=True).load()


# --- MNIST
# -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True])
def test_mnist(tmp_path, packed):
    _, arrays = write_mnist(tmp_path, packed)
    dataset = MNIST(root=str(tmp_path), verify=False).load()
    assert dataset.inputs.shape == (9, 3, 28, 28)
    for channel in range(3):
        assert np.array_equal(dataset.inputs[:6, channel], arrays["train"][0])
        assert np.array_equal(dataset.inputs[6:, channel], arrays["t10k"][0])
    assert dataset.labels.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2]
    assert dataset.origin.tolist() == [TRAIN] * 6 + [TEST] * 3
    assert (dataset.mean, dataset.std) == ((0.5,) * 3, (0.5,) * 3)


def test_mnist_without_images(tmp_path):
    folder, _ = write_mnist(tmp_path)
    path = folder / "train-images-idx3-ubyte"
    path.write_bytes(idx(np.zeros((0, 28, 28), np.uint8)))
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(0, np.uint8)))
    with refused(Damaged, path):
        MNIST(root=str(tmp_path), verify=False).load()


def test_damaged_archives(tmp_path):
    folder, _ = write_mnist(tmp_path, packed=True)
    write_usps(tmp_path)
    for kind, path in ((MNIST, folder / "t10k-images-idx3-ubyte.gz"), (USPS, tmp_path / "usps.t.bz2")):
        content = path.read_bytes()
        for damaged in (content[:-50], content[:20] + b"\xff" * 200):
            path.write_bytes(damaged)
            with refused(Damaged, path):
                kind(root=str(tmp_path), verify=False).load()


# --- USPS
# --------------------------------------------------------------------------------------------------------


def test_usps(tmp_path):
    pixels = write_usps(tmp_path)
    dataset = USPS(root=str(tmp_path), verify=False).load()
    assert dataset.inputs.shape == (10, 3, 28, 28)
    assert dataset.labels.tolist() == [0, 1, 2, 3, 4] * 2
    small = ((pixels["usps.t.bz2"][2].astype(np.float32) + 1) / 2 * 255).astype(np.uint8).reshape(16, 16)
    large = np.asarray(Image.fromarray(small).resize((28, 28), Image.Resampling.BILINEAR))
    for channel in range(3):
        assert np.array_equal(dataset.inputs[7, channel], large)


def test_usps_extremes_become_black_and_white():
    line = b"10 " + b" ".join(b"%d:%d" % (k, -1 if k <= 128 else 1) for k in range(1, 257)) + b"\n"
    labels, values = _libsvm(line)
    assert labels.tolist() == [10]
    assert ((values + 1) / 2 * 255).astype(np.uint8).ravel().tolist() == [0] * 128 + [255] * 128


def usps_line(label=b"1", value=b"0", first=1):
    return label + b" " + b" ".join(b"%d:%s" % (k, value) for k in range(first, first + 256))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "it holds no images"),
        (b"1 1:0 2:0\n", "lines need a label"),
        (usps_line(first=0), "Invalid index 0"),
        (usps_line(value=b"2"), "between -1 and 1"),
        (usps_line(value=b"nan"), "between -1 and 1"),
        (usps_line(value=b"x"), "could not convert"),
        *((usps_line(label), "lines need a label") for label in (b"0", b"11", b"1.5", b"nan", b"inf")),
    ],
)
@pytest.mark.filterwarnings("error")
def test_damaged_usps(tmp_path, text, message):
    write_usps(tmp_path)
    (tmp_path / "usps.bz2").write_bytes(bz2.compress(text))
    with refused(Damaged, "usps.bz2") as caught:
        USPS(root=str(tmp_path), verify=False).load()
    assert message in str(caught.value)


def test_a_packed_file_is_not_unpacked_without_end(tmp_path, monkeypatch):
    """A few hundred bytes may unpack to gigabytes."""
    write_usps(tmp_path)
    write_mnist(tmp_path, packed=True)
    monkeypatch.setattr("rayfl.data.readers.files.UNPACKED", 500)
    for kind, name in ((USPS, "usps.bz2"), (MNIST, "train-images-idx3-ubyte.gz")):
        with refused(Damaged, name) as caught:
            kind(root=str(tmp_path), verify=False).load()
        assert "unpacks to more than 500 bytes" in str(caught.value)


def test_the_published_size_is_that_of_the_one_domain(tmp_path):
    write_cifar10(tmp_path, per_file=2)
    data = CIFAR10(root=str(tmp_path), verify=False)
    contents = data.contents(data.load())
    assert (contents["images"], contents["published"]) == ({"CIFAR10": 12}, {"CIFAR10": 60_000})
    for kind, size in ((CIFAR100, 60_000), (MNIST, 60_000 + 10_000), (USPS, 7291 + 2007)):
        assert kind().published_sizes() == {kind.__name__: size}
