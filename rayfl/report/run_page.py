"""The page of a run, complete or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rayfl.data.dataset import SPLITS
from rayfl.data.task import Figure
from rayfl.evaluation.metrics import none_if_nan
from rayfl.evaluation.protocol import CHOSEN_ON_TEST
from rayfl.evaluation.run_records import RunRecords
from rayfl.record.folder import read_environment
from rayfl.record.history import (
    LOG,
    PARTITION,
    History,
    Scores,
    engine_lines,
    label_matrix,
    read_partition,
)
from rayfl.report.compare import data_warnings, group_by
from rayfl.report.page import (
    Chart,
    Line,
    Row,
    Sheet,
    SheetCell,
    count_cell,
    figure_cell,
    heat_map,
    histogram,
    line_chart,
    render,
)
from rayfl.report.paper_tables import compare, entry_columns
from rayfl.report.printed import printed_table
from rayfl.report.summary import sentences, view_metrics
from rayfl.report.text import AVERAGE_NAMES, as_text, clock, number, size
from rayfl.settings.description import flatten_config
from rayfl.system.files import explain_read_errors, open_file
from rayfl.system.text import one_line

ROWS = 2000
"""Most clients that a page lists: those with the worst figure."""
LABELS = 2_000_000
"""Most cells in the map of labels; with more, groups of clients share a line."""
WRITTEN = 1_000
"""Most label counts that are also shown as a table."""
WORST = 5


@dataclass(frozen=True)
class Circumstances:
    """What the page of a run shows beside its settings and scores.

    Attributes:
        partition: the content of ``partition.json``; None: there is none.
        environment: of ``environment.json``.
        engine: the engine's record of each round.
        warnings: of the log.
    """

    partition: Mapping[str, Any] | None
    environment: Mapping[str, Any]
    engine: list[Mapping[str, Any]]
    warnings: dict[str, None]

    @classmethod
    def read(cls, folder: Path) -> Circumstances:
        """Read them in a run folder."""
        partition = read_partition(folder) if (folder / PARTITION).is_file() else None
        return cls(partition, read_environment(folder), [*engine_lines(folder)], log_warnings(folder))


def run_page(result: RunRecords, live: Circumstances | None = None) -> str:
    """Return the page of a run.

    Args:
        result: its records so far.
        live: of a run in progress; None: the run has ended, complete or not, and its folder says it.
    """
    config, summary = flatten_config(result.config, shown=True), result.summary
    known = live or Circumstances.read(result.folder)
    partition, engine = known.partition, known.engine
    running = live is not None and not result.complete
    remarks = [one_line(text) for text in (partition or {}).get("remarks", ())]
    figures, kind = _last_figures(result), result.figure_kind
    name = f"{config.get('method', 'Run')} on {config.get('data', 'data')}"
    has_domains = len({d for d in result.history.population.domains if d}) > 1
    return render(
        "run.html",
        title=one_line(f"{name}, seed {config.get('seed', 0)}"),
        has_domains=has_domains,
        running=running,
        state=_state(result, engine, running),
        cards_of_run=_cards(result, engine),
        sentences=[one_line(text) for text in sentences(summary)],
        notes=[*_notes(result), *list_warnings(dict.fromkeys(remarks) | known.warnings)],
        figures=_figure_sheets(result),
        printed=_beside_printed(result),
        curves=_curves(result),
        clients=_client_sheet(result, partition, figures),
        spread=_client_spread(figures, kind),
        worst=_worst_clients(figures, kind),
        domains=_domain_sheet(result) if has_domains else None,
        skew=_skew(partition),
        labels=_label_map(partition),
        cost=_cost(result, engine),
        times=_times(engine),
        settings=_pair_sheet("Configuration", config),
        environment=_pair_sheet("Environment", flatten_config(known.environment)),
    )


def _state(result: RunRecords, engine: Sequence[Mapping[str, Any]], running: bool) -> dict[str, Any]:
    done, rounds = result.summary["completed"], result.summary["rounds"]
    facts = {"done": done, "rounds": rounds}
    if not running:
        kind = "done" if result.complete else "stopped"
        how = "Finished" if done >= rounds else "Ended early" if result.complete else "Stopped"
        return {"kind": kind, "text": f"{how}: {done:,} of {rounds:,} rounds", **facts}
    recent = [line["seconds"] for line in engine[-20:]]
    left = f", about {clock(np.mean(recent) * (rounds - done))} left" if recent else ""
    return {"kind": "running", "text": f"Running: {done:,} of {rounds:,} rounds{left}", **facts}


def _cards(result: RunRecords, engine: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    summary, headline = result.summary, result.summary["headline"]
    label = f", {CHOSEN_ON_TEST}" * (result.protocol.choose == "best_test")
    kind = result.figure_kind
    shown = f"{kind.shown(headline['figure'], headline['std'])}{kind.unit}" if headline else "n/a"
    cards = [(f"Test {kind.name}{label}", shown)]
    if common := headline and headline.get("common"):
        both = f"{kind.shown(common['figure'], common['std'])}{kind.unit}"
        cards.append((f"Common test set (G){label}", both))
    if result.view and (last := result.view["last"]):
        mean, worst = kind.shown(last["mean"], last["std"]), kind.shown(last["worst_decile"])
        cards.append(("Last evaluation, ± over clients", f"{mean}{kind.unit}"))
        cards.append(("Worst decile of the clients", f"{worst}{kind.unit}"))
    cards += [
        ("Clients", f"{summary['clients']:,}"),
        ("Rounds", f"{summary['completed']:,} of {summary['rounds']:,}"),
        ("Sent by clients", size(summary["up"])),
        ("Time", clock(sum(line["seconds"] for line in engine))),
    ]
    return cards


def _notes(result: RunRecords) -> list[str]:
    """Return the notes that a reader needs before quoting a number."""
    headline = result.summary["headline"]
    notes = [one_line(text) for text in data_warnings(result)]
    if headline and headline["std"] is not None:
        notes.append(f"± is over {len(headline['rounds'])} evaluations of this one run, not over seeds.")
    elif headline:
        notes.append(
            "These are the numbers of one seed. Without other seeds, nobody knows how much they vary."
        )
    return notes


def log_warnings(folder: Path) -> dict[str, None]:
    """Return the warnings in the log of a run, each once."""
    path = folder / LOG
    if not path.is_file():
        return {}
    with explain_read_errors(path), open_file(path) as file:
        lines = [line.decode(errors="replace").rstrip("\n") for line in file]
    return dict.fromkeys(one_line(line.split(" WARNING ", 1)[1]) for line in lines if " WARNING " in line)


def list_warnings(found: Mapping[str, None], most: int = 20) -> list[str]:
    """Return the first warnings, and where the others are."""
    more = [f"{len(found) - most} more warnings are in {LOG}."] if len(found) > most else []
    return [*list(found)[:most], *more]


def _figure_sheets(result: RunRecords) -> list[Sheet]:
    sheets, kind = [], result.figure_kind
    names = {"mean over clients": "mean", "std over clients": "std", "pooled": "pooled"}
    scored = [entry for entry in result.summary["views"] if entry["last"]]
    for point, entries in group_by(scored, lambda entry: entry["point"]).items():
        rows = [row for entry in entries for row in view_metrics(entry, ["last"])]
        columns: dict[str, list[str | SheetCell]] = {"view": [one_line(heading) for heading, _ in rows]}
        for heading, name in (names | {"worst decile": "worst_decile"}).items():
            columns[heading] = [figure_cell(last[name], kind) for _, (last,) in rows]
        caption = f"Test {kind.title}, {as_text(point)}, last evaluation"
        sheets.append(Sheet.of_columns(caption, columns))
    return sheets


def _beside_printed(result: RunRecords) -> Sheet | None:
    """Return the number that a paper prints for this cell, and ours."""
    cell = result.config.get("cell")
    if not cell or (printed := printed_table(str(cell["table"]))) is None:
        return None
    columns = entry_columns(compare(printed.name, [result]), beside=True)
    kept = ("row", "column", "ours", "printed", "difference", "warnings")
    caption = one_line(f"Beside {printed.paper}, {printed.number}, in %")
    return Sheet.of_columns(caption, {heading: columns[heading] for heading in kept})


def _curves(result: RunRecords) -> list[Chart]:
    history, average = result.history, AVERAGE_NAMES[result.protocol.average]
    charts = []
    for point in dict.fromkeys(point for point, _ in history.views()):
        views = [view for at, view in history.views() if at == point]
        scores = _test_scores(history, {(point, view): view for view in views})
        metrics = dict.fromkeys(name for _, _, s in scores for name in s.measures)
        for quantity in ("figure", "loss", *metrics):
            kind = result.figure_kind
            shown, unit = kind.title, kind.axis
            text: Callable[[float], str] = kind.text
            if quantity != "figure":
                shown, unit, text = one_line(quantity), one_line(quantity), number
            lines = [Line(heading, *result.curve(quantity, s, split)) for heading, split, s in scores]
            charts.append(line_chart(f"Test {shown}, {as_text(point)}, {average}", lines, unit, text))
    rounds = [line for line in history.rounds if line["loss"] is not None]
    training = Line("training loss", [r["round"] + 1 for r in rounds], [r["loss"] for r in rounds])
    charts.append(line_chart("Training loss, mean over the samples of the cohort", [training], "loss"))
    return [chart for chart in charts if chart is not None]


def _test_scores(history: History, headings: Mapping[tuple[str, str], str]) -> list[tuple[str, str, Scores]]:
    """Return heading, split and scores of some (point, view); then those on a common test set, if any."""
    return [
        (f"{heading}{mark}", split, history.scores[(*place, split)])
        for split, mark in (("test", ""), ("common", " (G)"))
        for place, heading in headings.items()
        if (*place, split) in history.scores
    ]


def _last_figures(result: RunRecords) -> np.ndarray:
    """Return the last test figures, as printed, of the headline's view, [clients]; NaN without a score."""
    if result.scores is None or not len(result.scores.rounds):
        return np.full(len(result.history.population), np.nan)
    return result.figure_kind.scale * result.scores.figure[-1]


def _client_spread(figures: np.ndarray, kind: Figure) -> Chart | None:
    known = figures[np.isfinite(figures)]
    if not len(known):
        return None
    least, most, middle = map(kind.text, (known.min(), known.max(), float(np.median(known))))
    parts = f"{least} to {most}{kind.unit}, median {middle}{kind.unit}"
    return histogram(f"Test {kind.name} of {len(known):,} clients, last evaluation: {parts}", known, kind)


def _worst_clients(figures: np.ndarray, kind: Figure) -> str:
    order = np.argsort(kind.sign * figures, kind="stable")
    order = order[np.isfinite(figures[order])][: min(WORST, -(-len(figures) // 4))]
    named = ", ".join(f"client {i} ({kind.text(figures[i])}{kind.unit})" for i in order)
    return f"{'Lowest' if kind.higher else 'Highest'} test {kind.name}: {named}." if named else ""


def _reported_views(result: RunRecords) -> dict[tuple[str, str], str]:
    """Return (point, view) -> heading: where the protocol scores, and where clients that never train are."""
    return {
        (point, view): one_line(view if point == result.protocol.point else f"{view}, {as_text(point)}")
        for point, view in result.history.views()
        if point == result.protocol.point or point.startswith("unseen")
    }


def _client_sheet(
    result: RunRecords, partition: Mapping[str, Any] | None, figures: np.ndarray
) -> Sheet | None:
    """Return a line per client; of many clients, only those with the worst figure."""
    history, population = result.history, result.history.population
    if not len(population):
        return None
    order, kind = np.arange(len(population)), result.figure_kind
    caption = f"Clients: test {kind.title}, {as_text(result.protocol.point)}, last evaluation"
    if len(order) > ROWS:
        order = np.sort(np.argsort(kind.sign * figures, kind="stable")[:ROWS])  # NaN comes last
        caption += f"; the {ROWS:,} {'lowest' if kind.higher else 'highest'} of {len(population):,}"
    clients, samples, classes = order.tolist(), population.samples, _classes(partition)
    columns: dict[str, list[str | SheetCell]] = {
        "client": [SheetCell(str(i), float(i)) for i in clients],
        "domain": [population.domains[i] or "several" for i in clients],
        **{split: [count_cell(samples[split][i]) for i in clients] for split in SPLITS},
        _strata(partition): [count_cell(classes[i]) if classes else SheetCell("", None) for i in clients],
        "rounds trained": [count_cell(history.times[i]) for i in clients],
    }
    for heading, _, scores in _test_scores(history, _reported_views(result)):
        columns[heading] = [figure_cell(none_if_nan(scores.figure[-1, i]), kind) for i in clients]
    return Sheet.of_columns(caption, columns, search=True)


def _strata(partition: Mapping[str, Any] | None) -> str:
    """Return what people call the columns of the label matrix."""
    return (partition or {}).get("strata", "classes")


def _classes(partition: Mapping[str, Any] | None) -> list[int]:
    matrix = label_matrix(partition) if partition else None
    return [] if matrix is None else [int(n) for n in (matrix > 0).sum(axis=1)]


def _domain_sheet(result: RunRecords) -> Sheet | None:
    reported = _reported_views(result)
    places = {(entry["point"], entry["view"]): entry["last"] for entry in result.summary["views"]}
    lasts = {reported[place]: last["domains"] for place, last in places.items() if last and place in reported}
    if not lasts:
        return None
    names = list(next(iter(lasts.values())))
    columns: dict[str, list[str | SheetCell]] = {
        "domain": [one_line(name) for name in names],
        "clients": [count_cell(max(last[name]["clients"] for last in lasts.values())) for name in names],
    }
    for heading, last in lasts.items():
        columns[heading] = [figure_cell(last[name]["mean"], result.figure_kind) for name in names]
    when = as_text(result.protocol.point)
    caption = f"Test {result.figure_kind.title} per domain, {when}, mean over clients, last evaluation"
    return Sheet.of_columns(caption, columns)


def _skew(partition: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    if not partition or not partition.get("skew"):
        return []
    skew = partition["skew"]
    return [
        ("Samples of a client", f"{skew['samples_min']:,} to {skew['samples_max']:,}"),
        ("Median samples of a client", f"{skew['samples_median']:,.0f}"),
        (f"{_strata(partition).capitalize()} of a client", f"{skew['classes_min']} to {skew['classes_max']}"),
        (f"Mean {_strata(partition)} of a client", f"{skew['classes_mean']:.1f}"),
        ("Distance of labels from the pooled ones", f"{skew['label_distance']:.3f}"),
        ("Entropy of a client's labels", f"{skew['label_entropy']:.2f} bits"),
        ("Entropy of all labels", f"{skew['pooled_label_entropy']:.2f} bits"),
    ]


def _label_map(partition: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if partition is None or (matrix := label_matrix(partition)) is None:
        return None
    names = [one_line(str(name)) for name in partition["class_names"]]
    strata = _strata(partition)
    title, sheet = f"Training samples by {strata}", None
    if matrix.size <= WRITTEN:
        rows: list[Row] = [
            [count_cell(i), *map(count_cell, counts)] for i, counts in enumerate(matrix.tolist())
        ]
        sheet = Sheet(f"{title}, in numbers", ["client", *names], rows)
    together = -(-matrix.size // LABELS)
    clients, most = len(matrix), int(matrix.max(initial=0))
    if together > 1:
        starts = np.arange(0, clients, together)
        matrix = np.add.reduceat(matrix, starts) / np.diff([*starts, clients])[:, None]
        most = round(float(matrix.max()))
    lines = "a line per client" if together == 1 else f"a line per {together} clients, their mean"
    return {
        "title": f"{title}: {lines}, a column for each of the {strata}",
        "address": heat_map(matrix),
        "height": max(6.0, min(32.0, 1.5 * len(matrix))),
        "alt": f"Map of the training samples of {clients:,} clients in {len(names)} {strata}; "
        f"the table of clients has the number of {strata} of each",
        "most": f"{most:,}",
        "last": f"{clients - 1:,}",
        "sheet": sheet,
        "classes": ", ".join(names[:30]) + (f" and {len(names) - 30} more" if len(names) > 30 else ""),
    }


def _cost(result: RunRecords, engine: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    summary = result.summary
    rounds = max(1, summary["completed"])
    cards = [
        ("Sent by clients per round", size(summary["up"] / rounds)),
        ("Received per round", size(summary["down"] / rounds)),
        ("Sent in all", size(summary["up"])),
        ("Received in all", size(summary["down"])),
    ]
    if engine:
        seconds = [line["seconds"] for line in engine]
        training = sum(line.get("train_seconds", 0.0) for line in engine) / max(sum(seconds), 1e-9)
        cards += [
            ("Time of all rounds", clock(sum(seconds))),
            ("Median of a round", f"{np.median(seconds):.3g} s"),
            ("Share of training", f"{training:.0%}"),
            ("Actors", str(len(engine[-1].get("actors", [])) or 1)),
        ]
    return cards


def _times(engine: Sequence[Mapping[str, Any]]) -> Chart | None:
    rounds = [line["round"] + 1 for line in engine]
    lines = [Line("whole round", rounds, [line["seconds"] for line in engine])]
    lines.append(Line("training", rounds, [line.get("train_seconds", np.nan) for line in engine]))
    return line_chart("Seconds of each round", lines, "seconds")


def _pair_sheet(caption: str, pairs: Mapping[str, Any]) -> Sheet:
    rows: list[Row] = [[one_line(str(name)), one_line(str(value))] for name, value in pairs.items()]
    return Sheet(caption, ["name", "value"], rows, search=len(rows) > 20)
