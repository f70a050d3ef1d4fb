"""The overview of all methods in the documentation."""

import re
from pathlib import Path

import pytest

from rayfl.methods import METHODS
from rayfl.nets import DigitModel
from rayfl.training.net import Net, is_batch_norm

PAGE = Path(__file__).parents[2] / "docs" / "methods" / "README.md"
UNITS = {"kB": 1e3, "MB": 1e6}


def overview() -> dict[str, list[str]]:
    """Return the cells of each method's line in the table of costs."""
    table = PAGE.read_text().split("## What they cost")[1].split("\n## ")[0]
    lines = re.findall(r"^\| \[(\w+)\]\(\w+\.md\) \| (.*) \|$", table, re.MULTILINE)
    return {name: cells.split(" | ") for name, cells in lines}


def test_every_method_is_in_the_overview() -> None:
    assert sorted(overview()) == sorted(METHODS)
    assert all(len(cells) == 5 for cells in overview().values())


def test_the_bytes_are_those_of_the_net() -> None:
    """Parameters and running statistics of ``DigitModel``, four bytes each, sent by a client in a round."""
    net = Net(lambda: DigitModel().build((3, 28, 28), 10))
    initial = net.initial(0)
    count = {name: value.numel() for name, value in initial.items()}
    norm = sum(n for name, n in count.items() if is_batch_norm(net.modules_of[name]))
    head = 512 * 10 + 10
    trained = sum(count[name] for name in initial.train_names)
    expected = {
        "FedAvg": sum(count.values()),
        "FedBN": sum(count.values()) - norm,
        "FedPer": sum(count.values()) - head,
        "SCAFFOLD": sum(count.values()) + trained,
        "LGFedAvg": head,
        "FedGH": head,
    }
    for name, numbers in expected.items():
        value, unit = overview()[name][0].split()
        assert float(value) * UNITS[unit] == pytest.approx(4 * numbers, abs=0.005 * UNITS[unit])
