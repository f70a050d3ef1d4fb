import math

import numpy as np
import pytest

from rayfl import evaluation
from rayfl.evaluation.metrics import (
    Patience,
    Validation,
    client_metrics,
    counted_scores,
    mean_loss,
    measure,
    round_figure,
    summarise,
)
from rayfl.record.history import History, Population, round_totals

DEFAULT = evaluation.Default()


def people(test, train=None, val=None, domains=None):
    """A population with these test sizes; by default 10 validation samples each and domain None."""
    n = len(test)
    names = sorted({d for d in domains or [] if d})
    numbers = [None if not domains or d is None else names.index(d) for d in domains or test]
    columns = {"train": train or [100] * n, "val": val or [10] * n, "test": test, "domain": numbers}
    clients = [dict(zip(columns, values)) for values in zip(*columns.values(), strict=True)]
    return Population.from_partition({"domain_names": names, "clients": clients})


def line(round, correct, val=None, cohort=(0,), point="after_aggregation", view="personal", **more):
    """A record with these numbers of correct answers."""
    given = {"test": correct} | ({} if val is None else {"val": val})
    parts = {part: {"score": found, "loss": [1.0] * len(found)} for part, found in given.items()}
    n = len(cohort)
    made = {"round": round, "cohort": [*cohort], "samples": [100] * n, "loss": [2.0] * n, "steps": [1] * n}
    made |= {"dropped": [], "up": {"weights": [10] * n}, "down": {"weights": [20] * n, "extra": [1] * n}}
    return made | {"evaluation": {point: {view: parts}}} | more


def summary(population, records, protocol=DEFAULT, rounds=None):
    return summarise(History.build(population, records), protocol, rounds or len(records))


def test_figures_of_three_clients_by_hand():
    # Accuracies 8/10, 5/20 and 10/10; client 3 has no data, client 4 no score.
    population = people([10, 20, 10, 0, 10], train=[100, 300, 100, 50, 50])
    found = client_metrics(np.array([8, 5, 10, math.nan, math.nan]), population)
    mean = (0.8 + 0.25 + 1) / 3
    std = math.sqrt((0.8**2 + 0.25**2 + 1) / 3 - mean**2)
    figures = {"mean": mean, "median": 0.8, "std": std, "worst_decile": 0.25, "pooled": 23 / 40}
    weighted = (0.8 * 100 + 0.25 * 300 + 1 * 100) / 500
    assert found == pytest.approx(figures | {"weighted": weighted, "clients": 3, "left_out": 2})


@pytest.mark.parametrize(("clients", "worst"), [(10, 1), (11, 2), (20, 2), (21, 3)])
def test_the_worst_decile_is_the_mean_of_the_lowest_tenth(clients, worst):
    """The worst decile is the mean of the lowest tenth rounded up."""
    correct = np.arange(clients, dtype=float)[::-1]
    found = client_metrics(correct, people([100] * clients))
    assert found["worst_decile"] == pytest.approx(np.arange(worst).mean() / 100)


def test_no_client_with_a_score_gives_nan_and_a_count():
    found = client_metrics(np.array([math.nan, math.nan]), people([0, 10]))
    assert math.isnan(found["mean"])
    assert math.isnan(found["pooled"])
    assert (found["clients"], found["left_out"]) == (0, 2)


def test_best_by_validation_never_looks_at_test_data():
    """Round 0 is best on test, rounds 1 and 3 on validation data, of which the earlier one is taken."""
    records = [line(0, [10, 10], [2, 2]), line(1, [4, 6], [9, 7]), line(2, [7, 7], [5, 5])]
    view = summary(people([10, 10]), [*records, line(3, [7, 7], [8, 8])])["views"][0]
    assert view["best_val"]["rounds"] == [1]
    assert view["best_val"]["mean"] == pytest.approx(0.5)
    assert view["last"]["mean"] == pytest.approx(0.7)
    assert view["last_k"]["mean"] == pytest.approx((1 + 0.5 + 0.7 + 0.7) / 4)
    assert view["last_k"]["rounds"] == [0, 1, 2, 3]


def test_only_who_asks_for_it_gets_the_best_round_by_test_data():
    """The highest mean over clients is that of round 2, the highest share of all samples that of round 1."""
    records = [line(0, [1, 18], [9, 9]), line(1, [1, 22], [2, 2]), line(2, [6, 0], [5, 5])]
    population = people([10, 50])
    assert "best_test" not in summary(population, records)["views"][0]
    for average, round, accuracy in (("mean_clients", 2, 0.3), ("pooled", 1, 23 / 60)):
        asked = evaluation.Default(choose="best_test", average=average)
        headline = summary(population, records, asked)["headline"]
        assert headline["rounds"] == [round]
        assert headline["figure"] == pytest.approx(accuracy)
    assert not asked.needs_validation


def test_without_validation_data_there_is_no_best_round():
    without = summary(people([10], val=[0]), [line(0, [5])])["views"][0]
    assert without["best_val"] is None
    empty = summary(people([10], val=[0]), [line(0, [5], val=[None])])["views"][0]
    assert empty["best_val"] is None


def test_a_window_takes_its_own_rounds():
    """A window takes its own rounds and reports their deviation."""
    window = evaluation.Default(average="pooled", choose="window", length=4, step=2)
    # Of the last four of ten rounds, numbers 6 to 9, every second one that ends with the last: 7 and 9.
    records = [line(r, [r, 0]) for r in (1, 3, 5, 6, 7, 8, 9)]
    headline = summary(people([10, 10]), records, window, rounds=10)["headline"]
    assert headline["rounds"] == [7, 9]
    assert headline["figure"] == pytest.approx((7 + 9) / 2 / 20)
    assert headline["std"] == pytest.approx(1 / 20)


def test_a_window_ends_where_patience_ends_the_run():
    window = evaluation.Default(choose="window", length=4, step=2, patience=4)
    records = [line(r, [r], [5]) for r in range(5)]
    headline = summary(people([10]), records, window, rounds=90)["headline"]
    assert headline["rounds"] == [2, 4]
    assert summary(people([10]), records[:4], window, rounds=90)["headline"] is None  # it is not over


def test_what_fedios_prints():
    """The last five rounds: the latest score of every client that has been trained, also of absent ones."""
    records = []
    for r in range(6):
        correct = [8, None if r < 3 else 3, 5 if r < 3 else 6]
        records.append(line(r, correct, cohort=[r % 3], point="after_training"))
    for made in records:
        scores = {"score": [10, 0, made["round"]], "loss": [1.0] * 3}
        made["evaluation"]["after_aggregation"] = {"global": {"test": scores}}
    found = summary(people([10, 10, 10]), records, evaluation.FediOS())["headline"]
    assert found["rounds"] == [1, 2, 3, 4, 5]
    early, late = (0.8 + 0.5) / 2, (0.8 + 0.3 + 0.6) / 3
    assert found["figure"] == pytest.approx((2 * early + 3 * late) / 5)
    assert found["std"] == pytest.approx(math.sqrt(6) / 5 * (early - late))
    assert found["spread"] == "runs"
    union = summary(people([10, 10, 10]), records, evaluation.FediOSGlobal())["headline"]
    assert (union["view"], union["figure"]) == ("global", pytest.approx((10 + 3) / 30))
    assert (union["domains"], union["domain_mean"]) == ({}, None)


def test_dcpfl_leaves_out_clients_that_have_never_been_trained():
    # Client 2 is only ever scored with its initial model, client 1's first update was dropped.
    records = [
        line(0, [9, 9, 1], cohort=[0, 1], dropped=[1], point="after_training"),
        line(1, [9, 9, 1], cohort=[0], point="after_training"),
        line(2, [9, 5, 1], cohort=[1], point="after_training"),
    ]
    population = people([10, 10, 10])
    history = History.build(population, records)
    counted = counted_scores(history, evaluation.DCPFL(), "after_training", "personal", "test")
    np.testing.assert_array_equal(counted.score, [[9, np.nan, np.nan], [9, np.nan, np.nan], [9, 5, np.nan]])
    headline = summarise(history, evaluation.DCPFL(), 3)["headline"]
    assert headline["figure"] == pytest.approx(0.7)
    assert (headline["clients"], headline["left_out"]) == (2, 1)
    everyone = summarise(history, evaluation.FediOS(), 3)["views"][0]["last"]
    assert everyone["mean"] == pytest.approx(0.5)


def test_the_headline_is_none_without_a_score_that_counts():
    records = [line(0, [5])]
    assert summary(people([10]), records, evaluation.FediOS())["headline"] is None
    assert summary(people([10]), records, evaluation.FediOSGlobal())["headline"] is None
    assert summary(people([10]), records, evaluation.FedCO2Feature())["headline"] is None
    assert summary(people([10]), [line(0, [5], view="global")])["headline"]["view"] == "global"


def test_figures_per_domain():
    population = people([10, 10, 20, 10], domains=["ink", "paper", "ink", None])
    found = summary(population, [line(0, [5, 9, 20, 10])])["views"][0]["last"]["domains"]
    assert list(found) == ["ink", "paper"]
    assert all(each.pop("over_rounds") == {"mean": 0, "pooled": 0} for each in found.values())
    assert found["ink"] == pytest.approx({"clients": 2, "mean": 0.75, "pooled": 25 / 30})
    assert found["paper"] == pytest.approx({"clients": 1, "mean": 0.9, "pooled": 0.9})


# --- what a table of each paper prints, from a history made by hand: three clients with 10, 20 and 30 test
# --- samples, 100, 300 and 100 training samples, in the domains ink, paper and ink


def papers():
    return people([10, 20, 30], train=[100, 300, 100], domains=["ink", "paper", "ink"])


def test_what_fedco2_prints_of_domains():
    """FedCO2 prints domains and their mean at the round best on validation data."""
    records = [
        line(0, [9, 18, 27], [4, 4, 4]),
        line(1, [5, 16, 24], [9, 9, 3]),  # mean validation accuracy .7, the highest
        line(2, [8, 10, 30], [5, 5, 5]),
    ]
    best = summary(papers(), records, evaluation.FedCO2Feature())["headline"]
    assert best["rounds"] == [1]
    assert best["figure"] == pytest.approx((0.5 + 0.8 + 0.8) / 3)
    assert best["domains"]["ink"] == {"clients": 2, "figure": pytest.approx(0.65), "std": None}
    assert best["domains"]["paper"]["figure"] == pytest.approx(0.8)
    assert best["domain_mean"] == pytest.approx((0.65 + 0.8) / 2)
    assert (best["std"], best["spread"]) == (None, "runs")


def test_what_fedco2_prints_of_cifar():
    """FedCO2 on CIFAR prints mean and deviation over evaluations of one run."""
    rounds = 1500
    counted = [r for r in range(rounds) if evaluation.FedCO2CIFAR().counts(r, rounds)]
    records = [line(r, [0, 0, 0]) for r in (99, 1299)]
    records += [line(r, [10, 0, 8 if i % 2 else 14]) for i, r in enumerate(counted)]
    found = summary(papers(), records, evaluation.FedCO2CIFAR(), rounds)["headline"]
    assert len(found["rounds"]) == 40
    assert found["figure"] == pytest.approx(21 / 60)  # pooled: 18 and 24 of 60 in turn
    assert found["std"] == pytest.approx(3 / 60)
    assert found["spread"] == "evaluations"
    assert found["averages"]["mean_clients"]["figure"] == pytest.approx((1 + 0 + 11 / 30) / 3)
    assert found["domains"]["ink"] == pytest.approx({"clients": 2, "figure": 21 / 40, "std": 3 / 40})


@pytest.mark.parametrize("protocol", [evaluation.FDSE, evaluation.FDSEGlobal])
def test_what_fdse_prints(protocol):
    """FDSE prints all and avg of the round best on weighted validation data."""
    where = {"point": protocol().point, "view": protocol().view, "cohort": [0, 1, 2]}
    records = [
        line(0, [10, 4, 30], [9, 3, 9], **where),  # weighted .54, mean .7
        line(1, [5, 20, 15], [4, 8, 4], **where),  # weighted .64, mean .53
    ]
    found = summary(papers(), records, protocol())["headline"]
    assert found["rounds"] == [1]
    assert found["figure"] == pytest.approx(40 / 60)  # ALL
    assert found["averages"]["mean_clients"]["figure"] == pytest.approx((0.5 + 1 + 0.5) / 3)  # AVG
    assert found["averages"]["weighted"]["figure"] == pytest.approx((0.5 * 100 + 1 * 300 + 0.5 * 100) / 500)
    plain = summary(papers(), records, protocol(choose_by="mean_clients"))["headline"]
    assert plain["rounds"] == [0]
    weighted = summary(papers(), records, protocol(average="weighted"))["headline"]
    assert weighted["figure"] == found["averages"]["weighted"]["figure"]


def test_totals_of_a_run():
    records = [
        line(0, [5, 5], cohort=[0, 1]),
        line(1, [6, 6], cohort=[1], dropped=[1], loss=[None], not_finite=["loss.0=nan"]),
    ]
    found = summary(people([10, 10]), records, rounds=5)
    assert (found["rounds"], found["completed"], found["clients"]) == (5, 2, 2)
    assert (found["up"], found["down"]) == (30, 63)
    assert (found["dropped"], found["not_finite"], found["loss"]) == (1, 1, None)


@pytest.mark.parametrize(
    ("rounds", "val", "early"),
    [
        (2, [5, 6, 6, 4], True),  # an equal one is not better
        (2, [5, 6, 6], False),
        (2, [5, 4, 6, 6], False),  # a gap before the best round does not count
        (3, [5, 6, 6, 4], False),
        (0, [5, 4, 4, 4, 4, 4], False),
    ],
)
def test_patience_ends_a_run_early(rounds, val, early):
    protocol = evaluation.Default(patience=rounds)
    records = [line(r, [5], [correct]) for r, correct in enumerate(val)]
    assert summary(people([10]), records, protocol, rounds=9)["early"] is early
    # round by round, as a run sees them
    validation, patience = Validation(people([10]), protocol), Patience(protocol.patience)
    ends = [patience.ends_run(record["round"], validation.figure(record)) for record in records]
    assert ends == [False] * (len(val) - 1) + [early]


def test_patience_counts_rounds_not_evaluations():
    records = [line(0, [5], [5]), line(1, [5], evaluation={}), line(2, [5], [4]), line(3, [5], [4])]
    assert not summary(people([10]), records[:2], evaluation.Default(patience=1), rounds=9)["early"]
    assert summary(people([10]), records[:3], evaluation.Default(patience=2), rounds=9)["early"]
    assert not summary(people([10]), records[:3], evaluation.Default(patience=3), rounds=9)["early"]
    patience = Patience(2)
    assert [patience.ends_run(*each) for each in enumerate((0.5, 0.4, None, 0.5))] == [False] * 3 + [True]


def test_a_client_whose_update_was_dropped_has_not_trained():
    """In the scores as they come, and in those of the whole history."""
    words = evaluation.Default(choose="best_val", trained_only=True)
    records = [
        line(0, [5, 5, 5], [8, 2, 9], cohort=[0, 1], dropped=[1]),
        line(1, [5, 5, 5], [7, 1, 9], cohort=[1]),
    ]
    population = people([10, 10, 10])
    validation = Validation(population, words)
    assert [validation.figure(r) for r in records] == [pytest.approx(0.8), pytest.approx(0.4)]
    history = History.build(population, records)
    scores = counted_scores(history, words, "after_aggregation", "personal", "val")
    assert np.isnan(scores.score).tolist() == [[False, True, True], [False, False, True]]
    assert np.isnan(scores.loss).tolist() == np.isnan(scores.score).tolist()


@pytest.mark.parametrize(("given", "loss"), [([0.5, None], [0.5, np.nan]), (None, [np.nan, np.nan])])
def test_losses_that_are_not_finite(given, loss):
    """They are null in a round's record, one by one or as a whole."""
    made = line(0, [5, 5], [8, 2])
    for part in ("test", "val"):
        made["evaluation"]["after_aggregation"]["personal"][part]["loss"] = given
    correct, found = Validation(people([10, 10]), evaluation.Default()).scores(made)
    assert (correct.tolist(), found.dtype) == ([8.0, 2.0], np.float64)
    np.testing.assert_array_equal(found, loss)
    scores = History.build(people([10, 10]), [made]).scores["after_aggregation", "personal", "test"]
    np.testing.assert_array_equal(scores.loss, [loss])
    np.testing.assert_array_equal(scores.figure, [[0.5, 0.5]])


def test_new_clients_count_though_they_never_train():
    """Also where clients count only once they have been trained."""
    words = evaluation.Default(point="unseen", trained_only=True)
    history = History.build(people([10, 10]), [line(0, [None, 7], cohort=[0], point="unseen")])
    scores = counted_scores(history, words, "unseen", "personal", "test")
    assert scores.score[0, 1] == 7
    found = summarise(history, words, 1)["headline"]
    assert (found["figure"], found["clients"]) == (pytest.approx(0.7), 1)


def test_mean_losses_by_hand():
    """Client 3 has no samples and client 4 no loss; in the second evaluation nobody has."""
    population = people([10, 30, 20, 0, 5], train=[100, 300, 50, 70, 90])
    loss = np.array([[1.0, 2.0, 4.0, 9.0, math.nan], [math.nan] * 5])
    scored = np.array([1, 1, 1, math.nan, math.nan])
    for how, expected in (
        ("mean_clients", (1 + 2 + 4) / 3),
        ("pooled", (1 * 10 + 2 * 30 + 4 * 20) / 60),
        ("weighted", (1 * 100 + 2 * 300 + 4 * 50) / 450),
    ):
        found, protocol = mean_loss(loss, population.samples["test"], population, how), evaluation.Default
        assert found[0] == pytest.approx(expected)
        assert math.isnan(found[1])
        asked = (population, "test", protocol(choose_by=how), "loss")
        assert measure(scored, loss[0], *asked) == pytest.approx(expected)
        assert measure(np.ones(5), loss[0], *asked) is None  # client 4 diverged


def test_the_loss_of_a_round_is_weighed_by_samples():
    made = line(3, [5, 8], cohort=[0, 1], samples=[100, 300], loss=[1.0, 2.0])
    found = round_totals(made)
    assert found.pop("loss") == pytest.approx(1.75)
    assert found == {"round": 3, "cohort": 2, "dropped": 0, "up": 20, "down": 42}
    assert round_figure(made, people([10, 10]), DEFAULT) == pytest.approx(0.65)
    assert round_figure(made | {"evaluation": {}}, people([10, 10]), DEFAULT) is None


def test_a_history_without_rounds_has_an_empty_summary():
    found = summarise(History(Population.without_clients()), DEFAULT, 7)
    assert (found["completed"], found["views"], found["headline"], found["loss"]) == (0, [], None, None)


def test_a_summary_keeps_every_evaluation():
    records = [line(0, [10, 5], [2, 4]), line(1, [4, 6], [9, 7]), line(3, [None, 8], [5, None])]
    history = History.build(people([10, 20]), records)
    scores = history.scores["after_aggregation", "personal", "test"]
    np.testing.assert_array_equal(scores.score, [[10, 5], [4, 6], [np.nan, 8]])  # gaps stay
    found = summary(people([10, 20], val=[10, 20]), records)["views"][0]["each"]
    assert found["test"]["rounds"] == found["val"]["rounds"] == [0, 1, 3]
    assert found["test"]["mean"] == pytest.approx([(1 + 0.25) / 2, (0.4 + 0.3) / 2, 0.4])
    assert found["test"]["pooled"] == pytest.approx([15 / 30, 10 / 30, 0.4])
    assert found["val"]["mean"] == pytest.approx([0.2, (0.9 + 0.35) / 2, 0.5])
    assert found["val"]["pooled"] == pytest.approx([6 / 30, 16 / 30, 0.5])
    assert list(summary(people([10, 20]), [line(0, [10, 5])])["views"][0]["each"]) == ["test"]
    nobody = summary(people([10, 20]), [line(0, [None, None])])["views"][0]["each"]["test"]
    assert (nobody["mean"], nobody["pooled"]) == ([None], [None])
