"""The Ray engine's settings. Ray itself is imported when a run opens it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Literal

from rayfl.data import FederatedData
from rayfl.engine.base import Engine
from rayfl.engine.plan import Plan
from rayfl.engine.session import Session
from rayfl.errors import UserError
from rayfl.settings import at_least


@contextmanager
def _needing_ray() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise UserError(
            f"the Ray engine needs Ray, which cannot be imported ({error}): install it with "
            "`pip install 'ray[default,tune]'`, or use --engine Inline"
        ) from error


class Ray(Engine):
    """Run clients on Ray actors that keep their personal state in memory, and the server on another actor.

    Attributes:
        in_group: whether the actors go into the placement group of this process, a bundle each, instead of
            one of their own; sweeps set it for their trials.
    """

    actors: Annotated[int, at_least(1)] | Literal["auto"] = "auto"
    """Number of client actors; ``auto`` is one per CPU, or one per ``gpus_per_actor`` of a GPU, but not more
    than the memory holds.
    """
    clients_per_actor: Annotated[int, at_least(1)] | Literal["auto"] = "auto"
    """Clients that an actor works for; ``auto`` spreads them over the actors, 1 gives one actor per client
    (about 0.3 GB each). Not together with ``actors``.
    """
    cpus_per_actor: Annotated[float, at_least(0)] | Literal["auto"] = "auto"
    """CPUs that an actor reserves; ``auto`` is 1, or less where there are more actors."""
    gpus_per_actor: Annotated[float, at_least(0)] = 0.0
    """Share of a GPU, or number of GPUs, that an actor reserves; an actor can use that share of the GPU's
    memory only.
    """
    address: str | None = None
    """A running cluster to join: ``auto`` for that of ``RAY_ADDRESS`` or of the last ``ray start`` on this
    host, or an address as ``ray.init`` takes it. By default the run starts a local cluster of its own.
    """
    dashboard: bool = False
    """Whether a local cluster of the run's own has Ray's dashboard, on localhost, with its metrics."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """``cpu``, ``cuda`` (which needs ``gpus_per_actor``), or ``auto``: CUDA where ``gpus_per_actor`` is above
    0 and torch sees it on this machine.
    """
    recoveries: Annotated[int, at_least(0), "0: stop at the first death"] = 5
    """How often a run goes on after processes have died, without reaching another checkpoint in between."""

    in_group = False

    def __post_init__(self) -> None:
        if self.gpus_per_actor > 1 and not float(self.gpus_per_actor).is_integer():
            raise UserError(
                f"engine.gpus_per_actor is {self.gpus_per_actor}: above 1 it must be a whole number"
            )
        if self.actors != "auto" and self.clients_per_actor != "auto":
            raise UserError("engine.actors and engine.clients_per_actor exclude each other: give one of them")

    def resolve(self) -> None:
        """Replace every ``auto``, and look whether the cluster is there; see ``Engine.resolve``."""
        if self.device == "cuda" and not self.gpus_per_actor:
            raise UserError(
                "engine.device is cuda, and engine.gpus_per_actor is 0: say how much of a GPU an actor "
                "gets, for example 0.25"
            )
        super().resolve()
        self.check_address()

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

    def _uses_cuda(self) -> bool:
        return self.gpus_per_actor > 0 and super()._uses_cuda()

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
