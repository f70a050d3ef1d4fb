"""The Ray engine's settings, and what federations get that share a cluster. Runs import Ray itself."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import torch

from rayfl.engine.base import Engine, EngineSession
from rayfl.engine.placement import RayRequest, Reservation, plan_reservation
from rayfl.errors import BadValue, Conflict, Missing, error_context
from rayfl.settings import at_least
from rayfl.system.text import counted, warn


@contextmanager
def _missing_ray_as_error() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise Missing(
            "engine",
            f"is Ray, and the package ray cannot be imported ({error})",
            "install it with `pip install 'ray[default,tune]'`, or use --engine Inline",
        ) from error


class Ray(Engine):
    """Run clients on Ray actors that keep their personal state in memory, and the server on another actor."""

    actors: Annotated[int, at_least(1)] | Literal["auto"] = "auto"
    """Number of client actors; ``auto`` is one per CPU, or one per ``gpus_per_actor`` of a GPU, but not more
    than the memory holds and than there are groups of clients in a round. Where others use the cluster, it is
    what is free.
    """
    clients_per_actor: Annotated[int, at_least(1)] | Literal["auto"] = "auto"
    """Clients that an actor works for; ``auto`` spreads them over the actors, 1 gives one actor per client
    (about 0.4 GB each). Not together with ``actors``.
    """
    cpus_per_actor: Annotated[float, at_least(0)] | Literal["auto"] = "auto"
    """CPUs that an actor reserves; ``auto`` is 1, or less where there are more actors and no host comes."""
    gpus_per_actor: Annotated[float, at_least(0)] = 0.0
    """Share of a GPU that an actor reserves, at most 1; an actor can use that share of its memory only."""
    wait: Annotated[float, at_least(0)] | Literal["auto"] = "auto"
    """Seconds to wait for hosts or resources that are not there yet. ``auto`` is 600 on a cluster that Ray
    can enlarge, and 0 elsewhere: what does not fit is refused at once.
    """
    address: str | None = None
    """A running cluster to join: ``auto`` for that of ``RAY_ADDRESS`` or of the last ``ray start`` on this
    host, or an address as ``ray.init`` takes it. By default the run starts a local cluster of its own.
    """
    dashboard: bool = False
    """Whether a local cluster of the run's own has Ray's dashboard, on localhost, with its metrics."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """``cpu``, ``cuda`` (which needs ``gpus_per_actor``), or ``auto``: CUDA where ``gpus_per_actor`` is above
    0, wherever the actors are.
    """
    recoveries: Annotated[int, at_least(0), "0: stop at the first death"] = 5
    """How often a run goes on after processes have died, without reaching another checkpoint in between."""

    def __post_init__(self) -> None:
        if self.gpus_per_actor > 1:
            raise BadValue(
                "engine.gpus_per_actor",
                f"is {self.gpus_per_actor:g}: an actor trains on one GPU and would leave the others idle, so "
                "it may be at most 1; more actors use more GPUs",
            )
        if self.actors != "auto" and self.clients_per_actor != "auto":
            raise Conflict("engine.actors", "and engine.clients_per_actor exclude each other", "give one")

    def resolve(self) -> Self:
        """Replace every ``auto``, and check that the cluster answers; see ``Engine.resolve``."""
        if self.device == "cuda" and not self.gpus_per_actor:
            raise Conflict(
                "engine.device",
                "is cuda, and engine.gpus_per_actor is 0: say how much of a GPU an actor gets, such as 0.25",
            )
        self.check_address()
        return super().resolve()

    def with_stack(self, cohort: int, clients: int) -> Self:
        """Replace ``stack: auto``, and warn of actors without work."""
        here = super().with_stack(cohort, clients)
        work = len(here.groups(range(cohort)))
        actors, hosted, *_ = self.request
        asked = actors if hosted is None else math.ceil(clients / hosted)
        if asked is not None and asked > work:
            stacks = f" of up to {here.stack} (engine.stack)" if self.execution == "stacked" else ""
            warn(
                f"{counted(asked, 'actor')} are asked for, and a round's {counted(cohort, 'client')} train "
                f"in {counted(work, 'group')}{stacks}: {asked - work} will have no client to train"
            )
        return here

    def check_address(self) -> None:
        """Refuse an address where no cluster answers."""
        if self.address is not None:
            with _missing_ray_as_error():
                from rayfl.engine.cluster import check_address
            check_address(self.address)

    @property
    def request(self) -> RayRequest:
        """The settings for Ray."""
        return RayRequest(
            None if self.actors == "auto" else self.actors,
            None if self.clients_per_actor == "auto" else self.clients_per_actor,
            None if self.cpus_per_actor == "auto" else self.cpus_per_actor,
            self.gpus_per_actor,
            self.wait,
            self.recoveries,
            self.address,
            self.dashboard,
        )

    def _uses_cuda(self) -> bool:
        return self.gpus_per_actor > 0

    @contextmanager
    def start_in_background(
        self, run: str, quiet: bool = True, in_group: bool = False
    ) -> Iterator[EngineSession]:
        """Start or join the cluster in the background, which takes seconds. Warn of an unused GPU."""
        with _missing_ray_as_error():
            from rayfl.engine.ray_workers import RayEngineSession
        if not (self.gpus_per_actor or in_group) and self.device == "auto" and torch.cuda.is_available():
            warn(
                "this machine has a GPU, and clients train on its CPUs, because engine.gpus_per_actor is 0: "
                "--engine.gpus_per_actor 0.25 gives each actor a quarter of the GPU"
            )
        started = RayEngineSession(self.request, run, quiet, in_group)
        try:
            yield started
        except BaseException:
            started.abandon()
            raise
        started.wait_until_up()


@dataclass(frozen=True)
class TrialResources:
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
        with error_context("no trial can be placed on the hosts that are there"):
            plan_reservation(
                nodes, 1, len(self.bundles), None, bundle.get("CPU", 0.0), bundle.get("GPU", 0.0)
            )


def trial_resources(
    engine: Engine, clients: int, nodes: Sequence[Mapping[str, float]], trials: int, at_once: int | None,
    may_grow: bool = False,
) -> TrialResources:  # fmt: skip
    """Work out the resources of a trial: with ``actors: auto``, trials that run at once share the cluster.

    Args:
        engine: of the base, not resolved.
        clients: the population.
        nodes: the resources of every node.
        trials: how many there are.
        at_once: as asked for; None for as many as the cluster holds.
        may_grow: whether more hosts may join, so that nothing is refused; and if ``at_once``
            is None, trials for which there is no room yet ask for them.
    """
    with error_context("a trial can never be placed on this cluster"):
        if not isinstance(engine, Ray):
            gpus = int(sum(node.get("GPU", 0.0) for node in nodes))
            uses = engine.device == "cuda" or (engine.device == "auto" and gpus > 0)
            part = 1 / math.ceil((at_once or 1) / max(1, gpus)) if uses else 0.0  # several share the GPUs
            wanted = Reservation(1, float(engine.threads), part)
            if not may_grow:
                plan_reservation(nodes, 1, 1, None, wanted.cpus, wanted.gpus)
            return TrialResources(
                [wanted.bundle], {"engine.device": "cuda" if wanted.gpus else "cpu"}, at_once
            )
        resolved = engine.resolve()
        actors, hosted, cpus, *_ = asked = engine.request
        if asked.is_auto:
            room = plan_reservation(
                nodes, 10**6, None, None, cpus, engine.gpus_per_actor, may_grow=may_grow
            ).actors
            together = min(trials, at_once or room)
            actors = max(1, min(clients, room // together))
            at_once = at_once if may_grow else together
        wanted = plan_reservation(
            nodes, clients, actors, hosted, cpus, engine.gpus_per_actor, may_grow=may_grow
        )
    settings = {
        "engine.device": resolved.device,
        "engine.actors": wanted.actors,
        "engine.clients_per_actor": "auto",
        "engine.cpus_per_actor": wanted.cpus,
    }
    return TrialResources([wanted.bundle] * wanted.actors, settings, at_once)
