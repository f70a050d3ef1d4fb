"""`ray up cluster.yaml` on three hosts: a federation and a sweep there give the bytes that one host gives.

The hosts are namespaces of this machine (hosts.py), and nothing of cluster.yaml is changed but what it says must be
filled in. The test takes minutes and needs root and some of Debian's packages, so it runs where it is asked for:
``RAYFL_CLUSTER=1 python -m pytest tests/cluster``.
"""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.hosts import Host, hosts, missing
from tests.conftest import bytes_of_run

ROOT = Path(__file__).parents[2]

if not os.environ.get("RAYFL_CLUSTER"):
    pytest.skip("three hosts take minutes: asked for with RAYFL_CLUSTER=1", allow_module_level=True)
if lack := missing():
    pytest.skip(f"three hosts cannot be made here: {lack}", allow_module_level=True)

WAIT = """
import sys, time, ray
ray.init(address="auto", log_to_driver=False)
until = time.monotonic() + 300
while time.monotonic() < until:
    alive = sorted(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"])
    if len(alive) == 3:
        break
    time.sleep(0.5)
print("alive:", *alive)
"""


@dataclass
class Cluster:
    """The cluster, its hosts (the head first), where a person sits, and the folder that all of them share."""

    desk: Host
    hosts: list[Host]
    shared: Path
    alive: str

    def ray(self, command: str, *arguments: str) -> str:
        """Run Ray's command line at the desk, in the project's folder, on the cluster's file; return its output."""
        file = str(self.shared / "cluster.yaml")
        call = [f"{sys.prefix}/bin/ray", command, file, "--no-config-cache", *arguments]
        return self.desk.run("env", "-C", str(ROOT), *call).stdout


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    shared = tmp_path_factory.mktemp("shared")
    with hosts(3, shared, ROOT) as (desk, made):
        text = (ROOT / "cluster.yaml").read_text()
        addresses = ", ".join(host.address for host in made[1:])
        for blank, filled in [
            ("HEAD_ADDRESS", made[0].address),
            ("WORKER_ADDRESS, WORKER_ADDRESS", addresses),
            ("USER", "root"),
        ]:
            assert text.count(f"{blank}") == 1
            text = text.replace(blank, filled)
        (shared / "cluster.yaml").write_text(text)
        (shared / "wait.py").write_text(WAIT)
        for host in made:
            host.write("~/.profile", f"export RAYFL_VENV={sys.prefix}\n")
        up = Cluster(desk, made, shared, "")
        up.ray("up", "--yes")
        up.alive = up.ray("exec", f"python {shared}/wait.py")
        yield up


def test_every_host_joins_by_its_private_address(cluster: Cluster) -> None:
    assert f"alive: {' '.join(host.address for host in cluster.hosts)}" in cluster.alive


def test_the_token_is_everywhere_and_nobody_else_can_read_it(cluster: Cluster) -> None:
    found = [host.run("stat", "--format=%a %s", ".ray/auth_token").stdout for host in cluster.hosts]
    tokens = {host.run("sha256sum", ".ray/auth_token").stdout for host in cluster.hosts}
    assert all(mode.startswith("600 ") for mode in found)
    assert len(tokens) == 1


def test_without_the_token_ray_does_nothing(cluster: Cluster) -> None:
    """A stranger on the private network, with the same Ray but another token, or none."""
    ask = "import ray; ray.init(address='%s:6379'); print('in')" % cluster.hosts[0].address
    for mode in (["RAY_AUTH_MODE=disabled"], ["RAY_AUTH_MODE=token", "RAY_AUTH_TOKEN=" + "0" * 64]):
        tried = cluster.desk.run("env", *mode, "timeout", "60", sys.executable, "-c", ask, check=False)
        assert tried.returncode != 0
        assert "in" not in tried.stdout.splitlines()
        assert "uthenticat" in tried.stdout, tried.stdout


def test_no_port_is_open_on_an_address_of_the_internet(cluster: Cluster) -> None:
    for host in cluster.hosts:
        ports = sorted(host.ports())
        assert {8076, 8077} <= cluster.desk.reaches(host.address, ports)
        assert cluster.desk.reaches(host.public, ports) == set()
    assert 8265 not in cluster.desk.reaches(cluster.hosts[0].address, [8265])  # the dashboard: the head alone


OPTIONS = [
    "--config=examples/quickstart.yaml",
    "--method=Ditto",
    "--clients=10",
    "--participation=0.6",
    "--rounds=3",
    "--checkpoint_every=2",
    "--tensorboard=false",
    "--quiet=true",
]


def test_a_federation_has_the_bytes_of_one_host(cluster: Cluster, tmp_path: Path) -> None:
    """Each of three actors takes all CPUs of a host, so each is on a host of its own."""
    engine = f"--engine.address auto --engine.actors 3 --engine.cpus_per_actor {os.cpu_count()}"
    there = cluster.shared / "federation"
    run = f"python -m rayfl.run {' '.join(OPTIONS)} {engine} --output {there}"
    cluster.ray("exec", f"cd rayfl && {run}")
    here = tmp_path / "here"
    command = [sys.executable, "-m", "rayfl.run", *OPTIONS, "--engine=Inline", f"--output={here}"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert bytes_of_run(there) == bytes_of_run(here)
    source = cluster.hosts[1].run(
        "bash", "-c", ". ~/.bashrc; python -c 'import rayfl; print(rayfl.__file__)'"
    )
    assert source.stdout.strip() == f"{cluster.hosts[1].home}/rayfl/rayfl/__init__.py"
