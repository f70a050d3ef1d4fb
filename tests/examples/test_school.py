"""Marks of pupils as a regression: the example's table, and the closed form of one model for all."""

import os
from pathlib import Path

import numpy as np
import pytest

from rayfl.federation import federation_of
from rayfl.jobs.table_file import Table
from tests.support.examples import EXAMPLES, example

SCHOOL = Path(os.environ.get("RAYFL_DATA", "nowhere"), "school", "school.mat")


def test_every_row_of_the_table_is_the_same_but_for_its_method() -> None:
    table = Table.load(EXAMPLES / "school" / "marks.yaml")
    settings = [table.settings(row, "School") for row in table.rows]
    rest = [{k: v for k, v in each.items() if not k.startswith(("method", "cell"))} for each in settings]
    assert all(each == rest[0] for each in rest)
    assert list(table.seeds) == [0, 1, 2, 3, 4]


@pytest.mark.skipif(not SCHOOL.is_file(), reason="RAYFL_DATA has no school/school.mat")
@pytest.mark.parametrize(("seed", "expected"), [(0, 0.02468), (1, 0.02506)])
def test_pooled_least_squares(tmp_path: Path, seed: int, expected: float) -> None:
    """The error of the model that all pupils' marks determine, weighted by schools' training samples."""
    frame = example("school/school.py").read_school(SCHOOL)
    assert (len(frame), frame["school"].nunique()) == (15362, 139)
    frame.to_csv(tmp_path / "school.csv", index=False)
    settings = Table.load(EXAMPLES / "school" / "marks.yaml").settings("FedAvg", "School")
    changes = {"data.train": str(tmp_path / "school.csv"), "seed": seed, "net": "MLP"}
    data = federation_of(settings | changes).federated_data()
    x = np.column_stack([data.dataset.inputs, np.ones(len(data.dataset))]).astype(np.float64)
    y, train = data.dataset.targets, data.held.indices["train"]
    solution = np.linalg.lstsq(x[train], y[train], rcond=None)[0]
    errors = [np.square(x[c.test] @ solution - y[c.test]).mean() for c in data.clients]
    assert np.average(errors, weights=data.counts("train")) == pytest.approx(expected, abs=1e-5)
