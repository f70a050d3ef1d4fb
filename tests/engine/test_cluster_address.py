"""A cluster that is not there: every command says so at once, and starts and writes nothing."""

import logging
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from rayfl import Ray
from rayfl.__main__ import main as rayfl
from rayfl.errors import Conflict, Missing, Shortage
from rayfl.system.log import warnings_shown
from tests.support.refusals import refused
from tests.support.sweeps import TINY as SPACE
from tests.support.tables import TINY

cluster = pytest.importorskip("rayfl.engine.cluster")


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of any cluster: other tests may have joined one, and this host may have one."""
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "nothing"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address at which nothing listens: bound, and no more."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.mark.parametrize(("labels", "seconds"), [({}, 0.0), ({cluster.NODE_GROUP: "workers"}, 600.0)])
def test_how_long_a_run_waits_for_room(
    labels: dict[str, str], seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default only where Ray can add hosts."""
    monkeypatch.setattr(cluster.ray, "nodes", lambda: [{"Labels": {}}, {"Labels": labels}])
    assert cluster.wait_seconds("auto") == seconds
    assert cluster.wait_seconds(7.0) == 7.0


def test_an_address_that_nobody_asked_for_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cluster, "LocalRay", MagicMock())
    with warnings_shown():
        cluster.connect(None)
        assert not capsys.readouterr().err
        monkeypatch.setenv("RAY_ADDRESS", "10.1.2.3:6379")
        cluster.connect(None, True)
    (line,) = capsys.readouterr().err.splitlines()
    assert "10.1.2.3:6379" in line
    assert [made.args for made in cluster.LocalRay.call_args_list] == [(False,), (True,)]


@pytest.mark.parametrize("command", ["run", "table", "tune"])
def test_no_command_waits_for_a_cluster_that_is_gone(
    command: str, nobody: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the last `ray start` of this host has left behind; Ray would try for ten minutes."""
    left = tmp_path / "nothing" / "ray" / "ray_current_cluster"
    left.parent.mkdir(parents=True)
    left.write_text(nobody)
    (tmp_path / "file.yaml").write_text({"table": TINY, "tune": SPACE}.get(command, ""))
    given = {
        "run": ["--data", "Synthetic", "--engine.address", "auto"],
        "table": ["file.yaml", "--engine", "Ray", "--engine.address", "auto"],
        "tune": ["file.yaml", "--address", "auto"],
    }
    before = {path.name for path in tmp_path.iterdir()}
    assert rayfl([command, *given[command], "--output", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert f"engine.address is 'auto', and no Ray cluster can be reached there ({nobody}: [Errno 111]" in said
    assert "start one with `ray start --head`" in said
    assert said.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == before


def test_auto_without_any_cluster() -> None:
    with refused(Shortage, "engine.address") as caught:
        cluster.check_address("auto")
    assert "RAY_ADDRESS names none" in str(caught.value)


def test_the_variable_comes_first(monkeypatch: pytest.MonkeyPatch, nobody: str) -> None:
    for address in (nobody, f"ray://{nobody}"):
        monkeypatch.setenv("RAY_ADDRESS", address)
        with refused(Shortage, "engine.address") as caught:
            cluster.check_address("auto")
        assert f"{address}: " in str(caught.value)


def test_another_program_than_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "ANSWER_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with refused(Shortage, "engine.address") as caught:
            cluster.check_address(f"127.0.0.1:{port}")
    assert "what listens there is not Ray" in str(caught.value)


def test_a_cluster_that_refuses_the_token() -> None:
    """It is told apart from one that is not there, and the message says how to give the token."""
    grpc = pytest.importorskip("grpc")

    class Guarded(grpc.GenericRpcHandler):  # type: ignore[name-defined,misc]
        def service(self, details: Any) -> Any:
            def refuse(request: bytes, context: Any) -> None:
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "InvalidAuthToken: it is missing or incorrect")

            return grpc.unary_unary_rpc_method_handler(refuse)

    server = grpc.server(ThreadPoolExecutor(1), handlers=[Guarded()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with refused(Missing, "engine.address") as caught:
            cluster.check_address(f"127.0.0.1:{port}")
        assert "RAY_AUTH_TOKEN" in str(caught.value)
    finally:
        server.stop(None)


def test_a_cluster_that_answers(ray_runtime: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the one that is joined, whatever else is running."""
    joined: list[str] = []
    monkeypatch.setenv("RAY_ADDRESS", ray_runtime)
    monkeypatch.setattr(cluster.ray, "init", lambda address, **_: joined.append(address))
    assert cluster.connect("auto")
    assert joined == [ray_runtime]


def test_a_cluster_is_stopped_where_nobody_waits_for_it_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ctrl-C does in a notebook, which would go on in it unasked."""
    left: list[bool] = []
    monkeypatch.setattr(cluster, "connect", lambda *asked: lambda: left.append(True))
    monkeypatch.setattr(cluster, "_ray_processes", MagicMock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt), Ray().start_in_background("run"):
        pass
    assert left == [True]


def test_a_cluster_that_is_given_up_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stopped, once, as soon as it is up."""
    may_come, left = threading.Event(), list[bool]()

    def connect(*asked: Any) -> Any:
        may_come.wait(20)
        return lambda: left.append(True)

    monkeypatch.setattr(cluster, "connect", connect)
    starting = cluster.Cluster(None)
    starting.abandon()
    assert not starting._connecting.done()
    may_come.set()
    assert starting._connecting.result() is None
    starting._thread.join()
    assert left == [True]


@pytest.mark.parametrize("dead", [None, "Ray's raylet on this host"])
def test_a_cluster_is_left_by_the_way_in_which_it_was_joined(
    dead: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[Any] = []

    def connect(*asked: Any) -> Any:
        return lambda broken: left.append((*asked, broken))

    monkeypatch.setattr(cluster, "connect", connect)
    monkeypatch.setattr(cluster.Cluster, "dead_process", lambda self, now=False: dead if now else None)
    for address, own in ((None, True), ("auto", False)):
        joined = cluster.Cluster(address, dashboard=own)
        joined.close()
        assert joined.is_own == own
        assert joined._reconnect_seconds == (0 if own else cluster.RECONNECT_SECONDS)
        assert left.pop() == (address, own, bool(dead))
        assert not joined._thread.is_alive()


def test_which_of_rays_processes_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A raylet is at once, and a GCS when it has been away for ten seconds, unless both are away."""
    away, clock = set[int](), SimpleNamespace(now=0.0)
    monkeypatch.setattr(cluster, "_refuses_connection", lambda at: at[1] in away)
    monkeypatch.setattr(cluster, "time", SimpleNamespace(monotonic=lambda: clock.now))
    joined = object.__new__(cluster.Cluster)
    joined._ray_processes = {"gcs": ("host", 1), "raylet": ("host", 2)}
    joined._seen, joined._reconnect_seconds = 0.0, 10.0
    for now, gone, dead in (
        (20.0, {}, None),
        (29.0, {1}, None),
        (29.5, {2}, "raylet"),
        (39.0, {1}, None),
        (39.5, {1}, "gcs"),
        (40.0, {}, None),
        (45.0, {1, 2}, "gcs"),
        (46.0, {1}, None),
    ):
        clock.now, away = now, {*gone}
        assert joined.dead_process() == dead
    assert joined.dead_process(now=True) == "gcs"
    joined._ray_processes = {}
    assert joined.dead_process(now=True) is None


def test_what_refuses_connections(nobody: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent network does not."""
    assert cluster._refuses_connection(("127.0.0.1", int(nobody.rpartition(":")[2])))
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert not cluster._refuses_connection(other.getsockname())
    monkeypatch.setattr(cluster.socket, "create_connection", MagicMock(side_effect=TimeoutError))
    assert not cluster._refuses_connection(("127.0.0.1", 1))


def test_the_processes_on_which_a_run_depends(monkeypatch: pytest.MonkeyPatch) -> None:
    """None that can be reached by way of Ray's client server."""
    here = SimpleNamespace(gcs_address="[::1]:6379", get_node_id=lambda: "b")
    nodes = [{"NodeID": k, "NodeManagerAddress": f"10.0.0.{k}", "NodeManagerPort": 7} for k in "ab"]
    monkeypatch.setattr(cluster.ray, "get_runtime_context", lambda: here)
    monkeypatch.setattr(cluster.ray, "nodes", lambda: nodes)
    monkeypatch.setattr(cluster, "ray_client", SimpleNamespace(is_connected=lambda: False))
    assert [*cluster._ray_processes().values()] == [("::1", 6379), ("10.0.0.b", 7)]
    monkeypatch.setattr(cluster, "ray_client", SimpleNamespace(is_connected=lambda: True))
    assert cluster._ray_processes() == {}


def test_a_process_that_has_joined_a_cluster_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(cluster.ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address="10.0.0.1:1"))
    for address in (None, "auto", "10.0.0.1:1"):
        assert cluster.connect(address) is None
    cluster.check_address("nowhere")
    with refused(Conflict, "engine.address"):
        cluster.connect("10.0.0.2:1")
    assert not cluster.Cluster(None)._connecting.result()
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(cluster, "_reachable_address", lambda address: f"found {address}")
    monkeypatch.setenv("RAY_IGNORE_UNHANDLED_ERRORS", "")
    monkeypatch.delenv("RAY_IGNORE_UNHANDLED_ERRORS")
    for name in ("init", "shutdown"):
        monkeypatch.setattr(cluster.ray, name, MagicMock())
    leave = cluster.connect("there")
    assert cluster.ray.init.call_args.kwargs == {"address": "found there", "logging_level": logging.ERROR}
    assert os.environ["RAY_IGNORE_UNHANDLED_ERRORS"] == "1"
    assert not cluster.ray.shutdown.called
    leave(broken=True)
    assert cluster.ray.shutdown.called
