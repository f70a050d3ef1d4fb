import subprocess
import sys
from pathlib import Path

import pytest

from rayfl.report import command as report
from rayfl.report.formats import ENDINGS
from tests.support.records import write_run


def test_the_command_compares_runs_and_draws_curves(tmp_path, capsys):
    runs = [str(write_run(tmp_path / str(seed), seed=seed)) for seed in range(2)]
    assert report.main([*runs, "--plot_dir", str(tmp_path / "plots")]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "FedAvg" in out
    assert out.splitlines()[-3:] == [
        str(tmp_path / "plots" / f"{n}.png") for n in ("accuracy", "loss", "clients")
    ]
    assert (tmp_path / "plots" / "loss.png").stat().st_size > 10_000


def test_without_a_folder_for_plots_none_are_drawn(tmp_path, capsys):
    run = write_run(tmp_path / "run")
    assert report.main([str(run), str(run)]) == 0
    assert ".png" not in capsys.readouterr().out
    assert not list(tmp_path.rglob("*.png"))


def test_the_table_is_written_in_every_format(tmp_path, capsys):
    runs = [str(write_run(tmp_path / str(seed), seed=seed)) for seed in range(2)]
    files = [str(tmp_path / f"out{ending}") for ending in ENDINGS]
    assert report.main([*runs, "--save", *files]) == 0
    assert capsys.readouterr().err == ""
    for file in files:
        text = Path(file).read_text()
        assert "FedAvg" in text
        if not file.endswith((".csv", ".json")):
            assert "sample standard deviation over runs" in text


def test_a_narrow_terminal_loses_no_figure(tmp_path, capsys, monkeypatch):
    runs = [str(write_run(tmp_path / str(seed), seed=seed)) for seed in range(2)]
    monkeypatch.setenv("COLUMNS", "40")
    assert report.main(runs) == 0
    assert "…" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "is not a run folder: there is nothing of this name"),
        (["run", "--view", "online"], "--view online: no run has this view; there are global, personal"),
        (["run", "--save", "a.md", "a.pdf"], "a.pdf names no format of tables"),
        (["run", "--by", "colour"], "by colour: no run has this key"),
        (["run", "--plot-dir", "run/config.yaml"], "choose another place"),
    ],
)
def test_errors_are_one_line_and_exit_code_2(tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    write_run(Path("run"))
    assert report.main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("rayfl: error: ")
    assert message in err
    assert err.count("\n") == 1


def test_it_runs_as_a_module(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "rayfl.report", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == f"rayfl: error: {tmp_path} is not a run folder: it has no config.yaml\n"
    done = subprocess.run([sys.executable, "-m", "rayfl.report"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "RUN" in done.stderr
