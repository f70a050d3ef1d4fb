"""Every figure of a page stands where its label says: the figures of the runs all differ."""

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

from rayfl.report.paper_tables import compare
from rayfl.report.run_page import run_page
from rayfl.report.table_page import table_page
from rayfl.running.result import Result
from tests.support.records import write_run

CLIENTS = [
    {"train": train, "val": val, "test": test, "domain": place % 2, "labels": {"train": [train - 3, 3]}}
    for place, (train, val, test) in enumerate([(11, 4, 10), (30, 5, 20), (52, 6, 40), (113, 7, 80)])
]
SCORES = {
    ("personal", "test"): ([1, 3, 4, 5], [9, 14, 30, 36]),
    ("personal", "val"): ([4, 2, 3, 1], [1, 2, 5, 3]),
    ("personal", "common"): ([2, 4, 7, 9], [21, 33, 41, 63]),
    ("global", "test"): ([2, 4, 7, 11], [5, 7, 26, 60]),
    ("global", "val"): ([1, 1, 1, 1], [2, 2, 2, 2]),
    ("global", "common"): ([3, 5, 8, 11], [22, 36, 47, 71]),
}
"""Right answers in the first and in the second round; the common test set has 120 samples."""


def different_run(path: Path, **more: Any) -> Path:
    """Write a run of four clients, of which no two figures are equal; ``more`` is one for each of them."""
    run = write_run(path, rounds=2, clients=4, eval_every=1, **more)
    partition = json.loads((run / "partition.json").read_text())
    partition |= {"clients": CLIENTS, "common_test": 120, "class_names": ["cat", "dog"]}
    (run / "partition.json").write_text(json.dumps(partition))
    records = []
    for round, cohort in enumerate([[0, 1, 3], [1, 2, 3]]):
        views: dict[str, Any] = {}
        for (view, part), right in SCORES.items():
            losses = [0.5 + 0.01 * place + round for place in range(4)]
            views.setdefault(view, {})[part] = {"score": right[round], "loss": losses}
        records.append(
            {
                "round": round, "cohort": cohort, "samples": [CLIENTS[k]["train"] for k in cohort],
                "loss": [1.75 + round, 1.75 + round, 1.75 + round], "steps": [4, 5, 6],
                "dropped": [cohort[0]], "up": {"weights": [1000, 1100, 1200 + round]},
                "down": {"weights": [3000, 3100, 3200 + round]},
                "evaluation": {"after_aggregation": views},
            }
        )  # fmt: skip
    (run / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    seconds = [{"round": k, "seconds": each, "train_seconds": 21.0} for k, each in enumerate((28.0, 56.0))]
    (run / "engine.jsonl").write_text("".join(json.dumps(each) + "\n" for each in seconds))
    return run


def texts(markup: str) -> list[str]:
    """The texts of cells, without tags."""
    cells = re.findall(r"<t[hd]\b[^>]*>(.*?)</t[hd]>", markup, re.S)
    return [unescape(re.sub("<[^>]*>", "", cell)).strip() for cell in cells]


def sheets_of(page: str) -> dict[str, dict[str, dict[str, str]]]:
    """Caption -> first cell of a row -> heading -> text."""
    found = {}
    for caption, table in re.findall(r"<caption>(.*?)</caption>(.*?)</table>", page, re.S):
        head, body = table.split("<tbody>")
        rows = [texts(row) for row in re.findall(r"<tr>(.*?)</tr>", body, re.S)]
        found[unescape(caption)] = {row[0]: dict(zip(texts(head), row, strict=True)) for row in rows}
    return found


def cards_of(page: str) -> dict[str, str]:
    return {unescape(name): text for name, text in re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", page)}


def ends_of(page: str) -> dict[str, str]:
    """Title of a chart -> what it says of its lines."""
    labels = [unescape(label) for label in re.findall(r'role="img" aria-label="(.*?)"', page)]
    return dict(label.partition(": ")[::2] for label in labels)


def test_each_figure_of_a_run_stands_at_its_label(tmp_path: Path) -> None:
    page = run_page(Result.load(different_run(tmp_path / "run")))
    cards, sheets, ends = cards_of(page), sheets_of(page), ends_of(page)
    assert cards == {
        "Test accuracy": "70.00 %", "Common test set (G)": "32.92 %",  # of 90, 70, 75 and 45
        "Last evaluation, ± over clients": "70.00 ± 16.20 %", "Worst decile of the clients": "45.00 %",
        "Clients": "4", "Rounds": "2 of 2", "Sent by clients": "6.60 kB", "Time": "0:01:24",
        "Sent by clients per round": "3.30 kB", "Received per round": "9.30 kB",
        "Sent in all": "6.60 kB", "Received in all": "18.60 kB", "Time of all rounds": "0:01:24",
        "Median of a round": "42 s", "Share of training": "50%", "Actors": "1",
    }  # fmt: skip
    points = "Test accuracy in %, after aggregation, last evaluation"
    heads = ("view", "mean over clients", "std over clients", "pooled", "worst decile")
    rows = [
        ("personal", "70.00", "16.20", "59.33", "45.00"),
        ("personal (G)", "32.92", "12.77", "32.92", "17.50"),
        ("global", "56.25", "15.16", "65.33", "35.00"),
        ("global (G)", "36.67", "14.94", "36.67", "18.33"),
    ]
    assert sheets[points] == {row[0]: dict(zip(heads, row)) for row in rows}
    clients = sheets["Clients: test accuracy in %, after aggregation, last evaluation"]
    assert clients["2"] == {
        "client": "2", "domain": "ink", "train": "52", "val": "6", "test": "40", "classes": "2",
        "rounds trained": "1", "took part": "yes", "personal": "75.00", "global": "65.00",
        "personal (G)": "34.17", "global (G)": "39.17", "loss, personal": "1.520",
    }  # fmt: skip
    assert "".join(clients[str(k)]["rounds trained"] for k in range(4)) == "0112"  # not dropped ones
    domains = sheets["Test accuracy in % per domain, after aggregation, mean over clients, last evaluation"]
    assert domains == {
        "ink": {"domain": "ink", "clients": "2", "personal": "82.50", "global": "57.50"},
        "print": {"domain": "print", "clients": "2", "personal": "57.50", "global": "55.00"},
    }
    assert sheets["Training samples by classes, in numbers"]["3"] == {"client": "3", "cat": "110", "dog": "3"}
    assert sheets["Configuration"]["training.lr"]["value"] == "0.01"
    figures = {"personal": "70.00", "global": "56.25", "personal (G)": "32.92", "global (G)": "36.67"}
    said = "; ".join(f"{name} ends at {figure}" for name, figure in figures.items())
    assert ends["Test accuracy in %, after aggregation, mean over clients"] == said
    assert "personal ends at 1.51" in ends["Test loss, after aggregation, mean over clients"]
    assert ends["Training loss, mean over the samples of the cohort"] == "training loss ends at 2.75"
    assert ends["Seconds of each round"] == "whole round ends at 56.00; training ends at 21.00"
    spread = "45.00 to 90.00 %, median 72.50 %"
    assert ends["Test accuracy of 4 clients, last evaluation"] == spread
    assert "Lowest test accuracy: client 3 (45.00 %)." in page
    assert "Dropped updates: 2; metrics.jsonl names their clients." in page
    first = page.split('<h2 id="result">')[1]
    assert "round 2" in first
    assert "Own test data (P): 70.00 %, 4 clients; common test set (G): 32.92 %, 4 clients." in first


def test_each_figure_of_a_table_stands_at_its_label(tmp_path: Path) -> None:
    """One seed has the figures of the test above, in all others client 0 has other ones."""
    folders = []
    for row, seeds in {"One": [0, 1], "Two": [0]}.items():
        for seed in seeds:
            run = different_run(tmp_path / row / str(seed), seed=seed)
            with (run / "config.yaml").open("a") as file:
                file.write(f"cell: {{table: made_up, row: {row}, column: C, changed: [], seed: {seed}}}\n")
            folders.append(run)
    for folder, right in ((folders[1], [8, 14, 30, 36]), (folders[2], [4, 14, 30, 36])):
        first, last = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        last["evaluation"]["after_aggregation"]["personal"]["test"]["score"] = right
        (folder / "metrics.jsonl").write_text(f"{json.dumps(first)}\n{json.dumps(last)}\n")
    entries = compare("made_up", folders)
    page = table_page("T", entries, folders, tmp_path, planned=3, reference="Two")
    sheets, ends = sheets_of(page), ends_of(page)
    grid = sheets["Test accuracy in %"]
    assert {row: cells["C"] for row, cells in grid.items()} == {"One": "68.75 ± 1.77", "Two": "57.50"}
    cells = sheets["Every cell; accuracy in %"]
    heads = ["row", "column", "ours", "95 % interval: ±", "common test (G)", "worst decile"]
    heads += ["std over clients", "seeds", "rounds to Two's figure", "bytes to Two's figure", "warnings"]
    one = ["One", "C", "68.75 ± 1.77", "15.88", "32.92", "45.00", "14.83", "0, 1", "2", "25.20 kB", ""]
    assert cells["One"] == dict(zip(heads, one))
    two = ["Two", "C", "57.50", "–", "32.92", "40.00", "15.21", "0", "2", "25.20 kB", ""]
    assert cells["Two"] == dict(zip(heads, two))
    aimed = table_page("T", entries, folders, tmp_path, planned=3, target=68)
    costs = sheets_of(aimed)["Every cell; accuracy in %"]
    assert costs["One"]["rounds to 68 %"] == "2, 1 of 2 not reached"  # the seeds end at 70 and 67.5
    assert costs["Two"]["bytes to 68 %"] == "not reached"
    runs = sheets["Every run, with its own page"]
    assert runs["Two, C"] == {
        "run": "Two, C", "seed": "0", "accuracy in %": "57.50", "rounds": "2 of 2", "sent": "6.60 kB",
        "received": "18.60 kB", "time": "0:01:24", "updates dropped": "2",
    }  # fmt: skip
    assert runs["One, C"]["accuracy in %"] == "67.50"  # the last of two seeds
    assert ends["Test accuracy in %, C, mean over seeds"] == "One ends at 68.75; Two ends at 57.50"
    assert re.findall("<strong>(.*?)</strong>", page) == ["68.75 ± 1.77"]
    assert "Dropped updates: 6;" in page
