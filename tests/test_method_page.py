"""The worked example of docs/howto/method.md runs as it is printed."""

import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest

from rayfl.errors import BadValue
from rayfl.methods import FedAvg
from rayfl.nets import CNNB
from rayfl.run import main
from tests.support.by_hand import assert_same, federate, ragged
from tests.support.refusals import refused

TEXT = (Path(__file__).parents[1] / "docs" / "howto" / "method.md").read_text()
(METHOD,) = re.findall(r"^```python title=.fedavgm.py.\n((?:.*\n)*?)```", TEXT, re.MULTILINE)
BLOCKS = re.findall(r"^```python\n((?:.*\n)*?)```", TEXT, re.MULTILINE)
(TEST,) = (code for code in BLOCKS if "def test_fedavgm" in code)
(COMMAND,) = re.findall(r"^rayfl run (.*fedavgm.*)$", TEXT, re.MULTILINE)


@pytest.fixture
def fedavgm(tmp_path, monkeypatch):
    """The example's module, importable from the current folder."""
    (tmp_path / "fedavgm.py").write_text(METHOD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("fedavgm")
    del sys.modules["fedavgm"]


def test_the_printed_test_passes(fedavgm):
    namespace = {}
    exec(compile(TEST, "method.md", "exec"), namespace)
    namespace["test_fedavgm"]()
    namespace["test_it_does_what_every_method_must"]()


def test_without_momentum_it_is_fedavg(fedavgm):
    run, other = (federate(m, ragged(), CNNB()) for m in (fedavgm.FedAvgM(momentum=0.0), FedAvg()))
    assert_same(dict(run.server.state["weights"]), dict(other.server.state["weights"]), 1e-12)


def test_it_refuses_a_bad_option(fedavgm):
    with refused(BadValue, "method.momentum"):
        fedavgm.FedAvgM(momentum=1.0)


def test_the_printed_command_runs(fedavgm, tmp_path):
    small = "--engine Inline --data Synthetic --data.train 60 --data.test 20 --clients 2 --loggers []"
    assert main(shlex.split(f"{COMMAND} {small} --output {tmp_path / 'run'}")) == 0
    config = (tmp_path / "run" / "config.yaml").read_text()
    assert "class_path: fedavgm.FedAvgM" in config
    assert "momentum: 0.5" in config
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 5
