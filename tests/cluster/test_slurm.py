"""`sbatch slurm.sh` on a Slurm of two nodes, both on this machine: runs give the bytes of one process.

It takes minutes, and is skipped where root or Debian's slurm-wlm and munge are missing. The nodes are two
daemons of Slurm on loopback.
"""

import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from rayfl.__main__ import main as rayfl
from tests.support.federations import bytes_of_run
from tests.support.processes import rounds_of, wait_until

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "clusters" / "slurm.sh"
DAEMONS = ("munged", "slurmctld", "slurmd")
PATH = f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"

pytestmark = pytest.mark.slow

SETTINGS = """\
ClusterName=rayfl
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPort={ports[0]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
KillWait=20
SlurmdTimeout=600
NodeName=rayfl0 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2
NodeName=rayfl1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclass
class Slurm:
    """A Slurm of two nodes, and the folder that they share."""

    shared: Path
    environment: dict[str, str]

    def run(self, *command: str) -> str:
        """Run one of Slurm's commands; return its output."""
        done = subprocess.run(
            command, env=self.environment, cwd=self.shared, capture_output=True, text=True, timeout=540
        )
        logs = "".join(log.read_text() for log in sorted(self.shared.glob("*.out")))
        assert done.returncode == 0, done.stdout + done.stderr + logs
        return done.stdout

    def batch(self, *options: str) -> list[str]:
        """Return what hands a script to Slurm, with a log in the shared folder."""
        usual = ["--parsable", "--time=30", "--cpus-per-task=1", "--output=%j.out"]
        return ["sbatch", *usual, *options, str(SCRIPT)]


def free_ports(count: int) -> list[int]:
    with ExitStack() as bound:
        ends = [bound.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [end.getsockname()[1] for end in ends]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    if os.geteuid() != 0:
        pytest.skip("a Slurm cannot be started here: it needs root")
    if absent := [name for name in DAEMONS if not shutil.which(name, path=PATH)]:
        pytest.skip(f"Debian's slurm-wlm and munge are not there: {', '.join(absent)}")
    folder = tmp_path_factory.mktemp("slurm")
    shared = tmp_path_factory.mktemp("shared")
    for part in (*folder.parents, folder):  # munge checks who can reach its socket
        if part.name.startswith(("pytest", "slurm")):
            part.chmod(0o755)
    (folder / "state").mkdir()
    (folder / "key").write_bytes(os.urandom(128))
    (folder / "key").chmod(0o400)
    settings = folder / "slurm.conf"
    settings.write_text(SETTINGS.format(host=socket.gethostname(), folder=folder, ports=free_ports(3)))
    environment = {
        "PATH": PATH,
        "HOME": str(shared),
        "USER": "root",
        "LC_ALL": "C.UTF-8",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "RAY_worker_niceness": "0",  # or a busy machine lets the actors wait for minutes
        "SLURM_CONF": str(settings),
    }
    names = {"key-file": "key", "socket": "munge.socket", "pid-file": "munged.pid"}
    names |= {"log-file": "munged.log", "seed-file": "seed"}
    munged = ["munged", "--foreground", "--force", *(f"--{of}={folder}/{name}" for of, name in names.items())]
    daemons = [munged, ["slurmctld", "-D"], *(["slurmd", "-D", "-N", f"rayfl{k}"] for k in (0, 1))]
    with ExitStack() as running:
        for command in daemons:
            process = running.enter_context(
                subprocess.Popen(
                    command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
            )
            running.callback(process.terminate)
            if command is munged:
                wait_until((folder / "munge.socket").exists, process)
        made = Slurm(shared, environment)
        (shared / "look.py").write_text(LOOK)
        (shared / "one.yaml").write_text(TABLE)

        def idle() -> bool:
            told = subprocess.run(
                ["sinfo", "--noheader", "--format=%T %D"], env=environment, capture_output=True, text=True
            )
            return told.stdout.split() == ["idle", "2"]

        wait_until(idle, process)
        yield made


LOOK = r"""
import os, re, subprocess
token = os.environ["RAY_AUTH_TOKEN_PATH"]
paths = token, os.path.dirname(token), f"/tmp/rayfl-{os.environ['SLURM_JOB_ID']}"
print("modes:", *(oct(os.stat(path).st_mode & 0o777) for path in paths))
listening = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True).stdout.splitlines()
for line in listening:
    pid = re.search(r"pid=(\d+)", line)
    session = f"/tmp/rayfl-{os.environ['SLURM_JOB_ID']}/"
    if pid and session in open(f"/proc/{pid[1]}/cmdline").read():
        print("listen:", line.split()[3].rpartition(":")[0])
import ray
ray.init(address="auto", log_to_driver=False)
print("nodes:", sum(node["Alive"] for node in ray.nodes()), "cpus:", ray.cluster_resources()["CPU"])
"""

TABLE = """
table: one
title: A cell
seeds: [0]
base: {data: Synthetic, data.train: 80, data.test: 40, net: LeNet, clients: 4, rounds: 1, loggers: []}
columns: {all: {}}
rows: {FedAvg: {method: FedAvg}}
"""

SMALL = ["--data", "Synthetic", "--data.train", "80", "--data.test", "40", "--net", "LeNet", "--clients", "4"]
SMALL += ["--loggers", "[]", "--rounds", "2", "--method", "FedBN"]


def test_a_run_and_a_table_on_two_nodes(slurm: Slurm) -> None:
    commands = [
        "python look.py",
        f"rayfl run {shlex.join(SMALL)} --engine.address auto --output run",
        "rayfl table one.yaml --engine Ray --engine.address auto --output table",
    ]
    batch = slurm.batch("--wait", "--nodes=2", "--export=ALL,RAYFL_FIREWALL=mine")
    job = slurm.run(*batch, "bash", "-c", " && ".join(commands)).strip()
    said = (slurm.shared / f"{job}.out").read_text()
    assert "modes: 0o600 0o700 0o700" in said
    assert "nodes: 2 cpus: 2.0" in said
    assert rayfl(["run", *SMALL, "--engine", "Inline", "--output", str(slurm.shared / "here")]) == 0
    assert bytes_of_run(slurm.shared / "run") == bytes_of_run(slurm.shared / "here")
    assert (slurm.shared / "table" / "table.tex").is_file()
    assert not list(slurm.shared.glob(".rayfl-*")), "the token is gone"
    assert not Path(f"/tmp/rayfl-{job}").exists()


def test_before_the_time_is_over_a_run_saves(slurm: Slurm) -> None:
    """What Slurm sends then, a SIGTERM for the script, ends the run after its round, and Ray with it."""
    endless = [*SMALL, "--rounds", "100000", "--checkpoint_every", "0", "--output", "long"]
    script = f"python look.py && exec rayfl run {shlex.join(endless)} --engine.address auto"
    command = [*slurm.batch("--wait", "--nodes=1"), "bash", "-c", script]
    with subprocess.Popen(command, env=slurm.environment, cwd=slurm.shared, stdout=subprocess.PIPE) as waits:
        wait_until(lambda: rounds_of(slurm.shared / "long") > 1, waits)
        job = slurm.run("squeue", "--noheader", "--format=%i").strip()
        slurm.run("scancel", "--batch", "--signal=TERM", job)
        assert waits.wait(300) == 130
    said = (slurm.shared / f"{job}.out").read_text()
    assert "go on with --resume long" in said
    listening = [line for line in said.splitlines() if line.startswith("listen:")]
    assert len(listening) > 2
    assert set(listening) <= {"listen: 127.0.0.1", "listen: [::ffff:127.0.0.1]"}
    assert not Path(f"/tmp/rayfl-{job}").exists()


def test_nodes_on_the_internet_are_refused(slurm: Slurm, tmp_path: Path) -> None:
    """With a stand-in for ip that says so."""
    (tmp_path / "ip").write_text(
        "#!/bin/sh\necho '2: eth0 inet 203.0.113.9/24 src 203.0.113.9 scope global eth0'\n"
    )
    (tmp_path / "ip").chmod(0o755)
    batch = slurm.batch("--wait", "--nodes=2", f"--export=ALL,PATH={tmp_path}:{PATH}")
    done = subprocess.run(
        [*batch, "true"], env=slurm.environment, cwd=slurm.shared, capture_output=True, text=True
    )
    assert done.returncode == 1
    said = (slurm.shared / f"{done.stdout.strip()}.out").read_text()
    assert "has addresses of the internet (203.0.113.9/24), and parts of Ray would listen there" in said
