from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayfl.data import TEST, TRAIN, Dataset, DomainDirichlet
from rayfl.errors import BadData, Conflict, Unknown
from tests.support.datasets import assign, make_dataset, matrix
from tests.support.refusals import refused

OFFICE = {  # training samples of each class in the published lists, about 80 % of the domain's
    "amazon": (74, 66, 75, 79, 80, 80, 79, 80, 75, 78),
    "caltech": (121, 88, 80, 110, 68, 102, 106, 75, 70, 78),
    "dslr": (10, 17, 9, 10, 8, 19, 18, 10, 6, 18),
    "webcam": (23, 17, 25, 22, 22, 24, 34, 24, 22, 24),
}


def pool_of(train, test):
    """A dataset of named domains, each with its counts per class."""
    counts = [(d, o, n) for o, part in ((TRAIN, train), (TEST, test)) for d, n in enumerate(part.values())]
    labels = np.concatenate([np.repeat(np.arange(len(n)), n) for _, _, n in counts])
    return Dataset(
        np.zeros((len(labels), 1), np.float32),
        labels.astype(np.int64),
        np.concatenate([np.full(sum(n), d) for d, _, n in counts]).astype(np.int64),
        np.concatenate([np.full(sum(n), o) for _, o, n in counts]).astype(np.uint8),
        class_names=tuple(f"c{c}" for c in range(len(counts[0][2]))),
        domain_names=tuple(train),
    )


def office():
    return pool_of(OFFICE, {name: [max(2, n // 4) for n in counts] for name, counts in OFFICE.items()})


def in_proportion(part, available):
    """int(r n_c) with r the least ratio of test to training samples, in exact arithmetic."""
    r = min(Fraction(int(a), int(n)) for n, a in zip(part, available) if n)
    return [int(r * int(n)) for n in part]


@settings(max_examples=8)
@given(
    per_class=st.lists(st.integers(60, 120), min_size=4, max_size=4),
    held_out=st.lists(st.integers(3, 40), min_size=4, max_size=4),
    parts=st.integers(1, 4),
    alpha=st.sampled_from([1.0, 2.0, 5.0]),
    domains=st.integers(1, 3),
    least=st.integers(1, 2),
    seed=st.integers(0, 99),
)
def test_each_client_has_a_part_of_its_domain(per_class, held_out, parts, alpha, domains, least, seed):
    dataset = make_dataset(per_class, held_out, domains=domains)
    clients_data = assign(DomainDirichlet(parts=parts, alpha=alpha, min_cell=least), dataset, domains, seed)
    for domain, client_data in enumerate(clients_data):
        assert client_data.domain == domain
        assert (dataset.domains[np.concatenate([client_data.train, client_data.test])] == domain).all()
        train, test = matrix(dataset, [client_data], "train")[0], matrix(dataset, [client_data], "test")[0]
        assert train.min() >= least
        available = np.bincount(
            dataset.labels[(dataset.domains == domain) & (dataset.origin == TEST)], minlength=4
        )
        if available.min():
            assert test.tolist() == in_proportion(train, available)


@settings(max_examples=8)
@given(parts=st.integers(1, 4), clients=st.integers(1, 8), seed=st.integers(0, 99))
def test_the_parts_of_a_domain_make_up_the_whole(parts, clients, seed):
    dataset = make_dataset([80] * 4, [60] * 4, domains=2)
    if clients > 2 * parts:
        with refused(Conflict, "clients"):
            DomainDirichlet(parts=parts).assign(dataset, clients, np.random.default_rng(seed))
        return
    clients_data = assign(DomainDirichlet(parts=parts, alpha=1.0), dataset, clients, seed)
    train = matrix(dataset, clients_data, "train")
    for domain in range(min(2, clients)):
        total = train[domain::2].sum(axis=0)
        assert (total <= 40).all()
        if len(train[domain::2]) == parts:
            assert (total == 40).all()
        # a part that holds an equal share takes no more classes, so its last class is all it can exceed it by
        assert (train[domain::2].sum(axis=1) < 160 / parts + 40).all()


def test_chosen_names_the_part():
    dataset = office()
    first = assign(DomainDirichlet(parts=2, alpha=1.0), dataset, 4)
    second = assign(DomainDirichlet(parts=2, alpha=1.0, chosen={"dslr": 1, "webcam": 1}), dataset, 4)
    both = assign(DomainDirichlet(parts=2, alpha=1.0), dataset, 8)
    for client, other in ((0, first), (1, first), (2, second), (3, second)):
        assert np.array_equal(second[client].train, both[client + 4 * (other is second)].train)
    for client in (0, 1):
        assert np.array_equal(first[client].train, second[client].train)
    together = np.concatenate([first[2].train, second[2].train])
    assert len(np.unique(together)) == sum(OFFICE["dslr"])


def test_thin_keeps_a_fraction_of_each_class():
    """Thin keeps a fraction of each class and the proportions of the whole part."""
    dataset = office()
    plain = assign(DomainDirichlet(parts=2, alpha=1.0), dataset, 4)
    thin = assign(
        DomainDirichlet(parts=2, alpha=1.0, thin={"amazon": 6, "caltech": 7, "webcam": 2}), dataset, 4
    )
    for client, times in enumerate((6, 7, 1, 2)):
        before = matrix(dataset, plain, "train")[client]
        assert matrix(dataset, thin, "train")[client].tolist() == [n // times for n in before]
        assert set(thin[client].train) <= set(plain[client].train)
    assert (matrix(dataset, thin, "test") == matrix(dataset, plain, "test")).all()


def test_whole_test_leaves_the_test_samples_of_a_domain_alone():
    dataset = office()
    clients_data = assign(DomainDirichlet(parts=2, alpha=1.0, whole_test=["dslr", "webcam"]), dataset, 4)
    for domain, client_data in enumerate(clients_data):
        everything = np.flatnonzero((dataset.domains == domain) & (dataset.origin == TEST))
        assert np.array_equal(client_data.test, everything) == (domain >= 2)


@pytest.mark.parametrize(("train", "available"), [(49, 32), (47, 24), (22, 15), (25, 29)])
def test_proportions_are_whole_numbers_exactly(train, available):
    """In floats, 32 / 49 * 49 is less than 32."""
    assert int(available / train * train) == available - 1
    dataset = make_dataset([train, 2 * train], [available, 2 * available])
    (client_data,) = assign(DomainDirichlet(parts=1), dataset, 1)
    assert matrix(dataset, [client_data], "test")[0].tolist() == [available, 2 * available]


def test_validation_samples_are_held_to_the_same_proportions():
    dataset = make_dataset([60] * 3, [30] * 3, val=[40] * 3, domains=2)
    for client_data in assign(DomainDirichlet(parts=3, alpha=0.5), dataset, 2):
        train, val, test = (matrix(dataset, [client_data], part)[0] for part in ("train", "val", "test"))
        assert val.tolist() == in_proportion(train, [20] * 3)
        assert test.tolist() == in_proportion(train, [15] * 3)


def test_divisions_that_fail_early_do_not_change_what_is_drawn():
    """Class by class or whole divisions at a time: the same distribution."""
    sizes, kept, tries = np.array([30, 20, 25]), [], 2_000
    rng = np.random.default_rng(1)
    cuts = DomainDirichlet(parts=2, alpha=1.0)._draw(sizes, rng)
    found = (cuts[:, :, 0] * sizes).astype(int)
    for shares in rng.dirichlet([1.0, 1.0], (tries, len(sizes))):
        held, cells = np.zeros(2, int), []
        for size, share in zip(sizes, shares):
            open_share = np.where(held * 2 >= sizes.sum(), 0, share)
            first = int(open_share[0] / open_share.sum() * size) if open_share.sum() else 0
            cells.append([first, size - first])
            held += cells[-1]
        if np.min(cells) >= 2:
            kept.append([first for first, _ in cells])
    assert abs(len(kept) / tries - len(found) / 10_000) < 0.04
    np.testing.assert_allclose(np.mean(kept, axis=0), found.mean(axis=0), atol=1)
    np.testing.assert_allclose(np.std(kept, axis=0), found.std(axis=0), atol=1)


@pytest.mark.parametrize(
    ("options", "dataset", "kind", "place", "word"),
    [
        ({"chosen": {"dlsr": 1}}, office(), Unknown, ".chosen", "dlsr"),
        ({"thin": {"x": 2}}, office(), Unknown, ".thin", "x"),
        ({"whole_test": ["x"]}, office(), Unknown, ".whole_test", "x"),
        ({"parts": 4}, office(), BadData, "", "cannot be divided"),
        ({"parts": 4, "alpha": 0.01}, make_dataset([50] * 10, [50] * 10), BadData, "", "2,000,000 tries"),
        ({}, make_dataset([50] * 3, [50, 0, 50]), BadData, "", "no test samples of d0 of the class 1"),
        (
            *({}, pool_of({"a": [50, 50], "b": [0, 0]}, {"a": [9, 9], "b": [9, 9]})),
            *(BadData, "", "domain b cannot be divided"),
        ),
    ],
)
def test_what_cannot_be_divided_is_refused(options, dataset, kind, place, word):
    partition = DomainDirichlet(**{"parts": 2, "alpha": 1.0} | options)
    with refused(kind, f"data.partition{place}") as caught:
        partition.assign(dataset, len(dataset.domain_names), np.random.default_rng(0))
    assert word in str(caught.value)
