"""One cluster at a time: several would keep each other from starting within the limits that Ray has."""

import fcntl
import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def one_at_a_time(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Wait until no other process of these tests has a cluster."""
    base = tmp_path_factory.getbasetemp()
    with ((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cluster.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
