"""The one Ray runtime that all tests share, and where their files lie."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_worker_niceness", "0")  # else actors wait while tests beside them work

import pytest
from hypothesis import settings

settings.register_profile("rayfl", deadline=None)  # no clock decides, however busy the machine is
settings.load_profile("rayfl")

MEMORY = Path("/dev/shm")
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 2**31:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))  # runs sync every checkpoint to the disk


@pytest.fixture(scope="session")
def ray_runtime() -> Iterator[str]:
    """The one Ray runtime of a process that runs tests, with logical CPUs and GPUs; its address."""
    ray = pytest.importorskip("ray")
    from rayfl.engine.local_ray import retry_start

    context = retry_start(
        lambda times: ray.init(
            address="local",
            num_cpus=4,
            num_gpus=2,
            include_dashboard=False,
            logging_level="ERROR",
            log_to_driver=False,  # a raylet's warning of a full disk is not what a test has written
        )
    )
    yield context.address_info["address"]
    ray.shutdown()


@pytest.fixture(scope="session")
def _kept(ray_runtime: str) -> Any:
    from tests.support.kept_actors import KeptActors

    return KeptActors()


@pytest.fixture
def kept_actors(_kept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Federations of this test take their actors from a store, for tests of other things than their start."""
    workers = "rayfl.engine.ray_workers.RayWorkers"
    monkeypatch.setattr(f"{workers}.start", lambda self, allow_fewer: _kept.start(self, allow_fewer))
    monkeypatch.setattr(f"{workers}.stop", lambda self: _kept.stop(self))


@pytest.fixture
def own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Modules of the user's own in a folder of their own."""
    from tests.support.own_modules import OwnModules

    (tmp_path / "own").mkdir()
    yield OwnModules(tmp_path / "own", monkeypatch)
    for name, module in [*sys.modules.items()]:  # else another test may get one for its own of this name
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path / "own")):
            del sys.modules[name]
