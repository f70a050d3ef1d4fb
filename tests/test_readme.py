"""The README's commands do what it says: all of them are run, cut short."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^(rayfl (?:run|report|figure) (?!--against).*)$", README, re.MULTILINE)


def run(command: str, folder: Path, *more: str) -> None:
    arguments = [sys.executable, "-m", *shlex.split(command), *more]
    done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def test_commands_in_their_order(tmp_path: Path) -> None:
    assert len(COMMANDS) == 8
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for command in COMMANDS[:-1]:
        short = [] if "rayfl run" not in command else ["--rounds", "2" if "--resume" in command else "1"]
        if "rayfl run" in command and "--resume" not in command:
            short += ["--engine", "Inline", "--loggers", "[]"]
        run(command.replace("--engine.actors 2", ""), tmp_path, *short)
    assert (tmp_path / "rounds.png").exists()


def test_command_on_real_data(tmp_path: Path) -> None:
    if "RAYFL_DATA" not in os.environ:
        pytest.skip("RAYFL_DATA does not name a folder with CIFAR-10")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    command = COMMANDS[-1].replace("DATA", os.environ["RAYFL_DATA"])
    run(command, tmp_path, "--rounds", "1", "--engine", "Inline", "--data.verify", "false")


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_quickstart_script(tmp_path: Path) -> None:
    script = str(ROOT / "examples" / "quickstart.py")
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "FedCO2" in done.stdout
    assert "handwriting" in done.stdout
