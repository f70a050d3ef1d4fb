"""Label skew by shares of the classes that each client draws for itself."""

from typing import Annotated

import numpy as np

from rayfl.data.dataset import TEST, TRAIN, ClientData, Dataset
from rayfl.data.partitions.partition import (
    Partition,
    Sharing,
    by_class,
    draw_place,
    join_indices,
    make_client_data,
    round_shares,
)
from rayfl.errors import Conflict
from rayfl.settings import above, at_least


class PerClientDirichlet(Partition):
    """Label skew: each client draws its shares of the classes, and takes equally many samples by them.

    The shares come from a symmetric Dirichlet distribution over classes. Samples that clients do not share
    are given out one by one to clients in random order: the client draws a class by its shares, among the
    classes that have samples left, and gets a random one of them (Grinwald et al., Floco, NeurIPS 2024). Of
    samples that clients share, each takes its share of a class, rounded by largest remainders, at random
    (Wu et al., FedDecomp, ACM MM 2024).

    Deviations from the public code: Floco's draws a client anew for each sample, takes the samples of a class
    from the last one on, and does not end if a client's classes have no samples left; here such a client
    draws among all classes. FedDecomp's rounds each share by itself, so that a client may get fewer samples.
    Validation samples of the data set are not used.
    """

    alpha: Annotated[float, above(0)] = 0.3
    """Concentration; the smaller, the more uneven."""
    train: Annotated[int, at_least(1)] = 500
    """Number of training samples of each client."""
    test: Annotated[int, at_least(0)] = 100
    """Number of test samples of each client; 0 with ``data.test_from``."""
    shares: Sharing = "none"
    """What of samples several clients may have: ``none``, ``test`` samples only, or ``all``."""

    @property
    def may_share(self) -> Sharing:
        """What of samples several clients may have."""
        return self.shares

    def assign(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> list[ClientData]:
        """Draw the shares, then take training and test samples by them."""
        shares = rng.dirichlet(np.full(dataset.classes, self.alpha), clients)
        parts = []
        for origin, name, common in ((TRAIN, "train", ("all",)), (TEST, "test", ("all", "test"))):
            take = _take_alone if self.shares not in common else _take_in_common
            cells = by_class(dataset, dataset.indices(origin), rng)
            parts.append(take(cells, getattr(self, name), shares, rng, f"data.partition.{name}"))
        none = np.zeros(0, np.int64)
        return [make_client_data(dataset, train, none, test) for train, test in zip(*parts)]


def _take_alone(
    cells: list[np.ndarray], size: int, shares: np.ndarray, rng: np.random.Generator, place: str
) -> list[np.ndarray]:
    """Return each client's samples, which nobody else has.

    Args:
        cells: the samples of each class, shuffled.
        size: number of samples of each client.
        shares: of the classes, float64 [clients, classes].
        rng: source of randomness.
        place: the setting that has the size.
    """
    left, clients = [cell.tolist() for cell in cells], len(shares)
    if (held := sum(map(len, left))) < clients * size:
        fewer = "use fewer, fewer clients, or let clients share them (data.partition.shares)"
        problem = f"is {size}, which makes {clients * size} for {clients} clients, and there are {held}"
        raise Conflict(place, problem, fewer if held else "set it to 0")
    taken: list[list[int]] = [[] for _ in shares]
    for client in rng.permutation(np.repeat(np.arange(clients), size)):
        some = np.array([len(samples) > 0 for samples in left], float)
        weights = shares[client] * some
        taken[client].append(left[draw_place(weights if weights.any() else some, rng)].pop())
    return [np.sort(np.array(mine, np.int64)) for mine in taken]


def _take_in_common(
    cells: list[np.ndarray], size: int, shares: np.ndarray, rng: np.random.Generator, place: str
) -> list[np.ndarray]:
    """Return each client's samples, which others may have, too; for the arguments see ``_take_alone``."""
    counts = [round_shares(size * mine, size) for mine in shares]
    for c, cell in enumerate(cells):
        if (most := max(int(mine[c]) for mine in counts)) > len(cell):
            problem = f"is {size}, and a client takes {most} samples of class {c}, which has {len(cell)}"
            raise Conflict(place, problem, "use fewer, or a larger data.partition.alpha")
    return [join_indices([rng.permutation(cell)[:n] for cell, n in zip(cells, mine)]) for mine in counts]
