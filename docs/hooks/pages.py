"""What mkdocs adds to the pages: the reference of options, pages of other folders, more navigation."""

from __future__ import annotations

import base64
import inspect
import json
import logging
import posixpath
import re
from collections.abc import Iterator
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any

from griffe import Extension, Object
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from rayfl import Federation, Training
from rayfl.commands.command_line import Help, Parser, add_class
from rayfl.data import Data, Partition
from rayfl.engine import Engine
from rayfl.evaluation import Protocol
from rayfl.methods import Method
from rayfl.nets import Architecture
from rayfl.sampling import Sampling
from rayfl.settings import Settings
from rayfl.settings.arguments import arguments_of
from rayfl.training import Optimiser, Schedule

ROOT = Path(__file__).parents[2]
ELSEWHERE = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
}
"""Pages of the project that lie outside of docs/, and what they are called on the site."""

EXAMPLES = sorted((ROOT / "docs" / "gallery").glob("*.ipynb"))

PARTS = {
    "Methods": ("method", Method),
    "Data sets": ("data", Data),
    "Partitions": ("data.partition", Partition),
    "Nets": ("net", Architecture),
    "Optimisers": ("training.optimiser", Optimiser),
    "Schedules": ("training.schedule", Schedule),
    "Sampling": ("sampling", Sampling),
    "Engines": ("engine", Engine),
    "Protocols": ("protocol", Protocol),
}
"""Parts of the page of options: heading -> the option that names a class, and the base of these classes."""


# ---- the page of options


def options_page() -> str:
    """Return the page that lists every option with its type, bounds, default and help."""
    lines = [
        "# Options",
        "",
        "This page is made from the classes when the site is built. `rayfl run --help` shows the same.",
        "An option of a class has the name of its part before it: `--method FedProx --method.mu 0.1`.",
        "",
        "## A run",
        "",
        *_table(Federation, "", skip=("training", "cell")),
        "",
        "## Training",
        "",
        *_table(Training, "training."),
    ]
    for heading, (place, base) in PARTS.items():
        lines += ["", f"## {heading}", "", f"`--{place} NAME` chooses one of these."]
        for cls in sorted(_concrete(base), key=lambda each: each.__name__.lower()):
            lines += ["", f"### {cls.__name__} ({place})", "", _first_sentence(cls), ""]
            lines += _table(cls, f"{place}.") if arguments_of(cls) else ["No options."]
    return "\n".join(lines) + "\n"


def _table(cls: type, prefix: str, skip: tuple[str, ...] = ()) -> list[str]:
    """Return a table of the options of a class, in the words of its help."""
    parser = Parser()
    add_class(parser, cls)
    helper = Help(prog="")
    rows = [
        f"| `{prefix}{action.dest}` | {_cell(helper._get_help_string(action))} |"
        for action in parser._actions
        if action.dest in arguments_of(cls).keys() - set(skip)
    ]
    return ["| option | meaning |", "|---|---|", *rows]


def _cell(text: str) -> str:
    for mark in "\\|*_<[":
        text = text.replace(mark, f"\\{mark}")
    text = text.replace("%%", "%").replace(" (None or an object of class Any)", "")
    return " ".join(text.split())


def _concrete(base: type) -> Iterator[type]:
    """Yield rayfl's own classes of a kind."""
    for cls in base.__subclasses__():
        named = cls.__module__.startswith("rayfl.") and not cls.__name__.startswith("_")
        if named and not inspect.isabstract(cls) and cls.__name__ != "FileData":
            yield cls
        yield from _concrete(cls)


def _first_sentence(cls: type) -> str:
    paragraph = inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0]
    return _cell(paragraph.replace("``", "`")).replace("\\_", "_")


class Docstrings(Extension):
    """Gives classes of settings the docstrings that they have in Python: these list their options."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Replace a docstring that was read from the source, and leave out what only Sphinx reads."""
        if not obj.docstring:
            return
        known = getattr(import_module(obj.module.path), obj.name, None) if obj.is_class else None
        if isinstance(known, type) and issubclass(known, Settings):
            obj.docstring.value = str(known.__doc__)
            for name in arguments_of(known):
                obj.members.pop(name, None)
        text = re.sub(r":\w+:`(.*?)`", r"`\1`", obj.docstring.value)  # roles
        obj.docstring.value = re.sub(r"::$", ":", text, flags=re.MULTILINE)  # before code


# ---- the gallery


def notebook_page(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as a page: its texts, its code and what that has shown; and the page's pictures."""
    cells = json.loads(path.read_text())["cells"]
    files = f'<a href="{path.name}" download>Notebook</a>, <a href="{path.stem}.py" download>script</a>'
    parts, pictures, heading = [], {}, ""
    for cell in cells:
        text = "".join(cell["source"])
        if cell is cells[0]:
            text = text.replace("\n", f"\n\n{files}\n", 1)  # below the title
        if cell["cell_type"] == "markdown":
            heading = next(iter(re.findall("^#+ (.*)", text, re.MULTILINE)), heading)
        parts.append(_fenced("python", text) if cell["cell_type"] == "code" else text)
        for output in cell.get("outputs", ()):
            shown = output.get("data", {"text/plain": output.get("text")})
            kind = next(each for each in ("image/png", "text/html", "text/plain") if each in shown)
            content = "".join(shown[kind])
            if kind == "image/png":
                name = f"{path.stem}-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode(content)
                content = f'<img alt="{escape(heading)}: what this code draws" src="{name}">'
            elif kind == "text/html":
                content = _plain_table(content)
            else:
                content = _fenced("{ .text .output }", content)
            parts.append(content)
    return "\n\n".join(parts) + "\n", pictures


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"


def _plain_table(html: str) -> str:
    """Return a table of pandas without its own looks, so that it gets the site's."""
    table = html[html.index("<table") : html.index("</table>")] + "</table>"
    return re.sub(r' (border|class|style)="[^"]*"', "", table)


# ---- links, and pages from other folders


def links_of_the_site(text: str, source: str, page: str, repository: str | None) -> str:
    """Rewrite links of a page that lead out of docs/.

    Args:
        text: Markdown.
        source: the page's place in the project, such as ``docs/data.md``.
        page: its place on the site, such as ``data.md``.
        repository: address of the project's files, if known; without it, files are named and not linked.
    """

    def rewritten(found: re.Match[str]) -> str:
        shown, target, anchor = found["shown"], found["target"], found["anchor"] or ""
        place = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if place == "README.md":
            place = "docs/README.md"
        inside = ELSEWHERE.get(place) or (place.removeprefix("docs/") if place.startswith("docs/") else None)
        if inside and (ROOT / place).is_file():
            return f"{shown}({posixpath.relpath(inside, posixpath.dirname(page) or '.')}{anchor})"
        if repository:
            return f"{shown}({repository.rstrip('/')}/blob/main/{place})"
        return shown.removeprefix("[").removesuffix("]")

    text = re.sub(
        r"(?P<shown>!?\[[^\[\]]*\])\((?P<target>(?!https?:|mailto:|#)[^)#\s]+)(?P<anchor>#[^)\s]*)?\)",
        rewritten,
        text,
    )
    return re.sub(r"(\]\((?!https?:)[^)\s]+)\.ipynb\)", r"\1.md)", text)  # notebooks are pages here


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put pages of howto/ and methods/ that the navigation does not name at the end of their parts."""
    logging.getLogger("mkdocs.plugins.griffe").addFilter(lambda record: "__all__" not in record.getMessage())
    for part, folder in (("How to", "howto"), ("Methods", "methods")):
        pages: list[Any] = next(entry[part] for entry in config.nav or [] if part in entry)
        named = {place for entry in pages for place in entry.values()}
        for path in sorted((ROOT / "docs" / folder).glob("*.md")):
            if (place := f"{folder}/{path.name}") not in named:
                pages.append({path.read_text().partition("\n")[0].lstrip("# "): place})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is not in docs/: the page of options, and pages of the project."""
    files.append(File.generated(config, "reference/options.md", content=options_page()))
    for path in EXAMPLES:
        text, pictures = notebook_page(path)
        for name, content in {f"{path.stem}.md": text, **pictures}.items():
            files.append(File.generated(config, f"gallery/{name}", content=content))
    for source, page in ELSEWHERE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links work on the site as they do beside the code."""
    here = page.file.src_uri
    source = next((s for s, p in ELSEWHERE.items() if p == here), f"docs/{here}")
    return links_of_the_site(markdown, source, here, config.repo_url)
