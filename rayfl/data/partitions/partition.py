"""What a partition is: how the samples of a dataset are dealt to clients.

A partition is deterministic in the generator it is given, never gives an index twice, and ends after a
bounded number of tries. It gives training samples (origin TRAIN) to training splits, validation samples (VAL)
to validation splits and test samples (TEST) to test splits, unless it says otherwise.
"""

import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rayfl.data.dataset import TEST, TRAIN, VAL, ClientData, Dataset
from rayfl.settings import Settings


class Partition(Settings, ABC, place="data.partition"):
    """How a data set is divided among clients."""

    @abstractmethod
    def assign(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> list[ClientData]:
        """Divide the dataset.

        Args:
            dataset: the data set.
            clients: number of clients.
            rng: the only source of randomness.

        Returns:
            Each client's data, with disjoint indices.
        """

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


log = logging.getLogger(__name__)


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
        log.warning(
            "%s: %d clients for %d domains, so these are unused: %s",
            type(partition).__name__,
            clients,
            domains,
            ", ".join(dataset.domain_names[clients:]),
        )
    return [(domain, np.arange(domain, clients, domains)) for domain in range(min(domains, clients))]


def check_disjoint(lists: Sequence[np.ndarray], size: int) -> None:
    """Check the indices of all clients and splits: a sample belongs to one client, and to one of its splits.

    Raises:
        ValueError: an index is there twice, or is not below the size of the dataset.
    """
    every = np.concatenate([np.zeros(0, np.int64), *lists])
    if every.min(initial=0) < 0 or every.max(initial=0) >= size:
        raise ValueError(f"samples are {every.min()} to {every.max()}, and there are 0 to {size - 1}")
    if len(twice := np.flatnonzero(np.bincount(every) > 1)):
        raise ValueError(f"sample {twice[0]} is there twice: it belongs to one client, and to one split")
