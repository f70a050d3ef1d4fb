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
"""With more clients there is a page at the end alone: the records would take too much memory."""


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
        self._wanted = len(run.population) <= MOST_CLIENTS
        if self._wanted:
            self._config, self._known = read_config(run.path), Circumstances.read(run.path)
            self._builder = HistoryBuilder(run.population, run.records() if round else ())
            log.addHandler(self._logged)
        return False

    def after_round(self, run: Run, record: Mapping[str, Any]) -> bool:
        """Write the page if it is due; after a failure, no page is written any more."""
        if not self._wanted:
            return False
        self._builder.add(record)
        self._known.engine.append(run.engine)
        if (began := time.monotonic()) >= self._next and record["round"] < run.rounds - 1:
            history = self._builder.history()
            texts = [logged.getMessage().split("\n")[0] for logged in self._logged.buffer]
            self._known.warnings.update(dict.fromkeys(map(one_line, texts)))
            self._wanted = write_page(
                run.path, lambda: run_page(RunRecords.of(run.path, self._config, history), self._known)
            )
            now = time.monotonic()
            self._next = now + max(PAUSE, (now - began) / SHARE)
        return False

    def end(self) -> None:
        """Keep warnings no more."""
        log.removeHandler(self._logged)
