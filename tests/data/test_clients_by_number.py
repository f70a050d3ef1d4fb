"""Partitions that give every client the same number of samples, or of pieces."""

import numpy as np
import pytest

from rayfl.data import Mixed, PerClientDirichlet, Shards
from rayfl.data.partitions.partition import round_shares
from rayfl.errors import Conflict
from tests.support.datasets import assign, make_dataset, matrix
from tests.support.refusals import refused


def test_shares_become_whole_numbers_with_the_same_sum():
    assert round_shares(np.array([1.5, 2.25, 0.25]), 4).tolist() == [2, 2, 0]
    assert round_shares(np.array([0.4, 0.3, 0.3]), 1).tolist() == [1, 0, 0]
    assert round_shares(np.array([3.0, 0.0]), 3).tolist() == [3, 0]


# ---- PerClientDirichlet


@pytest.mark.parametrize("shares", ["none", "test"])
def test_every_client_has_its_number_of_samples(shares):
    """All training samples are used up, so that the last clients get what is left."""
    dataset = make_dataset([100, 50, 50], [30, 30, 30])
    partition = PerClientDirichlet(alpha=0.1, train=40, test=9 if shares == "test" else 18, shares=shares)
    found = assign(partition, dataset, 5)
    assert matrix(dataset, found, "train").sum(axis=0).tolist() == [100, 50, 50]
    assert matrix(dataset, found, "train").sum(axis=1).tolist() == [40] * 5
    assert matrix(dataset, found, "test").sum(axis=1).tolist() == [partition.test] * 5


def test_shares_of_the_classes_are_those_of_the_draw():
    """Clients that share samples have their shares but for rounding; the others follow them at random."""
    dataset = make_dataset([4000] * 4, [400] * 4)
    drawn = np.random.default_rng(3).dirichlet(np.full(4, 0.5), 6)
    common = assign(PerClientDirichlet(alpha=0.5, train=200, test=50, shares="all"), dataset, 6, 3)
    assert (np.abs(matrix(dataset, common, "train") - 200 * drawn) < 1).all()
    assert (np.abs(matrix(dataset, common, "test") - 50 * drawn) < 1).all()
    alone = assign(PerClientDirichlet(alpha=0.5, train=1000, test=50), dataset, 6, 3)
    errors = np.abs(matrix(dataset, alone, "train") - 1000 * drawn)
    assert (errors < 5 * np.sqrt(1000 * drawn * (1 - drawn)) + 1).all()


@pytest.mark.parametrize(("shares", "shared"), [("none", ""), ("test", "test"), ("all", "train test")])
def test_only_what_may_be_shared_is_shared(shares, shared):
    dataset = make_dataset([50, 50], [30, 30])
    found = assign(PerClientDirichlet(alpha=1e6, train=20, test=12, shares=shares), dataset, 5)
    for split in ("train", "test"):
        times = np.bincount(np.concatenate([mine.split(split) for mine in found]))
        assert (times.max() > 1) == (split in shared)


# ---- Shards


def test_shards_by_hand():
    """Six shards of ten: class 0 fills two, class 1 one and a half, class 2 half of one and two."""
    dataset = make_dataset([20, 15, 25], [8, 6, 10], val=[4, 3, 5])
    found = assign(Shards(per_client=1), dataset, 6)
    counts = matrix(dataset, found, "train")
    expected = [[0, 0, 10]] * 2 + [[0, 5, 5], [0, 10, 0]] + [[10, 0, 0]] * 2
    assert sorted(counts.tolist()) == expected
    assert matrix(dataset, found, "test").tolist() == (counts * 2 // 5).tolist()
    assert matrix(dataset, found, "val").tolist() == (counts // 5).tolist()


@pytest.mark.parametrize(("clients", "per_client"), [(4, 2), (7, 3)])
def test_shards_deal_everything(clients, per_client):
    dataset = make_dataset([40, 31, 50], [12, 10, 15])
    found = assign(Shards(per_client=per_client), dataset, clients)
    counts = matrix(dataset, found, "train")
    assert counts.sum(axis=0).tolist() == [40, 31, 50]
    assert matrix(dataset, found, "test").sum(axis=0).tolist() == [12, 10, 15]
    assert np.ptp(counts.sum(axis=1)) <= per_client
    hands = [assign(Shards(), dataset, 4, seed) for seed in range(5)]
    assert len({str(matrix(dataset, hand, "train")[0]) for hand in hands}) > 1  # which shards
    assert len({str(hand[0].train) for hand in hands}) == 5  # and which samples are in them


# ---- Mixed


def test_mixed_by_hand():
    """Of 20 samples 8 are even, 2 of each class; of 7 they are 2.8, so 2, both of the last class."""
    dataset = make_dataset([60] * 4, [30] * 4)
    found = assign(Mixed(even=0.4, groups=((0, 1), (2, 3, 0)), train=20, test=7), dataset, 3)
    assert matrix(dataset, found, "train").tolist() == [[8, 8, 2, 2], [6, 2, 6, 6], [8, 8, 2, 2]]
    assert matrix(dataset, found, "test").tolist() == [[2, 3, 0, 2], [3, 0, 1, 3], [2, 3, 0, 2]]


def test_mixed_is_the_division_of_fedpac():
    """600 = 10 x 12 + 3 x 160 training samples, and 300 = 10 x 6 + 3 x 80 test samples."""
    dataset = make_dataset([5000] * 10, [1000] * 10)
    found = assign(Mixed(), dataset, 6)
    for number, mine in enumerate(matrix(dataset, found, "train")):
        group = [(2 * (number % 5) + k) % 10 for k in range(3)]
        assert mine.tolist() == [172 if c in group else 12 for c in range(10)]
    assert matrix(dataset, found, "test")[5].tolist() == [86] * 3 + [6] * 7


def test_mixed_begins_again_where_a_class_is_used_up():
    """Three clients take 4 samples of each class, which has 10: the third has two of the first one's."""
    dataset = make_dataset([10, 10], [4, 4])
    found = assign(Mixed(even=1, groups=((0,),), train=8, test=2), dataset, 3)
    times = np.bincount(np.concatenate([mine.train for mine in found]), minlength=28)
    assert sorted(times[times > 0]) == [1] * 16 + [2] * 4
    assert len(np.intersect1d(found[0].train, found[2].train)) == 4
    assert all(len(np.unique(mine.train)) == 8 for mine in found)


@pytest.mark.parametrize(
    ("partition", "place"),
    [
        (PerClientDirichlet(train=21, test=0), "train"),
        (PerClientDirichlet(train=20, test=13), "test"),
        (PerClientDirichlet(train=60, test=9, shares="all", alpha=0.01), "train"),
        (PerClientDirichlet(train=20, test=31, shares="test", alpha=0.01), "test"),
        (Mixed(groups=((0, 2),)), "groups"),
        (Mixed(groups=((0,),), train=57, test=1), "train"),  # 5 + 46 of class 0
        (Mixed(groups=((1,),), train=8, test=34), "test"),  # 4 + 27 of class 1
    ],
)
def test_what_the_data_do_not_have_is_refused(partition, place):
    with refused(Conflict, f"data.partition.{place}"):
        partition.assign(make_dataset([50, 50], [30, 30]), 5, np.random.default_rng(0))
