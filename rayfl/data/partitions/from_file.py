"""A division that is read from a file: rayfl's own, or FLGo's."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, NotRequired

import numpy as np
from pydantic import AliasChoices, BaseModel, Field
from typing_extensions import TypedDict  # pydantic asks for this one below Python 3.12

from rayfl.data.dataset import SPLITS, TEST, TRAIN, VAL, ClientData, Dataset
from rayfl.data.partitions.partition import Partition, Sharing, check_samples, deal_alike, make_client_data
from rayfl.errors import Conflict, Missing
from rayfl.system.files import convert_content, explain_decode_errors, explain_read_errors, read_json
from rayfl.system.text import short_repr

_FILE_REMEDY = (
    "mend it, or write one with rayfl data divide; it must be like "
    '{"clients": [{"train": [0, 7], "val": [], "test": [9]}, ...]}'
)
_Indices = list[Annotated[int, Field(strict=True, ge=0, lt=2**63)]]


class _Divided(TypedDict):
    """The data that were divided."""

    name: NotRequired[Any]
    sha256: str


class _Own(BaseModel, extra="forbid"):
    """What ``FederatedData.write_indices`` writes."""

    dataset: _Divided | None = None
    shares: Sharing = "none"
    clients: list[dict[Literal["train", "val", "test"], _Indices]]


class _FLGo(BaseModel, extra="allow"):
    """A ``data.json`` of FLGo: beside these, it has an entry by the name of each client."""

    client_names: list[str]
    local_perturbation: list[None] | None = None
    """Noise in clients' samples, which rayfl does not read."""


class _FLGoClient(BaseModel):
    """Indices that count training samples alone; formerly with a part for validation."""

    data: Annotated[_Indices, Field(validation_alias=AliasChoices("data", "dtrain"))]
    dvalid: _Indices | None = None


class FromFile(Partition):
    """Every client has the samples that a JSON file lists.

    The file is rayfl's own, which ``rayfl data divide`` and ``FederatedData.write_indices`` write, or a
    ``data.json`` of FLGo (of indices; both its present form and the former one). The number of clients must
    be that of the file. A file that names a data set is refused for another one.
    """

    decides_test = True

    path: str | None = None
    """The file; it must be given."""

    @property
    def may_share(self) -> Sharing:
        """What of samples several clients may have, as the file says."""
        content = self._read()[1]
        return content.shares if isinstance(content, _Own) else "none"

    def check(self, contents: Mapping[str, Any]) -> None:
        """Refuse data that the file was not written for."""
        path, content = self._read()
        dataset = content.dataset if isinstance(content, _Own) else None
        if dataset is not None and dataset["sha256"] != contents["sha256"]:
            written = f"{short_repr(dataset.get('name'))} with the digest {short_repr(dataset['sha256'])}"
            problem = f"divides other data: it was written for {written}, and these have {contents['sha256']}"
            raise Conflict(path, problem, "use those, or take 'dataset' out of it")

    def assign(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> list[ClientData]:
        """Give clients what the file lists, in its order."""
        path, content = self._read()
        of_flgo = isinstance(content, _FLGo)
        with explain_decode_errors(path, _FILE_REMEDY):  # an index of FLGo's may be too large
            lists = _of_flgo(content, dataset) if of_flgo else content.clients
            if len(lists) != clients:
                problem = f"has {len(lists)} clients, not {clients}"
                raise Conflict(path, problem, f"use --clients {len(lists)}")
            parts = [[np.array(each.get(split, []), np.int64) for split in SPLITS] for each in lists]
            found = [ClientData(train, val, test) for train, val, test in parts]
            check_samples(found, len(dataset), "none" if of_flgo else content.shares)
        if of_flgo:
            trains = [each.train for each in found]
            val, test = (deal_alike(dataset, dataset.indices(o), trains, rng) for o in (VAL, TEST))
            found = [replace(f, val=np.concatenate([f.val, v]), test=t) for f, v, t in zip(found, val, test)]
        return [make_client_data(dataset, each.train, each.val, each.test) for each in found]

    def _read(self) -> tuple[str, Any]:
        """Return where the file is, and what it says."""
        if self.path is None:
            raise Missing("data.partition.path", "is not given: FromFile needs the file of the division")
        path = os.path.expanduser(self.path)
        with explain_read_errors(path, _FILE_REMEDY):
            content = read_json(path)
            of_flgo = isinstance(content, dict) and "client_names" in content
            return path, convert_content(_FLGo if of_flgo else _Own, content)


def _of_flgo(content: _FLGo, dataset: Dataset) -> list[dict[str, np.ndarray]]:
    """Return every client's indices of training and validation samples."""
    training = dataset.indices(TRAIN)
    given = [
        convert_content(_FLGoClient, (content.model_extra or {}).get(name)) for name in content.client_names
    ]
    return [{"train": training[each.data], "val": training[each.dvalid or []]} for each in given]
