"""The server and the workers as Ray actors: how they are started, waited for, lost and stopped."""

from __future__ import annotations

import itertools
import math
import os
import re
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import (
    GetTimeoutError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)
from ray.util.placement_group import (
    get_current_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from rayfl.data import FederatedData
from rayfl.engine.actors import ClientActor, ServerActor, read_stack
from rayfl.engine.base import SERVER, ClusterLost, EngineSession, Plan, Workers, WorkersLost
from rayfl.engine.cluster import PULSE, Cluster, wait_seconds
from rayfl.engine.hosts import ask_hosts, put_by_value
from rayfl.engine.placement import RayRequest, Reservation, bundles_that_fit, plan_reservation, resources_text
from rayfl.engine.ray_metrics import RayMetrics
from rayfl.engine.ray_private import draining_nodes
from rayfl.errors import Shortage, UserError, error_context
from rayfl.system.text import counted, print_note, warn

RESOURCE_SECONDS = 15.0
"""Seconds after which resources that the cluster has, but does not hand out, count as taken."""
REPORT_SECONDS = 30.0
"""Seconds between two lines that say what the run waits for."""
HOST_CHECK_SECONDS = 5.0
"""Seconds between two checks for hosts that have joined the cluster."""
DRAIN_SECONDS = 5.0
"""Seconds after a loss until actors that are dead are known: one that has not answered by then is busy."""
HANG_FACTOR = 10
"""How many times as long as usual a call takes of which the run says that it hangs."""
HANG_SECONDS = 600.0
"""Seconds after which the run says so if nothing is known of how long it takes."""
LEAST_HANG_SECONDS = 60.0
"""Seconds before which the run never says so."""
_STARTED = itertools.count(1)
LOSS_ERRORS = (RayActorError, ObjectLostError, NodeDiedError, WorkerCrashedError, OutOfMemoryError)
"""What Ray raises when a process, a host or an object of theirs is gone."""


class RayEngineSession(Cluster, EngineSession):
    """The cluster on which a run starts its actors.

    Attributes:
        request: the settings for Ray.
        run: the run's name.
        quiet: whether to print nothing about the start.
        in_group: whether actors go into the placement group of this process, as in trials of sweeps.

    """

    def __init__(self, request: RayRequest, run: str, quiet: bool, in_group: bool) -> None:
        self.request, self.run, self.quiet, self.in_group = request, run, quiet, in_group
        super().__init__(request.address, request.dashboard)

    def round_callbacks(self) -> list[Any]:
        """Return what reports every round to Ray's dashboard and Prometheus, if there may be one."""
        looked_at = self.request.dashboard or self.request.address is not None or self.in_group
        return [RayMetrics(self.run)] if looked_at else []

    def share_data(self, data: FederatedData, code: Mapping[str, str]) -> FederatedData:
        """Put the data into the object store, once per node."""
        self.code = code
        try:
            return self.put_data(data)
        except BaseException:
            self.close()
            raise

    def make_workers(self, plan: Plan, data: FederatedData, groups: int | None = None) -> Workers:
        """Return the actors, not yet started."""
        return RayWorkers(self, plan, data, groups)


class RayWorkers(Workers):
    """The actors of one federation.

    Args:
        started: the cluster, which is closed with them.
        plan: the federation.
        data: the data, as ``share_data`` has returned them.
        groups: groups of clients in a round; None: unknown.

    Attributes:
        actors: the actors of the workers.
        server: the server's actor; None before it starts.
        joining: actors that are starting, each with the reference that is ready when it runs.
        reserved: the placement group with their resources.
        bundle_numbers: the number of each worker's bundle in it; None for workers that have joined since.
        where: the node and process of each worker.
        server_where: those of the server.
    """

    def __init__(
        self, started: RayEngineSession, plan: Plan, data: FederatedData, groups: int | None
    ) -> None:
        self._started, self._request = started, started.request
        self.recoveries = started.request.recoveries
        self._plan, self._data = plan, data
        self._sent: Any = None  # the plan, with the code as it is at the first start
        self._work = groups or len(data.clients)
        self._seen = time.monotonic()  # when Ray's own processes were last seen
        self._most_actors = math.inf  # actors for which there is memory
        self._failed = 0  # actors that have joined late, and failed
        self._draining: set[str] = set()
        self._forget_processes()

    def _forget_processes(self) -> None:
        """Forget all processes."""
        self.reserved: Any = None
        self.actors: list[Any] = []
        self.bundle_numbers: list[int | None] = []
        self.server: Any = None
        self.joining: list[tuple[Any, Any]] = []
        self._look_at = time.monotonic() + HOST_CHECK_SECONDS

    def __len__(self) -> int:
        return len(self.actors)

    # ---- start and stop

    def start(self, allow_fewer: bool) -> None:
        """Start the actors that do not run yet, each on its reserved resources."""
        if self.reserved is None:
            self._wait = wait_seconds(self._request.wait)
            self._reservation = self._reserve_bundles(
                self._wanted_reservation(allow_fewer, may_grow=self._wait > 0), allow_fewer
            )
            self._check_hosts(placement_group_table(self.reserved)["bundles_to_node_id"].values())
        self._sent = self._sent or put_by_value(self._plan, self._started.code, self._plan.import_paths)
        if not (self.server or self.actors or self._started.quiet):
            print_note(f"starting Ray ({counted(self._reservation.actors, 'actor')})")
        if self.server is None:
            last = len(self.reserved.bundle_specs) - 1  # its own, or one of a trial's
            options = {"name": self._actor_name("server"), "scheduling_strategy": self._bundle_strategy(last)}
            server = ray.remote(ServerActor).options(num_cpus=0, **options)
            self.server = server.remote(self._started.run, self._sent, self._started.shared)
        for k in range(self._reservation.actors):
            if k not in self.bundle_numbers and len(self.actors) < self._most_actors:
                bundle = self.reserved.bundle_specs[k]
                self.actors.append(self._new_actor(bundle, scheduling_strategy=self._bundle_strategy(k)))
                self.bundle_numbers.append(k)
        signs = [self.call(k, "report_location") for k in (SERVER, *range(len(self.actors)))]
        while ray.wait(signs, num_returns=len(signs), timeout=PULSE)[1]:
            self.check()
            if not self._has_all_bundles():  # Ray would start an actor there as soon as there is another host
                raise WorkersLost("an actor died: its host is lost")
        self.server_where, *self.where = self.get(signs)
        self._share_memory()

    def _actor_name(self, what: str) -> str:
        """Return a readable name that no other actor has, not even one that is just ending."""
        return f"{self._started.run} {what} {os.getpid()}-{next(_STARTED)}"

    def _bundle_strategy(self, k: int) -> PlacementGroupSchedulingStrategy:
        return PlacementGroupSchedulingStrategy(self.reserved, placement_group_bundle_index=k)

    def _has_all_bundles(self) -> bool:
        return bool(placement_group_table(self.reserved)["state"] == "CREATED")

    def _check_hosts(self, ids: Collection[str]) -> None:
        """Check that hosts have the same software as this one, unless the run has a Ray of its own here."""
        if not self._started.is_own:
            self.hosts = ask_hosts(self.hosts, ids, self.get)

    def keep_survivors(self) -> None:
        """Keep the actors that are alive; stop all if a host is lost, and its reservation with it."""
        both = [self.server, *self.actors]
        signs = [actor.report_location.remote() for actor in both]
        ray.wait(signs, num_returns=len(signs), timeout=DRAIN_SECONDS)
        if not self._has_all_bundles():
            self.stop()
            return
        serves, *live = map(_is_alive, signs)
        kept = [k for k, lives in enumerate(live) if lives][: int(min(len(live), self._most_actors))]
        for k, actor in enumerate(both, SERVER):
            if not (serves if k == SERVER else k in kept):
                with suppress(Exception):
                    ray.kill(actor)
        self.server = self.server if serves else None
        self.actors, self.bundle_numbers = (
            [self.actors[k] for k in kept],
            [self.bundle_numbers[k] for k in kept],
        )

    def _share_memory(self) -> None:
        """Send every worker the number of workers on its machine."""
        counts = Counter(where["node"] for where in self.where)
        for k, where in enumerate(self.where):
            self.call(k, "share_memory", counts[where["node"]])

    def _wanted_reservation(self, allow_fewer: bool, may_grow: bool = False) -> Reservation:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        clients = len(self._data.clients)
        if self._request.is_auto:
            clients = min(clients, self._work)
        wanted = plan_reservation(nodes, clients, *self._request[:4], allow_fewer, may_grow)
        return replace(wanted, actors=int(min(wanted.actors, self._most_actors)))

    def _reserve_bundles(self, wanted: Reservation, allow_fewer: bool) -> Reservation:
        """Reserve room for all actors together, so that federations that share a cluster cannot block."""
        if self._started.in_group:
            self.reserved = get_current_placement_group()
            if not self.reserved.wait(RESOURCE_SECONDS):
                raise RuntimeError("the placement group of this trial has lost a host")
            return wanted
        self.reserved = placement_group(wanted.bundles, strategy="PACK")
        less = wanted.actors > 1 and (allow_fewer or self._request.is_auto)
        if self._wait_for_bundles(wanted, RESOURCE_SECONDS if less else max(RESOURCE_SECONDS, self._wait)):
            return wanted
        free = ray.available_resources()
        idle = f"{resources_text(free.get('CPU', 0), free.get('GPU', 0))} are free"
        if less:
            remove_placement_group(self.reserved)
            fits = bundles_that_fit(free, wanted.bundle)
            fewer = max(1, fits if fits < wanted.actors else wanted.actors // 2)
            if not allow_fewer:
                few = counted(fewer, "actor")
                warn(f"others use the cluster, where {idle}: {few} instead of {wanted.actors}")
            return self._reserve_bundles(replace(wanted, actors=fewer), allow_fewer)
        with error_context(f"no host has come in {self._wait:g} s (engine.wait)"):
            self._wanted_reservation(allow_fewer)
        raise Shortage(
            "engine.wait",
            f"is {self._wait:g}: there is room for {wanted} on the cluster, but others use it: {idle}, and "
            f"{free.get('memory', 0) / 1e9:.1f} GB of memory",
            "Wait until they are done, as --engine.wait 3600 does for an hour, or ask for less",
        )

    def _wait_for_bundles(self, wanted: Reservation, seconds: float) -> bool:
        """Wait for what is reserved; say at first, and every half minute, what is waited for."""
        began, last, ready = time.monotonic(), 0.0, self.reserved.ready()
        while (waited := time.monotonic() - began) < seconds:
            if self._wait and waited >= max(PULSE, last):
                free, last = ray.available_resources(), last + REPORT_SECONDS
                warn(
                    f"waiting for {wanted}, for {waited:.0f} of at most {seconds:g} s (engine.wait): "
                    f"{resources_text(free.get('CPU', 0), free.get('GPU', 0))} are free on "
                    f"{counted(sum(node['Alive'] for node in ray.nodes()), 'host')}"
                )
            self.check()
            if ray.wait([ready], timeout=min(PULSE, seconds - waited))[0]:
                return True
        return False

    def _new_actor(self, bundle: Mapping[str, float], **options: Any) -> Any:
        gpus = bundle.get("GPU", 0)
        shares = {"num_cpus": bundle.get("CPU", 0), "num_gpus": gpus, "memory": bundle.get("memory", 0)}
        actor = ray.remote(ClientActor).options(name=self._actor_name("clients"), **shares, **options)
        return actor.remote(self._started.run, self._sent, self._started.shared, gpus)

    def add_workers(self) -> None:
        """Add actors that have started, and start some on hosts that have joined the cluster."""
        coming, self.joining = self.joining, []
        for actor, up in coming:
            if not ray.wait([up], timeout=0)[0]:
                self.joining.append((actor, up))
                continue
            try:
                where = ray.get(up)
                self._check_hosts([where["node"]])
                self.where.append(where)
                self.actors.append(actor)
                self.bundle_numbers.append(None)
                self._share_memory()
            except (RayError, UserError) as error:  # the federation runs without it
                warn(_death_text(error) if isinstance(error, RayError) else str(error))
                ray.kill(actor)
                self._failed += 1
                self._look_at = time.monotonic() + HOST_CHECK_SECONDS * 2**self._failed
        if self._started.in_group or time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + HOST_CHECK_SECONDS
        if self._started.dead_process(now=True):  # the list of hosts may be wrong
            return
        with suppress(UserError):
            new = self._wanted_reservation(allow_fewer=True).actors - len(self.actors) - len(self.joining)
            if self._request.is_auto:  # what others use is theirs; a request for it would add hosts
                new = min(new, bundles_that_fit(ray.available_resources(), self._reservation.bundle))
            if new > 0:
                self._started.share_with_new_hosts(self._data)
            for _ in range(new):
                actor = self._new_actor(self._reservation.bundle)
                self.joining.append((actor, actor.report_location.remote()))

    def hosts_leave(self) -> bool:
        """Return whether a host of actors is being drained, and was not when last asked."""
        hosts = {where["node"] for where in (self.server_where, *self.where)}
        new = set() if self._started.is_own else hosts.intersection(draining_nodes()) - self._draining
        self._draining |= new
        return bool(new)

    def stop(self) -> None:
        """Kill all actors and release the reservation."""
        for actor in [*self.actors, *(actor for actor, _ in self.joining), self.server]:
            if actor is not None:
                with suppress(Exception):
                    ray.kill(actor)
        if self.reserved is not None and not self._started.in_group:
            with suppress(Exception):
                remove_placement_group(self.reserved)
        self._forget_processes()

    def close(self) -> None:
        """Stop the actors, and the cluster if it was started for them."""
        # Without Ray's own processes this would wait for them.
        if self._started.dead_process(now=True) is None:
            self.stop()
        self._started.close()

    # ---- calls

    def call(self, k: int, name: str, *arguments: Any, returns: int = 1) -> Any:
        """Start an operation of an actor; see ``Workers.call``."""
        method = getattr(self.server if k == SERVER else self.actors[k], name)
        return (method.options(num_returns=returns) if returns > 1 else method).remote(*arguments)

    def host_of(self, k: int) -> Any:
        """Return what names the host of a worker; see ``Workers.host_of``."""
        return (self.server_where if k == SERVER else self.where[k])["node"]

    def get(self, references: Sequence[Any], usual: float | None = None) -> list[Any]:
        """Wait for results; see ``Workers.get``."""
        try:
            return self._wait_for(references, usual)
        except RayError as error:
            cause = error.cause if isinstance(error, RayTaskError) else error
            if isinstance(cause, RayActorError) and cause.actor_init_failed:
                raise Shortage(_death_text(cause)) from error
            if isinstance(cause, OutOfMemoryError):  # as many would run out of it again
                self._most_actors = max(1, len(self) // 2)
            if isinstance(cause, LOSS_ERRORS):
                raise WorkersLost(_death_text(cause)) from error
            if isinstance(cause, UserError):
                raise cause from None
            raise

    def _wait_for(self, references: Sequence[Any], usual: float | None) -> list[Any]:
        """Return the results of calls; check Ray's own processes meanwhile, and say if they take too long."""
        began = time.monotonic()
        limit = HANG_SECONDS if usual is None else max(LEAST_HANG_SECONDS, HANG_FACTOR * usual)
        try:
            while True:
                if time.monotonic() - self._seen >= PULSE:
                    self.check()
                try:
                    found: list[Any] = ray.get(references, timeout=PULSE)
                    return found
                except GetTimeoutError:
                    if (waited := time.monotonic() - began) > limit:
                        self.hangs, limit = True, 2 * waited
                        than = "" if usual is None else f", where {usual:.0f} s are usual"
                        warn(f"nothing has come for {waited:.0f} s{than}, from {self._busy_text()}")
        finally:
            self.hangs = False

    def _busy_text(self) -> str:
        """Return which actor does not answer, and where it is."""
        signs = [self.call(k, "report_location") for k in range(len(self.actors))]
        silent = ray.wait(signs, num_returns=len(signs), timeout=DRAIN_SECONDS)[1]
        busy = [where for sign, where in zip(signs, self.where, strict=True) if sign in silent]
        busy = busy or [self.server_where]  # which answers in turn, after what it waits for
        first, lines = busy[0], ["unknown code"]
        with suppress(Exception):
            host = NodeAffinitySchedulingStrategy(first["node"], soft=False)
            ask = ray.remote(num_cpus=0)(read_stack).options(scheduling_strategy=host)
            lines = ray.get(ask.remote(first["pid"], first["stack"]), timeout=DRAIN_SECONDS)
        others = f" and {len(busy) - 1} more" if len(busy) > 1 else ""
        where = f"process {first['pid']} on {first['host']}{others}: it is in {'; '.join(lines[:3])}"
        return f"{where}. A signal stops the run at once, which the last checkpoint survives"

    def check(self) -> None:
        """Check that Ray's own processes are alive."""
        self._seen = time.monotonic()
        if part := self._started.dead_process():
            raise ClusterLost(f"{part} is gone, and with it all processes of the run")


def _is_alive(sign: Any) -> bool:
    """Return whether an actor has answered, or may still do so."""
    try:
        return bool(ray.get(sign, timeout=0))
    except RayError as error:
        return isinstance(error, GetTimeoutError)


def _death_text(error: RayError) -> str:
    """Return in one line why an actor has died or cannot start."""
    reason = re.sub(r"^rayfl\.errors\.\w+: ", "", str(error).strip().splitlines()[-1])
    if not getattr(error, "actor_init_failed", False):
        reason = reason.split(" Worker exit type: SYSTEM_ERROR")[0].split(" Some common causes")[0]
        facts = dict(line.strip().partition(": ")[::2] for line in str(error).splitlines())
        who = ", ".join(facts[key] for key in ("class_name", "pid", "ip") if key in facts)
        return f"an actor died: {reason.strip().rstrip('.')}" + (f" ({who})" if who else "")
    hint = (
        ". Every host of the cluster must be able to import it: start the run from its folder, or set "
        "PYTHONPATH before Ray is started"
    )
    return f"an actor cannot start: {reason}{hint if 'ModuleNotFoundError' in reason else ''}"
