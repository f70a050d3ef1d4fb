"""The same mixture for every client."""

import numpy as np

from rayfl.data.dataset import ClientData, Dataset
from rayfl.data.partitions.partition import Partition, deal, divide_parts


class IID(Partition):
    """Every client gets the same mixture: the samples of each class (and domain) are dealt out in turn.

    Sizes, and the counts of each class, differ by at most one between clients, in each part.
    """

    def assign(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> list[ClientData]:
        """Deal train, validation and test samples in the same order of clients."""
        order = rng.permutation(clients)
        return divide_parts(dataset, lambda indices: deal(dataset, indices, order, rng))
