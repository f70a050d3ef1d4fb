"""The records of a run folder, read back: samples per client, and every score as an array.

The records of a run count rounds from 0.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from rayfl.data.dataset import SPLITS
from rayfl.data.task import ACCURACY, Figure
from rayfl.errors import Damaged
from rayfl.record.checks import Contents, check_partition, check_record
from rayfl.settings.base import DisplayMixin
from rayfl.system.files import explain_read_errors, open_file, parse_json, read_json
from rayfl.system.text import one_line

CONFIG = "config.yaml"
ENVIRONMENT = "environment.json"
PARTITION = "partition.json"
METRICS = "metrics.jsonl"
ENGINE = "engine.jsonl"
LOG = "run.log"
CLIENTS = "clients.parquet"
SUMMARY = "summary.json"
TABLE = "table.yaml"
"""In the folder of a table: a copy of its file."""
TUNING = "tuning.json"
"""In the folder of a table whose cells are tuned: what was chosen for each."""
TUNED = ", tuned"
"""How the name of a column ends whose cells are tuned."""
SWEEP = "sweep.json"
"""In the folder of a sweep: its points and settings."""


LONGEST_LINE = 2**28
"""Most bytes of a line of records; the scores of one view of a million clients have about 20 million."""
NEVER = np.iinfo(np.int64).max
"""Stands for a round in an array if there is no such round."""


@dataclass(frozen=True, repr=False)
class Population(DisplayMixin):
    """The clients of a run: what is constant about them.

    Attributes:
        samples: per split (``train``, ``val``, ``test``, and ``common`` if all clients are scored on a common
            test set, too) int64 [clients].
        domains: per client the name of its domain; None: several domains.
        contents: of the data set; None: not recorded.
        division: the digest of its division among the clients; None: not recorded.
        figure: by which models are reported and chosen.
        trains_on_val: whether the method trains on validation data, too.
    """

    samples: Mapping[str, np.ndarray]
    domains: tuple[str | None, ...]
    contents: Contents | None = None
    division: str | None = None
    figure: Figure = ACCURACY
    trains_on_val: bool = False
    attackers: tuple[int, ...] = ()

    @classmethod
    def from_partition(cls, partition: Mapping[str, Any]) -> "Population":
        """Read the sample counts and the domain of each client from the content of ``partition.json``."""
        clients, pool = partition["clients"], partition.get("pool")
        names = [one_line(name) for name in partition["domain_names"]]
        if isinstance(clients, dict):
            columns: dict[str, Any] = {name: _in_full(clients[name]) for name in (*SPLITS, "domain")}
        else:
            columns = {name: [c[name] for c in clients] for name in (*SPLITS, "domain")}
        domains = tuple(None if domain is None else names[domain] for domain in columns.pop("domain"))
        samples = {split: np.array(column, dtype=np.int64) for split, column in columns.items()}
        if common := partition.get("common_test"):
            samples["common"] = np.full(len(domains), common)
        contents = Contents(pool["sha256"], pool["images"], pool["published"]) if pool else None
        figure = Figure(**task["figure"]) if (task := partition.get("task")) else ACCURACY
        trains_on_val, attackers = "trains_on_val" in partition, tuple(partition.get("attackers", ()))
        return cls(samples, domains, contents, partition.get("sha256"), figure, trains_on_val, attackers)

    @classmethod
    def without_clients(cls) -> "Population":
        """Return no clients: what is known of a run that stopped before its data were split."""
        return cls.from_partition({"clients": [], "domain_names": []})

    def __len__(self) -> int:
        return len(self.domains)

    def _repr_line_(self) -> dict[str, Any]:
        return {"clients": len(self), **{name: int(each.sum()) for name, each in self.samples.items()}}


def _in_full(runs: Iterable[tuple[Any, int]]) -> np.ndarray:
    """Return one value for each client, [clients], from pairs (value, clients in a row)."""
    return np.repeat([value for value, _ in runs], np.array([count for _, count in runs], np.int64))


@dataclass(frozen=True, repr=False)
class Scores(DisplayMixin):
    """The scores of one view, at one evaluation point, on one part of the data.

    Attributes:
        rounds: int64 [evaluations], the rounds of the evaluations, ascending.
        score: float64 [evaluations, clients]: the sum of the figure over samples, of classes those that are
            classified correctly; NaN: no score.
        loss: float64 [evaluations, clients]: mean loss in nats; NaN: none.
        samples: int64 [clients].
        measures: further metrics by name, each float64 [evaluations, clients]; NaN where undefined.
    """

    rounds: np.ndarray
    score: np.ndarray
    loss: np.ndarray
    samples: np.ndarray
    measures: Mapping[str, np.ndarray] = field(default_factory=dict)

    def _repr_line_(self) -> dict[str, Any]:
        return {
            "evaluations": len(self.rounds),
            "clients": len(self.samples),
            "measures": list(self.measures),
        }

    def where_counted(self, counted: np.ndarray) -> "Scores":
        """Return the scores, NaN where ``counted`` is false: bool [clients] or [evaluations, clients]."""
        score, loss = (np.where(counted, values, np.nan) for values in (self.score, self.loss))
        measures = {name: np.where(counted, values, np.nan) for name, values in self.measures.items()}
        return Scores(self.rounds, score, loss, self.samples, measures)

    @property
    def figure(self) -> np.ndarray:
        """float64 [evaluations, clients], the mean over samples; NaN for clients without data or a score."""
        samples = np.where(self.samples > 0, self.samples, np.nan)
        return self.score / samples


@dataclass(repr=False)
class History(DisplayMixin):
    """All that ``metrics.jsonl`` and ``partition.json`` hold.

    Attributes:
        population: the clients.
        rounds: one dictionary per round: ``round``, ``cohort`` (its size), ``dropped`` (how many), ``loss``
            (mean training loss), ``up`` and ``down`` (bytes of all its clients).
        times: int64 [clients], in how many rounds an update of each was used.
        first: int64 [clients], the round in which an update of each was used first; ``NEVER`` if none was.
        used: round -> int64 [n], the clients whose update it used.
        untrained: round -> the clients that it scored before they had trained, see ``records.md``.
        scores: (point, view, split) -> scores; after training only the cohort has new ones, and for other
            clients the record has the latest.
        not_finite: number of values that were NaN or infinite; the record has null for them.
    """

    population: Population
    rounds: list[dict[str, Any]] = field(default_factory=list)
    times: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    first: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    used: dict[int, np.ndarray] = field(default_factory=dict)
    untrained: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    scores: dict[tuple[str, str, str], Scores] = field(default_factory=dict)
    not_finite: int = 0

    def _repr_line_(self) -> dict[str, Any]:
        scores = ["/".join(key) for key in self.scores]
        return {"rounds": len(self.rounds), "clients": len(self.population), "scores": scores}

    @classmethod
    def build(cls, population: Population, records: Iterable[Mapping[str, Any]]) -> "History":
        """Collect the records of a run, in the order of their rounds."""
        return HistoryBuilder(population, records).history()

    def views(self) -> list[tuple[str, str]]:
        """Return all (point, view) with scores on test data, in a fixed order."""
        order = {"personal": "0", "global": "1"}
        found = {(point, view) for point, view, split in self.scores if split == "test"}
        return sorted(found, key=lambda pv: (pv[0], order.get(pv[1], "2" + pv[1])))


class HistoryBuilder:
    """Collects the records of a run, also while it goes on.

    Args:
        population: its clients.
        records: of its first rounds.
    """

    def __init__(self, population: Population, records: Iterable[Mapping[str, Any]] = ()) -> None:
        clients = len(population)
        self._history = History(population, times=np.zeros(clients, np.int64), first=np.full(clients, NEVER))
        self._rows: dict[tuple[str, str, str], tuple[list[int], list[dict[str, np.ndarray]]]] = {}
        for record in records:
            self.add(record)

    def add(self, record: Mapping[str, Any]) -> None:
        """Add the record of the next round."""
        history, clients = self._history, len(self._history.population)
        history.rounds.append(round_totals(record))
        history.not_finite += len(record.get("not_finite", ()))
        used = np.setdiff1d(record["cohort"], record["dropped"]).astype(np.int64)
        history.times[used] += 1
        history.first[used] = np.minimum(history.first[used], record["round"])
        history.used[record["round"]] = used
        if "evaluation" in record:
            history.untrained[record["round"]] = record.get("untrained", {})
        for key, score in evaluations(record, clients):
            rounds, rows = self._rows.setdefault(key, ([], []))
            rounds.append(record["round"])
            # A view without a cross-entropy may say null once for all its clients.
            rows.append(
                {
                    name: np.broadcast_to(np.array(values, dtype=np.float64), clients)
                    for name, values in score.items()
                }
            )

    def history(self) -> History:
        """Return the records so far."""
        population = self._history.population
        unknown, found = np.full(len(population), np.nan), dict[tuple[str, str, str], Scores]()
        for key, (rounds, rows) in self._rows.items():
            names = dict.fromkeys(name for row in rows for name in row)
            columns = {name: np.array([row.get(name, unknown) for row in rows]) for name in names}
            score, loss = columns.pop("score"), columns.pop("loss")
            samples = population.samples[key[2]]
            found[key] = Scores(np.array(rounds), score, loss, samples, columns)
        return replace(self._history, scores=found)


def evaluations(
    record: Mapping[str, Any], clients: int
) -> Iterator[tuple[tuple[str, str, str], Mapping[str, Any]]]:
    """Yield ((point, view, split), scores) of one record.

    Args:
        record: of a round.
        clients: their number: each column of scores has a value or None for every client.
    """
    for point, views in record.get("evaluation", {}).items():
        for view, splits in views.items():
            for split, score in splits.items():
                yield (point, view, split), (_of_all(score, clients) if "clients" in score else score)


def _of_all(score: Mapping[str, Any], clients: int) -> dict[str, Any]:
    """Return columns that name their clients as columns over all clients."""
    found: dict[str, Any] = {}
    for name, values in score.items():
        if name != "clients":
            column: list[Any] = [None] * clients
            for client, value in zip(score["clients"], values, strict=True):
                column[client] = value
            found[name] = column
    return found


def round_totals(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the totals of a round from its record (see :class:`History`).

    Losses that are not finite do not count, because the record on disk has null for them.
    """
    pairs = [(n, x) for n, x in zip(record["samples"], record["loss"]) if x is not None and math.isfinite(x)]
    weight = sum(n for n, _ in pairs)
    parts = [record, *([record["before_round"]] if "before_round" in record else [])]
    return {
        "round": record["round"],
        "cohort": len(record["cohort"]),
        "dropped": len(record["dropped"]),
        "loss": sum(n * x for n, x in pairs) / weight if weight else None,
        **{way: sum(sum(map(sum, part[way].values())) for part in parts) for way in ("up", "down")},
        **_privacy_of(record),
    }


def _privacy_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a round's record says of privacy: the guarantee and, if there is one, its epsilon."""
    if "privacy" not in record:
        return {}
    spent = record.get("figures", {}).get("epsilon")
    return {"privacy": record["privacy"]} | ({} if spent is None else {"epsilon": spent})


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a JSON-lines file; skip a last line that a crash cut off."""
    for _, line in complete_lines(path):
        yield line


def engine_lines(folder: Path) -> list[dict[str, Any]]:
    """Return what the engine has recorded of each round, without lines about processes that died."""
    path = folder / ENGINE
    return [line for line in read_lines(path) if "seconds" in line] if path.is_file() else []


def complete_lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield each complete line of a JSON-lines file as its bytes (with the line end) and its content."""
    with explain_read_errors(path):
        file = open_file(path)
    damaged = None
    with file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE), b""), start=1):
            if damaged is not None:
                problem = f"is damaged: line {damaged} is not a JSON object"
                raise Damaged(path, problem, "restore it from a copy")
            try:
                content = parse_json(line) if line.endswith(b"\n") else None
            except ValueError:
                content = None
            if isinstance(content, dict):
                yield line, content
            else:
                damaged = number


def checked_lines(folder: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield each complete line of ``metrics.jsonl``, round after round, as its bytes and its content."""
    path, population = folder / METRICS, None
    for number, (line, record) in enumerate(complete_lines(path)):
        if population is None:
            population = read_population(folder)
        try:
            check_record(record, population.samples, population.figure.percent)
            if record["round"] != number:
                raise ValueError(f"it has round {record['round']}, where round {number} must be")
        except ValueError as error:
            problem = f"does not fit {PARTITION} beside it, or is damaged: line {number + 1}: {error}"
            raise Damaged(path, problem, "restore both from a copy") from error
        yield line, record


def read_records(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a run, round after round."""
    for _, record in checked_lines(folder):
        yield record


def read_partition(folder: Path) -> dict[str, Any]:
    """Return the content of the ``partition.json`` of a run folder."""
    path = folder / PARTITION
    with explain_read_errors(path):
        content: dict[str, Any] = read_json(path)
        check_partition(content)
    return content


def label_matrix(partition: Mapping[str, Any]) -> np.ndarray | None:
    """Return training samples per client and class, int64 [clients, classes]; None: not recorded."""
    clients = partition["clients"]
    if not clients or isinstance(clients, dict) or any("labels" not in client for client in clients):
        return None
    return np.array([client["labels"]["train"] for client in clients], dtype=np.int64)


def read_population(folder: Path) -> Population:
    """Read the clients from the ``partition.json`` of a run folder; see :func:`read_partition`."""
    return Population.from_partition(read_partition(folder))


def read_history(folder: Path) -> History:
    """Read the records of a run folder; a run without a completed round may lack ``partition.json``."""
    known = (folder / PARTITION).is_file()
    population = read_population(folder) if known else Population.without_clients()
    return History.build(population, read_records(folder))
