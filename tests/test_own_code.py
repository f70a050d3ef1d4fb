"""Which code is the user's own, and when its digest changes."""

import linecache
import logging
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from rayfl.methods import FedAvg
from rayfl.own_code import digests, is_own, keep_sources
from tests.support.own_modules import OwnModules

MINE = "from pack import helper\nfrom pack.late import ONE\n\nclass Mine:\n    rate = 1\n"


def test_own_is_what_is_neither_rayfl_nor_python_nor_a_library(
    own_modules: OwnModules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what is installed only a package that needs rayfl is."""
    installed = own_modules.folder / "site-packages"
    for name, needed in (("mylab", "rayfl>=0.1"), ("other", "torch")):
        own_modules.write(f"site-packages.{name}", "")
        (installed / f"{name}-1.dist-info").mkdir()
        about = f"Metadata-Version: 2.1\nName: {name}\nRequires-Dist: {needed}\n"
        (installed / f"{name}-1.dist-info" / "METADATA").write_text(about)
    monkeypatch.syspath_prepend(installed)
    for thing in (OwnModules, sys.modules[__name__], __file__, str(installed / "mylab.py")):
        assert is_own(thing)
    library: tuple[Any, ...] = (torch.nn.Module, torch._C.Generator, Path, int, str(installed / "other.py"))
    for thing in (FedAvg, is_own, *library):
        assert not is_own(thing)


def test_a_digest_is_of_what_a_module_does_and_of_all_it_imports(own_modules: OwnModules) -> None:
    """Also of relative imports and those within functions; not of what is written about it."""
    own_modules.write("pack.__init__", "")
    own_modules.write("pack.late", "ONE = 1")
    own_modules.write("pack.helper", "def f():\n    from .. import nothing\n    from . import deep\n")
    own_modules.write("pack.deep", "import torch, json")
    own_modules.load("mine", MINE)
    first = digests(["mine.Mine", "rayfl.methods.FedAvg", "torch.nn.Linear", "no.such", "a text. Of two."])
    assert [*sorted(first)] == ["mine", "pack", "pack.deep", "pack.helper", "pack.late"]
    own_modules.write("pack.deep", "import torch as t")
    assert {name for name, found in digests(["mine.Mine"]).items() if found != first[name]} == {"pack.deep"}
    own_modules.load("mine", f'"""About."""\n{MINE}    # One\n    def f(self):\n        """Do."""\n')
    documented = digests(["mine"])
    own_modules.load("mine", f"{MINE}\n    def f( self ): ''\n")
    assert documented["mine"] == digests(["mine"])["mine"] != first["mine"]


def test_a_digest_is_of_what_was_imported(own_modules: OwnModules) -> None:
    """And of a file that is edited later only once it is imported again."""
    own_modules.load("mine", "A = 1")
    keep_sources()
    first = digests(["mine.A"])
    own_modules.write("mine", "A = 2")
    assert digests(["mine.A"]) == first
    own_modules.load("mine", "A = 2")
    assert digests(["mine.A"]) != first


def test_of_a_main_file_counts_what_a_class_names(own_modules: OwnModules) -> None:
    text = (
        "import mine\nclass A:\n    def f(self): return g(mine.A)\ndef g(a): return {}\nclass B(A): x = 1\n"
    )
    show = (
        "class C: {}\nimport rayfl.own_code as o\nfor each in o.digests(['__main__.B']).items(): print(*each)"
    )
    own_modules.write("mine", "A = 1")

    def found(*code: object) -> dict[str, str]:
        own_modules.write("main", (text + show).format(*code))
        command = [sys.executable, str(own_modules.folder / "main.py")]
        shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return dict(line.split() for line in shown.splitlines())

    first = found(2, "x = 3")
    assert [*sorted(first)] == ["__main__.A", "__main__.B", "__main__.g", "mine"]
    assert found(2, "x = 4") == first
    assert {name for name, digest in found(3, "x = 3").items() if digest != first[name]} == {"__main__.g"}


def test_of_a_notebook_counts_the_cell_that_ran_last(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where an earlier cell was run again; where there is no source, one warning says so."""
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(linecache, "cache", {})

    def run(text: str, number: int) -> dict[str, str]:
        file = f"/tmp/ipykernel_1/{number}.py"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        exec(compile(text, file, "exec"), vars(main))
        return digests(["__main__.A", "__main__.Flat"])

    one, other = "class A:\n    def f(self): return 1\n", "class A:\n    def f(self): return 2\n"
    first = run(f"{one}class Flat: x = 1\n", 1)
    second = run(f"{other}class Flat: x = 2\n", 2)
    assert [first[name] != second[name] for name in ("__main__.A", "__main__.Flat")] == [True, True]
    assert run(f"{one}class Flat: x = 1\n", 1)["__main__.A"] == first["__main__.A"]
    linecache.cache.clear()
    with caplog.at_level(logging.WARNING, "rayfl"):
        assert digests(["__main__.A"]) == digests(["__main__.A"]) == {}
    assert len(caplog.records) == 1
