"""What a partition is: how the samples of a dataset are dealt to clients.

A partition is deterministic in the generator it is given, and ends after a bounded number of tries. It never
gives an index twice, unless it says that clients may share samples. It gives training samples (origin TRAIN)
to training splits, validation samples (VAL) to validation splits and test samples (TEST) to test splits,
unless it says otherwise.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from rayfl.data.dataset import TEST, TRAIN, VAL, ClientData, Dataset
from rayfl.settings import Settings
from rayfl.system.text import warn

Sharing = Literal["none", "test", "all"]
"""What of samples several clients may have: none, test samples, or all, of each split among themselves."""


class Partition(Settings, ABC, place="data.partition"):
    """How a data set is divided among clients.

    Examples:
        >>> from rayfl.data import Dirichlet, Synthetic
        >>> data = Synthetic(train=100, test=50, partition=Dirichlet(alpha=0.1)).federate(clients=3, seed=0)
        >>> data.label_matrix().shape  # samples of each client and class
        (3, 10)
    """

    @abstractmethod
    def assign(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> list[ClientData]:
        """Divide the dataset.

        Args:
            dataset: the data set.
            clients: number of clients.
            rng: the only source of randomness.

        Returns:
            Each client's data. A sample is in one split of one client, unless ``may_share`` allows more.
        """

    @property
    def may_share(self) -> Sharing:
        """What of samples several clients may have."""
        return "none"

    @property
    def decides_test(self) -> bool:
        """Whether the partition alone can say what is for testing, so that ``data.test_from`` cannot.

        It is so where clients may share samples: one could be tested on what another trains on.
        """
        return self.may_share != "none"

    def default_clients(self, dataset: Dataset) -> int:
        """Return how many clients there are where nobody says it."""
        return 5

    def check(self, contents: Mapping[str, Any]) -> None:
        """Refuse a data set that the partition was not made for; most take any.

        Args:
            contents: what :meth:`rayfl.data.Data.contents` says of it.
        """
        return

    def settings(self) -> dict[str, Any]:
        """Return the class name and the constructor's arguments, for the record."""
        return settings_of(self)


def settings_of(thing: object, leave_out: Sequence[str] = ()) -> dict[str, Any]:
    """Return ``{"name": class, argument: value}`` of the constructor's arguments, as far as they are kept."""
    settings: dict[str, Any] = {"name": type(thing).__name__}
    for argument in inspect.signature(type(thing)).parameters:
        if argument not in leave_out and hasattr(thing, argument):
            value = getattr(thing, argument)
            settings[argument] = list(value) if isinstance(value, tuple) else value
    return settings


def by_class(dataset: Dataset, indices: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the given indices of each class, shuffled."""
    labels = dataset.labels[indices]
    return [rng.permutation(indices[labels == c]) for c in range(dataset.classes)]


def deal(
    dataset: Dataset, indices: np.ndarray, order: np.ndarray, rng: np.random.Generator
) -> list[np.ndarray]:
    """Deal samples round robin, class after class and domain after domain, to clients in the given order."""
    shuffled = rng.permutation(indices)
    cards = shuffled[np.lexsort((dataset.domains[shuffled], dataset.labels[shuffled]))]
    hands = {int(client): np.sort(cards[seat :: len(order)]) for seat, client in enumerate(order)}
    return [hands[client] for client in range(len(order))]


def deal_alike(
    dataset: Dataset, indices: np.ndarray, trains: list[np.ndarray], rng: np.random.Generator
) -> list[np.ndarray]:
    """Deal samples so that each client gets the same fraction of them as of the training samples of a class.

    Nobody gets those of a class that nobody trains on.

    Args:
        dataset: the data set.
        indices: of the samples to be dealt.
        trains: each client's training samples.
        rng: source of randomness.
    """
    pieces: list[list[np.ndarray]] = [[] for _ in trains]
    counts = np.array([np.bincount(dataset.labels[train], minlength=dataset.classes) for train in trains])
    sums = np.cumsum(counts, axis=0)  # [clients, classes]
    for c, cell in enumerate(by_class(dataset, indices, rng)):
        if sums[-1, c]:
            ends = sums[:-1, c] * len(cell) // sums[-1, c]
            for mine, piece in zip(pieces, np.split(cell, ends)):
                mine.append(piece)
    return [join_indices(mine) for mine in pieces]


def join_indices(pieces: list[np.ndarray]) -> np.ndarray:
    """Return all indices of the pieces, ascending."""
    return np.sort(np.concatenate([np.zeros(0, np.int64), *pieces]))


def make_client_data(dataset: Dataset, train: np.ndarray, val: np.ndarray, test: np.ndarray) -> ClientData:
    """Make a client's data, with their domain where there is only one."""
    if len(dataset.domain_names) == 1:
        return ClientData(train, val, test, domain=0 if len(train) + len(val) + len(test) else None)
    domains = np.unique(dataset.domains[np.concatenate([train, val, test])])
    return ClientData(train, val, test, domain=int(domains[0]) if len(domains) == 1 else None)


def divide_parts(dataset: Dataset, cut: Callable[[np.ndarray], list[np.ndarray]]) -> list[ClientData]:
    """Divide each part of the published division among clients.

    Args:
        dataset: the data set.
        cut: returns each client's indices among those of a part.
    """
    parts = [cut(dataset.indices(origin)) for origin in (TRAIN, VAL, TEST)]
    return [make_client_data(dataset, *pieces) for pieces in zip(*parts)]


def clients_of_domains(partition: object, dataset: Dataset, clients: int) -> list[tuple[int, np.ndarray]]:
    """Return each domain that is used with its clients: client i has domain i mod M, of M domains.

    A warning names the domains that are not used.
    """
    domains = len(dataset.domain_names)
    if clients < domains:
        few = f"{type(partition).__name__}: {clients} clients for {domains} domains"
        warn(f"{few}, so these are unused: {', '.join(dataset.domain_names[clients:])}")
    return [(domain, np.arange(domain, clients, domains)) for domain in range(min(domains, clients))]


def round_shares(shares: np.ndarray, total: int) -> np.ndarray:
    """Return whole numbers, int64, with this sum, for shares that have it: by largest remainders."""
    numbers = np.floor(shares).astype(np.int64)
    numbers[np.argsort(numbers - shares, kind="stable")[: total - numbers.sum()]] += 1
    return numbers


def draw_place(weights: np.ndarray, rng: np.random.Generator) -> int:
    """Return a place, in proportion to the weights."""
    sums = np.cumsum(weights)
    return int(np.searchsorted(sums, rng.random() * sums[-1], side="right"))


_ONCE = {
    "none": "one client, and to one split",
    "test": "one client, and to one split; clients may share test samples only",
    "all": "one split of a client, and what a client is tested on is for training with nobody",
}


def check_samples(clients_data: Sequence[ClientData], size: int, shares: Sharing) -> None:
    """Check the indices of all clients and splits.

    Args:
        clients_data: at least one client's.
        size: number of samples of the data set.
        shares: what of samples several clients may have. No client has one twice, and no test sample is one
            that is for training or validation.

    Raises:
        ValueError: an index is there more often, or is not below the size of the dataset.
    """
    held = [np.concatenate([each.train, each.val]) for each in clients_data]
    tested = [each.test for each in clients_data]
    every = np.concatenate(held + tested)
    if every.min(initial=0) < 0 or every.max(initial=0) >= size:
        raise ValueError(f"samples are {every.min()} to {every.max()}, and there are 0 to {size - 1}")
    apart = [] if shares == "none" else [[own, test] for own, test in zip(held, tested)]
    if shares != "none":
        tested = [np.unique(np.concatenate(tested))]
    if shares == "all":
        held = [np.unique(np.concatenate(held))]
    for lists in (*apart, held + tested):
        samples, times = np.unique(np.concatenate(lists), return_counts=True)
        if len(twice := samples[times > 1]):
            raise ValueError(f"sample {twice[0]} is there twice: it belongs to {_ONCE[shares]}")
