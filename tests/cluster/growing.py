"""A cluster that grows and shrinks: a federation asks for a host with a GPU, which Ray's autoscaler starts,
and ends a minute after the run.

The hosts are processes of Ray's own provider of pretended hosts: a head with one CPU, and a group of hosts
with a GPU of which none is there at first. Their GPUs are none, so clients train on the CPU there::

    python -m tests.cluster.growing            # the second version of Ray's autoscaler, as of ``ray up``
    python -m tests.cluster.growing --v1       # the first one
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

HEAD = "f" * 51 + "00000"
"""The id that the provider gives its head."""
PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
LISTS = ("initialization_commands", "cluster_synced_files", "rsync_exclude", "rsync_filter")
COMMANDS = ("setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")


def config(address: str, v2: bool) -> dict[str, Any]:
    """Return what ``ray up`` would have put on the head."""
    # Ray's packages lack the defaults that its type "fake_multinode" needs.
    provider: dict[str, Any] = {"type": "external", "module": PROVIDER, "gcs_address": address}
    if v2:
        provider |= {"launch_multiple": True, "head_node_id": HEAD}
    types: dict[str, Any] = {
        "ray.head.default": {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 0},
        "gpu": {"resources": {"CPU": 2, "GPU": 1}, "node_config": {}, "min_workers": 0, "max_workers": 1},
    }
    found: dict[str, Any] = {"cluster_name": "growing", "provider": provider, "available_node_types": types}
    found |= {"head_node_type": "ray.head.default", "max_workers": 1}
    found |= {"upscaling_speed": 1.0, "idle_timeout_minutes": 1}
    found |= {"auth": {}, "docker": {}, "file_mounts": {}, "file_mounts_sync_continuously": False}
    return found | {name: [] for name in LISTS} | {f"{name}_commands": [] for name in COMMANDS}


@contextmanager
def cluster(folder: Path, v2: bool) -> Iterator[str]:
    """Start the head; yield its address; stop it and what it has started."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"127.0.0.1:{port}"
    (folder / "config.json").write_text(json.dumps(config(address, v2)))
    environment = os.environ | {
        "RAY_enable_autoscaler_v2": str(int(v2)),
        "RAY_FAKE_CLUSTER": "1",
        "RAY_CLOUD_INSTANCE_ID": HEAD,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD,
        "RAY_NODE_TYPE_NAME": "ray.head.default",  # as `ray up` does
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    }
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--port={port}"]
    command += ["--node-ip-address=127.0.0.1"]
    command += ["--num-cpus=1", "--include-dashboard=false", "--disable-usage-stats"]
    command += [f"--temp-dir={folder / 'ray'}", f"--autoscaling-config={folder / 'config.json'}"]
    log = (folder / "head.log").open("w")
    head = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        while "will now block" not in Path(log.name).read_text():
            if head.poll() is not None:
                sys.exit(f"the head has not started: {Path(log.name).read_text()}")
            time.sleep(1)
        yield address
    finally:
        with suppress(ProcessLookupError):
            os.killpg(head.pid, signal.SIGKILL)
        head.wait()
        log.close()


def main() -> None:
    """Run a federation on the cluster, and say where its clients have trained."""
    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_TMPDIR": "/tmp"}
    import ray

    from rayfl import Ray
    from rayfl.callbacks.callback import Callback, Run
    from tests.support.federations import small

    class Where(Callback):
        """Says where clients have trained."""

        def after_round(self, run: Run, record: Mapping[str, Any]) -> bool:
            workers: Any = run.session.workers
            hosts = {node["NodeID"]: node for node in ray.nodes()}
            for where in workers.where:
                resources = hosts[where["node"]]["Resources"]
                assert resources["GPU"] == 1, "the head has none"
                told = {name: resources[name] for name in ("CPU", "GPU")}
                print(f"round {record['round'] + 1}: an actor trained on the host that came, {told}")
            return False

    with tempfile.TemporaryDirectory(prefix="gr-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with cluster(folder, v2="--v1" not in sys.argv) as address:
            engine = Ray(address=address, gpus_per_actor=0.25, device="cpu", actors=2)
            federation = small(folder / "run", engine=engine, rounds=2)
            began = time.monotonic()
            accuracy = federation.run([Where()]).accuracy
            print(f"accuracy {accuracy:.3f} after {time.monotonic() - began:.0f} s", flush=True)
            began = time.monotonic()
            ray.init(address=address, logging_level="ERROR")
            while sum(node["Alive"] for node in ray.nodes()) > 1:
                time.sleep(1)
            print(f"the host has gone again, {time.monotonic() - began:.0f} s after the end of the run")
            ray.shutdown()


if __name__ == "__main__":
    main()
