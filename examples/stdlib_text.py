"""A data set of one's own: next characters of the modules of Python's own library, without any download.

From this folder:

    python -m rayfl.run --data stdlib_text.StdlibText --net TokenMLP --clients 10 --method FedAvg
"""

import sys
import sysconfig
from pathlib import Path
from typing import Annotated

import numpy as np

from rayfl.data import TEST, TRAIN, ByUser, Data, Dataset
from rayfl.data.sets.leaf_files import character_names, encoded
from rayfl.errors import Conflict
from rayfl.settings import at_least

TRAINING = 0.8  # of every file
TESTED = 4  # training samples per test sample, at least


class StdlibText(Data):
    """Next-character prediction on the source text of Python's standard library.

    A sample is ``length`` characters of a module, as int64 [length], and its label the character that
    follows, in 97 classes. The users are the modules, public ones of a single file. The first 80 % of a file
    are for training, the rest for testing, and no window reaches from one into the other.

    The texts are those of the Python that runs, so that other versions, or a system's own changes, make
    other data, with another digest.
    """

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

    def default_partition(self) -> ByUser:
        """Make every module a client."""
        return ByUser()

    def load(self) -> Dataset:
        """Read the modules, and cut windows from them."""
        texts = self._texts()
        inputs, labels, users, origins = [], [], [], []
        for user, (name, text) in enumerate(texts.items()):
            cut = int(TRAINING * len(text))
            for origin, part, most in (
                (TRAIN, text[:cut], self.samples),
                (TEST, text[cut:], max(1, self.samples // TESTED)),
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
        files = (folder / f"{name}.py" for name in sorted(sys.stdlib_module_names) if name[0] != "_")
        names = [path.stem for path in files if path.is_file()] if self.modules is None else self.modules
        texts = {name: self._text(folder / f"{name}.py") for name in names}
        least = 10 * self.length if self.modules is None else 0
        return {name: text for name, text in texts.items() if len(text) >= least}

    def _text(self, path: Path) -> np.ndarray:
        return encoded(path.read_bytes().decode(errors="replace").replace("\r\n", "\n"))

    def _starts(self, name: str, size: int, most: int) -> np.ndarray:
        """Return where windows of a part begin, int64 [samples]."""
        starts = np.arange(0, size - self.length, self.stride)
        if not len(starts):
            raise Conflict("data.length", f"is {self.length}, and the module {name} is too short: use less")
        return starts if len(starts) <= most else starts[np.arange(most) * len(starts) // most]
