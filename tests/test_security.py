"""What comes from strangers is read, not run; what is secret is not written down."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import rayfl
from rayfl.commands import data as data_command
from rayfl.commands.table import plan_cells
from rayfl.errors import BadCode, BadValue
from rayfl.jobs.table_file import Table
from rayfl.methods import FedAvg
from rayfl.nets import build
from rayfl.settings.imports import import_by_path
from rayfl.tune.space import Space
from tests.support.federations import federation_from, small
from tests.support.refusals import refused

SOURCES = sorted(Path(rayfl.__file__).parent.rglob("*.py"))


NOBODYS = """
    antigravity.fly antigravity.webbrowser.open this.s idlelib.idle.main turtledemo.__main__.main
    test.support.script_helper.run_python_until_end os.system posix.system os.path.join subprocess.Popen
    pathlib.Path code.interact builtins.exec collections.OrderedDict pip._internal.main setuptools.setup
    torch.hub.load torch.optim.SGD torchvision.transforms.Compose torchvision.datasets.CIFAR10 numpy.load
    ray.init psutil.Popen joblib.load cloudpickle.load a_strangers.os a_strangers.system a_strangers.Popen
    a_strangers.later a_strangers.much_later a_strangers.read
"""
"""What no configuration may name: by its path (to import it opens a browser), or by what is found there."""

STRANGERS = """
import os
from functools import partial
from os import system
from subprocess import Popen
later = partial(system, "touch ran")
much_later = partial(later)
read = open("made").read
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, whose modules can be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("made").touch()
    Path("a_strangers.py").write_text(STRANGERS)
    Path("ones_own.py").write_text(
        "from rayfl.nets import LeNet\nfrom functools import cache, partial\n"
        "def plain(shape, classes): return LeNet().build(shape, classes)\n"
        "bound, kept = partial(plain), cache(plain)\nclass Outer:\n    class Inner: pass\n"
    )
    monkeypatch.delitem(sys.modules, "a_strangers", raising=False)
    monkeypatch.delitem(sys.modules, "ones_own", raising=False)
    return tmp_path


@pytest.fixture
def nothing_runs(folder: Path) -> Iterator[None]:
    """Check afterwards that no program has run, and that nothing was imported that acts by that."""
    before = set(sys.modules)
    yield
    assert not (folder / "ran").exists()
    assert not {"antigravity", "this", "idlelib", "turtledemo", "test.support"} & set(sys.modules) - before


@pytest.mark.usefixtures("nothing_runs")
def test_what_runs_programs_cannot_be_named() -> None:
    for path in NOBODYS.split():
        with refused(BadValue):
            import_by_path(path)


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("option", ["net", "method", "data", "data.partition", "engine", "protocol"])
def test_no_part_of_a_run_is_what_runs_programs(option: str) -> None:
    for path in ("antigravity.fly", "a_strangers.later"):
        with refused(BadValue, option):
            build(federation_from([f"--{option}", path]).net)  # type: ignore[arg-type]


def test_what_makes_no_net_is_not_called() -> None:
    """It may be named, and says by its type that it makes none."""
    for path in ("rayfl.run.main", "rayfl.methods.FedAvg", "rayfl.training.SGD"):
        with refused(BadCode, "net"):
            build(path)


def test_code_of_ones_own_can_be_named(folder: Path) -> None:
    for name in ("plain", "bound", "kept"):
        assert build(f"ones_own.{name}")(torch.zeros(1, 3, 32, 32)).shape == (1, 10)
    for path in ("torchvision.models.resnet18", "ones_own.Outer", "rayfl.methods.FedAvg"):
        assert import_by_path(path).__name__ == path.rpartition(".")[2]


def test_what_is_no_import_path_is_not_imported() -> None:
    for path in ("", ".x", "x.", "a..b", "a b.c", "../x.y", "x.y\x1b"):
        with refused(BadValue):
            import_by_path(path)


def test_no_import_path_is_resolved_elsewhere() -> None:
    """Others import parts of rayfl by name."""
    resolving = ("import_module", "importlib.import_module", "__import__", "pkgutil.resolve_name")
    found = {
        path.relative_to(SOURCES[0].parent).as_posix()
        for path in SOURCES
        for name, _ in calls(path)
        if name in resolving
    }
    assert found == {
        *("__init__.py", "__main__.py", "settings/imports.py"),
        "commands/doctor.py",  # of libraries, by fixed names
    }


def test_tables_spaces_and_contact_sheets_go_by_one_list(folder: Path) -> None:
    Path("t.yaml").write_text("table: t\ncolumns: {c: {}}\nrows: {r: {method: antigravity.fly}}\n")
    Path("s.yaml").write_text(
        "sweep: s\nbase: {rounds: 1}\nsearch: {method: {grid_search: [antigravity.fly]}}\n"
    )
    table = Table.load("t.yaml")
    with refused(BadValue, "method"):
        plan_cells(table, ["r"], ["c"], [0], {}, folder)
    with refused(BadValue, "method"):
        Space.load("s.yaml").example_points()
    assert data_command.main(["sheet", "x.png", "--data", "antigravity.fly"]) == 2
    assert "antigravity" not in sys.modules


class Loose(FedAvg):
    """Has an option of any type."""

    def __init__(self, what: Any = None) -> None:
        self.what = what


def test_an_option_of_any_type_makes_no_object(tmp_path: Path) -> None:
    Recording.made = 0
    inner = f"{{class_path: {__name__}.Recording}}"
    (tmp_path / "config.yaml").write_text(
        f"method: {{class_path: {__name__}.Loose, init_args: {{what: {inner}}}}}"
    )
    made: Any = federation_from(["--config", str(tmp_path / "config.yaml")]).method
    assert made.what == f"{__name__}.Recording"
    assert Recording.made == 0


def test_a_configuration_names_classes_of_its_kind_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for place, given in (
        ("data", "{class_path: subprocess.Popen, init_args: {args: [touch, X]}}"),
        ("method", "{class_path: torch.nn.Linear, init_args: {in_features: 1}}"),
        ("data", f"{{class_path: {__name__}.Recording}}"),
    ):
        Path("config.yaml").write_text(f"{place}: {given}")
        with refused(BadValue, place):
            federation_from(["--config", "config.yaml"])
    assert not Path("X").exists()
    assert Recording.made == 0


class Recording(FedAvg):
    """Notes that it was made."""

    made = 0

    def __init__(self) -> None:
        Recording.made += 1


def test_nothing_of_the_environment_is_in_a_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a-secret-token")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-key")
    small(tmp_path / "run", rounds=1, loggers=["tensorboard"]).run()
    written = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert {"environment.json", "config.yaml"} <= {path.name for path in written}
    assert not [path for path in written if b"a-secret" in path.read_bytes()]


@cache
def calls(path: Path) -> list[tuple[str, ast.Call]]:
    """Return the calls of a file, each with what is called."""
    tree = ast.parse(path.read_text())
    return [(ast.unparse(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]


def runs_what_it_reads(name: str, call: ast.Call) -> bool:
    """Whether a call may run what is in a file; the restricted unpickler is a class of its own."""
    package, _, last = name.rpartition(".")
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    if name == "torch.load":
        return given.get("weights_only") != "True"
    if name == "np.load":
        return given.get("allow_pickle") != "False"
    if name == "yaml.load":
        return ast.unparse(call.args[1]) != "_Loader"  # of SafeLoader, with one refusal more
    if package in ("pickle", "cloudpickle"):
        return last in ("load", "loads", "Unpickler")
    return name in ("eval", "exec", "joblib.load", "pd.read_pickle", "yaml.unsafe_load", "marshal.load")


def test_no_file_is_read_in_a_way_that_runs_it() -> None:
    found = [(path, name, call) for path in SOURCES for name, call in calls(path)]
    assert [f"{path}:{call.lineno}" for path, name, call in found if runs_what_it_reads(name, call)] == []
    assert {"torch.load", "np.load", "yaml.load"} <= {name for _, name, _ in found}
