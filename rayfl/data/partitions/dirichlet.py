"""Label skew by shares from a Dirichlet distribution."""

from typing import Annotated

import numpy as np

from rayfl.data.dataset import TEST, TRAIN, VAL, ClientData, Dataset
from rayfl.data.partitions.partition import Partition, by_class, join_indices, make_client_data
from rayfl.errors import BadData
from rayfl.settings import above, at_least
from rayfl.system.text import warn

REDRAWS = 1000  # of a random partition until its minimum counts are reached
_BATCH = 25  # redraws that are drawn together; a fixed number, because it decides the order of random numbers
_FEWER = "a smaller min_samples, with 0 for clients that have none"


class Dirichlet(Partition):
    """Label skew: each class is divided among clients by shares from a symmetric Dirichlet distribution.

    Clients that already hold an equal share of all training samples take no more classes (Hsu et al., 2019,
    with the balancing that Li et al., ICDE 2022, use). The same shares divide the test samples, so that a
    client's train and test splits have the same label distribution. The whole division is redrawn, at most
    1,000 times, until every client holds ``min_samples`` training and ``min_samples`` test samples; if that
    fails, one test sample is enough (a warning says so) for 1,000 more redraws. Where only training samples
    are divided, as with data.test_from, ``min_samples`` is of all that a client gets (40, or 1 in older
    versions, in PFLlib). PFLlib draws in the same way, but shuffles the classes anew in every try, by NumPy's
    global generator, and tries without end.
    """

    alpha: Annotated[float, above(0)] = 0.3
    """Concentration; the smaller, the more uneven."""
    min_samples: Annotated[int, at_least(0)] = 10
    """Least number of training samples, and of test samples, of every client. With 0 some clients may have
    none, which happens with many clients and a small alpha.
    """

    def assign(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> list[ClientData]:
        """Draw shares until the minimum counts are met."""
        cells = {origin: by_class(dataset, dataset.indices(origin), rng) for origin in (TRAIN, VAL, TEST)}
        sizes = {o: np.array([len(c) for c in cells[o]]) for o in cells if sum(map(len, cells[o]))}
        held_out = min((int(s.sum()) for o, s in sizes.items() if o != TRAIN), default=sum(sizes[TRAIN]))
        what = f"Dirichlet(alpha={self.alpha:g}, min_samples={self.min_samples}) for {clients} clients"
        total = sizes[TRAIN].sum()
        if clients * self.min_samples > total or clients * min(self.min_samples, 1) > held_out:
            there = f"{total} training samples and {held_out} for validation or testing are too few"
            raise BadData("data.partition", f": {what}: {there}", f"use fewer clients or {_FEWER}")
        minima = (self.min_samples, min(self.min_samples, 1)) if len(sizes) > 1 else (self.min_samples,)
        for minimum in dict.fromkeys(minima):
            cuts = self._search(sizes, clients, minimum, rng) if clients * minimum <= held_out else None
            if cuts is not None:
                if minimum < self.min_samples:
                    beyond = f"{self.min_samples} test samples for every client are out of reach"
                    warn(f"{what}: {beyond}, so 1 is enough now")
                return self._clients_data(dataset, cells, cuts)
        problem = f": {what} was drawn at least {REDRAWS} times without success"
        raise BadData("data.partition", problem, f"use fewer clients, a larger alpha or {_FEWER}")

    def _search(
        self, sizes: dict[int, np.ndarray], clients: int, minimum: int, rng: np.random.Generator
    ) -> np.ndarray | None:
        """Draw at most `REDRAWS` divisions.

        Args:
            sizes: for each part of the published division, int64 [classes].
            clients: number of clients.
            minimum: least number of validation and of test samples.
            rng: source of randomness.

        Returns:
            The first good division (cumulated shares, float64 [classes, clients]), or None.
        """
        for _ in range(REDRAWS // _BATCH):
            cuts, valid = self._draw(sizes[TRAIN], clients, rng)
            smallest = {o: piece_sizes(cuts, s[:, None]).sum(axis=1).min(axis=1) for o, s in sizes.items()}
            train = smallest.pop(TRAIN)
            test = np.min([*smallest.values()] or [train], axis=0)
            good = valid & (train >= self.min_samples) & (test >= minimum)
            if good.any():
                found: np.ndarray = cuts[int(good.argmax())]
                return found
        return None

    def _draw(
        self, sizes: np.ndarray, clients: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw `_BATCH` divisions at once.

        Args:
            sizes: int64 [classes], training samples of each class.
            clients: number of clients.
            rng: source of randomness.

        Returns:
            Cumulated shares, float64 [_BATCH, classes, clients], and bool [_BATCH], false where all clients
            with a positive share were full already, and training samples of a class were left.
        """
        shares = rng.dirichlet(np.full(clients, self.alpha), size=(_BATCH, len(sizes)))
        cuts = np.empty_like(shares)
        held = np.zeros((_BATCH, clients), dtype=np.int64)
        valid = np.ones(_BATCH, dtype=bool)
        for c, size in enumerate(sizes):
            cuts[:, c], some = cumulate_shares(shares[:, c], held, sizes.sum())
            valid &= some | (size == 0)
            held += piece_sizes(cuts[:, c], size)
        return cuts, valid

    def _clients_data(
        self, dataset: Dataset, cells: dict[int, list[np.ndarray]], cuts: np.ndarray
    ) -> list[ClientData]:
        """Cut the shuffled samples of each class at the cumulated shares, float64 [classes, clients]."""
        clients = cuts.shape[1]
        parts = []
        for origin in (TRAIN, VAL, TEST):
            pieces: list[list[np.ndarray]] = [[] for _ in range(clients)]
            for indices, cut in zip(cells[origin], cuts):
                for j, piece in enumerate(np.split(indices, (cut * len(indices)).astype(np.int64)[:-1])):
                    pieces[j].append(piece)
            parts.append([join_indices(p) for p in pieces])
        return [make_client_data(dataset, *pieces) for pieces in zip(*parts)]


def cumulate_shares(shares: np.ndarray, held: np.ndarray, total: int) -> tuple[np.ndarray, np.ndarray]:
    """Cumulate the shares that clients take of one class; who holds an equal share of all samples takes none.

    Args:
        shares: as drawn, float64 [divisions, clients].
        held: samples that clients hold of the classes before, int64 [divisions, clients].
        total: samples of all classes.

    Returns:
        Shares, cumulated so that the last is 1, and bool [divisions], false where nobody takes any.
    """
    sums = np.cumsum(np.where(held * shares.shape[1] >= total, 0.0, shares), axis=1)
    some = sums[:, -1:] > 0
    return sums / np.where(some, sums[:, -1:], 1.0), some[:, 0]


def piece_sizes(cuts: np.ndarray, size: int | np.ndarray) -> np.ndarray:
    """Return how many samples each client gets, for cumulated shares [..., clients]."""
    return np.diff((cuts * size).astype(np.int64), axis=-1, prepend=0)
