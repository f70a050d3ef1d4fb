"""Label skew on top of feature skew: a domain per client, and of it one uneven part."""

from typing import Annotated

import numpy as np

from rayfl.data.dataset import TEST, TRAIN, VAL, ClientData, Dataset
from rayfl.data.partitions.dirichlet import cumulate_shares, piece_sizes
from rayfl.data.partitions.partition import Partition, by_class, clients_of_domains, deal, join_indices
from rayfl.errors import BadData, BadValue, Conflict, Unknown
from rayfl.settings import above, at_least

_BATCH = 10_000  # divisions that are drawn together; a fixed number, because it decides the random numbers
_BATCHES = 200


class DomainDirichlet(Partition):
    """Label and feature skew: each domain is cut into uneven parts, and a client gets one of them.

    Client i has domain i mod M of M. The training samples of each class of a domain are divided among
    ``parts`` parts by shares from a symmetric Dirichlet distribution, where parts that hold an equal share of
    the domain take no more classes; the division is redrawn, at most two million times, until every part has
    ``min_cell`` samples of every class. The first client of a domain gets the part that ``chosen`` names,
    further ones the parts that follow. Its test samples are those of its domain, of which as many are used as
    have the class proportions of its part: int(r n_c) of class c, where n_c are the training samples and r is
    the least ratio of test to training samples over classes (Cai et al., NeurIPS 2023, appendix).
    """

    parts: Annotated[int, at_least(1)] = 3
    """Number of parts of each domain."""
    alpha: Annotated[float, above(0)] = 0.3
    """Concentration; the smaller, the more uneven."""
    chosen: dict[str, int] | None = None
    """Name of a domain -> number of the part, from 0, that its (first) client gets; 0 for domains that are
    not named.
    """
    thin: dict[str, Annotated[int, at_least(1)]] | None = None
    """Name of a domain -> a number t; of the client's n_c training samples of each class only int(n_c / t)
    are used. The test samples keep the proportions of the part before that.
    """
    whole_test: list[str] | None = None
    """Names of domains whose test samples are all used, whatever their proportions."""
    min_cell: Annotated[int, at_least(1)] = 2
    """Least number of training samples of every class in every part."""

    def __post_init__(self) -> None:
        for domain, part in (self.chosen or {}).items():
            if not 0 <= part < self.parts:
                problem = f"names part {part} of {domain}, and parts are 0 to {self.parts - 1}"
                raise BadValue("data.partition.chosen", problem)

    @property
    def decides_test(self) -> bool:
        """Whether ``whole_test`` says what is for testing."""
        return bool(self.whole_test)

    def assign(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> list[ClientData]:
        """Cut the domains one after the other."""
        for option in ("chosen", "thin", "whole_test"):
            for name in getattr(self, option) or ():
                if name not in dataset.domain_names:
                    known = ", ".join(dataset.domain_names)
                    problem = f"names the domain {name!r}, and the data set has only {known}"
                    raise Unknown(f"data.partition.{option}", problem)
        most = len(dataset.domain_names) * self.parts
        if clients > most:
            problem = f"is {clients}, and the domains have {most} parts"
            raise Conflict("clients", problem, "use fewer clients or more parts")
        clients_data: dict[int, ClientData] = {}
        used = clients_of_domains(self, dataset, clients)
        for (domain, mine), own in zip(used, rng.spawn(len(used))):
            clients_data |= self._domain(dataset, domain, mine, own)
        return [clients_data[client] for client in range(clients)]

    def _domain(
        self, dataset: Dataset, domain: int, clients: np.ndarray, rng: np.random.Generator
    ) -> dict[int, ClientData]:
        """Return the data of one domain's clients."""
        name = dataset.domain_names[domain]
        inside = {origin: dataset.indices(origin, domain) for origin in (TRAIN, VAL, TEST)}
        cells = by_class(dataset, inside[TRAIN], rng)
        sizes = np.array([len(cell) for cell in cells])
        cuts = self._search(name, sizes, rng)
        ends = (cuts * sizes[:, None]).astype(np.int64)
        order = rng.permutation(len(clients))
        held_out = {o: deal(dataset, inside[o], order, rng) for o in (VAL, TEST)}
        clients_data = {}
        for j, client in enumerate(clients):
            part = ((self.chosen or {}).get(name, 0) + j) % self.parts
            own = [np.split(cell, end[:-1])[part] for cell, end in zip(cells, ends)]
            counts = np.array([len(piece) for piece in own])
            train = join_indices([piece[: len(piece) // (self.thin or {}).get(name, 1)] for piece in own])
            val, test = held_out[VAL][j], held_out[TEST][j]
            if name not in (self.whole_test or ()):
                val = _in_proportion(dataset, val, counts, f"validation samples of {name}", rng)
                test = _in_proportion(dataset, test, counts, f"test samples of {name}", rng)
            clients_data[int(client)] = ClientData(train, val, test, domain)
        return clients_data

    def _search(self, name: str, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return cumulated shares, float64 [classes, parts], that give every part enough of every class."""
        held = sizes[sizes > 0]
        if len(held) and held.min() >= self.parts * self.min_cell:
            for _ in range(_BATCHES):
                found = self._draw(sizes, rng)
                if len(found):
                    return found[0]
        wanted = f"{self.parts} parts with {self.min_cell} training samples of every class"
        tries = f"{_BATCH * _BATCHES:,} tries"
        problem = f": DomainDirichlet: domain {name} cannot be divided into {wanted} ({tries})"
        raise BadData("data.partition", problem, "use a larger alpha, fewer parts or a smaller min_cell")

    def _draw(self, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw `_BATCH` divisions class by class, and return those that have enough in every cell.

        Divisions that fail are left out of the classes that follow; each of the others is as probable as if
        all had been drawn to their end.

        Args:
            sizes: int64 [classes], training samples of each class.
            rng: source of randomness.

        Returns:
            Cumulated shares, float64 [good divisions, classes, parts].
        """
        cuts = np.empty((_BATCH, len(sizes), self.parts))
        held = np.zeros((_BATCH, self.parts), np.int64)
        for c, size in enumerate(sizes):
            shares = rng.dirichlet(np.full(self.parts, self.alpha), len(held))
            cuts[:, c] = cumulate_shares(shares, held, sizes.sum())[0]
            cell = piece_sizes(cuts[:, c], size)
            held += cell
            if size:
                good = cell.min(axis=1) >= self.min_cell
                cuts, held = cuts[good], held[good]
        return cuts


def _in_proportion(
    dataset: Dataset, indices: np.ndarray, counts: np.ndarray, what: str, rng: np.random.Generator
) -> np.ndarray:
    """Return the largest random subset with the class proportions of ``counts``, int64 [classes], ascending.

    Where ``indices`` is empty, so is the subset.

    Args:
        what: the samples in words, for the error.

    Raises:
        BadData: a class that has a count has no samples among ``indices``.
    """
    if not len(indices):
        return indices
    cells = by_class(dataset, indices, rng)
    held = np.flatnonzero(counts)
    scarcest = held[np.argmin([len(cells[c]) / counts[c] for c in held])]
    if not len(cells[scarcest]):
        problem = f": DomainDirichlet: there are no {what} of the class {dataset.class_names[scarcest]}"
        raise BadData("data.partition", problem, "use fewer clients or name the domain in whole_test")
    keep = len(cells[scarcest]) * counts // counts[scarcest]  # int(r n_c), without rounding errors
    return join_indices([cell[:n] for cell, n in zip(cells, keep)])
