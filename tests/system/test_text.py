"""Names from strangers are text on a terminal, in Markdown and in pictures, and nothing acts on them."""

import ast
import csv
import json
import logging
import unicodedata
from contextlib import nullcontext
from dataclasses import replace
from html import escape as of_html
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import pytest
import yaml
from markdown_it import MarkdownIt
from matplotlib.figure import Figure
from rich.table import Table as Grid
from rich.text import Text

from rayfl import Result
from rayfl.callbacks.terminal import print_start
from rayfl.commands import figure, report
from rayfl.errors import BadValue, Damaged, UserError
from rayfl.jobs.table_file import Table
from rayfl.report.compare import group_runs, labels
from rayfl.report.formats import markdown_text
from rayfl.report.look import drawn, save
from rayfl.report.paper_tables import Entry, grid, write_tables
from rayfl.system import error_report
from rayfl.system.error_report import exit_code
from rayfl.system.terminal import Terminal
from rayfl.system.text import (
    closest_name,
    complain,
    counted,
    csv_cell,
    did_you_mean,
    escape_hidden,
    escape_latex,
    one_line,
    print_note,
)
from rayfl.system.text import escape_markdown as escaped
from rayfl.tune.outcome import BestPoints, PointResult, write_all, write_best
from rayfl.tune.space import Dimension, SearchPoint, Space
from tests.support.records import write_run
from tests.support.refusals import refused

ROOT = Path(__file__).parents[2]

UNWRITABLE = "no Unicode"
"""What such names are in is refused when it is read: no file in UTF-8 could tell of them."""
NAMES = {
    "colour": "a\x1b[31mb",
    "link": "a\x1b]8;;http://x\x1b\\b\x1b]8;;\x1b\\",
    "control by one character": "a\x9b31mb\x9d",
    "over what was there": "a\rb\x08\x08",
    "a line of its own": "a\nrayfl: error: b\n# c",
    "another line": "a\u2028b\u2029c\x85d\x0be\x0cf",
    "writing direction": "a\u202eb\u2066c\u200fd",
    "not seen": "a\u200bb\ufeffc\xadd",
    "NUL and delete": "a\0b\x7f",
    UNWRITABLE: "a\udcffb",
    "rich's markup": "a[red]b[/red][link=http://x]c[/link]",
    "emoji code": "a:bomb:b",
    "HTML": "a<script>b</script><img src=x onerror=y>&lt;",
    "Markdown": "a[b](http://x)![c](http://y)*d*_e_`f`~~g~~\\",
    "cell": "a|b||c",
    "formula": "a$x^2$b$\\frac{1}{0}$",
    "money": "$5 \\$6",
}
"""What folders, rows, classes and domains may be called."""

EVERY = pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)


def steering(text: str) -> set[str]:
    """Return the characters of a text that are no ink, but for line ends."""
    return {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c != "\n"}


@EVERY
def test_what_is_escaped_is_printable_and_stays_so(name: str) -> None:
    assert one_line(name).isprintable()
    assert one_line(one_line(name)) == one_line(name)
    assert steering(escape_hidden(name)) == set()
    assert escape_hidden(name).count("\n") == name.count("\n")


def test_an_escape_says_what_was_there_and_ordinary_names_stay_as_they_are() -> None:
    for text, shown in (("\x1b", r"\x1b"), ("\u202e", r"\u202e"), ("\n", r"\n"), ("\udcff", r"\udcff")):
        assert one_line(f"a{text}b") == f"a{shown}b"
    for name in ("", "数据", "a b", "می\u200cخواهم", "👩\u200d🔬", "x ± y"):
        assert one_line(name) == escape_hidden(name) == name
    assert escape_hidden("a\tb") == "a\tb"


@EVERY
def test_errors_and_warnings(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_file() -> None:
        raise FileNotFoundError(2, "No such file", name)

    def of_user() -> None:
        logging.getLogger("rayfl.somewhere").warning("the folder %s is odd", name)
        raise UserError(f"the folder {name} is missing")

    # What pytest catches of logs it sends from process to process, which it cannot where it is no Unicode.
    monkeypatch.setattr(logging.getLogger("rayfl"), "propagate", False)
    assert exit_code(of_file) == exit_code(of_user) == 2
    complain(f"warning: {name}")
    print_note(name)
    out, err = capsys.readouterr()
    assert steering(out + err) == set()
    own = ("rayfl: error: a", "rayfl: error: the folder", "rayfl: error: $", "warning: ")
    assert all(line.startswith((*own, "  ")) or not line for line in err.splitlines())


@EVERY
@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_rich_prints(name: str, is_terminal: bool) -> None:
    out = StringIO()
    console = Terminal(file=out, force_terminal=is_terminal, color_system=None, width=200)
    grid = Grid(title=name, caption=name)
    grid.add_column(name)
    grid.add_row(name)
    for thing in (name, Text(name), grid, Text.assemble((name, "bold"))):
        console.print(thing)
    console.print(name, soft_wrap=True)
    assert steering(out.getvalue()) == set()
    kept = "".join(c for c in name.splitlines()[0] if not steering(c))
    assert out.getvalue().count(kept) >= 6  # markup and codes of emoji, too


def test_the_header_of_a_run_has_a_line_for_each_fact() -> None:
    for name in NAMES.values():
        out = StringIO()
        print_start({"a": name, "b": name}, Terminal(file=out, width=20))
        assert out.getvalue().splitlines() == [f"a  {one_line(name)}", f"b  {one_line(name)}"]


@EVERY
def test_tables_in_markdown_show_names_as_they_are(name: str) -> None:
    said = one_line(name).strip()
    entry = Entry(said, said, 1.0, None, "", [0])
    html = (
        MarkdownIt("commonmark")
        .enable(["table", "strikethrough"])
        .render(markdown_text(grid([entry, replace(entry, column="c")], name), [f"with {name}"]))
    )
    tree = ElementTree.fromstring(f"<all>{html}</all>")
    tags = {e.tag for e in tree.iter()}
    assert tags <= {"all", "h1", "table", "thead", "tbody", "tr", "th", "td", "ul", "li"}
    assert "".join(tree.find("h1").itertext()) == said  # type: ignore[union-attr]
    cells = ["".join(e.itertext()) for e in tree.iter() if e.tag in ("th", "td")]
    assert cells == ["", said, "c", said, "1.00", "1.00"]
    assert f"with {said}" in ["".join(e.itertext()) for e in tree.iter("li")]


def test_a_picture_shows_a_name_letter_by_letter(tmp_path: Path) -> None:
    made = Figure()
    for name in NAMES.values():
        made.text(0, 0, drawn(f"so {name}"))
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        save(made, tmp_path / "x.svg")
    text = "".join(ElementTree.parse(tmp_path / "x.svg").getroot().itertext())
    for name in NAMES.values():
        assert all(line.strip() in text for line in escape_hidden(f"so {name}").splitlines())


def test_no_picture_starts_latex(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a ``matplotlibrc`` that asks for it, as one in the current folder may, and a ``latex`` of ours."""
    mark, program = tmp_path / "ran", tmp_path / "latex"
    program.write_text(f"#!/bin/sh\n/usr/bin/touch {mark} || /bin/touch {mark}\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("matplotlib.texmanager.TexManager._cache_dir", tmp_path / "cache")
    monkeypatch.setitem(matplotlib.rcParams, "text.usetex", True)
    run = write_run(tmp_path / "run", rounds=2)
    assert figure.main(["bars", str(run), "--save", str(tmp_path / "x.png")]) == 0
    assert not mark.exists()
    made = Figure()
    made.suptitle("x")
    with pytest.raises(RuntimeError, match="latex"):
        made.savefig(tmp_path / "y.png")
    assert mark.exists()  # so this is how it would show


def drawn_text(path: Path, kind: str, *arguments: str) -> str:
    """Draw a picture and return all text in it."""
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        assert figure.main([kind, *arguments, "--save", str(path)]) == 0
    return "".join(ElementTree.parse(path).getroot().itertext())


def test_strangers_run_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    names = [name for key, name in NAMES.items() if key != UNWRITABLE]
    for number, name in enumerate(names):
        run = write_run(tmp_path / "runs" / str(number), rounds=2, domains=("ink", name))
        config = yaml.safe_load((run / "config.yaml").read_text())
        config |= {"net": name, name: name}
        config["data"]["init_args"][name] = name
        cell = {"table": "fedco2_t3", "row": name, "column": "10 clients, α = 0.3", "changed": [f"x={name}"]}
        config["cell"] = cell
        (run / "config.yaml").write_text(yaml.safe_dump(config, allow_unicode=False))
    loaded = [Result.load(folder) for folder in (tmp_path / "runs").iterdir()]
    headings, cells = labels(group_runs(loaded))
    assert all(text.isprintable() for text in [*headings, *chain(*cells)])
    runs = str(tmp_path / "runs")
    for arguments in ([], ["--by", "net"], ["--against", "fedco2", "t3"]):
        assert report.main([runs, *arguments]) == 0
    for kind in ("bars", "rounds"):
        text = drawn_text(tmp_path / f"{kind}.svg", kind, runs, "--by", "net", "--panels", "ink")
        assert all(one_line(name).strip() in text for name in names)
    out, err = capsys.readouterr()
    assert steering(out + err) == set()
    assert not any(line.strip().startswith("rayfl: error") for line in (out + err).splitlines())
    for name in NAMES.values():
        assert report.main([runs, "--view", name]) == 2
        assert steering(capsys.readouterr().err) == set()


def test_names_in_table_files(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    content: dict[str, Any] = {"table": "t", "columns": {"c": {}}, "rows": {"r": {"method": "FedAvg"}}}
    for key, name in NAMES.items():
        file.write_text(yaml.safe_dump(content | {"title": f" {name}\n"}, allow_unicode=False))
        with refused(Damaged, file) if key == UNWRITABLE else nullcontext():
            assert Table.load(file).title.isprintable()
        for changed in ({"table": name}, {"columns": {name: {}}}, {"rows": {name: {"method": "FedAvg"}}}):
            file.write_text(yaml.safe_dump(content | changed, allow_unicode=False))
            kind = Damaged if key == UNWRITABLE else BadValue
            with nullcontext() if name.isprintable() else refused(kind, file):
                Table.load(file)


def test_a_space_and_its_best_point(tmp_path: Path) -> None:
    """A value with a line end neither leaves the comment of ``best.yaml`` nor its line on the terminal."""
    trap = "FedAvg\nrows: {stolen: {method: os.system}}\n\x1b[2J"
    file = tmp_path / "s.yaml"
    content = {
        "sweep": "s",
        "title": trap,
        "base": {"rounds": 1},
        "search": {"x": {"grid_search": {trap: {}, "b": {}}}},
    }
    file.write_text(yaml.safe_dump(content))
    space = Space.load(file)
    assert space.title.isprintable()
    cell = {"table": "s", "row": trap, "column": "base", "changed": []}
    point = SearchPoint(trap, {}, {"method": "FedAvg", "cell": cell}, 1)
    write_best(space, PointResult(point, [0], [0.5], [0.5], 1), "s", "1", tmp_path / "best.yaml")
    written = (tmp_path / "best.yaml").read_text()
    assert steering(written) == set()
    assert yaml.safe_load(written)["rows"] == {"FedAvg": {"method": "FedAvg"}}
    assert Table.load(tmp_path / "best.yaml").rows.keys() == {"FedAvg"}


def test_no_cell_of_a_csv_file_is_a_formula() -> None:
    for text in ("=1+1", "+A1", "-A1", "@SUM(A1)", " =1"):
        assert csv_cell(text) == "'" + text
    for same in ("FedAvg", "a=1", "-0.5", "+1e3", "-inf", "", -0.5, None):
        assert csv_cell(same) == same


def test_formulas_in_names_are_texts_in_csv_files(tmp_path: Path) -> None:
    trap = "=HYPERLINK(1)"
    write_tables([Entry(trap, "-c", -1.0, None, "", [0])], "t", tmp_path, "FedAvg")
    with (tmp_path / "table.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["row"], row["column"], row["mean"]) == ("'" + trap, "'-c", "-1.0")
    assert json.loads((tmp_path / "table.json").read_text())["cells"][0]["row"] == trap
    point = SearchPoint(trap, {trap: trap, "mu": -1}, {"method": "FedAvg"}, 1)
    space = Space(sweep="s", base={}, search=((Dimension("mu", "choice", (-1,)),),))
    write_all(space, [PointResult(point, [0], [0.5], [0.5], 1)], BestPoints(), tmp_path)
    assert (tmp_path / "points.csv").read_text().splitlines()[0].startswith(f"'{trap},mu,")
    with (tmp_path / "points.csv").open() as file:
        assert next(csv.DictReader(file))["'" + trap] == "'" + trap


def test_numbers_of_things() -> None:
    assert [counted(n, "round") for n in (0, 1, 2_000, 0.5)] == [
        "0 rounds",
        "1 round",
        "2,000 rounds",
        "0.5 rounds",
    ]


def test_the_closest_name() -> None:
    assert closest_name("agregate", ["scores", "aggregate"]) == "aggregate"
    assert closest_name("total", ["scores", "aggregate"]) is None
    assert closest_name("score", ["scores"], alike=0.95) is None
    assert did_you_mean("Join-Ratio", ["clients", "participation"], "--") == "; did you mean --participation?"
    assert did_you_mean("join_ratio", ["clients"]) == "."
    assert did_you_mean("learning_rate", ["lr"]) == "; did you mean lr?"


@EVERY
def test_written_tables(tmp_path: Path, name: str) -> None:
    shown = one_line(name)
    write_tables([Entry(shown, shown, 1.0, None, "", [0])], shown, tmp_path, shown)
    with (tmp_path / "table.csv").open() as file:
        assert [row["row"] for row in csv.DictReader(file)] == [shown]
    texts = {path.suffix: path.read_text() for path in tmp_path.glob("table.*")}
    assert len(texts) == 5
    assert steering("".join(texts.values()).replace("\r\n", "\n")) == set()
    assert "<script" not in texts[".md"] + texts[".html"]
    assert of_html(shown) in texts[".html"]
    assert escape_latex(name) in texts[".tex"]
    assert escaped(name) in texts[".md"]


OUTLETS = {"print": "text.py", "Console": "terminal.py", "savefig": "look.py"}


def shows(node: ast.AST, file: str) -> bool:
    """Whether a call shows something that is not a text of the source, and not by a console's method."""
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func).rpartition(".")[2]
    if name == "print" and (
        isinstance(node.func, ast.Attribute) or not node.args or isinstance(node.args[0], ast.Constant)
    ):
        return False
    return OUTLETS.get(name, file) != file


def test_all_that_is_shown_goes_through_one_place() -> None:
    paths = [path for folder in ("rayfl", "examples") for path in (ROOT / folder).rglob("*.py")]
    found = [
        f"{path}:{node.lineno}"
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if path.name != "quickstart.py" and shows(node, path.name)
    ]
    assert found == []
    assert len(paths) > 100
    assert error_report.complain is complain
