"""What is shown of a table while it runs."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from rayfl.jobs import progress
from rayfl.jobs.cells import Job
from rayfl.jobs.progress import TableProgress
from tests.support.cells import record


def two_cells(folder: Path) -> list[Job]:
    """One that is finished after 10 rounds of 2 s, and one that has done 4 rounds of 3 s."""
    done, begun = (Job("FedBN", name, 0, 10, folder / name, {}) for name in ("done", "begun"))
    record(done, [2.0] * 10, finished=True)
    record(begun, [3.0] * 4)
    return [done, begun]


@pytest.mark.parametrize(
    ("running", "ends"),
    [
        (1, "; FedBN, begun, seed 0: round 4/10; ETA 0:00:18"),
        (0, "; ETA 0:00:00"),  # a scheduler has stopped the trial, or the cell has failed
    ],
)
def test_plain_lines(tmp_path: Path, running: int, ends: str) -> None:
    cells, out = two_cells(tmp_path), io.StringIO()
    console = Console(file=out, width=40)
    with TableProgress(cells, 2, interval=0, console=console, items="trials") as shown:
        shown.print_line("FedBN, begun, seed 0: started [now]")
        shown.show_jobs(cells[1:][:running], [])
    lines = ["FedBN, begun, seed 0: started [now]", f"1/2 trials finished{ends}"]
    assert out.getvalue().splitlines() == lines


def test_bars_on_a_terminal(tmp_path: Path, monkeypatch) -> None:
    cells = two_cells(tmp_path)
    out = io.StringIO()
    console = Console(file=out, width=120, force_terminal=True, color_system=None)
    with TableProgress(cells, 2, console=console) as shown:
        pass
    assert "1/2 cells" in out.getvalue()
    monkeypatch.setattr(progress, "REFRESH", 0.0)
    with shown:
        shown.show_jobs(cells[1:], [])
        shown.show_jobs(cells[1:], [])
    text = out.getvalue()
    for part in ("14/20 rounds ETA 0:00:18", "FedBN, begun, seed 0", " 4/10 rounds"):
        assert part in text
