"""Cells of tables in this process, where a process of their own is not the subject."""

import subprocess
from types import SimpleNamespace

import pytest

from rayfl.jobs import cells
from rayfl.run import main


class Here:
    """A cell's process that is this one."""

    pid = 0

    def __init__(self, command: list[str], **options: object) -> None:
        self.returncode = main(command[3:])

    def poll(self) -> int:
        return self.returncode


def run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "subprocess", SimpleNamespace(**vars(subprocess) | {"Popen": Here}))
    monkeypatch.setattr(cells, "POLL", 0.0)
