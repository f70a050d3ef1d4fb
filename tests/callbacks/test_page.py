"""The page of a run in progress."""

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rayfl.evaluation.run_records import RunRecords
from rayfl.report.run_page import Circumstances, run_page
from tests.support.federations import Poisoned, small

_opened: list[str] | None = None


def _note(event: str, values: tuple[Any, ...]) -> None:
    if event == "open" and _opened is not None and isinstance(values[0], str | os.PathLike):
        _opened.append(os.fspath(values[0]))


@contextmanager
def opened_files() -> Iterator[list[str]]:
    """Note the files that are opened: an audit hook cannot be taken away, so it looks whether to."""
    global _opened
    _opened = []
    try:
        yield _opened
    finally:
        _opened = None


@pytest.fixture(autouse=True, scope="module")
def _hook() -> None:
    sys.addaudithook(_note)


def _content(page: str) -> str:
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "", page)


def at_once(monkeypatch: pytest.MonkeyPatch, made: Callable[[RunRecords, Circumstances], str]) -> None:
    """Have a page made after every round."""
    for name, value in {"run_page": made, "FIRST": 0.0, "PAUSE": 0.0, "SHARE": float("inf")}.items():
        monkeypatch.setattr(f"rayfl.callbacks.page.{name}", value)


def test_pages_of_a_run_open_none_of_its_files_and_say_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    pages = 0

    def watched(result: RunRecords, live: Circumstances) -> str:
        nonlocal pages
        with opened_files() as found:
            page = run_page(result, live)
        opened.extend(found)
        folder = result.folder
        with opened_files() as found:
            read = run_page(RunRecords.load(folder), Circumstances.read(folder))
        assert any(path.endswith("metrics.jsonl") for path in found)
        assert _content(page) == _content(read)
        pages += 1
        assert ("update of client 2 is dropped" in page) == (len(result.history.rounds) > 1)
        return page

    at_once(monkeypatch, watched)
    bad = {"method": Poisoned(), "participation": 1.0, "on_bad_update": "drop", "checkpoint_every": 1}
    small(tmp_path / "run", rounds=3, **bad).run()
    small(tmp_path / "elsewhere", rounds=6, **bad).resume(tmp_path / "run").run()
    assert pages == 2 + 2
    assert [path for path in opened if str(tmp_path) in path] == []


def test_a_long_run_of_many_clients_has_no_further_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[int] = []

    def noted(result: RunRecords, live: Circumstances) -> str:
        rounds.append(len(result.history.rounds))
        return run_page(result, live)

    at_once(monkeypatch, noted)
    monkeypatch.setattr("rayfl.callbacks.page.MOST_SCORES", 3 * 12)  # of twelve clients
    small(tmp_path / "run", rounds=5).run()
    assert rounds == [1, 2]
