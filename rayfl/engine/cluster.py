"""The Ray cluster of a run: joined, or started for it."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

import numpy as np
import ray
from ray.exceptions import AuthenticationError

from rayfl.data import FederatedData
from rayfl.engine.guard import RAY_START_LOCK
from rayfl.engine.hosts import put_by_value
from rayfl.engine.local_ray import LocalRay
from rayfl.engine.ray_private import ray_client, services, with_token
from rayfl.errors import Conflict, Missing, Shortage
from rayfl.system.text import warn

PULSE = 1.0
"""Seconds between two checks of Ray's own processes; after a minute Ray ends the driver."""

RECONNECT_SECONDS = float(os.environ.get("RAY_gcs_rpc_server_reconnect_timeout_s", "60")) - 5  # noqa: SIM112
"""Seconds for which the GCS of a cluster that was joined may be away: somewhat less than Ray itself waits."""

ANSWER_SECONDS = 5.0
"""Seconds in which a cluster must answer when it is joined."""

AUTOSCALING_SECONDS = 600.0
"""Seconds to wait by default for what does not fit on a cluster that Ray can enlarge."""
NODE_GROUP = "ray.io/node-group"
"""The label that hosts of a cluster with an autoscaler have: Ray makes it of ``RAY_NODE_TYPE_NAME``."""


def wait_seconds(asked: float | Literal["auto"]) -> float:
    """Return the seconds to wait for what does not fit on the cluster.

    Where an autoscaler adds hosts, it labels each with its node group, as
    ``ray up`` and KubeRay do.

    Args:
        asked: see ``Ray.wait``.
    """
    if asked != "auto":
        return asked
    return AUTOSCALING_SECONDS if any(NODE_GROUP in node.get("Labels", {}) for node in ray.nodes()) else 0.0


class Cluster:
    """The cluster of a run: joined, or started for it and then stopped with it.

    It is started in a thread, beside what the run does meanwhile. The thread lives as long as the cluster,
    because Ray's processes end with the thread that has started them. The end of Python does not wait for it:
    Ray may not come up at all.

    Attributes:
        is_own: whether it was started for the run, on this host alone; known when it is up.
        code: digests of the user's own code that its processes need.

    Args:
        address: see ``Ray.address``.
        dashboard: see ``Ray.dashboard``.
    """

    def __init__(self, address: str | None, dashboard: bool = False) -> None:
        self.code: Mapping[str, str] = {}
        self._abandoned = threading.Event()
        self._over = threading.Event()
        self._connecting = Future[Callable[..., None] | None]()
        self._thread = threading.Thread(target=self._keep, args=(address, dashboard), name="ray", daemon=True)
        self._thread.start()

    def _keep(self, address: str | None, dashboard: bool) -> None:
        try:
            self._connecting.set_result(self._connect(address, dashboard))
        except BaseException as error:
            self._connecting.set_exception(error)
        self._over.wait()

    def _connect(self, address: str | None, dashboard: bool) -> Callable[..., None] | None:
        with RAY_START_LOCK:
            self.is_own = address is None and not ray.is_initialized()
            # Its own GCS never comes back.
            self._reconnect_seconds = 0.0 if self.is_own else RECONNECT_SECONDS
            leave = connect(address, dashboard)
            if leave and self._abandoned.is_set():
                leave()
            return None if self._abandoned.is_set() else leave

    def wait_until_up(self) -> None:
        """Wait until the cluster is up; give it up after an exception, such as Ctrl-C.

        Raises:
            UserError: it cannot be reached.
        """
        try:
            self._connecting.result()
            self._ray_processes, self._seen = _ray_processes(), time.monotonic()
        except BaseException:
            self.abandon()
            raise

    def dead_process(self, now: bool = False) -> str | None:
        """Return which of Ray's own processes is dead, without which nothing can be started or stopped.

        Args:
            now: whether the GCS of a cluster that was joined counts as dead at once.
        """
        away = [name for name, at in self._ray_processes.items() if _refuses_connection(at)]
        gcs = [*self._ray_processes][:1]
        if away != gcs:
            self._seen = time.monotonic()
        elif not now and time.monotonic() - self._seen < self._reconnect_seconds:
            return None
        return next(iter(away), None)

    def put_data(self, data: FederatedData) -> FederatedData:
        """Put the data into the object store; return a view of what is there.

        Images in a cache file stay there, and every process of this host maps them; where there are more
        hosts they travel, once to each.
        """
        self._travels = sum(node["Alive"] for node in ray.nodes()) > 1
        if self._travels:
            data = replace(data, dataset=replace(data.dataset, inputs=np.asarray(data.dataset.inputs)))
        self.shared = put_by_value(data, self.code)
        view: FederatedData = ray.get(self.shared)
        return view

    def share_with_new_hosts(self, data: FederatedData) -> None:
        """Send images in a cache file to hosts that have joined since the data were shared."""
        if not self._travels and type(data.dataset.inputs) is not np.ndarray:
            self.put_data(data)

    def abandon(self) -> None:
        """Give the cluster up before it was used: an error message need not wait for it."""
        self._abandoned.set()
        self._connecting.add_done_callback(_stop_started)
        self._over.set()

    def close(self) -> None:
        """Stop the cluster if it was started here."""
        if leave := self._connecting.result():
            leave(broken=self.dead_process(now=True) is not None)
        self._over.set()
        self._thread.join()


def _ray_processes() -> dict[str, tuple[str, int]]:
    """Return the addresses of the Ray processes that this process depends on, by their names."""
    if ray_client.is_connected():  # they are out of reach, and a server of Ray's stands between
        return {}
    context = ray.get_runtime_context()
    host, _, port = context.gcs_address.rpartition(":")
    here = context.get_node_id()
    (node,) = [node for node in ray.nodes() if node["NodeID"] == here]
    return {
        f"Ray's GCS at {context.gcs_address}": (host.strip("[]"), int(port)),
        "Ray's raylet on this host": (node["NodeManagerAddress"], node["NodeManagerPort"]),
    }


def _refuses_connection(address: tuple[str, int]) -> bool:
    """Return whether an address refuses connections; a network that is silent may come back."""
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


def connect(address: str | None, dashboard: bool = False) -> Callable[..., None] | None:
    """Start a local cluster or join one; return what leaves it again, None if this process was in it."""
    if ray.is_initialized():
        here = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", here):
            raise Conflict(
                "engine.address",
                f"is {address!r}, but this process has joined the Ray cluster at {here}",
                "leave the address out to use that one, or call ray.shutdown() first",
            )
        return None
    # Where an actor dies, all calls that waited for it fail: one of them is reported, the others need not be.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    if address is not None:
        with _unreachable_as_error(address):
            ray.init(address=_reachable_address(address), logging_level=logging.ERROR)
        return lambda broken=False: ray.shutdown()
    if other := os.environ.get("RAY_ADDRESS"):
        warn(
            f"RAY_ADDRESS is {other}, and rayfl starts a Ray of its own, because engine.address is not "
            "given: --engine.address auto joins the cluster there"
        )
    return LocalRay(dashboard).stop


def check_address(address: str) -> None:
    """Refuse an address where no cluster answers, before anything is started.

    A process that has joined a cluster goes on in that one; :func:`connect` looks whether it is meant.
    """
    if not ray.is_initialized():
        with _unreachable_as_error(address):
            _reachable_address(address)


@contextmanager
def _unreachable_as_error(address: str) -> Iterator[None]:
    try:
        yield
    except AuthenticationError as error:
        reason = error.message.strip().splitlines()[0].rstrip(".")  # without how to make a new token
        raise Missing(
            "engine.address",
            f"is {address!r}, and the Ray cluster there does not let this process in ({reason})",
            "set RAY_AUTH_MODE=token, and give the token with which the cluster was started by "
            "RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token",
        ) from error
    except (OSError, RuntimeError, ValueError) as error:
        raise Shortage(
            "engine.address",
            f"is {address!r}, and no Ray cluster can be reached there ({error})",
            "start one with `ray start --head` or `ray up`, or leave the address out for a local one",
        ) from error


def _reachable_address(address: str) -> str:
    """Return the address of a cluster that answers: where none does, Ray would try for ten minutes.

    ``auto`` is what ``RAY_ADDRESS`` says, or the cluster of the last ``ray start`` on this host. Ray itself
    would take any that runs here, such as one that another run has started for itself alone.

    Raises:
        OSError: nobody answers.
    """
    found: str | None = address
    if address == "auto":
        found = os.environ.get("RAY_ADDRESS") or services.find_bootstrap_address(None)
    if not found or found == "auto":
        raise OSError("none was started on this host, and RAY_ADDRESS names none")
    host, _, port = found.removeprefix("ray://").rpartition(":")
    if host and port.isdigit() and "/" not in host:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS).close()
            if os.environ.get("RAY_USE_TLS", "0") in ("", "0"):
                _check_speaks(f"{host}:{port}")
        except OSError as error:
            raise OSError(f"{found}: {error}") from error
    return found


def _check_speaks(address: str) -> None:
    """Raise OSError where another program than Ray listens, AuthenticationError where a token is wrong.

    Ray itself would try a wrong one for a minute, with a warning every second.
    """
    import grpc  # which comes with Ray, and few runs need

    with grpc.insecure_channel(address, [("grpc.enable_http_proxy", 0)]) as channel:
        try:
            grpc.channel_ready_future(channel).result(ANSWER_SECONDS)
        except grpc.FutureTimeoutError:
            raise OSError("what listens there is not Ray") from None
        asked = with_token(channel).unary_unary("/ray.rpc.NodeInfoGcsService/GetClusterId")
        try:
            asked(b"", timeout=ANSWER_SECONDS)
        except grpc.RpcError as error:  # whatever else is wrong, Ray will say
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                raise AuthenticationError(error.details()) from None
