"""What people see who type the name of an object: a short line."""

from typing import Any

import numpy as np
import pytest

import rayfl
from rayfl import Federation, Inline, Training, nets
from rayfl.data import Arrays, Dirichlet, EmbeddedDigits, Synthetic
from rayfl.methods import FedProx, Local
from rayfl.running.result import Result
from rayfl.transforms import TopK
from tests.support.records import write_run

EVIL = '<script>alert("&")</script>\x1b[31m'


class Own(Local):
    """Of a user."""

    name: str = EVIL


LINES: list[tuple[object, str]] = [
    (FedProx(), "FedProx()"),
    (Federation(transforms=[TopK(share=0.5)]).transforms, "[TopK(share=0.5)]"),
    (Inline(threads=2), "Inline(threads=2)"),
    (Training(lr=0.2), "Training(lr=0.2)"),
    (
        Federation(data=Synthetic(domains=2)),
        "Federation(method=FedBN(), data=Synthetic(partition=IID(), domains=2), rounds=20, engine=Ray())",
    ),
    (EmbeddedDigits(), "EmbeddedDigits(partition=DomainPerClient())"),
    (nets.FDSEAlexNet(G=3), "FDSEAlexNet(G=3)"),
    (
        Federation(method=Local(), clients=3, engine=Inline(), metrics=["f1"]),
        "Federation(method=Local(), data=EmbeddedDigits(partition=DomainPerClient()), clients=3, rounds=20, "
        "engine=Inline(), metrics=['f1'])",
    ),
]


@pytest.mark.parametrize(("thing", "line"), LINES, ids=[line[:20] for _, line in LINES])
def test_lines_have_what_differs_from_defaults(thing: object, line: str) -> None:
    assert repr(thing) == line


def test_arrays_are_shown_by_their_shape() -> None:
    data = Synthetic(train=300, test=60, domains=2, partition=Dirichlet(alpha=1.0))
    arrays = Arrays(np.zeros((50, 3)), np.zeros(50, int))
    assert repr(arrays).startswith("Arrays(x=ndarray [50, 3], y=ndarray [50], ")
    divided = data.federate(5, seed=0)
    for thing in (arrays, divided, divided.dataset, divided.clients[0], divided.clients):
        assert len(repr(thing)) < 700
    assert repr(divided) == "FederatedData(clients=5, train=300, val=0, test=60, classes=10)"


def test_what_a_notebook_completes() -> None:
    names = {name for name in dir(rayfl) if not name.startswith("_")}
    assert names >= {"Federation", "Plot", "load_models", "data", "methods", "nets"}
    assert names.isdisjoint({"Any", "TYPE_CHECKING", "import_module"})
    for name in names:
        assert rayfl.__getattr__(name) is getattr(rayfl, name)


def test_a_result_is_short(tmp_path: Any) -> None:
    result = Result.load(write_run(tmp_path / "run", rounds=4))
    line = f"Result(folder='{result.folder}', rounds=4 of 4, accuracy={result.figure:.4f}"
    assert repr(result).startswith(line.rstrip("0"))
    assert len(repr(result.history)) + len(repr(result.history.population)) < 500
    assert repr(result.plot) == "Plot of 1 run: rounds(), bars(), clients(), labels(), radar(), sweep(over)"


def test_what_a_terminal_acts_on_is_escaped(tmp_path: Any) -> None:
    written = Result.load(write_run(tmp_path / "<script>&", rounds=1))
    for thing in (Own(name=f"{EVIL}!"), Federation(output=EVIL), written):
        assert "<script>" in repr(thing)
        assert "\x1b" not in repr(thing)
