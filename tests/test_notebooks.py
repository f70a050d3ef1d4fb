"""A notebook shows progress, results and pictures, and the gallery keeps what it shows."""

import pytest

from docs.gallery.__main__ import execute, new_notebook, outputs_of, save_small_picture

pytestmark = pytest.mark.slow  # a kernel takes long to start; test_docs.py runs the cells of the gallery

RUN = """
from rayfl import Federation, Inline
from rayfl.data import Synthetic

data = Synthetic(train=100, test=50)
result = Federation(data=data, clients=2, rounds=1, engine=Inline(), output="runs/first").run()
result
"""


def test_what_a_notebook_shows(tmp_path):
    notebook = new_notebook(
        [("code", RUN), ("code", "result.plot.rounds()"), ("code", "!rayfl report runs/first")]
    )
    execute(notebook)
    widgets = notebook.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"].values()
    (bar,) = (each["state"]["outputs"] for each in widgets if each["model_name"] == "OutputModel")
    assert bar[-1]["data"]["text/plain"].startswith("round 1/1")
    *_, result, picture, report = outputs_of(notebook)
    assert result["data"]["text/plain"].startswith("Result(folder='runs/first', rounds=1 of 1")
    assert "image/png" in picture["data"]
    assert "Synthetic, IID, 100/0/50 samples" in report["text"]
    save_small_picture(notebook, tmp_path / "small.png")
    assert (tmp_path / "small.png").stat().st_size < 30_000
