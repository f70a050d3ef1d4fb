"""Attacks do what they say, rules withstand them, and honest clients are judged apart."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rayfl.data.dataset import Clients
from rayfl.errors import BadCode, Conflict, Shortage
from rayfl.evaluation import Default
from rayfl.methods import METHODS, SCAFFOLD, Ditto, FedAvg, FedBN, FedKD, Method
from rayfl.running.result import Result
from rayfl.sampling import Bernoulli
from rayfl.training import Client, Params, State
from rayfl.transforms import ClientDP, TopK
from rayfl.transforms.aggregation import (
    Aggregation,
    GeometricMedian,
    Mean,
    Median,
    MultiKrum,
    TrimmedMean,
    mix_nearest,
)
from rayfl.transforms.attacks import ALIE, IPM, Attack, Boost, LabelFlip, SignFlip
from tests.support.by_hand import assert_same, federate, points, ragged
from tests.support.federations import INLINE_AND_RAY, same_bytes, small
from tests.support.refusals import refused

TINY = "rayfl.testing.by_hand.tiny"
SMOOTH = "tests.support.nets.smooth"
ROWS = torch.arange(1.0, 10, dtype=torch.float64).view(3, 3)
ONE_OF_THREE: dict[str, Any] = {"share": 0.34}
RULES: list[Aggregation] = [Mean(pre="NNM"), Median(), TrimmedMean(), MultiKrum(), GeometricMedian()]


# ---- rules


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (Mean(pre="NNM", **ONE_OF_THREE), [3.5, 4.5, 5.5]),
        (Median(), [4, 5, 6]),
        (TrimmedMean(**ONE_OF_THREE), [4, 5, 6]),
        (TrimmedMean(share=0.0), [4, 5, 6]),
        (GeometricMedian(), [4, 5, 6]),
        (MultiKrum(chosen=1, **ONE_OF_THREE), [1, 2, 3]),
        (MultiKrum(**ONE_OF_THREE), [2.5, 3.5, 4.5]),
    ],
    ids=str,
)
def test_rules_by_hand(rule: Aggregation, expected: list[float]) -> None:
    torch.testing.assert_close(rule.combine(ROWS), torch.tensor(expected, dtype=torch.float64))


def test_rules_of_even_and_uneven_rows() -> None:
    """0, 1, 2, 9 have the median 3/2, as has the mean without the ends; Krum leaves 9 out."""
    rows = torch.tensor([[9.0], [0], [2], [1]], dtype=torch.float64)
    quarter: dict[str, Any] = {"share": 0.25}
    assert Median().combine(rows).tolist() == [1.5]
    assert TrimmedMean(**quarter).combine(rows).tolist() == [1.5]
    assert MultiKrum(**quarter).combine(rows).tolist() == [1]  # of 0, 2 and 1
    assert MultiKrum(chosen=1, **quarter).combine(rows).tolist() == [0]  # the first of three equals
    assert GeometricMedian().combine(rows).item() == pytest.approx(1.5, abs=0.5)
    for rule in RULES:
        torch.testing.assert_close(rule.combine(rows[:1]), rows[0])
    far = torch.tensor([[0.0, 0], [4, 0], [0, 3]], dtype=torch.float64)
    point = GeometricMedian().combine(far)  # sees all pairs under 120 degrees
    units = (far - point) / (far - point).norm(dim=1, keepdim=True)
    torch.testing.assert_close(units.sum(0), torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-6)


def test_rows_are_mixed_with_their_nearest() -> None:
    expected = torch.tensor([[2.5, 3.5, 4.5], [2.5, 3.5, 4.5], [5.5, 6.5, 7.5]], dtype=torch.float64)
    torch.testing.assert_close(mix_nearest(ROWS, 1), expected)


@given(
    values=st.lists(st.lists(st.floats(-1, 1), min_size=3, max_size=3), min_size=8, max_size=8),
    outliers=st.lists(st.lists(st.floats(-1e12, 1e12), min_size=3, max_size=3), min_size=2, max_size=2),
)
def test_two_of_ten_do_not_move_a_rule_by_more_than_its_bound(
    values: list[list[float]], outliers: list[list[float]]
) -> None:
    """Each is within a ball about the honest mean, of a few times the largest distance of an honest row.

    Medians and trimmed means stay between honest entries. For Krum and geometric median the factor is that
    of (f, kappa)-robustness (Allouah et al., AISTATS 2023), rounded up.
    """
    honest, wrong = (torch.tensor(rows, dtype=torch.float64) for rows in (values, outliers))
    rows = torch.cat([wrong, honest])
    spread = (honest - honest.mean(0)).norm(dim=1).max() + 1e-9
    for rule in RULES[1:]:
        found = rule.combine(rows)
        assert (found - honest.mean(0)).norm() <= 6 * spread, rule
    for rule in (Median(), TrimmedMean()):
        found = rule.combine(rows)
        assert bool(((found >= honest.min(0).values - 1e-9) & (found <= honest.max(0).values + 1e-9)).all())


# ---- attacks


def change_of(rows: Tensor) -> dict[str, Params]:
    return {"weights": Params({"w": rows}, frozenset("w"))}


@pytest.mark.parametrize(
    ("attack", "expected"),
    [
        (ALIE(z=1.5), [8.5, 9.5, 10.5]),
        (IPM(scale=2.0), [-8, -10, -12]),
    ],
    ids=str,
)
def test_what_attackers_make_of_the_honest_by_hand(attack: Attack, expected: list[float]) -> None:
    mean, deviation = change_of(ROWS.mean(0)), change_of(ROWS.std(0))
    assert attack.from_cohort(mean, deviation)["weights"]["w"].tolist() == expected


def test_what_attackers_make_of_their_own_change() -> None:
    mean = change_of(ROWS.mean(0))
    assert SignFlip().change(mean)["weights"]["w"].tolist() == [-4, -5, -6]
    assert Boost(scale=3.0).change(mean)["weights"]["w"].tolist() == [12, 15, 18]
    with_statistics = {"weights": Params({"w": ROWS, "mean": ROWS}, frozenset("w"))}
    for attack in (SignFlip(), Boost()):
        assert attack.change(with_statistics)["weights"]["mean"] is ROWS
    for attack in (ALIE(), IPM()):
        assert attack.from_cohort(with_statistics, with_statistics)["weights"]["mean"] is ROWS


FOUR = points(*[[((k, 1), k % 2)] * k for k in range(1, 5)])
"""Clients of 1, 2, 3 and 4 samples."""


@pytest.mark.parametrize("averaging", ["samples", "uniform"])
@pytest.mark.parametrize("attack", [ALIE(clients=[1, 3]), IPM(clients=[1, 3])], ids=str)
@pytest.mark.parametrize("method", [FedAvg(), SCAFFOLD()], ids=str)
def test_attackers_of_a_cohort_count_as_their_samples(attack: Attack, averaging: Any, method: Method) -> None:
    """As if 1 and 3 had sent what is made of 0 and 2."""
    first = federate(method, FOUR, cohorts=[[0]], averaging=averaging).server.state["weights"]["head.weight"]
    third = federate(method, FOUR, cohorts=[[2]], averaging=averaging).server.state["weights"]["head.weight"]
    both = torch.stack([first, third])
    made = attack.from_cohort(change_of(both.mean(0)), change_of(both.std(0)))["weights"]["w"]
    weights = [1, 3, 6] if averaging == "samples" else [1, 1, 2]
    parts = zip(weights, (first, third, made), strict=True)
    expected = sum((w * part for w, part in parts), torch.zeros(2, 2, dtype=torch.float64)) / sum(weights)
    run = federate(method, FOUR, cohorts=1, averaging=averaging, attack=attack)
    torch.testing.assert_close(run.server.state["weights"]["head.weight"], expected)


def test_without_honest_clients_nothing_changes() -> None:
    run = federate(FedAvg(), FOUR, cohorts=[[1, 3]], attack=ALIE(clients=[1, 3]))
    assert not run.server.state["weights"]["head.weight"].any()


def test_labels_are_flipped_where_attackers_train(tmp_path: Path) -> None:
    """Of ten classes y becomes 9 - y; what is tested stays."""
    settings: dict[str, Any] = {"method": FedAvg(), "clients": 4}
    honest = small(tmp_path / "a", **settings).federated_data()
    data = small(tmp_path / "b", attack=LabelFlip(clients=[2]), **settings).federated_data()
    for i in range(4):
        for split in ("train", "val", "test"):
            own = data.held.split(i, split)
            before = honest.dataset.labels[own]
            expected = 9 - before if (i, split) == (2, "train") else before
            assert np.array_equal(data.dataset.labels[own], expected)
    with refused(Conflict, "attack"):
        LabelFlip(clients=[0]).poison(points([((1, 0), 0)]), 0)  # who tests on what it trains with
    parts = [data.clients[i] for i in range(4)]
    parts[1] = replace(parts[1], val=parts[2].train[:1])
    with refused(Conflict, "attack"):  # on which an honest client validates
        LabelFlip(clients=[2]).poison(replace(data, clients=Clients(parts)), 0)


def test_who_attacks_is_drawn_by_the_seed(tmp_path: Path) -> None:
    def attackers(seed: int, share: float, clients: int = 12) -> frozenset[int]:
        return SignFlip(share=share).attackers(seed, clients)

    assert [len(attackers(0, share)) for share in (0.25, 0.29, 0.5, 1.0)] == [3, 3, 6, 12]
    assert len(attackers(0, 0.29, 100)) == 29
    assert attackers(0, 0.5) == attackers(0, 0.5) > attackers(0, 0.25)
    assert len({attackers(seed, 0.5) for seed in range(6)}) > 3
    for attack, place in ((SignFlip(share=0.05), "attack.share"), (IPM(clients=[12]), "attack.clients")):
        with refused(Conflict, place):
            small(tmp_path / "run", attack=attack).run()
    assert not (tmp_path / "run").exists()


# ---- together


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_rule_of_equal_changes_is_the_mean(rule: Aggregation) -> None:
    """All keys of SCAFFOLD, one of which is a sum; and nothing else changes."""
    alike = points(*[[((3, 1), 0)]] * 4)
    for method in (FedAvg(), SCAFFOLD()):
        runs = [federate(method, alike, cohorts=2, aggregation=each) for each in (None, rule)]
        assert_same(runs[0].values(), runs[1].values(), 1e-9)


def test_the_mean_is_no_rule() -> None:
    runs = [federate(SCAFFOLD(), ragged(), TINY, cohorts=2, aggregation=each) for each in (None, Mean())]
    assert_same(runs[0].values(), runs[1].values())


def test_a_median_withstands_what_breaks_a_mean() -> None:
    """Nine alike and one that boosts by a million: the median does not see it, in rounds of some of them."""
    alike = points(*[[((3, 1), 0)]] * 10)
    honest = federate(FedAvg(), alike, cohorts=[[0, 1, 2]] * 2)
    attacked: dict[str, Any] = {"cohorts": [[0, 1, 9]] * 2, "attack": Boost(scale=1e6, clients=[9])}
    found = federate(FedAvg(), alike, **attacked, aggregation=Median())
    assert_same(found.values(), honest.values(), 1e-12)
    broken = federate(FedAvg(), alike, **attacked)
    assert broken.server.state["weights"]["head.weight"].abs().max() > 1e4


class Odd(SCAFFOLD):
    """Client 1 sends its step with names in another order, and leaves a key out."""

    leaves_out: str = "control"
    turns: bool = True

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        up, state = await super().local_update(client, state, down)
        if client.id == 1:
            step = up["step"]
            names = [*step][::-1] if self.turns else [*step]
            up["step"] = Params({name: step[name] for name in names}, step.train_names)
            del up[self.leaves_out]
        return up, state


def test_rows_are_of_one_order_and_what_is_left_out_is_no_change() -> None:
    """The mean of mixed rows of one cohort, of which nobody is left out, is the plain mean."""
    rule = Mean(pre="NNM", share=0.0)
    bare = federate(SCAFFOLD(), ragged(), TINY, cohorts=[[0, 1]])
    run = federate(Odd(), ragged(), TINY, cohorts=[[0, 1]], aggregation=rule)
    assert_same({"w": bare.server.state["weights"]}, {"w": run.server.state["weights"]}, 1e-9)
    alone = federate(SCAFFOLD(), ragged(), TINY, cohorts=[[0]])
    control = {"c": alone.server.state["control"]}
    assert_same(control, {"c": run.server.state["control"]}, 1e-9)
    for attack in (ALIE(clients=[0]), IPM(clients=[2])):
        federate(Odd(turns=False), ragged(), TINY, cohorts=[[0, 1, 2]], attack=attack)


@pytest.mark.parametrize(
    "settings",
    [
        {"aggregation": Median()},
        {"transforms": [ClientDP(noise_multiplier=1.0)]},
        {"attack": ALIE(clients=[0])},
    ],
    ids=str,
)
def test_a_mean_that_a_client_leaves_out_is_refused(settings: dict[str, Any]) -> None:
    with refused(BadCode, "client 1"):
        federate(Odd(leaves_out="step"), ragged(), TINY, cohorts=[[0, 1]], **settings)


def test_bytes_are_those_that_the_method_counts() -> None:
    """FedKD counts factors of matrices; an attacker's change has as many bytes."""
    runs = [
        federate(FedKD(), ragged(), SMOOTH, cohorts=1, attack=each) for each in (None, Boost(clients=[0]))
    ]
    assert runs[0].results[0].up == runs[1].results[0].up


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({"method": "FedDGGA", "aggregation": Median()}, "aggregation"),
        ({"method": "FedDGGA", "attack": ALIE()}, "attack"),
        ({"method": "FedProto", "aggregation": Median()}, "aggregation"),
        ({"method": "FedFomo", "attack": SignFlip()}, "attack"),
        ({"aggregation": Median(), "transforms": ClientDP(noise_multiplier=1.0)}, "aggregation"),
    ],
    ids=str,
)
def test_what_cannot_be_compared_is_refused(tmp_path: Path, settings: dict[str, Any], place: str) -> None:
    made = METHODS[settings.get("method", "FedAvg")]()
    with refused(Conflict, place):
        small(tmp_path / "run", **(settings | {"method": made, "net": SMOOTH})).run()


def test_a_matrix_that_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayfl.system.memory.available_memory", lambda: 10_000.0)
    with refused(Shortage, ""):
        small(tmp_path / "run", method=FedAvg(), net=SMOOTH, aggregation=Median()).run()


# ---- judged


def test_honest_clients_are_judged_apart(tmp_path: Path) -> None:
    """The headline is the mean over the honest ones, in every view; with ``clients=all`` over all."""
    settings: dict[str, Any] = {"method": Ditto(), "net": TINY, "rounds": 1, "clients": 6}
    for folder, counted in (("honest", "honest"), ("all", "all")):
        protocol = Default(clients=counted)  # type: ignore[arg-type]
        attack = SignFlip(clients=[1, 4], scale=50.0)
        small(tmp_path / folder, protocol=protocol, attack=attack, **settings).run()
    line = json.loads((tmp_path / "honest" / "metrics.jsonl").read_text().splitlines()[-1])
    partition = json.loads((tmp_path / "honest" / "partition.json").read_text())
    assert partition["attackers"] == [1, 4]
    tests = np.array([client["test"] for client in partition["clients"]])
    for view in ("personal", "global"):
        scores = np.array(line["evaluation"]["after_aggregation"][view]["test"]["score"]) / tests
        for folder, ids in (("honest", [0, 2, 3, 5]), ("all", range(6))):
            summary = Result.load(tmp_path / folder).summary
            (found,) = (each for each in summary["views"] if each["view"] == view)
            assert found["last"]["mean"] == pytest.approx(scores[list(ids)].mean())
            assert found["last"]["clients"] == len(ids)
        expected = (scores[[0, 2, 3, 5]].mean(), scores.mean())
        for folder, mean in zip(("honest", "all"), expected, strict=True):
            result = Result.load(tmp_path / folder)
            assert result.rounds[f"test/after_aggregation/{view}"].tolist() == [pytest.approx(mean)]
            page = (tmp_path / folder / "report.html").read_text()
            assert f"{view} ends at {result.figure_kind.text(100 * mean)}" in page
    assert Result.load(tmp_path / "honest").summary["headline"]["clients"] == 4


@pytest.mark.parametrize(
    ("method", "attack", "rule"),
    [
        (Ditto(), ALIE(share=0.3), TrimmedMean()),
        (FedBN(), IPM(share=0.3), None),
        (SCAFFOLD(), Boost(share=0.3), MultiKrum(pre="NNM")),
    ],
    ids=str,
)
def test_the_same_bytes_on_actors_and_after_a_resume(
    tmp_path: Path, kept_actors: None, method: Method, attack: Attack, rule: Any
) -> None:
    settings: dict[str, Any] = {"method": method, "net": TINY, "clients": 8, "rounds": 3, "attack": attack}
    settings |= {"sampling": Bernoulli(), "participation": 0.6}
    settings |= {"aggregation": rule, "transforms": TopK(share=0.5)}
    same_bytes(tmp_path, *INLINE_AND_RAY, resumed_after=2, **settings)
