"""The same mixture for every client."""

import numpy as np

from rayfl.data.partitions.dealing import deal, make_shard
from rayfl.data.partitions.partition import Partition
from rayfl.data.pool import TEST, TRAIN, VAL, Pool, Shard


class IID(Partition):
    """Every client gets the same mixture: the samples of each class (and domain) are dealt like cards.

    Sizes, and the counts of each class, differ by at most one between clients, in each part.
    """

    def assign(self, pool: Pool, clients: int, rng: np.random.Generator) -> list[Shard]:
        """Deal train, validation and test samples in the same order of clients."""
        order = rng.permutation(clients)
        parts = [deal(pool, pool.indices(origin), order, rng) for origin in (TRAIN, VAL, TEST)]
        return [make_shard(pool, *pieces) for pieces in zip(*parts)]
