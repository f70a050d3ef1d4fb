from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayfl import evaluation
from rayfl.errors import BadValue, Unknown
from rayfl.evaluation import FDSE, PROTOCOLS, Default, FediOS
from rayfl.evaluation.protocol import read_protocol
from tests.support.refusals import refused

ALL = [cls() for cls in PROTOCOLS.values()]


FDSE_CHOICE = {"average": "pooled", "choose": "best_val", "choose_by": "weighted"}


@pytest.mark.parametrize(
    ("protocol", "differs"),
    [
        (Default(), {}),
        (evaluation.FedCO2Feature(), {"choose": "best_val"}),
        (evaluation.FedCO2Last(), {}),
        (
            evaluation.FedCO2CIFAR(),
            {"average": "pooled", "choose": "window", "step": 5, "spread": "evaluations"},
        ),
        (FediOS(), {"point": "after_training", "choose": "last_k"}),
        (evaluation.FediOSGlobal(), {"view": "global", "average": "pooled", "choose": "last_k"}),
        (evaluation.DCPFL(), {"point": "after_training", "trained_only": True}),
        (FDSE(), {"point": "after_training", **FDSE_CHOICE}),
        (evaluation.FDSEGlobal(), {"view": "global", **FDSE_CHOICE}),
    ],
    ids=str,
)
def test_what_the_papers_protocols_are(protocol, differs):
    assert asdict(protocol) == asdict(Default()) | differs
    assert str(protocol) == type(protocol).__name__ in PROTOCOLS
    assert protocol.needs_validation == (protocol.choose == "best_val")


def test_a_protocol_tells_what_differs_from_its_defaults():
    assert str(FDSE(average="weighted", patience=100)) == "FDSE(average=weighted, patience=100)"
    assert Default(patience=5).needs_validation


def test_a_protocol_is_read_from_a_configuration():
    assert read_protocol({}) == Default()
    assert read_protocol({"protocol": "FDSE"}) == FDSE()
    assert read_protocol({"protocol": {"class_path": "rayfl.evaluation.FDSE"}}) == FDSE()
    assert read_protocol({"protocol": {"class_path": "FDSE", "init_args": {"k": 3}}}) == FDSE(k=3)


def test_a_configuration_with_no_such_protocol_is_refused():
    for found, kind, place in (
        ("fedavg", Unknown, "protocol"),
        ({"class_path": "a_strangers.FDSE"}, Unknown, "protocol"),
        ({"class_path": "rayfl.evaluation.Protocol"}, Unknown, "protocol"),
        ({"class_path": "FDSE", "init_args": {"x": 3}}, Unknown, "protocol.x"),
        ({"class_path": "FDSE", "init_args": {"k": "x"}}, BadValue, "protocol.k"),
    ):
        with refused(kind, place):
            read_protocol({"protocol": found})


def test_what_averages_the_last_rounds_evaluates_them_whatever_eval_every_is():
    cifar = evaluation.FedCO2CIFAR()
    counted = [r + 1 for r in range(1500) if cifar.counts(r, 1500)]
    assert counted == list(range(1305, 1501, 5))
    evaluated = [r + 1 for r in range(1500) if cifar.evaluates(r, 1500, 1000)]
    assert evaluated == [1000, *counted]
    assert [r for r in range(20) if FediOS().evaluates(r, 20, 8)] == [7, 15, 16, 17, 18, 19]


@given(st.sampled_from(ALL), st.integers(1, 400), st.integers(1, 50))
def test_evaluation_rounds(p, rounds, every):
    """Every n-th one, the last and those that count; 0 switches evaluation off."""
    evaluated = {r for r in range(rounds) if p.evaluates(r, rounds, every)}
    assert evaluated >= {r for r in range(rounds) if (r + 1) % every == 0} | {rounds - 1}
    assert evaluated >= {r for r in range(rounds) if p.counts(r, rounds)}
    if p.choose in ("last", "best_val"):
        assert len(evaluated) == rounds // every + (rounds % every > 0)
    assert not any(p.evaluates(r, rounds, 0) for r in range(rounds))


def test_the_headline_falls_back_to_a_view_that_exists():
    personal, common = Default(view="personal").headline_view, Default(view="global").headline_view
    assert personal(["global", "personal", "online"]) == "personal"
    assert personal(["online", "global"]) == "global"
    assert personal(["online", "offline"]) == "offline"
    assert personal([]) is None
    assert common(["personal", "global"]) == "global"
    assert common(["personal"]) is None
