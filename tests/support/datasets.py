"""Datasets with given counts, and what every partition must hold to."""

import numpy as np

from rayfl.data import TEST, TRAIN, VAL, Arrays, Dataset
from rayfl.data.partitions.partition import check_samples

ORIGIN = {"train": TRAIN, "val": VAL, "test": TEST}


def make_dataset(train, test, val=None, domains=1):
    """A dataset with the given counts: lists per class; domains take turns within a class."""
    counts = {TRAIN: train, VAL: val or [0] * len(train), TEST: test}
    labels = np.concatenate([np.repeat(np.arange(len(c)), c) for c in counts.values()])
    origin = np.concatenate([np.full(sum(c), o) for o, c in counts.items()])
    order = np.random.default_rng(0).permutation(len(labels))
    return Dataset(
        inputs=np.zeros((len(labels), 1, 1, 1), np.uint8),
        labels=labels[order].astype(np.int64),
        domains=(np.arange(len(labels)) % domains)[order].astype(np.int64),
        origin=origin[order].astype(np.uint8),
        class_names=tuple(map(str, range(len(train)))),
        domain_names=tuple(f"d{d}" for d in range(domains)),
        mean=(0.5,),
        std=(0.5,),
    )


def assign(partition, dataset, clients, seed=0, published=True):
    """The clients_data, after checking what holds for all partitions.

    ``published``: training samples are in training splits, test samples in test splits.
    """
    clients_data = partition.assign(dataset, clients, np.random.default_rng(seed))
    assert len(clients_data) == clients
    check_samples(clients_data, len(dataset), partition.may_share)
    everything = np.concatenate([s.split(part) for s in clients_data for part in ORIGIN])
    shared = len(everything) - len(np.unique(everything))
    assert not shared or partition.may_share != "none", "an index was given twice"
    for client_data in clients_data:
        for part, origin in ORIGIN.items():
            assert client_data.split(part).dtype == np.int64
            assert (np.diff(client_data.split(part)) > 0).all(), "indices are not ascending"
            if published:
                assert (dataset.origin[client_data.split(part)] == origin).all()
    again = partition.assign(dataset, clients, np.random.default_rng(seed))
    for a, b in zip(clients_data, again):
        assert all(np.array_equal(a.split(part), b.split(part)) for part in ORIGIN)
    return clients_data


def matrix(dataset, clients_data, part):
    """Samples of each class of each client: [clients, classes]."""
    return np.array(
        [np.bincount(dataset.labels[s.split(part)], minlength=dataset.classes) for s in clients_data]
    )


def spread(counts):
    """The largest difference between clients."""
    return (counts.max(axis=0) - counts.min(axis=0)).max()


def of_classes(count: int) -> Dataset:
    """A data set of so many classes, a sample of each."""
    return Arrays(np.zeros((count, 1)), np.arange(count), test_fraction=0).load()
