"""``rayfl figure KIND RUN... --save FILE``: draw runs as papers do."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

from rayfl.commands.command_line import Parser, parser_of_function
from rayfl.commands.report import parser as report_parser
from rayfl.commands.report import split_names
from rayfl.errors import BadValue
from rayfl.report.look import Picture, Size
from rayfl.report.plot import Plot
from rayfl.system.error_report import exit_code
from rayfl.system.terminal import Terminal
from rayfl.system.text import print_note

_OF_RUNS = {
    "rounds": ("by", "point", "average", "target"),
    "sweep": ("by", "choose", "point", "average"),
    "bars": ("by", "choose", "point", "average"),
    "radar": ("by", "choose", "point", "average"),
    "clients": ("by", "point"),
    "labels": (),
}
"""Kind of picture, which is a method of ``Plot`` -> the options of ``rayfl report`` that it takes, too."""

PICTURE_ENDINGS = (".png", ".pdf", ".svg")
"""Endings of picture files, which choose the format."""


def parser() -> Parser:
    """Return the parser of the command line, with a subcommand for every kind of picture."""
    made = Parser(
        prog="rayfl figure",
        usage="rayfl figure KIND RUN... --save FILE [OPTIONS]",
        description="Draw a picture of runs: PNG, PDF or SVG, by the file's ending. Figures are those of "
        "each run's protocol; lines and bars are means over seeds, with one sample standard deviation.",
    )
    of_reports = {action.dest: action for action in report_parser()._actions}
    named = {"runs": "RUN", "save": "FILE", "names": "NAME=TEXT"}
    common = parser_of_function(PictureOptions, named, add_help=False)
    kinds = made.add_subparsers(dest="kind", metavar="KIND", required=True, parser_class=Parser)
    for kind, taken in _OF_RUNS.items():
        own = parser_of_function(getattr(Plot, kind), {"over": "KEY", "start": "FIGURE"}, add_help=False)
        usage, text = f"rayfl figure {kind} RUN... --save FILE [OPTIONS]", str(own.description)
        one = kinds.add_parser(kind, usage=usage, description=text, help=text.partition(".")[0])
        for action in [*common._actions, *(of_reports[name] for name in taken), *own._actions]:
            one._add_action(action)
    return made


@dataclass
class PictureOptions:
    """The options of all pictures.

    Args:
        runs: run folders, or folders that hold some.
        save: the picture to write.
        size: column or page, of a paper with two columns, or inches such as 5,3; default: for screens.
        names: what to write in the place of names of the legend, of domains or of data sets, such as
            FedAvg=Baseline all=average.
        title: text above the picture.
    """

    runs: Sequence[str]
    save: str = field(kw_only=True)
    size: str = ""
    names: Sequence[str] = ()
    title: str = ""


def make_picture(o: Any) -> Picture:
    """Return the picture of a command line; print its table of numbers, if it has one."""
    given = vars(o)
    look = {"size": _parse_size(o.size), "names": dict(map(_name_and_text, o.names)), "title": o.title}
    headline = {name: given.get(name) for name in ("point", "average", "choose")}
    plot = Plot(*o.runs, by=split_names(given.get("by", "")), **headline)
    draw = getattr(plot, o.kind)
    options = {name: given[name] for name in signature(draw).parameters if name in given}
    for name in options.keys() & {"views", "panels"}:
        options[name] = split_names(",".join(options[name]))
    drawn: Picture = draw(**options, **look)
    if o.kind == "rounds":
        table = plot.progress(options["views"], options["panels"], o.target)
        Terminal(width=None if Terminal().is_terminal else 200).print(table)
    return drawn


def picture_path(save: str) -> Path:
    """Return the path of a picture; refuse one whose ending names no format."""
    path = Path(save).expanduser()
    if path.suffix.lower() not in PICTURE_ENDINGS:
        known = f"{', '.join(PICTURE_ENDINGS[:-1])} or {PICTURE_ENDINGS[-1]}"
        raise BadValue("--save", path, f"its name must end in {known}")
    return path


def _parse_size(text: str) -> Size:
    """Parse ``--size``: a name, or inches."""
    try:
        return [float(x) for x in text.split(",")] if "," in text else text or None
    except ValueError:
        raise BadValue("--size", text, "it must be column, page, or inches such as 5,3") from None


def _name_and_text(text: str) -> tuple[str, str]:
    name, found, shown = text.rpartition("=")
    if not found:
        raise BadValue("--names", text, "it must be NAME=TEXT, such as FedAvg=Baseline")
    return name, shown


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 2 after an error of the user's."""

    def draw_picture() -> None:
        options = parser().read(arguments)
        path = picture_path(options.save)
        make_picture(options).save(path)
        print_note(path)

    return exit_code(draw_picture)
