"""What a process had before a run decides none of its numbers, and is there again afterwards."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from rayfl import load_models
from rayfl.callbacks.callback import Callback, Run
from rayfl.engine import actors
from rayfl.engine.server import Server
from rayfl.errors import Conflict
from tests.support.federations import bytes_of_run, small
from tests.support.refusals import refused


@contextmanager
def changed(change: Callable[[Any], None], value: Any, usual: Any) -> Any:
    """What a script sets for its whole process."""
    change(value)
    try:
        yield
    finally:
        change(usual)


STATES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "float64": lambda: changed(torch.set_default_dtype, torch.float64, torch.float32),
    "rough": lambda: changed(torch.set_float32_matmul_precision, "medium", "highest"),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "device": lambda: torch.device("meta"),
}


def facts() -> tuple[Any, ...]:
    """Return the state of this process, by a product: its type, device, precision and history."""
    ones = torch.ones(64, 64) / 3
    product = ones @ ones.clone().requires_grad_(torch.is_grad_enabled())
    return product.dtype, product.device, product.requires_grad, product.is_inference(), str(product)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a run of two rounds gives in a fresh process."""
    folder = tmp_path_factory.mktemp("plain") / "run"
    small(folder, rounds=2).run()
    return bytes_of_run(folder)


@pytest.mark.parametrize("state", STATES)
def test_the_state_of_pytorch_changes_nothing(tmp_path: Path, plain: dict[str, bytes], state: str) -> None:
    with STATES[state]():
        before = facts()
        small(tmp_path / "run", rounds=2).run()
        models = load_models(tmp_path / "run")
        assert facts() == before
    assert bytes_of_run(tmp_path / "run") == plain
    x, _ = models.batch(0)
    assert models.scores(0, x)["personal"].dtype is torch.float32


def test_actors_begin_as_the_driver_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a module of the user's own sets where it is imported, in an actor too, is set back."""
    monkeypatch.setattr(actors.signal, "signal", lambda *_: None)
    federation = small(tmp_path / "run", seed=3)
    data = federation.federated_data()
    wanted: Any = Server(federation.plan(), data).state["weights"]
    with STATES["float64"]():
        actor = actors.ServerActor("name", federation.plan(), data)
        actor._defaults.__exit__(None, None, None)
    found: Any = actor.state["weights"]
    assert all(torch.equal(value, wanted[name]) for name, value in found.items())


class RunsAnother(Callback):
    """Runs a federation in the first round of another one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def after_round(self, run: Run, record: Mapping[str, Any]) -> bool:
        if record["round"] == 0:
            small(self.folder, rounds=2).run()
        return False


class RunsBeside(RunsAnother):
    """Runs it in another thread."""

    def after_round(self, run: Run, record: Mapping[str, Any]) -> bool:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(super().after_round, run, record).result()
        return False


def test_a_callback_may_run_another_federation(tmp_path: Path, plain: dict[str, bytes]) -> None:
    federation = small(tmp_path / "run", rounds=2)
    federation.run([RunsAnother(tmp_path / "other")])
    assert bytes_of_run(tmp_path / "run") == bytes_of_run(tmp_path / "other") == plain


def test_two_threads_do_not_run_at_once(tmp_path: Path) -> None:
    federation = small(tmp_path / "run", rounds=2)
    with refused(Conflict, "this process"):
        federation.run([RunsBeside(tmp_path / "other")])
    assert not (tmp_path / "other").exists()
