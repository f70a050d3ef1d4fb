"""The notebooks of the documentation run, show progress, and are on the site without what a run has left."""

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow  # test_docs.py runs their cells

ROOT = Path(__file__).parent.parent
NOTEBOOKS = [ROOT / "docs" / "notebooks" / f"{name}.ipynb" for name in ("first_federation", "own_method")]
SHORTER = {
    "rounds=3": "rounds=1",
    '"rounds": 3': '"rounds": 1',
    "round == 2": "round == 0",
    '"rounds": 4': '"rounds": 2',
}
"""In the first notebook: fewer rounds, so that the test is quick."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Both notebooks, one after the other in one kernel: starting one takes longer than the cells."""
    reason = "notebooks need an extra: pip install 'rayfl[notebook]' nbclient"
    nbclient = pytest.importorskip("nbclient", reason=reason)
    nbformat = pytest.importorskip("nbformat", reason=reason)
    for package in ("ipykernel", "ipywidgets"):
        pytest.importorskip(package, reason=reason)
    first, *others = (nbformat.read(path, as_version=4) for path in NOTEBOOKS)
    for cell in first.cells:
        for text, shorter in SHORTER.items():
            cell.source = cell.source.replace(text, shorter)
    for other in others:
        first.cells += other.cells
    folder = {"metadata": {"path": str(tmp_path_factory.mktemp("notebooks"))}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        nbclient.NotebookClient(first, timeout=300, kernel_name="python3", resources=folder).execute()
    return first


def outputs(run: Any, begins: str) -> list[Any]:
    """Return what the cell has shown that begins like this."""
    return list(next(c for c in run.cells if c.cell_type == "code" and c.source.startswith(begins)).outputs)


def test_progress_and_tables_are_shown(run: Any) -> None:
    (federation,) = outputs(run, "from rayfl import Federation, Inline, Training\nfrom rayfl.data")
    assert "method=FedRep()" in federation.data["text/plain"]
    widgets = run.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"].values()
    (bar,) = (each["state"]["outputs"] for each in widgets if each["model_name"] == "OutputModel")
    assert bar[-1]["data"]["text/plain"].startswith("round 1/1")
    assert [each for each in outputs(run, "result.plot.rounds()") if "image/png" in each.get("data", {})]
    *_, longer = outputs(run, "from rayfl import resumed")
    assert longer.data["text/plain"].startswith("Result(folder='runs/fedrep', rounds=2 of 2")
    (predicted,) = outputs(run, "some = ")
    assert predicted.data["text/plain"].startswith("(tensor([")


def test_the_results_are_what_the_text_says(run: Any) -> None:
    (both,) = outputs(run, "fedavg = ")
    found = eval(both.data["text/plain"])
    assert found["FedRep"] > found["FedAvg"] + 0.1
