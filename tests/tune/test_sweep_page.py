"""The page of a sweep: which points are best, by how little, and what was stopped."""

import html
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rayfl.report.parallel import Axis, parallel_chart
from rayfl.tune.outcome import BestPoints, PointResult
from rayfl.tune.space import Dimension, SearchPoint, Space
from rayfl.tune.sweep_page import sweep_page

SEARCH = (
    Dimension("method", "grid_search", ("Ditto", "FedCO2")),
    Dimension("lr", "loguniform", (0.01, 1.0)),
    Dimension("momentum", "choice", (0.0, 0.9)),
)
SPACE = Space(sweep="s", base={}, search=(SEARCH,), title="<i>", mode="max", scheduler={"name": "asha"})


def results(folder: Path, *points: tuple[dict[str, Any], list[float], int]) -> list[PointResult]:
    """Points of nine rounds with their scores of each seed; the scheduler has stopped those of fewer."""
    found = []
    for number, (values, scores, rounds) in enumerate(points):
        settings = {"cell": {"table": "s", "row": "r", "column": "base", "changed": []}} | values
        label = ", ".join(f"{key}={value}" for key, value in values.items())
        runs = [folder / f"{number}/seed-{seed}" for seed in range(len(scores))]
        for run in runs:
            run.mkdir(parents=True)
            if rounds < 9:
                run.with_name(f"{run.name}.stopped").touch()
        point, seeds = SearchPoint(label, values, settings, 9), [*range(len(scores))]
        own = PointResult(point, seeds, scores, scores, rounds, runs, number=number)
        found.append(replace(own, reached=[rounds] * len(runs)))
    return found


def page_of(space: Space, points: list[PointResult], home: Path, *keys: str) -> str:
    return sweep_page(space, points, BestPoints.from_results(points, str(space.mode), keys), home)


def rows(page: str, caption: str) -> list[list[str]]:
    """The texts of the cells below a caption."""
    body = page.split(f"<caption>{caption}")[1].split("<tbody>")[1].split("</tbody>")[0]
    lines = [re.findall("<t[hd].*?</t[hd]>", line) for line in body.strip().splitlines()]
    return [[html.unescape(re.sub("<.*?>", "", cell)) for cell in line] for line in lines]


def test_each_method_has_its_best_point_and_its_curve(tmp_path):
    """Point 4 has the best score of all, after fewer rounds."""
    ditto, other = {"method": "Ditto", "momentum": 0.0}, {"method": "FedCO2", "momentum": 0.9}
    points = results(
        tmp_path,
        (ditto | {"lr": 0.01}, [0.5], 9),
        (ditto | {"lr": 0.1}, [0.7], 9),
        (other | {"lr": 1.0}, [0.8], 9),
        (ditto | {"lr": 1.0}, [0.6], 9),
        (other | {"lr": 0.1}, [0.9], 3),
        (other | {"lr": 0.01}, [0.2], 1),
    )
    command = {"command": "rayfl tune '<b>'"}
    for folder in ("0/seed-0", "1/seed-0"):
        (tmp_path / folder / "environment.json").write_text(json.dumps(command))
    page = page_of(SPACE, points, tmp_path)
    assert [row[0] for row in rows(page, "The best point of each method")] == ["1", "2"]
    assert rows(page, "Every point")[4] == ["4", "FedCO2", "0.9", "0.1", "1", "3 of 9", "90.00", "90.00"]
    assert page.count("<strong>80.00</strong>") == 4  # validation and test of point 2, in both tables
    assert 'href="4/seed-0/report.html">4</a>' in page
    assert ">Bold: best by validation<" in page
    assert "so far: Ditto ends at 70.00; Fed-CO2 ends at 80.00" in page
    [line] = re.findall('points="([^"]*)"><title>Ditto ends', page)
    (_, low), (x, same), (step, high), *others = (place.split(",") for place in line.split())
    assert (low, x) == (same, step), "it rises at point 1"
    assert {y for _, y in others} == {high}, "the worse point 3 changes nothing"
    stopped = rows(page, "What asha has stopped; 4 trials went on")
    assert stopped == [["1", "6", "1", "5"], ["3", "5", "1", "4"]]
    assert page.count("<pre>rayfl tune &#39;&lt;b&gt;&#39;</pre>") == 1
    assert "<li>Seed 0 alone decides" in page
    lines = re.findall('class="(line[^"]*)" style[^>]*><title>point ([0-9])', page)
    assert [name for look, name in lines if "early" in look] == ["5", "4"]
    assert ">0.032</text>" in page, "half of the way from 0.01 to 0.1"
    assert "shown for at least 10 points" in page
    worst = page_of(replace(SPACE, mode="min"), points, tmp_path)
    assert [row[0] for row in rows(worst, "The best point of each method")] == ["0", "2"]
    assert "Ditto ends at 50.00" in worst
    assert re.findall("<title>point ([0-9])", worst)[-1] == "5"


def test_each_setting_of_the_data_has_its_pictures(tmp_path):
    grid = [({"lr": lr, "clients": n}, [lr / n], 9) for n in (1, 2) for lr in (0.1, 0.2)]
    page = page_of(SPACE, results(tmp_path, *grid), tmp_path, "clients")
    assert [row[0] for row in rows(page, "The best point")] == ["1", "3"]
    titles = re.findall("<figcaption>(.*?)</figcaption>", page)
    shown = ("Best validation accuracy so far", "Settings and validation accuracy")
    assert titles == [f"{what}, clients={n}" for n in (1, 2) for what in shown]
    alone = page_of(SPACE, results(tmp_path / "alone", *grid[1:3]), tmp_path, "clients")
    assert "no best point" in alone
    assert "<svg" not in alone


@pytest.mark.parametrize(("scores", "decides"), [([0.5, 0.5, 0.9], True), ([0.6, 0.6, 0.6], False)])
def test_a_seed_that_decides_is_named(tmp_path, scores, decides):
    """That without which the first point is behind by 0.05."""
    points = results(tmp_path, ({"lr": 0.1}, scores, 9), ({"lr": 0.2}, [0.55, 0.55, 0.5], 9))
    page = page_of(replace(SPACE, seeds=(0, 1, 2)), points, tmp_path)
    assert ("Seed 2 decides; without it the best point would be lr=0.2<" in page) is decides
    assert not re.search("Seed [01] ", page)


def test_importance_is_that_of_optuna(tmp_path, monkeypatch):
    """The learning rate decides, the momentum does nothing."""
    grid = [({"lr": lr, "momentum": m}, [0.5 + lr / 20], 9) for lr in range(1, 7) for m in (0.0, 0.9)]
    points = results(tmp_path, *grid)
    page = page_of(SPACE, points, tmp_path)
    shares = re.findall("<dt>(.*?)</dt><dd>.*?</span>([0-9]+) %</dd>", page)
    assert [name for name, _ in shares] == ["lr", "momentum"]
    assert float(shares[0][1]) > 95
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert "needs Optuna: " not in page
    assert "needs Optuna, pip install &#39;rayfl[optuna]&#39;" in page_of(SPACE, points, tmp_path)


def test_axes_and_lines_lie_where_their_values_are():
    listed = Axis.listed("batch", [64, 16, 64, 128], str)
    assert listed.places == pytest.approx([1 / 2, 1 / 6, 1 / 2, 5 / 6])
    assert list(listed.labels.values()) == ["16", "64", "128"]
    assert Axis.listed("net", ["b", None, "a"], str).places == pytest.approx([1 / 6, 1 / 2, 5 / 6])
    log = Axis.ranged("lr", [0.01, 1.0, 0.1], "{:.3g}".format, log=True)
    assert log.places == pytest.approx([0, 1, 1 / 2])
    assert [log.labels[place] for place in (0, 0.5, 1)] == ["0.01", "0.1", "1"]
    assert Axis.ranged("accuracy", [3.0, 3.0], str).places == [0, 0]
    assert Axis.ranged("accuracy", [1.0, 5.0, 2.0], str).places == pytest.approx([0, 1, 1 / 4])
    chart = parallel_chart("T", [log, log], ["<poor>", "good", "fair"], [0.0, 1.0, 0.5], [False] * 3)
    lines = re.findall('points="[0-9.]+,([0-9.]+) .*?<title>(.*?)</title>', chart.svg)
    assert [name for _, name in lines] == ["&lt;poor&gt;", "fair", "good"], "the best is on top"
    assert float(lines[0][0]) > float(lines[1][0]) > float(lines[2][0])
