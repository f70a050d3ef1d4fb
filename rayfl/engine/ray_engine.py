"""The Ray engine's settings. Ray itself is imported when a run opens it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from rayfl.data import FederatedData
from rayfl.engine.base import Engine
from rayfl.engine.plan import Plan
from rayfl.engine.session import Session
from rayfl.errors import UserError


class Ray(Engine):
    """Run clients on Ray actors that keep their personal state in memory, and the server on another actor.

    Args:
        actors: number of client actors; ``auto`` is one per CPU, or one per ``gpus_per_actor`` of a GPU, as
            far as the memory goes.
        clients_per_actor: clients that an actor works for; ``auto`` spreads them over the actors, 1 gives one
            actor per client (about 0.3 GB each). Not together with ``actors``.
        cpus_per_actor: CPUs that an actor reserves; ``auto`` is 1, or less where there are more actors.
        gpus_per_actor: share of a GPU, or number of GPUs, that an actor reserves; its memory is capped to it.
        address: an existing cluster (``auto``, or an address as ``ray.init`` takes it); by default a new
            local one.
        dashboard: whether a new local cluster serves Ray's dashboard, on localhost, and collects its figures.
        execution: as for ``Inline``.
        device: ``cpu``, ``cuda`` (which needs ``gpus_per_actor``), or ``auto``: CUDA where ``gpus_per_actor``
            is above 0 and torch sees it on this machine.
        threads: as for ``Inline``.
        memory_format: as for ``Inline``.
        stack: as for ``Inline``.
        deterministic: as for ``Inline``.
        client_timeout: as for ``Inline``.
        recoveries: how often in a row, without getting to another checkpoint, the federation goes on after
            processes have died; 0 stops at the first death.

    Attributes:
        in_group: whether the actors go into the placement group of this process, a bundle each, instead of
            one of their own; sweeps set it for their trials.
    """

    def __init__(
        self,
        actors: int | Literal["auto"] = "auto",
        clients_per_actor: int | Literal["auto"] = "auto",
        cpus_per_actor: float | Literal["auto"] = "auto",
        gpus_per_actor: float = 0.0,
        address: str | None = None,
        dashboard: bool = False,
        execution: Literal["auto", "loop", "stacked"] = "auto",
        device: Literal["auto", "cpu", "cuda"] = "auto",
        threads: int = 1,
        memory_format: Literal["auto", "contiguous", "channels_last"] = "auto",
        stack: int = 32,
        deterministic: bool = False,
        client_timeout: float | None = None,
        recoveries: int = 5,
    ) -> None:
        super().__init__(execution, device, threads, memory_format, stack, deterministic, client_timeout)
        for name, value, fine, allowed in [
            ("actors", actors, actors == "auto" or actors >= 1, "auto or at least 1"),
            (
                "clients_per_actor",
                clients_per_actor,
                clients_per_actor == "auto" or clients_per_actor >= 1,
                "auto or at least 1",
            ),
            (
                "cpus_per_actor",
                cpus_per_actor,
                cpus_per_actor == "auto" or 0 <= cpus_per_actor < float("inf"),
                "auto or at least 0",
            ),
            (
                "gpus_per_actor",
                gpus_per_actor,
                0 <= gpus_per_actor <= 1 or (gpus_per_actor > 1 and float(gpus_per_actor).is_integer()),
                "between 0 and 1, or a whole number",
            ),
            ("recoveries", recoveries, recoveries >= 0, "at least 0 (0: stop at the first death)"),
        ]:
            if not fine:
                raise UserError(f"engine.{name} is {value!r}: it must be {allowed}")
        if actors != "auto" and clients_per_actor != "auto":
            raise UserError("engine.actors and engine.clients_per_actor exclude each other: give one of them")
        self.actors = actors
        self.clients_per_actor = clients_per_actor
        self.cpus_per_actor = cpus_per_actor
        self.gpus_per_actor = gpus_per_actor
        self.address = address
        self.dashboard = dashboard
        self.in_group = False
        self.recoveries = recoveries

    def resolve(self) -> None:
        """Replace every ``auto``; see ``Engine.resolve``."""
        if self.device == "cuda" and not self.gpus_per_actor:
            raise UserError(
                "engine.device is cuda, and engine.gpus_per_actor is 0: say how much of a GPU an actor "
                "gets, for example 0.25"
            )
        super().resolve()

    @property
    def asked(self) -> tuple[int | None, int | None, float | None]:
        """Actors, clients per actor and CPUs per actor, None where they are ``auto``."""
        return (
            None if self.actors == "auto" else self.actors,
            None if self.clients_per_actor == "auto" else self.clients_per_actor,
            None if self.cpus_per_actor == "auto" else self.cpus_per_actor,
        )

    def _uses_cuda(self) -> bool:
        return self.gpus_per_actor > 0 and super()._uses_cuda()

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Start or join the cluster while the data are loaded: it takes seconds, in other processes."""
        try:
            from rayfl.engine.cluster import Cluster
        except ImportError as error:
            raise UserError(
                f"the Ray engine needs Ray, which cannot be imported ({error}): install it with "
                "`pip install 'ray[default,tune]'`, or use --engine Inline"
            ) from error
        self._cluster = Cluster(self)
        try:
            yield
        except BaseException:
            self._cluster.abandon()
            raise
        self._cluster.wait()

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
