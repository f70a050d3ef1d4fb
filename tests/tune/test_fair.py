"""A table whose cells are tuned: what is tried and chosen, and that a search goes on where it stopped."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from rayfl import table as table_command
from rayfl.errors import BadData
from rayfl.federation import federation_of
from rayfl.jobs.cells import Job
from rayfl.jobs.table_file import Table
from rayfl.tune import fair
from rayfl.tune.outcome import BestPoints, PointResult
from rayfl.tune.space import Space
from tests.support.refusals import refused
from tests.support.tables import TINY, write

VALIDATED = TINY.replace("  rounds: 2", "  rounds: 2\n  data.val_fraction: 0.2\n  engine.device: cpu")


def tables(folder: Path, text: str = VALIDATED) -> Table:
    return Table.load(write(folder, text))


def cell(table: Table, row: str = "Prox", column: str = "even") -> Job:
    return Job(row, column, 0, 2, Path(), table.settings(row, column))


def space(table: Table, points: int, *place: str) -> Space:
    found = cell(table, *place)
    return fair.space_of_cell(table, found, points, fair.values_of_cell(table, found))


def bundles(found: Space) -> Mapping[str, Mapping[str, Any]]:
    ((dimension,),) = found.search
    return dimension.bundles


def test_a_cell_is_tried_as_it_is_and_at_other_points(tmp_path: Path) -> None:
    """Rates about that of the cell, and what its method's own space has, but for what the row decides."""
    table = tables(tmp_path, VALIDATED.replace("    method.mu: 0.1\n", ""))
    rate = federation_of(table.settings("Prox", "even")).training.lr
    points = bundles(space(table, 100))
    first, *others = points.values()
    assert first == {}
    tried = {(each["training.lr"] / rate, each["method.mu"]) for each in others}
    assert len(tried) == len(others) == 5 * 5 - 1, "the cell itself is not tried twice"
    assert {round(factor, 6) for factor, _ in tried} == {0.1, 0.3, 1.0, 3.0, 10.0}
    assert {mu for _, mu in tried} == {0.0001, 0.001, 0.01, 0.1, 1.0}
    of_row = bundles(space(table, 100, "Prox", "by class"))
    assert {key for each in of_row.values() for key in each} == {"training.lr"}
    assert len(bundles(space(table, 8))) == 8
    assert bundles(space(table, 8)) == bundles(space(table, 8)), "drawn alike whenever they are drawn"
    assert list(bundles(space(table, 1))) == [fair.AS_IT_IS]


def test_points_whose_values_do_not_go_together_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair, "FACTORS", (-1.0, 1.0, 2.0))
    rate = federation_of(tables(tmp_path).settings("FedAvg", "even")).training.lr
    found = bundles(space(tables(tmp_path), 200, "FedAvg"))
    assert [each.get("training.lr") for each in found.values()] == [None, 2 * rate]


def test_no_run_of_the_table_has_the_seed_of_the_search(tmp_path: Path) -> None:
    assert space(tables(tmp_path), 2).seeds == (10_000,)
    assert space(tables(tmp_path, VALIDATED.replace("[0, 5]", "[0, 10000]")), 2).seeds == (10_001,)


class Searches:
    """Stands for sweeps: their results, or None for one that is told to stop."""

    def __init__(self, best: str | None, complete: bool = True) -> None:
        self.best, self.complete, self.begun = best, complete, list[bool]()

    def __call__(self, space: Space, folder: Path, resume: bool, **more: Any) -> Any:
        self.begun.append(resume)
        folder.mkdir(parents=True, exist_ok=True)
        space.save(folder)
        values = next(iter(space.search))[0].values
        results = [
            PointResult(
                space.point_of({"search": 0, "point": value}), [0], [float(value == self.best)], [0.5], 2
            )
            for value in values
        ]
        best = BestPoints.from_results(results, "max") if self.best else BestPoints()
        return SimpleNamespace(complete=self.complete, best=best, results=results, failed={"a": "why"})


def search(table: Table, output: Path, points: int = 30) -> bool:
    cells = [cell(table, row) for row in ("FedAvg", "Prox")]
    return fair.tune_cells(table, cells, points, output, None, Console(quiet=True))


def test_what_is_chosen_is_recorded_and_not_searched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tables(tmp_path)
    monkeypatch.setattr(fair.sweep, "run", stopped := Searches("training.lr=1", complete=False))
    assert not search(table, tmp_path)
    assert fair.read_choices(tmp_path) == []
    monkeypatch.setattr(fair.sweep, "run", over := Searches("training.lr=1"))
    assert search(table, tmp_path)
    assert (stopped.begun, over.begun) == ([False], [True, False]), "the first search goes on"
    assert search(table, tmp_path)
    assert len(over.begun) == 2
    chosen = [(each.row, each.settings, each.chosen) for each in fair.read_choices(tmp_path)]
    assert chosen == [(row, {"training.lr": 1.0}, ["training.lr=1!"]) for row in ("FedAvg", "Prox")]
    whole = fair.with_choices(table, fair.read_choices(tmp_path))
    assert list(whole.columns) == ["even", "even, tuned", "by class"]
    settings = whole.settings("Prox", "even, tuned")
    assert (settings["training.lr"], settings["method.mu"]) == (1.0, 0.1)
    assert "training.lr" not in whole.settings("Prox", "even")
    fewer = tables(tmp_path, VALIDATED.partition("  Prox:")[0].replace("[FedNova]", "[]"))
    assert [*fair.with_choices(fewer, fair.read_choices(tmp_path)).rows] == ["FedAvg"], "a row may go"
    (line, _) = fair.choices_sheet(fair.read_choices(tmp_path)).rows
    assert line[:4] == ["FedAvg", "even", "training.lr=1!", "100.00"]


def test_a_search_in_which_nothing_can_be_chosen_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair.sweep, "run", Searches(None))
    with refused(BadData, "row 'FedAvg', column 'even'") as caught:
        search(tables(tmp_path), tmp_path)
    assert "why" in str(caught.value)


def test_values_at_the_edge_are_marked() -> None:
    tried = [1.0, 0.1, 10.0]
    assert [fair._chosen_text("k", value, tried) for value in tried] == ["k=1", "k=0.1!", "k=10!"]
    assert fair._chosen_text("k", True, [True, False]) == "k=True"
    assert fair._chosen_text("k", 3, [3]) == "k=3"


@pytest.mark.slow
def test_a_table_has_tuned_columns(tmp_path: Path, ray_runtime: str) -> None:
    """And the command given again repeats nothing."""
    chosen = "--rows FedAvg --columns even --seeds 1 --tune 2 --jobs 1 --output"
    given = [write(tmp_path, VALIDATED), *chosen.split(), str(tmp_path / "out")]
    for _ in range(2):
        assert table_command.main(given) == 0
        (choice,) = json.loads((tmp_path / "out" / "tuning.json").read_text())
        assert (choice["points"], choice["space"]["seeds"]) == (2, [10_000])
        text = (tmp_path / "out" / "table.md").read_text()
        assert "even, tuned" in text
        assert 'id="choices"' in (tmp_path / "out" / "report.html").read_text()
    assert len(list((tmp_path / "out" / "FedAvg").glob("*/seed-0/summary.json"))) == 2
