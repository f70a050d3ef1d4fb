"""Modules of the user's own, in files that may be edited and imported anew, as another process would."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCALED = """\
from rayfl.methods import FedAvg

class Mine(FedAvg):
    async def local_update(self, client, state, down):
        w = (await client.fit(down["weights"], client.loss)).weights
        return {"weights": down["weights"] + SCALE * (w - down["weights"])}, state

SCALE = 1.0
"""


class OwnModules:
    """Writes and imports modules in a folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._patch = folder, monkeypatch
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)  # an edit may come within the same second

    def write(self, name: str, text: str) -> None:
        """Write a module's file alone, as an editor does while a program runs."""
        path = self.folder.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        importlib.invalidate_caches()

    def load(self, name: str, text: str) -> ModuleType:
        """Write a module, and import it anew."""
        self.write(name, text)
        self._patch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)
