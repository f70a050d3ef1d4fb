"""Pools with given counts, and what every partition must hold to."""

import numpy as np

from rayfl.data import TEST, TRAIN, VAL, Pool

ORIGIN = {"train": TRAIN, "val": VAL, "test": TEST}


def make_pool(train, test, val=None, domains=1):
    """A pool with the given counts: lists per class; domains take turns within a class."""
    counts = {TRAIN: train, VAL: val or [0] * len(train), TEST: test}
    labels = np.concatenate([np.repeat(np.arange(len(c)), c) for c in counts.values()])
    origin = np.concatenate([np.full(sum(c), o) for o, c in counts.items()])
    order = np.random.default_rng(0).permutation(len(labels))
    return Pool(
        images=np.zeros((len(labels), 1, 1, 1), np.uint8),
        labels=labels[order].astype(np.int64),
        domains=(np.arange(len(labels)) % domains)[order].astype(np.int64),
        origin=origin[order].astype(np.uint8),
        class_names=tuple(map(str, range(len(train)))),
        domain_names=tuple(f"d{d}" for d in range(domains)),
        mean=(0.5,),
        std=(0.5,),
    )


def assign(partition, pool, clients, seed=0, published=True):
    """The shards, after checking what holds for all partitions.

    ``published``: training samples are in training parts, test samples in test parts.
    """
    shards = partition.assign(pool, clients, np.random.default_rng(seed))
    assert len(shards) == clients
    everything = np.concatenate([s.part(part) for s in shards for part in ORIGIN])
    assert len(np.unique(everything)) == len(everything), "an index was given twice"
    for shard in shards:
        for part, origin in ORIGIN.items():
            assert shard.part(part).dtype == np.int64
            assert (np.diff(shard.part(part)) > 0).all(), "indices are not ascending"
            if published:
                assert (pool.origin[shard.part(part)] == origin).all()
    again = partition.assign(pool, clients, np.random.default_rng(seed))
    for a, b in zip(shards, again):
        assert all(np.array_equal(a.part(part), b.part(part)) for part in ORIGIN)
    return shards


def matrix(pool, shards, part):
    """Samples of each class of each client: [clients, classes]."""
    return np.array([np.bincount(pool.labels[s.part(part)], minlength=pool.classes) for s in shards])


def spread(counts):
    """The largest difference between clients."""
    return (counts.max(axis=0) - counts.min(axis=0)).max()
