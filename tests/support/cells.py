"""Cells of tables in this process, where a process of their own is not the subject."""

import subprocess
from types import SimpleNamespace

import pytest

from rayfl.jobs import cells
from rayfl.run import main


def run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(command: list[str], **options: object) -> SimpleNamespace:
        code = main(command[3:])
        return SimpleNamespace(pid=0, returncode=code, poll=lambda: code)

    monkeypatch.setattr(cells, "subprocess", SimpleNamespace(**vars(subprocess) | {"Popen": start}))
    monkeypatch.setattr(cells, "POLL", 0.0)
