"""Partitions by a hierarchy of classes: superclasses that consist of subclasses."""

import numpy as np

from rayfl.data.partitions.partition import Partition, by_class, joined, make_shard
from rayfl.data.pool import TEST, TRAIN, UNUSED, VAL, Pool, Shard
from rayfl.errors import UserError
from rayfl.randomness import numpy_generator


class Pachinko(Partition):
    """Label skew in two steps: superclasses from one Dirichlet distribution, classes within from another.

    One client after the other draws weights of the superclasses and of the classes within each, and then
    N / clients of the N samples, without replacement: a superclass, a class within it, a random image of that
    class that is left. What is exhausted drops out of the weights. A client's samples go to its training and
    its test part as the data set divides them, so these sizes vary a little (pachinko allocation: Li and
    McCallum, ICML 2006; for federations: Reddi et al., ICLR 2021). The data set must have superclasses.
    """

    def __init__(self, coarse_alpha: float = 0.3, fine_beta: float = 10.0, seed: int = 12345) -> None:
        """Check the settings.

        Args:
            coarse_alpha: concentration over superclasses, above 0; the smaller, the more uneven.
            fine_beta: concentration over the classes of a superclass, above 0.
            seed: of this partition alone, so that it is the same in runs with different seeds.

        Raises:
            UserError: if a value is out of its range.
        """
        for name, value in (("coarse_alpha", coarse_alpha), ("fine_beta", fine_beta)):
            if not (value > 0 and np.isfinite(value)):
                raise UserError(f"Pachinko: {name} must be a number above 0, not {value}")
        self.coarse_alpha = coarse_alpha
        self.fine_beta = fine_beta
        self.seed = seed

    def assign(self, pool: Pool, clients: int, rng: np.random.Generator) -> list[Shard]:
        """Draw the samples of one client after the other, then shuffle the clients."""
        if pool.superclasses is None:
            raise UserError(
                "Pachinko needs classes that belong to superclasses: use CIFAR100 with labels=fine"
            )
        rng = numpy_generator(self.seed, "pachinko")
        superclass = np.zeros(pool.classes, np.int64)
        superclass[pool.labels] = pool.superclasses
        cells = by_class(pool, np.flatnonzero(pool.origin != UNUSED), rng)
        left = [cell.tolist() for cell in cells]
        size = sum(map(len, left)) // clients
        drawn = [self._client(size, superclass, left, rng) for _ in range(clients)]
        return [_as_published(pool, drawn[i]) for i in rng.permutation(clients)]

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
            s = _draw(coarse, rng)
            c = _draw(fine[s], rng)
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


def _draw(weights: np.ndarray, rng: np.random.Generator) -> int:
    """Return a place, in proportion to the weights."""
    sums = np.cumsum(weights)
    return int(np.searchsorted(sums, rng.random() * sums[-1], side="right"))


def _as_published(pool: Pool, indices: np.ndarray) -> Shard:
    """Make a shard whose parts follow the published division."""
    return make_shard(
        pool, *(np.sort(indices[pool.origin[indices] == origin]) for origin in (TRAIN, VAL, TEST))
    )


class Superclass(Partition):
    """Feature skew within classes: of every superclass each client has one subclass.

    The labels are superclasses, each of M subclasses; client i gets, of every superclass, the subclass with
    number i mod M, in ascending order of the finer labels. N clients share each subclass by k = N / M: it is
    cut into k nearly equal pieces, and the p-th of these clients gets piece (p + s) mod k of superclass s, so
    that no client has more than its share (Gao et al., arXiv 2311.18559, 2023, for CIFAR-100).
    """

    def __init__(self, shuffle_subclasses: bool = False) -> None:
        """Keep the settings.

        Args:
            shuffle_subclasses: number the subclasses of each superclass in a random order (as in the
                benchmark of Zhu, Ma and Blaschko, CVPR 2023).
        """
        self.shuffle_subclasses = shuffle_subclasses

    def assign(self, pool: Pool, clients: int, rng: np.random.Generator) -> list[Shard]:
        """Cut every subclass and deal the pieces."""
        members = self._members(pool, clients)
        if self.shuffle_subclasses:
            members = rng.permuted(members, axis=1)
        count = members.shape[1]
        k = clients // count
        parts = []
        for origin in (TRAIN, VAL, TEST):
            indices = pool.indices(origin)
            subclasses = pool.subclasses[indices] if pool.subclasses is not None else indices
            hands: list[list[np.ndarray]] = [[] for _ in range(clients)]
            for s, own in enumerate(members):
                for m, subclass in enumerate(own):
                    pieces = np.array_split(rng.permutation(indices[subclasses == subclass]), k)
                    for p in range(k):
                        hands[m + p * count].append(pieces[(p + s) % k])
            parts.append([joined(hand) for hand in hands])
        return [make_shard(pool, *pieces) for pieces in zip(*parts)]

    def _members(self, pool: Pool, clients: int) -> np.ndarray:
        """Return the subclasses of each superclass, ascending: int64 [superclasses, M]."""
        if pool.subclasses is None:
            raise UserError(
                "Superclass needs labels that consist of subclasses: use CIFAR100 with labels=coarse"
            )
        members = [np.unique(pool.subclasses[pool.labels == s]) for s in range(pool.classes)]
        counts = sorted({len(own) for own in members})
        if len(counts) > 1:
            raise UserError(
                f"Superclass needs as many subclasses in every superclass, and the data set has between "
                f"{counts[0]} and {counts[-1]}"
            )
        if clients % counts[0]:
            raise UserError(
                f"Superclass: {clients} clients cannot share {counts[0]} subclasses of every superclass "
                f"evenly: use a multiple of {counts[0]} clients"
            )
        return np.stack(members)
