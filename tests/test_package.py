"""The wheel, built from the sources in the sdist: installed in an environment of its own, and used there."""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

import rayfl

ROOT = Path(__file__).resolve().parents[1]


def run(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    run([*build, "-t", "sdist"], cwd=ROOT)
    (sources,) = folder.iterdir()
    with tarfile.open(sources) as archive:
        archive.extractall(folder, filter="data")
    run([*build, "-t", "wheel"], cwd=folder / f"rayfl-{rayfl.__version__}")
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_tables_spaces_and_checksums(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in (
        "rayfl/examples/fedco2/t3.yaml",
        "rayfl/tune_spaces/fdse.yaml",
        "rayfl/report/papers/fdse.yaml",
        "rayfl/data/sets/fedbn_digits.sha256",
        "rayfl/py.typed",
    ):
        assert wanted in names
    assert not [name for name in names if not name.startswith(("rayfl/", "rayfl-"))]


def test_a_citation_names_this_version():
    cff = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    entry = dict(re.findall(r"^  (\w+)\s+= \{(.*?)\},?$", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert entry["version"] == cff["version"] == rayfl.__version__
    assert entry["title"] == cff["title"]
    assert entry["year"] == str(cff["date-released"].year)
    assert entry["author"] == f"{{{cff['authors'][0]['name']}}}"


FILES = {
    "my_method.py": "from rayfl.methods import FedProx\nclass Mine(FedProx): ...\n",
    "my_net.py": """
import math
from torch import nn
def make(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))
""",
    "pandas.py": "raise SystemExit('the pandas of the current folder')\n",
    "table.yaml": """
table: mine
title: Mine
seeds: [0]
base: {data: Synthetic, data.train: 40, net: my_net.make, engine: Inline, clients: 2, rounds: 1}
columns: {even: {data.partition: IID}}
rows: {Mine: {method: my_method.Mine}}
""",
    "space.yaml": """
sweep: tuned
title: Mine
base:
  {data: Synthetic, data.train: 40, data.val_fraction: 0.2, method: my_method.Mine, net: my_net.make,
   clients: 2, rounds: 1}
search: {training.lr: {grid_search: [0.1]}}
""",
}
"""What new users write into a folder of their own, and a file that must not take the place of a library."""


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The wheel in an environment of its own, with the packages that are installed here, not the checkout."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False)
    python = str(home / "bin" / "python")
    options = ["install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", str(wheel)]
    run([sys.executable, "-m", "pip", "--python", python, *options])
    site = run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
    (Path(site) / "others.pth").write_text(sysconfig.get_path("purelib"))
    return home


@pytest.fixture
def rayfl_in(installed, tmp_path):
    """Runs the command, by its script or by ``python -m``, in a folder with the files of a new user."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def command(*arguments, module=False, **environment):
        scripts = installed / "bin"
        start = [str(scripts / "python"), "-m", "rayfl"] if module else [str(scripts / "rayfl")]
        return run([*start, *arguments], cwd=tmp_path, env=bare | environment)

    return command


def test_what_the_page_calls_public_can_be_imported():
    page = (ROOT / "docs" / "reference" / "python.md").read_text()
    public = {
        module: {*re.findall(r"`(\w+)`", names)}
        for module, names in re.findall(r"^\| `([\w.]+)` \| (.*) \|$", page, re.M)
    }
    assert public["rayfl"] == {*rayfl.__all__, "__all__"}
    for module, names in public.items():
        exec("\n".join(f"from {module} import {name}" for name in names), {})  # some are modules


@pytest.mark.slow
def test_it_has_what_comes_with_it(installed, rayfl_in):
    assert rayfl_in("--version").startswith("rayfl ")
    assert str(installed) in rayfl_in("doctor").splitlines()[0]
    assert "cells" in rayfl_in("table", "fedco2/t3", "--list", "--data.root", "/nowhere")
    assert "points" in rayfl_in("tune", "fdse", "--list", "--data.root", "/nowhere")


@pytest.mark.slow
def test_what_lies_in_the_current_folder(rayfl_in, tmp_path):
    """Runs, cells, trials, actors and exports import it, last of all; commands that only look do not."""
    options = "--data Synthetic --data.train 40 --rounds 1 --clients 2 --engine Inline --output run"
    own = "--method my_method.Mine --net my_net.make"
    assert "accuracy" in rayfl_in("run", *own.split(), *options.split())
    assert "1 cell" in rayfl_in("table", "table.yaml", module=True)
    assert "1 trial" in rayfl_in("tune", "space.yaml", "--engine", "Ray", "--engine.actors", "1")
    assert len([*tmp_path.rglob("clients.parquet")]) == 3
    (tmp_path / "my_method.py").write_text("open('imported', 'w')\n" + FILES["my_method.py"])
    assert "Mine" in rayfl_in("report", "run", module=True)
    assert not (tmp_path / "imported").exists()
    rayfl_in("export", "run", "--client", "0")
    assert (tmp_path / "imported").exists()
    assert (tmp_path / "run" / "models" / "client-0-personal.safetensors").is_file()
