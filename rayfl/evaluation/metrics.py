"""Metrics over clients, derived from the scores of single ones.

Figures are the task's: of classes accuracies in [0, 1], of numbers squared errors. Clients without data
(n = 0) or without a score are left out of every metric, and counted. A round is chosen by its number or by
validation data. Only a protocol that asks for ``best_test`` chooses it by the test data on which it is
reported.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Literal

import numpy as np

from rayfl.data.task import ACCURACY
from rayfl.evaluation.protocol import Average, Protocol
from rayfl.record.history import History, Population, Scores, evaluations

CHOICES = ("last", "best_val", "last_k")
"""The ways of choosing rounds that every summary reports, whatever the protocol."""

AVERAGES: dict[Average, str] = {"mean_clients": "mean", "pooled": "pooled", "weighted": "weighted"}
"""Under which name :func:`client_metrics` returns what a protocol's ``average`` means."""

Metric = Literal["figure", "worst_decile", "loss"]
"""What points of a sweep can be compared by."""


def client_metrics(score: np.ndarray, population: Population, split: str = "test") -> dict[str, float]:
    """Return the metrics of one evaluation over its clients.

    Args:
        score: float64 [clients], the sum of the figure over samples; NaN for clients without a score.
        population: the clients.
        split: the part of their data that was scored.

    Returns:
        ``mean``, ``median`` and ``std`` (population) of the clients' figures; ``worst_decile``, the mean of
        the worst tenth (of ceil(clients / 10)); ``pooled``, score over samples; ``weighted``, figures
        weighted by training samples; ``clients``, how many count, and ``left_out``, how many do not. All
        figures are NaN where no client counts.
    """
    samples = population.samples[split]
    counted = (samples > 0) & ~np.isnan(score)
    n = int(counted.sum())
    counts = {"clients": n, "left_out": len(population) - n}
    if n == 0:
        names = ("mean", "median", "std", "worst_decile", "pooled", "weighted")
        return dict.fromkeys(names, math.nan) | counts
    score, samples = score[counted], samples[counted]
    figures = np.sort(score / samples)
    train = population.samples["train"][counted]
    weighted = float(train @ (score / samples)) / train.sum() if train.sum() > 0 else math.nan
    return {
        "mean": float(figures.mean()),
        "median": float(np.median(figures)),
        "std": float(figures.std()),
        "worst_decile": float(figures[:: population.figure.sign][: math.ceil(n / 10)].mean()),
        "pooled": float(score.sum() / samples.sum()),
        "weighted": float(weighted),
        **counts,
    }


def average(found: Mapping[str, float], how: Average) -> float:
    """Return the metric that a protocol's ``average`` means."""
    return found[AVERAGES[how]]


def round_figure(
    record: Mapping[str, Any], population: Population, protocol: Protocol, split: str = "test"
) -> float | None:
    """Return the figure of the protocol's view and average; None in a round without such scores.

    Args:
        record: the line of ``metrics.jsonl``.
        population: the clients.
        protocol: of the run.
        split: ``test`` or ``common``.
    """
    columns = _reported_scores(record, population, protocol, split)
    if columns is None:
        return None
    return none_if_nan(average(client_metrics(columns["score"], population, split), protocol.average))


def _uncounted_attackers(population: Population, protocol: Protocol) -> list[int]:
    """Return the clients that attack, unless the protocol counts these, too."""
    return [*population.attackers] if protocol.clients == "honest" else []


def without_attackers(scores: Scores, population: Population, protocol: Protocol) -> Scores:
    """Return scores, NaN for clients that attack, unless the protocol counts these, too."""
    attackers = _uncounted_attackers(population, protocol)
    return scores.where_counted(~np.isin(np.arange(len(population)), attackers)) if attackers else scores


def counted_columns(
    score: Mapping[str, Any], population: Population, protocol: Protocol
) -> dict[str, np.ndarray]:
    """Return the columns of one evaluation in a round's record, NaN for attackers that do not count.

    Each column, ``score``, ``loss`` or a further metric, is float64 [clients], NaN where there is no value.
    """
    arrays = {name: np.array(values, dtype=np.float64) for name, values in score.items()}
    columns = {name: np.broadcast_to(array, len(population)).copy() for name, array in arrays.items()}
    attackers = _uncounted_attackers(population, protocol)
    for column in columns.values():
        column[attackers] = np.nan
    return columns


def _reported_scores(
    record: Mapping[str, Any], population: Population, protocol: Protocol, split: str, point: str = ""
) -> Mapping[str, np.ndarray] | None:
    """Return the scores in a round's record of the view that the protocol reports; None without any.

    Args:
        record: the line of ``metrics.jsonl``.
        population: the clients.
        protocol: says which view.
        split: the part of their data that was scored.
        point: where it was scored, by default where the protocol says.
    """
    where = (point or protocol.point, split)
    each = evaluations(record, len(population))
    found = {view: score for (at, view, part), score in each if (at, part) == where}
    view = protocol.headline_view(found)
    return None if view is None else counted_columns(found[view], population, protocol)


def client_figures(
    record: Mapping[str, Any], population: Population, protocol: Protocol, split: str
) -> dict[int, float]:
    """Return client -> figure in a round's record, of the view and the point that the protocol reports."""
    columns = _reported_scores(record, population, protocol, split)
    pairs = zip(columns["score"], population.samples[split], strict=True) if columns else ()
    return {
        i: score / samples for i, (score, samples) in enumerate(pairs) if not math.isnan(score) and samples
    }


def none_if_nan(value: float) -> float | None:
    """Return None for NaN, which JSON and people do not read."""
    return None if math.isnan(value) else value


def counted_scores(history: History, protocol: Protocol, point: str, view: str, split: str) -> Scores | None:
    """Return the scores that the protocol counts: without attackers, or of trained clients alone.

    None where the part of the data has not been scored.
    """
    if (scores := history.scores.get((point, view, split))) is None:
        return None
    scores = without_attackers(scores, history.population, protocol)
    if not protocol.trained_only or point.startswith("unseen"):
        return scores
    return scores.where_counted(history.first <= scores.rounds[:, None])


class Validation:
    """The validation scores by which a protocol chooses rounds, as the rounds come.

    Attributes:
        best: rounds that are over after the best one that :meth:`is_best` was told of; 0: there is none yet.

    Args:
        population: the clients.
        protocol: of the run.
    """

    def __init__(self, population: Population, protocol: Protocol) -> None:
        self.population, self.protocol = population, protocol
        self._trained: set[int] = set()
        self._highest, self.best = -math.inf, 0

    def scores(self, record: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray] | None:
        """Return scores and losses of a round, each float64 [clients]; None in one without scores.

        NaN stands for clients that do not count. Every round must be given, in order.
        """
        self._trained |= set(record["cohort"]) - set(record["dropped"])
        point = validated_at(self.protocol.point, self.protocol)
        columns = _reported_scores(record, self.population, self.protocol, "val", point)
        if columns is None:
            return None
        count = len(self.population)
        score, loss = columns["score"], columns["loss"]
        if self.protocol.trained_only:
            untrained = [i for i in range(count) if i not in self._trained]
            score[untrained] = loss[untrained] = np.nan
        return score, loss

    def figure(self, record: Mapping[str, Any]) -> float | None:
        """Return the figure by which ``best_val`` chooses; None in a round without one."""
        found = self.scores(record)
        if found is None:
            return None
        return none_if_nan(average(client_metrics(found[0], self.population, "val"), self.protocol.choose_by))

    def is_best(self, record: Mapping[str, Any]) -> bool:
        """Return whether ``best_val`` would choose this round, in place of :meth:`figure`."""
        figure, sign = self.figure(record), self.population.figure.sign
        if figure is None or sign * figure <= self._highest:
            return False
        self._highest, self.best = sign * figure, record["round"] + 1
        return True


class Patience:
    """Says when a run has gone on for too long without a better validation figure.

    Args:
        rounds: how long; 0 for ever.
        sign: what makes higher better.
    """

    def __init__(self, rounds: int, sign: int = 1) -> None:
        self._rounds, self._sign = rounds, sign
        self._best, self._at = -math.inf, -1

    def ends_run(self, round: int, figure: float | None) -> bool:
        """Take in a round, and say whether the run ends with it; None is a round without evaluation."""
        if figure is None:
            return False
        if self._sign * figure > self._best:
            self._best, self._at = self._sign * figure, round
        return 0 < self._rounds <= round - self._at


def ended_early(history: History, protocol: Protocol) -> bool:
    """Return whether a run's last evaluation has used up the patience of its protocol."""
    if not protocol.patience:
        return False
    point = validated_at(protocol.point, protocol)
    view = protocol.headline_view([view for p, view in history.views() if p == point])
    scores = counted_scores(history, protocol, point, view, "val") if view is not None else None
    if scores is None:
        return False
    patience = Patience(protocol.patience, history.population.figure.sign)
    figures = curve(scores, history.population, "val", protocol.choose_by)
    ends = [patience.ends_run(int(r), none_if_nan(float(f))) for r, f in zip(scores.rounds, figures)]
    return ends[-1]


def curve(scores: Scores, population: Population, split: str, how: Average) -> np.ndarray:
    """Return the figure averaged over clients at every evaluation, float64 [evaluations]."""
    return np.array([average(client_metrics(row, population, split), how) for row in scores.score])


def measure(
    score: np.ndarray,
    loss: np.ndarray,
    population: Population,
    split: str,
    protocol: Protocol,
    metric: Metric,
) -> float | None:
    """Return one metric of one evaluation over its clients; None where there is nothing to compute it from.

    There is no loss where that of a scored client is not finite: without its worst clients, a point whose
    training has diverged would look better than it is.

    Args:
        score: float64 [clients]; NaN for clients without a score.
        loss: float64 [clients]; NaN for clients without one.
        population: the clients.
        split: the part of their data that was scored.
        protocol: says how validation figures are averaged, and by which weights losses are.
        metric: which one.
    """
    if metric == "loss":
        if np.isnan(loss[(population.samples[split] > 0) & ~np.isnan(score)]).any():
            return None
        (mean,) = mean_loss(loss[None], population.samples[split], population, protocol.choose_by)
        return none_if_nan(float(mean))
    found = client_metrics(score, population, split)
    return none_if_nan(
        found["worst_decile"] if metric == "worst_decile" else average(found, protocol.choose_by)
    )


def mean_loss(loss: np.ndarray, samples: np.ndarray, population: Population, how: Average) -> np.ndarray:
    """Return a loss, or another metric, averaged over clients, NaN where none counts: float64 [evaluations].

    Args:
        loss: float64 [evaluations, clients]; NaN for clients without one.
        samples: int64 [clients], of the split that was scored.
        population: the clients.
        how: the average over clients.
    """
    weights = {
        "mean_clients": np.ones(len(population)),
        "pooled": samples,
        "weighted": population.samples["train"],
    }[how]
    present = np.where(np.isnan(loss) | (samples == 0), 0, weights)
    total = present.sum(axis=1)
    sums = (present * np.nan_to_num(loss)).sum(axis=1)
    return np.divide(sums, total, out=np.full(len(total), np.nan), where=total > 0)


def summarise_view(
    history: History, protocol: Protocol, rounds: int, point: str, view: str
) -> dict[str, Any]:
    """Return the metrics of one view under every choice of rounds.

    Args:
        history: the run.
        protocol: its ``k``, ``choose_by`` and ``trained_only`` are used, and its window if it has one.
        rounds: rounds that the run was asked for, or that it had when the protocol's patience ended it.
        point: evaluation point of the scores.
        view: their view.

    Returns:
        ``point``, ``view``, ``evaluations`` (how many) and, under ``last``, ``best_val``, ``last_k`` and,
        for a protocol that asks for it, ``window`` or ``best_test``: the mean metrics (see
        :func:`client_metrics`) over the chosen evaluations, their ``rounds``, the deviation ``over_rounds``
        of mean, pooled and weighted figure over them (population), and ``domains``: name -> ``clients``,
        ``mean``, ``pooled`` and the deviation of these two ``over_rounds``. None where nothing can be chosen.
        In runs with a common test set, all of this for the same evaluations on that, under ``common``. Under
        ``each``, for the splits that
        were scored, every evaluation: ``rounds``, and the ``mean`` over clients and the ``pooled`` figure
        in them. Runs with further metrics have them under ``measures``, too: name -> ``mean``, ``pooled`` and
        ``weighted``, over the chosen evaluations, of each of ``AVERAGES``; None where it is undefined.
        A choice also says of how many clients its last evaluation has scored another model: under
        ``untrained`` the ``clients`` that have never trained, the ``view`` by which they count, see
        ``Method.fallback``, and those of them that are ``unlisted``; after training ``initial`` and
        ``older``, of those with their initial model, and with one of an older round. What is 0 is left out.
    """
    choices = tuple(dict.fromkeys([*CHOICES, protocol.choose]))
    summary: dict[str, Any] = {"point": point, "view": view, "evaluations": 0, **dict.fromkeys(choices)}
    summary["each"] = {}
    population = history.population
    for split in ("val", "test", "common"):
        scores = counted_scores(history, protocol, point, view, split)
        if scores is not None:
            summary["each"][split] = _every_evaluation(scores, population, split)
    tests = counted_scores(history, protocol, point, view, "test")
    if tests is None:
        return summary
    summary["evaluations"] = len(tests.rounds)
    common = counted_scores(history, protocol, point, view, "common")
    validation = counted_scores(history, protocol, validated_at(point, protocol), view, "val")
    places = list(range(len(tests.rounds)))
    chosen_places = {
        "last": places[-1:],
        "best_val": _best_place(tests, validation, population, "val", protocol.choose_by),
        "best_test": _best_place(tests, tests, population, "test", protocol.average),
        "last_k": places[-protocol.k :],
        "window": [i for i in places if protocol.counts(int(tests.rounds[i]), rounds)],
    }
    for choice in choices:
        if chosen := chosen_places[choice]:
            summary[choice] = _chosen_metrics(tests, chosen, population)
            summary[choice] |= _not_up_to_date(history, tests, chosen[-1], point, view)
            if common is not None:
                same = np.flatnonzero(np.isin(common.rounds, tests.rounds[chosen])).tolist()
                summary[choice]["common"] = _chosen_metrics(common, same, population, "common")
    return summary


def _not_up_to_date(history: History, tests: Scores, place: int, point: str, view: str) -> dict[str, Any]:
    """Return how many clients an evaluation has scored by another model than one of their own of now."""
    round = int(tests.rounds[place])
    counted = (tests.samples > 0) & ~np.isnan(tests.score[place])
    if point == "after_training":
        initial = history.first > round
        older = ~initial
        older[history.used[round]] = False
        counts = {"initial": int((counted & initial).sum()), "older": int((counted & older).sum())}
        return {name: count for name, count in counts.items() if count}
    untrained = history.untrained[round]
    if (point, view) != ("after_aggregation", "personal") or not untrained:
        return {}
    clients, unlisted = (int(counted[untrained[name]].sum()) for name in ("clients", "unlisted"))
    found = {"clients": clients, "view": untrained.get("view"), "unlisted": unlisted}
    return {"untrained": found} if clients else {}


def _every_evaluation(scores: Scores, population: Population, split: str) -> dict[str, list[Any]]:
    """Return the figures of every evaluation."""
    found = [client_metrics(row, population, split) for row in scores.score]
    return {
        "rounds": [int(round) for round in scores.rounds],
        **{name: [none_if_nan(each[name]) for each in found] for name in ("mean", "pooled")},
    }


def validated_at(point: str, protocol: Protocol) -> str:
    """Return the point whose validation scores choose rounds: new clients have none, so the others choose."""
    if not point.startswith("unseen"):
        return point
    return "after_aggregation" if protocol.point.startswith("unseen") else protocol.point


def _best_place(
    tests: Scores, judge: Scores | None, people: Population, split: str, by: Average
) -> list[int]:
    """Return the place in ``tests`` with the best figure of a judge, the earliest of equals.

    Args:
        tests: the evaluations.
        judge: the scores that choose; None: nothing can be chosen.
        people: the clients.
        split: the part of the data that the judge has scored.
        by: how its figures are averaged over clients.
    """
    if judge is None:
        return []
    places = {int(r): i for i, r in enumerate(tests.rounds)}
    figures, sign = curve(judge, people, split, by), people.figure.sign
    pairs = zip(judge.rounds.tolist(), figures, strict=True)
    values = {places[r]: sign * value for r, value in pairs if r in places and not math.isnan(value)}
    return [max(values, key=lambda i: (values[i], -i))] if values else []


def _chosen_metrics(
    tests: Scores, chosen: list[int], population: Population, split: str = "test"
) -> dict[str, Any]:
    """Return the mean metrics over the chosen evaluations."""
    each = [client_metrics(tests.score[i], population, split) for i in chosen]
    mean: dict[str, Any] = {name: _mean([found[name] for found in each]) for name in each[0]}
    mean["clients"], mean["left_out"] = each[-1]["clients"], each[-1]["left_out"]
    mean["rounds"] = [int(tests.rounds[i]) for i in chosen]
    mean["over_rounds"] = {name: _deviation([f[name] for f in each]) for name in AVERAGES.values()}
    mean["domains"] = _by_domain(tests.score[chosen], population, split)
    if tests.measures:
        mean["measures"] = _chosen_measures(tests, chosen, population)
    return mean


def _chosen_measures(
    tests: Scores, chosen: list[int], population: Population
) -> dict[str, dict[str, float | None]]:
    """Return the further metrics, averaged over clients and then over those evaluations that have any."""
    found: dict[str, dict[str, float | None]] = {}
    for name, values in tests.measures.items():
        found[name] = {}
        for how, key in AVERAGES.items():
            each = mean_loss(values[chosen], tests.samples, population, how)
            known = each[~np.isnan(each)]
            found[name][key] = float(known.mean()) if len(known) else None
    return found


def _mean(values: list[float]) -> float | None:
    return none_if_nan(float(np.mean(values)))


def _deviation(values: list[float]) -> float | None:
    return none_if_nan(float(np.std(values)))


def _by_domain(score: np.ndarray, population: Population, split: str) -> dict[str, dict[str, Any]]:
    """Return the metrics of each domain, averaged over the rows of ``score`` [evaluations, clients]."""
    names = np.array([name or "" for name in population.domains])
    domains = {}
    for name in dict.fromkeys(n for n in population.domains if n):
        each = [client_metrics(np.where(names == name, row, np.nan), population, split) for row in score]
        domains[name] = {
            "clients": each[-1]["clients"],
            "mean": _mean([found["mean"] for found in each]),
            "pooled": _mean([found["pooled"] for found in each]),
            "over_rounds": {name: _deviation([f[name] for f in each]) for name in ("mean", "pooled")},
        }
    return domains


def summarise(history: History, protocol: Protocol, rounds: int, early: bool | None = None) -> dict[str, Any]:
    """Return the content of ``summary.json``.

    Args:
        history: the run.
        protocol: says which metric is the headline.
        rounds: rounds that the run was asked for; it may have stopped before.
        early: whether patience has ended it, where that is not for the protocol to say.

    Returns:
        ``protocol``, ``rounds``, ``completed`` (rounds), ``early`` (whether the protocol's patience has
        ended the run), ``clients``, ``loss`` (training loss of the last round), ``up`` and ``down`` (bytes,
        all rounds), ``dropped`` (updates not used), ``not_finite`` (values that were NaN or infinite),
        ``empty`` (rounds without clients, if there were any), ``k``, ``views`` (see :func:`summarise_view`)
        and ``headline``; also the ``figure``, where it is no accuracy, and of runs with a transform for
        privacy the guarantee, ``privacy``, and the ``epsilon`` spent, if there is one.
    """
    early = ended_early(history, protocol) if early is None else early
    end = history.rounds[-1]["round"] + 1 if early else rounds
    views = [summarise_view(history, protocol, end, point, view) for point, view in history.views()]
    last = history.rounds[-1] if history.rounds else {}
    return {
        "protocol": str(protocol),
        "rounds": rounds,
        "completed": len(history.rounds),
        "early": early,
        "clients": len(history.population),
        "loss": history.rounds[-1]["loss"] if history.rounds else None,
        **{name: sum(entry[name] for entry in history.rounds) for name in ("up", "down", "dropped")},
        "not_finite": history.not_finite,
        **({"empty": empty} if (empty := sum(not entry["cohort"] for entry in history.rounds)) else {}),
        "k": protocol.k,
        "length": protocol.length,
        **({} if (figure := history.population.figure) == ACCURACY else {"figure": asdict(figure)}),
        **{name: last[name] for name in ("privacy", "epsilon") if name in last},
        "views": views,
        "headline": headline(views, protocol),
    }


_KEPT = ("rounds", "clients", "left_out", "untrained", "initial", "older")
"""What a headline has of a choice as it is."""


def headline(views: list[dict[str, Any]], protocol: Protocol) -> dict[str, Any] | None:
    """Return what a table prints of a run, from the summaries of all views.

    Returns:
        ``figure``; ``std``, its deviation over the averaged evaluations, None for a single one;
        ``spread``: what the "±" of a table is over, ``runs`` or ``evaluations`` (then it is ``std``);
        ``averages``: the same rounds under every average over clients, name -> ``figure``, ``std``;
        ``domains``: name -> ``clients``, ``figure``, ``std``, and ``domain_mean``, the mean figure of the
        domains (None without domains); both are pooled within a domain if the protocol pools, and means over
        its clients otherwise. Under ``measures``, in runs with further metrics, name -> their value, averaged
        like the figure. Under ``common``, in runs with a common test set, ``figure`` and ``std`` on that
        in the same rounds, and how many ``clients`` count there and are ``left_out``. Further ``point``,
        ``view``, ``average``, ``choose``; ``rounds``, ``clients``, ``left_out`` and, where there are such
        clients, ``untrained``, ``initial`` and ``older`` as in :func:`summarise_view`. None where the run has
        no score that the protocol counts.
    """
    candidates = {entry["view"]: entry for entry in views if entry["point"] == protocol.point}
    view = protocol.headline_view(candidates)
    chosen = candidates[view][protocol.choose] if view is not None else None
    if view is None or chosen is None:
        return None
    single = len(chosen["rounds"]) == 1
    averages = {how: _with_deviation(chosen, name, single) for how, name in AVERAGES.items()}
    within = "pooled" if protocol.average == "pooled" else "mean"
    domains = {
        name: {"clients": found["clients"], **_with_deviation(found, within, single)}
        for name, found in chosen["domains"].items()
    }
    scored = [d["figure"] for d in domains.values() if d["figure"] is not None]
    each = chosen.get("measures", {}).items()
    measures = {name: values[AVERAGES[protocol.average]] for name, values in each}
    beside = {}
    if common := chosen.get("common"):
        beside = _with_deviation(common, AVERAGES[protocol.average], single)
        beside |= {name: common[name] for name in ("clients", "left_out")}
    return {
        **averages[protocol.average],
        "spread": protocol.spread,
        "averages": averages,
        "domains": domains,
        "domain_mean": _mean(scored) if scored else None,
        **({"measures": measures} if measures else {}),
        **({"common": beside} if beside else {}),
        "point": protocol.point,
        "view": view,
        "average": protocol.average,
        "choose": protocol.choose,
        **{name: chosen[name] for name in _KEPT if name in chosen},
    }


def _with_deviation(found: Mapping[str, Any], name: str, single: bool) -> dict[str, float | None]:
    """Return a metric of the chosen evaluations with its deviation over them."""
    return {"figure": found[name], "std": None if single else found["over_rounds"][name]}
