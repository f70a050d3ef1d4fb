"""The Ray engine: how actors get their share, what the driver holds, what happens when something fails."""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rayfl import Inline, Ray, UserError, resumed
from rayfl.data import IID, Synthetic
from rayfl.engine import BadUpdate
from rayfl.engine.process import reserved_gpus
from rayfl.methods import Ditto
from rayfl.running.result import Result
from rayfl.sampling import Uniform
from rayfl.training import Params
from tests.support.federations import Poisoned, bytes_of_run, small

ray: Any = pytest.importorskip("ray")

from ray.util import (  # noqa: E402
    list_named_actors,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.metrics import Gauge  # noqa: E402

from rayfl.engine import cluster, local_ray, ray_metrics, ray_workers  # noqa: E402
from rayfl.engine.placement import ACTOR_MEMORY  # noqa: E402
from rayfl.engine.ray_workers import RayWorkers  # noqa: E402
from rayfl.engine.session import Session  # noqa: E402
from rayfl.errors import Conflict, Shortage  # noqa: E402
from tests.support.refusals import refused  # noqa: E402

pytestmark = pytest.mark.usefixtures("ray_runtime")


def test_a_cluster_is_left_where_the_data_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_full(*_: Any) -> None:
        raise MemoryError

    left: list[Any] = []
    monkeypatch.setattr(cluster.Cluster, "put_data", is_full)
    monkeypatch.setattr(cluster.Cluster, "close", lambda cluster: left.append(cluster))
    session = object.__new__(ray_workers.RayEngineSession)
    with pytest.raises(MemoryError):
        session.share_data(Synthetic(train=20, test=10, partition=IID()).federate(2, 0), {})
    assert left == [session]


@dataclass
class Closed:
    """What a session's workers were when they were stopped."""

    workers: RayWorkers
    actors: list[Any]
    server: Any
    reserved: Any

    @property
    def gpus(self) -> list[list[Any]]:
        return [where["gpus"] for where in self.workers.where]


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[Closed]:
    """The sessions that a test has opened, in the state in which they were closed."""
    found: list[Closed] = []
    stop = RayWorkers.stop

    def recording(self: RayWorkers) -> None:
        found.append(Closed(self, list(self.actors), self.server, self.reserved))
        stop(self)

    monkeypatch.setattr(RayWorkers, "stop", recording)
    return found


def assert_gone(left: Closed) -> None:
    """See that no actor answers any more and that nothing is reserved."""
    for actor in [*left.actors, left.server]:
        with pytest.raises(ray.exceptions.RayActorError):
            ray.get(actor.report_location.remote(), timeout=60)
    assert placement_group_table(left.reserved)["state"] == "REMOVED"


def engine_lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "engine.jsonl").read_text().splitlines()]


def no_records(folder: Path) -> bool:
    metrics = folder / "metrics.jsonl"
    return not metrics.exists() or metrics.read_bytes() == b""


@pytest.fixture(scope="module")
def inline(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a run of one round gives in one process."""
    folder = tmp_path_factory.mktemp("inline")
    small(folder / "run", rounds=1).run()
    return bytes_of_run(folder / "run")


# ---- shares of CPUs and GPUs


def test_a_process_knows_what_is_reserved_for_it() -> None:
    """The driver's is none of Ray's."""
    assert reserved_gpus() is None
    assert ray.get(ray.remote(num_gpus=0.5)(reserved_gpus).remote()) == 0.5


@pytest.mark.parametrize(
    ("engine", "gpus_in_use"),
    [
        (Ray(gpus_per_actor=0.5, device="cpu"), {0: 2, 1: 2}),  # as many as there are shares
        (Ray(gpus_per_actor=0.25, actors=4, device="cpu"), {0: 4}),  # they fit one GPU, the other stays free
    ],
)
def test_shares_of_a_gpu(
    tmp_path: Path, closed: list[Closed], inline: dict[str, bytes], engine: Ray, gpus_in_use: dict[int, int]
) -> None:
    """Logical GPUs are handed out like real ones; the run is on the CPU."""
    small(tmp_path / "run", engine=engine, rounds=1).run()
    (left,) = closed
    assert_gone(left)
    assert all(len(gpus) == 1 for gpus in left.gpus), "an actor has not got its share from one GPU"
    counts = [[int(g[0]) for g in left.gpus].count(n) for n in (0, 1)]
    assert sorted(counts, reverse=True) == sorted([gpus_in_use.get(n, 0) for n in (0, 1)], reverse=True)
    *actors, server = left.reserved.bundle_specs
    assert actors == [{"CPU": 1.0, "GPU": engine.gpus_per_actor, "memory": ACTOR_MEMORY}] * 4
    assert server == {"memory": ACTOR_MEMORY}
    assert len({where["pid"] for where in left.workers.where}) == 4
    assert {where["node"] for where in left.workers.where} == {ray.nodes()[0]["NodeID"]}
    assert bytes_of_run(tmp_path / "run") == inline


def test_more_actors_than_cpus_share_them(tmp_path: Path, closed: list[Closed]) -> None:
    small(tmp_path / "run", engine=Ray(actors=5), rounds=1).run()
    assert [bundle.get("CPU") for bundle in closed[0].reserved.bundle_specs] == [*[0.8] * 5, None]
    assert len(closed[0].actors) == 5
    assert closed[0].gpus == [[]] * 5


@pytest.mark.parametrize(("clients_per_actor", "clients", "trained"), [(1, 3, [1, 1, 1]), (4, 7, [3, 4])])
def test_clients_per_actor(
    tmp_path: Path, closed: list[Closed], clients_per_actor: int, clients: int, trained: list[int]
) -> None:
    data = Synthetic(train=40 * clients, test=20 * clients, partition=IID())
    engine = Ray(clients_per_actor=clients_per_actor)
    settings: dict[str, Any] = {"data": data, "clients": clients, "participation": 1.0, "rounds": 1}
    small(tmp_path / "run", engine=engine, **settings).run()
    assert len(closed[0].actors) == len(trained)
    (line,) = engine_lines(tmp_path / "run")
    assert sorted(line["actors"]) == trained


# ---- requests that cannot be met


@pytest.mark.parametrize(
    ("engine", "arithmetic"),
    [
        (
            Ray(actors=2, cpus_per_actor=8),
            "room for 0 of 2 actors with 8 CPUs and 0 GPUs each, which take 16 CPUs and 0 GPUs in all "
            "(node 1: 4 CPUs and 2 GPUs, room for 0)",
        ),
        (Ray(actors=9, cpus_per_actor=1), "there is room for 4 of 9 actors"),
        (
            Ray(actors=5, gpus_per_actor=0.5),
            "room for 4 of 5 actors with 0.8 CPUs and 0.5 GPUs each, which take 4 CPUs and 2.5 GPUs in all "
            "(node 1: 4 CPUs and 2 GPUs, room for 4)",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, closed: list[Closed], monkeypatch: pytest.MonkeyPatch, engine: Ray, arithmetic: str
) -> None:
    """With the arithmetic, and before anything is asked of the cluster."""
    monkeypatch.setattr(ray_workers, "placement_group", None)  # to call it would raise a TypeError
    with refused(Shortage, "engine.actors") as caught:
        small(tmp_path / "run", engine=engine).run()
    assert arithmetic in str(caught.value)
    (left,) = closed
    assert (left.actors, left.server, left.reserved) == ([], None, None)
    assert no_records(tmp_path / "run")


@pytest.fixture
def busy(request: pytest.FixtureRequest) -> Iterator[None]:
    """Someone else uses three of the four CPUs, or all memory but that of an actor."""
    what = getattr(request, "param", "CPU")
    left = {"CPU": 1, "memory": ACTOR_MEMORY}[what]
    group = placement_group([{what: ray.cluster_resources()[what] - left}])
    ray.get(group.ready(), timeout=60)
    yield
    remove_placement_group(group)


@pytest.mark.parametrize("busy", ["CPU", "memory"], indirect=True)
def test_what_others_use_is_not_waited_for(
    tmp_path: Path, closed: list[Closed], busy: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_workers, "RESOURCE_SECONDS", 0.5)
    with refused(Shortage, "engine.wait"):
        small(tmp_path / "run", engine=Ray(actors=2)).run()
    (left,) = closed
    assert (left.actors, left.server) == ([], None)
    assert placement_group_table(left.reserved)["state"] == "REMOVED"
    assert no_records(tmp_path / "run")


def test_automatic_actors_take_what_is_free(
    tmp_path: Path,
    closed: list[Closed],
    busy: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    inline: dict[str, bytes],
) -> None:
    """And say so."""
    monkeypatch.setattr(ray_workers, "RESOURCE_SECONDS", 0.5)
    small(tmp_path / "auto", engine=Ray(), rounds=1).run()
    assert "where 1 CPU and 2 GPUs are free: 1 actor instead of 4" in caplog.text
    assert len(closed[0].actors) == 1
    assert bytes_of_run(tmp_path / "auto") == inline


def test_what_is_not_there_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inline: dict[str, bytes]
) -> None:
    """What is awaited is told, and what does not come is explained."""
    monkeypatch.setattr(ray_workers, "RESOURCE_SECONDS", 0.5)
    monkeypatch.setattr(ray_workers, "PULSE", 0.2)
    engine, told = Ray(actors=2, cpus_per_actor=8, wait=0.6), []
    monkeypatch.setattr(ray_workers, "warn", told.append)
    with refused(Shortage, "engine.actors") as caught:
        small(tmp_path / "never", engine=engine).run()
    assert "no host has come in 0.6 s" in str(caught.value)
    assert [text[:39] for text in told] == ["waiting for 2 actors with 8 CPUs and 0 "]
    group = placement_group([{"CPU": 3}])
    ray.get(group.ready(), timeout=60)
    monkeypatch.setattr(ray_workers, "warn", lambda _: remove_placement_group(group))
    small(tmp_path / "late", engine=Ray(actors=2, wait=60), rounds=1).run()
    assert bytes_of_run(tmp_path / "late") == inline


def test_more_actors_than_groups_are_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    small(tmp_path / "run", engine=Ray(actors=2, execution="stacked", stack=6), rounds=1).run()
    assert "2 actors are asked for, and a round's 6 clients train in 1 group of up to 6" in caplog.text
    assert "1 will have no client" in caplog.text


def test_a_federation_in_a_process_of_ray_takes_no_gpu_that_it_has_not_reserved() -> None:
    """As a trial on a host with a GPU: Ray does not hide it."""

    @ray.remote(num_cpus=0)
    def device() -> str:
        torch.cuda.is_available = lambda: True
        return Inline().resolve().device

    assert ray.get([device.remote(), device.options(num_gpus=0.5).remote()]) == ["cpu", "cuda"]


def test_an_actor_that_cannot_start_says_why(
    tmp_path: Path, closed: list[Closed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A class in a module that actors cannot import, and a device that they do not have."""
    module = types.ModuleType("only_here")
    monkeypatch.setitem(sys.modules, "only_here", module)
    exec("from rayfl.methods import FedAvg\nclass Mine(FedAvg): ...", module.__dict__)
    with refused(Shortage) as caught:
        small(tmp_path / "method", engine=Ray(actors=1), method=module.Mine()).run()
    assert "from its folder" in str(caught.value)

    if not torch.cuda.is_available():
        engine = Ray(actors=1, gpus_per_actor=0.5, execution="loop")
        with refused(Shortage) as caught:
            small(tmp_path / "device", engine=engine).run()
        assert "cannot start: engine.device is cuda" in str(caught.value)
    for left in closed:
        assert_gone(left)


# ---- clusters


def test_the_address_of_a_running_cluster(
    tmp_path: Path, ray_runtime: str, inline: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There Ray's dashboard shows the run's actors by its name, and its numbers."""
    told: dict[str, tuple[float, dict[str, str]]] = {}
    names: list[str] = []
    train = Session.train

    def tell(self: Any, value: float, tags: Any = None) -> None:
        told[self.info["name"]] = value, self.info["default_tags"]

    def look(self: Session, *arguments: Any) -> Any:
        names.extend(each for each in list_named_actors() if each.startswith(f"{tmp_path.name}/run "))
        return train(self, *arguments)

    monkeypatch.setattr(Gauge, "set", tell)
    monkeypatch.setattr(ray_metrics, "time", SimpleNamespace(monotonic=iter([10.0, 12.5]).__next__))
    monkeypatch.setattr(Session, "train", look)
    small(tmp_path / "run", engine=Ray(actors=1, address=ray_runtime), rounds=1).run()
    assert bytes_of_run(tmp_path / "run") == inline
    assert ray.is_initialized(), "the cluster of others was left"
    assert sorted(name.split()[1] for name in names) == ["clients", "server"]
    (record,) = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {name: value for name, (value, _) in told.items()} == {
        "rayfl_round": 1,
        "rayfl_round_seconds": 2.5,
        "rayfl_loss": pytest.approx(np.average(record["loss"], weights=record["samples"])),
        "rayfl_accuracy": Result.load(tmp_path / "run").accuracy,
        "rayfl_up_bytes": sum(record["up"]["weights"]),
        "rayfl_down_bytes": sum(record["down"]["weights"]),
        "rayfl_dropped_clients": 0,
    }
    assert all(tags == {"run": f"{tmp_path.name}/run"} for _, tags in told.values())


def test_another_address_than_that_of_the_process(tmp_path: Path) -> None:
    with refused(Conflict, "engine.address"):
        small(tmp_path / "run", engine=Ray(address="192.0.2.1:6379")).run()
    assert no_records(tmp_path / "run")


@pytest.mark.parametrize("comes_back", [True, False])
@pytest.mark.usefixtures("kept_actors")
def test_a_gcs_that_is_away(
    tmp_path: Path,
    ray_runtime: str,
    inline: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    comes_back: bool,
) -> None:
    """That of a joined cluster may refuse connections for a while, as when its head starts again."""
    gcs, refused = int(ray_runtime.rpartition(":")[2]), 0

    def refuses(address: tuple[str, int]) -> bool:
        nonlocal refused
        refused += address[1] == gcs
        return address[1] == gcs and (refused < 5 or not comes_back)

    monkeypatch.setattr(ray_workers, "PULSE", 0.01)
    monkeypatch.setattr(cluster, "_refuses_connection", refuses)
    monkeypatch.setattr(cluster, "RECONNECT_SECONDS", 60.0 if comes_back else 0.05)
    federation = small(tmp_path / "run", engine=Ray(actors=1, address=ray_runtime), rounds=1)
    if comes_back:
        federation.run()
        assert bytes_of_run(tmp_path / "run") == inline
        assert refused > 5
    else:
        with pytest.raises(UserError, match=r"Ray's GCS at .* is gone"):
            federation.run()


def test_what_ray_draws_while_it_comes_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray draws from Python's generator in a thread, while clients are chosen in another one."""
    choosing, drawn, connect, choose = threading.Event(), threading.Event(), cluster.connect, Uniform.choose

    def slow(*arguments: Any) -> Any:
        choosing.set()
        assert drawn.wait(60)
        return choose(*arguments)

    def draw(*asked: Any) -> Any:
        assert choosing.wait(60)
        random.random()
        drawn.set()
        return connect(*asked)

    monkeypatch.setattr(cluster, "connect", draw)
    monkeypatch.setattr(Uniform, "choose", slow)
    assert small(tmp_path / "run", engine=Ray(actors=1), rounds=1).run().complete


def connect_and_leave(monkeypatch: pytest.MonkeyPatch, engine: Ray) -> None:
    """Start what a test has put in the place of a local cluster, and clear up behind it."""
    leave = cluster.connect(engine.address, engine.dashboard)
    assert leave
    with monkeypatch.context() as patch:
        patch.setattr(ray, "shutdown", lambda: None)
        leave()


@pytest.mark.parametrize("dashboard", [False, True])
def test_a_local_cluster_collects_only_for_a_dashboard(
    dashboard: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A local cluster collects what a dashboard shows only for a dashboard, and says where it is."""
    ours, given = local_ray.DASHBOARD_VARIABLES[0], local_ray.DASHBOARD_VARIABLES[1]
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # it needs no token in this home
    for (
        name
    ) in local_ray.DASHBOARD_VARIABLES:  # the second call says what to undo: the variable was not there
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv(given, "500")
    seen: dict[str, str | None] = {}

    def start(**options: Any) -> SimpleNamespace:
        assert options["include_dashboard"] == dashboard
        seen.update((name, os.environ.get(name)) for name in local_ray.DASHBOARD_VARIABLES)
        return SimpleNamespace(dashboard_url="127.0.0.1:8265")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", start)
    connect_and_leave(monkeypatch, Ray(dashboard=dashboard))
    assert (seen[ours], seen[given]) == (None if dashboard else "0", "500")
    assert ("http://127.0.0.1:8265" in capsys.readouterr().out) == dashboard
    assert (os.environ.get(ours), os.environ[given]) == (None, "500")


@pytest.mark.parametrize("given", [{}, {"TMPDIR": "elsewhere"}, {"RAY_object_spilling_directory": "/mine"}])
def test_a_local_cluster_spills_to_a_disk(
    given: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does so where states of clients go that do not fit into memory."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", None)
    for name in ("RAY_TMPDIR", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value if name != "TMPDIR" else str(tmp_path / value))
    seen: dict[str, Any] = {}
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **options: seen.update(options))
    connect_and_leave(monkeypatch, Ray())
    spills = seen["object_spilling_directory"]
    if "RAY_object_spilling_directory" in given:
        assert spills is None  # so Ray goes by the variable
    else:
        assert Path(spills).parent == (tmp_path / "elsewhere" if given else Path("/var/tmp"))
        assert not Path(spills).exists()


@pytest.mark.parametrize("dashboard", [False, True])
def test_a_local_cluster_waits_in_small_steps(dashboard: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A local cluster waits in small steps and as long as ever."""
    step, steps = local_ray.FAST_CONNECT
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # it needs no token in this home
    for name in (step, steps):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    seen: dict[str, str] = {}
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(
        ray, "init", lambda **_: seen.update(os.environ) or SimpleNamespace(dashboard_url="127.0.0.1:8265")
    )
    connect_and_leave(monkeypatch, Ray(dashboard=dashboard))
    assert int(seen[step]) <= 50
    assert int(seen[step]) * int(seen[steps]) == 10_000  # Ray's own: 10 steps of 1,000 ms
    assert not {step, steps} & os.environ.keys()
    monkeypatch.setenv(steps, "30")  # of a second each, as the user knows them
    seen.clear()
    connect_and_leave(monkeypatch, Ray())
    assert (seen.get(step), seen[steps]) == (None, "30")
    monkeypatch.setenv(step, "1000")
    connect_and_leave(monkeypatch, Ray())
    assert (seen[step], seen[steps]) == ("1000", "30")


def on_ray(folder: Path, address: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the command line from a folder, on the cluster at an address."""
    command = [sys.executable, "-m", "rayfl.run", "--engine", "Ray", "--engine.address", address]
    command += ["--output", "run", "--loggers", "[]", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


MINE = """
from rayfl.methods import FedAvg


class Half(FedAvg):
    def __init__(self, factor: float = 0.5) -> None:
        self.factor = factor

    def aggregate(self, server, up, cohort):
        return {"weights": server["weights"] + self.factor * (up["weights"] - server["weights"])}
"""


def test_a_method_in_the_users_folder(tmp_path: Path, ray_runtime: str) -> None:
    """The actors of a running cluster import it from the folder in which the command was typed."""
    (tmp_path / "my_method.py").write_text(MINE)
    options = ["--method", "my_method.Half", "--method.factor", "0.25", "--engine.actors", "2"]
    options += ["--data", "Synthetic", "--data.train", "120", "--data.test", "60", "--net", "LeNet"]
    done = on_ray(tmp_path, ray_runtime, *options, "--clients", "4", "--rounds", "2")
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith(("starting", "round ", "The run"))]
    assert told[0] == "starting Ray (2 actors)"
    assert told[1].startswith("round 1/2 ")  # though nobody watches
    assert told[-1] == "The run is in run, and its page is run/report.html."
    assert "class_path: my_method.Half" in (tmp_path / "run" / "config.yaml").read_text()
    on_actors = bytes_of_run(tmp_path / "run")
    command = [sys.executable, "-m", "rayfl.run", "--config", "run/config.yaml", "--engine", "Inline"]
    subprocess.run([*command, "--output", "inline"], cwd=tmp_path, capture_output=True, check=True)
    assert bytes_of_run(tmp_path / "inline") == on_actors


def test_a_job_that_is_submitted_with_its_folder(tmp_path: Path, ray_runtime: str) -> None:
    """`ray job submit --working-dir .` brings a method of one's own to every host, and no results back.

    This does what Ray's supervisor of jobs does: it runs the command in a copy of the folder.
    """
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "my_method.py").write_text(MINE)
    packed = shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path, "here")
    environment = {"working_dir": f"file://{packed}"}

    @ray.remote(num_cpus=0, runtime_env=environment)
    def supervise(output: str) -> tuple[int, str]:
        config = {"runtime_env": ray.get_runtime_context().runtime_env}
        job = os.environ | {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(config)}
        command = [sys.executable, "-m", "rayfl.run", "--method", "my_method.Half", "--loggers", "[]"]
        command += ["--engine.address", ray_runtime, "--engine.actors", "1", "--output", output]
        command += ["--data", "Synthetic", "--data.train", "40", "--data.test", "20", "--net", "LeNet"]
        command += ["--clients", "2", "--rounds", "1"]
        done = subprocess.run(command, env=job, capture_output=True, text=True)
        return done.returncode, done.stderr

    code, said = ray.get(supervise.remote(str(tmp_path / "run")))
    assert code == 0, said
    assert Result.load(tmp_path / "run").complete
    code, said = ray.get(supervise.remote("run"))
    assert code == 2
    assert "run is in the copy of your folder that Ray makes for a job" in said
    assert "an absolute path on storage that all hosts share" in said


WITHOUT_RAY = """
import sys
sys.modules["ray"] = None
import rayfl.engine
from rayfl import Inline, Ray, UserError
from tests.support.federations import small
from pathlib import Path

assert small(Path(sys.argv[1], "inline"), rounds=1, engine=Inline()).run().complete
try:
    small(Path(sys.argv[1], "ray"), rounds=1, engine=Ray()).run()
except UserError as error:
    print(error)
"""


def test_without_ray(tmp_path: Path) -> None:
    """Everything but the engine itself does without the library."""
    command = [sys.executable, "-c", WITHOUT_RAY, str(tmp_path)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "engine is Ray, and the package ray cannot be imported" in done.stdout
    assert "--engine Inline" in done.stdout
    assert no_records(tmp_path / "ray")


# ---- what the driver has and does


def tensors_in(thing: Any, seen: set[int] | None = None) -> list[Any]:
    """Return all tensors that can be reached from an object through its attributes and containers."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, str | bytes | int | float | type | types.ModuleType):
        return []
    seen.add(id(thing))
    if isinstance(thing, torch.Tensor):
        return [thing]
    inside: list[Any] = []
    if isinstance(thing, dict):
        inside = [*thing.keys(), *thing.values()]
    elif isinstance(thing, list | tuple | set | frozenset):
        inside = list(thing)
    inside += vars(thing).values() if hasattr(thing, "__dict__") else []
    inside += [getattr(thing, name) for name in getattr(thing, "__slots__", ()) if hasattr(thing, name)]
    return [t for part in inside for t in tensors_in(part, seen)]


def test_state_lives_on_the_actors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a round every client that has trained has its state on one actor; the driver has no tensor."""
    assert tensors_in(Params({"a": torch.zeros(1)}, frozenset("a")))
    held: list[list[set[int]]] = []
    tensors: list[Any] = []
    everyone = list(range(12))
    evaluate = Session.evaluate

    def look(self: Session, *arguments: Any) -> Any:
        workers = self.workers
        states = workers.get([workers.call(k, "states_of", everyone) for k in range(len(workers))])
        held.append([set(mine) for mine in states])
        assert all(dict.fromkeys(ids, k).items() <= self.owner_of.items() for k, ids in enumerate(held[-1]))
        tensors.extend(tensors_in(self))
        return evaluate(self, *arguments)

    monkeypatch.setattr(Session, "evaluate", look)
    federation = small(tmp_path / "run", engine=Ray(actors=2), method=Ditto(), rounds=3)
    federation.run()
    assert tensors == []
    for round in range(3):
        first, second = held[round]
        assert not first & second
        assert first | second == {i for r in range(round + 1) for i in federation.cohort(r)}
        assert first
        assert second


def test_one_download_and_one_call_per_actor_and_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, str]] = []
    call = ray.actor.ActorHandle._actor_method_call

    def counting(self: Any, method_name: str, *arguments: Any, **options: Any) -> Any:
        calls.append((method_name, self._actor_id.hex()))
        return call(self, method_name, *arguments, **options)

    monkeypatch.setattr(ray.actor.ActorHandle, "_actor_method_call", counting)
    settings: dict[str, Any] = {"eval_every": 0, "checkpoint_every": 0, "participation": 1.0, "rounds": 3}
    small(tmp_path / "run", engine=Ray(actors=3), **settings).run()
    trained = [actor for name, actor in calls if name == "train"]
    assert len(set(trained)) == 3
    assert [trained.count(actor) for actor in set(trained)] == [3, 3, 3]
    counts = {name: [n for n, _ in calls].count(name) for name, _ in calls}
    start = {"report_location": 4, "share_memory": 3}
    assert counts == start | {"train": 9, "aggregate": 3, "download": 1}  # later ones come with a step

    lines = engine_lines(tmp_path / "run")
    metrics = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    for line, record in zip(lines, metrics, strict=True):
        (one_client,) = set(record["down"]["weights"])
        assert line["bytes_down"] == one_client  # not once per client, nor once per actor
        assert line["bytes_up"] == 3 * 4 * one_client  # an exact sum: two float64 for each float32
        assert sum(line["actors"]) == len(record["cohort"])
        assert len(line["busy"]) == 3


# ---- runs that fail


def test_a_failed_run_leaves_nothing_behind(tmp_path: Path, closed: list[Closed]) -> None:
    with refused(BadUpdate, "client 2"):
        small(tmp_path / "run", engine=Ray(actors=2), method=Poisoned(), participation=1.0).run()
    (left,) = closed
    assert_gone(left)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("undisturbed")
    small(folder / "run", method=Ditto()).run()
    return bytes_of_run(folder / "run")


@pytest.mark.parametrize("victim", ["client actor", "server"])
def test_an_actor_that_dies(
    tmp_path: Path,
    closed: list[Closed],
    undisturbed: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    victim: str,
) -> None:
    """Without recoveries the run stops and says how to go on, which gives what an undisturbed run gives."""
    train = Session.train

    def kill_in_the_last_round(self: Session, round: int, *arguments: Any) -> Any:
        if round == 3:
            workers: Any = self.workers
            ray.kill(workers.server if victim == "server" else workers.actors[1])
        return train(self, round, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "train", kill_in_the_last_round)
        with refused(Shortage) as died:
            small(tmp_path / "run", engine=Ray(actors=2, recoveries=0), method=Ditto()).run()
    assert "go on with --resume" in str(died.value)
    assert "\n" not in str(died.value)
    assert_gone(closed[0])
    assert not Result.load(tmp_path / "run").complete
    engine = {"engine": "Inline"} if victim == "server" else {"engine.actors": 2}
    resumed(tmp_path / "run", engine).run()
    assert bytes_of_run(tmp_path / "run") == undisturbed
