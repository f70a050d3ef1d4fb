import bz2
import errno
import hashlib
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torchvision
from PIL import Image

from rayfl.data import CIFAR10, CIFAR100, MNIST, TEST, TRAIN, USPS
from rayfl.data.readers.files import unpickle
from rayfl.data.sets.mnist import _libsvm
from rayfl.errors import BadValue, Damaged, Missing, Shortage
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
    if labels == "fine":
        assert dataset.superclasses.tolist() == [0, 19, 8] * 2
        assert dataset.subclasses is None
    else:
        assert dataset.subclasses.tolist() == [3, 99, 42] * 2
        assert dataset.superclasses is None
    assert dataset.mean == (0.5071, 0.4865, 0.4409)
    assert dataset.std == (0.2673, 0.2564, 0.2762)


def test_cifar100_refuses_other_labels():
    with refused(BadValue, "data.labels"):
        CIFAR100(labels="medium")


@pytest.mark.parametrize(
    ("normalise", "mean", "std"),
    [
        ("half", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        ("imagenet", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ],
)
def test_other_normalisation_of_cifar(tmp_path, normalise, mean, std):
    write_cifar10(tmp_path)
    write_cifar100(tmp_path)
    for data in (
        CIFAR10(root=str(tmp_path), verify=False, normalise=normalise),
        CIFAR100(root=str(tmp_path), verify=False, labels="coarse", normalise=normalise),
    ):
        dataset = data.load()
        assert (dataset.mean, dataset.std) == (mean, std)
        assert data.settings()["normalise"] == normalise


def test_other_sizes_of_cifar(tmp_path, monkeypatch):
    """Every image is scaled as PIL does it; another set of files has a cache of its own."""
    monkeypatch.setenv("RAYFL_CACHE", str(tmp_path / "cache"))
    _, rows = write_cifar10(tmp_path / "data")
    dataset = CIFAR10(root=str(tmp_path / "data"), verify=False, image_size=48).load()
    assert dataset.inputs.shape == (24, 3, 48, 48)
    assert dataset.labels[20:].tolist() == rows["test_batch"][1]
    old = Image.fromarray(rows["test_batch"][0][3].reshape(3, 32, 32).transpose(1, 2, 0))
    new = np.asarray(old.resize((48, 48), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert np.array_equal(dataset.inputs[23], new)
    write_cifar10(tmp_path / "more", per_file=5)
    assert len(CIFAR10(root=str(tmp_path / "more"), verify=False, image_size=48).load()) == 30
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_checksums(tmp_path, monkeypatch):
    folder, _ = write_cifar10(tmp_path)
    with refused(Damaged, "batches.meta"):
        CIFAR10(root=str(tmp_path)).load()

    def md5(name):
        return hashlib.md5((tmp_path / name).read_bytes()).hexdigest()

    monkeypatch.setattr(CIFAR10, "md5", {file: md5(file) for file in CIFAR10.md5})
    assert len(CIFAR10(root=str(tmp_path)).load()) == 24
    with (folder / "data_batch_3").open("ab") as file:
        file.write(b"!")
    with refused(Damaged, "data_batch_3"):
        CIFAR10(root=str(tmp_path)).load()


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


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize("function", [os.system, eval, np.load])
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


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a pickle",
        pickle.dumps([1, 2]),
        pickle.dumps({"labels": [1]}),
        pickle.dumps({"data": np.zeros((2, 3072), np.float64), "labels": [1, 2]}, 2),
        pickle.dumps({"data": np.zeros((2, 10), np.uint8), "labels": [1, 2]}, 2),
        pickle.dumps({"data": np.zeros((2, 3072), np.uint8)}, 2),
        pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": ["a", "b"]}, 2),
        pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [1]}, 2),
        pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [1, 10]}, 2),
    ],
)
def test_damaged_cifar_batches(tmp_path, content):
    folder, _ = write_cifar10(tmp_path)
    (folder / "data_batch_2").write_bytes(content)
    with refused(Damaged, "data_batch_2"):
        CIFAR10(root=str(tmp_path), verify=False).load()


@pytest.mark.parametrize("names", [7, ["a", 1], None])
def test_damaged_names_of_cifar(tmp_path, names):
    folder, _ = write_cifar10(tmp_path)
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": names}))
    with refused(Damaged, "batches.meta"):
        CIFAR10(root=str(tmp_path), verify=False).load()


def test_truncated_cifar_batch(tmp_path):
    folder, _ = write_cifar10(tmp_path)
    path = folder / "test_batch"
    path.write_bytes(path.read_bytes()[:-2000])
    with refused(Damaged, path):
        CIFAR10(root=str(tmp_path), verify=False).load()


# --- files that may not be read: no advice to replace them
# -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("call", ["is_file", "open"])
@pytest.mark.parametrize(
    ("kind", "write", "closed"),
    [
        (CIFAR10, write_cifar10, "batches.meta"),
        (MNIST, write_mnist, "train-images-idx3-ubyte"),
        (MNIST, lambda root: write_mnist(root, packed=True), "train-images-idx3-ubyte.gz"),
        (USPS, write_usps, "usps.bz2"),
    ],
)
def test_a_file_that_may_not_be_read(tmp_path, monkeypatch, kind, write, closed, call, verify):
    write(tmp_path)
    owner = os if call == "open" else Path
    usual = getattr(owner, call)

    def refuse(path, *arguments, **options):
        if Path(path).name == closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return usual(path, *arguments, **options)

    monkeypatch.setattr(owner, call, refuse)
    with refused(Missing, closed) as caught:
        kind(root=str(tmp_path), verify=verify).load()
    assert "delete" not in str(caught.value)


# --- missing files, root, download
# -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "write", "missing"),
    [
        (CIFAR10, write_cifar10, "cifar-10-batches-py/data_batch_4"),
        (CIFAR100, write_cifar100, "cifar-100-python/meta"),
        (MNIST, write_mnist, "MNIST/raw/t10k-labels-idx1-ubyte"),
        (USPS, write_usps, "usps.t.bz2"),
    ],
)
def test_a_missing_file_is_named_with_the_place_and_the_remedy(tmp_path, kind, write, missing):
    write(tmp_path)
    path = tmp_path / missing
    path.unlink()
    with refused(Missing, path) as caught:
        kind(root=str(tmp_path), verify=False).load()
    assert "download=True" in str(caught.value)
    assert "https://" in str(caught.value)


@pytest.mark.parametrize("kind", [CIFAR10, CIFAR100, MNIST, USPS])
def test_root_is_needed(kind):
    with refused(Missing, "data.root"):
        kind().load()
    with refused(Missing, "data.root"):
        kind(download=True).load()


@pytest.mark.parametrize(
    ("kind", "write"),
    [(CIFAR10, write_cifar10), (CIFAR100, write_cifar100), (MNIST, write_mnist), (USPS, write_usps)],
)
def test_download_runs_once_and_only_if_files_are_missing(tmp_path, monkeypatch, kind, write):
    calls = []

    def fetch(root, train=True, download=False):
        assert download
        if not calls:
            write(root)
        calls.append(root)

    monkeypatch.setattr(torchvision.datasets, kind.__name__, fetch)
    root = tmp_path / "new"
    first = kind(root=str(root), verify=False, download=True).load()
    fetched = len(calls)
    assert set(calls) == {root}
    assert np.array_equal(first.inputs, kind(root=str(root), verify=False, download=True).load().inputs)
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


@pytest.mark.parametrize("packed", [False, True])
def test_mnist_checksums(tmp_path, packed):
    write_mnist(tmp_path, packed)
    with refused(Damaged, f"train-images-idx3-ubyte{'.gz' if packed else ''}"):
        MNIST(root=str(tmp_path)).load()


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content[:-5],
        lambda content: content + b"x",
        lambda content: content[:9],
        lambda content: b"\x00\x00\x0d" + content[3:],
        lambda content: b"",
        lambda content: idx(np.zeros((5, 28, 28), np.uint8)),
    ],
)
def test_damaged_mnist(tmp_path, change):
    folder, _ = write_mnist(tmp_path)
    path = folder / "train-images-idx3-ubyte"
    path.write_bytes(change(path.read_bytes()))
    with refused(Damaged, path):
        MNIST(root=str(tmp_path), verify=False).load()


def test_mnist_without_images(tmp_path):
    folder, _ = write_mnist(tmp_path)
    for part in ("train", "t10k"):
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx(np.zeros((0, 28, 28), np.uint8)))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx(np.zeros(0, np.uint8)))
    with refused(Damaged, "train-images-idx3-ubyte"):
        MNIST(root=str(tmp_path), verify=False).load()


def test_damaged_mnist_archive(tmp_path):
    folder, _ = write_mnist(tmp_path, packed=True)
    path = folder / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-100])
    with refused(Damaged, path):
        MNIST(root=str(tmp_path), verify=False).load()
    path.write_bytes(path.read_bytes()[:20] + b"\xff" * 200)
    with refused(Damaged, path):
        MNIST(root=str(tmp_path), verify=False).load()


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "it holds no images"),
        (b"1 1:0 2:0\n", "lines need a label"),
        (b"1 " + b" ".join(b"%d:0" % k for k in range(256)), "Invalid index 0"),
        (b"1 " + b" ".join(b"%d:2" % k for k in range(1, 257)), "between -1 and 1"),
        (b"1 " + b" ".join(b"%d:nan" % k for k in range(1, 257)), "between -1 and 1"),
        (b"1 " + b" ".join(b"%d:x" % k for k in range(1, 257)), "could not convert"),
        *[
            (b"%s " % label + b" ".join(b"%d:0" % k for k in range(1, 257)), "lines need a label")
            for label in (b"0", b"11", b"1.5", b"nan", b"inf", b"1e30")
        ],
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


def test_truncated_usps(tmp_path):
    write_usps(tmp_path)
    path = tmp_path / "usps.t.bz2"
    path.write_bytes(path.read_bytes()[:-50])
    with refused(Damaged, path):
        USPS(root=str(tmp_path), verify=False).load()
    with refused(Damaged, "usps.bz2"):
        USPS(root=str(tmp_path)).load()


def test_the_published_size_is_that_of_the_one_domain(tmp_path):
    write_cifar10(tmp_path, per_file=2)
    data = CIFAR10(root=str(tmp_path), verify=False)
    contents = data.contents(data.load())
    assert (contents["images"], contents["published"]) == ({"CIFAR10": 12}, {"CIFAR10": 60_000})
    for kind, size in ((CIFAR100, 60_000), (MNIST, 60_000 + 10_000), (USPS, 7291 + 2007)):
        assert kind().published_sizes() == {kind.__name__: size}
