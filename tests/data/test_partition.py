import logging
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayfl.data import IID, TEST, TRAIN, Dirichlet, DomainDirichlet, DomainPerClient, Pathological
from rayfl.data.partitions import dirichlet as partition_module
from rayfl.errors import BadData, Conflict
from tests.support.datasets import ORIGIN, assign, make_dataset, matrix, spread
from tests.support.refusals import refused

datasets = st.builds(
    make_dataset,
    train=st.lists(st.integers(0, 40), min_size=4, max_size=4).filter(sum),
    test=st.lists(st.integers(0, 15), min_size=4, max_size=4).filter(sum),
    val=st.lists(st.integers(0, 9), min_size=4, max_size=4),
    domains=st.integers(1, 3),
)


@settings(max_examples=25)
@given(dataset=datasets, clients=st.integers(1, 12), seed=st.integers(0, 99))
def test_iid_deals_everything_evenly(dataset, clients, seed):
    clients_data = assign(IID(), dataset, clients, seed)
    for part, origin in ORIGIN.items():
        counts = matrix(dataset, clients_data, part)
        assert counts.sum() == (dataset.origin == origin).sum()
        assert spread(counts) <= 1
        assert spread(counts.sum(axis=1)) <= 1
        cells = dataset.labels * len(dataset.domain_names) + dataset.domains
        dealt = [np.bincount(cells[s.split(part)], minlength=cells.max() + 1) for s in clients_data]
        assert spread(np.array(dealt)) <= 1  # of each class in each domain


@pytest.mark.parametrize(
    "partition",
    [IID(), DomainPerClient(), DomainDirichlet(parts=4, alpha=1.0, whole_test=["d0"], min_cell=1)],
)
def test_parts_are_dealt_in_the_same_order_of_clients(partition):
    """Whoever has a sample more in one part has it in the other, if the parts have the same classes."""
    counts = [15, 13, 18]
    dataset = make_dataset([60] * 3 if isinstance(partition, DomainDirichlet) else counts, counts, val=counts)
    clients_data = assign(partition, dataset, 4)
    test = matrix(dataset, clients_data, "test")
    assert spread(test) == 1
    assert (matrix(dataset, clients_data, "val") == test).all()
    if not isinstance(partition, DomainDirichlet):
        assert (matrix(dataset, clients_data, "train") == test).all()


@settings(max_examples=25)
@given(dataset=datasets, clients=st.integers(1, 12), seed=st.integers(0, 99))
def test_domain_per_client(dataset, clients, seed):
    clients_data = assign(DomainPerClient(), dataset, clients, seed)
    domains = len(dataset.domain_names)
    for i, client_data in enumerate(clients_data):
        assert client_data.domain == i % domains
        assert all((dataset.domains[client_data.split(part)] == client_data.domain).all() for part in ORIGIN)
    for domain in range(min(domains, clients)):
        for part, origin in ORIGIN.items():
            counts = matrix(dataset, clients_data[domain::domains], part)
            assert counts.sum() == ((dataset.origin == origin) & (dataset.domains == domain)).sum()
            assert spread(counts) <= 1


@pytest.mark.parametrize("partition", [DomainPerClient(), DomainDirichlet(parts=2, alpha=1.0, min_cell=1)])
def test_fewer_clients_than_domains_use_the_first_and_say_so(partition, caplog):
    dataset = make_dataset([60, 60], [30, 30], domains=4)
    with caplog.at_level(logging.WARNING):
        assert [s.domain for s in assign(partition, dataset, 4)] == [0, 1, 2, 3]
        assert not caplog.text
        assert [s.domain for s in assign(partition, dataset, 2)] == [0, 1]
    assert f"{type(partition).__name__}: 2 clients for 4 domains, so these are unused: d2, d3" in caplog.text


def test_different_seeds_give_different_partitions():
    dataset = make_dataset([50] * 10, [20] * 10, domains=2)
    for partition in (IID(), Dirichlet(min_samples=1), Pathological(), DomainPerClient()):
        one, two = (assign(partition, dataset, 5, seed) for seed in (0, 1))
        assert any(not np.array_equal(a.train, b.train) for a, b in zip(one, two))


@pytest.mark.parametrize(
    "partition",
    [IID(), Dirichlet(alpha=100.0), Pathological(), Pathological(split="pooled"), DomainPerClient()],
)
def test_samples_are_shuffled_before_they_are_dealt(partition):
    """Of the samples of a class, a client gets neither a piece in their order nor every n-th one."""
    dataset = make_dataset([400] * 4, [200] * 4, domains=2)
    client_data = assign(partition, dataset, 4, published=False)[0]
    for part in ("train", "test"):
        got = client_data.split(part)
        alike = (dataset.labels == dataset.labels[got[0]]) & (dataset.domains == dataset.domains[got[0]])
        places = np.flatnonzero(np.isin(np.flatnonzero(alike & (dataset.origin == ORIGIN[part])), got))
        assert len(places) > 5
        assert len(set(np.diff(places))) > 1


def test_a_shard_knows_its_domain_only_if_it_has_one():
    assert all(s.domain is None for s in assign(IID(), make_dataset([20, 20], [20, 20], domains=2), 2))
    assert all(s.domain == 0 for s in assign(IID(), make_dataset([20, 20], [20, 20]), 2))


# --- Dirichlet
# ---------------------------------------------------------------------------------------------------


@settings(max_examples=12)
@given(
    alpha=st.sampled_from([0.1, 0.3, 1.0, 100.0]),
    clients=st.integers(1, 6),
    per_class=st.lists(st.integers(60, 200), min_size=5, max_size=5),
    with_val=st.booleans(),
    seed=st.integers(0, 99),
)
def test_dirichlet_invariants(alpha, clients, per_class, with_val, seed):
    held_out = [n // 4 for n in per_class]
    dataset = make_dataset(per_class, held_out, val=held_out if with_val else None)
    clients_data = assign(Dirichlet(alpha=alpha, min_samples=3), dataset, clients, seed)
    train = matrix(dataset, clients_data, "train")
    assert train.sum(axis=0).tolist() == per_class
    assert train.sum(axis=1).min() >= 3
    for part in ("val", "test") if with_val else ("test",):
        counts = matrix(dataset, clients_data, part)
        assert counts.sum(axis=0).tolist() == held_out
        assert counts.sum(axis=1).min() >= 1
        # the same shares, but for the truncation at the two ends of a piece
        bound = 1 / np.array(per_class) + 1 / np.array(held_out)
        assert (np.abs(train / per_class - counts / held_out) <= bound + 1e-9).all()
    # who holds an equal share already gets no more
    held_before = np.cumsum(train, axis=1) - train
    full = held_before * clients >= sum(per_class)
    assert train[full].max(initial=0) == 0


def test_dirichlet_draws_equal_a_plain_loop():
    """The vectorised draws are those of the procedure done one try and one client at a time."""
    sizes, clients, alpha = np.array([70, 0, 31, 55]), 5, 0.3
    cuts, valid = Dirichlet(alpha=alpha)._draw(sizes, clients, np.random.default_rng(7))
    batch = partition_module._BATCH
    drawn = np.random.default_rng(7).dirichlet([alpha] * clients, size=(batch, len(sizes)))
    for t in range(batch):
        held = [0] * clients
        for c, size in enumerate(sizes):
            share = [0.0 if held[j] >= sizes.sum() / clients else drawn[t, c, j] for j in range(clients)]
            assert valid[t]
            ends = [int(sum(share[: j + 1]) / sum(share) * size) for j in range(clients)]
            pieces = [b - a for a, b in zip([0, *ends], ends)]
            assert partition_module.piece_sizes(cuts[t, c], size).tolist() == pieces
            held = [h + p for h, p in zip(held, pieces)]


class Drawn:
    """A generator whose Dirichlet shares are these, class after class."""

    def __init__(self, *shares):
        self.shares = shares

    def dirichlet(self, alpha, size):
        if isinstance(size, tuple):
            return np.broadcast_to(self.shares, (*size, 2)).copy()
        first, *self.shares = self.shares
        return np.broadcast_to(first, (size, 2)).copy()


def test_who_holds_exactly_an_equal_share_takes_no_more():
    """Of 20 and 20 samples client 0 has been given all of class 0; of 25 and 15 part 0 has been given 20."""
    cuts, valid = Dirichlet()._draw(np.array([20, 20]), 2, Drawn((1.0, 0.0), (0.5, 0.5)))
    assert valid.all()
    for c, pieces in enumerate(([20, 0], [0, 20])):
        assert partition_module.piece_sizes(cuts[0, c], 20).tolist() == pieces
    found = DomainDirichlet(parts=2, min_cell=1)._draw(np.array([25, 15]), Drawn((0.8, 0.2), (0.5, 0.5)))
    assert not len(found)  # part 0 has nothing of class 1
    found = DomainDirichlet(parts=2, min_cell=1)._draw(np.array([25, 17]), Drawn((0.8, 0.2), (0.5, 0.5)))
    assert (found[:, :, 0] == [0.8, 0.5]).all()


@pytest.mark.parametrize(("held_out", "least"), [(40, 1), (500, 10)])
def test_dirichlet_settles_for_one_test_sample_and_says_so(caplog, held_out, least):
    """400 test samples are at most 8 for each of 50 clients; where there are enough, the minimum stays."""
    dataset = make_dataset([500] * 10, [held_out] * 10)
    clients_data = assign(Dirichlet(alpha=1.0, min_samples=10), dataset, 50)
    assert ("1 is enough now" in caplog.text) == (least == 1)
    assert matrix(dataset, clients_data, "train").sum(axis=1).min() >= 10
    assert matrix(dataset, clients_data, "test").sum(axis=1).min() >= least


def test_dirichlet_without_a_minimum_takes_the_first_draw(caplog):
    """Thousands of clients with few classes each: no draw gives every one of them a sample."""
    dataset = make_dataset([500] * 10, [10] * 10)
    clients_data = assign(Dirichlet(alpha=0.05, min_samples=0), dataset, 1000)
    assert not caplog.text
    for part, size in (("train", 5000), ("test", 100)):
        assert matrix(dataset, clients_data, part).sum() == size
    held = matrix(dataset, clients_data, "train").sum(axis=1)
    assert 0 < (held == 0).sum() < 1000


@pytest.mark.parametrize("test", [[20, 20, 5, 0], [0, 0, 0, 0]])
@pytest.mark.parametrize(("clients", "least"), [(1, 10), (2, 30), (2, 0)])
def test_dirichlet_passes_over_classes_without_samples(clients, least, test):
    """Once all clients are full, a class that nobody has any training samples of makes no difference."""
    dataset = make_dataset([40, 40, 0, 0], test)
    clients_data = assign(Dirichlet(alpha=0.3, min_samples=least if not any(test) else 1), dataset, clients)
    counts = matrix(dataset, clients_data, "train").sum(axis=1)
    assert counts.sum() == 80
    assert counts.min() >= least * (not any(test))
    assert matrix(dataset, clients_data, "test").sum() == sum(test)


@pytest.mark.parametrize(
    ("partition", "clients", "kind", "option", "message"),
    [
        (Dirichlet(alpha=0.3), 1000, BadData, "", "5000 training samples"),
        (Dirichlet(alpha=0.3, min_samples=1), 2000, BadData, "", "1000 for validation or testing"),
        (Dirichlet(alpha=0.001), 100, BadData, "", "at least 1000 times without"),
        (Dirichlet(alpha=0.001, min_samples=1), 100, BadData, "", "at least 1000 times without"),
        (Pathological(classes_per_client=3), 7, Conflict, "", "7 clients x 3 classes is no multiple of 10"),
        (Pathological(classes_per_client=2, split="pooled"), 3000, BadData, ".split", "client 0 gets [12]"),
        (Pathological(classes_per_client=11), 10, Conflict, ".classes_per_client", "only 10"),
    ],
)
def test_impossible_partitions_are_refused(partition, clients, kind, option, message, caplog):
    dataset = make_dataset([500] * 10, [100] * 10)
    with refused(kind, f"data.partition{option}") as caught:
        partition.assign(dataset, clients, np.random.default_rng(0))
    assert re.search(message, str(caught.value))
    assert not caplog.records  # the error says all


# --- Pathological
# ------------------------------------------------------------------------------------------------


@settings(max_examples=15)
@given(
    setting=st.sampled_from([(2, 10), (1, 5), (5, 10), (2, 4), (10, 10)]),
    blocks=st.integers(1, 5),
    per_class=st.integers(50, 300),
    distinct=st.booleans(),
    seed=st.integers(0, 99),
)
def test_pathological_invariants_where_s_divides_the_classes(setting, blocks, per_class, distinct, seed):
    s, classes = setting
    block = classes // s
    clients, count = blocks * block, blocks
    held_out = per_class // 2
    dataset = make_dataset([per_class] * classes, [held_out] * classes)
    clients_data = assign(Pathological(classes_per_client=s, distinct=distinct), dataset, clients, seed)
    train, test = matrix(dataset, clients_data, "train"), matrix(dataset, clients_data, "test")
    owned = train > 0
    assert (owned.sum(axis=1) == s).all()
    for b in range(blocks):  # each consecutive block of C/s clients owns every class exactly once
        assert (owned[b * block : (b + 1) * block].sum(axis=0) == 1).all()
    low, high = 0.4 / (0.4 + 0.6 * (count - 1)), 0.6 / (0.6 + 0.4 * (count - 1))
    assert (train[owned] > low * per_class - 1).all()
    assert (train[owned] <= high * per_class).all()
    shares, test_shares = train[owned] / per_class, test[owned] / held_out
    # both truncate the same share
    assert (
        np.maximum(shares, test_shares) < np.minimum(shares + 1 / per_class, test_shares + 1 / held_out)
    ).all()
    lost = per_class - train.sum(axis=0)  # truncated left-overs
    assert (lost >= 0).all()
    assert (lost < count).all()


@pytest.mark.parametrize(
    ("s", "classes", "clients"), [(4, 10, 50), (6, 10, 10), (3, 10, 20), (30, 100, 50), (70, 100, 10)]
)
def test_only_without_distinct_a_class_is_given_twice(s, classes, clients):
    for distinct in (True, False):
        partition = Pathological(classes_per_client=s, distinct=distinct)
        tries = [partition._pick(classes, clients, np.random.default_rng(seed)) for seed in range(5)]
        assert all(len(mine) == s for picks in tries for mine in picks)
        doubled = any(len({c for c, _ in mine}) < s for picks in tries for mine in picks)
        assert doubled == (not distinct)
        for picks in tries:
            owners = np.bincount([c for mine in picks for c, _ in mine], minlength=classes)
            assert (owners == s * clients // classes).all()
            totals = np.zeros(classes)
            for c, share in (pick for mine in picks for pick in mine):
                totals[c] += share
            np.testing.assert_allclose(totals, 1)


@settings(max_examples=15)
@given(
    setting=st.sampled_from([(2, 10, 20), (1, 5, 5), (4, 10, 5), (3, 4, 8), (4, 4, 3)]),
    per_class=st.integers(100, 300),
    distinct=st.booleans(),
    with_val=st.booleans(),
    seed=st.integers(0, 99),
)
def test_pooled_divides_classes_eight_to_one_to_one(setting, per_class, distinct, with_val, seed):
    """Pooled divides every class of a client eight to one to one."""
    s, classes, clients = setting
    held_out = [per_class // 5] * classes
    dataset = make_dataset([per_class] * classes, held_out, val=held_out if with_val else None)
    clients_data = assign(
        Pathological(classes_per_client=s, distinct=distinct, split="pooled"),
        dataset,
        clients,
        seed,
        published=False,
    )
    train, val, test = (matrix(dataset, clients_data, part) for part in ORIGIN)
    total = train + val + test
    assert (val == test).all()
    assert (val[total > 0] == np.maximum(1, np.round(total[total > 0] / 10))).all()
    assert (train[total > 0] > 0).all()
    everything = np.bincount(dataset.labels)
    assert (total.sum(axis=0) <= everything).all()
    assert (total.sum(axis=0) > everything - s * clients / classes).all()  # truncated left-overs


def test_pooled_mixes_the_published_parts():
    dataset = make_dataset([300] * 4, [300] * 4)
    partition = Pathological(classes_per_client=2, split="pooled")
    for client_data in assign(partition, dataset, 4, published=False):
        for part in ORIGIN:
            assert 0.2 < (dataset.origin[client_data.split(part)] == TRAIN).mean() < 0.8


@pytest.mark.parametrize("with_val", [False, True])
def test_fedgh_validates_on_a_fifth_of_the_training_samples(with_val):
    dataset = make_dataset([1000] * 10, [100] * 10, val=[50] * 10 if with_val else None)
    partition = Pathological(classes_per_client=2, split="fedgh")
    clients_data = assign(partition, dataset, 10, published=False)
    train, val, test = (matrix(dataset, clients_data, part) for part in ORIGIN)
    extra = 500 if with_val else 0
    assert 8000 - 20 <= train.sum() <= 8000
    assert 2000 + extra - 20 <= val.sum() <= 2000 + extra
    assert ((train > 0) == (test > 0)).all()
    for client_data in clients_data:
        assert (dataset.origin[client_data.train] == TRAIN).all()
        assert (dataset.origin[client_data.test] == TEST).all()
    held_out = np.concatenate([client_data.val for client_data in clients_data])
    assert held_out.mean() == pytest.approx(
        len(dataset.labels) / 2, rel=0.05
    )  # from everywhere in the data set
    # the same shares in all parts, of classes that have lost a fifth at random
    owned = train > 0
    shares = test[owned] / 100
    np.testing.assert_allclose(train[owned] / 800, shares, atol=0.04)
