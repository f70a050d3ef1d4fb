"""The pages say what is so: their commands, Python code and messages, and the site that is made of them."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from runpy import run_path

import pytest

from rayfl.__main__ import COMMANDS
from rayfl.__main__ import main as rayfl
from rayfl.errors import UserError
from tests.support.federations import federation_from

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)(?: title=\"([\w./]+)\")?\n(.*?)^```", re.MULTILINE | re.DOTALL)

HOW_TO = sorted((ROOT / "docs" / "howto").glob("*.md"))


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


ALL = [pytest.param(words, id=f"{page.stem}-{i}") for page in PAGES for i, words in enumerate(commands(page))]


@pytest.mark.parametrize("words", ALL)
def test_commands_have_such_options(words, tmp_path, monkeypatch):
    """Of a run all is made but its data; of other commands the options are read.

    Commands of how-to pages and of the tutorial run in tests below. What is left needs data, hours or hosts.
    """
    for name in ("examples", "tune_spaces"):
        (tmp_path / name).symlink_to(ROOT / name)
    for page in HOW_TO:
        for title, code in blocks(page, "python"):
            if title:
                (tmp_path / title).write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["0.1" if word == "R" else word for word in words]
    command, *options = words
    if command == "run" and not any(word.endswith("help") for word in options):
        of_a_former_run = {"--resume"} & {*options} or any("runs/" in each for each in options)
        own = any("fedavgm." in each for each in options)
        if not of_a_former_run and not own:
            federation_from(options)
    elif command in ("table", "tune"):  # which take the options of a run, too
        import_module(COMMANDS[command][0]).parser().read(options)
    else:
        import_module(COMMANDS[command][0]).parser().read(options)


def test_there_are_commands_on_the_pages():
    assert len(ALL) > 60


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
def test_how_to_pages_run(page, tmp_path, monkeypatch):
    """All code and the commands that need no data of the reader's, in the order of the page."""
    if page.stem == "metric":
        pytest.importorskip("torchmetrics")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for title, code in blocks(page, "python"):
        if title:
            (tmp_path / title).write_text(code)
            sys.modules.pop(Path(title).stem, None)
    for language, title, code in in_order(page):
        if language == "python" and not title:
            exec(compile(code, str(page), "exec"), {"__name__": page.stem})
        for words in commands_of(code) if language in ("", "console") else ():
            text = " ".join(words)
            reads = re.search(r"RUN|DATA|--data\.(root|train|x) [a-z\[]", text)  # files of the reader's
            runs = words[0] in ("report", "figure", "data", "export") or "Inline" in words
            if runs and not reads and "resnet" not in text:
                assert rayfl(short(words)) == 0, text


# ---- other pages

OTHERS = [p for p in PAGES if p not in HOW_TO and p.stem != "tutorial" and blocks(p, "python")]


@pytest.mark.parametrize("page", OTHERS, ids=lambda page: page.stem)
def test_python_of_a_page_runs(page, tmp_path, monkeypatch):
    """Every block by itself, as it stands there, in the folder in which those before it ran."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for title, code in blocks(page, "python"):
        if title:
            (tmp_path / title).write_text(code)
            sys.modules.pop(Path(title).stem, None)
            import_module(Path(title).stem)
        else:
            exec(compile(code, str(page), "exec"), {"__name__": page.stem})


# ---- the tutorial


def masked(line: str) -> str:
    """Return a line without numbers and spaces, which depend on the processor and the time."""
    return re.sub(r"[\d.,:─\s-]+|ETA", "", line)


def test_the_tutorial_prints_what_it_says(tmp_path, monkeypatch, capsys):
    """In fewer rounds, with fewer clients; numbers are left out of the comparison."""
    monkeypatch.chdir(tmp_path)
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
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
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


def test_the_site_is_built(tmp_path):
    """Without a warning, and without anything from another host."""
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mkdocs",
            "build",
            "--strict",
            "--quiet",
            "--site-dir",
            str(tmp_path / "site"),
        ],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    options = (tmp_path / "site" / "reference" / "options.html").read_text()
    for option in ("participation", "training.lr", "method.mu", "data.partition.alpha", "engine.actors"):
        assert f"<code>{option}</code>" in options, option
    for page in (tmp_path / "site").rglob("*.html"):
        text = page.read_text()
        assert not re.search(
            r"<(script|img)[^>]* src=\"https?:|<link[^>]* rel=\"stylesheet\"[^>]*https?:", text
        )


def parameters(node: ast.FunctionDef | ast.ClassDef) -> set[str]:
    """What a function takes, or a class: by its ``__init__``, or as fields."""
    if isinstance(node, ast.ClassDef):
        fields = {each.target.id for each in node.body if isinstance(each, ast.AnnAssign)}
        inits = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
        return fields.union(*map(parameters, inits))
    arguments = node.args
    every = [
        *arguments.posonlyargs,
        *arguments.args,
        *arguments.kwonlyargs,
        arguments.vararg,
        arguments.kwarg,
    ]
    return {each.arg for each in every if each}


@pytest.mark.parametrize("path", sorted((ROOT / "rayfl").rglob("*.py")), ids=lambda path: path.stem)
def test_docstrings_name_parameters_that_there_are(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or not parameters(node):
            continue
        _, _, described = (ast.get_docstring(node) or "").partition("\nArgs:\n")
        described = re.split(r"^\S", described, maxsplit=1, flags=re.M)[0]
        names = set(re.findall(r"^ {4}\*{0,2}(\w+):", described, re.M))
        assert names <= parameters(node), f"{path.name}:{node.lineno}: {node.name}"
