"""The order of sets differs from process to process, and must not decide any bit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rayfl.methods import METHODS
from tests.support.federations import bytes_of_run

SOME = ("FedCO2", "FedFomo", "PartialFed")
"""Methods that keep mappings of clients or of layers, or select entries by name."""


@pytest.mark.parametrize(
    "names", [SOME, pytest.param(tuple(METHODS), marks=pytest.mark.slow)], ids=["some", "every"]
)
def test_bytes_do_not_depend_on_hash_seeds(tmp_path: Path, names: tuple[str, ...]) -> None:
    running = {}
    for seed in ("1", "2"):
        command = [sys.executable, "-m", "tests.support.every_method", str(tmp_path / seed), *names]
        environment = os.environ | {"PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"}
        running[seed] = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
    errors = {seed: process.communicate()[1] for seed, process in running.items()}
    assert [process.returncode for process in running.values()] == [0, 0], errors
    for name in names:
        one, other = (bytes_of_run(tmp_path / seed / name) for seed in running)
        assert one == other, name
