"""The Ray engine: how actors get their share, what the driver holds, what happens when something fails."""

import json
import os
import random
import shutil
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rayfl import Inline, Ray
from rayfl.commands.run import main
from rayfl.data import IID, Synthetic
from rayfl.engine import BadUpdate
from rayfl.engine.process import reserved_gpus
from rayfl.errors import BadValue, Missing, Shortage
from rayfl.methods import Ditto
from rayfl.record.folder import check_stays, software
from rayfl.running.result import Result
from rayfl.sampling import Uniform
from rayfl.training import Params
from tests.support.federations import Poisoned, bytes_of_run, records_of, small
from tests.support.refusals import refused

ray: Any = pytest.importorskip("ray")

from ray.util import (  # noqa: E402
    list_named_actors,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.metrics import Gauge  # noqa: E402

from rayfl.engine import cluster, ray_metrics, ray_workers  # noqa: E402
from rayfl.engine.placement import ACTOR_MEMORY  # noqa: E402
from rayfl.engine.ray_workers import RayWorkers  # noqa: E402
from rayfl.engine.session import Session  # noqa: E402

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


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    """What the workers of sessions were when they were stopped: actors, their places, what is reserved."""
    found: list[SimpleNamespace] = []
    stop = RayWorkers.stop

    def recording(self: RayWorkers) -> None:
        actors = [*self.actors, *([self.server] if self.server else [])]
        gpus = [where["gpus"] for where in getattr(self, "where", [])]
        found.append(SimpleNamespace(workers=len(self), actors=actors, gpus=gpus, reserved=self.reserved))
        stop(self)

    monkeypatch.setattr(RayWorkers, "stop", recording)
    return found


def assert_gone(left: SimpleNamespace) -> None:
    """See that no actor answers any more and that nothing is reserved."""
    for actor in left.actors:
        with pytest.raises(ray.exceptions.RayActorError):
            ray.get(actor.report_location.remote(), timeout=60)
    assert placement_group_table(left.reserved)["state"] == "REMOVED"


def engine_lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "engine.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def inline(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a run of one round gives in one process."""
    folder = tmp_path_factory.mktemp("inline")
    small(folder / "run", rounds=1).run()
    return bytes_of_run(folder / "run")


# ---- a run on actors of its own


def test_a_run_on_a_running_cluster(
    tmp_path: Path,
    ray_runtime: str,
    closed: list[SimpleNamespace],
    inline: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two actors share a GPU, a logical one, and nothing is left of them but the cluster.

    Its dashboard shows them by the run's name, and the run's numbers. The weights are sent to each once, and
    each sends an exact sum: two float64 for each float32.
    """
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
    engine = Ray(actors=2, gpus_per_actor=0.5, device="cpu", address=ray_runtime)
    small(tmp_path / "run", engine=engine, rounds=1).run()
    assert bytes_of_run(tmp_path / "run") == inline
    assert ray.is_initialized(), "the cluster of others was left"
    (left,) = closed
    assert_gone(left)
    assert len(left.gpus) == 2
    assert len({*map(tuple, left.gpus)}) == len(left.gpus[0]) == 1
    *actors, server = left.reserved.bundle_specs
    assert actors == [{"CPU": 1.0, "GPU": 0.5, "memory": ACTOR_MEMORY}] * 2
    assert server == {"memory": ACTOR_MEMORY}
    assert sorted(name.split()[1] for name in names) == ["clients", "clients", "server"]
    (record,), (line,) = records_of(tmp_path / "run"), engine_lines(tmp_path / "run")
    (one_client,) = {*record["down"]["weights"]}
    assert (line["bytes_down"], line["bytes_up"]) == (one_client, 2 * 4 * one_client)
    assert (sum(line["actors"]), len(line["busy"])) == (len(record["cohort"]), 2)
    assert [each["rayfl"] for each in line["hosts"].values()] == [software()["rayfl"]]
    assert {name: value for name, (value, _) in told.items()} == {
        "rayfl_round": 1,
        "rayfl_round_seconds": 2.5,
        "rayfl_loss": pytest.approx(np.average(record["loss"], weights=record["samples"])),
        "rayfl_figure": Result.load(tmp_path / "run").figure,
        "rayfl_up_bytes": sum(record["up"]["weights"]),
        "rayfl_down_bytes": sum(record["down"]["weights"]),
        "rayfl_dropped_clients": 0,
    }
    assert all(tags == {"run": f"{tmp_path.name}/run"} for _, tags in told.values())


def test_a_process_of_ray_takes_no_gpu_that_it_has_not_reserved() -> None:
    """As a trial on a host with a GPU: Ray does not hide it. The driver's is none of Ray's."""

    @ray.remote(num_cpus=0)
    def found() -> tuple[float | None, str]:
        torch.cuda.is_available = lambda: True
        return reserved_gpus(), Inline().resolve().device

    assert reserved_gpus() is None
    tried = [found.remote(), found.options(num_gpus=0.5).remote()]
    assert ray.get(tried) == [(0, "cpu"), (0.5, "cuda")]


# ---- requests that cannot be met


@pytest.fixture
def busy() -> Iterator[Any]:
    """Someone else uses three of the four CPUs."""
    group = placement_group([{"CPU": 3}])
    ray.get(group.ready(), timeout=60)
    yield group
    remove_placement_group(group)


@pytest.mark.slow
def test_automatic_actors_take_what_is_free(
    tmp_path: Path,
    closed: list[SimpleNamespace],
    busy: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    inline: dict[str, bytes],
) -> None:
    """And say so; a number that is asked for is refused, or waited for until it is there."""
    monkeypatch.setattr(ray_workers, "RESOURCE_SECONDS", 0.5)
    small(tmp_path / "auto", engine=Ray(), rounds=1).run()
    assert "where 1 CPU and 2 GPUs are free: 1 actor instead of 4" in caplog.text
    with refused(Shortage, "engine.wait"):
        small(tmp_path / "run", engine=Ray(actors=2)).run()
    assert [left.workers for left in closed] == [1, 0]
    assert placement_group_table(closed[1].reserved)["state"] == "REMOVED"
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    monkeypatch.setattr(ray_workers, "PULSE", 0.2)
    monkeypatch.setattr(ray_workers, "warn", lambda _: remove_placement_group(busy))
    small(tmp_path / "late", engine=Ray(actors=2, wait=60), rounds=1).run()
    assert bytes_of_run(tmp_path / "auto") == bytes_of_run(tmp_path / "late") == inline


@pytest.mark.slow
def test_an_actor_that_cannot_start_says_why(
    tmp_path: Path, closed: list[SimpleNamespace], monkeypatch: pytest.MonkeyPatch
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


# ---- how the command and its code get there


@pytest.mark.usefixtures("kept_actors")
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


MINE = """
from rayfl.methods import FedAvg


class Half(FedAvg):
    def __init__(self, factor: float = 0.5) -> None:
        self.factor = factor

    def aggregate(self, server, up, cohort):
        return {"weights": server["weights"] + self.factor * (up["weights"] - server["weights"])}
"""
SMALLEST = ["--data", "Synthetic", "--data.train", "40", "--data.test", "20", "--net", "LeNet"]
SMALLEST += ["--clients", "2", "--rounds", "1", "--loggers", "[]"]


def test_a_method_in_the_users_folder(
    tmp_path: Path, ray_runtime: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The actors of a running cluster import it from the folder in which the command was typed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "method_in_a_folder.py").write_text(MINE)
    there = ["--engine", "Ray", "--engine.actors", "1", "--engine.address", ray_runtime, "--output", "run"]
    method = ["--method", "method_in_a_folder.Half", "--method.factor", "0.25"]
    assert main([*there, *SMALLEST, *method]) == 0
    told = [
        line
        for line in capsys.readouterr().out.splitlines()
        if line.startswith(("starting", "round ", "The run"))
    ]
    assert told[0] == "starting Ray (1 actor)"
    assert told[1].startswith("round 1/1 ")  # though nobody watches
    assert told[-1] == "The run is in run, and its page is run/report.html."
    assert "class_path: method_in_a_folder.Half" in (tmp_path / "run" / "config.yaml").read_text()
    assert main(["--config", "run/config.yaml", "--engine", "Inline", "--output", "inline"]) == 0
    assert bytes_of_run(tmp_path / "inline") == bytes_of_run(tmp_path / "run")
    del sys.modules["method_in_a_folder"]


def test_no_run_is_written_into_the_copy_that_a_job_has_of_its_folder(tmp_path: Path) -> None:
    """Ray deletes it."""
    check_stays(tmp_path)
    with refused(BadValue, copied := tmp_path / "working_dir_files" / "x" / "run"):
        check_stays(copied)


@pytest.mark.slow
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
        command = [sys.executable, "-m", "rayfl.run", *SMALLEST, "--method", "my_method.Half"]
        command += ["--engine.address", ray_runtime, "--engine.actors", "1", "--output", output]
        done = subprocess.run(command, env=job, capture_output=True, text=True)
        return done.returncode, done.stderr

    code, said = ray.get(supervise.remote(str(tmp_path / "run")))
    assert code == 0, said
    assert Result.load(tmp_path / "run").complete
    code, said = ray.get(supervise.remote("run"))
    assert code == 2
    assert "run is in the copy of your folder that Ray makes for a job" in said


def test_without_ray_its_engine_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ray_workers", "cluster"):
        monkeypatch.setitem(sys.modules, f"rayfl.engine.{name}", None)
    with refused(Missing, "engine"):
        small(tmp_path / "run", engine=Ray(), rounds=1).run()
    with refused(Missing, "engine"):
        Ray(address="auto").check_address()


# ---- what the driver has, and what a failed run leaves


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


@pytest.mark.usefixtures("kept_actors")
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
    federation = small(tmp_path / "run", engine=Ray(actors=2), method=Ditto(), rounds=2)
    federation.run()
    assert tensors == []
    for round, (first, second) in enumerate(held):
        assert first
        assert second
        assert not first & second
        assert first | second == {i for r in range(round + 1) for i in federation.cohort(r)}


@pytest.mark.usefixtures("kept_actors")
def test_a_failed_run_stops_its_actors(tmp_path: Path, closed: list[SimpleNamespace]) -> None:
    with refused(BadUpdate, "client 2"):
        small(tmp_path / "run", engine=Ray(actors=2), method=Poisoned(), participation=1.0).run()
    with refused(Shortage, "engine.actors"):
        small(tmp_path / "full", engine=Ray(actors=9, cpus_per_actor=1)).run()
    assert [left.workers for left in closed] == [2, 0]
