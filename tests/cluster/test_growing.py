"""A cluster that grows: a run asks for a host with a GPU, which Ray's autoscaler starts and later takes away.

The hosts are processes of Ray's own provider of pretended hosts: a head with one CPU, and a group of hosts
with a GPU of which none is there at first. Their GPUs are none, so clients train on the CPU there.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from rayfl.commands.run import main
from tests.support.federations import bytes_of_run
from tests.support.processes import wait_until

pytestmark = pytest.mark.slow
HEAD = "f" * 51 + "00000"
"""The id that the provider gives its head."""
PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
COMMANDS = ("setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray", "initialization")
LISTS = ("cluster_synced_files", "rsync_exclude", "rsync_filter", *(f"{name}_commands" for name in COMMANDS))
WITHOUT_TOKEN = os.environ | {"RAY_AUTH_MODE": "disabled", "RAY_TMPDIR": "/tmp"}


def config(address: str) -> dict[str, Any]:
    """Return what ``ray up`` would have put on the head."""
    # Ray's packages lack the defaults that its type "fake_multinode" needs.
    provider: dict[str, Any] = {"type": "external", "module": PROVIDER, "gcs_address": address}
    provider |= {"launch_multiple": True, "head_node_id": HEAD}
    types: dict[str, Any] = {
        "ray.head.default": {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 0},
        "gpu": {"resources": {"CPU": 2, "GPU": 1}, "node_config": {}, "min_workers": 0, "max_workers": 1},
    }
    found: dict[str, Any] = {"cluster_name": "growing", "provider": provider, "available_node_types": types}
    found |= {"head_node_type": "ray.head.default", "max_workers": 1}
    found |= {"upscaling_speed": 1.0, "idle_timeout_minutes": 1}
    found |= {"auth": {}, "docker": {}, "file_mounts": {}, "file_mounts_sync_continuously": False}
    return found | {name: [] for name in LISTS}


@contextmanager
def cluster() -> Iterator[str]:
    """Start the head; yield its address; stop it and what it has started."""
    folder = Path(tempfile.mkdtemp(prefix="gr-", dir="/tmp"))  # the paths of sockets must be short
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"127.0.0.1:{port}"
    (folder / "config.json").write_text(json.dumps(config(address)))
    environment = WITHOUT_TOKEN | {
        "RAY_enable_autoscaler_v2": "1",  # as of `ray up`
        "RAY_FAKE_CLUSTER": "1",
        "RAY_CLOUD_INSTANCE_ID": HEAD,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD,
        "RAY_NODE_TYPE_NAME": "ray.head.default",  # as `ray up` does
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    }
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--port={port}"]
    command += ["--node-ip-address=127.0.0.1", "--num-cpus=1", "--include-dashboard=false"]
    command += ["--disable-usage-stats"]
    command += [f"--temp-dir={folder / 'ray'}", f"--autoscaling-config={folder / 'config.json'}"]
    with ExitStack() as started:
        started.callback(shutil.rmtree, folder, ignore_errors=True)
        for left in reversed(range(5)):  # on a busy machine Ray may give up
            with (folder / "head.log").open("w") as log:
                head = subprocess.Popen(
                    command, env=environment, stdout=log, stderr=log, start_new_session=True
                )
            started.callback(_end, head)
            try:
                wait_until(lambda: "will now block" in (folder / "head.log").read_text(), head)
                break
            except AssertionError:
                _end(head)
                assert left, (folder / "head.log").read_text()
        yield address


def _end(head: "subprocess.Popen[bytes]") -> None:
    """End a head and what it has started."""
    with suppress(ProcessLookupError):
        os.killpg(head.pid, signal.SIGKILL)
    head.wait()


SMALL = ["--data", "Synthetic", "--data.train", "80", "--data.test", "40", "--net", "LeNet", "--clients", "4"]
SMALL += ["--rounds", "2", "--method", "FedBN", "--loggers", "[]"]
WAIT = """
import sys, time, ray
ray.init(address=sys.argv[1], log_to_driver=False)
while sum(node["Alive"] for node in ray.nodes()) > 1:
    time.sleep(1)
"""


def test_a_host_with_a_gpu_comes_and_goes(tmp_path: Path) -> None:
    with cluster() as address:
        call = [sys.executable, "-m", "rayfl.run", *SMALL, "--output", str(tmp_path / "run")]
        call += ["--engine.address", address, "--engine.actors", "2", "--engine.gpus_per_actor", "0.25"]
        done = subprocess.run(
            [*call, "--engine.device", "cpu"], env=WITHOUT_TOKEN, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert "waiting for 2 actors with 1 CPU and 0.25 GPUs each" in done.stderr
        subprocess.run([sys.executable, "-c", WAIT, address], env=WITHOUT_TOKEN, check=True)
    assert main([*SMALL, "--engine", "Inline", "--output", str(tmp_path / "here")]) == 0
    assert bytes_of_run(tmp_path / "run") == bytes_of_run(tmp_path / "here")
