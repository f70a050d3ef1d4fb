from itertools import product
from pathlib import Path

import pytest
from matplotlib.image import imread

from rayfl import Result
from rayfl.commands import figure, report
from rayfl.errors import Missing, Unknown
from rayfl.evaluation.run_records import run_folders
from tests.support.federations import small
from tests.support.records import write_run
from tests.support.refusals import told


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder of two methods, two parameters and two seeds, on three domains."""
    folder = tmp_path_factory.mktemp("figure")
    for method, mu, seed in product(("FedAvg", "Local"), (0.1, 10.0), (0, 1)):
        domains, path = ("ink", "print", "paint"), folder / method / f"{mu}-{seed}"
        write_run(path, method=method, mu=mu, seed=seed, rounds=4, domains=domains)
    return str(folder)


@pytest.mark.parametrize(
    "options",
    [
        ["rounds", "--target", "10"],
        ["rounds", "--quantity", "loss", "--panels", "ink,all", "--views", "personal,global"],
        ["sweep", "--over", "method.mu", "--panels", "ink,all"],
        ["bars", "--by", "method,method.mu", "--start", "5", "--size", "5,3", "--title", "All"],
        ["radar", "--view", "global", "--size", "page", "--names", "ink=Ink"],
        ["clients", "--by", "method", "--views", "personal,global"],
    ],
    ids=" ".join,
)
def test_every_kind_is_drawn(tmp_path, capsys, runs, options):
    kind, *more = options
    path = tmp_path / "new" / "picture.png"
    assert figure.main([kind, runs, "--save", str(path), *more]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines()[-1] == str(path)
    assert ("rounds until 10 % are reached" in out) == ("--target" in more)
    colours = {tuple(c) for c in (255 * imread(path)[..., :3]).round().astype(int).reshape(-1, 3)}
    assert {(0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)} <= colours  # those of the two methods


def test_lines_are_called_as_in_papers_while_a_run_goes_on_and_after(tmp_path, capsys):
    for method, end in (("FedCO2", None), ("DCPFL", 2)):
        write_run(tmp_path / "runs" / method, method=method, rounds=4, stop_after=end, eval_every=1)
    names = ["--names", "FedCO2=Ours", "DC-PFL, 2 rounds only=Others"]
    save = ["--save", str(tmp_path / "x.svg"), *names]
    assert figure.main(["bars", str(tmp_path / "runs"), *save]) == 0
    assert report.main([str(tmp_path / "runs")]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert {"Fed-CO2", "DC-PFL"} <= {line[0] for line in lines if line}


def test_the_labels_of_a_real_run(tmp_path):
    small(tmp_path / "run", rounds=1, eval_every=0).run()
    path = tmp_path / "labels.pdf"
    assert figure.main(["labels", str(tmp_path / "run"), "--save", str(path)]) == 0
    assert path.read_bytes().startswith(b"%PDF")


def test_runs_are_found_below_folders(runs):
    found = run_folders([Path(runs, "Local", "0.1-1"), Path(runs)])
    assert len(found) == 8
    assert [Result.load(path).config["seed"] for path in found[:2]] == [1, 0]


def test_kinds_are_named(capsys):
    with told(Missing, "KIND"):
        assert figure.main([]) == 2
    with told(Unknown, "kind"):
        assert figure.main(["round"]) == 2
    assert "rounds, sweep, bars, radar, clients, labels" in capsys.readouterr().err


def test_runs_without_labels(tmp_path, runs):
    with told(Missing, "partition.json"):
        assert figure.main(["labels", runs, "--save", str(tmp_path / "x.png")]) == 2
