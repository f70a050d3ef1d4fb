"""The page of a run in progress."""

import logging
import time
from collections.abc import Mapping
from logging.handlers import MemoryHandler
from typing import Any

from rayfl.callbacks.callback import Callback, Run
from rayfl.evaluation.run_records import RunRecords
from rayfl.record.folder import read_config
from rayfl.record.history import HistoryBuilder
from rayfl.report.page import write_page
from rayfl.report.run_page import Circumstances, run_page
from rayfl.system.log import log
from rayfl.system.text import one_line

FIRST = 5.0
"""Seconds before the first page."""
PAUSE = 20.0
"""Least seconds between two pages."""
SHARE = 0.02
"""The share of a run's time that they may take."""
MOST_CLIENTS = 20_000
"""With more clients there is a page at the end alone: to make one takes too long."""
MOST_SCORES = 5_000_000
"""With more clients times evaluations the next page is that at the end: they would take too much memory."""


class LivePage(Callback):
    """Writes ``report.html`` from time to time during a run, with its progress and accuracy.

    What the page shows is kept in memory: files are read when the rounds begin, and not for a page.
    """

    def __init__(self) -> None:
        self._logged = MemoryHandler(0, logging.CRITICAL + 1)  # without a target, it keeps all
        self._logged.setLevel(logging.WARNING)

    def start(self, run: Run, round: int) -> bool:
        """Wait a little, so that a short run writes its page once."""
        self._next = time.monotonic() + FIRST
        self._left = MOST_SCORES if len(run.population) <= MOST_CLIENTS else 0
        if self._left:
            self._config, self._known = read_config(run.path), Circumstances.read(run.path)
            self._builder = HistoryBuilder(run.population)
            for record in run.records() if round else ():
                self._add(run, record)
            log.addHandler(self._logged)
        return False

    def after_round(self, run: Run, record: Mapping[str, Any]) -> bool:
        """Write the page if it is due; after a failure, no page is written any more."""
        if self._left > 0:
            self._add(run, record)
        if self._left <= 0:
            return False
        self._known.engine.append(run.engine)
        if (began := time.monotonic()) >= self._next and record["round"] < run.rounds - 1:
            history = self._builder.history()
            texts = [logged.getMessage().split("\n")[0] for logged in self._logged.buffer]
            self._known.warnings.update(dict.fromkeys(map(one_line, texts)))
            records = RunRecords.from_history(run.path, self._config, history)
            if not write_page(run.path, lambda: run_page(records, self._known)):
                self._left = 0
            now = time.monotonic()
            self._next = now + max(PAUSE, (now - began) / SHARE)
        return False

    def _add(self, run: Run, record: Mapping[str, Any]) -> None:
        self._left -= len(run.population) * ("evaluation" in record)
        if self._left > 0:
            self._builder.add(record)
        else:
            self._builder = HistoryBuilder(run.population)

    def end(self) -> None:
        """Keep warnings no more."""
        log.removeHandler(self._logged)
