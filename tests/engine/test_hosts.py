"""Hosts that have another rayfl or other libraries are found before anything trains there."""

import os
import shutil
import subprocess
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rayfl
from rayfl import Ray
from rayfl.errors import Conflict
from rayfl.record.folder import sources_in
from rayfl.system.own_code import code_digests
from tests.support.federations import small
from tests.support.refusals import refused

ray: Any = pytest.importorskip("ray")

from rayfl.engine import hosts  # noqa: E402
from rayfl.engine.hosts import ask_hosts, compare_hosts, software_here  # noqa: E402

USUAL = {"rayfl": "sources 1", "torch": "2.7", "numpy": "2.2", "processor": "A", "GPU": None}


@pytest.mark.parametrize("name", USUAL)
def test_a_host_on_which_numbers_would_be_others(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Hosts that agree may have another torch than this process, but no other rayfl."""
    refusing = name in ("rayfl", "torch", "numpy")
    with refused(Conflict, "b") if refusing else nullcontext():
        compare_hosts(USUAL, {"a": USUAL, "b": USUAL | {name: "B"}, "c": USUAL | {name: "C"}})
    assert len(caplog.records) == (not refusing)
    caplog.clear()
    same = {host: USUAL | {name: "other"} for host in ("a", "b")}
    with refused(Conflict, "a") if name == "rayfl" else nullcontext():
        compare_hosts(USUAL, same)
    assert len(caplog.records) == (name == "torch")


def test_the_sources_of_a_host_are_those_of_its_package() -> None:
    here = software_here()
    assert (here["rayfl"], here["numpy"]) == (sources_in(rayfl.ROOT), np.__version__)


def test_a_host_is_asked_once(ray_runtime: str) -> None:
    here = {ray.get_runtime_context().get_node_id()}
    asked: list[int] = []

    def get(references: Any) -> list[Any]:
        asked.append(len(references))
        return ray.get(references)

    known = ask_hosts({}, here, get)
    assert ask_hosts(known, here, get) == known
    assert asked == [1, 0]


@pytest.mark.parametrize("kind", ["accelerator_type:H100", None])
def test_the_gpu_of_a_host_is_what_ray_says(kind: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts are told apart by address and id, and those that do not train are not asked."""
    resources = {"CPU": 2.0} | ({kind: 1.0} if kind else {})
    nodes = [{"NodeID": k * 56, "NodeManagerAddress": f"10.0.0.{k}", "Resources": resources} for k in "123"]
    places: list[Any] = []

    def options(scheduling_strategy: Any) -> Any:
        places.append(scheduling_strategy)
        return SimpleNamespace(remote=lambda: "reference")

    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr(ray, "remote", lambda num_cpus: lambda function: SimpleNamespace(options=options))
    first, third = "host 10.0.0.1 (11111111)", "host 10.0.0.3 (33333333)"
    found = ask_hosts({first: software_here()}, ["1" * 56, "3" * 56], lambda calls: [software_here()])
    assert [*found] == [first, third]
    assert found[third]["GPU"] == kind
    assert [(place.node_id, place.soft) for place in places] == [("3" * 56, False)]


def test_import_paths_name_what_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """And code that is sent by its name must be the same."""
    named: dict[str, Any] = {}
    monkeypatch.setattr(hosts, "NAMED_ELSEWHERE", named)
    name = "tests.support.refusals"
    code = {name: code_digests([name])[name]}
    assert hosts._receive_object("plan", {"mine.Net": 3}, code) == "plan"
    assert named == {"mine.Net": 3}
    with refused(Conflict, name):
        hosts._receive_object("plan", {}, {name: "another"})


def test_modules_go_by_value_in_the_body_alone() -> None:
    """Those that went by value before go on."""
    registered = hosts.cloudpickle.list_registry_pickle_by_value
    with hosts.by_value(["json"]):
        with suppress(ValueError), hosts.by_value(["json", "shutil"]):
            assert {"json", "shutil"} <= registered()
            raise ValueError
        assert "json" in registered()
        assert "shutil" not in registered()
    assert "json" not in registered()


@pytest.mark.usefixtures("ray_runtime")
def test_a_run_with_other_software_than_its_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each process another one."""
    software = software_here()
    monkeypatch.setattr(hosts, "software_here", lambda: {**software, "rayfl": f"{os.getpid()}"})
    with pytest.raises(Conflict, match=f"this process has {os.getpid()}"):
        small(tmp_path / "run", engine=Ray(actors=1)).run()
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.slow
def test_a_run_with_another_rayfl_than_its_cluster(tmp_path: Path, ray_runtime: str) -> None:
    """What asks the hosts is sent by value: they do not have the driver's rayfl."""
    shutil.copytree(Path(rayfl.__file__).parent, tmp_path / "other" / "rayfl")
    with (tmp_path / "other" / "rayfl" / "training" / "loop.py").open("a") as source:
        source.write("STEP = 0.9\n")
    command = [sys.executable, "-m", "rayfl.run", "--engine.address", ray_runtime, "--data", "Synthetic"]
    done = subprocess.run(
        [*command, "--engine.actors", "1", "--quiet", "true", "--output", "run"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "other")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("rayfl: error: host ")
    assert "has rayfl " in done.stderr
    assert not (tmp_path / "run").exists()
