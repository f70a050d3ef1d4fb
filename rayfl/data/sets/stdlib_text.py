"""`StdlibText`: next characters of the modules of Python's own standard library."""

import sys
import sysconfig
from pathlib import Path
from typing import Annotated

import numpy as np

from rayfl.data.base import Data
from rayfl.data.dataset import TEST, TRAIN, Dataset
from rayfl.data.partitions.by_user import ByUser
from rayfl.errors import Conflict
from rayfl.settings import at_least
from rayfl.system.files import read_file, reading
from rayfl.system.memory import check_memory

CHARACTERS = ("\n", *map(chr, range(32, 127)))
"""What there is a class for, in the order of the classes; one more is for all others."""
_TRAINING = 0.8  # of every file
_TESTED = 4  # training samples per test sample, at least


class StdlibText(Data):
    """Next-character prediction on the source text of Python's standard library, without any download.

    A sample is ``length`` characters of a module, as int64 [length], and its label the character that
    follows. The users are the modules, public ones of a single file, which differ in subject, author and
    style; a client per user (or several) is the default partition. Characters are the line end, the 95
    printable ones of ASCII, and one for all others: 97 classes. The first 80 % of a file are for training,
    the rest for testing, and no window reaches from one into the other.

    The texts are those of the Python that runs, so that other versions, or a system's own changes, make
    other data, with another digest.
    """

    _natural = ByUser

    length: Annotated[int, at_least(1)] = 32
    """Characters that the next one is predicted from."""
    stride: Annotated[int, at_least(1)] = 1
    """Characters from the beginning of a window to that of the next."""
    samples: Annotated[int, at_least(1)] = 1000
    """Most training samples of a module, which are spread evenly over its training text; a quarter as many
    test samples, at least one.
    """
    modules: list[str] | None = None
    """Names of modules, such as argparse; all of at least ten times ``length`` characters if not given."""

    def load(self) -> Dataset:
        """Read the modules, and cut windows from them."""
        texts = self._texts()
        inputs, labels, users, origins = [], [], [], []
        room = len(texts) * (self.samples + max(1, self.samples // _TESTED)) * 8 * (self.length + 4)
        check_memory(room, f"StdlibText: samples of {len(texts)} modules", "use a smaller samples or length")
        for user, (name, text) in enumerate(texts.items()):
            cut = int(_TRAINING * len(text))
            for origin, part, most in (
                (TRAIN, text[:cut], self.samples),
                (TEST, text[cut:], max(1, self.samples // _TESTED)),
            ):
                starts = self._starts(name, len(part), most)
                inputs.append(part[starts[:, None] + np.arange(self.length)])
                labels.append(part[starts + self.length])
                users.append(np.full(len(starts), user, np.int64))
                origins.append(np.full(len(starts), origin, np.uint8))
        count = sum(map(len, labels))
        return Dataset(
            inputs=np.concatenate(inputs),
            labels=np.concatenate(labels),
            domains=np.zeros(count, np.int64),
            origin=np.concatenate(origins),
            class_names=character_names(),
            domain_names=(type(self).__name__,),
            users=np.concatenate(users),
            user_names=tuple(texts),
        )

    def _texts(self) -> dict[str, np.ndarray]:
        """Return the characters of every module as classes, int64 [characters]."""
        folder = Path(sysconfig.get_path("stdlib"))
        known = [
            name
            for name in sorted(sys.stdlib_module_names)
            if not name.startswith("_") and (folder / f"{name}.py").is_file()
        ]
        texts = {}
        for name in known if self.modules is None else self.modules:
            path = folder / f"{name}.py"
            with reading(path, "name modules of one file, or install Python anew"):
                text = encoded(read_file(path).decode(errors="replace").replace("\r\n", "\n"))
            if self.modules is not None or len(text) >= 10 * self.length:
                texts[name] = text
        if not texts:
            raise Conflict(
                "data.length",
                f"is {self.length}, and no source in {folder} has ten times that: use less or another Python",
            )
        return texts

    def _starts(self, name: str, size: int, most: int) -> np.ndarray:
        """Return where windows of a part begin, int64 [samples]."""
        starts = np.arange(0, size - self.length, self.stride)
        if not len(starts):
            raise Conflict(
                "data.length",
                f"is {self.length}, and the module {name} is too short for it: use less, or other modules",
            )
        return starts if len(starts) <= most else starts[np.arange(most) * len(starts) // most]


def encoded(text: str) -> np.ndarray:
    """Return the class of every character, int64 [characters]."""
    codes = np.frombuffer(text.encode("utf-32-le", "replace"), "<u4")
    classes = np.where((codes >= 32) & (codes < 127), codes.astype(np.int64) - 31, len(CHARACTERS))
    return np.where(codes == ord("\n"), 0, classes)


def character_names() -> tuple[str, ...]:
    """Return the name of every class."""
    spoken = {"\n": "line end", " ": "space"}
    return (*(spoken.get(character, character) for character in CHARACTERS), "other")
