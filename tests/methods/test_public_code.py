"""The harness that runs public code beside rayfl, on a package that a test writes."""

import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

from benchmarks.public.harness import Batches, Flat, Pair, case, entries, public_code
from tests.methods.forms.world import Outcome, World

CODE = """
import torch
import a_package_that_is_nowhere.part as part
from a_package_that_is_nowhere import function

torch.set_default_dtype(torch.float64)
random_number = torch.rand(1)


def average(nets, shares):
    total = {key: sum(s * net[key] for s, net in zip(shares, nets)) for key in nets[0]}
    print("a line that nobody wants")
    return {key: value.float() * FACTOR for key, value in total.items()}
"""


def fedavg(world: World) -> Outcome:
    code = import_module("public_average")
    weights = Flat(world.make()).state_dict()
    for round, cohort in enumerate(world.cohorts):
        trained = []
        for i in cohort:
            net = Flat(world.make()).cuda()
            net.load_state_dict(weights)
            optimiser = torch.optim.SGD(net.parameters(), world.lr)
            loader = Batches(world, i, world.order(i, round, 0))
            for _ in range(world.epochs):
                for x, y in loader:
                    optimiser.zero_grad()
                    torch.nn.functional.cross_entropy(net(x), y).backward()
                    optimiser.step()
            trained.append(net.state_dict())
        weights = code.average(trained, (world.samples(cohort) / world.samples(cohort).sum()).tolist())
    return Outcome({"weights": entries(weights)}, [{} for _ in world.clients])


@pytest.mark.parametrize(("factor", "equal"), [(1.0, True), (1.001, False)])
def test_public_code_is_equal_or_is_not(tmp_path: Path, factor: float, equal: bool) -> None:
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository/public_average.py").write_text(CODE + f"\n\nFACTOR = {factor}\n")
    pair = Pair("FedAvg", "repository", fedavg, case("FedAvg"), absent=("a_package_that_is_nowhere",))
    found = pair.differences(tmp_path)
    assert (found["server"] < 1e-14) == equal
    assert "public_average" not in sys.modules
    assert not [name for name in sys.modules if name.startswith("a_package_that_is_nowhere")]


def test_public_code_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "public_average.py").write_text(CODE)
    torch.manual_seed(1)
    expected, path, to_float = torch.rand(2), list(sys.path), torch.Tensor.float
    torch.manual_seed(1)
    with public_code(tmp_path, ("a_package_that_is_nowhere",)):
        import_module("public_average")
        print("another line")
        assert torch.ones(1).float().dtype == torch.float64
    assert torch.equal(torch.rand(2), expected)
    assert (sys.path, torch.Tensor.float, torch.get_default_dtype()) == (path, to_float, torch.float32)
    assert capsys.readouterr().out == ""
