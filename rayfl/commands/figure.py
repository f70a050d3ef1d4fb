"""``rayfl figure KIND RUN... --save FILE``: draw runs as papers do."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rayfl.commands.command_line import Parser
from rayfl.commands.report import Target, split_names
from rayfl.commands.report import parser as report_parser
from rayfl.errors import BadValue
from rayfl.report.look import Picture, Size
from rayfl.report.plot import Plot
from rayfl.report.plots import ALL, MOST_PANELS
from rayfl.system.error_report import exit_code
from rayfl.system.terminal import Terminal
from rayfl.system.text import print_note

FIGURE_KINDS = {
    "rounds": "the test figure (or loss, or a metric) over rounds, a panel per domain; prints how rough "
    "curves are",
    "sweep": "the test figure over a swept key of the configuration",
    "bars": "bars of the test figure per domain",
    "radar": "a radar of the test figure per data set: an axis per domain, scaled by the best on it",
    "clients": "how the test figure is distributed over clients, and each client's",
    "labels": "training samples per client and class",
}
_HEADLINE = {
    "rounds": ("point", "average"),
    "sweep": ("choose", "view", "point", "average"),
    "bars": ("choose", "point", "average"),
    "radar": ("choose", "view", "point", "average"),
    "clients": ("point",),
}
"""Kind of picture -> the options of the headline that it takes."""

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
    # The options that override the headline are those of rayfl report.
    of_reports = {action.dest: action for action in report_parser()._actions}
    kinds = made.add_subparsers(dest="kind", metavar="KIND", required=True, parser_class=Parser)
    for kind, text in FIGURE_KINDS.items():
        usage = f"rayfl figure {kind} RUN... --save FILE [OPTIONS]"
        one = kinds.add_parser(kind, usage=usage, description=f"Draw {text}.", help=text)
        one.add("runs", nargs="+", metavar="RUN", help="run folders, or folders that hold some")
        one.add("--save", required=True, metavar="FILE", help="the picture to write")
        if kind != "labels":
            one.add(
                "--by",
                default="",
                metavar="KEYS",
                help="keys of the configuration that tell lines apart, such as method,method.mu; by default "
                "all that differ but the seeds",
            )
        if kind in ("rounds", "bars", "clients"):
            one.add(
                "--views",
                default="",
                help="views to draw, such as personal,online,offline; default: that of each run's headline",
            )
        for name in _HEADLINE.get(kind, ()):
            one._add_action(of_reports[name])
        if kind in ("rounds", "sweep", "bars"):
            default = ALL if kind == "sweep" else f"the domains, if they are at most {MOST_PANELS}"
            default += f", and {ALL}" if kind == "bars" else ""
            one.add(
                "--panels",
                default="",
                help=f"domains to show, and {ALL} for all clients together; default: {default}",
            )
        if kind == "rounds":
            one.add("--quantity", default="figure", help="figure, loss, or a recorded metric")
            one.add("--target", kind=Target | None, help="also print when this figure is reached")
        if kind == "sweep":
            one.add("--over", required=True, metavar="KEY", help="the swept key")
        if kind == "bars":
            one.add(
                "--start",
                kind=float,
                default=0.0,
                metavar="PERCENT",
                help="where the axis of figures begins; if it is not 0, the axis says so",
            )
        one.add(
            "--size",
            default="",
            help="column or page, of a paper with two columns, or inches such as 5,3; default: for screens",
        )
        one.add(
            "--names",
            nargs="+",
            default=[],
            metavar="NAME=TEXT",
            help="what to write in the place of names of the legend, of domains or of data sets, such as "
            "FedAvg=Baseline all=average",
        )
        one.add("--title", default="", help="text above the picture")
    return made


def make_picture(o: Any) -> Picture:
    """Return the picture of a command line; print its table of numbers, if it has one."""
    kind, given = o.kind, vars(o)
    look = {"size": _parse_size(o.size), "names": dict(map(_name_and_text, o.names)), "title": o.title}
    headline = {name: given.get(name) for name in ("point", "average", "choose")}
    plot = Plot(*o.runs, by=split_names(given.get("by", "")), **headline)
    views, panels = split_names(given.get("views", "")), split_names(given.get("panels", ""))
    if kind == "sweep":
        return plot.sweep(o.over, o.view, panels or [ALL], **look)
    if kind == "radar":
        return plot.radar(o.view, **look)
    if kind == "rounds":
        drawn = plot.rounds(views, panels, o.quantity, **look)
        table = plot.progress(views, panels, o.target)
        Terminal(width=None if Terminal().is_terminal else 200).print(table)
        return drawn
    if kind == "bars":
        return plot.bars(views, panels, o.start, **look)
    return plot.clients(views, **look) if kind == "clients" else plot.labels(**look)


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
