"""Feature skew: a domain for every client."""

import numpy as np

from rayfl.data.dataset import TEST, TRAIN, VAL, ClientData, Dataset
from rayfl.data.partitions.partition import Partition, clients_of_domains, deal


class DomainPerClient(Partition):
    """Client i gets domain i mod M, where M is the number of domains: feature skew.

    Clients of one domain get disjoint pieces of it, in which the counts of each class differ by at most one.
    With fewer clients than domains the first domains are used, and a warning names those that are not.
    """

    def assign(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> list[ClientData]:
        """Deal each domain to its clients."""
        clients_data: dict[int, ClientData] = {}
        for domain, mine in clients_of_domains(self, dataset, clients):
            order = rng.permutation(len(mine))
            parts = [deal(dataset, dataset.indices(o, domain), order, rng) for o in (TRAIN, VAL, TEST)]
            for client, train, val, test in zip(mine, *parts):
                clients_data[int(client)] = ClientData(train, val, test, domain)
        return [clients_data[client] for client in range(clients)]
