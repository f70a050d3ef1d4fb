"""Which code is the user's own, and when its digest changes."""

import importlib
import json
import linecache
import logging
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from rayfl.data import ArrayFiles
from rayfl.methods import FedAvg
from rayfl.system.own_code import changed_code, code_digests, imports_late, is_own
from tests.support.federations import small
from tests.support.own_modules import OwnModules

MINE = "from pack import helper\nfrom pack.late import ONE\n\nclass Mine:\n    rate = 1\n"


def test_own_is_what_is_neither_rayfl_nor_python_nor_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__file__", torch.__file__, raising=False)  # as in an actor
    of_main = type("OfMain", (), {"__module__": "__main__"})
    things: tuple[Any, ...] = (OwnModules, __file__, of_main)
    others: tuple[Any, ...] = (FedAvg, is_own, torch.nn.Module, torch._C.Generator, Path, int, torch.__file__)
    assert [*map(is_own, (*things, *others))] == [True] * 3 + [False] * 7


def test_a_digest_is_of_what_a_module_does_and_of_all_it_imports(own_modules: OwnModules) -> None:
    """As it was imported; also of relative imports and those within functions; not of what is said of it."""
    own_modules.write("pack.__init__", "")
    own_modules.write("pack.late", "ONE = 1")
    own_modules.write("pack.helper", "def f():\n    from .. import nothing\n    from . import deep\n")
    own_modules.write("pack.deep", "import torch, json")
    own_modules.load("mine", MINE)
    first = code_digests(["mine.Mine", "rayfl.methods.FedAvg", "torch.nn.Linear", "no.such"])
    assert [*sorted(first)] == ["mine", "pack", "pack.deep", "pack.helper", "pack.late"]
    own_modules.write("pack.deep", "import torch as t")
    own_modules.write("mine", "class Mine: ...")
    assert {name for name, found in code_digests(["mine.Mine"]).items() if found != first[name]} == {
        "pack.deep"
    }
    own_modules.load("mine", f'"""About."""\n{MINE}    # One\n    def f(self):\n        """Do."""\n')
    documented = code_digests(["mine"])
    own_modules.load("mine", f"{MINE}\n    def f( self ): ''\n")
    assert documented["mine"] == code_digests(["mine"])["mine"] != first["mine"]
    assert changed_code(first, {**documented, "other": "1"}) == ["mine", "pack.deep"]


def test_code_that_no_import_statement_shows(
    tmp_path: Path, own_modules: OwnModules, caplog: pytest.LogCaptureFixture
) -> None:
    """Of what a module has got otherwise there are digests; what comes during a run is told and recorded."""
    own_modules.write("core", "def f(x): return x")
    own_modules.write("late_one", "")
    text = (
        "import importlib\nfrom rayfl.methods import FedAvg\ncore = importlib.import_module('core')\n"
        "class Late(FedAvg):\n    async def local_update(self, client, state, down):\n"
        "        importlib.import_module('late_one')\n"
        "        return await super().local_update(client, state, down)\n"
    )
    method = own_modules.load("late_method", text).Late()
    small(tmp_path / "run", method=method, rounds=1).run()
    assert "late_one" in caplog.text
    code = json.loads((tmp_path / "run" / "environment.json").read_text())["code"]
    assert code.keys() == {"core", "late_method", "late_one", "rayfl", "torch", "numpy", "ray", "processor"}


def test_what_others_import_of_a_package_is_not_the_packages(own_modules: OwnModules) -> None:
    """Python sets it there, so that the digests of one run would depend on what ran before in the process."""
    own_modules.write("packs.__init__", "")
    own_modules.load("packs.one", "")
    own_modules.load("packs.two", "")
    assert [*code_digests(["packs.one"])] == ["packs", "packs.one"]


def test_modules_in_a_zip_have_digests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "own.zip", "w") as archive:
        archive.writestr("zipped_one.py", "from zipped_two import x")
        archive.writestr("zipped_two.py", "x = 1")
    monkeypatch.syspath_prepend(tmp_path / "own.zip")
    first = code_digests(["zipped_one.x"])
    importlib.import_module("zipped_one")
    assert code_digests(["zipped_one.x"]) == first
    assert [*first] == ["zipped_one", "zipped_two"]


def test_a_file_of_data_is_no_code(tmp_path: Path, own_modules: OwnModules) -> None:
    own_modules.write("train", "")
    own_modules.load("nets", "def net(shape, classes): ...")
    mine = own_modules.load("größe", "from rayfl.methods import FedAvg\nclass Mine(FedAvg): ...\n").Mine
    data = ArrayFiles(root=str(tmp_path), train="train.npz")
    made = small(tmp_path / "run", method=mine(), net="nets.net", data=data)
    assert [*made.own_code()] == ["größe", "nets"]


def test_of_a_notebook_counts_what_a_class_names_in_the_cell_that_ran_last(
    own_modules: OwnModules, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where an earlier cell was run again; where there is no source, one warning says so."""
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(linecache, "cache", {})
    own_modules.write("noted", "A = 1")
    text = "import noted\nclass C: {}\nclass A(C):\n    def f(self): return {}, noted.A\nclass B(A): x = {}\n"

    def run(*numbers: int) -> dict[str, str]:
        cell, file = text.format(*numbers), f"/tmp/ipykernel_1/{numbers}.py"
        linecache.cache[file] = (len(cell), None, cell.splitlines(keepends=True), file)
        exec(compile(cell, file, "exec"), vars(main))
        return code_digests(["__main__.B"])

    first, other = run(1, 1, 1), run(1, 2, 2)
    assert [name for name in first if other[name] != first[name]] == ["__main__.B", "__main__.A"]
    assert first.keys() == {"__main__.A", "__main__.B", "__main__.C", "noted"}
    assert run(1, 1, 1)["__main__.A"] == first["__main__.A"]
    for name, late in ("B", False), ("noted", True):
        own_modules.load(f"for_{name}", f"def f():\n    import {name}\n    B")
        assert imports_late(f"for_{name}") is late
    linecache.cache.clear()
    with caplog.at_level(logging.WARNING, "rayfl"):
        assert code_digests(["__main__.A"]) == code_digests(["__main__.A"]) == {}
    assert len(caplog.records) == 1
