"""The page of a run, complete or not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rayfl.data.dataset import SPLITS
from rayfl.data.task import Figure
from rayfl.evaluation.metrics import none_if_nan, without_attackers
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
    thin_places,
)
from rayfl.report.paper_tables import compare, entry_columns
from rayfl.report.printed import printed_table
from rayfl.report.summary import sentences, view_metrics
from rayfl.report.text import AVERAGE_NAMES, as_text, clock
from rayfl.settings.description import flatten_config
from rayfl.system.files import explain_read_errors, open_file
from rayfl.system.text import one_line

ROWS = 2000
"""Most clients that a page lists: those with the worst figure."""
LABELS = 2_000_000
"""Most cells in the map of labels; with more, groups of clients share a line."""
WRITTEN = 1_000
"""Most label counts that are also shown as a table."""
NUMBERS = 500_000
"""Most numbers of single clients that a page carries, over all rounds."""
WORST = 5


@dataclass(frozen=True)
class Circumstances:
    """What the page of a run shows beside its settings and scores.

    Attributes:
        partition: the content of ``partition.json``; empty: there is none.
        environment: of ``environment.json``.
        engine: the engine's record of each round.
        warnings: of the log.
    """

    partition: Mapping[str, Any]
    environment: Mapping[str, Any]
    engine: list[Mapping[str, Any]]
    warnings: dict[str, None]

    @classmethod
    def read(cls, folder: Path) -> Circumstances:
        """Read them in a run folder."""
        partition = read_partition(folder) if (folder / PARTITION).is_file() else {}
        return cls(partition, read_environment(folder), [*engine_lines(folder)], log_warnings(folder))


def run_page(result: RunRecords, live: Circumstances | None = None) -> str:
    """Return the page of a run.

    Args:
        result: its records so far.
        live: of a run in progress; None: the run has ended, complete or not, and its folder says it.
    """
    config, history = flatten_config(result.config, shown=True), result.history
    known = live or Circumstances.read(result.folder)
    partition, engine = known.partition, known.engine
    running = live is not None and not result.complete
    remarks = [one_line(text) for text in partition.get("remarks", ())]
    figures, kind = _last_figures(result), result.figure_kind
    name = f"{config.get('method', 'Run')} on {config.get('data', 'data')}"
    matrix = label_matrix(partition) if partition else None
    listed, strata = _listed_clients(figures, kind), partition.get("strata", "classes")
    quantities = _client_quantities(result)
    return render(
        "run.html",
        title=one_line(f"{name}, seed {config.get('seed', 0)}"),
        result=result,
        kind=kind,
        running=running,
        state=_state(result, engine, running),
        by_test=f", {CHOSEN_ON_TEST}" * (result.protocol.choose == "best_test"),
        sentences=[one_line(text) for text in sentences(result.summary)],
        notes=[*_notes(result), *list_warnings(dict.fromkeys(remarks) | known.warnings)],
        figures=_figure_sheets(result),
        printed=_beside_printed(result),
        curves=_curves(result),
        clients=_client_sheet(result, listed, strata, matrix, quantities),
        rounds=_client_rounds(history, listed, quantities),
        headline=result.view and _reported_views(result)[result.view["point"], result.view["view"]],
        spread=_client_spread(figures, kind),
        worst=_worst_clients(figures, kind),
        domains=_domain_sheet(result) if len(set(history.population.domains) - {None}) > 1 else None,
        strata=strata,
        skew=partition.get("skew"),
        labels=None if matrix is None else _label_map(matrix, strata, partition["class_names"]),
        engine=engine,
        median_seconds=np.median([line["seconds"] for line in engine]) if engine else 0.0,
        times=_times(engine),
        settings=_pair_sheet("Configuration", config),
        environment=_pair_sheet("Environment", flatten_config(known.environment)),
    )


def _state(result: RunRecords, engine: Sequence[Mapping[str, Any]], running: bool) -> dict[str, str]:
    done, rounds = result.summary["completed"], result.summary["rounds"]
    if not running:
        kind = "done" if result.complete else "stopped"
        how = "Finished" if done >= rounds else "Ended early" if result.complete else "Stopped"
        return {"kind": kind, "text": f"{how}: {done:,} of {rounds:,} rounds"}
    recent = [line["seconds"] for line in engine[-20:]]
    left = f", about {clock(np.mean(recent) * (rounds - done))} left" if recent else ""
    return {"kind": "running", "text": f"Running: {done:,} of {rounds:,} rounds{left}"}


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
    scored = [entry for entry in result.summary["views"] if entry["last"]]
    for point, entries in group_by(scored, lambda entry: entry["point"]).items():
        rows = [row for entry in entries for row in view_metrics(entry, ["last"])]
        columns: dict[str, list[str | SheetCell]] = {"view": [one_line(heading) for heading, _ in rows]}
        for name in ("mean", "std", "pooled", "worst_decile"):
            heading = as_text(name) + " over clients" * (name in ("mean", "std"))
            columns[heading] = [figure_cell(last[name], kind) for _, (last,) in rows]
        sheets.append(Sheet.of_columns(f"Test {kind.title}, {as_text(point)}, last evaluation", columns))
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
        scores = [
            (heading, split, without_attackers(each, history.population, result.protocol))
            for heading, split, each in _test_scores(history, {(point, view): view for view in views})
        ]
        metrics = dict.fromkeys(name for _, _, s in scores for name in s.measures)
        for quantity in ("figure", "loss", *metrics):
            kind = result.figure_kind if quantity == "figure" else Figure(one_line(quantity))
            lines = [Line(heading, *result.curve(quantity, s, split)) for heading, split, s in scores]
            title = f"Test {kind.title}, {as_text(point)}, {average}"
            charts.append(line_chart(title, lines, kind.axis, kind.text))
    totals = {
        "loss": "Training loss, mean over the samples of the cohort",
        "epsilon": "Epsilon, spent so far",
    }
    for name, title in totals.items():
        rounds = [line for line in history.rounds if line.get(name) is not None]
        heading = "training loss" if name == "loss" else name
        line = Line(heading, [r["round"] + 1 for r in rounds], [r[name] for r in rounds])
        charts.append(line_chart(title, [line], name))
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


def _listed_clients(figures: np.ndarray, kind: Figure) -> np.ndarray:
    """Return the clients that a page lists; of very many, those with the worst figure."""
    return np.sort(np.argsort(kind.sign * figures, kind="stable")[:ROWS])  # NaN comes last


class _Quantity(NamedTuple):
    """What evaluations know of each client.

    Attributes:
        kind: how it is printed.
        rounds: of the evaluations, from 0.
        values: float [evaluations, clients], as printed; NaN: unknown.
    """

    kind: Figure
    rounds: np.ndarray
    values: np.ndarray


def _client_quantities(result: RunRecords) -> dict[str, _Quantity]:
    """Return heading -> the figures of each view, and loss and metrics of the headline's."""
    kind, own = result.figure_kind, result.scores
    found = {
        heading: _Quantity(kind, scores.rounds, kind.scale * scores.figure)
        for heading, _, scores in _test_scores(result.history, _reported_views(result))
    }
    if own is not None and result.view is not None:
        for name, values in {"loss": own.loss, **own.measures}.items():
            heading, shown = one_line(f"{name}, {result.view['view']}"), Figure(name, higher=name != "loss")
            if np.isfinite(values).any():
                found[heading] = _Quantity(shown, own.rounds, values)
    return found


def _client_rounds(
    history: History, listed: np.ndarray, quantities: Mapping[str, _Quantity]
) -> dict[str, Any] | None:
    """Return what the page's script draws, of a part of very many rounds; None: there is nothing yet."""
    if not history.rounds or not len(listed):
        return None
    most = max(2, NUMBERS // (len(listed) * (1 + len(quantities))))
    rounds, columns = thin_places(len(history.rounds), most), {}
    for heading, (kind, evaluated, values) in quantities.items():
        kept = np.unique(np.searchsorted(evaluated, rounds, side="right") - 1)
        kept = kept[kept >= 0]
        columns[heading] = {
            "percent": kind.percent,
            "higher": kind.higher,
            "rounds": (evaluated[kept] + 1).tolist(),
            "values": [[_printed_value(v, kind) for v in row] for row in values[kept][:, listed].tolist()],
        }
    took = ["".join(np.where(np.isin(listed, history.used[k]), "1", "0")) for k in rounds]
    return {"clients": listed.tolist(), "rounds": (rounds + 1).tolist(), "took": took, "columns": columns}


def _printed_value(value: float, kind: Figure) -> float | None:
    if not math.isfinite(value):
        return None
    return round(value, 2) if kind.percent else float(kind.text(value))


def _client_sheet(
    result: RunRecords,
    listed: np.ndarray,
    strata: str,
    matrix: np.ndarray | None,
    quantities: Mapping[str, _Quantity],
) -> Sheet | None:
    """Return a line per listed client."""
    history, population, kind = result.history, result.history.population, result.figure_kind
    if not len(population):
        return None
    caption = f"Clients: test {kind.title}, {as_text(result.protocol.point)}, last evaluation"
    if len(listed) < len(population):
        which = "lowest" if kind.higher else "highest"
        caption += f"; the {ROWS:,} {which} of {len(population):,} in the end"
    clients, samples = listed.tolist(), population.samples
    present = None if matrix is None else (matrix > 0).sum(axis=1)
    latest = history.used[len(history.rounds) - 1] if history.rounds else ()
    columns: dict[str, list[str | SheetCell]] = {
        "client": [SheetCell(str(i), float(i)) for i in clients],
        "domain": [population.domains[i] or "several" for i in clients],
        **{split: [count_cell(samples[split][i]) for i in clients] for split in SPLITS},
        strata: [SheetCell("", None) if present is None else count_cell(int(present[i])) for i in clients],
        "rounds trained": [count_cell(history.times[i]) for i in clients],
        "took part": ["yes" if took else "no" for took in np.isin(listed, latest)],
    }
    for heading, (own, _, values) in quantities.items():
        columns[heading] = [SheetCell(own.text(v), none_if_nan(v)) for v in values[-1, listed].tolist()]
    return Sheet.of_columns(caption, columns, search=True)


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


def _label_map(matrix: np.ndarray, strata: str, classes: Sequence[object]) -> dict[str, Any]:
    """Return a picture of the label counts, int [clients, classes], and what its text says."""
    names, sheet = [one_line(str(name)) for name in classes], None
    if matrix.size <= WRITTEN:
        rows: list[Row] = [[count_cell(i), *map(count_cell, own)] for i, own in enumerate(matrix.tolist())]
        sheet = Sheet(f"Training samples by {strata}, in numbers", ["client", *names], rows)
    clients, together = len(matrix), -(-matrix.size // LABELS)
    if together > 1:
        starts = np.arange(0, clients, together)
        matrix = np.add.reduceat(matrix, starts) / np.diff([*starts, clients])[:, None]
    most = round(float(matrix.max(initial=0)))
    picture = {"address": heat_map(matrix), "lines": len(matrix), "most": most}
    return {**picture, "together": together, "clients": clients, "names": names, "sheet": sheet}


def _times(engine: Sequence[Mapping[str, Any]]) -> Chart | None:
    rounds = [line["round"] + 1 for line in engine]
    lines = [Line("whole round", rounds, [line["seconds"] for line in engine])]
    lines.append(Line("training", rounds, [line.get("train_seconds", np.nan) for line in engine]))
    return line_chart("Seconds of each round", lines, "seconds")


def _pair_sheet(caption: str, pairs: Mapping[str, Any]) -> Sheet:
    rows: list[Row] = [[one_line(str(name)), one_line(str(value))] for name, value in pairs.items()]
    return Sheet(caption, ["name", "value"], rows, search=len(rows) > 20)
