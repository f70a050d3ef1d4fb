"""What partitions deal with: the samples of a class or a domain, shuffled, and the shards they end up in."""

import logging

import numpy as np

from rayfl.data.pool import Pool, Shard

log = logging.getLogger(__name__)


def by_class(pool: Pool, indices: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the given indices of each class, shuffled."""
    labels = pool.labels[indices]
    return [rng.permutation(indices[labels == c]) for c in range(pool.classes)]


def deal(pool: Pool, indices: np.ndarray, order: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Deal samples round robin, class after class and domain after domain, to clients in the given order."""
    shuffled = rng.permutation(indices)
    cards = shuffled[np.lexsort((pool.domains[shuffled], pool.labels[shuffled]))]
    hands = {int(client): np.sort(cards[seat :: len(order)]) for seat, client in enumerate(order)}
    return [hands[client] for client in range(len(order))]


def joined(pieces: list[np.ndarray]) -> np.ndarray:
    """Return all indices of the pieces, ascending."""
    return np.sort(np.concatenate([np.zeros(0, np.int64), *pieces]))


def make_shard(pool: Pool, train: np.ndarray, val: np.ndarray, test: np.ndarray) -> Shard:
    """Make a shard, with its domain where it has only one."""
    domains = np.unique(pool.domains[np.concatenate([train, val, test])])
    return Shard(train, val, test, domain=int(domains[0]) if len(domains) == 1 else None)


def clients_of_domains(partition: object, pool: Pool, clients: int) -> list[tuple[int, np.ndarray]]:
    """Return each domain that is used with its clients: client i has domain i mod M, of M domains.

    A warning names the domains that are not used.
    """
    domains = len(pool.domain_names)
    if clients < domains:
        log.warning(
            "%s: %d clients for %d domains, so these are unused: %s",
            type(partition).__name__,
            clients,
            domains,
            ", ".join(pool.domain_names[clients:]),
        )
    return [(domain, np.arange(domain, clients, domains)) for domain in range(min(domains, clients))]
