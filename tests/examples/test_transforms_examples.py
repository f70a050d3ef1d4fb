"""The tables of the examples with transforms."""

import pytest

from rayfl.jobs.table_file import merge_layers
from tests.support.examples import EXAMPLES
from tests.support.federations import federation_from


@pytest.mark.parametrize(
    ("table", "row", "column", "expected"),
    [
        ("compressed", "FedBN", "whole", "None"),
        ("compressed", "FedBN", "top 1%", "TopK(share=0.01)"),
        ("compressed", "SCAFFOLD", "top 10%, 4 bits", "[TopK(), Quantise(bits=4)]"),
    ],
)
def test_cells_have_their_transforms(table: str, row: str, column: str, expected: str) -> None:
    file = str(EXAMPLES / "transforms" / f"{table}.yaml")
    found = federation_from(["--config", file, "--row", row, "--column", column])
    assert str(found.transforms) == expected


def test_another_transform_drops_the_options_of_the_one_before() -> None:
    base = {"transforms": "TopK", "transforms.share": 0.5}
    assert merge_layers(base, {"transforms": "Quantise"}) == {"transforms": "Quantise"}
    assert merge_layers(base, {"transforms": "TopK"}) == base
