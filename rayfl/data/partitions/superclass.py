"""Feature skew within classes: a subclass of every superclass for each client."""

import numpy as np

from rayfl.data.dataset import ClientData, Dataset
from rayfl.data.partitions.partition import Partition, divide_parts, join_indices
from rayfl.errors import Conflict


class Superclass(Partition):
    """Feature skew within classes: of every superclass each client has one subclass.

    The labels are superclasses, each of M subclasses; client i gets, of every superclass, the subclass with
    number i mod M, in ascending order of the finer labels. N clients share each subclass by k = N / M: it is
    cut into k nearly equal pieces, and the p-th of these clients gets piece (p + s) mod k of superclass s, so
    that no client has more than its share (Gao et al., arXiv 2311.18559, 2023, for CIFAR-100).
    """

    shuffle_subclasses: bool = False
    """Whether to number the subclasses of each superclass in a random order (as in the benchmark of Zhu, Ma
    and Blaschko, CVPR 2023).
    """

    def assign(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> list[ClientData]:
        """Cut every subclass and deal the pieces."""
        members = self._members(dataset, clients)
        if self.shuffle_subclasses:
            members = rng.permuted(members, axis=1)
        count = members.shape[1]
        k = clients // count
        assert dataset.subclasses is not None
        subclass_of = dataset.subclasses

        def cut(indices: np.ndarray) -> list[np.ndarray]:
            subclasses = subclass_of[indices]
            hands: list[list[np.ndarray]] = [[] for _ in range(clients)]
            for s, own in enumerate(members):
                for m, subclass in enumerate(own):
                    pieces = np.array_split(rng.permutation(indices[subclasses == subclass]), k)
                    for p in range(k):
                        hands[m + p * count].append(pieces[(p + s) % k])
            return [join_indices(hand) for hand in hands]

        return divide_parts(dataset, cut)

    def _members(self, dataset: Dataset, clients: int) -> np.ndarray:
        """Return the subclasses of each superclass, ascending: int64 [superclasses, M]."""
        if dataset.subclasses is None:
            problem = ": Superclass needs labels with subclasses"
            raise Conflict("data.partition", problem, "use CIFAR100 with labels=coarse")
        members = [np.unique(dataset.subclasses[dataset.labels == s]) for s in range(dataset.classes)]
        count = len(members[0])
        if clients % count:
            problem = f"is {clients}, which cannot share {count} subclasses evenly"
            raise Conflict("clients", problem, "use a multiple of that")
        return np.stack(members)
