"""A Ray that a run starts for itself: what it opens, what it leaves, and what happens when it goes.

Only processes and files of the runs that are started here are looked at: others may run Ray, too.
"""

import contextlib
import errno
import http.client
import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

import rayfl
from rayfl.errors import BadValue, Missing, Shortage, shortage
from tests.support.processes import rounds_of, wait_until
from tests.support.refusals import refused

ray: Any = pytest.importorskip("ray")

from rayfl.engine import local_ray  # noqa: E402
from rayfl.run import main  # noqa: E402

LIMIT = 300.0
"""Seconds after which something that should end counts as never ending."""
SMALLEST = ["--data", "Synthetic", "--data.train", "40", "--data.test", "20", "--net", "LeNet"]
SMALLEST += ["--clients", "2", "--method", "FedAvg", "--loggers", "[]"]
SMALLEST += ["--engine", "Ray", "--engine.actors", "1"]


@dataclass
class Run:
    """A run in a fresh home, with a folder of its own for temporary files."""

    home: Path
    folder: Path
    process: subprocess.Popen[str]

    def left(self, family: list[psutil.Process], shared: set[Path]) -> list[str]:
        """Return what is left of a run that has ended, in words."""
        left = [f"process {p.pid}" for p in family if lives(p)]
        left += [f"shared memory {path}" for path in shared if path.exists()]
        return left + [f"temporary file {path}" for path in (self.home / "tmp").iterdir()]


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def shared_memory(family: list[psutil.Process]) -> set[Path]:
    """Return the names of shared memory that these processes use; what is deleted has none."""
    found = set()
    for process in family:
        for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
            path = line.partition("/dev/shm/")[2]
            if path and not path.endswith("(deleted)"):
                found.add(Path("/dev/shm", path))
    return found


@contextlib.contextmanager
def leaving_nothing(*options: str) -> Iterator[tuple[Run, list[psutil.Process]]]:
    """Start a run, as the leader of a process group; yield it with all of its processes in its third round.

    When it has ended, soon nothing is left.
    """
    home = Path(tempfile.mkdtemp(dir="/tmp"))  # the paths of sockets must be short
    (home / "tmp").mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment["RAY_worker_niceness"] = "0"  # else its actor waits for the tests beside it
    process = subprocess.Popen(
        [sys.executable, "-m", "rayfl.run", *SMALLEST, "--output", str(home / "run"), *options],
        env=environment | {"HOME": str(home), "TMPDIR": str(home / "tmp"), "OMP_NUM_THREADS": "1"},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    run = Run(home, home / "run", process)
    try:
        wait_until(lambda: rounds_of(run.folder) >= 2, process)
        driver = psutil.Process(process.pid)
        family = [driver, *driver.children(recursive=True)]
        shared = shared_memory(family)
        yield run, family
        end = time.monotonic() + LIMIT
        while (left := run.left(family, shared)) and time.monotonic() < end:
            threading.Event().wait(0.05)
        assert left == []
    finally:
        process.kill()
        process.communicate()
        shutil.rmtree(home, ignore_errors=True)


def listening(family: list[psutil.Process]) -> list[tuple[str, str, int]]:
    """Return name of the process, address and port of all sockets to which others can send."""
    found = []
    for process in family:
        for connection in process.net_connections("inet"):
            if connection.status in (psutil.CONN_LISTEN, psutil.CONN_NONE):  # the latter is UDP
                found.append((process.name(), connection.laddr.ip, connection.laddr.port))
    return found


def metrics(port: int) -> int | None:
    """Return the status with which a port answers somebody without a token who asks for metrics."""
    asked = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        asked.request("GET", "/metrics")
        return asked.getresponse().status
    except (OSError, http.client.HTTPException):  # it speaks another language
        return None
    finally:
        asked.close()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_a_run_opens_and_a_signal_to_its_process_group() -> None:
    """``timeout`` and batch systems send SIGTERM to all of a group; Ray's processes are not in it."""
    with leaving_nothing("--rounds", "100000", "--checkpoint_every", "100000") as (run, family):
        assert {"gcs_server", "raylet"} <= {process.name() for process in family}

        open_to_others = listening(family)
        assert {"gcs_server", "raylet"} <= {name for name, _, _ in open_to_others}
        loopback = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
        assert [socket for socket in open_to_others if socket[1] not in loopback] == []
        with ThreadPoolExecutor() as threads:  # some ports say nothing for a while
            assert 200 not in threads.map(metrics, (port for *_, port in open_to_others))

        assert mode(run.home / ".ray") == 0o700
        assert mode(run.home / ".ray" / "auth_token") == 0o600
        assert [mode(place) for place in (run.home / "tmp").iterdir()] == [0o700] * 2  # of Ray, and to spill

        os.killpg(run.process.pid, signal.SIGTERM)
        out, err = run.process.communicate(timeout=LIMIT)
        assert (run.process.returncode, err) == (130, "")
        assert f"go on with --resume {run.folder}" in out
        assert list((run.folder / "checkpoints").glob("manifest-*.json"))
        assert [path.name for path in run.home.iterdir() if path.name not in ("run", "tmp")] == [".ray"]
        assert [path.name for path in (run.home / ".ray").iterdir()] == ["auth_token"]


@pytest.mark.slow
@pytest.mark.parametrize(("rounds", "kill", "code"), [("10", False, 0), ("100000", True, -signal.SIGKILL)])
def test_what_a_run_leaves_that_ends_by_itself_or_is_killed(rounds: str, kill: bool, code: int) -> None:
    with leaving_nothing("--rounds", rounds) as (run, _):
        if kill:
            run.process.kill()
        run.process.communicate(timeout=LIMIT)
        assert run.process.returncode == code


@pytest.mark.slow
def test_the_folder_of_a_command_comes_last_in_actors_too(tmp_path: Path) -> None:
    """A file in it with the name of a library does not take the library's place."""
    here, script = tmp_path / "here", tmp_path / "bin" / "rayfl"
    here.mkdir()
    script.parent.mkdir()
    script.write_text("from rayfl.__main__ import main\nraise SystemExit(main())\n")
    (here / "wave.py").write_text("raise RuntimeError('this is no library')\n")
    (here / "mine.py").write_text(
        "import wave\nfrom rayfl.methods import FedAvg\n\n\nclass Mine(FedAvg):\n"
        "    def init_client(self, client):\n        return {'file': len(wave.__file__)}\n"
    )
    command = [sys.executable, str(script), "run", *SMALLEST, "--method", "mine.Mine", "--rounds", "1"]
    done = subprocess.run([*command, "--quiet", "true"], cwd=here, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "part"), [("raylet", "Ray's raylet on this host"), ("gcs_server", "Ray's GCS at 127.0.0.1:")]
)
def test_a_run_whose_ray_is_gone_says_so_in_a_line(name: str, part: str) -> None:
    with leaving_nothing("--rounds", "100000", "--quiet", "true") as (run, family):
        (victim,) = [process for process in family if process.name() == name]
        victim.kill()
        out, err = run.process.communicate(timeout=LIMIT)
        assert (run.process.returncode, out) == (2, "")
        # An actor that dies in the middle of a call may leave a trace of Ray's, passed on with its name.
        (line,) = [line for line in err.splitlines() if " pid=" not in line]
        assert line.startswith(f"rayfl: error: {part}")
        assert line.endswith(f"go on with --resume {run.folder}")


# ---- a busy machine


STEP, STEPS = local_ray.FAST_CONNECT


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str | None]]]:
    """A Ray that never starts in time, and leaves nothing; the limits and steps that it was given."""
    limits: list[tuple[str, str | None]] = []

    def init(**options: object) -> None:
        limits.append((os.environ[local_ray.GCS_LIMIT], os.environ.get(STEPS)))
        raise Exception("The current node timed out during startup.\nIts raylet")

    place = tempfile.mkdtemp(dir="/tmp")
    monkeypatch.setenv("RAY_TMPDIR", place)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    yield limits
    os.rmdir(place)


def test_a_machine_that_is_too_busy_for_ray(
    tmp_path: Path, busy: list[tuple[str, str | None]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Two more tries with longer limits, and then one line."""
    assert main([*SMALLEST, "--output", str(tmp_path / "run")]) == 2
    *warnings, line = capsys.readouterr().err.splitlines()
    assert ["trying again" in warning for warning in warnings] == [True, True]
    assert line.startswith("rayfl: error: Ray cannot be started on this machine (The current node timed out")
    assert busy == [("30", "500"), ("60", "1000"), ("120", "2000")]


def test_a_ray_that_starts_at_the_last_try(busy: list[tuple[str, str | None]]) -> None:
    assert local_ray.retry_start(lambda times: ray.init() if times < 4 else times) == 4
    assert busy == [("30", None), ("60", None)]


class Clock:
    """Gives these times, one after the other; nobody waits."""

    def __init__(self, *times: float) -> None:
        self.monotonic, self.slept = iter(times).__next__, list[float]()

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.mark.parametrize(("fails", "asked"), [(1, 2), (2, 3), (3, None)])
def test_a_node_is_looked_for_until_it_is_there(
    monkeypatch: pytest.MonkeyPatch, fails: int, asked: int | None
) -> None:
    """Or until the time is over: 30 seconds after it was 5 o'clock."""
    clock, calls = Clock(5.0, 34.0, 34.9, 35.0), list[Any]()
    monkeypatch.setattr(local_ray, "time", clock)

    def find(*arguments: Any) -> int:
        calls.append(arguments)
        if len(calls) <= fails:
            raise RuntimeError
        return len(calls)

    with pytest.raises(RuntimeError) if asked is None else contextlib.nullcontext():
        assert local_ray._find_node(find, 30.0, "address", "node") == asked
    assert set(calls) == {("address", "node")}
    assert len(clock.slept) == (asked or 3) - 1


@pytest.mark.parametrize(
    ("error", "free", "tries"),
    [
        (ConnectionError(), 2**20, 3),
        (TimeoutError(), 2**20, 3),
        (ValueError(), 2**20, 3),
        (ValueError(), 2**20 - 1, 1),
        (PermissionError(), 2**20, 1),
        (Missing("ray"), 2**20, 1),
    ],
)
def test_what_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
    busy: list[Any],
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    free: int,
    tries: int,
) -> None:
    """With limits that are the user's, if there are any; each new try is told of."""
    monkeypatch.setenv(local_ray.GCS_LIMIT, "7")
    monkeypatch.setattr(local_ray.shutil, "disk_usage", lambda place: SimpleNamespace(free=free))
    asked: list[Any] = []

    def start(times: int) -> None:
        asked.append((times, os.environ[local_ray.GCS_LIMIT], len(caplog.records)))
        raise error

    full = free < 2**20
    with pytest.raises(OSError if full else Shortage if tries > 1 else type(error)) as caught:
        local_ray.retry_start(start)
    assert asked == [(1, "7", 0), (2, "7", 1), (4, "7", 2)][:tries]
    assert not full or getattr(caught.value, "errno", None) == errno.ENOSPC
    assert os.environ[local_ray.GCS_LIMIT] == "7"


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What a Ray was started with that has one process, which would not end by itself."""
    place = Path(tempfile.mkdtemp(dir="/tmp"))  # the paths of sockets must be short
    seen: dict[str, Any] = {"place": place}
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # it needs no token in this home
    monkeypatch.setenv("RAY_TMPDIR", str(place))
    ours = {*local_ray.METRICS_PORTS, *local_ray.SLOW_PARENT_CHECKS, *local_ray.DASHBOARD_VARIABLES}
    for name in ours | {*local_ray.FAST_CONNECT} | local_ray.SPILLS | {"TMPDIR", rayfl.STARTED}:
        monkeypatch.delenv(name, raising=False)

    def init(**options: Any) -> SimpleNamespace:
        seen.update(os.environ | options)
        seen["folders"] = [*place.iterdir()]
        seen["loopback"] = not local_ray.ray_constants.ENABLE_RAY_CLUSTER
        seen["process"] = local_ray.services.ConsolePopen(["cat"], stdin=subprocess.PIPE)
        if "error" in seen:
            raise seen["error"]
        return SimpleNamespace(dashboard_url="127.0.0.1:8265")

    monkeypatch.setattr(ray, "init", init)

    def shutdown() -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            seen["left"] = None
            seen["left"] = seen["process"].wait(5 if "error" in seen else 0)

    monkeypatch.setattr(ray, "shutdown", shutdown)
    yield seen
    seen["process"].kill()
    seen["process"].communicate()
    place.rmdir()


def test_the_processes_of_a_local_cluster(begun: dict[str, Any]) -> None:
    """They have sessions and folders of their own, and end with it, after this process has left."""
    before = dict(os.environ), local_ray.ray_constants.ENABLE_RAY_CLUSTER, local_ray.services.ConsolePopen
    here = local_ray.LocalRay(dashboard=False)
    pid = begun["process"].pid
    assert os.getsid(pid) == pid
    assert len(begun["folders"]) == 2
    assert begun["loopback"]
    options = {"address": "local", "include_dashboard": False, "dashboard_host": "127.0.0.1"}
    options |= {"job_config": None, "object_spilling_directory": here._folders[1]}
    options |= {"_temp_dir": f"{here._folders[0]}/ray", "logging_level": logging.ERROR}
    environment = local_ray.SLOW_PARENT_CHECKS | dict.fromkeys(local_ray.METRICS_PORTS, "-1")
    assert options | environment == {name: begun[name] for name in (*options, *environment)}
    after = dict(os.environ), local_ray.ray_constants.ENABLE_RAY_CLUSTER, local_ray.services.ConsolePopen
    assert after == before
    assert "left" not in begun
    here.stop()
    assert begun["left"] is None
    assert begun["process"].wait(LIMIT) == -signal.SIGKILL
    assert not list(begun["place"].iterdir())


def test_the_processes_of_a_local_cluster_end_with_a_driver_that_is_killed(begun: dict[str, Any]) -> None:
    """The kernel then closes the driver's end of a pipe, and what is in its buffers is lost."""
    here = local_ray.LocalRay(dashboard=False)
    here._cleaner.stdin.raw.close()
    assert begun["process"].wait(60) == -signal.SIGKILL
    assert here._cleaner.wait(60) == 0
    assert not list(begun["place"].iterdir())


def test_a_local_cluster_that_does_not_come_up(begun: dict[str, Any]) -> None:
    """Its processes end first: leaving it would wait for them."""
    begun["error"] = Missing("ray")
    with pytest.raises(Missing):
        local_ray.LocalRay(dashboard=False)
    assert begun["left"] == -signal.SIGKILL
    assert not list(begun["place"].iterdir())


def test_the_job_of_a_command(begun: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray adds no folders to those where its processes look for modules."""
    monkeypatch.setenv(rayfl.STARTED, "1")
    local_ray.LocalRay(dashboard=False).stop()
    assert begun["job_config"]._runtime_env_has_working_dir()


@pytest.mark.parametrize("dashboard", [False, True])
def test_a_local_cluster_collects_only_for_a_dashboard(
    begun: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    dashboard: bool,
) -> None:
    """And says where that is; what the user has set stays."""
    ours, given, _ = local_ray.DASHBOARD_VARIABLES
    monkeypatch.setenv(given, "500")
    local_ray.LocalRay(dashboard).stop()
    assert begun["include_dashboard"] == dashboard
    assert (begun.get(ours), begun[given]) == (None if dashboard else "0", "500")
    assert (os.environ.get(ours), os.environ[given]) == (None, "500")
    assert ("http://127.0.0.1:8265" in capsys.readouterr().out) == dashboard


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, ("20", "500")), ({STEPS: "30"}, (None, "30")), ({STEPS: "30", STEP: "1000"}, ("1000", "30"))],
)
def test_a_local_cluster_waits_in_small_steps(
    begun: dict[str, Any], monkeypatch: pytest.MonkeyPatch, given: dict[str, str], expected: Any
) -> None:
    """Ten seconds in all, as Ray does; steps of the user's are of a second each, as the user knows them."""
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    local_ray.LocalRay(dashboard=False).stop()
    assert (begun.get(STEP), begun[STEPS]) == expected
    assert {name: os.environ[name] for name in (STEP, STEPS) if name in os.environ} == given


def test_where_a_local_cluster_spills(
    begun: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where states of clients go that do not fit into memory, unless Ray has another place from the user."""
    monkeypatch.delenv("RAY_TMPDIR")
    for name, place in ((None, Path("/var/tmp")), ("TMPDIR", tmp_path), (min(local_ray.SPILLS), None)):
        monkeypatch.setattr(tempfile, "tempdir", None)
        if name is not None:
            monkeypatch.setenv(name, str(tmp_path))
        local_ray.LocalRay(dashboard=False).stop()
        spills = begun["object_spilling_directory"]
        assert (spills if spills is None else Path(spills).parent) == place
        assert spills is None or not Path(spills).exists()


# ---- folders and full disks


@pytest.mark.parametrize(
    "error",
    [
        ray.exceptions.OutOfDiskError("Local disk is full"),
        ray.exceptions.RayTaskError("train", "its trace", OSError(errno.ENOSPC, "")).as_instanceof_cause(),
    ],
)
def test_a_full_disk_is_found_among_the_causes_of_an_error(error: Exception) -> None:
    raised = ValueError()
    raised.__cause__ = error
    assert "make room" in str(shortage(raised))


def test_folders_that_ray_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """It could not make its sockets in one with a long path, and takes ASCII alone."""
    longest = "/" + "x" * (local_ray.MAX_FOLDER_BYTES - 1)
    monkeypatch.chdir("/tmp")
    for asked, found in ((longest, longest), ("here", "/tmp/here"), (f"{longest}x", "/tmp")):
        monkeypatch.setenv("RAY_TMPDIR", asked)
        assert local_ray.temporary_folder() == found
    monkeypatch.setenv("RAY_TMPDIR", "/tmp/für")
    with refused(BadValue, "RAY_TMPDIR"):
        local_ray.temporary_folder()


# ---- the token


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fresh home, in a process that makes files for everybody."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    before = os.umask(0)
    yield tmp_path
    os.umask(before)


def test_a_token_is_made_once_and_for_its_user_alone(home: Path) -> None:
    local_ray.make_token()
    token = home / ".ray" / "auth_token"
    first = token.read_text()
    assert len(bytes.fromhex(first)) == 32
    assert (mode(token.parent), mode(token)) == (0o700, 0o600)
    local_ray.make_token()
    assert token.read_text() == first
    assert list(token.parent.iterdir()) == [token]


def test_a_token_of_the_users_is_kept_and_closed_to_others(home: Path) -> None:
    (home / ".ray").mkdir(mode=0o755)
    token = home / ".ray" / "auth_token"
    token.write_text("mine")
    assert mode(token) == 0o666
    local_ray.make_token()
    assert (token.read_text(), mode(token), mode(token.parent)) == ("mine", 0o600, 0o755)


def test_a_token_of_a_faster_process_is_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = home / ".ray" / "auth_token"
    link = os.link

    def slower(*paths: Path) -> None:
        assert mode(paths[0]) == 0o600  # from the start
        token.write_text("faster")
        link(*paths)

    monkeypatch.setattr(os, "link", slower)
    local_ray.make_token()
    assert (token.read_text(), mode(token)) == ("faster", 0o600)
    assert list(token.parent.iterdir()) == [token]


@pytest.mark.parametrize(
    ("name", "value"),
    [("RAY_AUTH_MODE", "disabled"), ("RAY_AUTH_TOKEN", "abc"), ("RAY_AUTH_TOKEN_PATH", "/elsewhere")],
)
def test_what_the_user_says_about_tokens_holds(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    local_ray.make_token()
    assert not (home / ".ray").exists()
