from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayfl.errors import UserError
from rayfl.evaluation.protocol import PROTOCOLS, Protocol, protocol


def test_every_preset_is_found_by_its_name():
    names = (
        "default",
        "fedco2_feature",
        "fedco2_last",
        "fedco2_cifar",
        "fedios",
        "fedios_global",
        "dcpfl",
        "fdse",
        "fdse_global",
    )
    assert [protocol(name).name for name in names] == list(PROTOCOLS)


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(
        UserError, match=r"'fedavg' is unknown; choose one of default, fedco2_feature, .*fdse"
    ):
        protocol("fedavg")


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("last", {}),
        ("best_val", {"choose": "best_val"}),
        ("last_10", {"choose": "last_k", "k": 10}),
        ("every_5_of_last_200", {"choose": "window", "step": 5, "length": 200}),
        ("pooled", {"average": "pooled"}),
        ("default+weighted+after_training", {"average": "weighted", "point": "after_training"}),
        ("patience_100", {"patience": 100}),
        ("mean_clients+global+trained_only", {"view": "global", "trained_only": True}),
    ],
)
def test_words_change_the_default(name, changes):
    assert protocol(name) == replace(PROTOCOLS["default"], name=name, **changes)


def test_words_change_a_preset():
    best = protocol("dcpfl+best_val")
    assert best == replace(PROTOCOLS["dcpfl"], name="dcpfl+best_val", choose="best_val")
    assert best.needs_validation
    window = protocol("every_5_of_last_200+pooled")
    assert [window.counts(r, 1500) for r in range(1500)] == [
        PROTOCOLS["fedco2_cifar"].counts(r, 1500) for r in range(1500)
    ]
    assert protocol("fdse+weighted").choose_by == "weighted"
    assert protocol("fdse_global+patience_100").patience == 100
    assert protocol("fedios+patience_5").needs_validation


@pytest.mark.parametrize(
    ("name", "word"),
    [("fdse+wieghted", "wieghted"), ("last_0", "last_0"), ("fdse+", ""), ("pooled+fdse", "fdse")],
)
def test_an_unknown_word_is_named(name, word):
    with pytest.raises(UserError, match=rf"'{word}' is unknown; .*joined by \+: .*pooled"):
        protocol(name)


@pytest.mark.parametrize(
    "name",
    [
        "dcpfl+best_val+last",
        "last_5+last_10",
        "pooled+weighted",
        "unseen+after_training",
        "personal+global",
    ],
)
def test_words_that_contradict_each_other(name):
    with pytest.raises(UserError, match=r"'\w+' and '\w+' contradict each other: leave one of them out"):
        protocol(name)
    assert protocol("pooled+pooled").average == "pooled"
    assert protocol("last_5+patience_3").patience == 3


def test_what_the_papers_mean_by_plus_minus():
    assert {name for name, p in PROTOCOLS.items() if p.spread == "evaluations"} == {"fedco2_cifar"}


def test_only_protocols_that_choose_by_validation_need_it():
    assert {p.name for p in PROTOCOLS.values() if p.needs_validation} == {
        "fedco2_feature",
        "fdse",
        "fdse_global",
    }


def test_fedco2_on_cifar_averages_the_last_forty_rounds():
    """FedCO2 on CIFAR averages forty rounds that end with the last."""
    cifar = PROTOCOLS["fedco2_cifar"]
    counted = [r + 1 for r in range(1500) if cifar.counts(r, 1500)]
    assert counted == list(range(1305, 1501, 5))
    evaluated = [r + 1 for r in range(1500) if cifar.evaluates(r, 1500, 1000)]
    assert evaluated == [1000, *counted]


def test_fedios_always_evaluates_its_last_five_rounds():
    """FediOS evaluates its last five rounds whatever eval every is."""
    assert [r for r in range(20) if PROTOCOLS["fedios"].evaluates(r, 20, 8)] == [7, 15, 16, 17, 18, 19]


@given(st.sampled_from(list(PROTOCOLS.values())), st.integers(1, 400), st.integers(1, 50))
def test_evaluation_rounds(p, rounds, every):
    """Evaluation rounds hold every nth the last and those that count."""
    evaluated = {r for r in range(rounds) if p.evaluates(r, rounds, every)}
    assert evaluated >= {r for r in range(rounds) if (r + 1) % every == 0} | {rounds - 1}
    assert evaluated >= {r for r in range(rounds) if p.counts(r, rounds)}
    if p.choose in ("last", "best_val"):
        assert len(evaluated) == rounds // every + (rounds % every > 0)


@given(st.sampled_from(list(PROTOCOLS.values())), st.integers(0, 99))
def test_zero_switches_evaluation_off(p, round):
    assert not p.evaluates(round, 100, 0)


@pytest.mark.parametrize(
    ("wanted", "views", "found"),
    [
        ("personal", ["global", "personal", "online"], "personal"),
        ("personal", ["online", "global"], "global"),
        ("personal", ["online", "offline"], "offline"),
        ("personal", [], None),
        ("global", ["personal", "global"], "global"),
        ("global", ["personal"], None),
    ],
)
def test_the_headline_falls_back_to_a_view_that_exists(wanted, views, found):
    assert Protocol("made up", view=wanted).headline_view(views) == found
