"""Label skew by few classes per client."""

from typing import Annotated, Literal

import numpy as np

from rayfl.data.dataset import TEST, TRAIN, UNUSED, VAL, ClientData, Dataset
from rayfl.data.partitions.partition import Partition, by_class, join_indices, make_client_data
from rayfl.errors import BadData, Conflict
from rayfl.settings import at_least


class Pathological(Partition):
    """Label skew: every client holds a few classes only, in unequal amounts.

    Each of the C classes has s N / C owners, whose shares are drawn from U(0.4, 0.6) and normalised. Clients
    in order pick s classes, always a random one of those with the most shares left (McMahan et al., AISTATS
    2017, introduced the setting; the shares follow Shamsian et al., ICML 2021). The shares are the same in
    all parts.
    """

    classes_per_client: Annotated[int, at_least(1)] = 2
    """Number of classes of every client (s)."""
    distinct: bool = True
    """Whether all classes of a client differ. If not, a client may get two shares of one class. It has no
    effect if s divides the number of classes, because no class is then picked twice.
    """
    split: Literal["published", "pooled", "fedgh"] = "published"
    """Where validation and test splits come from. ``published``: from the data set's own division.
    ``pooled``: all samples together are divided, and then of every client's samples of a class a tenth, at
    least one, is for validation and as many for testing (8:1:1, Tang et al., IJCAI 2024). ``fedgh``: a
    random fifth of the training samples is for validation (as in the code of Yi et al., MM 2023).
    """

    @property
    def decides_test(self) -> bool:
        """Whether ``split`` says what is for testing."""
        return self.split != "published"

    def assign(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> list[ClientData]:
        """Pick classes and cut them."""
        picks = self._pick(dataset.classes, clients, rng)
        if self.split == "pooled":
            pieces = _cut_classes(by_class(dataset, np.flatnonzero(dataset.origin != UNUSED), rng), picks)
            return [_tenths(dataset, client, np.concatenate(mine)) for client, mine in enumerate(pieces)]
        train, val, test = (dataset.indices(origin) for origin in (TRAIN, VAL, TEST))
        if self.split == "fedgh":
            train = rng.permutation(train)
            val, train = np.concatenate([val, train[: len(train) // 5]]), train[len(train) // 5 :]
        parts = [_cut_classes(by_class(dataset, indices, rng), picks) for indices in (train, val, test)]
        return [make_client_data(dataset, *map(join_indices, pieces)) for pieces in zip(*parts)]

    def _pick(self, classes: int, clients: int, rng: np.random.Generator) -> list[list[tuple[int, float]]]:
        """Return the (class, share) pairs of every client."""
        s = self.classes_per_client
        if s > classes:
            problem = f"is {s}, but the data set has only {classes} classes"
            raise Conflict("data.partition.classes_per_client", problem)
        if s * clients % classes:
            problem = f": Pathological: {clients} clients x {s} classes is no multiple of {classes} classes"
            raise Conflict("data.partition", problem, "choose other numbers")
        owners = s * clients // classes
        shares = rng.uniform(0.4, 0.6, size=(classes, owners))
        shares /= shares.sum(axis=1, keepdims=True)
        left = np.full(classes, owners)
        picks: list[list[tuple[int, float]]] = []
        for _ in range(clients):
            mine: list[tuple[int, float]] = []
            for _ in range(s):
                open_ = left.copy()
                if self.distinct:
                    open_[[c for c, _ in mine]] = -1
                choice = int(rng.choice(np.flatnonzero(open_ == open_.max())))
                left[choice] -= 1
                mine.append((choice, float(shares[choice, left[choice]])))
            picks.append(mine)
        return picks


def _cut_classes(cells: list[np.ndarray], picks: list[list[tuple[int, float]]]) -> list[list[np.ndarray]]:
    """Give every client its share of each class that it owns, one after the other; the rest is left over."""
    taken = [0] * len(cells)
    pieces: list[list[np.ndarray]] = []
    for owned in picks:
        mine = []
        for c, share in owned:
            size = int(len(cells[c]) * share)
            mine.append(cells[c][taken[c] : taken[c] + size])
            taken[c] += size
        pieces.append(mine)
    return pieces


def _tenths(dataset: Dataset, client: int, indices: np.ndarray) -> ClientData:
    """Divide a client's samples of each class 8:1:1, in their order."""
    labels = dataset.labels[indices]
    parts: tuple[list[np.ndarray], ...] = ([], [], [])
    for c in np.unique(labels):
        mine = indices[labels == c]
        tenth = max(1, round(len(mine) / 10))
        if len(mine) <= 2 * tenth:
            gets = f"client {client} gets {len(mine)} samples of class {dataset.class_names[c]}"
            raise BadData("data.partition.split", f"is pooled, and {gets}: too few", "use fewer clients")
        for part, piece in zip(parts, (mine[2 * tenth :], mine[:tenth], mine[tenth : 2 * tenth])):
            part.append(piece)
    return make_client_data(dataset, *map(join_indices, parts))
