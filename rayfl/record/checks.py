"""What the files of a run folder may hold; they may be damaged, or a stranger's.

Every function raises ``ValueError`` that says what is wrong. What passes can be used without another look.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np

from rayfl.arguments import shown
from rayfl.splits import SPLITS

Point = Literal["after_aggregation", "after_training", "unseen", "unseen_adapted", "unseen_control"]
"""When models are scored, see ``Protocol``."""

_COUNT = 2**53
"""Larger counts are not exact in the arithmetic of means."""
_CLIENTS = 10**8
"""A summary of more clients is damaged: it would fill the memory."""
_LOSS = 1e280
"""Larger losses cannot be added up, weighted by samples."""
_KINDS: dict[str, tuple[type, ...]] = {
    "method": (str, dict),
    "data": (str, dict),
    "net": (str, dict, list),
    "training": (str, dict),
    "protocol": (str, dict),
}
_NAMED: dict[tuple[type, ...], str] = {
    (str, dict): "a name or a mapping",
    (str, dict, list): "a name, a mapping or a list of them",
}


def check_partition(content: Any) -> None:
    """Check the content of ``partition.json``, as far as it is read again."""
    _mapping(content, "it")
    names, clients = content.get("domain_names"), content.get("clients")
    _list_of(names, str, "domain_names")
    _check_pool(content.get("pool", {"sha256": "", "images": {}, "published": {}}))
    if isinstance(clients, dict):
        _check_summary(clients, len(names))
        return
    _list_of(clients, dict, "clients")
    for number, client in enumerate(clients):
        for split in SPLITS:
            _count(client.get(split), f"{split} of client {number}")
        domain = client.get("domain")
        if domain is not None and not (type(domain) is int and 0 <= domain < len(names)):
            raise ValueError(f"client {number} has domain {shown(domain)}, and there are {len(names)}")
    labels = [client["labels"] for client in clients if "labels" in client]
    if labels and len(labels) < len(clients):
        raise ValueError("some clients have labels and others have none")
    for number, counts in enumerate(labels):
        _mapping(counts, f"labels of client {number}")
        if counts.keys() != labels[0].keys() or not counts.keys() <= {*SPLITS}:
            raise ValueError(f"labels of client {number} are of other splits")
        for split, column in counts.items():
            _counts(column, f"{split} labels of client {number}", None)
            if len(column) != len(labels[0][split]) or sum(column) != clients[number][split]:
                raise ValueError(f"{split} labels of client {number} do not add up")


def _check_summary(clients: Mapping[str, Any], domains: int) -> None:
    """Check what stands for many clients."""
    _count(clients.get("count"), "count of clients")
    if clients["count"] > _CLIENTS:
        raise ValueError(f"it says that there are {clients['count']} clients, more than can be")
    for name in (*SPLITS, "domain"):
        runs: Any = clients.get(name)
        _list_of(runs, list, f"{name} of the clients")
        if any(len(run) != 2 for run in runs):
            raise ValueError(f"{name} of the clients must be pairs of a value and a number of clients")
        _counts([n for _, n in runs], f"numbers of clients of {name}", None)
        if sum(n for _, n in runs) != clients["count"]:
            raise ValueError(f"{name} is not of as many clients as there are")
        values = [value for value, _ in runs if not (name == "domain" and value is None)]
        _counts(values, f"{name} of the clients", None)
        if name == "domain" and max(values, default=-1) >= domains:
            raise ValueError(f"a client has domain {max(values)}, and there are {domains}")


def _check_pool(pool: Any) -> None:
    _mapping(pool, "pool")
    if not isinstance(pool.get("sha256"), str):
        raise ValueError("pool has no sha256")
    for key in ("images", "published"):
        _mapping(pool.get(key), f"{key} of the pool")
        _counts([*pool[key].values()], f"{key} of the pool", None)


def check_record(record: Mapping[str, Any], samples: Mapping[str, np.ndarray]) -> None:
    """Check a line of ``metrics.jsonl``.

    Args:
        record: the line.
        samples: per split int64 [clients], how many samples each client has.
    """
    _count(record.get("round"), "round")
    cohort: Any = record.get("cohort")
    _ascending(cohort, "cohort", range(len(samples["test"])))
    _ascending(record.get("dropped"), "dropped", cohort)
    for key in ("samples", "steps"):
        _counts(record.get(key), key, len(cohort))
    if record["samples"] != samples["train"][cohort].tolist():
        raise ValueError("samples are not those of the cohort")
    _losses(record.get("loss"), "loss", len(cohort))
    for key in ("up", "down"):
        _mapping(record.get(key), key)
        for name, column in record[key].items():
            _counts(column, f"{key} of {name}", len(cohort))
    _list_of(record.get("not_finite", []), str, "not_finite")
    points = record.get("evaluation", {})
    _mapping(points, "evaluation")
    for point, views in points.items():
        if point not in get_args(Point):
            raise ValueError(f"{shown(point)} is no evaluation point")
        check_scores(views, samples)
    untrained = record.get("untrained", {"clients": [], "unlisted": []})
    _mapping(untrained, "untrained")
    if not isinstance(untrained.get("view"), str | None):
        raise ValueError("the view of untrained must be a name")
    _ascending(untrained.get("clients"), "untrained clients", range(len(samples["test"])))
    _ascending(untrained.get("unlisted"), "unlisted clients", untrained["clients"])
    figures = record.get("figures", {})
    _mapping(figures, "figures")
    for name, figure in figures.items():
        _losses(figure if isinstance(figure, list) else [figure], f"figures of {name}", None)


def check_scores(views: Any, samples: Mapping[str, np.ndarray]) -> None:
    """Check the scores of all clients at one evaluation point.

    Args:
        views: view -> split -> ``correct``, ``loss`` and further metrics, each with a value or null per
            client; the loss may be null as a whole. With ``clients`` they are of these alone.
        samples: per split int64 [clients], how many samples each client has.
    """
    _mapping(views, "the views")
    for view, splits in views.items():
        _mapping(splits, f"view {shown(view)}")
        for split, score in splits.items():
            where = f"{split} of view {shown(view)}"
            if split not in samples:
                raise ValueError(f"{where} is no part of the data")
            _mapping(score, where)
            scored = samples[split]
            if "clients" in score:
                _ascending(score["clients"], f"clients in {where}", range(len(scored)))
                scored = scored[score["clients"]]
            counts, correct = scored.tolist(), score.get("correct")
            _list(correct, f"correct in {where}", len(counts))
            if not set(map(type, correct)) <= {int, type(None)}:
                raise ValueError(f"correct in {where} must be whole numbers")
            if not all(0 <= c <= count for c, count in zip(correct, counts, strict=True) if c is not None):
                raise ValueError(f"correct in {where} is negative, or more than there are samples")
            if "loss" not in score or score["loss"] is not None:
                _losses(score.get("loss"), f"loss in {where}", len(counts))
            for name in score.keys() - {"clients", "correct", "loss"}:
                _losses(score[name], f"{shown(name)} in {where}", len(counts))


def check_config(config: Any) -> None:
    """Check what reports and resumed runs take from ``config.yaml`` before they know what it means."""
    _mapping(config, "it")
    _check_plain(config)
    for key, least in (("rounds", 1), ("clients", 1), ("seed", None)):
        value = config.get(key, 1)
        if type(value) is not int or (least is not None and value < least) or abs(value) > _COUNT:
            raise ValueError(
                f"{key} is {shown(value)}: it must be a whole number" + (" above 0" * bool(least))
            )
    for key in ("method", "data", "net", "training", "protocol"):
        kinds = _KINDS[key]
        if not isinstance(config.get(key, ""), kinds):
            raise ValueError(f"{key} is {shown(config[key])}: it must be {_NAMED[kinds]}")
    for key in ("net", "protocol"):
        if isinstance(config.get(key), dict) and "class_path" not in config[key]:
            raise ValueError(f"{key} names no class")
    cell = config.get("cell")
    if cell is not None:
        _mapping(cell, "cell")
        if not all(isinstance(cell.get(key), str) for key in ("table", "row", "column")):
            raise ValueError("cell must name table, row and column")
        _list_of(cell.get("changed", []), str, "cell.changed")


def _check_plain(config: Mapping[Any, Any]) -> None:
    """Check that there are nests of names and plain values only."""
    nodes: list[tuple[str, Any]] = [("", config)]
    while nodes:
        where, node = nodes.pop()
        if isinstance(node, Mapping):
            if odd := [key for key in node if not isinstance(key, str)]:
                raise ValueError(f"the name {shown(odd[0])} is no text")
            if "class_path" in node:
                if not isinstance(node["class_path"], str):
                    raise ValueError(f"{where}class_path must be the path of a class")
                for key in ("init_args", "dict_kwargs"):
                    if node.get(key) is not None:
                        _mapping(node[key], f"{where}{key}")
            nodes += [(f"{where}{key}.", value) for key, value in node.items()]
        elif isinstance(node, list):
            nodes += [(where, value) for value in node]
        elif node is not None and not isinstance(node, str | bool | int | float):
            raise ValueError(f"{where.rstrip('.')} is neither text nor number")


def check_summary(summary: Any) -> None:
    """Check what is read again of ``summary.json``."""
    _mapping(summary, "it")
    _count(summary.get("completed"), "completed")
    if not isinstance(summary.get("early", False), bool):
        raise ValueError("early must be true or false")


def check_environment(environment: Any) -> None:
    """Check what is read again of ``environment.json``."""
    _mapping(environment, "it")
    _list_of(environment.get("resumed", []), dict, "resumed")


# ---- values


def _mapping(value: Any, what: str) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{what} must be a mapping")


def _list(value: Any, what: str, length: int | None) -> None:
    if not isinstance(value, list) or length not in (None, len(value)):
        raise ValueError(f"{what} must be a list" + (f" of {length}" if length is not None else ""))


def _list_of(value: Any, kind: type, what: str) -> None:
    _list(value, what, None)
    if not set(map(type, value)) <= {kind}:
        raise ValueError(f"{what} must be a list of {'texts' if kind is str else 'mappings'}")


def _count(value: Any, what: str) -> None:
    if type(value) is not int or not 0 <= value <= _COUNT:
        raise ValueError(f"{what} is {shown(value)}: it must be a whole number of at least 0")


def _counts(values: Any, what: str, length: int | None) -> None:
    _list(values, what, length)
    if not set(map(type, values)) <= {int} or (values and not 0 <= min(values) <= max(values) <= _COUNT):
        raise ValueError(f"{what} must be whole numbers of at least 0")


def _losses(values: Any, what: str, length: int | None) -> None:
    _list(values, what, length)
    if not set(map(type, values)) <= {int, float, type(None)}:
        raise ValueError(f"{what} must be numbers")
    known: Iterable[float] = [x for x in values if x is not None]
    if not all(-_LOSS <= x <= _LOSS for x in known):
        raise ValueError(f"{what} must be numbers that can be added up")


def _ascending(values: Any, what: str, among: Sequence[int]) -> None:
    _list(values, what, None)
    fine = set(map(type, values)) <= {int}
    if fine and values:  # in ascending order the ends tell of all
        fine = (
            min(values) in among and max(values) in among
            if isinstance(among, range)
            else set(values) <= set(among)
        )
    if not fine or any(a >= b for a, b in pairwise(values)):
        raise ValueError(f"{what} must be different clients in ascending order, of those that there are")
