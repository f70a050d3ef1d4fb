"""The command line of tables."""

import csv
import json
import re
import shutil
import signal
from itertools import product

import numpy as np
import pytest
import yaml

from rayfl import Federation, table
from rayfl.commands.table import parser
from rayfl.errors import Conflict, InUse, Missing, Unknown
from rayfl.federation import federation_of
from rayfl.jobs.cells import CellRunner, Job, TableOutcome
from rayfl.jobs.table_file import Table, changes_of
from rayfl.run import main as run_main
from rayfl.settings.description import dump_config
from tests.support.cells import run_here
from tests.support.own_modules import SCALED
from tests.support.refusals import told
from tests.support.tables import TINY, write


@pytest.fixture
def runs_here(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Runs cells in this process, which is faster, and keeps them."""
    found: list[Job] = []

    def run(self: CellRunner, jobs: list[Job]) -> TableOutcome:
        for job in jobs:
            if not job.is_finished:
                found.append(job)
                own = {"seed": job.seed, "quiet": True, "output": str(job.folder)}
                federation_of(job.settings | own).run()
        return TableOutcome()

    monkeypatch.setattr(CellRunner, "run", run)
    return found


def test_folders_of_other_kinds_are_refused(tmp_path, runs_here, monkeypatch):
    """A table named like a run's or another table's folder writes nothing into it."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "tiny"
    run.mkdir(parents=True)
    for name in ("config.yaml", "metrics.jsonl"):
        (run / name).write_text("")
    path = write(tmp_path)
    with told(InUse, "runs/tiny"):
        assert table.main([path]) == 2
    assert {file.name for file in run.iterdir()} == {"config.yaml", "metrics.jsonl"}
    other = write(tmp_path, TINY.replace("table: tiny", "table: other"))
    assert table.main([other, "--rows", "FedAvg", "--columns", "even", "--seeds", "1"]) == 0
    path = write(tmp_path)
    with told(InUse, "runs/other"):
        assert table.main([path, "--output", "runs/other"]) == 2
    assert len(runs_here) == 1


def test_a_whole_table(tmp_path, capsys, runs_here, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path)
    assert table.main([path, "--rounds", "1", "--training.lr", "0.05", "--quiet", "true"]) == 0
    shown = capsys.readouterr().out
    assert "8 cells, in runs/tiny" in shown
    assert "rayfl does not have them yet: FedNova (ours) (method FedNova)" in shown
    with told(Missing):
        assert table.main([path, "--rows", "FedNova (ours)"]) == 2
    places = [*product(("FedAvg", "Prox"), ("even", "by class"))]
    done = [(job.row, job.column, job.seed) for job in runs_here]
    assert done == [(*place, seed) for seed in (0, 5) for place in places]
    folder = tmp_path / "runs" / "tiny" / "Prox" / "by-class" / "seed-5"
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["method"]["init_args"]["mu"] == 0.5
    assert (config["seed"], config["rounds"], config["training"]["lr"]) == (5, 1, 0.05)
    assert config["cell"]["changed"] == ["training.lr=0.05", "rounds=1"]

    given = ["--training.lr", "0.05", "--rounds", "1", "--engine", "Inline", "--quiet", "true"]
    cell = ["--config", path, "--row", "Prox", "--column", "by class", "--seed", "5", "--output", "one"]
    assert run_main([*cell, *given]) == 0, "the cell alone"
    assert yaml.safe_load((tmp_path / "one" / "config.yaml").read_text()) == config
    assert (tmp_path / "one" / "metrics.jsonl").read_bytes() == (folder / "metrics.jsonl").read_bytes()
    capsys.readouterr()

    cells = json.loads((tmp_path / "runs" / "tiny" / "table.json").read_text())["cells"]
    assert [(c["row"], c["column"], c["seeds"]) for c in cells] == [(*place, [0, 5]) for place in places]
    rows = list(csv.DictReader((tmp_path / "runs" / "tiny" / "table.csv").open()))
    assert [float(r["mean"]) for r in rows] == [c["mean"] for c in cells]
    text = (tmp_path / "runs" / "tiny" / "table.md").read_text()
    assert f"| FedAvg | {cells[0]['mean']:.2f} ± {cells[0]['std']:.2f} |" in text
    assert "with training.lr=0.05, rounds=1" in text

    runs_here.clear()
    again = [path, "--training.lr", "0.05", "--quiet", "true", "--rounds", "1"]
    assert table.main(again) == 0
    assert runs_here == []
    assert "8 cells, 8 finished" in capsys.readouterr().out
    assert table.main([*again, "--list", "--rows", "FedAvg", "--columns", "even", "--seeds", "3"]) == 0
    states = re.findall(r"seed \d: .*", capsys.readouterr().out)
    assert states == ["seed 0: finished", "seed 5: finished", "seed 1: 0 of 1 rounds"]
    assert table.main([*again, "--list", "--rows", "FedAvg", "--columns", "even", "--seeds", "1"]) == 0
    assert "1 cell, 1 finished, " in capsys.readouterr().out


def test_a_table_in_parts_has_all_finished_cells(tmp_path, runs_here, monkeypatch):
    """Whatever the last command has asked for; one that has stopped is none, and a copy is named."""
    monkeypatch.chdir(tmp_path)
    given = [write(tmp_path), "--rounds", "1", "--quiet", "true", "--columns", "even"]
    assert table.main([*given, "--rows", "FedAvg"]) == 0
    even = tmp_path / "runs" / "tiny" / "FedAvg" / "even"
    shutil.copytree(even / "seed-0", even / "seed-0-copy")
    (even / "seed-5" / "summary.json").unlink()
    assert table.main([*given, "--rows", "Prox", "--seeds", "1"]) == 0
    cells = json.loads((tmp_path / "runs" / "tiny" / "table.json").read_text())["cells"]
    assert [(c["row"], c["seeds"]) for c in cells] == [("FedAvg", [0]), ("Prox", [0])]
    page = (tmp_path / "runs" / "tiny" / "report.html").read_text()
    assert "2 of 2 runs are finished" in page
    assert "seed-0-copy." in page


def test_rows_and_methods_are_named_as_in_papers_or_as_classes(tmp_path, capsys):
    path = write(tmp_path, TINY.replace("  Prox:\n    method: FedProx", "  Fed-CO2:\n    method: Fed-CO2"))
    for row in ("FedCO2", "Fed-CO2"):
        assert table.main([path, "--list", "--rows", row, "--method", "DC-PFL", "--columns", "even"]) == 0
        assert "2 cells, in" in capsys.readouterr().out
    with told(Unknown, "row"):
        assert table.main([path, "--rows", "FedCO3"]) == 2


def test_other_seeds_of_a_cell_have_as_many_rounds(tmp_path, runs_here):
    given = [write(tmp_path), "--quiet", "true", "--rows", "Prox", "--columns", "even"]
    given += ["--output", str(tmp_path / "runs")]
    for rounds, seeds in ((1, [0, 5]), (2, [0])):
        shutil.rmtree(tmp_path / "runs" / "Prox" / "even" / "seed-0", ignore_errors=True)
        assert table.main([*given, "--rounds", str(rounds), "--seeds", str(len(seeds))]) == 0
        (cell,) = json.loads((tmp_path / "runs" / "table.json").read_text())["cells"]
        assert cell["seeds"] == seeds


def test_options_are_those_of_a_run(tmp_path):
    """Wherever they stand."""
    chosen = ["--rows", "Prox", "--seeds", "1", "--rounds", "1"]
    for words in (
        ["--training.lr", "0.05", "--quiet=true", "file", *chosen],
        ["file", *chosen, "--training.lr", "0.05", "--quiet", "true"],
    ):
        given = parser().read(words)
        assert (given.file, given.rows, given.seeds) == ("file", ["Prox"], 1)
        assert changes_of(given, "table") == {"training.lr": 0.05, "quiet": True, "rounds": 1}
    for data, train in (("Synthetic", 60), ("Table", "60")):  # a number of images; a file
        given = parser().read(["file", "--data", data, "--data.train", "60"])
        assert changes_of(given, "table") == {"data": data, "data.train": train}


@pytest.mark.parametrize(
    ("option", "said"),
    [("unseen: no", "unseen"), ("training.precision: tf32", "training.prec"), ("mu: 1", "mu")],
)
def test_no_cell_is_started_where_a_later_one_cannot_work(tmp_path, capsys, runs_here, option, said):
    path = write(tmp_path, TINY.replace("{method.mu: 0.5}", f"{{method.mu: 0.5, {option}}}"))
    assert table.main([path, "--rounds", "1", "--output", str(tmp_path / "runs")]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"rayfl: error: row 'Prox', column 'by class' of {path}: {said}")
    assert runs_here == []
    assert not (tmp_path / "runs").exists()


def test_cells_have_a_client_for_every_user(tmp_path, runs_here):
    """Their number is not asked for, and the same command goes on with what it has found."""
    text = TINY.replace("clients: 4", "clients: null").replace("data: Synthetic", "data: WriterDigits")
    text = text.replace("  data.train: 200\n  data.test: 60\n", "").replace("net: LeNet", "net: MLP")
    given = [write(tmp_path, text), "--output", str(tmp_path / "runs"), "--rows", "FedAvg", "--seeds", "1"]
    given += ["--columns", "even", "--data.partition", "ByUser"]
    assert table.main(given) == 0
    assert table.main(given) == 0
    (job,) = runs_here
    assert yaml.safe_load((job.folder / "config.yaml").read_text())["clients"] == 14


def test_finished_cells_are_not_checked_again(tmp_path, runs_here, monkeypatch):
    given = [write(tmp_path), "--rounds", "1", "--quiet", "true", "--output", str(tmp_path / "runs")]
    assert table.main([*given, "--rows", "FedAvg"]) == 0
    checked = []
    monkeypatch.setattr(Federation, "check", lambda self, data: checked.append(self) or ([], ""))
    assert table.main([*given, "--columns", "even"]) == 0
    assert [(f.cell.row, f.cell.column, f.seed) for f in checked if not f.output] == [("Prox", "even", 0)]


def test_new_cells_on_other_data_are_refused(tmp_path, runs_here):
    """Be it another row or another seed; with other settings of the data they are not the same experiment."""

    def store(value):
        images = np.full((60, 1, 8, 8), value, np.float32)
        np.savez(tmp_path / "train.npz", x=images, y=np.arange(60) % 3)

    files = f"data: ArrayFiles\n  data.root: {tmp_path}\n  data.train: train.npz\n  data.test_fraction: 0.2"
    text = TINY.replace("data: Synthetic\n  data.train: 200\n  data.test: 60", files)
    text = text.replace("net: LeNet", "net: MLP").replace("rounds: 2", "rounds: 1\n  quiet: true")
    given = [write(tmp_path, text), "--output", str(tmp_path / "runs"), "--columns", "even"]
    store(0)
    assert table.main([*given, "--rows", "FedAvg", "--seeds", "1"]) == 0
    store(1)
    for more in (["--rows", "Prox", "--seeds", "1"], ["--rows", "FedAvg"]):
        with told(InUse, str(tmp_path / "runs" / "FedAvg" / "even" / "seed-0")):
            assert table.main([*given, *more]) == 2
    assert table.main([*given, "--rows", "Prox", "--seeds", "1", "--data.test_fraction", "0.1"]) == 0
    store(0)
    assert table.main([*given, "--rows", "FedAvg"]) == 0
    assert [(job.row, job.seed) for job in runs_here] == [("FedAvg", 0), ("Prox", 0), ("FedAvg", 5)]


def test_a_table_tests_against_the_reference_of_its_file(tmp_path, runs_here):
    text = TINY.replace("[0, 5]", "[0, 5, 6]\nreference: Prox").replace("rounds: 2", "rounds: 1")
    output = tmp_path / "runs"
    assert table.main([write(tmp_path, text), "--output", str(output), "--columns", "even"]) == 0
    (test,) = json.loads((output / "table.json").read_text())["tests"]
    assert (test["reference"], test["row"], test["seeds"]) == ("Prox", "FedAvg", [0, 5, 6])
    assert "differs from Prox" in (output / "table.tex").read_text()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"training.lr": 0.3}, "training.lr: 0.3 there, 0.1 asked for"),
        ({"rounds": 7}, "holds a run of 7 rounds, more than the 2 asked for"),
        ({"metrics": ["f1"]}, 'metrics: ["f1"] there, [] asked for'),
        ({"eval_clients": 2}, "eval_clients: 2"),
        ({"engine.threads": 2, "quiet": True, "rounds": 1, "checkpoint_every": 1}, None),
    ],
)
def test_a_folder_with_another_run(tmp_path, capsys, changes, says):
    path = write(tmp_path)
    folder = tmp_path / "runs" / "FedAvg" / "even" / "seed-0"
    folder.mkdir(parents=True)
    settings = Table.load(path).settings("FedAvg", "even", {"engine": "Inline", **changes})
    (folder / "config.yaml").write_text(dump_config(federation_of(settings)))
    (folder / "metrics.jsonl").write_text('{"round": 0}\n')
    given = [path, "--output", str(tmp_path / "runs"), "--rows", "FedAvg", "--list"]
    assert table.main(given) == (2 if says else 0)
    said = capsys.readouterr().err
    assert said == "" if says is None else says in said


def test_a_cell_that_failed_in_its_first_round_may_be_corrected(tmp_path, capsys, monkeypatch):
    run_here(monkeypatch)
    bad = TINY.replace("rounds: 2", "rounds: 1\n  training.lr: 1.0e+30")
    given = [write(tmp_path, bad), "--output", str(tmp_path / "runs"), "--seeds", "1"]
    given += ["--rows", "FedAvg", "--columns", "even"]
    assert table.main(given) == 1
    folder = tmp_path / "runs" / "FedAvg" / "even" / "seed-0"
    assert (folder / "config.yaml").exists()
    assert (folder / "metrics.jsonl").read_text() == ""
    write(tmp_path, bad.replace("+30", "-3"))
    assert table.main(given) == 0
    assert json.loads((folder / "summary.json").read_text())["completed"] == 1
    write(tmp_path, bad.replace("+30", "-2"))
    assert table.main(given) == 2
    assert "training.lr: 0.001 there, 0.01 asked for" in capsys.readouterr().err


def test_what_failed_or_was_left_is_told(tmp_path, capsys, monkeypatch):
    def run(self: CellRunner, jobs: list[Job]) -> TableOutcome:
        self._tell("a line")
        self._shown(jobs[:1], jobs[1:])
        return TableOutcome(failed={jobs[0]: "no room"}, elsewhere=[jobs[1]])

    monkeypatch.setattr(CellRunner, "run", run)
    given = [write(tmp_path), "--output", str(tmp_path / "runs"), "--seeds", "1"]
    assert table.main(given) == 1
    said = capsys.readouterr()
    assert "rayfl: failed: FedAvg, even, seed 0: no room" in said.err
    assert "left out: FedAvg, by class, seed 0 is being run by another process" in said.err
    assert "a line" in said.out
    monkeypatch.setattr(CellRunner, "run", lambda self, jobs: TableOutcome(signals=[signal.SIGTERM]))
    assert table.main(given) == 130
    assert "the same command goes on" in capsys.readouterr().out


def test_with_actors_one_cell_at_a_time(tmp_path, monkeypatch):
    limits = []
    monkeypatch.setattr(CellRunner, "run", lambda self, jobs: limits.append(self.limit) or TableOutcome())
    given = [write(tmp_path), "--output", str(tmp_path / "runs"), "--seeds", "1"]
    for more in (["--engine", "Ray"], ["--engine", "rayfl.engine.Ray"], ["--jobs", "7"]):
        assert table.main([*given, *more]) == 0
    assert limits == [1, 1, 7]


def test_cells_of_other_code_are_refused_or_run_anew(tmp_path, runs_here, own_modules, capsys):
    text = TINY.replace("method: FedAvg", "method: mine.Mine")
    given = [write(tmp_path, text), "--rows", "FedAvg", "--columns", "even", "--rounds", "1"]
    given += ["--quiet", "true", "--output", str(tmp_path / "runs")]
    own_modules.load("mine", SCALED)
    assert table.main([*given, "--seeds", "1"]) == 0
    own_modules.load("mine", SCALED.replace("1.0", "0.1"))
    capsys.readouterr()
    assert table.main([*given, "--seeds", "1", "--list"]) == 0
    assert "finished, with other code: mine" in " ".join(capsys.readouterr().out.split())
    with told(Conflict, "runs/FedAvg/even/seed-0"):
        assert table.main(given) == 2
    assert [job.seed for job in runs_here] == [0]
    assert table.main([*given, "--code", "changed"]) == 0
    assert [job.seed for job in runs_here] == [0, 0, 5]
