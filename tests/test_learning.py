"""Every method learns: real handwriting of five domains, label skew, and CIFAR-10 where it is at hand."""

import os
from pathlib import Path
from typing import Any

import pytest

from rayfl import Federation, Inline, Training
from rayfl.data import CIFAR10, IID, EmbeddedDigits, Pathological, Synthetic
from rayfl.methods import METHODS
from rayfl.nets import CNNB, LeNet
from tests.methods.cases import CASES, net_of


def figures(folder: Path, name: str, options: dict[str, Any] | None = None, **settings: Any) -> Any:
    """Return the mean test accuracy over clients of every view in the last round of a run."""
    result = Federation(
        method=METHODS[name](**(options or {})),
        engine=Inline(),
        eval_every=settings["rounds"],  # after the last round only
        checkpoint_every=0,
        loggers=[],
        quiet=True,
        output=str(folder),
        **settings,
    ).run()
    last = result.clients.query("part == 'test'")
    assert set(last["view"]) == set(METHODS[name]().views)
    return last.groupby("view")["figure"].mean()


@pytest.mark.parametrize(
    "name", ["FedBN", *(pytest.param(n, marks=pytest.mark.slow) for n in METHODS if n != "FedBN")]
)
def test_every_method_learns_digits_of_three_domains(tmp_path: Path, name: str) -> None:
    """Three domains, a client each, ten balanced classes: chance is 0.1, personal models must reach 0.35.

    Other views, the server's model or a part of the personal one, must be clearly better than chance, too.

    Batches of 64 because running statistics of BatchNorm, which are averaged or meet averaged layers, are too
    noisy after the first rounds of smaller ones.
    """
    found = figures(
        tmp_path / "run",
        name,
        data=EmbeddedDigits(val_fraction=0.5),
        net=net_of(name, CNNB()),
        clients=3,
        rounds=CASES[name].rounds,
        training=Training(lr=0.1, batch_size=64),
    )
    assert found["personal"] > 0.35
    assert found.min() > 0.25


@pytest.mark.slow
def test_personal_models_win_under_label_skew(tmp_path: Path) -> None:
    """Two classes per client: a model of its own has an easier task than one for all ten.

    Fed-CO2 as its Algorithm 2, which is the one for label skew.
    """
    skewed: dict[str, Any] = {
        "data": Synthetic(train=2000, test=1000, partition=Pathological(classes_per_client=2), noise=4.0),
        "net": LeNet(),
        "clients": 20,
        "rounds": 5,
        "training": Training(lr=0.05, batch_size=20),
    }
    methods = {
        "FedAvg": {},
        "Local": {},
        "FedPer": {},
        "Ditto": {},
        "FedCO2": {"intra": "none", "inter": "none"},
    }
    found = {
        name: figures(tmp_path / name, name, options, **skewed)["personal"]
        for name, options in methods.items()
    }
    assert min(found[name] for name in methods if name != "FedAvg") > found["FedAvg"] + 0.2


@pytest.mark.slow
def test_fedavg_learns_cifar10(tmp_path: Path) -> None:
    """Two rounds on real photographs are enough for twice the accuracy of chance."""
    root = os.environ.get("RAYFL_DATA")
    if root is None:
        pytest.skip("the environment variable RAYFL_DATA names no folder with data sets")
    if not (Path(root) / "cifar-10-batches-py").exists():
        pytest.skip("cifar-10-batches-py is not in RAYFL_DATA")
    found = figures(
        tmp_path / "run",
        "FedAvg",
        data=CIFAR10(root=root, partition=IID(), verify=False),
        net=LeNet(),
        clients=20,
        participation=0.2,
        rounds=2,
        training=Training(lr=0.02, batch_size=32, momentum=0.9),
    )
    assert found["global"] > 0.2
