"""`HuggingFaceData`: a data set that Hugging Face's library has saved on disk."""

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import MinLen
from pydantic import StringConstraints
from typing_extensions import TypedDict  # pydantic asks for this one below Python 3.12

from rayfl.data.dataset import Dataset
from rayfl.data.readers.files import FolderData
from rayfl.data.readers.images import open_image, pixels, stack_all
from rayfl.data.readers.samples import Form, NamedLabels, SampleData, Samples, dataset_of
from rayfl.data.readers.tables import column
from rayfl.errors import Missing, Unknown
from rayfl.system.files import convert_content, explain_decode_errors, open_file, read_json
from rayfl.system.memory import check_memory

_SAVE_REMEDY = "save it again with save_to_disk"
_VALIDATION = ("validation", "valid", "val", "dev")
"""Names of published splits for validation."""
_INDEXES = ("state.json", "dataset_dict.json")
"""Files that say which other ones are read."""
_Name = Annotated[str, StringConstraints(pattern=r"^[^/\\]*[^/\\.][^/\\]*$")]
"""A name of a file in the same folder: no path, and not ``.`` or ``..``."""


class HuggingFaceData(SampleData, FolderData):
    """A data set of Hugging Face's library ``datasets``, as its ``save_to_disk`` has written it.

    Inputs are pictures of one size, lists of equally many numbers, or of token ids. Nothing is downloaded,
    and no code of a data set runs. It needs ``pip install rayfl[hf]``. With users, a client per user (or
    several) is the default partition.
    """

    train: str = "train"
    """Split with the training samples, where there are several."""
    test: str | None = None
    """Split with the test samples; by default ``test``. Without one, a part of the training samples is for
    testing.
    """
    val: str | None = None
    """Split with the validation samples; by default ``validation``, ``valid``, ``val`` or ``dev``."""
    x: str = "image"
    """Column of the inputs."""
    y: str = "label"
    """Column of the labels."""
    users: str | None = None
    """Column with the user of each sample."""
    domains: str | None = None
    """Column with the domain of each sample."""

    def load(self) -> Dataset:
        """Read the columns."""
        folder = self.folder().absolute()
        try:
            from datasets import load_from_disk  # a folder of that name has no such function
        except ImportError:
            raise Missing("data", ": HuggingFaceData needs datasets", "pip install 'rayfl[hf]'") from None
        with explain_decode_errors(folder, _SAVE_REMEDY):
            size = 0
            for above, _, names in os.walk(folder, onerror=_raise):
                for name in names:
                    open_file(Path(above, name)).close()  # a pipe could be waited for without end
                    size += Path(above, name).stat().st_size
                    if name in _INDEXES:
                        convert_content(_Index, read_json(Path(above, name)))
            check_memory(2 * size, f"the tables in {folder}", "use fewer samples or a larger machine")
            found = load_from_disk(str(folder))
            several = isinstance(found, dict)
            others = [name for name in found if name != self.train] if several else []
            tests = self.test or ("test" if "test" in others and self.val != "test" else None)
            vals = self.val or next((n for n in _VALIDATION if n in others and n != self.test), None)
            train = self._part(found, self.train)
            test, val = (self._part(found, name) if name else None for name in (tests, vals))
        uses = {"training": self.train, "testing": tests, "validation": vals}
        used = ", ".join(f"{name!r} for {use}" for use, name in uses.items() if name)
        remarks = [f"splits of the data: {used}"] if several else []
        form = Form("HuggingFaceData", self.names, self.test_fraction, remarks=remarks, task=self.task)
        return dataset_of(train, test, form, val)

    def _part(self, found: Any, split: str) -> Samples:
        """Return the samples of a split, with the names of the classes where it has them."""
        if isinstance(found, dict):
            if split not in found:
                raise Unknown(self.root, f"has no split {split!r}, only {', '.join(found)}")
            found = found[split]
        elif split in (self.test, self.val):
            raise Unknown(self.root, f"has no splits, so no {split!r}", "leave out test and val")
        table = found.with_format("arrow")[:]
        wanted = [self.x, self.y, self.users, self.domains]
        if missing := [name for name in wanted if name is not None and name not in table.column_names]:
            known = ", ".join(table.column_names[:10])
            raise Unknown(self.root, f"has no column {missing[0]!r}, only {known}")
        if type(found.features[self.x]).__name__ == "Image":
            x = stack_all(self.root, _pictures(str(self.root), table.column(self.x).to_pylist()), len(table))
        else:
            x = column(self.root, self.x, table.column(self.x))
        named = [None if name is None else column(self.root, name, table.column(name)) for name in wanted[1:]]
        y, *groups = named
        names = getattr(found.features[self.y], "names", None)
        return Samples(x, NamedLabels(y, names) if names else y, *groups)


class _ArrowFile(TypedDict):
    filename: _Name


class _Index(TypedDict, total=False):
    """What names the files of a data set: those of its own folder alone, for it could name any."""

    _data_files: Annotated[list[_ArrowFile], MinLen(1)]
    splits: list[_Name]


def _raise(error: OSError) -> None:
    raise error


def _pictures(root: str, given: list[dict[str, Any]]) -> Iterator[np.ndarray]:
    """Yield pictures as uint8 [C, H, W]; grey ones have a channel."""
    for i, picture in enumerate(given):
        place = f"{root}: picture {i}"
        with (
            explain_decode_errors(place, _SAVE_REMEDY),
            open_image(place, io.BytesIO(picture["bytes"])) as image,
        ):
            array = pixels(place, image)
        yield array
