"""Time limits of clients leave the process as it was."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import torch

from rayfl.engine.process import TimeUp, at_most


def spin(seconds: float) -> None:
    """Run Python code for a while, which a signal may interrupt at any place."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


class Slow:
    """Switches gradients off, and takes its time to enter and to leave."""

    def __enter__(self) -> None:
        torch.set_grad_enabled(False)
        spin(0.02)

    def __exit__(self, *exception: Any) -> None:
        spin(0.02)
        torch.set_grad_enabled(True)


@contextmanager
def slow() -> Iterator[None]:
    """Do as ``Slow`` does."""
    torch.set_grad_enabled(False)
    spin(0.02)
    try:
        yield
    finally:
        spin(0.02)
        torch.set_grad_enabled(True)


def again_and_again(manager: Any) -> None:
    """Enter and leave a context manager without end."""
    while True:
        with manager():
            spin(0.02)


@pytest.mark.parametrize("manager", [Slow, slow])
@pytest.mark.parametrize("limit", [0.01, 0.03, 0.05])
def test_a_time_limit_breaks_no_context_manager(manager: Any, limit: float) -> None:
    before = signal.getsignal(signal.SIGALRM)
    try:
        with pytest.raises(TimeUp), at_most(limit):  # while it is entered, between, and while it is left
            again_and_again(manager)
        assert torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before


def test_one_that_hangs_when_it_is_left_is_interrupted() -> None:
    class Hangs(Slow):
        def __exit__(self, *exception: Any) -> None:
            with suppress(RuntimeError):
                spin(60.0)

    try:
        with pytest.raises(TimeUp), at_most(0.01), Hangs():
            pass
    finally:
        torch.set_grad_enabled(True)


def test_a_body_that_is_in_time_goes_on() -> None:
    for _ in range(200):
        with at_most(0.001), suppress(TimeUp):
            spin(0.001)
    spin(0.01)
