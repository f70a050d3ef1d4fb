"""The one Ray runtime that all tests share."""

import os
from collections.abc import Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest


@pytest.fixture(scope="session")
def ray_runtime() -> Iterator[str]:
    """The one Ray runtime of a process that runs tests, with logical CPUs and GPUs; its address."""
    ray = pytest.importorskip("ray")
    context = ray.init(
        address="local",
        num_cpus=4,
        num_gpus=2,
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,  # a raylet's warning of a full disk is not what a test has written
    )
    yield context.address_info["address"]
    ray.shutdown()
