"""Who runs where: how many actors fit on a cluster, and which groups an actor trains in a round.

Placement decides how long a round takes, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from rayfl.engine.base import ClientGroup
from rayfl.errors import Shortage
from rayfl.system.text import counted

ACTOR_MEMORY = 420e6
"""Bytes of an actor before it holds any client: Python, torch and its libraries; 390e6 to 420e6 measured."""


class RayRequest(NamedTuple):
    """What settings ask of Ray, see ``rayfl.engine.Ray``; numbers are None where they are ``auto``."""

    actors: int | None
    clients_per_actor: int | None
    cpus_per_actor: float | None
    gpus_per_actor: float
    wait: float | Literal["auto"]
    recoveries: int
    address: str | None
    dashboard: bool

    @property
    def is_auto(self) -> bool:
        """Whether the number of actors follows from the cluster."""
        return self.actors is None and self.clients_per_actor is None


@dataclass(frozen=True)
class Reservation:
    """A request to the cluster: a number of actors, each with CPUs, GPUs and bytes of memory."""

    actors: int
    cpus: float
    gpus: float
    memory: float = field(default=0.0, compare=False)

    def __str__(self) -> str:
        return f"{counted(self.actors, 'actor')} with {resources_text(self.cpus, self.gpus)} each"

    @property
    def bundle(self) -> dict[str, float]:
        """What an actor reserves, under Ray's names; it cannot be nothing."""
        shares = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory}
        return {name: share for name, share in shares.items() if share} or {"CPU": 0.001}

    @property
    def bundles(self) -> list[dict[str, float]]:
        """What a federation reserves: a bundle for each actor, and last the server's, of memory alone."""
        return [self.bundle] * self.actors + [{"memory": self.memory or 1.0}]


def plan_reservation(
    nodes: Sequence[Mapping[str, float]],
    clients: int,
    actors: int | None,
    clients_per_actor: int | None,
    cpus_per_actor: float | None,
    gpus_per_actor: float,
    allow_fewer: bool = False,
    may_grow: bool = False,
) -> Reservation:
    """Work out the number of actors, and check that they fit.

    Args:
        nodes: the resources of every node: ``CPU``, ``GPU``, ``memory`` (bytes).
        clients: the population.
        actors: as asked for; None for one per CPU, or per share of a GPU, as far as the memory goes.
        clients_per_actor: as asked for; None for as many as it takes.
        cpus_per_actor: as asked for; None for one, or less where there are more actors than CPUs.
        gpus_per_actor: as asked for.
        allow_fewer: whether fewer actors will do if no more fit.
        may_grow: whether more hosts may join, so that nothing is refused.

    Raises:
        UserError: they do not fit, or with ``allow_fewer`` not even one; the message has the arithmetic.
    """
    if clients_per_actor is not None:
        count = math.ceil(clients / clients_per_actor)
    elif actors is not None:
        count = actors
    elif gpus_per_actor:
        share = cpus_per_actor or 0.0
        count = max(1, int(sum(_actors_that_fit(node, share, gpus_per_actor) for node in nodes)))
    else:
        count = max(1, sum(int(node.get("CPU", 0.0) / (cpus_per_actor or 1.0)) for node in nodes))
    if actors is None and clients_per_actor is None and (room := _total_memory(nodes) // ACTOR_MEMORY):
        count = int(min(count, room))
    count = min(count, clients) if actors is None else count
    if allow_fewer:
        least = 0.001 if cpus_per_actor is None else cpus_per_actor
        room = sum(_actors_that_fit(node, least, gpus_per_actor) for node in nodes)
        count = max(1, int(min(count, room)))
    share = _cpu_share(nodes, count, gpus_per_actor) if cpus_per_actor is None else cpus_per_actor
    if may_grow:  # without memory, which the autoscaler does not know for all kinds of hosts
        return Reservation(count, 1.0 if cpus_per_actor is None else share, gpus_per_actor)
    # Two federations on one cluster see each other's memory; where Ray has less, it is not reserved.
    held = [int(node.get("memory", 0.0) // ACTOR_MEMORY) for node in nodes]
    fits = sum(
        min(n, _actors_that_fit(node, share, gpus_per_actor)) for n, node in zip(held, nodes, strict=True)
    )
    memory = ACTOR_MEMORY if fits >= count and sum(held) > count else 0.0
    wanted = Reservation(count, share, gpus_per_actor, memory)
    _refuse_too_large(wanted, nodes)
    if not allow_fewer and (actors is not None or clients_per_actor is not None):
        _refuse_without_memory(wanted, nodes, clients_per_actor)
    return wanted


def _cpu_share(nodes: Sequence[Mapping[str, float]], actors: int, gpus: float) -> float:
    """Return the most CPUs, at most 1 and in thousandths, with which every one of the actors finds room."""
    for share in (k / 1000 for k in range(1000, 0, -1)):
        if sum(_actors_that_fit(node, share, gpus) for node in nodes) >= actors:
            return share
    return min(
        1.0, sum(node.get("CPU", 0.0) for node in nodes) / actors
    )  # they do not fit, whatever the share


def _actors_that_fit(node: Mapping[str, float], cpus: float, gpus: float) -> float:
    """Return how many actors a node has room for; infinity if they reserve nothing."""
    by_cpu = math.floor(node.get("CPU", 0.0) / cpus + 1e-9) if cpus else math.inf
    if not gpus:
        return by_cpu
    # Ray gives a share from one GPU, so shares do not add up across GPUs.
    return min(by_cpu, math.floor(node.get("GPU", 0.0)) * math.floor(1 / gpus + 1e-9))


def bundles_that_fit(free: Mapping[str, float], bundle: Mapping[str, float]) -> int:
    """Return how many bundles would fit if all free resources were on one node."""
    return int(min(free.get(name, 0.0) / share + 1e-9 for name, share in bundle.items()))


def resources_text(cpus: float, gpus: float) -> str:
    """Return numbers of CPUs and GPUs for people."""
    return f"{counted(cpus, 'CPU')} and {counted(gpus, 'GPU')}"


def _refuse_too_large(wanted: Reservation, nodes: Sequence[Mapping[str, float]]) -> None:
    fitting = [_actors_that_fit(node, wanted.cpus, wanted.gpus) for node in nodes]
    if sum(fitting) >= wanted.actors:
        return
    found = "; ".join(
        f"node {k + 1}: {resources_text(node.get('CPU', 0), node.get('GPU', 0))}, room for {room}"
        for k, (node, room) in enumerate(zip(nodes, fitting, strict=True))
    )
    raise Shortage(
        "engine.actors",
        f": there is room for {sum(fitting)} of {wanted}, which take "
        f"{resources_text(wanted.actors * wanted.cpus, wanted.actors * wanted.gpus)} in all ({found})",
        "Lower engine.actors, engine.cpus_per_actor or engine.gpus_per_actor, raise "
        "engine.clients_per_actor, or use a larger cluster",
    )


def _total_memory(nodes: Sequence[Mapping[str, float]]) -> float:
    """Return the memory of all nodes in bytes; 0: unknown."""
    return sum(node.get("memory", 0.0) for node in nodes)


def _refuse_without_memory(
    wanted: Reservation, nodes: Sequence[Mapping[str, float]], clients_per_actor: int | None
) -> None:
    memory = _total_memory(nodes)
    if not memory or wanted.actors * ACTOR_MEMORY <= memory:
        return
    setting = "engine.actors" if clients_per_actor is None else "engine.clients_per_actor"
    raise Shortage(
        setting,
        f": {wanted.actors} actors take about {ACTOR_MEMORY / 1e9:.2f} GB each, "
        f"{wanted.actors * ACTOR_MEMORY / 1e9:.1f} GB in all; the cluster has {memory / 1e9:.1f} GB, room "
        f"for {int(memory // ACTOR_MEMORY)} of them. Leave it at auto: an actor works for any number of "
        "clients",
    )


def place_groups(
    groups: Sequence[ClientGroup],
    cost: Callable[[ClientGroup], float],
    home: Callable[[ClientGroup], int | None],
    actors: int,
) -> list[list[ClientGroup]]:
    """Divide a round's groups among actors: even work first, then as few moves as that allows.

    Longest groups first; each stays at home unless that would take the actor beyond its fair share while
    another is free.

    Args:
        groups: the cohort.
        cost: seconds, or any measure of work, per group.
        home: the actor that holds a group's state, if any does.
        actors: how many there are.
    """
    costs = {group: max(cost(group), 1e-9) for group in groups}
    fair = sum(costs.values()) / actors
    loads = [0.0] * actors
    placed: list[list[ClientGroup]] = [[] for _ in range(actors)]
    for group in sorted(groups, key=lambda b: (-costs[b], b)):
        freest = min(range(actors), key=loads.__getitem__)
        at_home = home(group)
        limit = max(fair, loads[freest] + costs[group]) * (1 + 1e-6)
        stays = at_home is not None and loads[at_home] + costs[group] <= limit
        actor = at_home if stays and at_home is not None else freest
        placed[actor].append(group)
        loads[actor] += costs[group]
    return [sorted(mine) for mine in placed]


class Pace:
    """How long clients take to train, as measured; the newest measurement counts half.

    Args:
        samples: int64 [clients], training samples of every client.
    """

    def __init__(self, samples: np.ndarray) -> None:
        self._samples = samples
        self._speed = np.full(len(samples), np.nan)  # seconds per training sample, of those measured
        self._sum, self._measured = 0.0, 0

    def cost(self, group: ClientGroup) -> float:
        """Return the seconds that a group will take; before the first measurement, its samples."""
        mean = self._sum / self._measured if self._measured else 1.0
        clients = list(group)
        speeds = self._speed[clients]
        return float(np.where(np.isnan(speeds), mean, speeds) @ self._samples[clients])

    def seconds(self, groups: Iterable[ClientGroup]) -> float | None:
        """Return the seconds that groups will take one after another; None before the first measurement."""
        return sum(map(self.cost, groups)) if self._measured else None

    def learn(self, seconds: Mapping[ClientGroup, float]) -> None:
        """Add measurements of how long groups have taken."""
        for group, time in seconds.items():
            clients = list(group)
            speed = time / max(1, int(self._samples[clients].sum()))
            before = self._speed[clients]
            new = np.isnan(before)
            self._speed[clients] = (np.where(new, speed, before) + speed) / 2
            self._sum += float(self._speed[clients].sum() - before[~new].sum())
            self._measured += int(new.sum())
