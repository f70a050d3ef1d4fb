import json
import logging
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayfl.data import (
    IID,
    TEST,
    TRAIN,
    VAL,
    ClientData,
    Data,
    Dataset,
    Dirichlet,
    FederatedData,
    Partition,
    Synthetic,
)
from rayfl.errors import BadCode, BadData, Conflict
from tests.support.federations import small
from tests.support.refusals import refused

NONE = np.zeros(0, np.int64)


class Tiny(Data):
    """Classes of the given sizes, in train and test."""

    sizes = (30, 20, 10)

    def load(self):
        labels, n = np.repeat(np.arange(len(self.sizes)), self.sizes), sum(self.sizes)
        return Dataset(
            np.zeros((2 * n, 1, 2, 2), np.uint8),
            np.tile(labels, 2).astype(np.int64),
            np.zeros(2 * n, np.int64),
            np.repeat(np.array([TRAIN, TEST], np.uint8), n),
            class_names=("cat", "dog", "penguin"),
            domain_names=("zoo",),
            mean=(0.5,),
            std=(0.5,),
        )


class Untrained(Tiny):
    """No training samples."""

    def load(self):
        dataset = super().load()
        return replace(dataset, origin=np.full(len(dataset), TEST, np.uint8))


class Holes(Tiny):
    """Numbers of which one is missing."""

    def load(self):
        inputs = np.ones((120, 2), np.float32)
        inputs[70, 1] = np.nan
        return replace(super().load(), inputs=inputs, mean=(), std=())


def test_missing_numbers_are_refused():
    with refused(BadData, "Holes") as caught:
        Holes().federate(2, 0)
    assert "in sample 70" in str(caught.value)


def by_hand():
    """Client 0: two cats, two dogs; client 1: four cats; with four classes, of which two are used."""
    dataset = Dataset(
        np.zeros((10, 1, 1, 1), np.float32),
        np.array([0, 0, 1, 1, 0, 0, 0, 0, 1, 0]),
        np.zeros(10, np.int64),
        np.array([TRAIN] * 8 + [TEST] * 2, np.uint8),
        class_names=("cat", "dog", "cow", "pig"),
        domain_names=("farm",),
        mean=(0.0,),
        std=(1.0,),
    )
    parts = ((np.arange(4), 8), (np.arange(4, 8), 9))
    clients_data = tuple(ClientData(train, NONE, np.array([test]), 0) for train, test in parts)
    return FederatedData(dataset, clients_data, {"seed": 1})


def test_label_matrix_and_skew_by_hand():
    data = by_hand()
    assert data.label_matrix().tolist() == [[2, 2, 0, 0], [4, 0, 0, 0]]
    assert data.label_matrix("test").tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]
    assert data.counts("val").tolist() == [0, 0]
    skew = data.skew()
    # pooled (3/4, 1/4): distances |1/2 - 3/4| = 1/4 and 1/4; entropies 1 bit and 0
    assert skew["label_distance"] == pytest.approx(0.25)
    assert skew["label_entropy"] == pytest.approx(0.5)
    assert skew["pooled_label_entropy"] == pytest.approx(2 - 0.75 * math.log2(3))
    assert (skew["classes_min"], skew["classes_mean"], skew["classes_max"]) == (1, 1.5, 2)
    fewer = FederatedData(data.dataset, (replace(data.clients[0], train=np.arange(1)), data.clients[1]))
    assert [fewer.skew()[f"samples_{which}"] for which in ("min", "median", "max")] == [1, 2.5, 4]


def test_describe_is_json_and_tells_clients_apart():
    data = by_hand()
    record = json.loads(json.dumps(data.describe()))
    assert record["settings"] == {"seed": 1}
    assert record["clients"][0]["train"] == 4
    assert record["clients"][0]["labels"]["train"] == [2, 2, 0, 0]
    assert record["class_names"] == ["cat", "dog", "cow", "pig"]
    first, second = data.clients
    moved = FederatedData(data.dataset, (replace(first, train=first.train[::-1].copy()), second))
    digests = [c["sha256"] for c in moved.describe()["clients"]]
    assert digests[0] != record["clients"][0]["sha256"]
    assert digests[1] == record["clients"][1]["sha256"]


def test_a_pool_has_a_digest_of_all_that_it_holds():
    data = by_hand()
    dataset = data.dataset
    assert len(dataset.digest()) == 64
    again = replace(dataset, inputs=np.asfortranarray(dataset.inputs.copy()))
    assert again.digest() == dataset.digest()
    images, labels, origin = dataset.inputs.copy(), dataset.labels.copy(), dataset.origin.copy()
    images[3].flat[0] += 1
    labels[3], origin[3] = 3, VAL
    changes = {
        **{"inputs": images, "labels": labels, "origin": origin, "std": (2.0,)},
        **{"class_names": ("cat", "dog", "cow", "ant"), "subclasses": dataset.labels},
    }
    digests = [replace(dataset, **{name: value}).digest() for name, value in changes.items()]
    users = replace(dataset, users=np.arange(10) % 2, user_names=("a", "b"))
    others = (replace(users, users=np.arange(10) // 5), replace(users, user_names=("a", "c")))
    digests += [each.digest() for each in (users, *others)]
    assert len({dataset.digest(), *digests}) == 1 + len(digests)
    first, second = replace(dataset, subclasses=dataset.labels), replace(dataset, superclasses=dataset.labels)
    assert first.digest() != second.digest()


def test_what_the_data_hold_is_recorded_whatever_the_seed():
    class Half(Tiny):
        sizes = (15, 10, 5)

    class Seeded(Tiny):
        def divide(self, dataset, seed):
            return replace(dataset, origin=np.random.default_rng(seed).permutation(dataset.origin))

    records = [d.federate(3, s).describe() for d in (Tiny(), Half(), Seeded()) for s in (0, 1)]
    digests = [record["pool"]["sha256"] for record in records]
    assert digests[0] == digests[1] == Tiny(seed=9).contents(Tiny().load())["sha256"]
    assert digests[2] == digests[3] != digests[0]
    assert digests[4] == digests[5] not in digests[:4]
    assert records[4]["clients"] != records[5]["clients"]
    assert records[0]["pool"]["images"] == {records[0]["domain_names"][0]: 120}
    assert records[0]["pool"]["published"] == {}
    assert by_hand().describe()["pool"] == {}


def test_table_shows_every_count_of_a_few_clients():
    lines = by_hand().table().splitlines()
    assert lines[0].split() == ["client", "train", "val", "test", "classes", "cat", "dog", "cow", "pig"]
    assert lines[1].split() == ["0", "4", "0", "1", "2", "2", "2", ".", "."]
    assert lines[2].split() == ["1", "4", "0", "1", "1", "4", ".", ".", "."]
    assert "0.250" in lines[3]


def test_table_is_cut_for_many_clients_and_classes():
    options = {"train": 9000, "test": 9000, "shape": (1, 1, 1), "classes": 60, "domains": 2}
    data = Synthetic(**options, partition=Dirichlet(alpha=1.0, min_samples=1))
    lines = data.federate(200, 0).table().splitlines()
    assert len(lines) < 30
    assert max(map(len, lines)) <= 110
    assert any(line == "... 176 more clients ..." for line in lines)
    assert lines[0].split()[:2] == ["client", "domain"]
    assert lines[-3].split()[0] == "199"


def test_federate_is_decided_by_the_seed_and_the_data_seed_wins():
    def digests(data, seed):
        return [c["sha256"] for c in data.federate(3, seed).describe()["clients"]]

    assert digests(Tiny(), 1) == digests(Tiny(), 1)
    assert digests(Tiny(), 1) != digests(Tiny(), 2)
    assert digests(Tiny(seed=5), 1) == digests(Tiny(seed=5), 2) == digests(Tiny(), 5)


@settings(max_examples=25)
@given(fraction=st.floats(0.01, 0.95), clients=st.integers(1, 20), seed=st.integers(0, 50))
def test_validation_part_is_carved_from_the_training_part(fraction, clients, seed):
    plain = Tiny().federate(clients, seed)
    carved = Tiny(val_fraction=fraction).federate(clients, seed)
    before, train, val = plain.label_matrix(), carved.label_matrix("train"), carved.label_matrix("val")
    for a, b in zip(plain.clients, carved.clients):
        assert np.array_equal(a.train, np.sort(np.concatenate([b.train, b.val])))
        assert np.array_equal(a.test, b.test)
        size = min(max(round(fraction * len(a.train)), 1), len(a.train) - 1)
        assert len(b.val) == size
    assert (train + val == before).all()
    quota = before * val.sum(axis=1, keepdims=True) / before.sum(axis=1, keepdims=True)
    assert (np.abs(val - quota) < 1).all()


def test_classes_get_validation_samples_by_largest_remainders():
    """5 of 20: quotas of 2.25, 2 and 0.75. They add to published ones."""

    class Uneven(Tiny):
        sizes = (9, 8, 3)

        def load(self):
            dataset = super().load()
            return replace(dataset, origin=np.where(np.arange(40) > 37, VAL, dataset.origin).astype(np.uint8))

    found = Uneven(val_fraction=0.25).federate(1, 0)
    assert found.label_matrix("val").tolist() == [[2, 2, 1 + 2]]
    assert {38, 39} < {*found.clients[0].val.tolist()}


def test_every_client_draws_its_own_validation_part():
    """Of clients with as many samples of one class, each has others in its validation split."""

    class OneClass(Tiny):
        sizes = (90, 0, 0)

    plain, carved = (OneClass(val_fraction=f).federate(3, 0) for f in (0.0, 0.5))
    places = [np.isin(a.train, b.val) for a, b in zip(plain.clients, carved.clients)]
    assert [mask.sum() for mask in places] == [15] * 3
    assert len({mask.tobytes() for mask in places}) == 3


class Assigns(Partition):
    """What a test wants."""

    made: Any = None

    def assign(self, dataset, clients, rng):
        return self.made(*(dataset.indices(split) for split in (TRAIN, TEST)))


@pytest.mark.parametrize(
    "made",
    [
        lambda train, test: [ClientData(train, NONE, test)],
        lambda train, test: [ClientData(train, NONE, test), ClientData(train, NONE, NONE)],
        lambda train, test: [ClientData(train, NONE, train), ClientData(NONE, NONE, test)],
        lambda train, test: [ClientData(train[[3, 3]], NONE, test), ClientData(NONE, NONE, NONE)],
        lambda train, test: [ClientData(train, NONE, test + 60), ClientData(NONE, NONE, NONE)],
        lambda train, test: [ClientData(train > 3, NONE, test), ClientData(NONE, NONE, NONE)],
    ],
)
def test_a_partition_of_ones_own_divides(made):
    partition = Assigns(made=made)
    with refused(BadCode, "Assigns.assign"):
        Tiny(partition=partition).federate(2, 0)


class Greedy(Partition):
    """The first client gets all."""

    def assign(self, dataset, clients, rng):
        first = ClientData(*(dataset.indices(split) for split in (TRAIN, VAL, TEST)))
        return [first, *[ClientData(NONE, NONE, NONE)] * (clients - 1)]


class Lacks(IID):
    """Nobody gets any samples of this split."""

    split: str = "train"

    def assign(self, dataset, clients, rng):
        return [replace(each, **{self.split: NONE}) for each in super().assign(dataset, clients, rng)]


def test_impossible_federations_are_refused():
    with refused(BadData, "Untrained"):
        Untrained().federate(1, 0)
    with refused(Conflict, "clients"):
        Tiny().federate(61, 0)
    with refused(Conflict, "data.val_fraction"):
        Tiny(val_fraction=0.5).federate(60, 0)
    for split, part in (("train", "training"), ("test", "test")):
        data = Synthetic(train=40, test=20, shape=(1, 1, 1), partition=Lacks(split=split))
        with refused(BadData, "data.partition") as caught:
            data.federate(15, 0)
        assert f"no client has {part} samples" in str(caught.value)


def test_clients_without_test_samples_are_left_out(tmp_path, caplog):
    """Clients without test samples are named and left out of the means."""
    data = Synthetic(train=40, test=20, shape=(3, 20, 20))
    result = small(tmp_path / "run", data=data, clients=30, rounds=1).run()
    [message] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    tested = data.federate(30, 0).counts("test") > 0
    assert tested.sum() == 20
    assert f"client {tested.argmin()} (10 such clients of 30) has no test samples" in message
    headline = result.summary["headline"]
    assert (headline["clients"], headline["left_out"]) == (20, 10)


def test_settings_are_recorded_without_places():
    settings = Tiny(partition=Dirichlet(alpha=0.5), val_fraction=0.25).federate(2, 7).describe()["settings"]
    assert (settings["clients"], settings["seed"]) == (2, 7)
    options = {"val_fraction": 0.25, "test_from": "published", "test_share": None, "test_by_class": False}
    partition = {"name": "Dirichlet", "alpha": 0.5, "min_samples": 10}
    assert settings["data"] == {"name": "Tiny", **options, "seed": None, "partition": partition}
    assert Tiny().settings()["partition"] == IID().settings() == {"name": "IID"}


def test_clients_without_training_samples_are_left_out(caplog):
    """Clients without training samples are told of and left out of the figures."""
    data = Synthetic(train=40, test=20, shape=(1, 1, 1), partition=Greedy(), val_fraction=0.5)
    with caplog.at_level(logging.WARNING):
        federated = data.federate(15, 0)
    assert "client 1 (14 such clients of 15) has no training samples" in caplog.text
    assert "no test samples" not in caplog.text
    assert federated.counts("train").tolist() == federated.counts("val").tolist() == [20] + [0] * 14
    alone = replace(federated, clients=federated.clients[:1])
    for name in ("label_distance", "label_entropy", "classes_mean"):
        assert federated.skew()[name] == alone.skew()[name]
    assert "0 to" in federated.table().splitlines()[-1]
