"""Samples that several clients have, where a partition says that they may."""

import json
from contextlib import nullcontext

import numpy as np
import pytest

from rayfl.data import ClientData, FederatedData, FromFile, Partition, PerClientDirichlet, Synthetic
from rayfl.data.partitions.partition import check_samples
from rayfl.errors import BadCode, Damaged
from tests.support.datasets import make_dataset
from tests.support.refusals import refused


def client(train, test=(), val=()):
    return ClientData(*(np.array(indices, np.int64) for indices in (train, val, test)))


ONCE = [client([0, 1], [2]), client([3], [4], val=[5])]
TESTED = [client([0, 1], [2, 4]), client([3], [4], val=[5])]
ALL = [client([0, 1], [2, 4]), client([3, 1], [4], val=[0])]


TWICE = "is there twice"


@pytest.mark.parametrize(
    ("clients", "shares", "message"),
    [
        (ONCE, {"none", "test", "all"}, ""),
        (TESTED, {"test", "all"}, TWICE),
        (ALL, {"all"}, TWICE),
        ([client([0, 0], [2])], set(), TWICE),
        ([client([0], [2, 2])], set(), TWICE),
        ([client([0], val=[0])], set(), TWICE),
        ([client([0], [1]), client([1], [2])], set(), TWICE),  # tested on what another trains on
        ([client([0], [1]), client([2], val=[1])], set(), TWICE),
        ([client([0], [6])], set(), "samples are 0 to 6"),
        ([client([-1], [2])], set(), "samples are -1 to 2"),
    ],
)
def test_what_clients_may_share(clients, shares, message):
    for kind in ("none", "test", "all"):
        with nullcontext() if kind in shares else pytest.raises(ValueError, match=message):
            check_samples(clients, 6, kind)


class Own(Partition):
    """Of a user: two clients with the same test samples."""

    twice: bool = False

    def assign(self, dataset, clients, rng):
        train, test = (dataset.indices(origin) for origin in (0, 2))
        return [ClientData(train if self.twice else train[k::2], test[:0], test) for k in range(2)]


class Sharing(Own):
    """Likewise, and it says so."""

    may_share = "test"


def test_the_partition_says_what_clients_may_share():
    data = {"train": 20, "test": 10, "shape": (1, 2, 2)}
    assert Synthetic(**data, partition=Sharing()).federate(2, 0).shared == {"train": 0, "val": 0, "test": 10}
    for partition in (Own(), Sharing(twice=True)):
        with refused(BadCode, f"{type(partition).__name__}.assign"):
            Synthetic(**data, partition=partition).federate(2, 0)


VALIDATED = [client([0], [4], val=[1]), client([1, 2], [5])]
"""What one trains on is of another's validation."""


@pytest.mark.parametrize(
    ("clients", "kind"), [(ONCE, None), (TESTED, "test"), (ALL, "all"), (VALIDATED, "all")]
)
def test_a_file_says_what_clients_share(tmp_path, clients, kind):
    path = tmp_path / "division.json"
    dataset = make_dataset([3, 3], [0, 0])
    FederatedData(dataset, clients).write_indices(path)
    content = json.loads(path.read_text())
    assert content.get("shares") == kind
    partition = FromFile(path=str(path))
    assert partition.may_share == (kind or "none")
    found = partition.assign(dataset, 2, np.random.default_rng())
    assert FederatedData(dataset, found).digest() == FederatedData(dataset, clients).digest()
    path.write_text(json.dumps(content | {"shares": "none"}))
    if kind:
        with refused(Damaged, path):
            partition.assign(dataset, 2, np.random.default_rng())


def test_samples_that_clients_share_are_counted():
    """Ten clients of 60 training samples of two classes with 50 samples each."""
    partition = PerClientDirichlet(alpha=1e6, train=20, test=4, shares="all")
    data = Synthetic(train=100, test=20, shape=(3, 2, 2), classes=2, partition=partition)
    found = data.federate(10, 0)
    train, test = ((np.bincount(found.held.indices[split]) > 1).sum() for split in ("train", "test"))
    told = f"Samples that several clients have: {train} train, {test} test"
    assert told in found.table().splitlines()
    assert told in found.describe()["remarks"]
    assert data.federate(1, 0).remarks == []
