"""What can be said of the cluster files without a cluster."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.federations import federation_from

ROOT = Path(__file__).parents[2]
CLOUDS = sorted((ROOT / "examples" / "clusters").glob("*.yaml"))
FILES = [ROOT / "cluster.yaml", *CLOUDS]
KUBERAY = ROOT / "examples" / "clusters" / "kuberay"


def prepared(path: Path) -> dict[str, Any]:
    """Return a file as Ray's cluster launcher reads it: checked against its schema, defaults filled in."""
    util = pytest.importorskip("ray.autoscaler._private.util")
    config = util.prepare_config(yaml.safe_load(path.read_text()))
    util.validate_config(config)
    filled: dict[str, Any] = config
    return filled


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_cluster_file(path: Path) -> None:
    """Ray takes it, what is synced is there, and the token goes to every host before Ray starts."""
    config, own = prepared(path), prepared(ROOT / "cluster.yaml")
    workers = [t for name, t in config["available_node_types"].items() if name != config["head_node_type"]]
    assert all(t["min_workers"] == (0 if path.stem == "aws-gpu" else 2) for t in workers)
    assert config["max_workers"] >= 2
    mounts = config["file_mounts"]
    assert all((ROOT / local).exists() for local in mounts.values())
    assert {remote.removeprefix("~/rayfl/") for remote in mounts} == set(mounts.values())
    for script in re.findall(r"~/rayfl/(\S+\.sh)", path.read_text()):
        assert (ROOT / script).is_file()
    (made,) = [c for c in config["head_setup_commands"] if "get-auth-token" in c]
    assert made.startswith("umask 077;")
    assert "~/.ray/auth_token" in config["cluster_synced_files"]
    assert "--dashboard-host=127.0.0.1" in config["head_start_ray_commands"][-1]
    for kind in ("head", "worker"):
        assert "bash ~/rayfl/examples/clusters/set_up.sh" in config[f"{kind}_setup_commands"]
    for same in ("file_mounts", "cluster_synced_files", "setup_commands", "worker_setup_commands"):
        assert config[same] == own[same]


def test_hosts_with_gpus_come_when_they_are_asked_for() -> None:
    """The head has none, and takes none of the clients; Ray knows of the others what they will have."""
    kinds = prepared(ROOT / "examples" / "clusters" / "aws-gpu.yaml")["available_node_types"]
    assert kinds["head"]["resources"] == {"CPU": 0}
    assert kinds["gpu"]["resources"] == {"CPU": 8, "GPU": 1}
    assert (kinds["gpu"]["min_workers"], kinds["gpu"]["max_workers"]) == (0, 4)


@pytest.mark.parametrize("name", ["cluster", "job"])
def test_the_files_for_kubernetes(name: str) -> None:
    """`.ci/kuberay` checks them against KubeRay's schemas; this sees that they are what the page says."""
    file = yaml.safe_load((KUBERAY / f"{name}.yaml").read_text())
    spec = file["spec"] if name == "cluster" else file["spec"]["rayClusterSpec"]
    claim = yaml.safe_load((KUBERAY / "storage.yaml").read_text())["metadata"]["name"]
    (group,) = spec["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"]) == (0, 0)
    minor = spec["rayVersion"].rpartition(".")[0]
    assert f"ray[default,tune]>={minor}," in (ROOT / "pyproject.toml").read_text()
    for pod in (spec["headGroupSpec"]["template"]["spec"], group["template"]["spec"]):
        assert pod["volumes"] == [{"name": "shared", "persistentVolumeClaim": {"claimName": claim}}]
        (container,) = pod["containers"]
        assert container["image"] == "RAYFL_IMAGE"
        assert container["volumeMounts"] == [{"name": "shared", "mountPath": "/shared"}]
        assert ("nvidia.com/gpu" in container["resources"]["limits"]) == (container["name"] == "ray-worker")
    if name == "job":
        both = [yaml.safe_load((KUBERAY / "cluster.yaml").read_text())["spec"], spec]
        assert both[0] == both[1]
        program, command, *options = file["spec"]["entrypoint"].split()
        assert (program, command) == ("rayfl", "run")
        federation_from(options)


def test_the_image_is_of_a_user_and_of_what_is_there() -> None:
    lines = (ROOT / "examples" / "clusters" / "Dockerfile").read_text().splitlines()
    copied = {name for line in lines if line.startswith("COPY") for name in line.split()[1:-1]}
    assert copied == {*prepared(ROOT / "cluster.yaml")["file_mounts"].values()}
    assert [line for line in lines if line.startswith("USER")] == ["USER ray"]


def test_every_name_of_azures_parameters_is_one_of_its_template() -> None:
    """Ray hands them to the template as they are, and Azure refuses what it does not know."""
    launcher = pytest.importorskip("ray.autoscaler._private._azure")
    template = json.loads((Path(launcher.__file__).parent / "azure-vm-template.json").read_text())
    config = prepared(ROOT / "examples" / "clusters" / "azure.yaml")
    for kind in config["available_node_types"].values():
        assert set(kind["node_config"]["azure_arm_parameters"]) <= set(template["parameters"])


def test_the_ports_of_the_firewall_are_those_of_ray() -> None:
    """Every port that Ray is given, and those that it takes by itself, are among those that are closed."""
    script = f". {ROOT}/examples/clusters/environment.sh; echo $RAYFL_RAY_PORTS; echo $RAYFL_PORTS"
    output = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=True, env={"HOME": "/x", "PATH": "/bin"}
    )
    given, closed = output.stdout.splitlines()
    ranges = [part.strip().partition("-") for part in closed.split(",")]
    shut = {port for low, _, high in ranges for port in range(int(low), int(high or low) + 1)}
    asked = {int(port) for port in re.findall(r"=(\d+)", given)}
    by_itself = {6379, 8265, 10001, 44217, 44227, 52365}
    assert asked | by_itself <= shut
    assert set(range(10002, 20000)) <= shut  # of workers


SUDO = 'shift; exec "$@"'


def write_programs(folder: Path, programs: dict[str, str]) -> None:
    """Write stand-ins for programs, in the shell's language."""
    for name, body in programs.items():
        (folder / name).write_text(f"#!{shutil.which('sh')}\n{body}\n")
        (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("addresses", "asks"),
    [
        (["10.1.2.3/8", "fd12::1/64"], False),
        (["172.31.0.9/16", "192.168.1.5/24", "100.64.0.1/10"], False),
        (["10.1.2.3/8", "203.0.113.9/24"], True),
        (["172.32.0.9/16"], True),
        (["10.1.2.3/8", "2001:db8::1/64"], True),
    ],
)
def test_the_firewall_is_set_on_the_internet(tmp_path: Path, addresses: list[str], asks: bool) -> None:
    """With stand-ins for ip, nft and sudo that say what they are given."""
    lines = "\n".join(f"2: eth0    inet {address} scope global eth0" for address in addresses)
    write_programs(tmp_path, {"ip": f"cat <<'X'\n{lines}\nX", "nft": f"cat > {tmp_path}/rules", "sudo": SUDO})
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "RAYFL_PORTS": "6379, 8076-8080"}
    call = ["bash", str(ROOT / "examples" / "clusters" / "firewall.sh"), "10.1.2.3"]
    subprocess.run(call, env=environment, check=True)
    assert (tmp_path / "rules").exists() == asks
    if asks:
        rules = (tmp_path / "rules").read_text()
        assert "ip daddr 10.1.2.3 accept" in rules
        assert "tcp dport { 6379, 8076-8080 } drop" in rules
        subprocess.run(call, env=environment | {"RAYFL_FIREWALL": "mine"}, check=True)
        write_programs(tmp_path, {"nft": "exit 1"})
        refused = subprocess.run(call, env=environment, capture_output=True, text=True)
        assert refused.returncode == 1
        assert "RAYFL_FIREWALL=mine" in refused.stderr


IP = "echo '2: eth0    inet 203.0.113.9/24 scope global eth0'"


@pytest.mark.parametrize(
    ("programs", "address", "told"),
    [
        ({}, "10.1.2.3", "command ip"),
        ({"nft": "exit 0", "sudo": SUDO}, "10.1.2.3", "command ip"),
        ({"ip": "exit 1", "nft": "exit 0", "sudo": SUDO}, "10.1.2.3", "command ip"),
        ({"ip": "exit 0", "nft": "exit 0", "sudo": SUDO}, "10.1.2.3", "command ip"),
        ({"ip": f"{IP}; exit 1", "nft": "exit 0", "sudo": SUDO}, "10.1.2.3", "command ip"),
        ({"ip": "echo '2: eth0'", "nft": "exit 1", "sudo": SUDO}, "10.1.2.3", "not understood"),
        ({"ip": IP}, "10.1.2.3", "nftables"),
        ({"ip": IP, "sudo": SUDO, "nft": "exit 3"}, "10.1.2.3", "nftables"),
        ({"ip": IP, "env": "exit 1", "sudo": "exit 1", "nft": "exit 0"}, "10.1.2.3", "nftables"),
        ({"ip": IP, "nft": "exit 0", "sudo": SUDO}, None, "address"),
    ],
)
def test_without_what_it_needs_the_firewall_ends_with_an_error(
    tmp_path: Path, programs: dict[str, str], address: str | None, told: str
) -> None:
    """With a PATH on which nothing else is; Ray is started only after success."""
    write_programs(tmp_path, programs)
    script = str(ROOT / "examples" / "clusters" / "firewall.sh")
    call = [str(shutil.which("bash")), script, *([] if address is None else [address])]
    environment = {"PATH": str(tmp_path), "RAYFL_PORTS": "6379"}
    found = subprocess.run(call, env=environment, capture_output=True, text=True)
    assert found.returncode == 1
    assert told in found.stderr
    subprocess.run(call, env=environment | {"RAYFL_FIREWALL": "mine"}, check=True)


def test_the_worked_example_is_filled_in() -> None:
    """What the page changes in two files makes files that Ray takes, with nothing left to fill in."""
    page = (ROOT / "docs" / "clusters.md").read_text()
    own, cloud = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL))
    util = pytest.importorskip("ray.autoscaler._private.util")
    for path, changes in ((ROOT / "cluster.yaml", own), (ROOT / "examples" / "clusters" / "aws.yaml", cloud)):
        config = yaml.safe_load(path.read_text())
        assert changes.keys() <= config.keys()
        util.validate_config(util.prepare_config(config | changes))
    assert own.keys() == {"provider", "auth"}
    assert "ADDRESS" not in yaml.safe_dump(own)
    assert "USER" not in yaml.safe_dump(own)
    before = yaml.safe_load((ROOT / "examples" / "clusters" / "aws.yaml").read_text())
    assert cloud["initialization_commands"][0] == before["initialization_commands"][0]


def test_the_script_for_slurm_is_one() -> None:
    """Bash takes it and what it writes for the nodes, sbatch finds its options before any command."""
    script = ROOT / "examples" / "clusters" / "slurm.sh"
    text = script.read_text()
    (node,) = re.findall(r"<<'NODE'\n(.*?)^NODE$", text, re.DOTALL | re.MULTILINE)
    for given in (text, node):
        subprocess.run(["bash", "-n"], input=given, text=True, check=True)
    options = [line for line in text.splitlines() if line.startswith("#SBATCH ")]
    assert text.splitlines()[1 : 1 + len(options)] == options
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True)
    assert done.returncode == 2
    assert "usage: sbatch slurm.sh COMMAND" in done.stderr
