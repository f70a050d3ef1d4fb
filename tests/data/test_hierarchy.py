import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayfl.data import FederatedData, Pachinko, Superclass
from rayfl.data.partitions import pachinko
from rayfl.errors import Conflict
from tests.support.datasets import assign, make_dataset, matrix, spread
from tests.support.refusals import refused

BIG = 20  # superclasses, of five classes each


def fine_dataset(train, test, per_superclass=5, superclasses=4):
    """Labels are classes; class c belongs to superclass c mod ``superclasses``."""
    classes = superclasses * per_superclass
    dataset = make_dataset([train] * classes, [test] * classes)
    return dataclasses.replace(dataset, superclasses=dataset.labels % superclasses)


def coarse_dataset(train, test, subclasses=5, superclasses=4):
    """Labels are superclasses; subclass f belongs to superclass f mod ``superclasses``."""
    dataset = make_dataset([train] * (superclasses * subclasses), [test] * (superclasses * subclasses))
    return dataclasses.replace(
        dataset,
        labels=dataset.labels % superclasses,
        subclasses=dataset.labels,
        class_names=tuple(f"s{s}" for s in range(superclasses)),
    )


# --- Pachinko
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alpha", "beta"), [(0.01, 10.0), (0.3, 0.01), (10.0, 10.0)])
@pytest.mark.parametrize(("train", "test", "clients"), [(1, 0, 12), (30, 10, 7), (5, 3, 1)])
def test_pachinko_gives_every_client_as_many_samples(train, test, clients, alpha, beta):
    """And so all of them, where sizes divide."""
    dataset = fine_dataset(train, test)
    for mine in assign(Pachinko(coarse_alpha=alpha, fine_beta=beta), dataset, clients):
        assert len(mine.train) + len(mine.test) == len(dataset) // clients


def test_pachinko_has_a_seed_of_its_own():
    dataset = fine_dataset(20, 5)
    one, two = (assign(Pachinko(), dataset, 5, seed) for seed in (0, 1))
    assert all(np.array_equal(a.train, b.train) for a, b in zip(one, two))
    other = assign(Pachinko(seed=1), dataset, 5)
    assert any(not np.array_equal(a.train, b.train) for a, b in zip(one, other))


def test_pachinko_skews_superclasses_and_classes():
    """Pachinko skews superclasses by alpha and classes by beta."""
    dataset = fine_dataset(25, 5, superclasses=BIG)

    def distances(alpha, beta):
        """Distance from uniform over superclasses; and within them, of the classes of one superclass."""
        clients_data = assign(Pachinko(coarse_alpha=alpha, fine_beta=beta), dataset, 20)
        fine = matrix(dataset, clients_data, "train") + matrix(dataset, clients_data, "test")
        fine = fine.reshape(20, 5, BIG).transpose(0, 2, 1)  # class c is of superclass c mod BIG
        coarse = fine.sum(axis=2)
        outer = np.abs(coarse / coarse.sum(axis=1, keepdims=True) - 1 / BIG).sum(axis=1).mean() / 2
        big = coarse >= 20
        inner = np.abs(fine[big] / coarse[big][:, None] - 0.2).sum(axis=1).mean() / 2
        return outer, inner

    uneven, even = distances(0.1, 100.0), distances(100.0, 0.1)
    assert uneven[0] > 0.6 > 0.25 > even[0]
    assert even[1] > 0.4 > 0.25 > uneven[1]


def test_a_closed_place_gives_its_weight_to_the_others():
    """A closed place gives its weight to the others in proportion."""
    rng = np.random.default_rng(0)
    kept = pachinko._without_closed(np.array([0.5, 0.2, 0.3]), np.array([False, True, True]), 1.0, rng)
    np.testing.assert_allclose(kept, [0, 0.2, 0.3])
    drawn = np.bincount([pachinko.draw_place(kept, rng) for _ in range(2000)], minlength=3)
    assert drawn[0] == 0
    assert 0.35 < drawn[1] / 2000 < 0.45
    again = pachinko._without_closed(np.array([1.0, 0.0, 0.0]), np.array([False, True, True]), 1.0, rng)
    assert again[0] == 0
    assert again.sum() == pytest.approx(1)
    assert not pachinko._without_closed(np.array([1.0]), np.array([False]), 1.0, rng).any()


def test_clients_are_shuffled(monkeypatch):
    """Late clients draw from what is left: unshuffled, the last ones would differ from the others."""
    drawn, client = [], Pachinko._client
    monkeypatch.setattr(Pachinko, "_client", lambda *given: drawn.append(client(*given)) or drawn[-1])
    found = Pachinko().assign(fine_dataset(20, 5), 8, np.random.default_rng(0))
    order = [[{*mine.train, *mine.test} == {*each} for each in drawn].index(True) for mine in found]
    assert sorted(order) == list(range(8)) != order


# --- Superclass
# --------------------------------------------------------------------------------------------------


@settings(max_examples=15)
@given(
    train=st.integers(1, 40),
    test=st.integers(0, 12),
    subclasses=st.integers(1, 5),
    k=st.integers(1, 4),
    shuffle=st.booleans(),
    seed=st.integers(0, 99),
)
def test_superclass_invariants(train, test, subclasses, k, shuffle, seed):
    dataset = coarse_dataset(train, test, subclasses)
    clients = subclasses * k
    clients_data = assign(Superclass(shuffle_subclasses=shuffle), dataset, clients, seed)
    for part, size in (("train", train), ("test", test)):
        own = FederatedData(dataset, tuple(clients_data)).subclass_matrix(part) if size else None
        counts = matrix(dataset, clients_data, part)
        assert counts.sum() == size * 4 * subclasses  # nothing is lost
        assert spread(counts) <= 1  # every superclass is cut into nearly equal pieces
        assert spread(counts.sum(axis=1)) <= 1  # and the remainders are spread over the clients
        if own is None or size < k:
            continue
        held = [np.flatnonzero(row) for row in own]
        for i, mine in enumerate(held):
            assert sorted(f % 4 for f in mine) == [0, 1, 2, 3], "one subclass of every superclass"
            assert np.array_equal(mine, held[i % subclasses])
            if not shuffle:
                assert np.array_equal(np.sort(mine), i % subclasses * 4 + np.arange(4))


def test_superclass_sizes_on_cifar100():
    dataset = coarse_dataset(500, 100, superclasses=BIG)
    for clients, train, test in ((5, {10000}, {2000}), (15, {3333, 3334}, {666, 667})):
        clients_data = Superclass().assign(dataset, clients, np.random.default_rng(0))
        assert ({len(s.train) for s in clients_data}, {len(s.test) for s in clients_data}) == (train, test)
    shuffled = Superclass(shuffle_subclasses=True).assign(dataset, 5, np.random.default_rng(0))
    held = (FederatedData(dataset, tuple(shuffled)).subclass_matrix() > 0).astype(int)
    assert (held.sum(axis=0) == 1).all()
    assert (held != np.repeat(np.eye(5, dtype=int), BIG, axis=1)).any()


def test_figures_show_what_labels_do_not():
    dataset = coarse_dataset(20, 4)
    data = FederatedData(dataset, tuple(assign(Superclass(), dataset, 5)))
    skew = data.skew()
    assert skew["label_distance"] == pytest.approx(0)
    assert skew["subclass_distance"] == pytest.approx(0.8)  # four fifths of the subclasses are foreign
    assert "subclass skew: distance from the pooled subclasses 0.800" in data.table()
    record = data.describe()["clients"][1]
    assert record["labels"]["train"] == [20] * 4
    assert record["subclasses"]["test"] == [0] * 4 + [4] * 4 + [0] * 12


@pytest.mark.parametrize(
    ("partition", "dataset", "clients", "place"),
    [
        (Superclass(), coarse_dataset(10, 5), 7, "clients"),
        (Superclass(), make_dataset([10], [10]), 5, "data.partition"),
        (Pachinko(), make_dataset([10], [10]), 5, "data.partition"),
    ],
)
def test_what_cannot_be_divided_is_refused(partition, dataset, clients, place):
    with refused(Conflict, place):
        partition.assign(dataset, clients, np.random.default_rng(0))
