"""What comes from strangers is read, not run; what is secret is not written down."""

import ast
import sys
from pathlib import Path

import pytest

import rayfl
from rayfl.configuration import federation_from
from rayfl.errors import UserError
from rayfl.methods import FedAvg
from tests.conftest import small

SOURCES = sorted(Path(rayfl.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("method: {class_path: antigravity.fly}", "no configuration may name"),
        ("data: {class_path: subprocess.Popen, init_args: {args: [touch, X]}}", "no configuration may name"),
        ("engine: {class_path: os.system}", "no configuration may name"),
        (
            "method: {class_path: torch.nn.Linear, init_args: {in_features: 1}}",
            "not correspond to a subclass",
        ),
        ("training: {lr: !!python/object/apply:os.system [touch X]}", "could not determine a constructor"),
    ],
)
def test_a_configuration_names_classes_of_its_kind_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, answer: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(text)
    with pytest.raises(UserError, match=answer):
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
    with pytest.raises(UserError, match="not correspond to a subclass of Data"):
        federation_from(["--config", str(tmp_path / "config.yaml")])
    assert Recording.made == 0


def test_nothing_of_the_environment_is_in_a_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a-secret-token")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-key")
    small(tmp_path / "run", rounds=1, tensorboard=True).run()
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
