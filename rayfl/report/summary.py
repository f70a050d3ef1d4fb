"""A run's summary as tables and sentences."""

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rayfl.data.task import ACCURACY, Figure
from rayfl.evaluation.protocol import CHOSEN_ON_TEST
from rayfl.report.text import AVERAGE_NAMES, as_text, choice_headings, mean_and_std, number, plain_table, size
from rayfl.system.terminal import Terminal
from rayfl.system.text import counted, one_line


def final_table(summary: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the figures of a run, as ``summary.json`` holds them, shares in per cent.

    First comes a table per evaluation point, with a row per view and average and a column per choice of
    rounds; then the same per domain for the headline's view; then the headline.
    """
    console = console or Terminal()
    views = summary["views"]
    if not views:
        console.print("No evaluation took place.")
    for point in dict.fromkeys(entry["point"] for entry in views):
        console.print(_view_table(summary, point))
    headline = summary["headline"]
    if headline is not None:
        shown = next(v for v in views if (v["point"], v["view"]) == (headline["point"], headline["view"]))
        if len(shown["last"]["domains"]) > 1:
            console.print(_domain_table(summary, shown))
    for line in sentences(summary):
        console.print(Text(line), soft_wrap=True)


def figure_kind(summary: Mapping[str, Any]) -> Figure:
    """Return the figure of a run by its summary."""
    return Figure(**found) if (found := summary.get("figure")) else ACCURACY


def _choice_headings(summary: Mapping[str, Any], entries: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the choices of rounds of a summary, and their headings of two lines, above some of its views."""
    window = min(summary["length"], summary["completed"])
    further = {"window": f"mean of\nlast {window}", "best_test": CHOSEN_ON_TEST.replace(" on ", " on\n")}
    headings = choice_headings(entries) | further
    return {choice: heading for choice, heading in headings.items() if choice in summary["views"][0]}


def _view_table(summary: Mapping[str, Any], point: str) -> Table:
    kind = figure_kind(summary)
    title = f"Test {kind.title}, {as_text(point)}"
    entries = [v for v in summary["views"] if v["point"] == point]
    choices = _choice_headings(summary, entries)
    table = plain_table(title, ["view", "average"], choices.values(), no_wrap=True)
    names = {"mean": "mean over clients", "pooled": "pooled", "worst_decile": "worst decile"}
    for heading, chosen in (row for entry in entries for row in view_metrics(entry, choices)):
        if table.row_count:
            table.add_section()
        for name, text in names.items():
            cells = [kind.shown(found[name] if found else None) for found in chosen]
            table.add_row(heading if name == "mean" else "", text, *cells)
    return table


def view_metrics(entry: Mapping[str, Any], choices: Iterable[str]) -> list[tuple[str, list[Any]]]:
    """Return a heading with a view's metrics by choice of rounds, and one for a common test set, if any.

    Args:
        entry: a view in a summary.
        choices: of rounds.
    """
    own = [entry[choice] for choice in choices]
    common = [found and found.get("common") for found in own]
    return [(entry["view"], own), *([(f"{entry['view']} (G)", common)] if any(common) else [])]


def _domain_table(summary: Mapping[str, Any], entry: Mapping[str, Any]) -> Table:
    kind = figure_kind(summary)
    title = f"Test {kind.title} per domain, {entry['view']}, mean over clients"
    choices = _choice_headings(summary, [entry])
    table = plain_table(title, ["domain", "clients"], choices.values(), no_wrap=True)
    chosen = [entry[choice]["domains"] if entry[choice] else {} for choice in choices]
    names, means = entry["last"]["domains"], list[list[float | None]]()
    for name, domain in names.items():
        means.append([found[name]["mean"] if found else None for found in chosen])
        table.add_row(name, str(domain["clients"]), *map(kind.shown, means[-1]))
    table.add_section()
    over_domains = (mean_and_std([value for value in own if value is not None])[0] for own in zip(*means))
    table.add_row("mean of domains", "", *map(kind.shown, over_domains))
    return table


def sentences(summary: Mapping[str, Any]) -> list[str]:
    """Return the headline of a run and the notes on its numbers, one sentence per line."""
    lines = []
    headline = summary["headline"]
    if headline is None:
        lines.append(f"Protocol {summary['protocol']}: n/a, no score that it counts.")
    else:
        kind = figure_kind(summary)
        what = "" if kind == ACCURACY else f"{kind.name} "
        value = f"{what}{kind.shown(headline['figure'], headline['std'])}{kind.unit}"
        lines.append(f"Protocol {summary['protocol']}: {value}, {headline_source(headline)}.")
        if common := headline.get("common"):
            p, g = (
                f"{kind.shown(each['figure'], each['std'])}{kind.unit}, {counted(each['clients'], 'client')}"
                for each in (headline, common)
            )
            lines.append(f"Own test data (P): {p}; common test set (G): {g}.")
        if measures := headline.get("measures"):
            found = (f"{one_line(name)} {number(value, None, 4)}" for name, value in measures.items())
            lines.append(f"Further metrics there: {', '.join(found)}.")
        if headline["left_out"]:
            which = "P" if common and not common["left_out"] else "it"
            lines.append(f"Clients without data or score there, left out of {which}: {headline['left_out']}.")
    for entry in summary["views"]:
        shown = headline and (entry["point"], entry["view"]) == (headline["point"], headline["view"])
        if entry["point"] == "after_training" and entry["view"] == "personal" and not shown and entry["last"]:
            lines += [f"After training, last round: {text}." for text in other_models(entry["last"])]
    if "privacy" in summary:
        lines.append(f"Privacy: {summary['privacy']}.")
    lines.append(f"Sent by clients {size(summary['up'])}, received {size(summary['down'])}.")
    counts = {
        "dropped": "Dropped updates: {}; metrics.jsonl names their clients.",
        "not_finite": "Values that were NaN or infinite: {}; metrics.jsonl names them.",
        "empty": "Rounds without clients: {}.",
    }
    lines += [text.format(summary[name]) for name, text in counts.items() if summary.get(name)]
    if summary["completed"] < summary["rounds"]:
        why = "Ended early, by the protocol's patience" if summary["early"] else "Incomplete"
        lines.append(f"{why}: {summary['completed']} of {summary['rounds']} rounds.")
    return lines


def headline_source(headline: Mapping[str, Any]) -> str:
    """Return the origin of a headline; rounds count from 1 here, as in everything that is printed."""
    first, last = headline["rounds"][0] + 1, headline["rounds"][-1] + 1
    ways = {"best_val": ", best by validation", "best_test": f", {CHOSEN_ON_TEST}"}
    when = f"round {last}{ways.get(headline['choose'], '')}"
    if len(headline["rounds"]) > 1:
        when = f"mean ± std over {len(headline['rounds'])} evaluations of rounds {first} to {last}"
    about = [headline["view"], as_text(headline["point"]), AVERAGE_NAMES[headline["average"]], when]
    return "; ".join([", ".join(about), *other_models(headline)])


def other_models(found: Mapping[str, Any]) -> list[str]:
    """Return notes on clients whose score is not of their own current model."""
    texts = []
    if untrained := found.get("untrained"):
        count, view = untrained["clients"], untrained["view"]
        known = {None: "as new clients do", "personal": "by what they begin with"}
        how = known.get(view) or f"by the {one_line(view)} view"
        absent = f" (not in the trace: {untrained['unlisted']})" if untrained["unlisted"] else ""
        have = "has" if count == 1 else "have"
        texts.append(f"{count} of {found['clients']} clients {have} never trained{absent}, scored {how}")
    models = {"initial": "their initial model", "older": "a model of an older round"}
    if scored := [f"{found[name]} by {model}" for name, model in models.items() if name in found]:
        texts.append(f"of {found['clients']} clients {', '.join(scored)}")
    return texts
