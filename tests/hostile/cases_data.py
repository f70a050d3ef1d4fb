"""Data files that are truncated, of other shapes or types, or no files at all."""

import bz2
import pickle
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rayfl.errors import BadData, Damaged, Missing, UserError
from tests.hostile.damage import into_fifo, into_folder, into_loop
from tests.hostile.harness import Case
from tests.support.digits_five import write_svhn
from tests.support.image_files import idx, write_cifar10, write_mnist
from tests.support.image_folders import write

COMMON = (
    "--data.verify false --data.root data --engine Inline --net LeNet --clients 1 --rounds 1 --output run"
)
CIFAR = f"run --data CIFAR10 {COMMON}"
MNIST = f"run --data MNIST {COMMON}"
USPS = f"run --data USPS {COMMON}"
SVHN = f"run --data DigitsFive --data.domains [SVHN] --data.quantity 1 {COMMON}"
FOLDERS = f"run --data ImageFolders --data.image_size 32 {COMMON}"

How = Callable[[Path], Any]


def content(made: bytes) -> How:
    return lambda path: path.write_bytes(made)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"more")


def prepared(write: Callable[[Path], Any], name: str, how: How) -> Callable[[Path], None]:
    """Write a data set, and change one of its files."""

    def prepare(folder: Path) -> None:
        write(folder / "data")
        (path,) = folder.glob(f"data/**/{name}")
        how(path)

    return prepare


def write_pictures(root: Path) -> None:
    write(root, ["a", "b"], ["x", "y"], [5, 5])


def write_usps(root: Path) -> None:
    root.mkdir()
    for name in ("usps.bz2", "usps.t.bz2"):
        (root / name).touch()


cifar = partial(prepared, write_cifar10, "data_batch_2")
mnist = partial(prepared, write_mnist, "train-images-idx3-ubyte")
labels = partial(prepared, write_mnist, "train-labels-idx1-ubyte")
svhn = partial(prepared, write_svhn, "train_32x32.mat")
pictures = partial(prepared, write_pictures, "a/x/frame_0000.png")


def usps(text: bytes) -> Callable[[Path], None]:
    return prepared(write_usps, "usps.bz2", content(bz2.compress(text)))


def batch(**entries: Any) -> Callable[[Path], None]:
    whole = {"data": np.zeros((4, 3072), np.uint8), "labels": [0, 1, 2, 3]}
    return cifar(content(pickle.dumps(whole | entries, protocol=2)))


def mat(**arrays: Any) -> How:
    def how(path: Path) -> None:
        from scipy.io import savemat

        savemat(path, arrays)

    return how


def strange_name(path: Path) -> None:
    shutil.copyfile(path, path.with_name("frame_\udcff.png"))


def strange_class(path: Path) -> None:
    shutil.copytree(path.parent, path.parent.with_name("z\udcff"))


def no_folders(path: Path) -> None:
    shutil.rmtree(path.parents[2])
    path.parents[2].mkdir()


def bad_archive(path: Path) -> None:
    path.rename(path.with_name(f"{path.name}.gz")).write_bytes(b"\x1f\x8bx")


def no_images(path: Path) -> None:
    for domain in path.parents[2].iterdir():
        shutil.rmtree(domain / path.parent.name)
    path.parent.mkdir()


LINE = b"1 " + b" ".join(b"%d:0.5" % i for i in range(1, 257)) + b"\n"
X = np.zeros((32, 32, 3, 4), np.uint8)
Y = np.array([[1], [2], [3], [4]], np.uint8)


def names(given: Any) -> Callable[[Path], None]:
    return prepared(write_cifar10, "batches.meta", content(pickle.dumps({"label_names": given})))


CIFARS = {
    "cut": cifar(cut),
    "empty": cifar(content(b"")),
    "no pickle": cifar(content(b"not a pickle")),
    "a list": cifar(content(pickle.dumps([1]))),
    "no data": cifar(content(pickle.dumps({"labels": [1]}))),
    "no labels": cifar(content(pickle.dumps({"data": np.zeros((4, 3072), np.uint8)}))),
    "labels as text": batch(labels=["a", "b", "c", "d"]),
    "a command": cifar(content(b"cos\nsystem\n(S'touch CANARY'\ntR.")),
    "a huge array": cifar(
        content(b"cnumpy\nndarray\n((I1000000000000000\nI1\ntcnumpy\ndtype\n(S'u1'\ntRtR.")
    ),
    "data as list": batch(data=[[0] * 3072] * 4),
    "data of another type": batch(data=np.zeros((4, 3072), np.float32)),
    "data of another shape": batch(data=np.zeros((4, 3071), np.uint8)),
    "fewer labels": batch(labels=[0, 1]),
    "labels out of range": batch(labels=[0, 1, 2, 10]),
    "negative labels": batch(labels=[0, 1, 2, -1]),
    "labels without end": batch(labels=[0, 1, 2, 10**30]),
}
MNISTS = {
    "cut": mnist(cut),
    "empty": mnist(content(b"")),
    "fewer images": mnist(content(idx(np.zeros((5, 28, 28), np.uint8)))),
    "longer": mnist(longer),
    "a header alone": mnist(content(bytes([0, 0, 8, 3]))),
    "another type": mnist(content(bytes([0, 0, 13, 3]) + b"\0" * 100)),
    "sizes without end": mnist(content(bytes([0, 0, 8, 3]) + b"\xff" * 12)),
    "other dimensions": mnist(content(idx(np.zeros((6, 28), np.uint8)))),
    "images without pixels": mnist(content(idx(np.zeros((6, 0, 28), np.uint8)))),
    "labels out of range": labels(content(idx(np.full(6, 10, np.uint8)))),
    "fewer labels": labels(content(idx(np.zeros(5, np.uint8)))),
}
USPSS = {
    "no archive": prepared(write_usps, "usps.bz2", content(b"x")),
    "empty": usps(b""),
    "no numbers": usps(b"a b c"),
    "a value short": usps(LINE[:-8]),
    "a label out of range": usps(LINE.replace(b"1 ", b"11 ", 1)),
    "a value out of range": usps(LINE.replace(b":0.5", b":1.5", 1)),
    "a value that is no number": usps(LINE.replace(b":0.5", b":nan", 1)),
}
SVHNS = {
    "cut": svhn(cut),
    "no file of MATLAB": svhn(content(b"MATLAB" * 100)),
    "no images": svhn(mat(y=Y)),
    "images of another type": svhn(mat(X=X.astype(float), y=Y)),
    "images in three dimensions": svhn(mat(X=X[0], y=Y)),
    "labels of another type": svhn(mat(X=X, y=Y + 0.5)),
    "labels out of range": svhn(mat(X=X, y=Y + 200)),
    "fewer labels": svhn(mat(X=X, y=Y[1:])),
    "labels as text": svhn(mat(X=X, y="text")),
}
PICTURES: list[tuple[str, type[UserError], str, How]] = [
    ("cut", Damaged, "frame_0000.png", lambda path: path.write_bytes(path.read_bytes()[:50])),
    ("empty", Damaged, "frame_0000.png", content(b"")),
    ("no folders", BadData, "data", no_folders),
    ("no images", Missing, "data", no_images),
    ("a name that is no text", BadData, "data/a/x", strange_name),
    ("a class that is no text", BadData, "data/a", strange_class),
]

CASES = [
    *(
        Case(f"{command.split()[2]}: {name}", command, Damaged, place, prepare=prepare)
        for command, place, prepared in (
            (CIFAR, "data_batch_2", CIFARS),
            (MNIST, "train-images-idx3-ubyte", MNISTS),
            (USPS, "usps.bz2", USPSS),
            (SVHN, "train_32x32.mat", SVHNS),
        )
        for name, prepare in prepared.items()
    ),
    Case("MNIST: a bad archive", MNIST, Damaged, "train-images-idx3-ubyte.gz", prepare=mnist(bad_archive)),
    *(
        Case(f"{place}: {how.__name__}", command, Missing, place, prepare=made(how))
        for command, place, made, how in (
            (CIFAR, "data_batch_2", cifar, into_folder),
            (MNIST, "train-images-idx3-ubyte", mnist, into_fifo),
            (SVHN, "train_32x32.mat", svhn, into_loop),
        )
    ),
    *(
        Case(f"CIFAR-10: names {given}", CIFAR, Damaged, "batches.meta", prepare=names(given))
        for given in ([1, 2], ["a", 1], 7, None)
    ),
    *(
        Case(f"images: {name}", FOLDERS, kind, place, prepare=pictures(how))
        for name, kind, place, how in PICTURES
    ),
]
