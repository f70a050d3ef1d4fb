"""Deterministic made-up records with known figures, in the format that a run writes."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rayfl import evaluation
from rayfl.randomness import numpy_generator
from rayfl.record.folder import RunFolder
from rayfl.record.history import Population, read_records
from rayfl.running.result import finish_records

CONFIG = """\
method:
  class_path: rayfl.methods.{method}
  init_args:
    mu: {mu}
data:
  class_path: rayfl.data.EmbeddedDigits
  init_args:
    root: null
    seed: null
    partition:
      class_path: rayfl.data.Dirichlet
      init_args:
        alpha: 0.3
net:
  class_path: rayfl.nets.CNN
clients: {clients}
participation: 0.5
rounds: {rounds}
training:
  lr: 0.01
engine:
  class_path: rayfl.engine.Inline
seed: {seed}
output: {output}
eval_every: {eval_every}
protocol:
  class_path: rayfl.evaluation.{protocol}
  init_args: {options}
"""


DEFAULT = evaluation.Default()


def partition(clients: int, domains: tuple[str, ...] = ("ink", "print"), val: bool = True) -> dict[str, Any]:
    """Client i has 100 + i training, 10 validation and 20 + i test samples of domain i mod M."""
    return {
        "domain_names": list(domains),
        "strata": "classes",
        "clients": [
            {"train": 100 + i, "val": 10 if val else 0, "test": 20 + i, "domain": i % len(domains)}
            for i in range(clients)
        ],
    }


def pool(sha256: str = "0" * 64, published: dict[str, int] | None = None, **images: int) -> dict[str, Any]:
    """What ``partition.json`` tells of a data set with so many images of each domain."""
    return {"sha256": sha256, "images": images or {"ink": 400, "print": 400}, "published": published or {}}


def record(
    round: int,
    split: dict[str, Any],
    seed: int = 0,
    views: tuple[str, ...] = ("personal", "global"),
    point: str = "after_aggregation",
    evaluate: bool = True,
    level: float = 0.9,
) -> dict[str, Any]:
    """The record of a round: accuracies rise towards ``level``, with noise per client."""
    rng = numpy_generator(seed, "made up", round)
    clients = split["clients"]
    cohort = sorted(rng.choice(len(clients), max(1, len(clients) // 2), replace=False).tolist())
    made: dict[str, Any] = {
        "round": round,
        "cohort": cohort,
        "samples": [clients[c]["train"] for c in cohort],
        "loss": [2.3 / (1 + 0.2 * round) + 0.01 * float(rng.random()) for _ in cohort],
        "steps": [10 for _ in cohort],
        "dropped": [],
        "up": {"weights": [1000 for _ in cohort]},
        "down": {"weights": [2000 for _ in cohort]},
    }
    if not evaluate:
        return made
    parts = ["test"] + (["val"] if clients[0]["val"] else [])
    made["evaluation"] = {point: {}}
    for place, view in enumerate(views):
        made["evaluation"][point][view] = {}
        for part in parts:
            expected = (level - 0.1 * place) * (1 - 0.8 / (1 + 0.3 * round))
            wished = [c[part] * (expected + 0.1 * rng.normal()) for c in clients]
            correct = [int(min(c[part], max(0.0, x + 0.5))) for c, x in zip(clients, wished)]
            loss = [2.3 * (1 - n / max(1, c[part])) + 0.05 for n, c in zip(correct, clients)]
            made["evaluation"][point][view][part] = {"score": correct, "loss": loss}
    return made


def write_run(
    path: Path,
    rounds: int = 10,
    clients: int = 6,
    seed: int = 0,
    method: str = "FedAvg",
    protocol: evaluation.Protocol = DEFAULT,
    stop_after: int | None = None,
    eval_every: int = 2,
    val: bool = True,
    mu: float = 0.0,
    level: float = 0.9,
    domains: tuple[str, ...] = ("ink", "print"),
    pool: dict[str, Any] | None = None,
    code: dict[str, str] | None = None,
    cell: tuple[str, str, str] | None = None,
    changed: tuple[str, ...] = (),
) -> Path:
    """Write a whole run folder, or that of a run that was killed after ``stop_after`` rounds.

    ``cell`` is the table, the row and the column of which it is.
    """
    config = CONFIG.format(
        method=method,
        mu=mu,
        clients=clients,
        rounds=rounds,
        seed=seed,
        output=path,
        eval_every=eval_every,
        protocol=type(protocol).__name__,
        options=asdict(protocol),
    )
    if cell is not None:
        config += f"cell: {json.dumps(dict(zip(('table', 'row', 'column'), cell)) | {'changed': changed})}\n"
    folder = RunFolder.create(path, config, code=code or {})
    split = partition(clients, domains, val) | ({} if pool is None else {"pool": pool})
    folder.write_partition(split)
    for round in range(rounds if stop_after is None else stop_after):
        evaluate = protocol.evaluates(round, rounds, eval_every)
        folder.append_metrics(
            record(round, split, seed, point=protocol.point, evaluate=evaluate, level=level)
        )
        folder.append_engine({"round": round, "seconds": 0.5})
    if stop_after is None:
        finish_records(folder)
    return path


@dataclass
class MadeUpRun:
    """A run as callbacks see it, whose rounds a test tells them of."""

    path: Path = Path("run")
    rounds: int = 10
    protocol: evaluation.Protocol = DEFAULT
    population: Population = field(default_factory=lambda: Population.from_partition(partition(6)))

    def records(self) -> Iterator[dict[str, Any]]:
        return read_records(self.path)

    def save(self) -> None:
        raise AssertionError("no test saves a made-up run")
