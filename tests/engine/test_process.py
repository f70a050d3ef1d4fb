"""What a process had before a run decides none of its numbers, and is there again afterwards."""

import ctypes
import signal
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from rayfl import Inline, load_models
from rayfl.callbacks.callback import Callback, Run
from rayfl.engine import actors, process
from rayfl.engine.server import Server
from rayfl.engine.travel import Download
from rayfl.errors import Conflict, Missing, Shortage
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
    "oneDNN": lambda: changed(partial(setattr, torch.backends.mkldnn, "enabled"), False, True),
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


class Halving(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Change nothing."""
        return function(*args, **(kwargs or {}))


def test_what_other_processes_would_not_have_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Halving():
        small(tmp_path / "mode", rounds=1).run()
    assert "Halving" in caplog.text
    hook = nn.modules.module.register_module_forward_hook(lambda *_: None)
    small(tmp_path / "hook", rounds=1).run()
    hook.remove()
    assert "_global_forward_hooks" in caplog.text


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
    """Runs a federation in the first round of another one, in its thread or beside it."""

    def __init__(self, folder: Path, beside: bool = False) -> None:
        self.folder, self.beside = folder, beside

    def after_round(self, run: Run, record: Mapping[str, Any]) -> bool:
        if record["round"] == 0 and self.beside:
            with ThreadPoolExecutor(1) as thread:
                thread.submit(small(self.folder, rounds=2).run).result()
        elif record["round"] == 0:
            small(self.folder, rounds=2).run()
        return False


def test_a_callback_may_run_another_federation(tmp_path: Path, plain: dict[str, bytes]) -> None:
    federation = small(tmp_path / "run", rounds=2)
    federation.run([RunsAnother(tmp_path / "other")])
    assert bytes_of_run(tmp_path / "run") == bytes_of_run(tmp_path / "other") == plain


def test_two_threads_do_not_run_at_once(tmp_path: Path) -> None:
    federation = small(tmp_path / "run", rounds=2)
    with refused(Conflict, "this process"):
        federation.run([RunsAnother(tmp_path / "other", beside=True)])
    assert not (tmp_path / "other").exists()


# ---- what ends a process, and its memory


@pytest.mark.parametrize(
    ("error", "handler", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), signal.default_int_handler, (Shortage, "the GPU")),
        (torch.AcceleratorError("illegal access"), signal.default_int_handler, (Shortage, "the GPU")),
        (MemoryError(), signal.default_int_handler, (Shortage, "the memory")),
        (ValueError(), signal.default_int_handler, (ValueError, None)),
        (SystemExit(0), signal.default_int_handler, (RuntimeError, None)),
        (KeyboardInterrupt(), signal.default_int_handler, (KeyboardInterrupt, None)),
        (KeyboardInterrupt(), signal.SIG_IGN, (RuntimeError, None)),
    ],
    ids=repr,
)
def test_what_becomes_of_an_error(
    error: BaseException, handler: Any, expected: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C is the user's where it has its usual meaning, and in the main thread."""
    monkeypatch.setattr(process, "_replaceable", False)
    monkeypatch.setattr(process.signal, "getsignal", lambda number: handler)

    def fail() -> None:
        with process.exits_as_errors():
            raise error

    with pytest.raises(expected[0]) as caught:
        fail()
    assert getattr(caught.value, "place", None) == expected[1]
    if isinstance(error, KeyboardInterrupt):
        with ThreadPoolExecutor(1) as thread, pytest.raises(RuntimeError):
            thread.submit(fail).result()


def test_a_process_that_can_be_replaced_ends_with_its_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Ended(Exception):
        """In the place of the end."""

    def end(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(process, "_replaceable", False)
    monkeypatch.setattr(process.os, "_exit", end)
    process.exit_on_gpu_failure()
    with pytest.raises(Ended) as ended, process.exits_as_errors():
        raise torch.AcceleratorError("CUDA error: an illegal memory access\nmore")
    assert ended.value.args == (1,)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("has failed: CUDA error: an illegal memory access")


@pytest.mark.parametrize("system", ["linux", "darwin"])
def test_what_glibc_is_asked_for(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """M_MMAP_MAX is -4, M_TRIM_THRESHOLD -1 in its malloc.h; other libraries have no such call."""
    asked: list[tuple[int, int]] = []
    there = SimpleNamespace(mallopt=lambda *options: asked.append(options))
    monkeypatch.setattr(process.sys, "platform", system)
    for library in (there, SimpleNamespace()):
        monkeypatch.setattr(ctypes, "CDLL", lambda name, library=library: library)
        process.keep_freed_memory()
    assert asked == ([(-4, 0), (-1, -1)] if system == "linux" else [])


def test_an_actor_in_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it may fill of its GPU, and the bytes that it receives, weights in float32, and sends.

    That is an exact sum, of two numbers in float64 for each.
    """
    caps: list[float] = []
    monkeypatch.setattr(actors._Actor, "_set_up_process", lambda self, shown: None)
    monkeypatch.setattr(process, "_replaceable", False)
    monkeypatch.setattr(actors, "cap_gpu_memory", caps.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    data = small(tmp_path).federated_data()
    with refused(Missing, "engine.device"):
        actors.ClientActor("name", small(tmp_path, engine=Inline(device="cuda")).plan(), data, 0.25)
    actor = actors.ClientActor("name", small(tmp_path, engine=Inline().resolve()).plan(), data, 0.25)
    assert caps == [0.25]
    assert process._replaceable
    accumulated, result = actor.train(0, Download({"weights": actor.initial}, {}), [(0,), (1,)])
    numbers = actor.initial.numel()
    assert (result.ids, result.bytes_down, result.bytes_up) == ([0, 1], 4 * numbers, 16 * numbers)
    assert [*accumulated] == ["weights"]
