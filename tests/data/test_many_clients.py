"""Clients in a few arrays, and divisions of many clients, of which a summary is recorded."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from rayfl import Result, resumed
from rayfl.data import ClientData, FederatedData, Synthetic, federated
from rayfl.data.dataset import Clients
from rayfl.errors import Conflict
from rayfl.record.checks import check_partition
from rayfl.record.history import Population
from tests.support.federations import small
from tests.support.refusals import refused

NONE = np.zeros(0, np.int64)
PARTS = (
    ClientData(np.array([0, 3]), NONE, np.array([8]), 0),
    ClientData(np.array([1]), np.array([2]), NONE, None),
    ClientData(NONE, NONE, NONE, 1),
)
DATA = Synthetic(train=300, test=60, shape=(1, 16, 16))


def test_clients_come_out_as_they_went_in() -> None:
    held = Clients(PARTS)
    assert len(held) == 3
    for found, given in zip([*held, held[-1]], [*PARTS, PARTS[2]], strict=True):
        assert found.domain == given.domain
        for split in ("train", "val", "test"):
            np.testing.assert_array_equal(found.split(split), given.split(split))
    assert [len(client.train) for client in held[:2] + held[2:]] == [2, 1, 0]
    assert held.counts("train").tolist() == [2, 1, 0]
    kinds = np.array([1, 0, 0, 1, 0, 0, 0, 0, 2])
    assert held.matrix(kinds, 3, "train").tolist() == [[0, 2, 0], [1, 0, 0], [0, 0, 0]]
    with pytest.raises(IndexError, match="there are 3"):
        held[3]


def test_the_digest_is_that_of_one_client_after_the_other() -> None:
    """Checkpoints of runs of before carry it."""
    data = DATA.federate(7, 0)
    found = hashlib.sha256(data.contents["sha256"].encode())
    for client in data.clients:
        for split in ("train", "val", "test"):
            indices = client.split(split)
            found.update(f"{len(indices)} {split};".encode() + indices.astype("<i8").tobytes())
            found.update(data.dataset.labels[indices].astype("<i8").tobytes())
    assert data.digest() == found.hexdigest()


def test_a_summary_says_what_the_records_need(monkeypatch: pytest.MonkeyPatch) -> None:
    data: FederatedData = DATA.federate(7, 0)
    whole = json.loads(json.dumps(data.describe()))
    page = (Path(__file__).parents[2] / "docs" / "records.md").read_text()
    assert f"With more than {federated.EACH:,} clients, `clients` in `partition.json` is a summary" in page
    monkeypatch.setattr(federated, "EACH", 6)
    summary = json.loads(json.dumps(data.describe()))
    for record in (whole, summary):
        check_partition(record)
    one, other = map(Population.from_partition, (whole, summary))
    assert one.domains == other.domains
    for split in ("train", "val", "test"):
        np.testing.assert_array_equal(one.samples[split], other.samples[split])
    assert sum(value * times for value, times in summary["clients"]["train"]) == 300
    assert summary["clients"]["labels"]["train"] == data.label_matrix().sum(0).tolist()
    assert summary["clients"]["sha256"] == data.digest()


def test_a_damaged_summary_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(federated, "EACH", 6)
    record = DATA.federate(7, 0).describe()
    for change in (
        {"count": 8},
        {"count": 10**8, **{key: [[0, 10**8]] for key in ("train", "val", "test", "domain")}},
        {"train": [[1, 2, 3]]},
        {"train": [[-1, 7]]},
        {"test": [[1.5, 7]]},
        {"domain": [[3, 7]]},
        {"val": None},
        {"domain": [3]},
    ):
        with pytest.raises(ValueError, match=r"client|domain|train|test|val"):
            check_partition({**record, "clients": {**record["clients"], **change}})


def test_runs_of_many_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their record is a summary; other data are refused all the same."""
    settings = {"data": DATA, "checkpoint_every": 1, "rounds": 1}
    monkeypatch.setattr(federated, "EACH", 11)
    small(tmp_path / "run", **settings).run()
    assert json.loads((tmp_path / "run" / "partition.json").read_text())["clients"]["count"] == 12
    result = resumed(tmp_path / "run", {"rounds": 2}).run()
    assert result.summary["headline"]["clients"] == 12
    assert result.models.round == 2
    assert set(Result.load(tmp_path / "run").clients.client) == set(range(12))
    other = small(tmp_path, rounds=3, data=Synthetic(train=240, test=60, shape=(1, 16, 16)))
    with refused(Conflict, "data.train"):
        other.resume(tmp_path / "run").run()
