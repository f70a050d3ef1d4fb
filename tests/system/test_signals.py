"""Who answers the signals by which a program is told to stop."""

import contextlib
import io
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from rayfl import resumed
from rayfl.callbacks.callback import Callback, Run
from rayfl.commands import table
from rayfl.jobs import cells
from rayfl.system.signals import STOPPING, asked_to_stop, handle_signals
from tests.support.federations import small
from tests.support.tables import write


@pytest.fixture(autouse=True, scope="module")
def hangups() -> Iterator[None]:
    """Do not ignore hangups, nor let the programs that tests start ignore them, if pytest runs in nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", STOPPING)
def test_every_signal_is_answered_and_given_back(number: signal.Signals) -> None:
    before = {n: signal.getsignal(n) for n in STOPPING}
    came: list[int] = []
    with handle_signals(came.append) as give_back:
        signal.raise_signal(number)
        signal.raise_signal(number)
        assert came == [number, number]
        give_back()
        assert {n: signal.getsignal(n) for n in STOPPING} == before
    assert {n: signal.getsignal(n) for n in STOPPING} == before


def test_signals_are_given_back_after_an_error() -> None:
    before = {n: signal.getsignal(n) for n in STOPPING}
    with pytest.raises(ValueError, match="mine"), handle_signals(lambda number: None):
        raise ValueError("mine")
    assert {n: signal.getsignal(n) for n in STOPPING} == before


def test_a_hangup_that_is_ignored_stays_ignored() -> None:
    """As ``nohup`` has it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with handle_signals(lambda number: pytest.fail("it was answered")):
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_in_the_middle_of_a_print(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose message cannot be printed then; the run stops all the same."""

    class Writing(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            if not asked.is_set():
                signal.raise_signal(signal.SIGTERM)
            return len(data)

    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(Writing()), write_through=True))
    with asked_to_stop() as asked:
        print("a line of the run", flush=True)
        assert asked.is_set()


def test_what_may_never_end_is_interrupted_by_the_first_signal(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), asked_to_stop(lambda: True) as asked:
        signal.raise_signal(signal.SIGTERM)
    assert asked.is_set()
    assert not capsys.readouterr().out


def test_only_the_main_thread_answers() -> None:
    before = {n: signal.getsignal(n) for n in STOPPING}
    seen: list[object] = []

    def elsewhere() -> None:
        with handle_signals(lambda number: None) as give_back:
            seen.append({n: signal.getsignal(n) for n in STOPPING})
            give_back()

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [before]


def test_what_is_written_to_a_closed_terminal_goes_nowhere() -> None:
    control, terminal = pty.openpty()
    before = os.dup(1)
    os.dup2(terminal, 1)
    os.close(terminal)
    try:
        with handle_signals(lambda number: None):
            signal.raise_signal(signal.SIGHUP)
            assert os.isatty(1)  # it is open
            os.close(control)
            signal.raise_signal(signal.SIGTERM)
            assert not os.isatty(1)
            with pytest.raises(OSError, match="error"):
                os.write(1, b"a line")
            signal.raise_signal(signal.SIGHUP)
            assert os.write(1, b"a line") == 6
    finally:
        os.dup2(before, 1)
        os.close(before)


class Stopping(Callback):
    """Has signals come in the first round."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers

    def after_round(self, run: Run, record: Mapping[str, Any]) -> bool:
        """Raise them one after the other."""
        for number in self.numbers if record["round"] == 0 else ():
            signal.raise_signal(number)
        return False


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, as in a fresh Python; Ray Tune leaves a handler of its own."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("numbers", "rounds", "begun", "left"),
    [
        ((signal.SIGINT,), 2, 1, 1),
        ((signal.SIGINT,), 1, 1, 1),
        ((signal.SIGINT, signal.SIGINT), 2, 1, None),
        ((signal.SIGTERM,), 2, 2, 1),
        ((signal.SIGHUP,), 2, 2, 1),
    ],
    ids=["once", "in the last round", "twice", "SIGTERM", "SIGHUP"],
)
def test_ctrl_c_ends_what_comes_after_a_run(
    tmp_path: Path, ctrl_c: None, numbers: tuple[int, ...], rounds: int, begun: int, left: int | None
) -> None:
    """As in a notebook with a loop over seeds; the run goes on from its checkpoint."""
    interrupted = pytest.raises(KeyboardInterrupt) if begun == 1 else contextlib.nullcontext()
    with interrupted:
        for seed in range(2):
            federation = small(tmp_path / str(seed), seed=seed, rounds=rounds, checkpoint_every=100)
            assert not federation.run([Stopping(*numbers)]).complete
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"][:begun]
    manifests = sorted((tmp_path / "0" / "checkpoints").glob("manifest-*.json"))
    assert [int(path.stem[-6:]) for path in manifests] == ([] if left is None else [left])
    assert resumed(tmp_path / "0").run().complete


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_what_comes_after_a_table(
    tmp_path: Path, ctrl_c: None, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    start = subprocess.Popen

    def started(command: list[str], **options: Any) -> Any:
        process = start([sys.executable, "-c", "import time; time.sleep(100)"], **options)
        signal.raise_signal(number)
        return process

    monkeypatch.setattr(cells.subprocess, "Popen", started)
    given = [write(tmp_path), "--output", str(tmp_path / "runs"), "--rows", "FedAvg", "--columns", "even"]
    with pytest.raises(KeyboardInterrupt) if number == signal.SIGINT else contextlib.nullcontext():
        assert table.run_table(table.parser().read(given)) == 130
    assert table.main(given) == 130


@pytest.mark.parametrize("number", STOPPING)
def test_every_signal_ends_a_sweep_as_ctrl_c_does(number: signal.Signals, ctrl_c: None) -> None:
    pytest.importorskip("ray")
    from rayfl.tune.sweep import _forward_signals

    with pytest.raises(KeyboardInterrupt), _forward_signals():
        signal.raise_signal(number)
