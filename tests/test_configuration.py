"""Configurations: every object that can be configured is recorded and made again."""

import inspect
import typing
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal

import pytest
import yaml

import rayfl.data
from rayfl import Federation, Inline, Ray, Training, UserError
from rayfl.configuration import dump, federation_from, resumed
from rayfl.data import Data, Partition
from rayfl.methods import METHODS, FedAvg
from rayfl.record.cell import Cell
from rayfl.run import main

DATA = [c for c in vars(rayfl.data).values() if inspect.isclass(c) and issubclass(c, Data) and c is not Data]
PARTITIONS = [
    c
    for c in vars(rayfl.data).values()
    if inspect.isclass(c) and issubclass(c, Partition) and c is not Partition
]
CONFIGURABLE = [*METHODS.values(), *DATA, *PARTITIONS, Inline, Ray, Training]


def candidates(kind: Any, default: Any) -> list[Any]:
    """Values of a type, of which a constructor may refuse some."""
    origin = typing.get_origin(kind)
    if origin is Literal:
        return list(typing.get_args(kind))
    if origin in (typing.Union, UnionType):
        return [v for part in typing.get_args(kind) for v in candidates(part, default)]
    if origin is list:
        return [["MNIST", "USPS"]]
    if origin is dict:
        return [{"amazon": 1}]
    if origin is tuple:
        return [tuple(7 + k for k, _ in enumerate(typing.get_args(kind)))]
    if inspect.isclass(kind) and issubclass(kind, Partition):
        return [rayfl.data.Dirichlet(alpha=0.25, min_samples=3)]
    return {
        bool: [not default],
        int: [3, 2],
        float: [0.125, 2.5e-7, 3.0],
        str: ["float32", "uint8", "coarse", "somewhere"],
        NoneType: [],
    }[kind]


def variants(cls: type) -> list[dict[str, Any]]:
    """Every argument once with a value that is not the default."""
    hints = typing.get_type_hints(cls.__init__)
    found = []
    for name, parameter in inspect.signature(cls).parameters.items():
        for value in candidates(hints[name], parameter.default):
            if value == parameter.default:
                continue
            try:
                cls(**{name: value})
            except UserError:
                continue
            found.append({name: value})
            break
        else:
            pytest.fail(f"no value but the default was accepted for {cls.__name__}.{name}")
    return found


def same(a: Any, b: Any) -> bool:
    if type(a).__module__.startswith("rayfl"):
        return (
            type(a) is type(b)
            and vars(a).keys() == vars(b).keys()
            and all(same(v, vars(b)[n]) for n, v in vars(a).items())
        )
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("cls", CONFIGURABLE, ids=lambda c: c.__name__)
def test_arguments_are_kept_under_their_own_names(cls: type) -> None:
    for arguments in [{}, *variants(cls)]:
        made = cls(**arguments)
        for name, parameter in inspect.signature(cls).parameters.items():
            assert hasattr(made, name)
            if name in arguments:
                assert getattr(made, name) == arguments[name]
            elif name != "partition":  # whose default depends on the data set
                assert getattr(made, name) == parameter.default


def around(made: Any, **arguments: Any) -> Federation:
    """A federation with the object in its place."""
    if isinstance(made, Partition):
        return Federation(data=rayfl.data.Synthetic(partition=made), **arguments)
    kinds = {Data: "data", Training: "training", (Inline, Ray): "engine"}
    place = next((name for kind, name in kinds.items() if isinstance(made, kind)), "method")
    return Federation(**{place: made}, **arguments)


def again(federation: Federation, tmp_path: Path) -> Federation:
    path = tmp_path / "config.yaml"
    path.write_text(dump(federation))
    return federation_from(["--config", str(path)])


@pytest.mark.parametrize("cls", CONFIGURABLE, ids=lambda c: c.__name__)
def test_what_is_recorded_is_made_again(cls: type, tmp_path: Path) -> None:
    changes = variants(cls)
    together: dict[str, Any] = {}
    for change in changes:  # as many at once as go together
        try:
            cls(**together, **change)
        except UserError:
            continue
        together |= change
    for made in (cls(), cls(**together)):
        federation = around(made)
        other = again(federation, tmp_path)
        for name in ("method", "data", "engine", "training"):
            assert same(getattr(other, name), getattr(federation, name))
        assert dump(other) == dump(federation)


def test_every_setting_of_a_federation_is_recorded(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "net": "cnn",
        "clients": 3,
        "participation": 0.5,
        "rounds": 7,
        "averaging": "uniform",
        "eval_every": 2,
        "protocol": "fedios",
        "checkpoint_every": 0,
        "on_bad_update": "drop",
        "seed": 11,
        "tensorboard": False,
        "quiet": True,
        "unseen": "printed",
        "cell": Cell("mine", "FedAvg", "N=3", ["rounds=7"]),
    }
    objects = {"method", "data", "training", "engine", "output"}
    assert settings.keys() | objects == set(inspect.signature(Federation).parameters)
    found = again(Federation(**settings), tmp_path)
    assert {name: getattr(found, name) for name in settings} == settings
    recorded = yaml.safe_load(dump(Federation(**settings)))
    assert recorded.keys() == (settings.keys() | objects) - {"output"}


class Forgetful(FedAvg):
    def __init__(self, factor: float = 0.5) -> None:
        self.other = factor


def test_a_class_that_does_not_keep_an_argument_is_refused_by_name() -> None:
    with pytest.raises(
        UserError, match=r"Forgetful does not keep its argument 'factor'.*self\.factor = factor"
    ):
        dump(Federation(method=Forgetful()))


def test_options_of_the_command_line_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(dump(Federation(training=Training(lr=0.5, epochs=3), rounds=9)))
    found = federation_from(["--config", str(path), "--training.lr", "0.25", "--rounds", "4"])
    assert (found.training.lr, found.training.epochs, found.rounds) == (0.25, 3, 4)


# ---- what cannot be used: code 2, one message, nothing started


@pytest.mark.parametrize(
    "text",
    [
        "rounds: 3\nnonsense: 1\n",
        "training:\n  nonsense: 1\n",
        "rounds: [",
        "rounds: many\n",
        "- 1\n",
        "rounds: 0\n",
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    assert main(["--config", str(path), "--output", str(tmp_path / "run")]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("rayfl: error: ")
    assert "Traceback" not in shown
    assert not (tmp_path / "run").exists()


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    federation = Federation(method=METHODS["FedProx"](mu=0.3), engine=Inline(), rounds=5, seed=4)
    (folder / "config.yaml").write_text(dump(federation))
    return folder


@pytest.mark.parametrize(
    "options",
    [
        ["--seed", "1"],
        ["--method", "FedAvg"],
        ["--training.lr", "0.5"],
        ["--clients", "7"],
        ["--data", "Synthetic"],
        ["--output", "elsewhere"],
        ["--net", "cnn"],
    ],
)
def test_resume_refuses_what_would_make_it_another_run(run_folder: Path, options: list[str]) -> None:
    name = options[0].split(".")[0]
    with pytest.raises(UserError, match=rf"--resume takes everything but .*remove {name}$"):
        federation_from(["--resume", str(run_folder), *options])


def test_resume_refuses_a_configuration_beside_the_recorded_one(run_folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("seed: 3\n")
    with pytest.raises(UserError, match="--resume takes everything but"):
        federation_from(["--resume", str(run_folder), "--config", str(other)])


def test_resume_takes_the_rest_from_the_run_folder(run_folder: Path) -> None:
    found = federation_from(
        ["--resume", str(run_folder), "--rounds", "9", "--checkpoint_every", "2", "--engine", "Ray"]
    )
    assert (found.rounds, found.checkpoint_every, found.seed) == (9, 2, 4)
    assert found.method.mu == 0.3
    assert isinstance(found.engine, Ray)
    assert found.output == str(run_folder)
    assert found._resumes


def test_a_folder_that_is_no_run_and_a_configuration_that_is_damaged(
    run_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="it is not a run folder"):
        resumed(tmp_path)
    (run_folder / "config.yaml").write_text("rounds: [")
    with pytest.raises(UserError, match=r"config\.yaml"):
        resumed(run_folder)
