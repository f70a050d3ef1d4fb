"""Tables as files: what every format holds, and that no name is more than text there."""

import csv
import html
import json
import re
from pathlib import Path

import pytest

from rayfl.report.formats import SUFFIXES, csv_text, ranked_cell, write_table
from rayfl.report.text import plain_table

NASTY = r"<script>alert(1)</script> & 100% $x_1^2$ {\input{x}} a|b **c** [d](e) ~ #1 " '"'
NOTES = ["± is over seeds & runs.", "Bold: the best."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    table = plain_table(f"T: {NASTY}")
    table.add_column("", justify="left")
    table.add_column("by\nclass", justify="right")
    table.add_column(NASTY, justify="right")
    table.add_row("Fed_A", ranked_cell("81.20 ± 0.30", "best"), "1")
    table.add_row(NASTY, ranked_cell("80.00 ± 0.10*", "second"), "2")
    table.add_row("=C", "n/a", "long" * 40)
    table.add_row("[9cm]", "n/a", "")
    table.add_row("*[9cm]", "n/a", "")
    records = [
        {"row": NASTY, "mean": 81.2, "std": None, "seeds": [4, 7], "warnings": ["a", "b"], "values": {4: 1}}
    ]
    records.append(records[0] | {"row": "=C", "mean": None})
    folder = tmp_path_factory.mktemp("tables")
    for ending in SUFFIXES:
        write_table(folder / f"table{ending}", table, NOTES, records, ["rounds_300\nx"], tests=[])
    return folder


def test_markdown(folder):
    lines = (folder / "table.md").read_text().splitlines()
    assert lines[2].startswith("|  | by class | ")
    assert lines[4] == "| Fed\\_A | **81.20 ± 0.30** | 1 |"
    assert "<ins>80.00 ± 0.10\\*</ins>" in lines[5]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines[2:9]}) == 1, "a name makes no cells"
    assert "<script" not in "".join(lines)
    assert lines[-3:] == [
        "- ± is over seeds &amp; runs.",
        "- Bold: the best.",
        "- rounds\\_300\\nx".replace("\\n", "\\\\n"),
    ]


def test_html(folder):
    page = (folder / "table.html").read_text()
    tags, text = re.findall("<([a-z]+)", page), html.unescape(re.sub("<[^>]*>", "", page))
    assert {"script", "link", "img"}.isdisjoint(tags)
    assert tags.count("tr") == 6
    assert (tags.count("b"), tags.count("u")) == (1, 1)
    assert text.count(NASTY) == 4, "in titles, a heading and a cell"
    assert "long" * 40 in text, "nothing is cut"


def test_latex(folder):
    text = (folder / "table.tex").read_text()
    assert text.startswith("% Needs \\usepackage{booktabs}.\n% rounds_300\\nx\n\\begin{table}")
    for rule in ("toprule", "midrule", "bottomrule"):
        assert text.count(f"\\{rule}") == 1
    assert "\\begin{tabular}{lrr}" in text
    assert r"Fed\_A & \textbf{81.20 $\pm$ 0.30} & 1 \\" in text
    assert r"\underline{80.00 $\pm$ 0.10{*}}" in text
    caption = next(line for line in text.splitlines() if line.startswith("\\caption"))
    assert caption.endswith(r". $\pm$ is over seeds \& runs. Bold: the best.}")
    assert r"\input" not in text
    body = re.sub(r"^%.*\n", "", text, flags=re.MULTILINE)
    body = re.sub(r"\\[\\&%$#_{}]", "", body).replace(r"$\pm$", "")
    assert not set("%$#_^~") & set(body)
    assert re.search(r"\\\\\s*[\[*]", text) is None, "which would belong to the line above"
    assert body.count("{") == body.count("}")
    assert body.count("&") == 2 * 6, "two in each of six lines"


def test_csv_and_json(folder):
    rows = list(csv.DictReader((folder / "table.csv").open(newline="")))
    assert rows[0] == {"row": NASTY, "mean": "81.2", "std": "", "seeds": "2", "warnings": "a; b"}
    assert rows[1] == rows[0] | {"row": "'=C", "mean": ""}
    content = json.loads((folder / "table.json").read_text())
    assert content["title"] == f"T: {NASTY}"
    assert content["cells"][0] == {
        "row": NASTY, "mean": 81.2, "std": None, "seeds": [4, 7], "warnings": ["a", "b"], "values": {"4": 1},
    }  # fmt: skip
    assert content["tests"] == []


def test_whole_numbers_stay_whole_in_csv():
    """Also beside a missing one, for which pandas would make all of them 3.0 and the like."""
    assert (
        csv_text([{"name": "a", "rounds": 3}, {"name": "b", "rounds": None}])
        == "name,rounds\r\na,3\r\nb,\r\n"
    )
