"""Clients that attack the training."""

from __future__ import annotations

from abc import ABC
from dataclasses import replace
from functools import cache
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch

from rayfl.data import FederatedData
from rayfl.data.task import Classes
from rayfl.errors import BadValue, Conflict
from rayfl.randomness import generator
from rayfl.settings import Settings, above, at_most
from rayfl.transforms.base import Change


class Attack(Settings, ABC, place="attack"):
    """Base of all attacks. Who attacks is drawn by the run's seed, and stays; or it is a list.

    Attackers train as everybody does, and their own state is what it is. BatchNorm statistics, which have no
    opposite and no deviation, are sent as the training has them.
    """

    at: ClassVar[Literal["data", "change", "cohort"]]
    """Where it attacks. ``data``: attackers train with others. ``change``: they send another change of the
    weights, before transforms. ``cohort``: what they send is made on the server of what the honest clients
    have sent, as if they had known it.
    """

    share: Annotated[float, above(0), at_most(1)] = 0.2
    """Share of the clients that attack, rounded down."""
    clients: list[int] | None = None
    """Who attacks, in the place of a share."""

    def __post_init__(self) -> None:
        if self.clients is not None and (not self.clients or min(self.clients) < 0):
            raise BadValue("attack.clients", f"is {self.clients}", "list numbers of clients, from 0")

    def attackers(self, seed: int, population: int) -> frozenset[int]:
        """Return who attacks among so many clients.

        Raises:
            UserError: nobody does, or a client that there is not.
        """
        if self.clients is not None:
            if max(self.clients) >= population:
                problem = f"has {max(self.clients)}: those that train are 0 to {population - 1}"
                raise Conflict("attack.clients", problem)
            return frozenset(self.clients)
        count = int(self.share * population + 1e-9)
        if not count:
            raise Conflict("attack.share", f"is {self.share:g}: of {population} clients that is none")
        return _draw_attackers(seed, population, count)

    def poison(self, data: FederatedData, seed: int) -> FederatedData:
        """Return the data with which attackers train."""
        return data

    def change(self, change: Change) -> Change:
        """Return what an attacker sends in the place of its change."""
        return change

    def from_cohort(self, mean: Change, deviation: Change) -> Change:
        """Return what all attackers send, from mean and deviation of what the honest clients have sent."""
        return mean


class LabelFlip(Attack):
    """Attackers train with the label C - 1 - y in the place of y (Tolpegin et al., ESORICS 2020)."""

    at = "data"

    def poison(self, data: FederatedData, seed: int) -> FederatedData:
        """Return the data with flipped labels where attackers train, and nobody else has anything.

        Raises:
            UserError: what is learned is no classes, or others have samples of an attacker, too.
        """
        dataset, attackers = data.dataset, self.attackers(seed, data.seen)
        if not isinstance(dataset.task, Classes):
            raise Conflict("attack", "is LabelFlip, and the data have no classes", "choose another")
        flipped, kept = np.zeros((2, len(dataset)), bool)
        for i in range(len(data)):
            (flipped if i in attackers else kept)[data.held.split(i, "train")] = True
            kept[data.held.split(i, "val")] = kept[data.held.split(i, "test")] = True
        if (flipped & kept).any():
            problem = "is LabelFlip, and others have some of the samples with which attackers train"
            raise Conflict("attack", problem, "choose another partition, or another attack")
        labels = np.where(flipped, dataset.classes - 1 - dataset.labels, dataset.labels)
        return replace(data, dataset=replace(dataset, labels=labels))


class SignFlip(Attack):
    """Attackers send the opposite of their change (Li et al., AAAI 2019)."""

    at = "change"

    scale: Annotated[float, above(0)] = 1.0
    """Factor on the flipped change."""

    def change(self, change: Change) -> Change:
        """Return the opposite."""
        return {key: each.merge(-self.scale * each.trainable()) for key, each in change.items()}


class Boost(Attack):
    """Attackers send a multiple of their change (Bhagoji et al., ICML 2019)."""

    at = "change"

    scale: Annotated[float, above(0)] = 10.0
    """The factor."""

    def change(self, change: Change) -> Change:
        """Return the multiple."""
        return {key: each.merge(self.scale * each.trainable()) for key, each in change.items()}


class ALIE(Attack):
    """*A little is enough* (Baruch et al., NeurIPS 2019): all attackers send mean + z deviations."""

    at = "cohort"

    z: float = 1.5
    """How many deviations off the mean, entry by entry."""

    def from_cohort(self, mean: Change, deviation: Change) -> Change:
        """Return what is off the mean."""
        return {key: each.merge((each + self.z * deviation[key]).trainable()) for key, each in mean.items()}


class IPM(Attack):
    """*Inner product manipulation* (Xie et al., UAI 2020): attackers send a multiple of minus the mean."""

    at = "cohort"

    scale: Annotated[float, above(0)] = 2.0
    """The factor, epsilon in the paper."""

    def from_cohort(self, mean: Change, deviation: Change) -> Change:
        """Return the opposite of the mean."""
        return {key: each.merge(-self.scale * each.trainable()) for key, each in mean.items()}


@cache
def _draw_attackers(seed: int, population: int, count: int) -> frozenset[int]:
    order = torch.randperm(population, generator=generator(seed, "attackers"))
    return frozenset(order[:count].tolist())
