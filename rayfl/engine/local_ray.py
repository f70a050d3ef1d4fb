"""A Ray that a run starts for itself: on loopback, with a token of its user alone, in sessions of its own."""

from __future__ import annotations

import errno
import logging
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.job_config import JobConfig

import rayfl
from rayfl.engine.client_states import spill_folder
from rayfl.engine.ray_private import ray_constants, services
from rayfl.errors import BadValue, Shortage, UserError
from rayfl.system.text import print_note, warn

DASHBOARD_VARIABLES = (
    "RAY_enable_metrics_collection",
    "RAY_task_events_report_interval_ms",
    "RAY_event_stats",
)
"""What a local cluster collects for its dashboard: a seventh of the processor time that is not training."""
FAST_CONNECT = {
    "RAY_raylet_client_connect_timeout_milliseconds": "20",
    "RAY_raylet_client_num_connect_attempts": "500",
}
"""How the parts of a local cluster wait for each other: ten seconds, as ever, but not in steps of one."""
METRICS_PORTS = ("AUTOSCALER_METRIC_PORT", "DASHBOARD_METRIC_PORT")
"""Ports at which Ray answers everybody, without a token. It has no switch for them, and goes on without."""
NO_PORT = "-1"
SLOW_PARENT_CHECKS = {
    "RAY_enable_pipe_based_agent_to_parent_health_check": "0",
    "RAY_DASHBOARD_AGENT_CHECK_PARENT_INTERVAL_S": "5",
}
"""How late the raylet's agents notice its end. They would print its log, and are ended before that."""
GCS_LIMIT = "RAY_gcs_server_port_wait_time_s"
"""The variable that says how many seconds Ray's GCS may take to start."""
SPILLS = {"RAY_object_spilling_directory", "RAY_object_spilling_config"}
"""The variables by which a user says where Ray spills."""
START_TRIES = (1, 2, 4)
"""How many times as long as usual Ray's parts may take to start, try after try."""
MIN_FREE_BYTES = 2**20
"""Bytes without which Ray cannot start, or write that it cannot."""
USUAL_SECONDS = 30
"""Seconds that Ray gives its GCS to start, and then the node."""


MAX_FOLDER_BYTES = 107 - len(
    "/rayfl-12345678/ray/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store"
)
"""Most bytes of the name of a folder in which Ray can have its sockets: the kernel takes no longer paths."""
CLEAN_UP = """
trap '' HUP INT TERM
while read -r pid; do pids="$pids $pid"; done
for pid in $pids; do kill -s KILL -- "-$pid"; done
for again in 1 2 3 4 5 6 7 8 9 10; do rm -rf "$@" && break; sleep 0.2; done
"""
"""Waits until the process that writes to it has ended in any way; then ends and removes what is left."""


class _Job(JobConfig):
    """A job of a command, whose processes look for modules in its folder last: Ray would put it first."""

    def _runtime_env_has_working_dir(self) -> bool:
        return True  # so Ray adds no folders


class LocalRay:
    """A Ray on this machine for this process alone, which has joined it; until it is stopped.

    Ray binds all of its servers to loopback if that is the address of its host. Its processes get sessions of
    their own, so that a signal to the process group of the run reaches the run alone: Ray's processes would
    end with it, and the round in progress could not. Sockets and logs are in a folder that no other user can
    enter, and spilled objects in another one, on a disk; in them, Ray lets everybody write.

    The kernel ends Ray's processes with the thread that has started them, but for the raylet's agents, which
    would stay for a minute. A small process ends these and removes the folders, however this one ends.

    Args:
        dashboard: whether it has a dashboard, and collects data for it.
    """

    def __init__(self, dashboard: bool) -> None:
        make_token()
        started = retry_start(partial(self._try_start, dashboard))
        if dashboard:
            print_note(f"dashboard   http://{started.dashboard_url}, for the time of the run")

    def _try_start(self, dashboard: bool, times: int) -> Any:
        """Start it, or clean up after a failure; see :func:`retry_start`."""
        spilling = os.environ.get("RAY_TMPDIR") or spill_folder()
        self._folders = [tempfile.mkdtemp(prefix="rayfl-", dir=at) for at in (temporary_folder(), spilling)]
        self._cleaner = subprocess.Popen(
            ["/bin/sh", "-c", CLEAN_UP, "sh", *self._folders],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        settings = SLOW_PARENT_CHECKS | dict.fromkeys(METRICS_PORTS, NO_PORT)
        settings |= {} if dashboard else dict.fromkeys(DASHBOARD_VARIABLES, "0")
        settings = {name: value for name, value in settings.items() if name not in os.environ}
        # Half of it would change how long they wait altogether.
        if FAST_CONNECT.keys().isdisjoint(os.environ):
            attempts = {
                name: str(times * int(value)) for name, value in FAST_CONNECT.items() if "attempts" in name
            }
            settings |= FAST_CONNECT | attempts
        try:
            with (
                _set_environment(settings),  # this cluster's alone: another one may have a dashboard
                _patch_attribute(
                    services, "ConsolePopen", partial(self._start_process, services.ConsolePopen)
                ),
                _patch_attribute(ray_constants, "ENABLE_RAY_CLUSTER", False),
            ):
                return ray.init(
                    address="local",
                    include_dashboard=dashboard,
                    dashboard_host="127.0.0.1",
                    logging_level=logging.ERROR,
                    job_config=_Job() if rayfl.STARTED in os.environ else None,
                    object_spilling_directory=None if SPILLS & os.environ.keys() else self._folders[1],
                    _temp_dir=str(Path(self._folders[0], "ray")),
                )
        except BaseException:
            self.stop(broken=True)
            raise

    def _start_process(self, popen: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Start one of Ray's processes."""
        process = popen(*arguments, **options, start_new_session=True)
        assert self._cleaner.stdin is not None
        self._cleaner.stdin.write(f"{process.pid}\n".encode())
        self._cleaner.stdin.flush()
        return process

    def _clean_up(self) -> None:
        assert self._cleaner.stdin is not None
        self._cleaner.stdin.close()
        self._cleaner.wait()

    def stop(self, broken: bool = False) -> None:
        """Stop it.

        Args:
            broken: whether one of its processes is gone; the others would wait for it.
        """
        if broken:
            self._clean_up()
        ray.shutdown()
        self._clean_up()
        for folder in self._folders:  # a driver without a raylet makes the first once more
            shutil.rmtree(folder, ignore_errors=True)


def retry_start(start: Callable[[int], Any]) -> Any:
    """Start Ray; if a busy machine does not start it in time, try again with longer limits.

    Args:
        start: calls ``ray.init``; its argument is how many times as long as usual Ray's parts may take.

    Raises:
        UserError: it has not come up in any try.
    """
    find, reason = services.get_node, ""
    for times in START_TRIES:
        limits = {} if GCS_LIMIT in os.environ else {GCS_LIMIT: str(times * USUAL_SECONDS)}
        try:
            with (
                _set_environment(limits),
                _patch_attribute(
                    services, "get_node", partial(_find_node, find, (times - 1) * USUAL_SECONDS)
                ),
            ):
                return start(times)
        except Exception as error:
            late = isinstance(error, ConnectionError | TimeoutError)
            if isinstance(error, UserError | OSError) and not late:
                raise
            # Ray may not say that a disk is full.
            if shutil.disk_usage(place := temporary_folder()).free < MIN_FREE_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), place) from error
            reason = " ".join(str(error).split())
            ray.shutdown()
            if times != START_TRIES[-1]:
                warn(f"Ray has not started ({reason}): trying again with longer limits")
    raise Shortage(
        f"Ray cannot be started on this machine ({reason}), after {len(START_TRIES)} tries: the machine may "
        "be too busy, so try again later, or use --engine Inline, which needs no Ray"
    )


def _find_node(find: Callable[..., Any], seconds: float, *arguments: Any) -> Any:
    """Return Ray's data of a node as soon as it has them; Ray itself waits for half a minute."""
    end = time.monotonic() + seconds
    while True:
        try:
            return find(*arguments)
        except RuntimeError:
            if time.monotonic() >= end:
                raise
            time.sleep(0.1)


def temporary_folder() -> str:
    """Return where Ray would have its folder; ``/tmp`` if that path is too long."""
    wanted = os.path.abspath(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir())
    if len(os.fsencode(wanted)) > MAX_FOLDER_BYTES:
        return "/tmp"
    if not wanted.isascii():
        raise BadValue(
            "RAY_TMPDIR",
            f"is {wanted}, and Ray takes ASCII characters alone for the folder of temporary files",
            "name another one by this environment variable",
        )
    return wanted


@contextmanager
def _set_environment(settings: Mapping[str, str]) -> Iterator[None]:
    os.environ |= settings
    try:
        yield
    finally:
        for name in settings:
            del os.environ[name]


@contextmanager
def _patch_attribute(module: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def make_token() -> None:
    """Make Ray's token, which Ray itself would make readable for everybody; make one that is there private.

    Ray's variables about tokens take precedence.
    """
    used = os.environ.get("RAY_AUTH_MODE", "token").lower() == "token"
    if not used or not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}.isdisjoint(os.environ):
        return
    path = Path.home() / ".ray" / "auth_token"
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        own = path.with_name(f"{path.name}.{os.getpid()}")
        with suppress(FileNotFoundError):  # of a process of this number that was killed here
            own.unlink()
        try:
            with open(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_hex(32))
            with suppress(FileExistsError):  # another process was faster, and may be using its token already
                os.link(own, path)
        finally:
            own.unlink(missing_ok=True)
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)
