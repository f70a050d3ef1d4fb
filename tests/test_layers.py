"""Imports point down only, Ray stays in its place, and nobody draws from a global generator."""

import ast
import graphlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import rayfl

ROOT = rayfl.ROOT
FILES = sorted(ROOT.rglob("*.py"))

# A layer may import from itself and from the layers below it. Each name is a room: a folder or a file of the
# package; a ``__main__`` is a door, and not of the room in which it lies.
LAYERS = [
    {"errors", "randomness"},
    {"system"},
    {"settings"},
    {"nets"},
    {"data"},
    {"training"},
    {"transforms"},
    {"methods"},
    {"record"},
    {"evaluation"},
    {"engine"},
    {"sampling"},
    {"report"},
    {"callbacks"},
    {"running"},
    {"federation"},
    {"jobs", "testing"},
    {"tune"},
    {"commands"},
    {"__main__", "run", "table"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
APART = {("data", "nets"), ("methods", "record")}  # on either side of no arrow: neither imports the other

RAY_FILES = {
    "engine/actors.py",
    "engine/cluster.py",
    "engine/hosts.py",
    "engine/local_ray.py",
    "engine/ray_metrics.py",
    "engine/ray_private.py",
    "engine/ray_workers.py",
    "tune/sweep.py",
    "tune/trial.py",
}


def room_of(module: str) -> str:
    return "__main__" if module.endswith("__main__") else module.split(".")[1]


@cache
def nodes(path: Path) -> list[ast.AST]:
    return [*ast.walk(ast.parse(path.read_text()))]


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and name of every module that a file imports: anywhere, for types alone, and by a string."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = ".".join(module_of(path).split(".")[: -node.level + (path.stem == "__init__")])
            module = ".".join(filter(None, [package if node.level else "", node.module]))
            inner = (f"{module}.{alias.name}" for alias in node.names)
            yield from ((node.lineno, name if name in MODULES else module) for name in inner)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from ((node.lineno, each.value) for each in node.args if isinstance(each, ast.Constant))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_of(path: Path) -> str:
    return ".".join(["rayfl", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")


MODULES = {module_of(path) for path in FILES}


def test_every_module_has_its_layer():
    assert {room_of(f"rayfl.{p.relative_to(ROOT).parts[0].removesuffix('.py')}") for p in FILES} - {
        "__init__"
    } == RANK.keys()


def test_imports_point_down():
    wrong = []
    for path in FILES[1:]:  # the first is the package itself, which imports on first use
        mine = room_of(module_of(path))
        for line, module in imports(path):
            if module.startswith("rayfl."):
                theirs = room_of(module)
                down = theirs == mine or RANK[theirs] < RANK[mine]
                if not down or tuple(sorted((mine, theirs))) in APART:
                    wrong.append(f"{name_of(path)}:{line} imports {module}")
    assert wrong == []


def test_no_module_imports_itself_by_way_of_others():
    known = MODULES - {"rayfl"}
    graph = {module_of(path): {module for _, module in imports(path)} & known for path in FILES}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules


def test_imports_by_a_string_for_types_and_relative_ones_are_seen(tmp_path, monkeypatch):
    lines = (
        "if TYPE_CHECKING:\n    from rayfl import errors\n",
        'import_module("rayfl.federation")\n',
        "from . import nets\n",
    )
    path = ROOT / "engine" / "not_there.py"
    monkeypatch.setattr(Path, "read_text", lambda self: "".join(lines))
    found = sorted(module for _, module in imports(path))
    assert found == ["rayfl.engine", "rayfl.errors", "rayfl.federation"]


def test_only_the_files_of_actors_import_ray():
    found = {name_of(path) for path in FILES for _, module in imports(path) if module.split(".")[0] == "ray"}
    assert found == RAY_FILES


def test_private_parts_of_ray_are_in_one_place():
    private = ("ray._", "ray.autoscaler", "ray.util.client", "ray.tune.search.repeater")
    using = {name_of(p) for p in FILES for _, m in imports(p) if m.startswith(private)}
    assert using == {"engine/ray_private.py"}


def test_only_the_ray_engine_leads_to_ray():
    """And it imports the session inside a function, so that rayfl works where Ray is not installed."""
    for path in FILES:
        for node in ast.parse(path.read_text()).body:
            text = ast.unparse(node) if isinstance(node, ast.Import | ast.ImportFrom) else ""
            if any(name in text for name in ("engine.actors", "engine.cluster", "ray_workers")):
                assert name_of(path) in RAY_FILES


# Drawing from a generator of one's own is a method or takes `generator=`; these draw from the global ones or
# seed them.
SEEDS = {"manual_seed", "manual_seed_all", "seed", "set_rng_state"}
DRAWS = {"rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial"}
GLOBAL = {"torch": SEEDS | DRAWS, "torch.random": SEEDS, "torch.cuda": SEEDS}
ALLOWED = {"default_rng", "Generator", "Philox", "SeedSequence", "get_state"}  # of numpy.random


def draws_globally(node: ast.AST, file: str) -> bool:
    """Whether a call draws from a global generator or sets one."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    owner, name = ast.unparse(node.func.value), node.func.attr
    if name in GLOBAL.get(owner, ()):
        return "generator" not in {keyword.arg for keyword in node.keywords}
    if owner in ("np.random", "numpy.random"):
        puts_back = name == "set_state" and file == "methods/fdse/consensus.py"
        return name not in ALLOWED and not puts_back
    # PyTorch's initialisation knows no other generator
    seeds = ("training/net.py", "training/dropout.py")  # each puts the states back
    return owner == "torch.random.default_generator" and file not in seeds


def test_nothing_random_is_global():
    using = {name_of(path) for path in FILES for _, module in imports(path) if module == "random"}
    assert using == {"engine/guard.py"}  # which watches it
    found = [(name_of(path), node) for path in FILES for node in nodes(path)]
    assert [f"{file}:{node.lineno}" for file, node in found if draws_globally(node, file)] == []


def test_the_page_of_the_architecture_names_what_is_there():
    """Every file and folder that it names, and every room."""
    page = (ROOT.parent / "docs" / "architecture.md").read_text()
    for name in set(re.findall(r"(?<![\w/.])([a-z_]+(?:/[a-z_]+)*(?:/|\.py))(?![\w])", page)):
        top = name.split("/")[0]
        assert (ROOT.parent if top in ("docs", "tests") else ROOT).joinpath(name).exists(), name
    assert [name for name in sorted(RANK) if not re.search(rf"`{name}(\.py|/)", page)] == []
