"""`PFLlibFiles`: samples that PFLlib's scripts have divided among clients; rayfl writes such files, too."""

import io
import json
from itertools import count, takewhile
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from typing_extensions import TypedDict  # pydantic asks for this one below Python 3.12

from rayfl.data.dataset import Dataset
from rayfl.data.federated import FederatedData
from rayfl.data.partitions.by_user import ByUser
from rayfl.data.readers.files import FolderData, is_there, unpickle_entry
from rayfl.data.readers.samples import Form, dataset_of_users
from rayfl.errors import Conflict, InUse, Missing
from rayfl.system.files import (
    convert_content,
    explain_decode_errors,
    explain_read_errors,
    read_json,
    write_file,
)
from rayfl.system.text import warn

Layout = Literal["current", "early"]
_FILES = {"current": "{split}/{client}.npz", "early": "{split}/{split}{client}_.npz"}
"""Layout -> a client's file. PFLlib had the early one in 2022 (4f394ef to 4fe6808); others have kept it."""
_FOLDERS = ("train", "test")
_REMEDY = "write it again with PFLlib's script"
_Total = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]


class _Config(TypedDict, total=False):
    """What is read of ``config.json``; some of PFLlib's scripts write none, and early ones no classes."""

    num_clients: _Total
    num_classes: _Total


class PFLlibFiles(FolderData):
    """Samples of clients as PFLlib's scripts divide and write them: root/train/0.npz, root/test/0.npz.

    rayfl also reads the early layout, train/train0_.npz and test/test0_.npz. Every file has the inputs ``x``
    and the labels ``y`` of a client. Numbers of images are used as they are, normalised by the script. Whole
    numbers are token ids where a sample is a row of them; of texts with their lengths, as in AGNews, the
    lengths are left out. Every client of the files is a client, in their order, with the training and the
    test samples of its files.
    """

    _natural = ByUser

    def load(self) -> Dataset:
        """Read the files of all clients."""
        folder = self.folder()
        config, path = _Config(), folder / "config.json"
        if is_there(path):
            with explain_read_errors(path, _REMEDY):
                config = convert_content(_Config, read_json(path))
        layouts = [name for name in _FILES if is_there(_client_file(folder, name, "train", 0))]
        if not layouts:
            problem = "has no file of PFLlib (0.npz or train0_.npz)"
            raise Missing(folder / "train", problem, "set root to the folder that holds it")
        found = len([*takewhile(lambda i: is_there(_client_file(folder, layouts[0], "train", i)), count())])
        clients = config.get("num_clients", found)
        train, test = (
            {str(i): _read_samples(_client_file(folder, layouts[0], part, i)) for i in range(clients)}
            for part in _FOLDERS
        )
        odd = f"{folder} has files of {found} clients, and config.json says {clients}: only so many are read"
        names = [*map(str, range(config.get("num_classes", 0)))]
        form = Form("PFLlibFiles", names, warnings=[odd] if found > clients else [])
        return dataset_of_users(folder, train, test, form)


def _client_file(folder: Path, layout: str, split: str, client: int) -> Path:
    return folder / _FILES[layout].format(split=split, client=client)


def _read_samples(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return a client's inputs, float32 [n, ...] or int64 [n, tokens], and labels."""
    content = unpickle_entry(path, "data", _REMEDY)
    with explain_decode_errors(path, _REMEDY), np.errstate(over="ignore"):  # infinity is refused later
        x, y = np.asarray(content["x"]), np.asarray(content["y"])
        if x.dtype == object and x.shape[1:] == (2,):  # a text and its length
            x = np.array(x[:, 0].tolist())
        if x.dtype.kind not in "biuf" or x.ndim < 2 or len(x) != len(y):
            raise ValueError(f"it has x of {x.dtype} {list(x.shape)} and y of {y.dtype} {list(y.shape)}")
        return x.astype(np.int64 if x.dtype.kind in "iu" and x.ndim == 2 else np.float32), y


def write_pfllib_files(data: FederatedData, folder: str | Path, layout: Layout = "current") -> None:
    """Write every client's samples as PFLlib reads them and as :class:`PFLlibFiles` does.

    Images are written as nets see them, float32 and normalised, but not changed at random. PFLlib has no
    validation samples: they are left out, with a warning.

    Args:
        data: every client must have training and test samples, which PFLlib needs.
        folder: it must not exist.
        layout: ``current``, or ``early``, that of PFLlib in early 2022.
    """
    root, dataset = Path(folder).expanduser(), data.dataset
    if root.exists():
        raise InUse(root, "already exists, and runs may need it", "choose another name, or remove it")
    for part in _FOLDERS:
        if len(without := np.flatnonzero(data.counts(part) == 0)):
            problem = f"leaves client {without[0]} without samples to {part}, and PFLlib cannot load that"
            raise Conflict("data.partition", problem, "use fewer clients, or a more even partition")
    if left := int(data.counts("val").sum()):
        warn(f"{left} validation samples are not written: PFLlib has no validation")
    if dataset.augment != "none":
        warn(f"PFLlib will train on the images as they are, without augment={dataset.augment}")
    scale, shift = dataset.scaling
    for part in _FOLDERS:
        for client, client_data in enumerate(data.clients):
            mine = client_data.split(part)
            x = np.asarray(dataset.inputs[mine])
            x = x.astype(np.float32) * scale + shift if x.dtype == np.uint8 else x
            packed = io.BytesIO()
            np.savez_compressed(packed, data=np.array({"x": x, "y": dataset.labels[mine]}))
            write_file(_client_file(root, layout, part, client), packed.getvalue())
    config = {"num_clients": len(data), "num_classes": dataset.classes}
    write_file(root / "config.json", json.dumps(config) + "\n")
