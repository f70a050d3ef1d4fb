"""The list of runs, and in what two of them differ."""

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayfl import Result
from rayfl.__main__ import main
from rayfl.errors import BadValue, Missing
from rayfl.system.files import lock_folder
from tests.support.records import write_run
from tests.support.refusals import told

LOGS = {
    "failed": "2026-01-01T00:00:00Z INFO go on\n2026-01-01T00:00:09Z ERROR BadCode: no\n  2 INFO lines\n",
    "interrupted": "2026-01-01T00:00:00Z INFO go on\n2026-01-01T00:00:09Z ERROR KeyboardInterrupt: \n",
    "resumed": "2026-01-01T00:00:00Z ERROR BadCode: no\n2026-01-02T00:00:00Z INFO again\n",
}
"""Of runs that lack rounds; the last one has been killed after it went on."""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Runs of every state, each three hours older than the one before, below the current folder."""
    monkeypatch.chdir(tmp_path)
    folders = [write_run(Path("runs/done"), method="PFedMe", rounds=4), write_run(Path("runs/a/running"))]
    folders += [write_run(Path("runs", name), stop_after=2) for name in (*LOGS, "stopped", "new")]
    for name, text in LOGS.items():
        Path("runs", name, "run.log").write_text(text)
    (write_run(Path("runs/damaged")) / "metrics.jsonl").write_text("{}\n{}\n")
    Path("runs/a/running/config.yaml").write_text(
        Path("runs/a/running/config.yaml").read_text().replace("rounds: 10", "rounds: 20")
    )
    for hours, folder in enumerate(folders):
        then = time.time() - 3 * 3600 * hours - 1
        os.utime(folder / "metrics.jsonl", (then, then))
    with lock_folder(Path("runs/a/running")):
        yield tmp_path


def test_runs_are_listed_by_time_with_their_state(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert err.count("\n") == err.count("warning: left out: runs/damaged/metrics.jsonl") == 1
    found = {Path(each["folder"]).name: each for each in json.loads(out)}
    assert {name: each["state"] for name, each in found.items()} == {
        "done": "finished",
        "running": "running",
        "failed": "failed",
        **dict.fromkeys(("interrupted", "resumed", "stopped", "new"), "stopped"),
    }
    assert list(found) == ["done", "running", *LOGS, "stopped", "new"]
    done, figure = found["done"], Result.load("runs/done").figure
    assert (done["method"], done["data"]) == ("pFedMe", "EmbeddedDigits, Dirichlet")
    assert (done["rounds"], done["figure"], done["headline"]) == ("4 of 4", figure, f"{100 * figure:.2f} %")
    assert [found[name]["age"] for name in ("done", "running", "stopped")] == ["1 s", "3 h", "15 h"]
    assert found["running"]["rounds"] == "10 of 20"
    assert main(["runs", "runs/done", "runs/a", "--format", "csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(",")[0] for line in lines] == ["folder", "runs/done", "runs/a/running"]
    assert lines[1].split(",")[-4:-2] == ["1 s", str(figure)]


def test_the_list_fits_a_terminal(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data give way, and nothing else does; a pipe has all."""
    rows = []
    for width in (200, 70):
        assert main(["runs"]) == 0
        rows.append(next(line for line in capsys.readouterr().out.splitlines() if "runs/done" in line))
        monkeypatch.setenv("COLUMNS", "70")
        monkeypatch.setenv("FORCE_COLOR", "1")
        assert len(rows[-1]) <= width
    whole, cut = (row.split() for row in rows)
    assert whole[2:4] == ["EmbeddedDigits,", "Dirichlet"]
    assert cut[2].endswith("…")
    assert cut == [*whole[:2], cut[2], *whole[4:]]


def test_what_has_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with told(Missing, "runs"):
        assert main(["runs"]) == 2


def test_in_what_two_runs_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And a row and a line for each, also of one run given twice."""
    code = {"mine": "0f", "torch": "2.0", "numpy": "1.0"}
    one, other = (
        str(write_run(tmp_path / name, rounds=4, seed=seed, mu=mu, code=code | more))
        for name, seed, mu, more in (("one", 0, 0.5, {}), ("other", 1, 0.25, {"torch": "2.1"}))
    )
    picture = tmp_path / "both.svg"
    differences = [["method.mu", "0.5", "0.25"], ["output", one, other], ["seed", "0", "1"]]
    differences += [["version.torch", "2.0", "2.1"]]
    for folders, expected in (([one, other], differences), ([one, one], [])):
        assert main(["diff", *folders, "--save", str(picture)]) == 0
        lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
        assert lines[0][:2] == [str(len(expected)), "differences"]
        assert lines[2 : 2 + len(expected)] == expected
        figures = {run: f"{100 * Result.load(run).figure:.2f}" for run in folders}
        rows = {line[1]: " ".join(line) for line in lines if line[0] == "FedAvg"}
        assert rows.keys() == figures.keys()
        assert all(figures[run] in row for run, row in rows.items())
        drawn = re.findall("<!-- FedAvg, (.*) -->", picture.read_text())
        assert drawn == [f"run={run}" for run in figures if expected]  # one line needs no legend
    with told(BadValue, "save"):
        assert main(["diff", one, other, "--save", "both.gif"]) == 2
