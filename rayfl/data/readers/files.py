"""Finding, checking and reading the files of published data sets: nothing in them runs."""

import bz2
import gzip
import hashlib
import os
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from rayfl.data.base import Data
from rayfl.errors import Damaged, Missing, Shortage, UserError
from rayfl.settings import at_least, at_most
from rayfl.system.files import explain_decode_errors, explain_read_errors, open_file, read_file
from rayfl.system.memory import check_memory

REPLACE = "replace it by a fresh copy (delete it and use download=True, or copy it again)"
UNPACKED = 64_000_000
"""Bytes that a file may unpack to; the images of MNIST, the largest, have 47 million."""
_EXPANSION = 1000
"""How much larger data may be than their file; deflate cannot make more of it."""
Side = Annotated[int, at_least(1), at_most(1024)]
"""Side of an image in pixels."""


def is_there(path: Path) -> bool:
    """Return whether there is a file."""
    with explain_read_errors(path):
        return path.is_file()


def check_sum(path: Path, published: str, kind: Literal["md5", "sha256"] = "md5") -> None:
    """Check that a file is the published one."""
    with explain_read_errors(path), open_file(path) as file:
        found = hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()
    if found != published:
        problem = f"is not the published file: its {kind.upper()} is {found}, not {published}"
        raise Damaged(path, problem, f"{REPLACE}; or read it as it is with --data.verify false")


def read_packed(path: Path) -> bytes:
    """Return what is in a file, unpacked where its name ends in .gz or .bz2."""
    unpack: Any = {".gz": gzip.open, ".bz2": bz2.open}.get(path.suffix)
    if unpack is None:
        with explain_read_errors(path):
            return read_file(path)
    with explain_decode_errors(path, REPLACE), open_file(path) as file, unpack(file) as packed:
        content: bytes = packed.read(UNPACKED + 1)
        if len(content) > UNPACKED:
            raise ValueError(f"it unpacks to more than {UNPACKED:,} bytes")
        return content


def _latin1(text: str, encoding: str) -> bytes:
    """Stand in for ``codecs.encode``, which pickles of Python 3 name where they hold bytes."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it holds bytes in the encoding {encoding}")
    return text.encode("latin1")


# The functions that pickled arrays name, older and newer ones; their modules have moved.
_reconstruct, _frombuffer = np.empty(0).__reduce__()[0], np.empty(0).__reduce_ex__(5)[0]

# What a pickled array needs. Plain containers, numbers and strings need no name at all.
_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.numeric", "_frombuffer"): _frombuffer,
    ("numpy._core.numeric", "_frombuffer"): _frombuffer,
    ("_codecs", "encode"): _latin1,
}


def check_decoded(path: Path, size: int) -> None:
    """Refuse a file before it is read that decodes to more than there is memory for, or to what fills it.

    Args:
        path: the file.
        size: bytes of what it decodes to.
    """
    if size > max(UNPACKED, _EXPANSION * path.stat().st_size):
        problem = f"decodes to {size / 1e9:,.1f} GB, over {_EXPANSION} times its size, as no measured data do"
        raise Damaged(path, problem, "if they are right, give them as .npy files")
    check_memory(size, f"the content of {path}", "use fewer samples")


class _Unpickler(pickle.Unpickler):
    """Rebuilds NumPy arrays and builtin containers, and refuses every other name."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which a data file never needs")
        return _ADMITTED[module, name]


def unpickle(path: Path, kind: type[dict] | type[tuple] = dict) -> Any:
    """Read a pickled dictionary or tuple of NumPy arrays, lists, numbers and strings."""
    with explain_decode_errors(path, REPLACE), open_file(path) as file:
        return _check_kind(_Unpickler(file, encoding="latin1").load(), kind)


def unpickle_entry(path: Path, name: str, remedy: str) -> Any:
    """Read a dictionary that ``np.savez`` has pickled into an .npz file; see ``unpickle``.

    Args:
        path: the file.
        name: of the entry, which is an array without dimensions of one object.
        remedy: what to do where the file is damaged.
    """
    with explain_decode_errors(path, remedy), open_file(path) as file, zipfile.ZipFile(file) as archive:
        check_decoded(path, archive.getinfo(f"{name}.npy").file_size)
        with archive.open(f"{name}.npy") as entry:
            np.lib.format.read_magic(entry)
            np.lib.format.read_array_header_1_0(entry)
            array = _check_kind(_Unpickler(entry, encoding="latin1").load(), np.ndarray)
            if entry.read(1):  # at its end zipfile compares the checksum
                raise ValueError("it holds more than one object")
        return _check_kind(array.item(), dict)


def _check_kind(content: Any, kind: type) -> Any:
    if not isinstance(content, kind):
        raise ValueError(f"it holds a {type(content).__name__} where a {kind.__name__} is needed")
    return content


Read = tuple[np.ndarray, np.ndarray]
"""Images, uint8 [n, H, W] or [n, H, W, 3], and labels, int64 [n]."""


def images_and_labels(path: Path, images: Any, labels: Any, classes: int = 10) -> Read:
    """Return what a file holds, if it is images of one byte per value with a label each, from 0."""
    numbers = np.asarray(labels)
    with explain_read_errors(path, REPLACE):
        if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or not images.size:
            raise ValueError("it holds no images of one byte per value")
        if images.ndim != 3 and images.shape[3:] != (3,):
            raise ValueError(f"it holds images of the shape {list(images.shape)}")
        if numbers.dtype.kind not in "iu" or numbers.size != len(images):
            raise ValueError(f"it holds {len(images)} images, and not as many labels that are whole numbers")
        if numbers.min() < 0 or numbers.max() >= classes:
            raise ValueError(f"labels are {numbers.min()} to {numbers.max()}, not 0 to {classes - 1}")
    return images, numbers.reshape(-1).astype(np.int64)


class FolderData(Data):
    """A data set that is read from a folder."""

    root: str | None = None
    """Folder that holds the data set's files or folders."""
    hint: ClassVar[str] = ""  # what else helps where no root is given

    def folder(self) -> Path:
        """Return root."""
        if self.root is None:
            needs = f"{type(self).__name__} needs the folder that holds its files{self.hint}"
            raise Missing("data.root", "is not given", needs)
        return Path(os.path.expanduser(self.root))


class FileData(FolderData):
    """A published data set that is read from files."""

    verify: bool = True
    """Whether files must be the published ones."""
    source: ClassVar[str] = ""  # where one gets the files

    def not_found(self, what: str, place: object, advice: str = "Set root to the right folder") -> UserError:
        """Return what to say of files that are not there.

        Args:
            what: such as "the file train".
            place: where it was looked for.
            advice: what to do; where one gets the files is added.
        """
        source = f", or get it from {self.source}" if self.source else ""
        name = type(self).__name__
        return Missing(place, f": {what} is missing there, and {name} needs it", f"{advice}{source}")


class Published(FileData):
    """A published data set, read from its files in the layout that torchvision uses."""

    hint = "; with download=True (--data.download true) they are fetched into it"
    size: ClassVar[int]  # images that were published

    md5: ClassVar[Mapping[str, str]]  # of every file, by its path below root

    download: bool = False
    """Whether missing files are fetched into root (by torchvision)."""

    @classmethod
    def files(cls) -> list[str]:
        """Return the paths of the files that are needed, below root; a packed one stands for another."""
        return [file for file in cls.md5 if not file.endswith(".gz")]

    def published_sizes(self) -> Mapping[str, int]:
        """Return the number of images in the one domain."""
        return {type(self).__name__: self.size}

    def fetch(self, root: Path) -> None:
        """Download the files into root with torchvision's class of the same name."""
        import torchvision

        for train in (True, False):  # some have a file for each
            getattr(torchvision.datasets, type(self).__name__)(root, train=train, download=True)

    def folder(self) -> Path:
        """Return root, after fetching what is missing if that was asked for."""
        root = super().folder()
        if self.download and not all((root / file).is_file() for file in self.files()):
            try:
                root.mkdir(parents=True, exist_ok=True)
                self.fetch(root)
            except Exception as error:  # network, disk, checksum: torchvision passes on whatever went wrong
                problem = f"of {type(self).__name__} failed ({error})"
                raise Shortage("data.download", problem, "check the network or copy the files") from None
        return root

    def check(self, root: Path, file: str) -> Path:
        """Return the path of a file that is there and, with `verify`, is the published one."""
        path = root / file
        if not is_there(path):
            advice = "Set root to the right folder, use download=True (--data.download true) to fetch it"
            raise self.not_found(f"the file {path.name}", path, advice)
        if self.verify:
            check_sum(path, self.md5[file])
        return path
