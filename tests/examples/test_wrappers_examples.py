"""The wrapper that the examples show, and tables of wrapped methods."""

from pathlib import Path

import torch

from rayfl.errors import Conflict
from rayfl.jobs.table_file import merge_layers
from rayfl.methods import SCAFFOLD, Ditto, FedAvg, Local, SignFlip, TopK, Wrapper
from tests.support.by_hand import federate, points
from tests.support.examples import EXAMPLES, example
from tests.support.federations import bytes_of_run, federation_from, small
from tests.support.refusals import refused

Clipped = example("wrappers/clipped.py").Clipped


def test_changes_are_clipped() -> None:
    """The step from W = 0 is 1/2 in W[0, 0] and -1/2 in W[1, 0], of norm 1/sqrt(2)."""
    data = points([((1, 0), 0)])
    run = federate(Clipped(of=FedAvg(), norm=0.1), data, cohorts=1, lr=1.0)
    found = run.server.state["weights"]["head.weight"]
    expected = torch.tensor([[0.1 / 2**0.5, 0], [-0.1 / 2**0.5, 0]], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    run = federate(Clipped(of=FedAvg(), norm=2.0), data, cohorts=1, lr=1.0)
    assert run.server.state["weights"]["head.weight"].tolist() == [[0.5, 0], [-0.5, 0]]


def test_noise_is_that_of_the_seed(tmp_path: Path) -> None:
    for folder, seed in (("one", 0), ("two", 0), ("other", 1)):
        method = Clipped(of=SCAFFOLD(), norm=0.5, noise=0.1)
        small(tmp_path / folder, method=method, rounds=1, seed=seed).run()
    assert bytes_of_run(tmp_path / "one") == bytes_of_run(tmp_path / "two")
    assert bytes_of_run(tmp_path / "one") != bytes_of_run(tmp_path / "other")
    with refused(Conflict, "method.of"):
        small(tmp_path / "local", method=Clipped(of=Local())).run()


def test_cells_of_the_tables_are_wrapped_methods() -> None:
    def method(table: str, row: str, column: str) -> Wrapper:
        file = str(EXAMPLES / "wrappers" / table)
        found = federation_from(["--config", file, "--row", row, "--column", column]).method
        assert isinstance(found, Wrapper)
        return found

    found = method("topk.yaml", "FedBN without error feedback", "1%")
    assert isinstance(found, TopK)
    assert (found.share, found.error_feedback) == (0.01, False)
    found = method("liars.yaml", "Ditto, compressed", "40%")
    assert isinstance(found, SignFlip)
    assert isinstance(found.of, TopK)
    assert isinstance(found.of.of, Ditto)
    assert (found.share, found.of.share) == (0.4, 0.1)


def test_another_wrapped_method_drops_the_options_of_the_one_before() -> None:
    base = {"method": "TopK", "method.share": 0.5, "method.of": "FedProx", "method.of.mu": 0.1}
    kept = {key: value for key, value in base.items() if key != "method.of.mu"}
    assert merge_layers(base, {"method.of": "FedBN"}) == {**kept, "method.of": "FedBN"}
    assert merge_layers(base, {"method.of": "FedProx"}) == base
