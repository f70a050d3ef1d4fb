"""Feature skew: a domain for every client."""

import numpy as np

from rayfl.data.partitions.dealing import clients_of_domains, deal
from rayfl.data.partitions.partition import Partition
from rayfl.data.pool import TEST, TRAIN, VAL, Pool, Shard


class DomainPerClient(Partition):
    """Client i gets domain i mod M, where M is the number of domains: feature skew.

    Clients of one domain get disjoint pieces of it, in which the counts of each class differ by at most one.
    With fewer clients than domains the first domains are used, and a warning names those that are not.
    """

    def assign(self, pool: Pool, clients: int, rng: np.random.Generator) -> list[Shard]:
        """Deal each domain to its clients."""
        shards: dict[int, Shard] = {}
        for domain, mine in clients_of_domains(self, pool, clients):
            order = rng.permutation(len(mine))
            inside = pool.domains == domain
            parts = [
                deal(pool, np.flatnonzero(inside & (pool.origin == origin)), order, rng)
                for origin in (TRAIN, VAL, TEST)
            ]
            for client, train, val, test in zip(mine, *parts):
                shards[int(client)] = Shard(train, val, test, domain)
        return [shards[client] for client in range(clients)]
