"""A federation on Ray: the driver's side, which sees references and small numbers but no tensors."""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
from ray import util
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
from ray.util.placement_group import get_current_placement_group, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rayfl.data import FederatedData
from rayfl.engine.actors import ClientActor, ServerActor
from rayfl.engine.base import Facts, Gone, Lost, Session, clients_of
from rayfl.engine.local_ray import LocalRay
from rayfl.engine.placement import Request, place, request
from rayfl.engine.plan import Block, Plan
from rayfl.engine.round_result import Report, Scores
from rayfl.errors import UserError
from rayfl.methods import Cohort, Method
from rayfl.record.checkpoint import Manifest
from rayfl.shown import complain

if TYPE_CHECKING:
    from rayfl.engine.ray_engine import Ray

WAIT = 15.0
"""Seconds after which resources that the cluster has, but does not hand out, count as taken."""
LOOK = 5.0
"""Seconds between two looks for hosts that have joined the cluster."""
PULSE = 1.0
"""Seconds between two looks whether Ray's own processes are there; after a minute Ray ends the driver."""
SLACK = 60.0
"""Seconds that an actor may be later than the time limits of its clients allow."""
GONE = (RayActorError, ObjectLostError, NodeDiedError, WorkerCrashedError, OutOfMemoryError)
"""What Ray raises when a process or a host is gone, or what it has held."""


class Cluster:
    """The cluster of a run: joined, or started for it and then stopped with it.

    It is started in a thread, beside what the run does meanwhile. The thread lives as long as the cluster,
    because Ray's processes end with the thread that has started them.

    Args:
        engine: the settings.
    """

    def __init__(self, engine: Ray) -> None:
        self._abandoned = threading.Event()
        self._thread = ThreadPoolExecutor(1, "ray")
        self._connecting = self._thread.submit(self._connect, engine)

    def _connect(self, engine: Ray) -> Callable[..., None] | None:
        with _ONE_AT_A_TIME:
            leave = _connect(engine)
            if leave and self._abandoned.is_set():
                leave()
            return None if self._abandoned.is_set() else leave

    def wait(self) -> None:
        """Return when the cluster is up.

        Raises:
            UserError: it cannot be reached.
        """
        self._connecting.result()
        self._parts = _parts()

    def gone(self) -> str | None:
        """Say which of Ray's own processes is gone, without which nothing can be started or stopped."""
        return next((name for name, at in self._parts.items() if _refuses(at)), None)

    def share(self, data: FederatedData) -> FederatedData:
        """Put the data into the object store; return a view of what is there.

        Images in a cache file stay there, and every process of this host maps them; where there are more
        hosts they travel, once to each.
        """
        self._travels = sum(node["Alive"] for node in ray.nodes()) > 1
        if self._travels:
            data = replace(data, pool=replace(data.pool, images=np.asarray(data.pool.images)))
        self.shared = ray.put(data)
        view: FederatedData = ray.get(self.shared)
        return view

    def reach_all(self, data: FederatedData) -> None:
        """See that images in a cache file reach hosts that have joined since the data were shared."""
        if not self._travels and type(data.pool.images) is not np.ndarray:
            self.share(data)

    def abandon(self) -> None:
        """Give the cluster up before it was used: whoever waits for an error message need not wait for it."""
        self._abandoned.set()
        self._connecting.add_done_callback(_stop_started)
        self._thread.shutdown(wait=False)

    def close(self) -> None:
        """Stop the cluster if it was started here."""
        if leave := self._connecting.result():
            leave(broken=self.gone() is not None)
        self._thread.shutdown()


def _parts() -> dict[str, tuple[str, int]]:
    """Return where Ray's own processes listen that this process depends on, by their names."""
    if util.client.ray.is_connected():  # they are out of reach, and a server of Ray's stands between
        return {}
    context = ray.get_runtime_context()
    host, _, port = context.gcs_address.rpartition(":")
    here = context.get_node_id()
    (node,) = [node for node in ray.nodes() if node["NodeID"] == here]
    return {
        f"Ray's GCS at {context.gcs_address}": (host.strip("[]"), int(port)),
        "Ray's raylet on this host": (node["NodeManagerAddress"], node["NodeManagerPort"]),
    }


def _refuses(address: tuple[str, int]) -> bool:
    """Say whether nobody listens at an address; a network that is silent may come back."""
    try:
        socket.create_connection(address, timeout=1.0).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def _stop_started(connecting: Future[Callable[..., None] | None]) -> None:
    """Stop a cluster that was up before it was given up."""
    if connecting.exception() is None and (leave := connecting.result()):
        leave()


_ONE_AT_A_TIME = threading.Lock()


class RaySession(Session):
    """The actors of one federation.

    Args:
        engine: the settings.
        cluster: where; closed with the session.
        plan: the federation.
        data: the data, as ``Cluster.share`` returned them.

    Raises:
        UserError: the cluster cannot be reached, or what is asked for does not fit.
    """

    def __init__(self, engine: Ray, cluster: Cluster, plan: Plan, data: FederatedData) -> None:
        super().__init__(plan, data)
        self._engine = engine
        self._cluster = cluster
        self._losses = 0  # since the last checkpoint
        self._resume = "--resume"  # a run that has not begun has no folder yet
        self._rate = 1.0  # seconds per training sample, over all clients
        self._speed: dict[int, float] = {}  # client -> seconds per training sample, measured
        self._one_download = plan.method.one_download
        self._has_figures = type(plan.method).figures is not Method.figures
        self._seen = time.monotonic()  # when Ray's own processes were last seen
        self._forget()
        try:
            while self._server is None:
                try:
                    self._start(shrink=False)
                except Lost as lost:
                    self.clear(lost)
        except BaseException:
            self.close()
            raise

    def _forget(self) -> None:
        """Know of no process, and of nothing that processes hold."""
        self._group: Any = None
        self._actors: list[Any] = []
        self._server: Any = None
        self._joining: list[tuple[Any, Any]] = []  # actors that are coming up, and the sign that they are up
        self._under_way: list[Any] = []
        self._home: dict[int, int] = {}  # client -> the actor that holds its state
        self._downloads: dict[tuple[int, ...], Any] = {}  # of the newest server state
        self._look_at = time.monotonic() + LOOK

    def check(self) -> None:
        """See that Ray's own processes are there."""
        self._seen = time.monotonic()
        if part := self._cluster.gone():
            raise Gone(f"{part} is gone, and with it all processes of the run")

    def _wanted(self, shrink: bool) -> Request:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        clients, gpus = len(self.data.shards), self._engine.gpus_per_actor
        return request(nodes, clients, *self._engine.asked, gpus, shrink)

    def _start(self, shrink: bool) -> None:
        """Start all processes; with ``shrink`` fewer than asked for where there is no room for more."""
        self._request = self._reserve(self._wanted(shrink), shrink)
        beside = {"scheduling_strategy": PlacementGroupSchedulingStrategy(self._group, 0)}
        server = ray.remote(ServerActor).options(num_cpus=0, **(beside if self._engine.in_group else {}))
        self._server = server.remote(self.plan, self._cluster.shared)
        for k in range(self._request.actors):
            place_here = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=k)
            self._actors.append(self._new_actor(scheduling_strategy=place_here))
        self.server_where, *self.where = self._get([a.ready.remote() for a in (self._server, *self._actors)])

    def _reserve(self, wanted: Request, shrink: bool) -> Request:
        """Reserve room for all actors together, so that federations that share a cluster cannot block."""
        if self._engine.in_group:
            self._group = get_current_placement_group()
            if not self._group.wait(WAIT):
                raise RuntimeError("the placement group of this trial has lost a host")
            return wanted
        self._group = placement_group([wanted.bundle] * wanted.actors, strategy="PACK")
        try:
            ray.get(self._group.ready(), timeout=WAIT)
        except GetTimeoutError:
            if shrink and wanted.actors > 1:
                remove_placement_group(self._group)
                return self._reserve(replace(wanted, actors=wanted.actors // 2), shrink)
            free = ray.available_resources()
            raise UserError(
                f"{wanted.actors} actors with {wanted.cpus:g} CPUs and {wanted.gpus:g} GPUs each fit the "
                f"cluster, but others use it: {free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs "
                "are free. Wait until they are done, or ask for less"
            ) from None
        return wanted

    def _new_actor(self, **options: Any) -> Any:
        cpus, gpus = self._request.bundle.get("CPU", 0), self._request.gpus
        actor = ray.remote(ClientActor).options(num_cpus=cpus, num_gpus=gpus, **options)
        return actor.remote(self.plan, self._cluster.shared, gpus)

    # ---- a round

    def _train(
        self, round: int, blocks: Sequence[Block], score_parts: Sequence[str], drop: bool
    ) -> tuple[list[Any], Report]:
        self._welcome()
        download = self._download([i for block in blocks for i in block])
        placed = place(blocks, self._cost, self._home_of, len(self._actors))
        arrivals, moved = self._move(placed)
        calls = [
            self._actors[a]
            .train.options(num_returns=2)
            .remote(round, download, mine, score_parts, drop, *rows)
            for a, (mine, rows) in enumerate(zip(placed, arrivals, strict=True))
            if mine
        ]
        most = max(sum(map(len, mine)) for mine in placed)
        limit = None if self.plan.client_timeout is None else 2 * most * self.plan.client_timeout + SLACK
        replies = self._get([reply for _, reply in calls], limit)
        report, facts = Report(), Facts(moved=moved)
        for part, _, down, up in replies:
            report.merge(part)
            facts.actors.append(len(part.ids))
            facts.busy.append(sum(part.seconds.values()))
            facts.bytes_down, facts.bytes_up = down, facts.bytes_up + up
            self._measure(part)
        if any(keeps for _, keeps, _, _ in replies):
            self._home.update({i: a for a, mine in enumerate(placed) for b in mine for i in b})
        self.facts = facts
        return [folded for folded, _ in calls], report

    def _download(self, ids: Sequence[int]) -> Any:
        """Return the reference of what these clients receive of the newest server state."""
        key = () if self._one_download else tuple(ids)
        if key not in self._downloads:
            self._downloads[key] = self._server.download.remote(key)
        return self._downloads[key]

    def _move(self, placed: Sequence[Sequence[Block]]) -> tuple[list[list[Any]], int]:
        """Let clients that train elsewhere than they live hand over their state, actor to actor."""
        arrivals: list[list[Any]] = []
        moved = 0
        for a, mine in enumerate(placed):
            leaving: dict[int, list[int]] = {}
            for i in (i for block in mine for i in block):
                if self._home.get(i, a) != a:
                    leaving.setdefault(self._home[i], []).append(i)
            arrivals.append([self._actors[b].take.remote(ids) for b, ids in leaving.items()])
            moved += sum(map(len, leaving.values()))
        return arrivals, moved

    def _home_of(self, block: Block) -> int | None:
        homes = [self._home[i] for i in block if i in self._home]
        return max(set(homes), key=homes.count) if homes else None

    def _cost(self, block: Block) -> float:
        return sum(self._speed.get(i, self._rate) * len(self.data.shards[i].train) for i in block)

    def _measure(self, report: Report) -> None:
        """Learn how long clients take; the newest measurement counts half."""
        for block, seconds in report.seconds.items():
            speed = seconds / max(1, sum(len(self.data.shards[i].train) for i in block))
            for i in block:
                self._speed[i] = (self._speed.get(i, speed) + speed) / 2
        if self._speed:
            self._rate = sum(self._speed.values()) / len(self._speed)

    def _aggregate(self, cohort: Cohort, parts: list[Any]) -> None:
        done, download = self._server.aggregate.options(num_returns=2).remote(cohort, *parts)
        self._under_way = [done]  # while the driver writes its records
        self._downloads = {(): download} if self._one_download else {}

    def evaluate(self, round: int, ids: Sequence[int], parts: Sequence[str]) -> dict[int, Scores]:
        """Score clients where their state is; those without state wherever there is least to do."""
        download = self._download(ids)
        placed: list[list[int]] = [[] for _ in self._actors]
        load = [0] * len(self._actors)
        for i in sorted(ids, key=lambda i: i not in self._home):
            a = self._home.get(i, min(range(len(load)), key=load.__getitem__))
            placed[a].append(i)
            load[a] += sum(len(self.data.shards[i].part(part)) for part in parts)
        calls = [
            self._actors[a].evaluate.remote(round, download, mine, parts)
            for a, mine in enumerate(placed)
            if mine
        ]
        scores: dict[int, Scores] = {}
        for part in self._get(calls):
            scores.update(part)
        return scores

    def unseen(self, round: int) -> dict[str, dict[int, Scores]]:
        """Score clients that never train, dealt out to the actors in turn."""
        ids = range(self.data.seen, len(self.data))
        download = self._download(ids)
        homes: list[list[int]] = [[] for _ in self._actors]
        for i, a in self._home.items():
            homes[a].append(i)
        offered = [a.offer.remote(mine) for a, mine in zip(self._actors, homes) if mine]
        calls = [
            actor.unseen.remote(round, download, mine, *offered)
            for k, actor in enumerate(self._actors)
            if (mine := ids[k :: len(self._actors)])
        ]
        found: dict[str, dict[int, Scores]] = {}
        for part in self._get(calls):
            for point, scores in part.items():
                found.setdefault(point, {}).update(scores)
        return {point: dict(sorted(scores.items())) for point, scores in found.items()}

    def figures(self) -> dict[str, float | list[float]]:
        """Return what the method records of the newest server state."""
        if not self._has_figures:
            return {}
        found: dict[str, float | list[float]] = self._get([self._server.figures.remote()])[0]
        return found

    # ---- checkpoints

    def save(
        self, folder: Path, round: int, progress: dict[str, Any], settings: dict[str, Any] | None = None
    ) -> None:
        """Write a checkpoint; see ``Session.save``."""
        super().save(folder, round, progress, settings)
        self._losses = 0

    def _save(self, folder: Path, numbers: Sequence[int]) -> tuple[str, dict[int, str]]:
        where = str(folder.resolve())  # actors on a cluster that was joined run in another folder
        server = self._server.save.remote(where)
        calls = {}
        for number in numbers:
            hosted: dict[int, list[int]] = {}
            for i in clients_of(number):
                if i in self._home:
                    hosted.setdefault(self._home[i], []).append(i)
            if not hosted:  # the method keeps no state
                continue
            writer = max(hosted, key=lambda a: len(hosted[a]))
            others = [self._actors[a].rows.remote(ids) for a, ids in hosted.items() if a != writer]
            calls[number] = self._actors[writer].save.remote(where, number, hosted[writer], *others)
        names = self._get(list(calls.values()))
        return self._get([server])[0], {n: name for n, name in zip(calls, names, strict=True) if name}

    def restore(self, folder: Path, manifest: Manifest | None) -> None:
        """Take up a state; see ``Session.restore``."""
        self._resume = f"--resume {folder.parent}"
        if self._server is None:
            self._start(shrink=True)
        super().restore(folder, manifest)

    def _restore(self, folder: Path, manifest: Manifest) -> None:
        where = str(folder.resolve())
        restoring = self._server.restore.remote(where, manifest.server)
        names: list[list[str]] = [[] for _ in self._actors]
        for k, name in enumerate(manifest.clients.values()):
            names[k % len(names)].append(name)
        found = self._get([a.restore.remote(where, n) for a, n in zip(self._actors, names)])
        for a, ids in enumerate(found):
            self._home.update(dict.fromkeys(ids, a))
        self._get([restoring])

    # ---- the cluster

    def clear(self, lost: Lost) -> None:
        """Stop what is left: its state is of a round that cannot be completed."""
        self.check()
        self._stop()
        self._losses += 1
        if self._losses > self._engine.recoveries:
            often = f", {self._losses} times since the last checkpoint" if self._losses > 1 else ""
            raise UserError(
                f"{lost}{often}. The run stops with its last checkpoint intact: free memory or use fewer "
                f"actors, and go on with {self._resume}"
            ) from lost

    def _welcome(self) -> None:
        """Take in actors that have come up, and start some on hosts that have joined the cluster."""
        coming, self._joining = self._joining, []
        for actor, up in coming:
            if not ray.wait([up], timeout=0)[0]:
                self._joining.append((actor, up))
                continue
            try:
                self.where.append(ray.get(up))
                self._actors.append(actor)
            except RayError as error:  # the federation runs without it
                complain(f"warning: {_death_text(error)}")
                self._look_at = math.inf
        if self._engine.in_group or time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK
        self.check()
        with suppress(UserError):
            new = self._wanted(shrink=True).actors - len(self._actors) - len(self._joining)
            if new > 0:
                self._cluster.reach_all(self.data)
            for _ in range(new):
                actor = self._new_actor()
                self._joining.append((actor, actor.ready.remote()))

    def settle(self) -> None:
        """Wait for the last aggregation."""
        self._get([])

    def _get(self, references: Sequence[Any], limit: float | None = None) -> list[Any]:
        under_way, self._under_way = self._under_way, []
        try:
            return self._awaited([*under_way, *references], limit)[len(under_way) :]
        except RayError as error:
            cause = error.cause if isinstance(error, RayTaskError) else error
            if isinstance(cause, RayActorError) and cause.actor_init_failed:
                raise UserError(_death_text(cause)) from error
            if isinstance(cause, GONE):
                raise Lost(_death_text(cause)) from error
            if isinstance(cause, UserError):
                raise UserError(str(cause)) from None
            raise

    def _awaited(self, references: Sequence[Any], limit: float | None) -> list[Any]:
        """Return what calls return, and look after Ray's own processes meanwhile."""
        end = math.inf if limit is None else time.monotonic() + limit
        while True:
            if time.monotonic() - self._seen >= PULSE:
                self.check()
            try:
                found: list[Any] = ray.get(references, timeout=max(0.0, min(PULSE, end - time.monotonic())))
                return found
            except GetTimeoutError as error:
                if time.monotonic() >= end:
                    raise Lost(f"an actor has not answered for {limit:.0f} s") from error

    def _stop(self) -> None:
        for actor in [*self._actors, *(actor for actor, _ in self._joining), self._server]:
            if actor is not None:
                with suppress(Exception):
                    ray.kill(actor)
        if self._group is not None and not self._engine.in_group:
            with suppress(Exception):
                remove_placement_group(self._group)
        self._forget()

    def close(self) -> None:
        """Stop the actors, and the cluster if this session has started it."""
        if self._cluster.gone() is None:  # without Ray's own processes it would wait for them
            self._stop()
        self._cluster.close()


def _connect(engine: Ray) -> Callable[..., None] | None:
    """Start a local cluster or join one; return what leaves it again, None if this process was in it."""
    if ray.is_initialized():
        here = ray.get_runtime_context().gcs_address
        if engine.address not in (None, "auto", here):
            raise UserError(
                f"engine.address is {engine.address!r}, but this process has joined the Ray cluster at "
                f"{here}: leave the address out to use that one, or call ray.shutdown() first"
            )
        return None
    # Where an actor dies, all calls that waited for it fail: one of them is reported, the others need not be.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    if engine.address is not None:
        try:
            _check_reachable(engine.address)
            ray.init(address=engine.address, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError) as error:
            raise UserError(
                f"no Ray cluster can be reached at engine.address={engine.address!r} ({error}): start one "
                "with `ray start --head` or `ray up`, or leave the address out for a local one"
            ) from error
        return lambda broken=False: ray.shutdown()
    return LocalRay(engine.dashboard).stop


def _check_reachable(address: str) -> None:
    """Raise OSError where nothing listens: Ray would try for minutes, and then end the process."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()


def _death_text(error: RayError) -> str:
    """Say in one line why an actor has died or cannot start."""
    reason = str(error).strip().splitlines()[-1].removeprefix("rayfl.errors.UserError: ")
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
