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
        "rayfl/papers/fdse.yaml",
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


def test_it_runs_in_an_environment_of_its_own(wheel, tmp_path):
    """With the packages that are installed here, and without the checkout."""
    home = tmp_path / "environment"
    venv.create(home, with_pip=False)
    python = str(home / "bin" / "python")
    installed = ["install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", str(wheel)]
    run([sys.executable, "-m", "pip", "--python", python, *installed])
    site = run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
    (Path(site) / "others.pth").write_text(sysconfig.get_path("purelib"))
    away = tmp_path / "empty"
    away.mkdir()
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = str(home / "bin" / "rayfl")

    def rayfl(*arguments):
        return run([command, *arguments], cwd=away, env=bare)

    assert rayfl("--version").startswith("rayfl ")
    assert str(site) in rayfl("doctor").splitlines()[0]
    assert "cells" in rayfl("table", "fedco2/t3", "--list", "--data.root", "/nowhere")
    assert "points" in rayfl("tune", "fdse", "--list", "--data.root", "/nowhere")
    options = (
        "--engine Inline --data Synthetic --data.train 40 --net LeNet --rounds 1 --clients 2 --output run"
    )
    assert "accuracy" in rayfl("run", *options.split())
    assert (away / "run" / "summary.json").is_file()
