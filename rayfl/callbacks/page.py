"""The page of a run in progress."""

import time
from collections.abc import Mapping
from typing import Any

from rayfl.callbacks.callback import Callback, Run
from rayfl.evaluation.run_records import RunRecords
from rayfl.report.page import write_page
from rayfl.report.run_page import run_page

FIRST = 5.0
"""Seconds before the first page."""
PAUSE = 20.0
"""Least seconds between two pages."""
SHARE = 0.02
"""The share of a run's time that they may take."""
MOST_CLIENTS = 20_000
"""With more clients there is a page at the end alone: to read the records takes too long."""


class LivePage(Callback):
    """Writes ``report.html`` from time to time during a run, with its progress and accuracy."""

    def start(self, run: Run, round: int) -> bool:
        """Wait a little, so that a short run writes its page once."""
        self._next = time.monotonic() + FIRST
        self._wanted = len(run.population) <= MOST_CLIENTS
        return False

    def after_round(self, run: Run, record: Mapping[str, Any]) -> bool:
        """Write the page if it is due; after a failure, no page is written any more."""
        if self._wanted and (began := time.monotonic()) >= self._next and record["round"] < run.rounds - 1:
            self._wanted = write_page(run.path, lambda: run_page(RunRecords.load(run.path), over=False))
            now = time.monotonic()
            self._next = now + max(PAUSE, (now - began) / SHARE)
        return False
