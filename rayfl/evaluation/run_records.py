"""The records of a run: its folder as tidy tables and a summary."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from rayfl.data.task import Figure
from rayfl.errors import Damaged
from rayfl.evaluation.metrics import counted_scores, curve, mean_loss, summarise, without_attackers
from rayfl.evaluation.protocol import Protocol, read_protocol, with_protocol
from rayfl.record.folder import check_is, read_config, read_environment
from rayfl.record.history import CONFIG, METRICS, History, Scores, read_history
from rayfl.settings.base import DisplayMixin, UnquotedText
from rayfl.system.own_code import FROZEN, MARKED, UNTIL

if TYPE_CHECKING:
    import pandas as pd  # at run time where tables are made: a run should not wait for it to start

Curve = tuple[np.ndarray, np.ndarray]
"""Completed rounds, ascending, and a value at each."""


@dataclass(frozen=True, repr=False)
class RunRecords(DisplayMixin):
    """The records of a run, finished or not.

    Attributes:
        folder: the run folder.
        config: its configuration.
        history: its records as arrays.
        summary: the metrics of :func:`rayfl.evaluation.metrics.summarise`, as in ``summary.json``.
    """

    folder: Path
    config: dict[str, Any]
    history: History
    summary: dict[str, Any]

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read a run folder; a run that was stopped gives the rounds that it completed."""
        folder = Path(folder)
        check_is(folder, "run")
        config, history = read_config(folder), read_history(folder)
        if len(history.rounds) > config["rounds"]:
            raise Damaged(
                folder / METRICS,
                f"has {len(history.rounds)} rounds, and {CONFIG} beside it says rounds: {config['rounds']}; "
                "restore both from a copy",
            )
        return cls.from_history(folder, config, history)

    @classmethod
    def from_history(cls, folder: Path, config: dict[str, Any], history: History) -> Self:
        """Return the records of a run with the summary that its configuration asks for."""
        return cls(folder, config, history, summarise(history, read_protocol(config), config["rounds"]))

    def scored(self, **headline: str | None) -> Self:
        """Return the run with another headline, made of the same records.

        Args:
            headline: ``point``, ``view``, ``average`` and ``choose``, in the place of these options of the
                protocol; None is the protocol's. A run without the view gets no headline of another one.
        """
        changes = {name: value for name, value in headline.items() if value is not None}
        if not changes:
            return self
        scores = {
            key: each for key, each in self.history.scores.items() if changes.get("view", key[1]) == key[1]
        }
        history, config = replace(self.history, scores=scores), with_protocol(self.config, **changes)
        early = self.summary["early"]
        summary = summarise(history, read_protocol(config), self.config["rounds"], early)
        return replace(self, config=config, history=history, summary=summary)

    def _repr_line_(self) -> dict[str, Any]:
        rounds = UnquotedText(f"{self.summary['completed']} of {self.summary['rounds']}")
        figure = {self.figure_kind.name: UnquotedText(f"{self.figure:.4g}")}
        return {"folder": str(self.folder), "rounds": rounds, **figure}

    @cached_property
    def protocol(self) -> Protocol:
        """The protocol of the headline."""
        return read_protocol(self.config)

    @property
    def view(self) -> dict[str, Any] | None:
        """The summary of the headline's view, at the protocol's evaluation point; None: it has no scores."""
        entries = {
            each["view"]: each for each in self.summary["views"] if each["point"] == self.protocol.point
        }
        name = self.protocol.headline_view(entries)
        return None if name is None else entries[name]

    @property
    def chosen(self) -> dict[str, Any]:
        """The metrics of that view at the rounds that the protocol chooses; empty: it can choose none."""
        return (self.view or {}).get(self.protocol.choose) or {}

    @property
    def scores(self) -> Scores | None:
        """The test scores of that view which the protocol counts."""
        if self.view is None:
            return None
        return counted_scores(self.history, self.protocol, self.view["point"], self.view["view"], "test")

    def curve(self, quantity: str = "figure", scores: Scores | None = None, split: str = "test") -> Curve:
        """Return completed rounds and a value at each, averaged over clients as the protocol says.

        Args:
            quantity: ``figure``, as it is printed, ``loss``, or a recorded metric.
            scores: what is averaged; by default the headline's. Evaluations without a value are left out.
            split: on which they were scored.
        """
        if (scores := self.scores if scores is None else scores) is None:
            return np.zeros(0), np.zeros(0)
        population, average = self.history.population, self.protocol.average
        if quantity == "figure":
            values = self.figure_kind.scale * curve(scores, population, split, average)
        else:
            recorded = {"loss": scores.loss, **scores.measures}
            found = recorded.get(quantity, np.full_like(scores.loss, np.nan))
            values = mean_loss(found, scores.samples, population, average)
        known = ~np.isnan(values)
        return scores.rounds[known] + 1, values[known]

    @property
    def figure(self) -> float:
        """The headline's test figure, of classes the accuracy in [0, 1]; NaN where there is no score."""
        headline = self.summary["headline"]
        return float("nan") if headline is None or headline["figure"] is None else headline["figure"]

    @property
    def figure_kind(self) -> Figure:
        """The figure by which its models are reported and chosen."""
        return self.history.population.figure

    @property
    def method(self) -> str:
        """The class name of its method."""
        return str(self.config["method"]["class_path"]).rpartition(".")[2]

    @cached_property
    def code(self) -> dict[str, str]:
        """Digests of rayfl's and the user's own code, by name, as ``environment.json`` has them."""
        beside = (*MARKED, FROZEN)
        return {name: own for name, own in self._recorded_code if name.partition(UNTIL)[0] not in beside}

    @cached_property
    def machine(self) -> dict[str, str]:
        """Versions of libraries, kind of processor and frozen weights, all that the run has had, by name."""
        found = [(name.partition(UNTIL)[0], version) for name, version in self._recorded_code]
        versions = {
            name: dict.fromkeys(own for known, own in found if known == name) for name in (*MARKED, FROZEN)
        }
        return {name: " and ".join(own) for name, own in versions.items() if own}

    @cached_property
    def _recorded_code(self) -> list[tuple[str, str]]:
        return [*read_environment(self.folder).get("code", {}).items()]

    @property
    def complete(self) -> bool:
        """Whether all rounds of the configuration are recorded, or those up to an early end."""
        return bool(self.summary["completed"] >= self.summary["rounds"] or self.summary["early"])

    @cached_property
    def clients(self) -> pd.DataFrame:
        """One row per round, point, view, split and client (see :func:`client_table`)."""
        return client_table(self.history)

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """One row per round (see :func:`round_table`)."""
        return round_table(self.history, self.protocol)


def run_folders(paths: Iterable[Path]) -> list[Path]:
    """Return the run folders among the paths and below them; a path without any is returned as it is."""
    found: list[Path] = []
    for path in paths:
        below = [] if (path / CONFIG).is_file() else sorted(c.parent for c in path.rglob(CONFIG))
        found += below or [path]
    return list(dict.fromkeys(found))


def client_table(history: History) -> pd.DataFrame:
    """Return all scores as they were recorded, one row each.

    Columns: ``round`` (from 0), ``point``, ``view``, ``part``, ``client``, ``domain`` (missing for clients
    with several), ``samples``, ``score``, ``figure``, ``loss`` (missing where the view has none), and
    one of its own for every further metric that was asked for (missing where it is undefined).
    Clients without data or without a score have no row.
    """
    import pandas as pd

    columns = ["round", "point", "view", "part", "client", "domain", "samples", "score", "figure", "loss"]
    domains = np.array(history.population.domains, dtype=object)
    blocks = []
    for (point, view, split), scores in history.scores.items():
        place, client = np.nonzero(~np.isnan(scores.figure))
        found = [scores.rounds[place], point, view, split, client, domains[client], scores.samples[client]]
        found += [each[place, client] for each in (scores.score, scores.figure, scores.loss)]
        measures = {name: values[place, client] for name, values in scores.measures.items()}
        blocks.append(pd.DataFrame(dict(zip(columns, found)) | measures))
    if not blocks:
        return pd.DataFrame(columns=columns)
    return pd.concat(blocks, ignore_index=True).sort_values("round", kind="stable", ignore_index=True)


def round_table(history: History, protocol: Protocol) -> pd.DataFrame:
    """Return one row per round: its totals and the mean figures over clients, without uncounted attackers.

    Columns: ``round`` (from 0), ``cohort``, ``dropped``, ``loss``, ``up``, ``down`` (bytes) and, per view,
    point and split, one column ``<split>/<point>/<view>`` with the mean figure over clients, missing in
    rounds without it; and for every further metric a column ``<metric>/<split>/<point>/<view>`` with the mean
    over the clients for which it is defined.
    """
    import pandas as pd

    columns = ["round", "cohort", "dropped", "loss", "up", "down"]
    table = pd.DataFrame(history.rounds, columns=columns).astype({"loss": float})
    for (point, view, split), scores in history.scores.items():
        where, people = f"{split}/{point}/{view}", history.population
        scores = without_attackers(scores, people, protocol)
        means = {where: curve(scores, people, split, "mean_clients")}
        for name, values in scores.measures.items():
            means[f"{name}/{where}"] = mean_loss(values, scores.samples, people, "mean_clients")
        for name, found in means.items():
            table[name] = table["round"].map(pd.Series(found, index=scores.rounds))
    return table
