"""Ray actors that go from one federation to the next: starting a process takes longer than a small one."""

from typing import Any

import ray

from rayfl.engine.actors import ClientActor, ServerActor
from rayfl.engine.base import SERVER
from rayfl.engine.ray_workers import RayWorkers


class KeptClient(ClientActor):
    """A worker that can begin anew."""

    def become(self, *arguments: Any) -> None:
        """Serve another federation, and forget this one."""
        vars(self).clear()
        self.__init__(*arguments)  # type: ignore[misc]


class KeptServer(ServerActor):
    """A server that can begin anew."""

    def become(self, *arguments: Any) -> None:
        """Serve another federation, and forget this one."""
        vars(self).clear()
        self.__init__(*arguments)  # type: ignore[misc]


class KeptActors:
    """Actors without a federation; ``start`` and ``stop`` stand in for those of ``RayWorkers``."""

    def __init__(self) -> None:
        self.clients: list[Any] = []
        self.servers: list[Any] = []

    def start(self, workers: RayWorkers, allow_fewer: bool) -> None:
        """Give a federation its actors, new ones only where there are too few."""
        workers._reservation = workers._wanted_reservation(allow_fewer)
        given = workers._started.run, workers._plan, workers._started.shared
        workers.server = _taken(self.servers, KeptServer, *given)
        for _ in range(workers._reservation.actors):
            actor = _taken(self.clients, KeptClient, *given, workers._reservation.gpus)
            workers.actors.append(actor)
        signs = [workers.call(k, "report_location") for k in (SERVER, *range(len(workers.actors)))]
        workers.server_where, *workers.where = workers.get(signs)

    def stop(self, workers: RayWorkers) -> None:
        """Take the actors of a federation back; those that it has lost fail when they begin anew."""
        self.clients += workers.actors
        self.servers += [] if workers.server is None else [workers.server]
        workers._forget_processes()


def _taken(kept: list[Any], kind: Any, *arguments: Any) -> Any:
    """Return an actor that serves a federation."""
    if not kept:
        return ray.remote(kind).options(num_cpus=0).remote(*arguments)
    actor = kept.pop()
    ray.get(actor.become.remote(*arguments))
    return actor
