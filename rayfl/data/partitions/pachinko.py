"""Label skew in two steps: superclasses, and classes within them."""

from typing import Annotated

import numpy as np

from rayfl.data.dataset import TEST, TRAIN, UNUSED, VAL, ClientData, Dataset
from rayfl.data.partitions.partition import Partition, by_class, draw_place, make_client_data
from rayfl.errors import Conflict
from rayfl.randomness import numpy_generator
from rayfl.settings import above


class Pachinko(Partition):
    """Label skew in two steps: superclasses from one Dirichlet distribution, classes within from another.

    One client after the other draws weights of the superclasses and of the classes within each, and then
    N / clients of the N samples, without replacement: a superclass, a class within it, a random image of that
    class that is left. Classes without images left drop out of the weights. A client's samples go to its
    training and its test split as the data set divides them, so these sizes vary a little (pachinko
    allocation: Li and McCallum, ICML 2006; for federations: Reddi et al., ICLR 2021). The data set must have
    superclasses.
    """

    coarse_alpha: Annotated[float, above(0)] = 0.3
    """Concentration over superclasses; the smaller, the more uneven."""
    fine_beta: Annotated[float, above(0)] = 10.0
    """Concentration over the classes of a superclass."""
    seed: int = 12345
    """Seed of this partition alone, so that it is the same in runs with different seeds."""

    def assign(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> list[ClientData]:
        """Draw the samples of one client after the other, then shuffle the clients."""
        if dataset.superclasses is None:
            problem = ": Pachinko needs classes that belong to superclasses"
            raise Conflict("data.partition", problem, "use CIFAR100 with labels=fine")
        rng = numpy_generator(self.seed, "pachinko")
        superclass = np.zeros(dataset.classes, np.int64)
        superclass[dataset.labels] = dataset.superclasses
        cells = by_class(dataset, np.flatnonzero(dataset.origin != UNUSED), rng)
        left = [cell.tolist() for cell in cells]
        size = sum(map(len, left)) // clients
        drawn = [self._client(size, superclass, left, rng) for _ in range(clients)]
        return [_as_published(dataset, drawn[i]) for i in rng.permutation(clients)]

    def _client(
        self, size: int, superclass: np.ndarray, left: list[list[int]], rng: np.random.Generator
    ) -> np.ndarray:
        """Draw one client's samples.

        Args:
            size: how many.
            superclass: int64 [classes].
            left: the indices of each class that no client has yet; the samples are taken from there.
            rng: source of randomness.

        Returns:
            int64 [size].
        """
        belongs = superclass == np.arange(superclass.max() + 1)[:, None]  # [superclasses, classes]
        open_ = belongs & np.array([len(indices) > 0 for indices in left])
        coarse = _weights(open_.any(axis=1), self.coarse_alpha, rng)
        fine = [_weights(row, self.fine_beta, rng) for row in open_]
        drawn = np.empty(size, np.int64)
        for i in range(size):
            s = draw_place(coarse, rng)
            c = draw_place(fine[s], rng)
            drawn[i] = left[c].pop()
            if not left[c]:
                open_[s, c] = False
                fine[s] = _without_closed(fine[s], open_[s], self.fine_beta, rng)
                coarse = _without_closed(coarse, open_.any(axis=1), self.coarse_alpha, rng)
        return drawn


def _weights(open_: np.ndarray, concentration: float, rng: np.random.Generator) -> np.ndarray:
    """Draw weights of the open places from a symmetric Dirichlet distribution; the others have none."""
    weights = np.zeros(len(open_))
    if open_.any():
        weights[open_] = rng.dirichlet(np.full(int(open_.sum()), concentration))
    return weights


def _without_closed(
    weights: np.ndarray, open_: np.ndarray, concentration: float, rng: np.random.Generator
) -> np.ndarray:
    """Take their weight from closed places; draw anew where those that are open had none at all."""
    kept = np.where(open_, weights, 0.0)
    return kept if kept.any() else _weights(open_, concentration, rng)


def _as_published(dataset: Dataset, indices: np.ndarray) -> ClientData:
    """Make a client's data, whose parts follow the published division."""
    return make_client_data(
        dataset, *(np.sort(indices[dataset.origin[indices] == origin]) for origin in (TRAIN, VAL, TEST))
    )
