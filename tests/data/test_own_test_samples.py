"""Test samples that are a share of each client's own (``data.test_from``)."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.model_selection import train_test_split

import rayfl.data
from rayfl.data import TEST, TRAIN, UNUSED, VAL, ClientData, Data, Dirichlet, FromFile, Shards
from rayfl.data.base import hold_out_test
from rayfl.data.partitions.pathological import Pathological
from rayfl.errors import BadData, BadValue, Conflict
from rayfl.randomness import numpy_generator
from tests.support.datasets import make_dataset
from tests.support.refusals import refused


class Given(Data):
    """Two classes, 60 training, 8 validation and 40 test samples, and 2 that are not used."""

    def load(self):
        dataset = make_dataset([40, 22], [30, 10], val=[4, 4])
        origin = dataset.origin.copy()
        origin[dataset.indices(TRAIN)[:2]] = UNUSED
        return replace(dataset, origin=origin)


def everything(data, *splits):
    return np.sort(np.concatenate([data.held.indices[split] for split in splits or ("train", "val", "test")]))


def test_published_is_what_the_partition_makes_of_the_data():
    dataset, found = Given().load(), Given(partition=Shards()).federate(4, 5)
    for mine, own in zip(found.clients, Shards().assign(dataset, 4, numpy_generator(5, "partition"))):
        for split in ("train", "val", "test"):
            assert mine.split(split).tolist() == own.split(split).tolist()
    assert found.dataset.remarks == ()


@pytest.mark.parametrize("partition", [Dirichlet(min_samples=5), Shards()])
def test_pooled_divides_everything_and_splits_what_each_client_got(partition):
    found = Given(partition=partition, test_from="pooled", test_share=0.2).federate(4, 5)
    dataset = Given().load()
    used = dataset.origin != UNUSED
    pool = replace(dataset, origin=np.where(used, TRAIN, UNUSED).astype(np.uint8))
    divided = partition.assign(pool, 4, numpy_generator(5, "partition"))
    for client, (mine, own) in enumerate(zip(found.clients, divided)):
        again = hold_out_test(pool, own, 0.2, False, numpy_generator(5, "test", client))
        assert mine.test.tolist() == again.test.tolist()
        assert len(mine.test) == -(-len(own.train) // 5)
        assert np.sort(np.concatenate([mine.train, mine.test])).tolist() == own.train.tolist()
    assert everything(found).tolist() == np.flatnonzero(used).tolist()
    assert {TRAIN, VAL, TEST} == set(dataset.origin[everything(found, "train")])
    assert found.contents == Given(partition=partition).federate(4, 5).contents  # those of the loaded data


def test_training_gives_the_test_part_to_nobody():
    found = Given(test_from="training").federate(4, 5)
    origin = found.dataset.origin
    assert everything(found, "train", "test").tolist() == np.flatnonzero(origin == TRAIN).tolist()
    assert everything(found, "val").tolist() == np.flatnonzero(origin == VAL).tolist()
    assert (origin == TEST).sum() == 40  # for a test that all clients have in common
    assert found.counts("train").tolist() == [11] * 4
    assert found.counts("test").tolist() == [4] * 4
    with refused(Conflict, "clients"):  # the 40 test samples are of no use to them
        Given(test_from="training").federate(61, 0)


def split(counts, share, alike=False, client=0):
    dataset = make_dataset(counts, [0] * len(counts))
    none = np.zeros(0, np.int64)
    mine = ClientData(np.arange(len(dataset)), none, none, domain=0)
    found = hold_out_test(dataset, mine, share, alike, numpy_generator(0, "test", client))
    return found, np.bincount(dataset.labels[found.test], minlength=len(counts)).tolist()


@pytest.mark.parametrize(
    ("n", "share", "size"), [(1, 0.9, 0), (2, 0.9, 1), (30, 0.25, 8), (30, 0.1, 3), (100, 0.07, 7)]
)
@pytest.mark.parametrize("alike", [False, True])
def test_the_number_of_test_samples(n, share, size, alike):
    found, counts = split([n], share, alike)
    assert counts == [size]
    assert sorted([*found.train, *found.test]) == list(range(n))
    assert found.domain == 0


def test_the_number_of_test_samples_is_that_of_pfllib():
    for share in (0.2, 0.25, 0.5):
        for n in range(4, 40):
            train, test = train_test_split(np.arange(n), train_size=1 - share)
            found, _ = split([n], share)
            assert (len(found.train), len(found.test)) == (len(train), len(test))


def test_by_class_takes_the_same_share_of_each_class():
    assert split([40, 20, 12], 0.25, alike=True)[1] == [10, 5, 3]
    assert split([7, 2, 1], 0.5, alike=True)[1] == [4, 1, 0]  # 3.5, 1 and 0.5: the first of equal remainders
    draws = {tuple(split([40, 20, 12], 0.25, client=client)[1]) for client in range(9)}
    assert len(draws) > 3
    assert {sum(draw) for draw in draws} == {18}


def test_validation_samples_are_taken_last():
    plain, carved = (Given(test_from="pooled", val_fraction=f).federate(3, 0) for f in (0, 0.3))
    assert everything(plain, "test").tolist() == everything(carved, "test").tolist()
    assert everything(plain, "train").tolist() == everything(carved, "train", "val").tolist()


def test_dirichlet_needs_no_test_samples_and_counts_all_of_a_client(monkeypatch):
    monkeypatch.setattr(Given, "load", lambda self: make_dataset([200, 200], [0, 0]))
    for where in ("pooled", "training"):
        found = Given(partition=Dirichlet(alpha=0.5, min_samples=40), test_from=where).federate(5, 1)
        assert (found.counts("train") + found.counts("test")).min() >= 40
    monkeypatch.setattr("rayfl.data.partitions.dirichlet.REDRAWS", 50)
    draws, drawn = [], Dirichlet._draw
    monkeypatch.setattr(Dirichlet, "_draw", lambda *given: draws.append(1) or drawn(*given))
    with refused(BadData, "data.partition"):
        Given(partition=Dirichlet(alpha=0.01, min_samples=80), test_from="pooled").federate(5, 1)
    assert len(draws) == 2  # of 25 divisions each


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Given, {"test_by_class": True}),
        (rayfl.data.EmbeddedDigits, {"test_from": "pooled"}),
        (rayfl.data.PACS, {"test_from": "training"}),
        (rayfl.data.OfficeCaltech10, {"test_from": "pooled", "split": "fdse"}),
        (rayfl.data.ImageFolders, {"test_from": "pooled", "split": "fdse"}),
        (Given, {"test_from": "pooled", "partition": FromFile(path="x")}),
        (Given, {"test_from": "pooled", "partition": Pathological(split="pooled")}),
        (Given, {"test_from": "training", "partition": Pathological(split="fedgh")}),
        (Given, {"test_from": "training", "partition": rayfl.data.PerClientDirichlet(shares="test")}),
        (Given, {"test_from": "training", "partition": rayfl.data.Mixed()}),
        (Given, {"test_from": "pooled", "partition": rayfl.data.DomainDirichlet(whole_test=["x"])}),
    ],
)
def test_what_goes_together_with_nothing_is_refused(kind, options):
    """The first option is what is refused."""
    with refused(Conflict, f"data.{next(iter(options))}"):
        kind(**options)
    for share in (0, 1):
        with refused(BadValue, "data.test_share"):
            kind(test_from="pooled", test_share=share)
    if kind not in (rayfl.data.EmbeddedDigits, rayfl.data.PACS):  # other divisions of the same kinds are not
        assert kind(test_from="pooled").test_share == 0.25
        assert kind().test_share is None


def test_users_keep_their_samples():
    arrays = {"x": np.zeros((60, 2), np.float32), "y": np.arange(60) % 2, "users": np.repeat([0, 1, 2], 20)}
    found = rayfl.data.Arrays(**arrays, test_from="pooled", test_share=0.5).federate(None, 0)
    assert found.counts("train").tolist() == found.counts("test").tolist() == [10] * 3


def test_it_is_recorded_and_read_again(tmp_path):
    options = {"test_from": "pooled", "test_share": 0.2, "test_by_class": True}
    data = Given(**options).federate(3, 0)
    told = data.describe()["remarks"][0]
    assert "all samples together" in told
    assert "20 % of each client's own samples, the same share of each class" in told
    assert told in data.table()
    assert options.items() <= data.describe()["settings"]["data"].items()
    data.write_indices(tmp_path / "division.json")
    again = Given(partition=FromFile(path=str(tmp_path / "division.json"))).federate(3, 0)
    assert again.digest() == data.digest()
    (told,) = Given(test_from="training", test_share=0.5).federate(3, 0).remarks
    assert told.startswith("The clients divide the training samples alone, and test samples are 50 % of each")
