"""Handle the signals that ask a program to stop."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C; ``kill``, ``timeout`` and schedulers of batch jobs; a terminal that is closed."""


@contextmanager
def handle_signals(
    answer: Callable[[int], None],
    numbers: Sequence[signal.Signals] = STOPPING,
    of_others: Sequence[signal.Signals] = (),
) -> Iterator[Callable[[], None]]:
    """In the main thread, call a function with the number of each of these signals.

    Other threads cannot handle signals: there, nothing happens. A SIGHUP that is ignored, as under ``nohup``,
    stays ignored. After another SIGHUP, output to a closed terminal is discarded instead of failing.

    Args:
        answer: the function.
        numbers: the signals.
        of_others: signals whose handlers are set meanwhile by others, and only restored.

    Yields:
        A function that restores the earlier handlers; leaving the context does it, too.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    before = {number: signal.getsignal(number) for number in (*numbers, *of_others)}
    if before.get(signal.SIGHUP) is signal.SIG_IGN:
        del before[signal.SIGHUP]
    shown = [file for file in (1, 2) if os.isatty(file)]

    def give_back() -> None:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            _silence_closed(shown)
        answer(number)

    for number in before.keys() & {*numbers}:
        signal.signal(number, handle)
    try:
        yield give_back
    finally:
        give_back()


class StopRequest(threading.Event):
    """Set when a signal has asked for an end.

    Attributes:
        interrupted: whether it was SIGINT, after which Python programs end.
    """

    interrupted = False


@contextmanager
def asked_to_stop(hangs: Callable[[], bool] = lambda: False) -> Iterator[StopRequest]:
    """Turn the first SIGINT, SIGTERM or SIGHUP into an event; a second one acts as usual.

    Args:
        hangs: whether what is under way may never end; then the first one raises a KeyboardInterrupt.
    """
    asked = StopRequest()

    def stop(number: int) -> None:
        asked.interrupted = number == signal.SIGINT
        asked.set()
        give_back()
        if hangs():
            raise KeyboardInterrupt
        with suppress(RuntimeError):  # the signal has interrupted another print
            print("Stopping after this round, with a checkpoint; once more to stop at once.", flush=True)

    with handle_signals(stop) as give_back:
        yield asked


def _silence_closed(files: list[int]) -> None:
    """Discard what is written to those of these terminals that are closed."""
    for file in files:
        if not os.isatty(file):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, file)
            os.close(nowhere)
