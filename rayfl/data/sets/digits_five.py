"""`DigitsFive`: MNIST, SVHN, USPS, SynthDigits and MNIST-M, divided and cut as FedBN has done it."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np

from rayfl.data.dataset import TEST, TRAIN, UNUSED, Dataset
from rayfl.data.partitions.domain_per_client import DomainPerClient
from rayfl.data.readers.cache import Decoded, checksum, use_cache
from rayfl.data.readers.files import (
    REPLACE,
    FileData,
    Read,
    Side,
    check_sum,
    images_and_labels,
    read_packed,
    unpickle,
)
from rayfl.data.readers.images import read_image, scale_images, stack_all
from rayfl.data.readers.tables import read_arrays
from rayfl.data.sets.digits import Part, digit_dataset, join_labels
from rayfl.data.sets.folders import plain_name, stratified_shuffle
from rayfl.data.sets.mnist import MNIST, USPS
from rayfl.errors import BadValue, Conflict, UserError
from rayfl.settings import at_least, at_most
from rayfl.system.files import explain_decode_errors, explain_read_errors, open_file

PART = 743.8
"""Images in each of FedBN's ten training parts: a tenth of the training images of USPS."""
_N_PARTS = 10
_ORIGINALS = {"MNIST": 70_000, "SVHN": 99_289, "USPS": 9_298, "SynthDigits": 488_953, "MNIST-M": 68_002}
"""Training and test images of the originals together; FedBN's MNIST-M has 70,000, of another release."""


class DigitsFive(FileData):
    """Digits-Five, five domains of digits at 3x28x28 as Li et al. (FedBN, ICLR 2021) prepared them.

    The originals' training and test images together are divided 80/20, stratified. Of the training images a
    client gets the first of ten parts of 743 or 744, so that all have the same number; all test images are
    used. For each domain rayfl reads the originals or FedBN's prepared files, whichever are there.
    """

    _natural = DomainPerClient

    cache: str | None = None
    """Folder for decoded images; that of RAYFL_CACHE, or the platform's, by default."""
    image_size: Side = 28
    """Side of an image in pixels."""
    domains: list[str] | None = None
    """Which of MNIST, SVHN, USPS, SynthDigits and MNIST-M to use, always in this order; all by default."""
    scale: Literal["fedbn", "full"] = "fedbn"
    """Whether a domain has FedBN's few training images (``fedbn``) or all of them (``full``, which needs
    the originals).
    """
    quantity: Annotated[float, at_least(0.0014), at_most(_N_PARTS)] = 1.0
    """How many of FedBN's ten training parts a domain has: a whole number from 1 to 10, or a number below 1
    for that fraction of the first one.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        names = None if self.domains is None else [plain_name(name) for name in self.domains]
        chosen = [name for name in _DOMAINS if names is None or plain_name(name) in names]
        if not chosen or (names is not None and len(names) != len(chosen)):
            known = f"it must be some of {', '.join(_DOMAINS)}, each once"
            raise BadValue("data.domains", f"is {self.domains}", known)
        if names is not None:
            vars(self)["domains"] = chosen
        if self.quantity > 1 and self.quantity % 1:
            raise BadValue("data.quantity", f"is {self.quantity:g}", "it must be a whole number, or below 1")
        if self.scale == "full" and self.quantity != 1:
            problem = f"is {self.quantity:g}, and data.scale=full takes all training images"
            raise Conflict("data.quantity", problem, "give one of them")

    def published_sizes(self) -> Mapping[str, int]:
        """Return the images in use of all five domains: test images, and FedBN's or all training images."""
        if self.scale == "full":
            return _ORIGINALS
        return {name: int(PART * _N_PARTS) + math.ceil(n / 5) for name, n in _ORIGINALS.items()}

    def load(self) -> Dataset:
        """Find the files, and decode them or map what an earlier run has decoded."""
        names = tuple(self.domains or _DOMAINS)
        found = [self._find(name) for name in names]
        files = [[[path.name for path in each.paths], checksum(each.paths)] for each in found]
        key = [self.image_size, self.scale, self.verify, files]
        images, arrays = use_cache(
            "DigitsFive", key, partial(self._decode, names, found), self.cache, self.verify
        )
        origin = arrays["origin"].copy()
        if self.scale == "fedbn":
            for k, name in enumerate(names):
                train = np.flatnonzero((arrays["domains"] == k) & (origin == TRAIN))
                origin[train[self._images_in_use(name, len(train)) :]] = UNUSED
        return digit_dataset(images, arrays | {"origin": origin}, names)

    def _images_in_use(self, name: str, available: int) -> int:
        wanted = int(int(PART) * self.quantity) if self.quantity < 1 else int(PART * self.quantity)
        if wanted > available:
            problem = (
                f"is {self.quantity:g}: {wanted} training images, and domain {name} has {available} here"
            )
            raise Conflict("data.quantity", problem, "use a smaller one, or other domains (--data.domains)")
        return wanted

    def complete_domains(self) -> dict[str, Path]:
        """Return domain -> folder of those domains whose files are complete."""
        found = {}
        for name in self.domains or _DOMAINS:
            with suppress(UserError):
                found[name] = self._find(name).folder
        return found

    def _find(self, name: str) -> "_Files":
        """Return the files of a domain in the first of its layouts that is complete."""
        root = self.folder()
        layouts = _DOMAINS[name]
        begun: Path | None = None
        for layout in layouts:
            for place in layout.places:
                files = [_packed_path(root / place / file) for file in layout.files]
                missing = [file for file in files if not file.exists()]
                if not missing:
                    return _Files(layout, root / place, files)
                if len(missing) < len(files) and begun is None:
                    begun = missing[0]
        advice = "Set root to the right folder, leave the domain out (--data.domains)"
        advice += f", or get it from {layouts[-1].source}"
        if begun is not None:
            raise self.not_found(f"the file {begun.name} of domain {name}", begun, advice)
        places = [f"{root / layout.places[0] / layout.files[0]} ({layout.what})" for layout in layouts]
        raise self.not_found(f"domain {name}", " and ".join(places), advice)

    def _decode(self, names: Sequence[str], found: Sequence["_Files"]) -> Decoded:
        """Read, divide and cut all domains; the images are scaled as they are written."""
        parts: list[Part] = []
        for k, (name, files) in enumerate(zip(names, found)):
            train, test = self._training_and_test(name, files)
            parts += [Part(*train, k, TRAIN), Part(*test, k, TEST)]
        arrays, size = join_labels(parts), self.image_size
        chunks = scale_images([part.images for part in parts], size)
        return Decoded((len(arrays["labels"]), 3, size, size), chunks, arrays)

    def _training_and_test(self, name: str, files: "_Files") -> tuple[Read, Read]:
        """Return a domain's training images, all or those of the ten parts, and its test images."""
        if files.layout.read is None:
            if self.scale == "full":
                problem = f"is full, and {files.folder} has FedBN's ten parts of domain {name}"
                raise Conflict("data.scale", problem, "use quantity=10")
            *parts, held_out = (_read_prepared(path, self.verify) for path in files.paths)
            return _join_parts(files.folder, parts), held_out
        images, labels = _join_parts(files.folder, files.layout.read(files.folder, self.verify))
        train, test = stratified_shuffle(labels, f"domain {name} in {files.folder}")
        if self.scale == "fedbn":
            train = train[: int(PART * _N_PARTS)]
        return (images[train], labels[train]), (images[test], labels[test])


# ---- files


class _Layout(NamedTuple):
    """One of the ways in which a domain's files come."""

    what: str
    places: tuple[str, ...]  # folders below root
    files: tuple[str, ...]
    read: Callable[[Path, bool], list[Read]] | None  # None: FedBN's files, which come divided
    source: str = ""


class _Files(NamedTuple):
    """The files of a domain on disk."""

    layout: _Layout
    folder: Path
    paths: list[Path]


def _packed_path(path: Path) -> Path:
    """Return the .gz of a file where only that is there."""
    packed = path.with_name(path.name + ".gz")
    return packed if packed.is_file() and not path.exists() else path


def _read_prepared(path: Path, verify: bool) -> Read:
    """Read one of FedBN's files: a pickled tuple of images and labels."""
    if verify:
        name = "/".join(path.parts[-3 if path.parent.name == "partitions" else -2 :])
        check_sum(path, _checksums()[name], "sha256")
    content = unpickle(path, tuple)
    with explain_decode_errors(path, REPLACE):
        images, labels = content
    return images_and_labels(path, images, labels)


@functools.cache
def _checksums() -> dict[str, str]:
    """Return the SHA-256 of FedBN's files by their path."""
    text = resources.files("rayfl.data.sets").joinpath("fedbn_digits.sha256").read_text()
    return {path: digest for digest, path in map(str.split, text.splitlines())}


def _join_parts(folder: Path, parts: Sequence[Read]) -> Read:
    images, labels = zip(*parts)
    with explain_read_errors(folder, REPLACE):  # images of several sizes are not put together
        return np.concatenate(images), np.concatenate(labels)


_SVHN: dict[str, str | None] = {
    "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
    "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
}
_SYNTH: dict[str, str | None] = {"synth_train_32x32.mat": None, "synth_test_32x32.mat": None}


def _mats(sums: Mapping[str, str | None], folder: Path, verify: bool) -> list[Read]:
    for name, md5 in sums.items():
        if verify and md5 is not None:
            check_sum(folder / name, md5)
    return [_mat(folder / name) for name in sums]


def _mat(path: Path) -> Read:
    """Read a file of MATLAB with images X, uint8 [32, 32, 3, n], and labels y, where 10 may stand for 0."""
    from scipy.io import loadmat

    with explain_decode_errors(path, REPLACE), open_file(path) as file:
        content = loadmat(file)
        images, labels = content["X"].transpose(3, 0, 1, 2), content["y"]
        labels = np.where(labels == 10, 0, labels)
    return images_and_labels(path, images, labels)


def _mnistm_arrays(folder: Path, verify: bool) -> list[Read]:
    path = folder / "mnistm_data.pkl"
    content = unpickle(path)
    parts = ("train", "valid", "test")
    given = [(content.get(part), content.get(f"{part}_label")) for part in parts]
    return [images_and_labels(path, *each) for each in given]


_NPZ = ("mnist_m_train.npz", "mnist_m_test.npz")


def _mnistm_npz(folder: Path, verify: bool) -> list[Read]:
    parts = []
    for path in (folder / name for name in _NPZ):
        with explain_decode_errors(path, REPLACE):
            arrays = read_arrays(path, ("x", "y"))
        parts.append(images_and_labels(path, arrays["x"], arrays["y"]))
    return parts


def _mnistm_original(folder: Path, verify: bool) -> list[Read]:
    parts = []
    for part in ("train", "test"):
        path = folder / f"mnist_m_{part}_labels.txt"
        text = read_packed(path)
        with explain_decode_errors(path, REPLACE):
            names, labels = zip(*(line.split() for line in text.decode().splitlines() if line.strip()))
            numbers = np.array([int(label) for label in labels])
        files = (read_image(folder / f"mnist_m_{part}" / name) for name in names)
        images = stack_all(path, files, len(names)).transpose(0, 2, 3, 1)
        parts.append(images_and_labels(path, images, numbers))
    return parts


_FEDBN_FILES = (*(f"partitions/train_part{k}.pkl" for k in range(_N_PARTS)), "test.pkl")


def _fedbn(folder: str) -> _Layout:
    return _Layout("FedBN's prepared files", (folder, f"digit/{folder}"), _FEDBN_FILES, None)


def _published(data: type[MNIST | USPS], *places: str) -> _Layout:
    def read(folder: Path, verify: bool) -> list[Read]:
        return data(root=str(folder), verify=verify).read()

    return _Layout("original", places, tuple(data.files()), read, data.source)


def _matlab(folder: str, sums: Mapping[str, str | None], source: str) -> _Layout:
    return _Layout("original", (folder, "."), tuple(sums), partial(_mats, sums), source)


_MNISTM = "http://yaroslav.ganin.net (mnist_m.tar.gz), or FedBN's at https://github.com/med-air/FedBN"
_MNISTM_PLACES = ("mnist_m", "MNIST_M", ".")
# The domains in the order of the clients, each with the layouts of its files in the order of preference.
_DOMAINS: dict[str, list[_Layout]] = {
    "MNIST": [_fedbn("MNIST"), _published(MNIST, ".")],
    "SVHN": [_fedbn("SVHN"), _matlab("SVHN", _SVHN, "http://ufldl.stanford.edu/housenumbers")],
    "USPS": [_fedbn("USPS"), _published(USPS, ".", "USPS")],
    "SynthDigits": [
        _fedbn("SynthDigits"),
        _matlab("SynthDigits", _SYNTH, "https://github.com/med-air/FedBN"),
    ],
    "MNIST-M": [
        _fedbn("MNIST_M"),
        _Layout("arrays", _MNISTM_PLACES, _NPZ, _mnistm_npz),
        _Layout("FedBN's source", ("MNIST_M", "mnist_m", "."), ("mnistm_data.pkl",), _mnistm_arrays),
        _Layout(
            "original",
            _MNISTM_PLACES,
            tuple(f"mnist_m_{part}{end}" for part in ("train", "test") for end in ("", "_labels.txt")),
            _mnistm_original,
            _MNISTM,
        ),
    ],
}
