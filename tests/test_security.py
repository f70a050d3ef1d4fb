"""What comes from strangers is read, not run; what is secret is not written down."""

import ast
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import rayfl
from rayfl.commands import data as data_command
from rayfl.commands.table import plan_cells
from rayfl.errors import BadCode, BadValue, Damaged, UserError
from rayfl.jobs.table_file import Table
from rayfl.methods import FedAvg
from rayfl.nets import build
from rayfl.settings.imports import import_by_path
from rayfl.tune.space import Space
from tests.support.federations import federation_from, small
from tests.support.refusals import refused

SOURCES = sorted(Path(rayfl.__file__).parent.rglob("*.py"))


NOBODYS = (
    "antigravity.fly",  # to import it opens a browser
    "antigravity.webbrowser.open",
    "this.s",
    "os.system",
    "posix.system",
    "os.path.join",
    "subprocess.Popen",
    "shutil.rmtree",
    "pathlib.Path",
    "code.interact",
    "builtins.exec",
    "builtins.open",
    "collections.OrderedDict",
    "idlelib.idle.main",
    "turtledemo.__main__.main",
    "test.support.script_helper.run_python_until_end",
    "pip._internal.main",
    "setuptools.setup",
    "torch.hub.load",
    "torch.load",
    "torch.fx.graph_module.reduce_graph_module",
    "torch.optim.SGD",
    "torchvision.transforms.Compose",
    "torchvision.datasets.CIFAR10",
    "numpy.load",
    "ray.init",
    "psutil.Popen",
    "joblib.load",
    "cloudpickle.load",
    "a_strangers.os",
    "a_strangers.system",
    "a_strangers.Popen",
    "a_strangers.later",
    "a_strangers.much_later",
    "a_strangers.read",
)
"""What no configuration may name: by its path, or by what is found there."""

STRANGERS = """
import os
from functools import partial
from os import system
from subprocess import Popen
later = partial(system, "touch ran")
much_later = partial(later)
read = open("made").read
"""

NO_NETS = ("rayfl.run.main", "rayfl.methods.FedAvg", "rayfl.training.SGD")
"""What may be named, and says by its type that it makes no net."""


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


@pytest.mark.parametrize("path", NOBODYS)
def test_no_net_is_what_runs_programs(folder: Path, path: str) -> None:
    before = set(sys.modules)
    with refused(BadValue, "net"):
        build(federation_from(["--net", path]).net)  # type: ignore[arg-type]
    assert not (folder / "ran").exists()
    assert not {"antigravity", "this", "idlelib", "turtledemo", "test.support"} & set(sys.modules) - before


@pytest.mark.parametrize("path", NOBODYS)
@pytest.mark.parametrize("option", ["method", "data", "data.partition", "engine", "protocol"])
def test_no_component_is_what_runs_programs(folder: Path, path: str, option: str) -> None:
    before = set(sys.modules)
    with refused(BadValue, option):
        federation_from([f"--{option}", path])
    assert not (folder / "ran").exists()
    assert not {"antigravity", "this", "idlelib", "turtledemo", "test.support"} & set(sys.modules) - before


@pytest.mark.parametrize("path", NO_NETS)
def test_what_makes_no_net_is_not_called(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    with refused(BadCode, "net"):
        build(path)


@pytest.mark.parametrize("name", ["plain", "bound", "kept"])
def test_a_net_of_ones_own_is_built(folder: Path, name: str) -> None:
    assert build(f"ones_own.{name}")(torch.zeros(1, 3, 32, 32)).shape == (1, 10)


@pytest.mark.parametrize("path", ["torchvision.models.resnet18", "ones_own.Outer", "rayfl.methods.FedAvg"])
def test_other_code_can_be_named(folder: Path, path: str) -> None:
    assert import_by_path(path).__name__ == path.rpartition(".")[2]


@pytest.mark.parametrize("path", ["", ".", ".x", "x.", "a..b", "a b.c", "../x.y", "x.y\x1b"])
def test_what_is_no_import_path_is_not_imported(path: str) -> None:
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
    """A table a tune space and a contact sheet go by the same list."""
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


@pytest.mark.parametrize(
    ("text", "kind", "place"),
    [
        ("method: {class_path: antigravity.fly}", BadValue, "method"),
        ("data: {class_path: subprocess.Popen, init_args: {args: [touch, X]}}", BadValue, "data"),
        ("engine: {class_path: os.system}", BadValue, "engine"),
        ("method: {class_path: torch.nn.Linear, init_args: {in_features: 1}}", BadValue, "method"),
        ("training: {lr: !!python/object/apply:os.system [touch X]}", Damaged, "config.yaml"),
    ],
)
def test_a_configuration_names_classes_of_its_kind_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, kind: type[UserError], place: str
) -> None:
    """A configuration names classes of its kind and nothing else."""
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(text)
    with refused(kind, place):
        federation_from(["--config", "config.yaml"])
    assert "antigravity" not in sys.modules  # it would have opened a browser
    assert not Path("X").exists()


class Recording(FedAvg):
    """Notes that it was made."""

    made = 0

    def __init__(self) -> None:
        Recording.made += 1


def test_a_class_of_the_wrong_kind_is_not_even_made(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(f"data: {{class_path: {__name__}.Recording}}")
    with refused(BadValue, "data"):
        federation_from(["--config", str(tmp_path / "config.yaml")])
    assert Recording.made == 0


def test_nothing_of_the_environment_is_in_a_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a-secret-token")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-key")
    small(tmp_path / "run", rounds=1, loggers=["tensorboard"]).run()
    written = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert {"environment.json", "config.yaml"} <= {path.name for path in written}
    assert not [path for path in written if b"a-secret" in path.read_bytes()]


def calls(path: Path) -> list[tuple[str, ast.Call]]:
    """Return the calls of a file, each with what is called."""
    tree = ast.parse(path.read_text())
    return [(ast.unparse(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.relative_to(SOURCES[0].parent).as_posix())
def test_no_file_is_read_in_a_way_that_runs_it(path: Path) -> None:
    """No pickle but by the restricted unpickler, which is a class of its own; no YAML that makes objects."""
    safe = {"torch.load": ("weights_only", "True"), "np.load": ("allow_pickle", "False")}
    for name, call in calls(path):
        where = f"{path}:{call.lineno}: {name}"
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        if name in safe:
            option, value = safe[name]
            assert given.get(option) == value, where
        last = name.rpartition(".")[2]
        assert not (
            name.startswith(("pickle.", "cloudpickle.")) and last in ("load", "loads", "Unpickler")
        ), where
        assert name not in (
            "eval",
            "exec",
            "joblib.load",
            "pd.read_pickle",
            "yaml.unsafe_load",
            "marshal.load",
        )
        if name == "yaml.load":
            assert ast.unparse(call.args[1]) == "_Loader", where  # of SafeLoader, with one refusal more
