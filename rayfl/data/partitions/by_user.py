"""The natural division: whoever a sample comes from."""

from typing import Annotated

import numpy as np

from rayfl.data.dataset import TRAIN, ClientData, Dataset
from rayfl.data.partitions.partition import Partition, divide_parts
from rayfl.errors import Conflict
from rayfl.settings import at_least
from rayfl.system.text import warn


class ByUser(Partition):
    """Every client has the samples of one user, or of several: writers, speakers, modules, hospitals.

    For data sets that say which user every sample is of. By default every user is a client, client i user i.
    With fewer clients, whole users in random order are given to the clients in turn, so that numbers of users
    differ by at most one. Users with fewer than ``min_samples`` training samples are left out, with a
    warning. A client's training, validation and test samples are all those of its users.
    """

    min_samples: Annotated[int, at_least(1)] = 1
    """Least number of training samples of a user."""

    def default_clients(self, dataset: Dataset) -> int:
        """Return the number of users that are used."""
        counts = self._counts(dataset)
        return max(1, int((counts >= self.min_samples).sum()))

    def _counts(self, dataset: Dataset) -> np.ndarray:
        """Return every user's number of training samples."""
        if dataset.users is None:
            problem = ": ByUser: the data set does not say which user a sample is of"
            raise Conflict("data.partition", problem, "use another, such as IID")
        return np.bincount(dataset.users[dataset.origin == TRAIN], minlength=len(dataset.user_names))

    def assign(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> list[ClientData]:
        """Deal users, then give every client what they have."""
        counts = self._counts(dataset)
        used = np.flatnonzero(counts >= self.min_samples)
        if len(used) < len(counts):
            few = f"{len(counts) - len(used)} of {len(counts)} users have fewer than {self.min_samples}"
            warn(f"ByUser: {few} training samples, and are left out")
        if clients > len(used):
            there = f"{len(used)} users with at least {self.min_samples} training samples"
            raise Conflict("clients", f"is {clients}, more than {there}", "use fewer, or less min_samples")
        order = used if clients == len(used) else rng.permutation(used)
        client_of = np.full(len(counts), clients)  # of users that are left out
        assert dataset.users is not None
        client_of[order] = np.arange(len(order)) % clients
        client = client_of[dataset.users]  # of every sample

        def cut(indices: np.ndarray) -> list[np.ndarray]:
            mine = indices[np.argsort(client[indices], kind="stable")]
            return np.split(mine, np.searchsorted(client[mine], np.arange(1, clients + 1)))[:clients]

        return divide_parts(dataset, cut)
