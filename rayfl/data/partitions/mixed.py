"""Label skew by groups of classes that are given, with a part of all classes."""

from typing import Annotated

import numpy as np

from rayfl.data.dataset import TEST, TRAIN, ClientData, Dataset
from rayfl.data.partitions.partition import Partition, Sharing, by_class, join_indices, make_client_data
from rayfl.errors import BadValue, Conflict
from rayfl.settings import at_least, at_most


class Mixed(Partition):
    """Label skew: a part of each client's samples is of all classes, the rest of the classes of its group.

    Client i has group i mod M of M. Both parts have equally many samples of each of their classes; the last
    class gets what is left over. Clients in order take the next samples of a class, which begins again at its
    first when all are taken: then clients share samples (Xu et al., FedPAC, ICLR 2023).

    Deviations from the public code: it takes samples in the order of the files, for CIFAR-10 from image 2,000
    (test: 500) of each class on; here the order within a class is random. It begins again before the last
    samples of a class if they are fewer than the client takes. Validation samples of the data set are not
    used.
    """

    even: Annotated[float, at_least(0), at_most(1)] = 0.2
    """Part of the samples that is of all classes."""
    groups: tuple[tuple[Annotated[int, at_least(0)], ...], ...] = (
        (0, 1, 2), (2, 3, 4), (4, 5, 6), (6, 7, 8), (8, 9, 0),
    )  # fmt: skip
    """Classes of each group, by number from 0."""
    train: Annotated[int, at_least(1)] = 600
    """Number of training samples of each client."""
    test: Annotated[int, at_least(0)] = 300
    """Number of test samples of each client."""

    def __post_init__(self) -> None:
        if not self.groups or not all(self.groups):
            raise BadValue("data.partition.groups", f"is {self.groups}", "every group needs a class")

    @property
    def may_share(self) -> Sharing:
        """What of samples several clients may have: all, where a class has too few for everybody."""
        return "all"

    def assign(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> list[ClientData]:
        """Let clients take their samples one after the other."""
        if (largest := max(map(max, self.groups))) >= dataset.classes:
            problem = f"names class {largest}, and the classes are 0 to {dataset.classes - 1}"
            raise Conflict("data.partition.groups", problem)
        parts = []
        for origin, name in ((TRAIN, "train"), (TEST, "test")):
            cells = by_class(dataset, dataset.indices(origin), rng)
            counts = [self._counts(getattr(self, name), i, dataset.classes) for i in range(clients)]
            parts.append(_take_in_turn(cells, np.array(counts), f"data.partition.{name}"))
        none = np.zeros(0, np.int64)
        return [make_client_data(dataset, train, none, test) for train, test in zip(*parts)]

    def _counts(self, size: int, client: int, classes: int) -> np.ndarray:
        """Return how many of a client's samples are of each class: int64 [classes]."""
        group = self.groups[client % len(self.groups)]
        even = int(self.even * size + 1e-9)
        counts = _equal_parts(even, classes)
        np.add.at(counts, list(group), _equal_parts(size - even, len(group)))
        return counts


def _equal_parts(total: int, parts: int) -> np.ndarray:
    """Return whole numbers that are equal but for the last one, which has what is left over."""
    numbers = np.full(parts, total // parts)
    numbers[-1] += total % parts
    return numbers


def _take_in_turn(cells: list[np.ndarray], counts: np.ndarray, place: str) -> list[np.ndarray]:
    """Return each client's samples, ascending.

    Args:
        cells: the samples of each class.
        counts: how many each client takes of each class, int64 [clients, classes].
        place: the setting that has the number of samples.
    """
    sizes = np.array([len(cell) for cell in cells])
    if len(lacking := np.flatnonzero(counts.max(axis=0) > sizes)):
        c = lacking[0]
        problem = f"takes {counts[:, c].max()} samples of class {c} for one client, and there are {sizes[c]}"
        raise Conflict(place, problem, "use fewer samples, or other groups")
    starts = np.cumsum(counts, axis=0) - counts
    return [
        join_indices(
            [np.take(cell, range(a, a + n), mode="wrap") for cell, a, n in zip(cells, begin, mine) if n]
        )
        for begin, mine in zip(starts, counts)
    ]
