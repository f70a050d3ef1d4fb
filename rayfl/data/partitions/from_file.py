"""A division that is read from a file: rayfl's own, or FLGo's."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rayfl.arguments import shown
from rayfl.data.dataset import TEST, TRAIN, VAL, ClientData, Dataset
from rayfl.data.partitions.dealing import deal_alike, make_client_data
from rayfl.data.partitions.partition import Partition
from rayfl.errors import BadData, Conflict, Damaged, Missing
from rayfl.files import read_json, reading
from rayfl.memory import check_memory
from rayfl.splits import SPLITS

_BYTES = 12  # of memory that a byte of JSON needs at most, as text, numbers and arrays
_MEND = "mend it, or write one with rayfl data divide"
_FORM = '{"clients": [{"train": [0, 7], "val": [], "test": [9]}, ...]}'


class FromFile(Partition):
    """Every client has the samples that a JSON file lists.

    The file is rayfl's own, which ``rayfl data divide`` and ``FederatedData.write_indices`` write, or a
    ``data.json`` of FLGo (of indices; both its present form and the former one). The number of clients must
    be that of the file. A file that names a data set is refused for another one.
    """

    path: str | None = None
    """The file; it must be given."""

    def check(self, contents: Mapping[str, Any]) -> None:
        """Refuse data that the file was not written for."""
        path, content = self._read()
        if "client_names" in content or "dataset" not in content:
            return  # of FLGo, or made by hand
        dataset = content["dataset"]
        with reading(path, _MEND):
            if not isinstance(dataset, dict) or not isinstance(dataset.get("sha256"), str):
                raise ValueError(f"'dataset' is {shown(dataset)}, and it must have 'name' and 'sha256'")
        if (written := dataset["sha256"]) != contents["sha256"]:
            raise Conflict(
                path,
                f"divides other data: it was written for {shown(dataset.get('name'))} with the digest "
                f"{shown(written)}, and these have {contents['sha256']}: use those, or take 'dataset' out of "
                "it",
            )

    def assign(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> list[ClientData]:
        """Give clients what the file lists, in its order."""
        path, content = self._read()
        with reading(path, _MEND):
            if "client_names" in content:
                listed = _of_flgo(content, dataset)
            else:
                listed = _own(content, dataset)
        if len(listed) != clients:
            raise Conflict(
                path, f"has {len(listed)} clients, not {clients}: use so many (--clients {len(listed)})"
            )
        with reading(path, _MEND):
            _check_disjoint(listed, len(dataset))
        if "client_names" in content:
            trains = [each["train"] for each in listed]
            for split, origin in (("val", VAL), ("test", TEST)):
                dealt = deal_alike(dataset, dataset.indices(origin), trains, rng)
                for each, indices in zip(listed, dealt):
                    each[split] = np.concatenate([each[split], indices])
        return [make_client_data(dataset, *(each[split] for split in SPLITS)) for each in listed]

    def _read(self) -> tuple[str, dict[str, Any]]:
        """Return where the file is, and what it says."""
        if self.path is None:
            raise Missing("data.partition.path", "is not given: FromFile needs the file of the division")
        path = os.path.expanduser(self.path)
        with reading(path, _MEND):
            size = os.stat(path).st_size
        check_memory(_BYTES * size, f"the indices in {path}", "use a smaller file or a larger machine")
        with reading(path, _MEND):
            content = read_json(path)
        if not isinstance(content, dict):
            raise Damaged(path, f"holds no division, but {shown(content)}: it must be like {_FORM}")
        if "user_data" in content:
            raise BadData(
                path,
                "is a file of LEAF, which holds no indices: use it by --data LEAFFiles --data.root FOLDER",
            )
        if "num_clients" in content:
            raise BadData(
                path,
                "is the configuration of PFLlib's division, without indices: each client's samples lie in "
                "train/ and test/, in a random order: divide the data in rayfl, and share the file of rayfl "
                "data divide",
            )
        return path, content


def _own(content: dict[str, Any], dataset: Dataset) -> list[dict[str, np.ndarray]]:
    """Return every client's indices of train, val and test that a file of rayfl's lists."""
    _only(content, ("dataset", "clients"), "it")
    clients = content.get("clients")
    if not isinstance(clients, list) or not all(isinstance(each, dict) for each in clients):
        raise ValueError(f"'clients' is {shown(clients)}, and it must be like {_FORM}")
    listed = []
    for number, each in enumerate(clients):
        _only(each, SPLITS, f"client {number}")
        listed.append({split: _indices(each.get(split, []), number, len(dataset)) for split in SPLITS})
    return listed


def _of_flgo(content: dict[str, Any], dataset: Dataset) -> list[dict[str, np.ndarray]]:
    """Return every client's indices that a file of FLGo's lists, where they count training samples only."""
    noise = content.get("local_perturbation") or []
    if not isinstance(noise, list):
        raise ValueError(f"'local_perturbation' is {shown(noise)}, and it must be a list")
    if any(noise):
        raise ValueError("it adds noise to clients' samples (local_perturbation), which rayfl does not read")
    names = content["client_names"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"'client_names' is {shown(names)}, and it must be a list of names")
    training = dataset.indices(TRAIN)
    listed = []
    for number, name in enumerate(names):
        each = content.get(name)
        if not isinstance(each, dict) or ("data" in each) == ("dtrain" in each):
            raise ValueError(f"client {shown(name)} has neither 'data' nor 'dtrain', lists of indices")
        lists = {"train": each.get("data", each.get("dtrain")), "val": each.get("dvalid") or []}
        if isinstance(lists["train"], dict):
            raise ValueError(f"client {shown(name)} has samples and no indices, which rayfl does not read")
        listed.append({split: training[_indices(x, number, len(training))] for split, x in lists.items()})
        listed[-1]["test"] = np.zeros(0, np.int64)
    return listed


def _only(found: Iterable[str], known: Iterable[str], what: str) -> None:
    if odd := sorted(set(found) - set(known)):
        raise ValueError(f"{what} has {shown(odd[0])}, where there are only {', '.join(known)}")


def _indices(values: Any, client: int, size: int) -> np.ndarray:
    """Return a list of a file as int64 array of indices below a size."""
    if not isinstance(values, list):
        raise ValueError(f"client {client} has {shown(values)} where a list of indices is needed")
    if odd := [value for value in values if type(value) is not int]:
        raise ValueError(f"client {client} has the index {shown(odd[0])}, which is no whole number")
    if odd := [value for value in values if not 0 <= value < size]:
        raise ValueError(f"client {client} has the index {shown(odd[0])}, and there are 0 to {size - 1}")
    return np.array(values, np.int64)


def _check_disjoint(listed: list[dict[str, np.ndarray]], size: int) -> None:
    """Refuse an index that stands in several lists, or twice in one."""
    owner = np.full(size, -1, np.int64)
    for number, each in enumerate(listed):
        for split in SPLITS:
            indices = each[split]
            ascending = np.sort(indices)
            twice = ascending[:-1][np.diff(ascending) == 0]
            if len(taken := np.concatenate([indices[owner[indices] >= 0], twice])):
                first = int(taken[0])
                other = number if owner[first] < 0 else int(owner[first])
                where = "twice" if other == number else f"and client {other} has it, too"
                raise ValueError(
                    f"client {number} has sample {first} {where}: a sample belongs to one client, and to one "
                    "of its splits"
                )
            owner[indices] = number
