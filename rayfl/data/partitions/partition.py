"""What a partition is: how the samples of a dataset are dealt to clients.

A partition is deterministic in the generator it is given, never gives an index twice, and ends after a
bounded number of tries. It gives training samples (origin TRAIN) to training splits, validation samples (VAL)
to validation splits and test samples (TEST) to test splits, unless it says otherwise.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rayfl.data.dataset import ClientData, Dataset
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
