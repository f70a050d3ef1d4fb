"""``report.html``: what it says, that it is safe and small, and that a browser shows it."""

import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfl.callbacks import page as live
from rayfl.callbacks.callback import Callback, Run
from rayfl.data.task import ACCURACY, Figure
from rayfl.report.page import PAGE, Line, Sheet, heat_map, histogram, line_chart, render, ticks, write_page
from rayfl.report.paper_tables import compare
from rayfl.report.run_page import Circumstances, run_page
from rayfl.report.table_page import table_page
from rayfl.running.result import Result
from tests.support.federations import small
from tests.support.records import write_run

EVIL = "<script>alert(1)</script>"


class Outline(HTMLParser):
    """The tags of a page, and whether each is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attributes)
        if tag not in ("meta", "img", "input", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "run"
    small(path, rounds=3).run()
    return path


def test_a_run_has_its_page(folder: Path) -> None:
    page, result = (folder / PAGE).read_text(), Result.load(folder)
    assert f"{100 * result.figure:.2f} %" in page
    assert "Finished: 3 of 3 rounds" in page
    assert "the numbers of one seed" in page
    for word in ("FedAvg", "training.lr", "Received in all", "Training loss", "git_commit"):
        assert word in page
    written = page.split("Training samples by classes, in numbers")[1].split("</table>")[0]
    counts = [int(n) for n in re.findall(r'<td class="number" data-value="(\d+).0">', written)]
    assert len(counts) == 12 * 10
    assert sum(counts) == Result.load(folder).history.population.samples["train"].sum()
    assert 'http-equiv="refresh"' not in page


def test_it_can_be_read_without_eyes_and_without_a_network(folder: Path) -> None:
    page = (folder / PAGE).read_text()
    outline = Outline(page)
    assert not outline.open
    levels = [int(tag[1]) for tag, _ in outline.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    for tag, attributes in outline.tags:
        if tag == "img" or (tag == "svg" and "aria-hidden" not in attributes):
            assert attributes.get("alt") or attributes.get("aria-label")
        for name in ("src", "href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/png;base64,"))
    assert {"lang": "en"} in [attributes for tag, attributes in outline.tags if tag == "html"]
    ids = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    linked = [str(a["href"])[1:] for tag, a in outline.tags if tag == "a"]
    assert len(set(ids)) == len(ids)
    assert set(linked) <= set(ids)


def test_names_are_escaped(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", method=EVIL.replace("/", "_"), domains=(EVIL, "print"))
    page = run_page(Result.load(run))
    assert "&lt;script&gt;alert(1)" in page
    chart = line_chart(EVIL, [Line(EVIL, [1, 2], [1e17, 1e17])], EVIL)  # equal numbers are drawn, too
    assert chart is not None
    assert "<polyline" in chart.svg
    grid = Sheet(EVIL, [EVIL], [[EVIL]])
    names: dict[str, Any] = {"title": EVIL, "footnotes": [EVIL], "notes": [EVIL], "grid": grid}
    table = render("result.html", state={"kind": "done", "text": EVIL}, **names)
    assert not any("<script>alert" in text for text in (page, chart.svg, table))


def test_a_stopped_run_says_so(tmp_path: Path) -> None:
    """And shows its last evaluation, which is not that of its last round."""
    result = Result.load(write_run(tmp_path / "run", eval_every=3, stop_after=4))
    assert "Stopped: 4 of 10 rounds" in run_page(result)
    going_on = run_page(result, Circumstances.read(result.folder))
    for text in (
        "Running: 4 of 10 rounds, about 0:00:03 left",
        'http-equiv="refresh"',
        "Lowest test accuracy: client",
        "Last evaluation, ± over clients",
    ):
        assert text in going_on
    assert "Last round" not in going_on


def test_a_run_without_evaluations_has_its_page(tmp_path: Path) -> None:
    small(tmp_path / "run", rounds=1, eval_every=0).run()
    assert "training loss" in (tmp_path / "run" / PAGE).read_text()


def test_a_run_whose_processes_have_died_has_its_page(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    with (run / "engine.jsonl").open("a") as file:
        file.write('{"lost": "an actor died", "back_to": 10}\n')
    page = run_page(Result.load(run))
    assert "<dt>Time</dt><dd>0:00:05</dd>" in page
    assert "<dt>Received per round</dt><dd>6.00 kB</dd>" in page


def test_clients_that_never_train_have_their_scores(tmp_path: Path) -> None:
    """The last of four clients, with 9 of its 23 test samples right, and the mean of its domain."""
    run = write_run(tmp_path / "run", clients=4)
    *others, last = (run / "metrics.jsonl").read_text().splitlines()
    record = json.loads(last)
    alone = {"score": [None, None, None, 9], "loss": [None, None, None, 1.0]}
    record["evaluation"]["unseen"] = {"personal": {"test": alone}}
    (run / "metrics.jsonl").write_text("\n".join([*others, json.dumps(record)]) + "\n")
    page = run_page(Result.load(run))
    for section in ("clients", "domains"):
        table = page.split(f'<h2 id="{section}">')[1].split("</table>")[0]
        assert ">personal, unseen<" in table
        assert table.count(">39.13<") == 1


def test_a_thousand_clients_stay_small(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", clients=1000, rounds=1, eval_every=1)
    page = run_page(Result.load(run))
    assert len(page.encode()) < 1e6
    assert page.count("<tr>") > 1000
    labels = np.random.default_rng(0).integers(0, 50, (1000, 100))
    assert len(heat_map(labels)) < 2e5


def test_of_very_many_clients_the_map_has_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayfl.report.run_page.LABELS", 4)
    result = Result.load(write_run(tmp_path / "run", clients=5, rounds=1, eval_every=1))
    path = result.folder / "partition.json"
    partition = json.loads(path.read_text()) | {"class_names": ["ink", "print"]}
    for client, count in zip(partition["clients"], (1, 3, 5, 7, 40), strict=True):
        client["labels"] = {"train": [count, 0]}
    path.write_text(json.dumps(partition))
    page = run_page(Result.load(result.folder))
    assert "a line per 3 clients, their mean" in page
    assert "<span>24 samples</span>" in page  # of clients 3 and 4, whose mean is 23.5


def test_a_histogram_by_hand() -> None:
    """Five equal parts, of which two are empty; a bound counts in the part that it begins."""
    found = histogram("Spread", np.array([0.0, 19.0, 20.0, 100.0, 80.0, 99.0]), ACCURACY, bins=5).svg
    assert re.findall(r"<title>(.*?)</title>", found) == ["0 to 20 %: 2", "20 to 40 %: 1", "80 to 100 %: 3"]
    widths = {float(width) for width in re.findall(r'class="bar".*? width="(.*?)"', found)}
    heights = [float(height) for height in re.findall(r'class="bar".*? height="(.*?)"', found)]
    assert len(widths) == 1
    assert heights == pytest.approx([2 * heights[1], heights[1], 3 * heights[1]], abs=0.2)


def test_of_many_clients_the_lowest_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayfl.report.run_page.ROWS", 3)
    result = Result.load(write_run(tmp_path / "run", clients=9))
    last = result.history.scores["after_aggregation", "personal", "test"].figure[-1]
    page = run_page(result)
    listed = re.findall(r'<th scope="row" class="number" data-value="(\d+).0">', page)
    assert sorted(listed) == sorted(map(str, np.argsort(last, kind="stable")[:3]))
    assert "the 3 lowest of 9" in page
    (named,) = re.findall(r"Lowest test accuracy: (.*?)\.<", page)  # a quarter of them, rounded up
    assert re.findall(r"client (\d)", named) == [str(i) for i in np.argsort(last, kind="stable")[:3]]


def test_the_page_is_there_while_a_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("FIRST", 0.0), ("PAUSE", 0.0), ("SHARE", 1e9)):
        monkeypatch.setattr(live, name, value)
    path, pages = tmp_path / "run" / PAGE, []

    class Reads(Callback):
        def after_round(self, run: Run, record: Mapping[str, Any]) -> bool:
            pages.append(path.read_text() if path.exists() else "")
            return False

    small(tmp_path / "run", rounds=3).run([Reads()])
    shown = [f"Running: {n} of 3" in page for n, page in enumerate(pages, start=1)]
    assert shown == [True, True, False]
    assert "Finished: 3 of 3" in path.read_text()


def test_a_page_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> str:
        raise ZeroDivisionError("of nothing")

    assert not write_page(tmp_path, fails)
    assert "of nothing; the records are intact" in caplog.text
    assert not list(tmp_path.iterdir())


def table_cell(path: Path, row: str, column: str, **run: Any) -> Path:
    """Write a run that is a cell of a table."""
    with (write_run(path, **run) / "config.yaml").open("a") as file:
        file.write(f"cell: {{table: made_up, row: {row}, column: '{column}', changed: [], seed: 0}}\n")
    return path


def test_the_page_of_a_table_leads_to_its_runs(tmp_path: Path) -> None:
    above, levels = tmp_path / "a table", {"Mine": 0.9, "Other": 0.5}
    folders = [table_cell(above / row / "seed-0", row, "<b>", level=level) for row, level in levels.items()]
    (folders[0] / "run.log").write_bytes(b"\xff\n2026-01-01 00:00:00 WARNING mu <i>has no effect\n")
    entries = compare("made_up", folders)
    page = table_page("A table", entries, folders, above, planned=3)
    assert not Outline(page).open
    assert 'href="Mine/seed-0/report.html"' in page
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    [best] = re.findall("<strong>([0-9.]+)", page.split("<tbody>")[1].split("</tbody>")[0])
    assert best == f"{max(entry.mean or 0 for entry in entries):.2f}"
    assert '<strong class="running">2 of 3 runs are finished' in page
    assert '<strong class="done">2 of 2 runs' in table_page("A table", entries, folders, above, planned=2)
    assert 'http-equiv="refresh"' not in page
    assert not re.search("<th[^>]*></th>", page)  # a button without a name
    assert page.count("<li>mu &lt;i&gt;has no effect</li>") == 1
    assert page.count(">0:00:05<") == 2  # ten rounds of half a second


def test_the_page_of_a_table_says_what_its_stars_mean(tmp_path: Path) -> None:
    """And by how much rows differ from the row of reference, here the second."""
    runs = [(row, seed, level) for row, level in (("Mine", 0.9), ("Other", 0.4)) for seed in range(3)]
    folders = [table_cell(tmp_path / f"{r}{seed}", r, "C", seed=seed, level=level) for r, seed, level in runs]
    entries = compare("made_up", folders)
    page = table_page("T", entries, folders, tmp_path, planned=6, reference="Other")
    mine, other = (f"{entry.mean:.2f} ± {entry.std:.2f}" for entry in entries)
    assert f"<strong>{mine}*</strong>" in page
    assert f">{other}*" not in page
    assert "<p>* differs from Other (paired t-test over seeds" in page
    assert f">{(entries[0].mean or 0) - (entries[1].mean or 0):+.2f} ± " in page.split("minus Other")[1]


def test_seeds_without_a_common_evaluation_have_no_curve(tmp_path: Path) -> None:
    runs = [{"seed": seed, "rounds": n, "eval_every": n} for seed, n in enumerate((4, 5))]
    folders = [table_cell(tmp_path / str(run["seed"]), "a", "b", **run) for run in runs]
    page = table_page("A table", compare("made_up", folders), folders, tmp_path, planned=2)
    assert "no mean, because its seeds have different numbers of rounds" in page
    assert "<polyline" not in page


def test_ticks_are_round_and_inside() -> None:
    assert ticks(0, 100) == [0, 20, 40, 60, 80, 100]
    assert ticks(0.31, 0.94) == pytest.approx([0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
    for low, high in ((1, 2), (-3, 1e6), (0, 7e-9), (99.5, 100.5)):
        found = ticks(low, high)
        assert 2 <= len(found) <= 8
        assert low - 1e-9 <= found[0]
        assert found[-1] <= high * (1 + 1e-9)


BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
CLICKS = """<script>
const column = document.querySelectorAll("#clients ~ details input")[3];
const slider = document.querySelector("#rounds [type=range]"), canvas = document.querySelector("canvas");
if (column.checked) {  // the first time
  const search = document.querySelector("#clients ~ label input");
  search.value = "print"; search.dispatchEvent(new Event("input"));
  column.click();
  slider.value = 3; slider.dispatchEvent(new Event("input"));
  location.reload();
}
document.querySelector("#clients ~ .wide thead th:nth-child(3) button").click();
document.querySelector("#clients ~ .wide thead th:nth-child(3) button").click();
const pixels = canvas.getContext("2d").getImageData(0, 0, 10, 6).data;
const chart = document.querySelector("#curves ~ .charts .chart");
const output = document.querySelector("output"), picked = [output.value];
const click = (where, share) => {
  const box = where.getBoundingClientRect();
  where.dispatchEvent(new MouseEvent("click", { clientX: box.left + share * box.width }));
  picked.push(output.value);
};
click(chart, chart.querySelector("polyline").points[1].x / 640);
click(canvas, 0.65);
slider.value = 3; slider.dispatchEvent(new Event("input"));
scrollTo(0, 0);
const found = document.body.appendChild(document.createElement("pre"));
found.textContent = JSON.stringify({ picked, drawn: [...pixels].filter((_, k) => k % 4 === 3) });
</script>"""


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
def test_a_browser_sorts_searches_and_shows_any_round(tmp_path: Path) -> None:
    """Clients of one domain are left, a column is hidden, round 4 is shown, also when the page loads again.

    Then they are sorted by training samples, descending. A click on the second point of a curve picks its
    round, and one on the map the seventh; the map has a pixel where a client took part.
    """
    result = Result.load(write_run(tmp_path / "run"))
    scores, used = result.history.scores["after_aggregation", "personal", "test"], result.history.used
    path, picture = tmp_path / "page.html", tmp_path / "page.png"
    path.write_text(run_page(result) + CLICKS)
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path / 'own'}", f"--screenshot={picture}", "--window-size=400,900"]
    done = subprocess.run([*command, str(path)], capture_output=True, text=True, timeout=240, check=True)
    table = done.stdout.split('id="clients"')[1].split("<caption>")[1].split("</tbody>")[0]
    rows = [line for line in table.split("<tbody>")[1].split("<tr")[1:] if not line.startswith(" hidden")]
    assert [re.findall(r'data-value="(\d+)', row)[0] for row in rows] == ["5", "3", "1"]
    assert all(
        row.split("<t")[4].startswith("d") and "hidden" in row.split("<t")[4].split(">")[0] for row in rows
    )
    assert table.startswith("Clients: test accuracy in %, after aggregation, round 4<")
    at = scores.rounds.tolist().index(3)
    shown = [re.findall(r">([^<>]+)</t", row) for row in rows]
    assert [cells[-4] for cells in shown] == ["yes" if client in used[3] else "no" for client in (5, 3, 1)]
    assert [cells[-3] for cells in shown] == [f"{100 * scores.figure[at, k]:.2f}" for k in (5, 3, 1)]
    assert [cells[-1] for cells in shown] == [Figure("loss").text(scores.loss[at, k]) for k in (5, 3, 1)]
    found = json.loads(done.stdout.split("<pre>")[-1].split("</pre>")[0])
    assert found["picked"] == ["4", str(scores.rounds[1] + 1), "7, scores of round 6"]
    drawn = np.array(found["drawn"]).reshape(6, 10) > 0
    assert [np.flatnonzero(column).tolist() for column in drawn.T] == [used[k].tolist() for k in range(10)]
    assert picture.stat().st_size > 5000


def test_of_many_rounds_a_part_is_carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten rounds four, and of six evaluations those that were the last then; as printed."""
    monkeypatch.setattr("rayfl.report.run_page.NUMBERS", 4 * 6 * 4)
    result = Result.load(write_run(tmp_path / "run"))
    page = run_page(result)
    carried = json.loads(page.split('<script type="application/json">')[1].split("</script>")[0])
    assert carried["rounds"] == [1, 4, 7, 10]
    assert carried["took"][1] == "".join("01"[client in result.history.used[3]] for client in range(6))
    scores = result.history.scores["after_aggregation", "personal", "test"]
    column, evaluated = carried["columns"]["personal"], scores.rounds + 1
    assert column["rounds"] == [max(e for e in evaluated if e <= n) for n in (4, 7, 10)]
    assert column["values"][-1] == [round(100 * figure, 2) for figure in scores.figure[-1].tolist()]
    assert "4 of the rounds 1 to 10" in page


def test_many_lines_have_a_panel_each() -> None:
    """With the same axes, and all lines behind, which stand on the page once."""
    lines = [Line(f"m{k}", [1, 2], [k, 2 * k]) for k in range(9)]
    one, many = line_chart("Title", lines[:8], "%"), line_chart("Title", lines, "%")
    assert one is not None
    assert many is not None
    assert not one.panels
    assert one.svg.count("<polyline") == 8
    assert [panel.count("<polyline") for panel in many.panels] == [10] + 8 * [1]
    assert [re.findall('aria-label="Title: (m.)', panel) for panel in many.panels] == [
        [f"m{k}"] for k in range(9)
    ]
    assert len({tuple(re.findall(r">([\d.]+)</text>", panel)) for panel in many.panels}) == 1
    (name,) = re.findall('<g id="(.*?)"', "".join(many.panels))
    assert "".join(many.panels).count(f'<use href="#{name}"') == 8
