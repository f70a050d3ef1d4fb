"""Partitions: how the samples of a pool are dealt to clients.

A partition is deterministic in the generator it is given, never gives an index twice, and ends after a
bounded number of tries. It gives training samples (origin TRAIN) to training parts, validation samples (VAL)
to validation parts and test samples (TEST) to test parts, unless it says otherwise.
"""

import inspect
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from rayfl.data.pool import TEST, TRAIN, UNUSED, VAL, Pool, Shard
from rayfl.errors import UserError
from rayfl.settings import Settings

log = logging.getLogger(__name__)

REDRAWS = 1000  # of a random partition until its minimum counts are reached
_BATCH = 25  # redraws that are drawn together; a fixed number, because it decides the order of random numbers


class Partition(Settings, ABC, place="data.partition"):
    """How a data set is divided among clients."""

    @abstractmethod
    def assign(self, pool: Pool, clients: int, rng: np.random.Generator) -> list[Shard]:
        """Divide the pool.

        Args:
            pool: the data set.
            clients: number of clients.
            rng: the only source of randomness.

        Returns:
            One shard per client, with disjoint indices.

        Raises:
            UserError: if the settings cannot be met with this pool and number of clients.
        """

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


class IID(Partition):
    """Every client gets the same mixture: the samples of each class (and domain) are dealt like cards.

    Sizes, and the counts of each class, differ by at most one between clients, in each part.
    """

    def assign(self, pool: Pool, clients: int, rng: np.random.Generator) -> list[Shard]:
        """Deal train, validation and test samples in the same order of clients."""
        order = rng.permutation(clients)
        parts = [deal(pool, pool.indices(origin), order, rng) for origin in (TRAIN, VAL, TEST)]
        return [make_shard(pool, *pieces) for pieces in zip(*parts)]


class DomainPerClient(Partition):
    """Client i gets domain i mod M, where M is the number of domains: feature skew.

    Clients of one domain get disjoint pieces of it, in which the counts of each class differ by at most one.
    With fewer clients than domains the first domains are used, and a warning names those that are not.
    """

    def assign(self, pool: Pool, clients: int, rng: np.random.Generator) -> list[Shard]:
        """Deal each domain to its clients."""
        shards: dict[int, Shard] = {}
        for domain, mine in clients_of_domains(self, pool, clients):
            order = rng.permutation(len(mine))
            inside = pool.domains == domain
            parts = [
                deal(pool, np.flatnonzero(inside & (pool.origin == origin)), order, rng)
                for origin in (TRAIN, VAL, TEST)
            ]
            for client, train, val, test in zip(mine, *parts):
                shards[int(client)] = Shard(train, val, test, domain)
        return [shards[client] for client in range(clients)]


def clients_of_domains(partition: Partition, pool: Pool, clients: int) -> list[tuple[int, np.ndarray]]:
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


class Dirichlet(Partition):
    """Label skew: each class is divided among clients by shares from a symmetric Dirichlet distribution.

    Clients that already hold an equal share of all training samples take no more classes (Hsu et al., 2019,
    with the balancing that Li et al., ICDE 2022, use). The same shares divide the test samples, so that a
    client's train and test parts have the same label distribution. The whole division is redrawn, at most
    1,000 times, until every client holds ``min_samples`` training and ``min_samples`` test samples; if that
    fails, one test sample is enough (a warning says so) for 1,000 more redraws.
    """

    def __init__(self, alpha: float = 0.3, min_samples: int = 10) -> None:
        """Check the settings.

        Args:
            alpha: concentration, above 0; the smaller, the more uneven.
            min_samples: least number of training samples, and of test samples, of every client; with 0, for
                many clients and a small alpha, some may have none.

        Raises:
            UserError: if a value is out of its range.
        """
        if not (alpha > 0 and np.isfinite(alpha)):
            raise UserError(f"Dirichlet: alpha must be a number above 0, not {alpha}")
        if min_samples < 0:
            raise UserError(f"Dirichlet: min_samples must be at least 0, not {min_samples}")
        self.alpha = alpha
        self.min_samples = min_samples

    def assign(self, pool: Pool, clients: int, rng: np.random.Generator) -> list[Shard]:
        """Draw shares until the minimum counts are met."""
        cells = {origin: by_class(pool, pool.indices(origin), rng) for origin in (TRAIN, VAL, TEST)}
        sizes = {o: np.array([len(c) for c in cells[o]]) for o in cells if sum(map(len, cells[o]))}
        held_out = min(int(s.sum()) for o, s in sizes.items() if o != TRAIN)
        what = f"Dirichlet(alpha={self.alpha:g}, min_samples={self.min_samples}) for {clients} clients"
        if clients * self.min_samples > sizes[TRAIN].sum():
            raise UserError(
                f"{what} needs at least {clients * self.min_samples} training samples, and the data set has "
                f"{sizes[TRAIN].sum()}: use fewer clients or a smaller min_samples"
            )
        if clients * min(self.min_samples, 1) > held_out:
            raise UserError(
                f"{what}: the data set has only {held_out} validation or test samples, and every client "
                "needs one: use fewer clients, or min_samples=0"
            )
        nearest = []
        for minimum in dict.fromkeys((self.min_samples, min(self.min_samples, 1))):
            if minimum < self.min_samples:
                log.warning(
                    "%s: %d test samples for every client are out of reach, so 1 is enough now",
                    what,
                    self.min_samples,
                )
            if clients * minimum <= held_out:
                cuts, reached = self._search(sizes, clients, minimum, rng)
                if cuts is not None:
                    return self._shards(pool, cells, cuts)
                nearest.append(reached)
        train, test = nearest[-1]
        raise UserError(
            f"{what} was drawn {len(nearest) * REDRAWS} times without success: at best the smallest client "
            f"had {train} training and {test} test samples. Use fewer clients, a larger alpha or a smaller "
            "min_samples, with 0 for clients that have none"
        )

    def _search(
        self, sizes: dict[int, np.ndarray], clients: int, minimum: int, rng: np.random.Generator
    ) -> tuple[np.ndarray | None, tuple[int, int]]:
        """Draw at most `REDRAWS` divisions.

        Args:
            sizes: for each part of the published division, int64 [classes].
            clients: number of clients.
            minimum: least number of validation and of test samples.
            rng: source of randomness.

        Returns:
            The first good division (cumulated shares, float64 [classes, clients]), or None; and the counts of
            the smallest client, training and held out, in the division that came nearest.
        """
        nearest, nearness = (0, 0), -1.0
        for _ in range(REDRAWS // _BATCH):
            cuts, valid = self._draw(sizes[TRAIN], clients, rng)
            smallest = {o: piece_sizes(cuts, s[:, None]).sum(axis=1).min(axis=1) for o, s in sizes.items()}
            train = smallest.pop(TRAIN)
            test = np.min(list(smallest.values()), axis=0)
            good = valid & (train >= self.min_samples) & (test >= minimum)
            if good.any():
                return cuts[int(good.argmax())], nearest
            near = valid * np.minimum(train / max(self.min_samples, 1), test / max(minimum, 1))
            best = int(near.argmax())
            if near[best] > nearness:
                nearest, nearness = (int(train[best]), int(test[best])), near[best]
        return None, nearest

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
            with a positive share were full already.
        """
        shares = rng.dirichlet(np.full(clients, self.alpha), size=(_BATCH, len(sizes)))
        cuts = np.empty_like(shares)
        held = np.zeros((_BATCH, clients), dtype=np.int64)
        valid = np.ones(_BATCH, dtype=bool)
        for c, size in enumerate(sizes):
            share = np.where(held * clients >= sizes.sum(), 0.0, shares[:, c])
            sums = np.cumsum(share, axis=1)
            valid &= sums[:, -1] > 0
            cuts[:, c] = sums / np.where(sums[:, -1:] > 0, sums[:, -1:], 1.0)
            held += piece_sizes(cuts[:, c], size)
        return cuts, valid

    def _shards(self, pool: Pool, cells: dict[int, list[np.ndarray]], cuts: np.ndarray) -> list[Shard]:
        """Cut the shuffled samples of each class at the cumulated shares, float64 [classes, clients]."""
        clients = cuts.shape[1]
        parts = []
        for origin in (TRAIN, VAL, TEST):
            pieces: list[list[np.ndarray]] = [[] for _ in range(clients)]
            for indices, cut in zip(cells[origin], cuts):
                for j, piece in enumerate(np.split(indices, (cut * len(indices)).astype(np.int64)[:-1])):
                    pieces[j].append(piece)
            parts.append([joined(p) for p in pieces])
        return [make_shard(pool, *pieces) for pieces in zip(*parts)]


class Pathological(Partition):
    """Label skew: every client holds a few classes only, in unequal amounts.

    Each of the C classes has s N / C owners, whose shares are drawn from U(0.4, 0.6) and normalised. Clients
    in order pick s classes, always a random one of those with the most shares left (McMahan et al., AISTATS
    2017, brought the setting up; the shares follow Shamsian et al., ICML 2021). The shares are the same in
    all parts.
    """

    def __init__(
        self,
        classes_per_client: int = 2,
        distinct: bool = True,
        split: Literal["published", "pooled", "fedgh"] = "published",
    ) -> None:
        """Check the settings.

        Args:
            classes_per_client: number of classes of every client (s), at least 1.
            distinct: whether a client must not pick a class twice (it would then hold two shares of it).
                Without effect where s divides the number of classes: no class is picked twice then.
            split: where validation and test parts come from. "published": from the data set's own division.
                "pooled": all samples together are divided, and then of every client's samples of a class a
                tenth, at least one, is for validation and as many for testing (8:1:1, Tang et al., IJCAI
                2024). "fedgh": a random fifth of the training samples is for validation (as in the code of
                Yi et al., MM 2023).

        Raises:
            UserError: if a value is out of its range.
        """
        if classes_per_client < 1:
            raise UserError(f"Pathological: classes_per_client must be at least 1, not {classes_per_client}")
        self.classes_per_client = classes_per_client
        self.distinct = distinct
        self.split = split

    def assign(self, pool: Pool, clients: int, rng: np.random.Generator) -> list[Shard]:
        """Pick classes and cut them."""
        picks = self._pick(pool.classes, clients, rng)
        if self.split == "pooled":
            pieces = _cut(by_class(pool, np.flatnonzero(pool.origin != UNUSED), rng), picks)
            return [_tenths(pool, client, np.concatenate(mine)) for client, mine in enumerate(pieces)]
        train, val, test = (pool.indices(origin) for origin in (TRAIN, VAL, TEST))
        if self.split == "fedgh":
            train = rng.permutation(train)
            val, train = np.concatenate([val, train[: len(train) // 5]]), train[len(train) // 5 :]
        parts = [_cut(by_class(pool, indices, rng), picks) for indices in (train, val, test)]
        return [make_shard(pool, *map(joined, pieces)) for pieces in zip(*parts)]

    def _pick(self, classes: int, clients: int, rng: np.random.Generator) -> list[list[tuple[int, float]]]:
        """Return the (class, share) pairs of every client."""
        s = self.classes_per_client
        if s > classes:
            raise UserError(
                f"Pathological: classes_per_client is {s}, but the data set has only {classes} classes"
            )
        if s * clients % classes:
            raise UserError(
                f"Pathological: {s} classes for each of {clients} clients cannot be divided evenly among "
                f"{classes} classes ({s} x {clients} / {classes} must be a whole number): use "
                + _nearest(s, clients, classes)
            )
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


def _nearest(s: int, clients: int, classes: int) -> str:
    """Name the settings nearest to ``s`` classes for each of ``clients`` that divide ``classes`` evenly."""
    step = classes // math.gcd(s, classes)
    near = sorted({max(step, clients // step * step), (clients // step + 1) * step})
    advice = f"a multiple of {step} clients (nearest: {' or '.join(map(str, near))})"
    step = classes // math.gcd(clients, classes)
    held = [k for k in (s // step * step, (s // step + 1) * step) if 1 <= k <= classes]
    return advice + (f", or classes_per_client={' or '.join(map(str, held))}" if held else "")


def _cut(cells: list[np.ndarray], picks: list[list[tuple[int, float]]]) -> list[list[np.ndarray]]:
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


def _tenths(pool: Pool, client: int, indices: np.ndarray) -> Shard:
    """Divide a client's samples of each class 8:1:1, in their order."""
    labels = pool.labels[indices]
    parts: tuple[list[np.ndarray], ...] = ([], [], [])
    for c in np.unique(labels):
        mine = indices[labels == c]
        tenth = max(1, round(len(mine) / 10))
        if len(mine) <= 2 * tenth:
            raise UserError(
                f"Pathological(split=pooled): client {client} gets {len(mine)} samples of class "
                f"{pool.class_names[c]}, too few for training, validation and testing (3 are needed): use "
                "fewer clients or fewer classes_per_client"
            )
        for part, piece in zip(parts, (mine[2 * tenth :], mine[:tenth], mine[tenth : 2 * tenth])):
            part.append(piece)
    return make_shard(pool, *map(joined, parts))


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


def piece_sizes(cuts: np.ndarray, size: int | np.ndarray) -> np.ndarray:
    """Return how many samples each client gets, for cumulated shares [..., clients]."""
    return np.diff((cuts * size).astype(np.int64), axis=-1, prepend=0)


def joined(pieces: list[np.ndarray]) -> np.ndarray:
    """Return all indices of the pieces, ascending."""
    return np.sort(np.concatenate([np.zeros(0, np.int64), *pieces]))


def make_shard(pool: Pool, train: np.ndarray, val: np.ndarray, test: np.ndarray) -> Shard:
    """Make a shard, with its domain where it has only one."""
    domains = np.unique(pool.domains[np.concatenate([train, val, test])])
    return Shard(train, val, test, domain=int(domains[0]) if len(domains) == 1 else None)
