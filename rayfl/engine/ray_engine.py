"""The Ray engine's settings. Ray itself is imported when a run opens it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, Self

import torch

from rayfl.data import FederatedData
from rayfl.engine.base import Engine
from rayfl.engine.plan import Plan
from rayfl.engine.session import Session
from rayfl.errors import BadValue, Conflict, Missing
from rayfl.settings import at_least
from rayfl.shown import counted, warn


@contextmanager
def _needing_ray() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise Missing(
            "engine",
            f"is Ray, and the package ray cannot be imported ({error}): install it with `pip install "
            "'ray[default,tune]'`, or use --engine Inline",
        ) from error


class Ray(Engine):
    """Run clients on Ray actors that keep their personal state in memory, and the server on another actor.

    Attributes:
        in_group: whether the actors go into the placement group of this process, a bundle each, instead of
            one of their own; sweeps set it for their trials.
        work: groups of clients in a round, more actors than which would be idle; None where nobody has said.
    """

    actors: Annotated[int, at_least(1)] | Literal["auto"] = "auto"
    """Number of client actors; ``auto`` is one per CPU, or one per ``gpus_per_actor`` of a GPU, but not more
    than the memory holds and than there are groups of clients in a round. Where others use the cluster, it is
    what is free.
    """
    clients_per_actor: Annotated[int, at_least(1)] | Literal["auto"] = "auto"
    """Clients that an actor works for; ``auto`` spreads them over the actors, 1 gives one actor per client
    (about 0.3 GB each). Not together with ``actors``.
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

    in_group = False

    def __post_init__(self) -> None:
        if self.gpus_per_actor > 1:
            raise BadValue(
                "engine.gpus_per_actor",
                f"is {self.gpus_per_actor:g}: an actor trains on one GPU and would leave the others idle, so "
                "it may be at most 1; more actors use more GPUs",
            )
        self.work: int | None = None
        self._unasked = False
        if self.actors != "auto" and self.clients_per_actor != "auto":
            raise Conflict("engine.actors", "and engine.clients_per_actor exclude each other: give one")

    def resolve(self) -> Self:
        """Replace every ``auto``, and look whether the cluster is there; see ``Engine.resolve``."""
        if self.device == "cuda" and not self.gpus_per_actor:
            raise Conflict(
                "engine.device",
                "is cuda, and engine.gpus_per_actor is 0: say how much of a GPU an actor gets, such as 0.25",
            )
        here = super().resolve()
        here._unasked = self.device == "auto" and not self.gpus_per_actor
        self.check_address()
        return here

    def settle(self, cohort: int, clients: int) -> None:
        """Replace ``stack: auto``, and tell of a GPU that stays unused, and of actors without work."""
        super().settle(cohort, clients)
        if self._unasked and not self.in_group and torch.cuda.is_available():
            warn(
                "this machine has a GPU, and clients train on its CPUs, because engine.gpus_per_actor is 0: "
                "--engine.gpus_per_actor 0.25 gives each actor a quarter of the GPU"
            )
        self.work = len(self.groups(range(cohort)))
        actors, hosted, _ = self.asked
        asked = actors if hosted is None else math.ceil(clients / hosted)
        if asked is not None and asked > self.work:
            stacks = f" of up to {self.stack} (engine.stack)" if self.execution == "stacked" else ""
            warn(
                f"{counted(asked, 'actor')} are asked for, and a round's {counted(cohort, 'client')} train "
                f"in {counted(self.work, 'group')}{stacks}: {asked - self.work} will have no client to train"
            )

    def check_address(self) -> None:
        """Refuse an address where no cluster answers."""
        if self.address is not None:
            with _needing_ray():
                from rayfl.engine.cluster import check_address
            check_address(self.address)

    @property
    def asked(self) -> tuple[int | None, int | None, float | None]:
        """Actors, clients per actor and CPUs per actor, None where they are ``auto``."""
        return (
            None if self.actors == "auto" else self.actors,
            None if self.clients_per_actor == "auto" else self.clients_per_actor,
            None if self.cpus_per_actor == "auto" else self.cpus_per_actor,
        )

    @property
    def is_auto(self) -> bool:
        """Whether the number of actors follows from what there is."""
        return self.actors == "auto" and self.clients_per_actor == "auto"

    def _uses_cuda(self) -> bool:
        return self.gpus_per_actor > 0

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Start or join the cluster while the data are loaded: it takes seconds, in other processes."""
        with _needing_ray():
            from rayfl.engine.cluster import Cluster
        self._cluster = Cluster(self)
        try:
            yield
        except BaseException:
            self._cluster.abandon()
            raise
        self._cluster.wait()

    def watchers(self, run: str) -> list[Any]:
        """Return what tells Ray of every round, for its dashboard and Prometheus, where there may be one."""
        if not (self.dashboard or self.address or self.in_group):
            return []
        from rayfl.engine.ray_metrics import RayMetrics

        return [RayMetrics(run)]

    def share(self, data: FederatedData) -> FederatedData:
        """Put the data into the object store, once per node."""
        try:
            return self._cluster.share(data)
        except BaseException:
            self._cluster.close()
            raise

    def open(self, plan: Plan, data: FederatedData) -> Session:
        """Start the actors on the cluster that was prepared."""
        from rayfl.engine.ray_workers import RayWorkers

        return Session(plan, data, RayWorkers(self, self._cluster, plan, data))
