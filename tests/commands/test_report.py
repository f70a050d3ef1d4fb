import csv
import json
import re
import shutil
from pathlib import Path

import pytest

from rayfl import Result, evaluation
from rayfl.commands import figure, report
from rayfl.evaluation.protocol import CHOSEN_ON_TEST
from rayfl.report.formats import SUFFIXES
from tests.support.records import write_run


def test_the_table_is_printed_and_written_in_every_format(tmp_path, capsys, monkeypatch):
    """No figure is cut, however narrow the terminal."""
    monkeypatch.setenv("COLUMNS", "40")
    runs = [str(write_run(tmp_path / str(seed), seed=seed)) for seed in range(2)]
    files = [str(tmp_path / f"out{ending}") for ending in SUFFIXES]
    assert report.main([*runs, runs[0], "--save", *files]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "FedAvg" in out
    assert "…" not in out
    for file in files:
        text = Path(file).read_text()
        assert "FedAvg" in text
        if not file.endswith((".csv", ".json")):
            assert "sample standard deviation over seeds" in text


def words(capsys):
    """What was printed; lines are as long as the table."""
    return " ".join(capsys.readouterr().out.split())


def figures_of(tmp_path, *runs):
    """What ``--save`` writes of runs: of each row its seeds and headline, and the tests."""
    assert report.main([*map(str, runs), "--save", str(tmp_path / "out.json")]) == 0
    found = json.loads((tmp_path / "out.json").read_text())
    keys = ("method", "seeds", "headline", "headline_std")
    return [[row[key] for key in keys] for row in found["cells"]], [test["seeds"] for test in found["tests"]]


def test_a_copied_or_linked_run_counts_once(tmp_path, capsys):
    """Also one that was copied while it ran, and one that was recorded with another metric."""
    runs = [write_run(tmp_path / f"runs/{m}{s}", method=m, seed=s) for m in ("A", "B") for s in range(2)]
    whole = figures_of(tmp_path, *runs)
    assert [row[1] for row in whole[0]] == [[0, 1], [0, 1]]
    others = [shutil.copytree(runs[0], tmp_path / "copies" / str(k)) for k in range(3)]
    others.append(write_run(tmp_path / "copies" / "begun", method="A", stop_after=4))
    (tmp_path / "link").symlink_to(runs[1])
    capsys.readouterr()
    assert figures_of(tmp_path, *runs, tmp_path / "copies", tmp_path / "link") == whole
    out = capsys.readouterr().out
    assert all(f"{other}" in out for other in [*others, tmp_path / "link"])
    save = ["--save", str(tmp_path / "x.png")]
    assert figure.main(["bars", str(tmp_path / "runs"), str(tmp_path / "copies"), *save]) == 0
    assert str(others[0]) in capsys.readouterr().err


def test_runs_of_one_seed_with_other_numbers_have_no_mean(tmp_path, capsys):
    for name, run in {"a": {}, "b": {"level": 0.7}, "c": {"seed": 1}, "d": {"method": "FedBN"}}.items():
        write_run(tmp_path / "runs" / name, **run)
    ((_, *averaged), (_, _, alone, _)), _ = figures_of(tmp_path, tmp_path / "runs")
    assert averaged == [[0, 1], None, None]
    assert alone is not None
    assert f"no mean, because seed 0 has different numbers in {tmp_path}/runs/a" in words(capsys)
    assert figure.main(["bars", str(tmp_path / "runs"), "--save", str(tmp_path / "x.png")]) == 2
    assert f"{tmp_path}/runs/a and {tmp_path}/runs/b" in capsys.readouterr().err


def test_a_headline_is_made_anew_of_what_was_recorded(tmp_path, capsys):
    """As a run with that protocol would have had it; what was not recorded is said, and has no figure."""
    wanted = evaluation.Default(view="global", average="pooled", choose="last_k", k=3)
    there = Result.load(write_run(tmp_path / "wanted", protocol=wanted, eval_every=1))
    write_run(tmp_path / "run", eval_every=1)
    write_run(tmp_path / "after", protocol=evaluation.DCPFL(), val=False)
    (config := tmp_path / "run" / "config.yaml").write_text(config.read_text().replace("'k': 5", "'k': 3"))
    options = ["--view", "global", "--average", "pooled", "--choose", "last_k"]
    ((*_, headline, _),), _ = figures_of(tmp_path, tmp_path / "run", *options)
    assert headline == pytest.approx(100 * there.figure)
    runs = [tmp_path / "run", tmp_path / "after"]
    (_, _, first, _), (_, _, second, _) = figures_of(tmp_path, *runs, "--point", "after_training")[0]
    assert first is None
    assert second == pytest.approx(100 * Result.load(tmp_path / "after").figure)
    assert "not recorded: personal, after training." in words(capsys)
    (_, _, first, _), (_, _, second, _) = figures_of(tmp_path, *runs, "--choose", "best_val")[0]
    assert (first is None, second) == (False, None)
    assert "not recorded: scores on validation data, after training." in words(capsys)
    write_run(tmp_path / "seldom", eval_every=5)
    assert report.main([str(tmp_path / "seldom"), "--choose", "last_k"]) == 0
    assert "4 of the 5 rounds that count were not evaluated" in words(capsys)
    for kind, *more in (["rounds", "--average", "pooled"], ["bars", "--choose", "last_k"], ["clients"]):
        save = [*map(str, runs), "--save", str(tmp_path / "x.png"), "--point", "after_training", *more]
        assert figure.main([kind, *save]) == 0
        assert f"not recorded: personal, after training ({runs[0]})" in capsys.readouterr().err


def test_the_best_round_by_test_data_is_never_without_its_label(tmp_path, capsys):
    run = write_run(tmp_path / "run", eval_every=1)
    files = [tmp_path / f"out{ending}" for ending in SUFFIXES]
    assert report.main([str(run), "--choose", "best_test", "--save", *map(str, files)]) == 0
    curve = Result.load(run).summary["views"][0]["each"]["test"]["mean"]
    assert CHOSEN_ON_TEST in (shown := words(capsys))
    assert all(CHOSEN_ON_TEST in file.read_text() for file in files)
    (row,) = csv.DictReader((tmp_path / "out.csv").open())
    names = ("headline", "worst_decile", "client_std")
    figures = [float(row[f"{name} ({CHOSEN_ON_TEST})"]) for name in names]
    assert figures[0] == pytest.approx(100 * max(curve))
    assert all(f"{figure:.2f}¶" in shown for figure in figures)
    assert not row.keys() & {*names}


def test_runs_that_a_headline_makes_alike_count_once(tmp_path):
    for average in ("mean_clients", "pooled"):
        write_run(tmp_path / "runs" / average, protocol=evaluation.Default(average=average))
    ((_, seeds, headline, deviation),), _ = figures_of(tmp_path, tmp_path / "runs", "--average", "pooled")
    assert (seeds, headline is None, deviation) == ([0], False, None)


def test_the_columns_of_a_table_can_be_chosen(tmp_path, capsys):
    runs = [str(write_run(tmp_path / m, method=m)) for m in ("A", "B")]
    files = [str(tmp_path / name) for name in ("x.tex", "x.csv")]
    assert report.main([*runs, "--columns", "method,headline,last round", "--save", *files]) == 0
    assert "up per" not in capsys.readouterr().out
    lines = Path(files[0]).read_text().splitlines()
    assert "method & headline & last round \\\\" in lines
    assert sum(line.count("&") == 2 for line in lines) == 3
    assert Path(files[1]).read_text().splitlines()[0].startswith("method,data,partition,")


@pytest.mark.parametrize("width", [50, 200])
def test_rows_fit_the_terminal_and_what_is_left_out_is_told(tmp_path, capsys, monkeypatch, width):
    """And no figure that is shown is cut; names of methods are."""
    for method in ("FedAvg", "FedBNOfAVeryLongNameThatNobodyCanRead" * 2):
        write_run(tmp_path / method[:6], method=method)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    assert report.main([str(tmp_path), "--target", "1", "--save", str(tmp_path / "x.md")]) == 0
    out = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    first = next(i for i, line in enumerate(out) if line.lstrip().startswith("FedAvg"))
    assert all(len(line) <= width for line in out[first - 3 : first + 2])
    assert out[first + 1].lstrip().startswith("FedBNOf")
    assert re.search(r"FedAvg +1 +10 +[0-9]+\.[0-9]{2} ", out[first] + " ")
    dropped = [line for line in out if line.startswith("Without room here: ")]
    assert bool(dropped) == (width < 200)
    assert all("down per round. In rayfl report, --columns" in line for line in dropped)
    assert "down per round" in (tmp_path / "x.md").read_text()
    assert report.main([str(tmp_path), "--columns", "method,last round,mean of last 5,up per round"]) == 0
    out = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert all(len(line) <= width for line in out if "FedBNOf" in line or "method" in line)
