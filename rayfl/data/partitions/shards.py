"""Label skew by few pieces of samples that are sorted by class."""

from typing import Annotated

import numpy as np

from rayfl.data.dataset import TEST, TRAIN, VAL, ClientData, Dataset
from rayfl.data.partitions.partition import Partition, by_class, deal_alike, join_indices, make_client_data
from rayfl.settings import at_least


class Shards(Partition):
    """Label skew: the training samples are sorted by class, cut into shards, and dealt to clients at random.

    Each client has ``per_client`` of ``per_client`` x clients shards, whose sizes differ by at most one
    (McMahan et al., AISTATS 2017). Within a class the order is random. Of the validation and test samples of
    a class each client gets the same fraction as of the training samples; the paper tests on one common set.
    """

    per_client: Annotated[int, at_least(1)] = 2
    """Number of shards of every client."""

    def assign(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> list[ClientData]:
        """Cut the shards and deal them."""
        sorted_ = np.concatenate(by_class(dataset, dataset.indices(TRAIN), rng))
        shards = np.array_split(sorted_, self.per_client * clients)
        hands = rng.permutation(len(shards)).reshape(clients, self.per_client)
        trains = [join_indices([shards[shard] for shard in hand]) for hand in hands]
        held_out = [deal_alike(dataset, dataset.indices(origin), trains, rng) for origin in (VAL, TEST)]
        return [make_client_data(dataset, *pieces) for pieces in zip(trains, *held_out)]
