"""The resources of each trial of a sweep, when several run on one cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rayfl.engine.base import Engine
from rayfl.engine.placement import Reservation, reservation
from rayfl.engine.ray_engine import Ray
from rayfl.errors import UserError


@dataclass(frozen=True)
class Share:
    """The resources of a trial.

    Attributes:
        bundles: what it reserves, a bundle for each actor; those of a federation without actors run in the
            trial's own process, which has the one bundle.
        engine: settings of its engine that follow from it.
        at_once: trials at once; None for as many as fit.
    """

    bundles: list[dict[str, float]]
    engine: dict[str, Any]
    at_once: int | None

    def check(self, nodes: Sequence[Mapping[str, float]]) -> None:
        """Refuse if a federation does not fit on these nodes, even alone."""
        bundle = self.bundles[0]
        try:
            reservation(nodes, 1, len(self.bundles), None, bundle.get("CPU", 0.0), bundle.get("GPU", 0.0))
        except UserError as error:
            raise error.within("no trial can be placed on the hosts that are there") from error


def share(
    engine: Engine, clients: int, nodes: Sequence[Mapping[str, float]], trials: int, at_once: int | None,
    comes: bool = False,
) -> Share:  # fmt: skip
    """Work out the resources of a trial: with ``actors: auto``, trials that run at once share the cluster.

    Args:
        engine: of the base, not resolved.
        clients: the population.
        nodes: the resources of every node.
        trials: how many there are.
        at_once: as asked for; None for as many as the cluster holds.
        comes: whether more hosts may join, so that nothing is refused; and if ``at_once``
            is None, trials for which there is no room yet ask for them.
    """
    try:
        if not isinstance(engine, Ray):
            gpus = int(sum(node.get("GPU", 0.0) for node in nodes))
            uses = engine.device == "cuda" or (engine.device == "auto" and gpus > 0)
            part = 1 / math.ceil((at_once or 1) / max(1, gpus)) if uses else 0.0  # several share the GPUs
            wanted = Reservation(1, float(engine.threads), part)
            if not comes:
                reservation(nodes, 1, 1, None, wanted.cpus, wanted.gpus)
            return Share([wanted.bundle], {"engine.device": "cuda" if wanted.gpus else "cpu"}, at_once)
        resolved = engine.resolve()
        actors, hosted, cpus, *_ = asked = engine.request
        if asked.is_auto:
            room = reservation(nodes, 10**6, None, None, cpus, engine.gpus_per_actor, comes=comes).actors
            together = min(trials, at_once or room)
            actors = max(1, min(clients, room // together))
            at_once = at_once if comes else together
        wanted = reservation(nodes, clients, actors, hosted, cpus, engine.gpus_per_actor, comes=comes)
    except UserError as error:
        raise error.within("a trial can never be placed on this cluster") from error
    settings = {
        "engine.device": resolved.device,
        "engine.actors": wanted.actors,
        "engine.clients_per_actor": "auto",
        "engine.cpus_per_actor": wanted.cpus,
    }
    return Share([wanted.bundle] * wanted.actors, settings, at_once)
