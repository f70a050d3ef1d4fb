"""Data sets of several domains whose images lie in folders: root/domain/class/*."""

import hashlib
import os
import unicodedata
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np

from rayfl.data.dataset import TEST, TRAIN, UNUSED, VAL, Dataset
from rayfl.data.partitions.domain_per_client import DomainPerClient
from rayfl.data.readers.cache import Decoded, file_digests, use_cache
from rayfl.data.readers.files import FileData, Side
from rayfl.data.readers.images import in_chunks, read_image
from rayfl.errors import BadData
from rayfl.randomness import numpy_generator
from rayfl.settings import above
from rayfl.system.files import folder_entries
from rayfl.system.text import warn

_MEDICAL = (".dcm", ".nii", ".gz", ".nrrd", ".mha")
_IMAGE_ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}

_SPLIT_FOLDERS = ("train", "training", "val", "valid", "validation", "test", "testing")
"""Names of folders that are hardly those of domains."""


@dataclass(frozen=True)
class Found:
    """The images of a data set on disk, in a fixed order.

    Attributes:
        root: the folder that holds the domains' folders.
        files: paths ``domain/class/file`` below root, as they are spelled on disk.
        labels: int64 [N], class of each image.
        domains: int64 [N], domain of each image, in the order of the data set.
        domain_names: the domains in that order.
        class_names: the classes in the order of their labels.
        remarks: on what is there, a line each.
    """

    root: Path
    files: list[str]
    labels: np.ndarray
    domains: np.ndarray
    domain_names: tuple[str, ...]
    class_names: tuple[str, ...]
    remarks: tuple[str, ...] = ()


class DomainFolders(FileData):
    """What data sets of image folders share.

    Images are scaled to a square, kept as bytes, and used as numbers from 0 to 1 without normalisation.
    """

    _natural = DomainPerClient
    colour: ClassVar[Literal["RGB", "grey unless RGB"]] = "RGB"
    split = "fdse"  # "fdse" is random 80/10/10 of each domain, drawn from the seed

    cache: str | None = None
    """Folder for decoded images; that of RAYFL_CACHE, or the platform's, by default."""
    image_size: Side = 256
    """Side of an image in pixels."""
    augment: bool | None = None
    """Whether training images are flipped and turned at random."""
    val_augment: bool = False
    """Whether validation images are flipped and turned, too."""

    @property
    def divides_itself(self) -> bool:
        """Whether the division belongs to the seed."""
        return self.split == "fdse"

    @abstractmethod
    def find(self) -> Found:
        """Look for the images."""

    @abstractmethod
    def origin(self, found: Found) -> np.ndarray:
        """Divide the images into parts as far as that does not depend on a seed; return uint8 [N]."""

    def divide(self, dataset: Dataset, seed: int) -> Dataset:
        """Return the dataset with the division that belongs to a seed."""
        return divide_randomly(dataset, seed) if self.split == "fdse" else dataset

    def load(self) -> Dataset:
        """Find the images and decode them, or map what an earlier run has decoded."""
        found = self.find()
        origin = self.origin(found)
        each = file_digests(found.root / file for file in found.files)
        key = [self.image_size, self.colour, *self._white, hashlib.sha256(b"".join(each)).hexdigest()]
        images, _ = use_cache(type(self).__name__, key, partial(self._decode, found), self.cache, self.verify)
        dataset = Dataset(
            inputs=images,
            labels=found.labels,
            domains=found.domains,
            origin=origin,
            class_names=found.class_names,
            domain_names=found.domain_names,
            mean=(0.0, 0.0, 0.0),
            std=(1.0, 1.0, 1.0),
            augment="fedbn" if self.augments else "none",
            val_augment=self.val_augment and self.augments,
            remarks=(*found.remarks, f"images are scaled to {self.image_size} x {self.image_size} pixels"),
            warnings=() if self.published_sizes() else _copies(found.files, each),
        )
        return self.divide(dataset, self.seed or 0)

    @property
    def _white(self) -> list[float]:
        """Which value is white, of images of more than 8 bits."""
        return [white] if (white := getattr(self, "white", None)) else []

    @property
    def augments(self) -> bool:
        """Whether training images are augmented."""
        return bool(self.augment)

    def _decode(self, found: Found) -> Decoded:
        files = [found.root / file for file in found.files]
        side = self.image_size
        white = next(iter(self._white), None)
        read = partial(read_image, side=side, grey_unless_rgb=self.colour != "RGB", white=white)
        return Decoded((len(files), 3, side, side), in_chunks(read, files), {})

    # ---- finding folders

    def home(self, *places: str, domains: Sequence[str] = ()) -> Path:
        """Return the first of some folders below root that has any of the domains' folders.

        Args:
            *places: folders below root to try, in this order; then root itself is tried.
            domains: names of the domains; with none, root itself is meant.
        """
        root = self.folder()
        if not root.is_dir():
            raise self.not_found("the folder root", root)
        tried = [*(root / place for place in places), root]
        for folder in tried:
            if not domains or any(subfolder(folder, domain) for domain in domains):
                return folder
        what = f"the folder of a domain ({', '.join(domains)})"
        raise self.not_found(what, " and ".join(map(str, tried)))

    def scan(self, root: Path, domains: Sequence[str], classes: Sequence[str]) -> Found:
        """Find the images of all classes in all domains.

        Files are ordered by domain, class and name, whatever the order in which the domains are numbered, so
        that one cache serves all.

        Args:
            root: the folder that holds the domains' folders.
            domains: their names; case and punctuation may differ on disk.
            classes: likewise.
        """
        files: list[str] = []
        labels: list[int] = []
        numbers: list[int] = []
        taken: set[Path] = set()
        others: list[Path] = []
        lacking: list[str] = []
        for domain in sorted(domains):
            above = subfolder(root, domain)
            if above is None:
                raise self.not_found(f"domain {domain}", root / domain, "Complete the folder")
            for label, name in enumerate(classes):
                folder = subfolder(above, name) or above / name  # which one's own data may lack
                if folder in taken:
                    problem = f'would be read for class "{name}" of domain {domain}, too'
                    raise BadData(folder, problem, "name each once in data.domains and data.classes")
                taken.add(folder)
                inside = folder_entries(folder) if folder.is_dir() else []
                found = _text_names(folder, [entry.name for entry in inside if _is_image(entry)])
                others += [Path(entry) for entry in inside if not _is_image(entry)]
                if not found:
                    lacking.append(f"domain {domain} has no images of class {name}")
                files += [f"{folder.relative_to(root).as_posix()}/{file}" for file in found]
                labels += [label] * len(found)
                numbers += [list(domains).index(domain)] * len(found)
        if others:
            left_out = f"{len(others)} files or folders among the images are left out"
            ends = f"names of images end in {', '.join(sorted(_IMAGE_ENDINGS))}"
            warn(f"{type(self).__name__}: {left_out}, such as {str(others[0])!r}: {ends}")
        for given, there, what in ((classes, labels, "class"), (domains, numbers, "domain")):
            if absent := [name for i, name in enumerate(given) if i not in set(there)]:
                missing = f'any image of the {what} "{absent[0]}"'
                raise self.not_found(missing, root, "Leave it out, or add images")
        arrays = np.array(labels, np.int64), np.array(numbers, np.int64)
        return Found(root, files, *arrays, tuple(domains), tuple(classes), tuple(lacking))


class ImageFolders(DomainFolders):
    """Any images in folders root/domain/class/*: feature skew of your own; or in root/class/*, one domain.

    Images that are not RGB are turned into it.
    """

    domains: list[str] | None = None
    """Names of the domains in the order of the clients; all folders, sorted, by default."""
    classes: list[str] | None = None
    """Names of the classes in the order of the labels; all folders, sorted, by default."""
    split: Literal["stratified", "fdse"] = "stratified"
    """``stratified`` is 80/20 for training and testing, the same for every seed; ``fdse`` is random 80/10/10
    for training, validation and testing, drawn from the seed.
    """
    white: Annotated[float, above(0)] | None = None
    """The value of white in images of 16 bits (65535 in most) or of floats; such are refused without it."""

    def find(self) -> Found:
        """Look for the images."""
        root = self.home()
        if self.domains is None and _holds_classes(root):
            names = self.classes or _folders(root)
            found = self.scan(root.absolute().parent, (root.absolute().name,), names)
            return replace(found, domain_names=(type(self).__name__,))
        domains = self.domains or _folders(root)
        if all(plain_name(domain) in _SPLIT_FOLDERS for domain in domains):
            warn(
                f"ImageFolders: {' and '.join(domains)} in {root} are read as domains, and each is divided "
                "anew: to keep the division, give both to rayfl.data.from_torchvision as data sets"
            )
        classes = self.classes
        if classes is None:
            inside = [subfolder(root, domain) for domain in domains]
            classes = sorted({name for folder in inside if folder for name in _folders(folder)})
        if not classes:
            if scan := next((path for path in root.rglob("*") if path.suffix.lower() in _MEDICAL), None):
                raise BadData(scan, "is no image that rayfl reads", "convert it to PNG or NumPy first")
            raise BadData(root, "holds no folders in folders; ImageFolders reads images from domain/class/*")
        return self.scan(root, domains, classes)

    def origin(self, found: Found) -> np.ndarray:
        """Divide each domain 80/20, class by class; with split=fdse leave it to ``divide``."""
        if self.split == "fdse":
            return np.full(len(found.files), TRAIN, np.uint8)
        return origin_of(len(found.files), [stratified(found, k) for k in range(len(found.domain_names))])


# ---- divisions


def stratified(found: Found, domain: int) -> tuple[np.ndarray, np.ndarray]:
    """Divide a domain 80/20, each class alike, always in the same way.

    Returns:
        int64 indices for training and for testing, each in random order.
    """
    mine = np.flatnonzero(found.domains == domain)
    train, test = stratified_shuffle(found.labels[mine], f"domain {found.domain_names[domain]}")
    return mine[train], mine[test]


def stratified_shuffle(labels: np.ndarray, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Return int64 places of 80 % and of 20 % of some samples, stratified and shuffled with random state 0.

    This is how Li et al. (FedBN, ICLR 2021) have divided their data.

    Args:
        labels: int64 [n].
        what: names the samples in an error message.
    """
    from sklearn.model_selection import StratifiedShuffleSplit  # a second that is seldom needed

    splitter = StratifiedShuffleSplit(n_splits=1, test_size=0.2, random_state=0)
    try:
        train, test = next(splitter.split(np.zeros(len(labels)), labels))
    except ValueError as error:
        raise BadData(what, f"cannot be divided 80/20, each class alike: {error}") from None
    return train.astype(np.int64), test.astype(np.int64)


def origin_of(n: int, parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Return the origin, uint8 [n], of images that are divided into training and test indices."""
    origin = np.full(n, UNUSED, np.uint8)
    for train, test in parts:
        origin[train], origin[test] = TRAIN, TEST
    return origin


def divide_randomly(dataset: Dataset, seed: int) -> Dataset:
    """Divide the images in use of every domain 80/10/10 at random, as Wang et al. (FDSE, CVPR 2025) do.

    Of n images int(n / 5) are held out; half of them, rounded down, are for testing, the others for
    validation.
    """
    origin = dataset.origin.copy()
    for domain, name in enumerate(dataset.domain_names):
        mine = np.flatnonzero((dataset.domains == domain) & (dataset.origin != UNUSED))
        shuffled = numpy_generator(seed, f"division of {name}").permutation(mine)
        held_out = int(0.2 * len(mine))
        test = int(0.5 * held_out)
        origin[mine] = TRAIN
        origin[shuffled[:test]] = TEST
        origin[shuffled[test:held_out]] = VAL
    return replace(dataset, origin=origin)


# ---- files


def _copies(files: Sequence[str], digests: Sequence[bytes]) -> tuple[str, ...]:
    """Warn of images that are there twice, byte for byte."""
    first: dict[bytes, str] = {}
    copies = {
        file: of for file, each in zip(files, digests) if (of := first.setdefault(each[-32:], file)) != file
    }
    if not copies:
        return ()
    file, of = next(iter(copies.items()))
    return (
        f"{len(copies):,} of {len(files):,} images are copies of others, such as {file} of {of}: "
        "one may be for training and the other for testing; remove the copies",
    )


def plain_name(name: str) -> str:
    """Return a name without case and punctuation: copies of a data set spell their folders differently."""
    letters = unicodedata.normalize("NFC", name.lower())
    return "".join(letter for letter in letters if unicodedata.category(letter)[0] in "LMN")


def subfolder(parent: Path, name: str) -> Path | None:
    """Return the folder of a name, or one whose name differs in case and punctuation only."""
    if (parent / name).is_dir():
        return parent / name
    wanted = plain_name(name)  # nothing is left of a name that is all punctuation
    alike = [n for n in _folders(parent) if wanted and plain_name(n) == wanted] if parent.is_dir() else []
    return parent / alike[0] if alike else None


def _folders(parent: Path) -> list[str]:
    return _text_names(parent, [entry.name for entry in folder_entries(parent) if entry.is_dir()])


def _text_names(parent: Path, names: list[str]) -> list[str]:
    """Return names, which must be text: others could neither be shown nor recorded."""
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise BadData(parent, f"holds {name!a}, whose name is no text in UTF-8", "rename it") from None
    return names


def _holds_classes(root: Path) -> bool:
    """Return whether the folders in a folder are those of classes: some hold images, none holds folders."""
    inside = [entry for name in _folders(root) for entry in folder_entries(root / name)]
    return not any(entry.is_dir() for entry in inside) and any(map(_is_image, inside))


def _is_image(entry: os.DirEntry[str]) -> bool:
    return Path(entry.name).suffix.lower() in _IMAGE_ENDINGS and not entry.is_dir()
