"""The pages say what is so: their commands, Python code and messages, and the site that is made of them."""

from __future__ import annotations

import ast
import doctest
import inspect
import json
import os
import pydoc
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from runpy import run_path
from types import ModuleType

import pytest

from docs.gallery.__main__ import cells_of
from rayfl import Federation
from rayfl.__main__ import COMMANDS
from rayfl.__main__ import main as rayfl
from rayfl.data import Dataset, EmbeddedDigits
from rayfl.errors import UserError
from rayfl.methods import FedProx
from tests.support.federations import federation_from

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)(?: title=\"([\w./]+)\")?\n(.*?)^```", re.MULTILINE | re.DOTALL)

GALLERY = ROOT / "docs" / "gallery"
EXAMPLES = sorted(path.stem for path in GALLERY.glob("[!_]*.py"))
HOW_TO = sorted((ROOT / "docs" / "howto").glob("*.md"))


def put_modules(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the modules of a page into a folder, which becomes the current one."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    for title, code in blocks(page, "python"):
        if title:
            (folder / title).write_text(code)
            sys.modules.pop(Path(title).stem, None)


def in_order(page: Path) -> list[tuple[str, str, str]]:
    """Return the fenced blocks of a page: the language of each, the file that it is for, and its text."""
    return BLOCK.findall(re.sub(r"^ +(?=```)", "", page.read_text(), flags=re.MULTILINE))


def blocks(page: Path, *languages: str) -> list[tuple[str, str]]:
    """Return the fenced blocks of a page in some languages: the file that each is for, and its text."""
    return [(title, code) for language, title, code in in_order(page) if language in languages]


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the arguments of every command of rayfl on a page, those that run on a cluster too."""
    for _, text in blocks(page, "", "console"):
        yield from commands_of(text)


def commands_of(text: str) -> Iterator[list[str]]:
    """Yield the arguments of every command of rayfl in a block."""
    for line in text.replace("\\\n", " ").splitlines():
        if found := re.search(
            r"(?:^ *\$? *|&& |slurm\.sh )(?:python -m rayfl[. ]|rayfl )([a-z]+(?: .*)?)$", line
        ):
            words = shlex.split(found[1].rstrip("'") if "&& " in line else found[1], comments=True)
            if words[0] in COMMANDS:
                yield words


OF_THE_READER = re.compile(r"--resume|runs/|fedavgm\.")  # a former run, or a module


def check_options(words: list[str]) -> None:
    """Make all of a run but its data; of other commands read the options."""
    command, *options = ["0.1" if word == "R" else word for word in words]
    if command != "run" or any(word.endswith("help") for word in options):
        import_module(COMMANDS[command][0]).parser().read(options)
    elif not OF_THE_READER.search(" ".join(options)):
        federation_from(options)


def test_commands_have_such_options(few_digits, tmp_path, monkeypatch):
    """Commands of how-to pages and of the tutorial run in tests below. Others need data, hours or hosts."""
    for page in HOW_TO:
        put_modules(page, tmp_path, monkeypatch)
    count, wrong = 0, []
    for page in PAGES:
        for words in commands(page):
            count += 1
            try:
                check_options(words)
            except UserError as error:
                wrong.append(f"{page.name}: {shlex.join(words)}: {error}")
    assert wrong == []
    assert count > 60


# ---- README.md


@pytest.fixture
def few_digits(tmp_path, monkeypatch):
    """Every fifth of the digits that come with rayfl; and a folder of one's own."""
    load = EmbeddedDigits.load

    def load_few(data: EmbeddedDigits) -> Dataset:
        whole = load(data)
        arrays = {name: getattr(whole, name)[::5] for name in ("inputs", "labels", "domains", "origin")}
        return replace(whole, **arrays)

    monkeypatch.setattr(EmbeddedDigits, "load", load_few)
    monkeypatch.chdir(tmp_path)
    for name in ("examples", "tune_spaces"):
        (tmp_path / name).symlink_to(ROOT / name)


README = (ROOT / "README.md").read_text()
OF_README = re.findall(r"^rayfl ((?:run|report|figure) (?!--against).*)$", README, re.MULTILINE)


def test_commands_of_the_readme_run_in_their_order(few_digits, tmp_path):
    """All of them, cut short."""
    assert len(OF_README) == 8
    for command in OF_README[:-1]:
        words = shlex.split(command.replace("--engine.actors 2", ""))
        if words[0] == "run":
            words += ["--rounds", "2"] if "--resume" in words else ["--rounds", "1", "--engine", "Inline"]
            words += ["--data.train", "600", "--data.test", "300"] if "Synthetic" in words else []
            words += ["--loggers", "[]"]
        assert rayfl(words) == 0, command
    assert (tmp_path / "rounds.png").exists()


@pytest.mark.slow
def test_the_command_of_the_readme_for_real_data_runs(few_digits):
    if "RAYFL_DATA" not in os.environ:
        pytest.skip("RAYFL_DATA does not name a folder with CIFAR-10")
    words = shlex.split(OF_README[-1].replace("DATA", os.environ["RAYFL_DATA"]))
    assert rayfl([*words, "--rounds", "1", "--engine", "Inline", "--data.verify", "false"]) == 0


def test_the_quickstart_prints_both_methods(few_digits, capsys):
    exec((ROOT / "examples" / "quickstart.py").read_text().replace("rounds=3", "rounds=1"), {})
    said = capsys.readouterr().out
    assert "FedCO2" in said
    assert "handwriting" in said


def test_links_lead_somewhere():
    for page in [*PAGES, *GALLERY.glob("[!_]*.py")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


# ---- how-to pages


def short(words: list[str]) -> list[str]:
    """Return a command of a page cut short."""
    if words[0] == "run" and "--resume" not in words:
        own = [] if "--data" in words else ["--data", "Synthetic", "--data.train", "200", "--data.test", "60"]
        words = [*words, *own, "--loggers", "[]", "--rounds", "1"]
        if "--clients" not in words:
            words += ["--clients", "2"]
    return words


@pytest.mark.parametrize("page", [p for p in HOW_TO if p.stem != "gpu"], ids=lambda page: page.stem)
def test_how_to_pages_run(page, few_digits, tmp_path, monkeypatch):
    """All code, tests too, and the commands that need no data of the reader's, in the order of the page."""
    if page.stem == "metric":
        pytest.importorskip("torchmetrics")
    put_modules(page, tmp_path, monkeypatch)
    for language, title, code in in_order(page):
        if language == "python" and not title:
            found = {"__name__": page.stem}
            exec(compile(code, str(page), "exec"), found)
            for name in [name for name in found if name.startswith("test_")]:
                found[name]()
        for words in commands_of(code) if language in ("", "console") else ():
            text = " ".join(words)
            reads = re.search(
                r"RUN|DATA|--data\.(root|train|x) (?!patients)[a-z\[]", text
            )  # files of the reader's
            words += ["--engine", "Inline"] if "fedavgm.FedAvgM" in words else []
            runs = words[0] in ("report", "figure", "data", "export") or "Inline" in words
            if runs and not reads and "resnet" not in text:
                assert rayfl(short(words)) == 0, text


# ---- other pages

OTHERS = [p for p in PAGES if p not in HOW_TO and p.stem != "tutorial" and blocks(p, "python")]


@pytest.mark.parametrize("page", OTHERS, ids=lambda page: page.stem)
def test_python_of_a_page_runs(page, few_digits, tmp_path, monkeypatch):
    """Every block by itself, as it stands there, in the folder in which those before it ran."""
    put_modules(page, tmp_path, monkeypatch)
    for title, code in blocks(page, "python"):
        if title:
            import_module(Path(title).stem)
        else:
            exec(compile(code, str(page), "exec"), {"__name__": page.stem})


# ---- the tutorial


def masked(line: str) -> str:
    """Return a line without numbers and spaces, which depend on the processor and the time."""
    return re.sub(r"[\d.,:─\s-]+|ETA", "", line)


def test_the_tutorial_prints_what_it_says(few_digits, capsys):
    """With fewer images, rounds and clients; numbers are left out of the comparison."""
    page = ROOT / "docs" / "tutorial.md"
    for _, text in blocks(page, "console"):
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, _, expected = part.partition("\n")
            program, *words = shlex.split(command)
            if program != "rayfl":
                continue
            words = [{"20": "5", "10": "1", "15": "2"}.get(word, word) for word in words]
            assert rayfl([*words, *(["--loggers", "[]"] if words[0] == "run" else [])]) == 0, command
            said = {masked(line) for line in capsys.readouterr().out.splitlines()}
            for line in expected.splitlines():
                assert masked(line) in said | {""}, f"{command} does not print {line!r}, but {said}"
    for _, code in blocks(page, "python"):
        exec(compile(code, "tutorial.md", "exec"), {})


# ---- the gallery

SLOW = {"domains", "paper_table", "published_setting", "sweep"}  # long, or in processes that take all digits
CLAIMS = {
    "export": "scores.argmax(1).tolist() == read.tolist()",
    "first_federation": "longer.complete and len(longer.rounds) == 4",
    "new_clients": "set(test.query('point == \"unseen\"')['client']) == {9, 10, 11}",
    "own_method": "fedavg.figure < 0.7 and min(mixed.figure, local.figure) > 0.8",
    "sweep": "list(points['best']).count(True) == 1",
}
"""Examples -> what must hold at their end, on any machine."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in EXAMPLES]
)
def test_examples_of_the_gallery_run(name, few_digits, monkeypatch):
    """Cell by cell, in one module."""
    monkeypatch.setitem(sys.modules, name, module := ModuleType(name))
    namespace = vars(module)
    for kind, text in cells_of((GALLERY / f"{name}.py").read_text()):
        if kind == "markdown":
            for _, _, block in BLOCK.findall(text + "\n"):
                for words in commands_of(block):
                    check_options(words)
        elif command := re.fullmatch(r"!rayfl (.*) > \w+\.log", text):
            words = shlex.split(command[1])
            # Ray may have come up with GPUs that there are not, for tests before.
            assert rayfl([*words, *["--engine.device", "cpu"][: 2 * (words[0] == "tune")]]) == 0, text
        else:
            exec(compile(text, name, "exec"), namespace)
    assert eval(CLAIMS.get(name, "True"), namespace), CLAIMS[name]


OF_THE_MACHINE = re.compile(
    r"(?<![\w.])[/~]\w+/|\b\d+:\d\d\b|\b\d+ (s|seconds)\b|\x1b|\b0x[\da-f]+|\b\d+\.\d+\.\d+\.\d+\b"
)
"""A path, a time, an escape, an address."""


def test_notebooks_of_the_gallery_are_made_of_its_scripts():
    """With outputs that name nothing of the machine, and small pictures; and the page shows all."""
    page = (GALLERY / "README.md").read_text()
    for name in EXAMPLES:
        cells = json.loads((GALLERY / f"{name}.ipynb").read_text())["cells"]
        made = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
        assert made == [*cells_of((GALLERY / f"{name}.py").read_text())], f"python -m docs.gallery {name}"
        outputs = [output for cell in cells for output in cell.get("outputs", [])]
        assert bool(outputs) == (name != "cluster"), name
        assert f"]({name}.ipynb)" in page
        for output in outputs:
            assert output.get("name", "stdout") == "stdout", (name, output)
            shown = output.get("data", {"text/plain": output.get("text")})
            assert len(shown.pop("image/png", "")) * 3 / 4 < 60_000, name
            for text in shown.values():
                assert OF_THE_MACHINE.findall("".join(text)) == [], (name, text)


# ---- the audit

AUDIT = ROOT / "docs" / "audit.md"


@pytest.mark.parametrize(
    "text", [pytest.param(t, id=str(i)) for i, (_, t) in enumerate(blocks(AUDIT, "console"))]
)
def test_the_audit_prints_what_it_says(text, tmp_path, monkeypatch, capsys):
    """Line by line; numbers may differ in the last digits, and by more where they are rounding."""
    command, expected = re.fullmatch(r"\$ (python -c '\n.*?\n'|.*?)\n(.*)", text, re.DOTALL).groups()
    _, *words = shlex.split(command)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", words)
    if words[0] == "-c":
        exec(compile(words[1], "audit.md", "exec"), {"__name__": "__main__"})
    else:
        with pytest.raises(SystemExit, match="0"):
            run_path(str(ROOT / words[0]), run_name="__main__")
    said = [(masked(line), numbers(line)) for line in capsys.readouterr().out.splitlines()]
    for line in expected.splitlines():
        near = pytest.approx(numbers(line), rel=0.2, abs=1e-12)
        assert any(mask == masked(line) and found == near for mask, found in said), f"{line!r}: {said}"


def numbers(line: str) -> list[float]:
    """Return the numbers of a line."""
    return [float(number) for number in re.findall(r"-?\b\d+(?:\.\d+)?(?:e[+-]\d+)?\b", line)]


# ---- messages


def text_of(node: ast.expr) -> str:
    """Return a text of the source, with \\0 for each value."""
    pieces = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(str(p.value) if isinstance(p, ast.Constant) else "\0" for p in pieces)


def texts_of(folder: Path) -> str:
    """Return all texts of the source."""
    found = []
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr | ast.Constant):
                found.append(text_of(node))
            elif isinstance(node, ast.Call) and 2 <= len(node.args) <= 3:  # an error
                found.append(str(UserError(*map(text_of, node.args))))
    return "\1".join(found)


def test_messages_on_the_page_are_those_of_the_code():
    page = (ROOT / "docs" / "faq.md").read_text()
    messages = re.findall(r"^\*\*(.+?)\*\* ", page, re.MULTILINE)
    assert len(messages) >= 25
    source = texts_of(ROOT / "rayfl")
    for message in messages:
        for part in filter(None, (part.strip(" :") for part in message.split("..."))):
            assert part in source, f"no message has {part!r}"


def test_tables_end_with_a_blank_line():
    """Without it the next paragraph would be shown as one more row."""
    for page in PAGES:
        text = BLOCK.sub("", page.read_text())
        assert not re.search(r"^\|.*\|\n(?!\|).+", text, re.MULTILINE), page


# ---- the site


@pytest.mark.slow  # `make test` builds it, too
def test_the_site_is_built(tmp_path):
    """Without a warning, with all options, outputs of examples, and nothing from another host."""
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(build, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    options = (tmp_path / "reference" / "options.html").read_text()
    for option in ("participation", "training.lr", "method.mu", "data.partition.alpha", "engine.actors"):
        assert f"<code>{option}</code>" in options, option
    reference = (tmp_path / "reference" / "python.html").read_text()
    assert reference.count("Share of the clients sampled in a round.") == 1
    assert re.findall(r":(?:class|func|meth|mod|attr):|::\n", reference) == []
    example = (tmp_path / "gallery" / "first_federation.html").read_text()
    assert re.search(r"FedRep 0\.\d\d, FedAvg 0\.\d\d", example)
    assert re.search(r'<img alt="Draw it: [^"]*" src="first_federation-1.png"', example)
    assert (tmp_path / "search" / "search_index.js").exists()  # with it one can search from the disk
    elsewhere = re.compile(r"<(script|img)[^>]* src=\"https?:|<link[^>]* rel=\"stylesheet\"[^>]*https?:")
    assert [page.name for page in tmp_path.rglob("*.html") if elsewhere.search(page.read_text())] == []


# ---- docstrings

EXAMPLES_OF_CLASSES = [path for path in (ROOT / "rayfl").rglob("*.py") if ">>> " in path.read_text()]


def test_examples_of_docstrings_run(tmp_path, monkeypatch):
    """In an order in which that of ``Federation`` is first: others read its run."""
    monkeypatch.chdir(tmp_path)
    for path in sorted(EXAMPLES_OF_CLASSES, key=lambda path: (path.stem != "federation", path)):
        module = import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        failed, tried = doctest.testmod(module, globs={}, optionflags=doctest.ELLIPSIS)
        assert tried, path
        assert not failed, path
    options = inspect.getdoc(Federation) or ""
    assert "\n    rounds: Number of rounds. (a whole number; at least 1; default: 20)\n" in options
    assert "\n    mu: " in pydoc.render_doc(FedProx).replace(" |  ", "")  # an ABC


def parameters(node: ast.FunctionDef | ast.ClassDef) -> set[str]:
    """What a function takes, or a class: by its ``__init__``, or as fields."""
    if isinstance(node, ast.ClassDef):
        fields = {each.target.id for each in node.body if isinstance(each, ast.AnnAssign)}
        inits = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
        return fields.union(*map(parameters, inits))
    return {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}


def undocumented(node: ast.AST) -> set[str]:
    """What the docstring of a function or a class says of parameters that there are not."""
    if not isinstance(node, ast.FunctionDef | ast.ClassDef) or not parameters(node):
        return set()
    _, _, described = (ast.get_docstring(node) or "").partition("\nArgs:\n")
    described = re.split(r"^\S", described, maxsplit=1, flags=re.M)[0]
    return set(re.findall(r"^ {4}\*{0,2}(\w+):", described, re.M)) - parameters(node)


def test_docstrings_name_parameters_that_there_are():
    nodes = (
        (path, node)
        for path in (ROOT / "rayfl").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
    )
    assert [f"{path.name}: {node.name}: {odd}" for path, node in nodes if (odd := undocumented(node))] == []
