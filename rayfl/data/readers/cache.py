"""Images that are decoded once and kept in a file, which every process maps into its memory.

A cache file is an uncompressed .npz: zip keeps a CRC-32 of every array, and the images in it can be mapped.
Its name carries a checksum of everything that decides its content.
"""

import hashlib
import json
import math
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
import PIL
import platformdirs

from rayfl.errors import Damaged
from rayfl.system.files import explain_read_errors, folder_entries, open_file, replace_file
from rayfl.system.memory import check_memory
from rayfl.system.text import warn

_CACHE_VERSION = 1  # raise it whenever other images are made of the same files
_MANY = 500  # images; the decoding of fewer is not worth a bar


def cache_folder() -> Path:
    """Return the folder for caches: RAYFL_CACHE, or rayfl's folder where the platform keeps caches."""
    if chosen := os.environ.get("RAYFL_CACHE"):
        return Path(chosen).expanduser()
    return platformdirs.user_cache_path("rayfl", appauthor=False)


class Decoded(NamedTuple):
    """What a data set makes of its files.

    Attributes:
        shape: of all images together, ``(N, C, H, W)``.
        chunks: the images, uint8, some at a time.
        arrays: other arrays to keep with them, by name.
    """

    shape: tuple[int, int, int, int]
    chunks: Iterable[np.ndarray]
    arrays: Mapping[str, np.ndarray]


class MappedImages(np.ndarray):
    """The images of a cache file: read as they are used, and in memory once for all processes of a machine.

    Between processes only the name of the file travels. Parts and copies are arrays like any other.
    """

    file: Path | None
    crc: int | None  # CRC-32 of the .npy that the cache file holds

    def __array_finalize__(self, whole: Any) -> None:
        self.file = self.crc = None

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        if self.file is None:
            return np.asarray(self).__reduce_ex__(protocol)
        return map_images, (self.file,)


def map_images(file: Path) -> MappedImages:
    """Return the images of a cache file, uint8 [N, C, H, W], read-only."""
    try:
        shape, start, crc = _image_layout(file)
        images = np.memmap(file, np.uint8, "r", start, shape).view(MappedImages)
    except Exception as error:  # a damaged zip file can raise nearly anything
        problem = f"has decoded images and cannot be read on this machine ({error})"
        remedy = "on a cluster, the cache folder (RAYFL_CACHE) must be storage that all hosts share"
        raise Damaged(file, problem, remedy) from None
    images.file, images.crc = file, crc
    return images


def checksum(paths: Iterable[Path]) -> str:
    """Return a checksum of what is in some files, in their order; a folder stands for the files in it."""
    return hashlib.sha256(b"".join(file_digests(paths))).hexdigest()


def file_digests(paths: Iterable[Path]) -> list[bytes]:
    """Return the name of each file, with the 32 bytes of the SHA-256 of what is in it; see ``checksum``."""
    found = []
    for path in paths:
        with explain_read_errors(path):
            inside = (
                [Path(each) for each in folder_entries(path) if each.is_file()] if path.is_dir() else [path]
            )
            for file in inside:
                with open_file(file) as opened:
                    digest = hashlib.file_digest(opened, "sha256").digest()
                found.append(os.fsencode(file.name) + digest)
    return found


def use_cache(
    name: str, key: Any, decode: Callable[[], Decoded], folder: str | None = None, verify: bool = True
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return decoded images and the arrays that belong to them, from a cache file that is made if need be.

    Several processes may do so at once: each writes a file of its own and renames it when it is complete.

    Args:
        name: first part of the file's name.
        key: JSON value of whatever decides the content.
        decode: makes the content; called again if the file cannot be written.
        folder: where caches are kept; ``cache_folder()`` by default.
        verify: whether the file is read through to find damage.

    Returns:
        Images, uint8 [N, C, H, W], mapped (or in memory, where no file can be written), and the arrays.
    """
    where = (Path(folder).expanduser() if folder else cache_folder()).absolute()
    text = json.dumps([_CACHE_VERSION, PIL.__version__, key])
    path = where / f"{name}-{hashlib.blake2b(text.encode(), digest_size=10).hexdigest()}.npz"
    found = _read_cache(path, verify)
    if found is not None:
        return found
    try:
        _write_cache(path, decode, name)
    except OSError as error:
        warn(
            f"{path} could not be written ({error}): the images are decoded in every run and held in memory. "
            "RAYFL_CACHE or the option cache can name another folder"
        )
    found = _read_cache(path, verify=False)
    if found is not None:
        return found
    decoded = decode()
    advice = "let RAYFL_CACHE or the option cache name a folder that has room, or use smaller images"
    check_memory(math.prod(decoded.shape), f"{name}: decoded images", advice)
    return np.concatenate(list(_with_progress(decoded, name))), dict(decoded.arrays)


def _read_cache(path: Path, verify: bool) -> tuple[np.ndarray, dict[str, np.ndarray]] | None:
    """Return what a cache file holds, or None if it is missing or damaged."""
    try:
        if not path.is_file():
            return None
        if verify:
            with zipfile.ZipFile(path) as file:
                if (bad := file.testzip()) is not None:
                    raise ValueError(f"the checksum of {bad} differs")
        with np.load(path, allow_pickle=False) as arrays:
            others = {name: arrays[name] for name in arrays.files if name != "images"}
        return map_images(path), others
    except PermissionError:  # whether the file can be made anew shows when it is written
        return None
    except Exception as error:  # a damaged zip file can raise nearly anything
        warn(f"the cache file {path} is damaged ({error}) and is made anew")
        return None


def _write_cache(path: Path, decode: Callable[[], Decoded], name: str) -> None:
    with replace_file(path) as raw, zipfile.ZipFile(raw, "w", zipfile.ZIP_STORED) as file:
        decoded = decode()  # not before it is known that the folder can be written to
        with file.open("images.npy", "w", force_zip64=True) as member:
            header = {"descr": "|u1", "fortran_order": False, "shape": decoded.shape}
            np.lib.format.write_array_header_2_0(member, header)
            for chunk in _with_progress(decoded, name):
                member.write(np.ascontiguousarray(chunk).data)
        for other, array in decoded.arrays.items():
            with file.open(f"{other}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _with_progress(decoded: Decoded, name: str) -> Iterator[np.ndarray]:
    """Pass the chunks on, and show on standard error how far they have come."""
    from rich.progress import Progress  # as seldom needed as a cache is made

    from rayfl.system.terminal import Terminal

    total, done = decoded.shape[0], 0
    with Progress(console=Terminal(stderr=True), disable=total < _MANY) as progress:
        task = progress.add_task(f"decoding {name}, once", total=total)
        for chunk in decoded.chunks:
            yield chunk
            done += len(chunk)
            progress.update(task, completed=done)


def _image_layout(path: Path) -> tuple[tuple[int, ...], int, int]:
    """Return the shape of the images in a cache file, where in it they start, and their CRC-32."""
    with path.open("rb") as file, zipfile.ZipFile(file) as archive, archive.open("images.npy"):
        np.lib.format.read_magic(file)  # zipfile has just read what precedes the member, which is not packed
        shape, _, dtype = np.lib.format.read_array_header_2_0(file)
        if dtype != np.uint8:
            raise ValueError(f"its images are {dtype}")
        return shape, file.tell(), archive.getinfo("images.npy").CRC
