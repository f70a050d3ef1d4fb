"""Schemas of the files of a run folder, which may be damaged or written by a stranger.

Each function raises ``ValueError``, which says what does not fit. Content that passes needs no further check.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NotRequired

import numpy as np
from pydantic import BaseModel, Field, JsonValue
from typing_extensions import TypedDict  # pydantic asks for this one below Python 3.12

from rayfl.data.dataset import SPLITS
from rayfl.settings.base import Value
from rayfl.system.files import convert_content
from rayfl.system.text import short_repr

EvaluationPoint = Literal["after_aggregation", "after_training", "unseen", "unseen_adapted", "unseen_control"]
"""When models are scored, see ``Protocol``."""
_Split = Literal["train", "val", "test", "common"]
_Count = Annotated[int, Field(strict=True, ge=0, le=2**53)]
"""Larger counts are not exact in the arithmetic of means."""
_Number = Annotated[float, Field(strict=True, ge=-1e280, le=1e280)] | None
"""A loss or another metric; larger ones cannot be added up, weighted by samples."""
_Pair = tuple[_Count, _Count]
"""A value, and how many clients in a row have it."""


@dataclass(frozen=True)
class Contents:
    """The content of a run's data set, the same for every seed.

    Attributes:
        sha256: digest of the data set and of its division into splits.
        images: domain -> number of samples.
        published: domain -> number of samples in the published data set; empty: unknown.
    """

    sha256: str
    images: dict[str, _Count]
    published: dict[str, _Count]


class _Labels(TypedDict):
    train: list[_Count]
    val: NotRequired[list[_Count]]
    test: NotRequired[list[_Count]]


class _Client(TypedDict):
    train: _Count
    val: _Count
    test: _Count
    domain: _Count | None
    labels: NotRequired[_Labels]


class _Clients(TypedDict):
    """A summary of many clients; each needs 40 bytes, so more than 10^7 could fill the memory."""

    count: Annotated[_Count, Field(le=10**7)]
    train: list[_Pair]
    val: list[_Pair]
    test: list[_Pair]
    domain: list[tuple[_Count | None, _Count]]


class _Figure(TypedDict):
    name: str
    higher: bool
    percent: bool


class _Task(TypedDict):
    """What is learned, of data whose labels are no classes."""

    class_path: str
    outputs: _Count
    targets: list[str | _Count]
    figure: _Figure


class _Partition(TypedDict):
    domain_names: list[str]
    clients: list[_Client] | _Clients
    pool: NotRequired[Contents]
    common_test: NotRequired[_Count]
    remarks: NotRequired[list[str]]
    sha256: NotRequired[str]
    strata: NotRequired[str]
    task: NotRequired[_Task]
    trains_on_val: NotRequired[Literal[True]]
    attackers: NotRequired[list[_Count]]


class _Score(BaseModel, extra="allow", defer_build=True):
    """Columns with a value or null per client, or per entry of ``clients``; the whole loss may be null."""

    __pydantic_extra__: dict[str, list[_Number]]
    score: list[_Count | _Number]
    loss: list[_Number] | None
    clients: list[_Count] = []


_Views = dict[str, dict[_Split, _Score]]


class _Untrained(TypedDict):
    clients: list[_Count]
    unlisted: list[_Count]
    view: NotRequired[str | None]


class _BeforeRound(TypedDict):
    clients: list[_Count]
    dropped: list[_Count]
    up: dict[str, list[_Count]]
    down: dict[str, list[_Count]]


class _Record(TypedDict):
    round: _Count
    cohort: list[_Count]
    dropped: list[_Count]
    samples: list[_Count]
    steps: list[_Count]
    loss: list[_Number]
    up: dict[str, list[_Count]]
    down: dict[str, list[_Count]]
    before_round: NotRequired[_BeforeRound]
    not_finite: NotRequired[list[str]]
    evaluation: NotRequired[dict[EvaluationPoint, _Views]]
    untrained: NotRequired[_Untrained]
    figures: NotRequired[dict[str, _Number | list[_Number]]]
    privacy: NotRequired[str]


class _Class(TypedDict):
    class_path: str
    init_args: NotRequired[dict[str, JsonValue] | None]


class Cell(Value, place="cell"):
    """The place of a run in a table of experiments; reports sort runs by it."""

    _fixed = True

    table: str
    """The table's name, such as ``fedco2_t3``."""
    row: str
    """Name of the row."""
    column: str
    """Name of the column."""
    changed: list[str] = field(default_factory=list)
    """Settings that differ from those of the table file, as ``key=value``."""


class Config(BaseModel, extra="allow", defer_build=True):
    """The keys of ``config.yaml`` that reports and resumed runs read before they check the rest."""

    __pydantic_extra__: dict[str, JsonValue]
    rounds: Annotated[_Count, Field(ge=1)]
    clients: Annotated[_Count, Field(ge=1)] = 1
    seed: Annotated[int, Field(strict=True, ge=-(2**53), le=2**53)] = 0
    method: str | _Class = ""
    data: str | _Class = ""
    net: str | _Class | list[JsonValue] = ""
    training: str | dict[str, JsonValue] = ""
    protocol: str | _Class = ""
    cell: Cell | None = None


class Summary(TypedDict):
    """The keys of ``summary.json`` that are read back."""

    completed: _Count
    early: NotRequired[Annotated[bool, Field(strict=True)]]


class Environment(TypedDict):
    """The keys of ``environment.json`` that are read back."""

    resumed: NotRequired[list[dict[str, Any]]]
    code: NotRequired[dict[str, str]]


def check_partition(content: Any) -> None:
    """Check the content of ``partition.json``, as far as it is read again."""
    convert_content(_Partition, content)
    clients = content["clients"]
    if isinstance(clients, dict):
        runs = [clients[name] for name in (*SPLITS, "domain")]
        if any(sum(count for _, count in each) != clients["count"] for each in runs):
            raise ValueError("it is not of as many clients as it says")
        domains = [domain for domain, _ in clients["domain"]]
    else:
        domains = [client["domain"] for client in clients]
    if any(domain is not None and domain >= len(content["domain_names"]) for domain in domains):
        raise ValueError("a client is of a domain that there is not")


def check_record(record: Mapping[str, Any], samples: Mapping[str, np.ndarray], share: bool = True) -> None:
    """Check a line of ``metrics.jsonl``.

    Args:
        record: the line.
        samples: split -> number of samples of each client, int64 [clients].
        share: whether scores are sums of shares of samples, from 0 to 1 each.
    """
    convert_content(_Record, record)
    everyone, cohort = range(len(samples["test"])), record["cohort"]
    untrained = record.get("untrained", {"clients": [], "unlisted": []})
    _check_ascending(cohort, everyone)
    _check_ascending(record["dropped"], {*cohort})
    _check_ascending(untrained["clients"], everyone)
    _check_ascending(untrained["unlisted"], {*untrained["clients"]})
    columns = [record["steps"], record["loss"], *record["up"].values(), *record["down"].values()]
    if record["samples"] != samples["train"][cohort].tolist() or {*map(len, columns)} != {len(cohort)}:
        raise ValueError("its samples, steps, losses or bytes are not those of the cohort")
    if before := record.get("before_round"):
        _check_ascending(before["clients"], everyone)
        _check_ascending(before["dropped"], {*before["clients"]})
        if {*map(len, (*before["up"].values(), *before["down"].values()))} - {len(before["clients"])}:
            raise ValueError("its bytes before the round are not those of its clients")
    for views in record.get("evaluation", {}).values():
        _check_clients(views, samples, share)


def _check_clients(views: Mapping[str, Any], samples: Mapping[str, np.ndarray], share: bool) -> None:
    for view, splits in views.items():
        for split, score in splits.items():
            if split not in samples:
                raise ValueError("it has scores on a common test set, which the run does not have")
            held, some = samples[split], score.get("clients")
            if some is not None:
                _check_ascending(some, range(len(held)))
                held = held[some]
            columns = [column for name, column in score.items() if name != "clients" and column is not None]
            scored = zip(score["score"], held.tolist(), strict=False)
            beyond = share and any(c is not None and not 0 <= c <= n for c, n in scored)
            if {*map(len, columns)} != {len(held)} or beyond:
                raise ValueError(f"{split} of view {short_repr(view)} is of other clients or samples")


def _check_ascending(clients: Sequence[int], among: Container[int]) -> None:
    if clients != sorted({client for client in clients if client in among}):
        raise ValueError("clients must be different ones, in ascending order, of those that there are")
