"""Which code is the user's own, and when its digest changes."""

import linecache
import logging
import sys
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
