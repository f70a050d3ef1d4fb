"""What every registered method must do, whatever it computes."""

import inspect
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rayfl.errors import BadValue
from rayfl.methods import METHODS, SCAFFOLD, FedCO2, FedDyn, FedProto
from rayfl.settings.arguments import texts_of
from rayfl.settings.description import display_name
from rayfl.testing import CHECKS, check_method
from rayfl.training import SGD, weighted_mean
from tests.methods.cases import CASES, counts, net_of
from tests.methods.forms.cases import CASES as FORMS
from tests.methods.forms.parity import OTHER_LOSS, federated
from tests.methods.numbers import DATA, SETTINGS, SOME, TINY
from tests.support.by_hand import assert_same, federate, ragged, start
from tests.support.refusals import refused

BUFFERED = "tests.support.modules.buffered"
SHORT = replace(OTHER_LOSS, cohorts=OTHER_LOSS.cohorts[:2], training={**OTHER_LOSS.training, "epochs": 1})
"""What of the setting of independent forms shows a difference of executions."""
DOCS = Path(__file__).parents[2] / "docs" / "methods"

each_method = pytest.mark.parametrize("name", METHODS)


# ---- executions


@each_method
def test_stacked_equals_loop_with_buffers_of_any_kind(name, recwarn):
    """To 1e-9 in float64, with clients of 12, 22, 16 and 5 samples in batches of 8.

    No loss captures what belongs to one client, which would keep clients apart. The clip bites, and
    optimisers are kept where the method can have that. Methods that go by signs are compared without these.
    """
    method = METHODS[name](**CASES[name].steady | CASES[name].buffered)
    settings = SETTINGS | {"epochs": 1, "clip": 0.05, "optimiser_state": "kept"}
    settings |= dict(method.facts.works_with) | {"optimiser": SGD()}
    loop, stacked = (
        federate(method, DATA, net_of(name, BUFFERED), [[1, 3], [0, 1]], execution=execution, **settings)
        for execution in ("loop", "stacked")
    )
    values = [
        {k: v for k, v in run.values().items() if not any(part in k for part in CASES[name].by_sign)}
        for run in (stacked, loop)
    ]
    assert_same(*values, 1e-9)
    for a, b in zip(stacked.results, loop.results):
        assert (a.ids, a.steps, a.up, a.down) == (b.ids, b.steps, b.up, b.down)
        assert a.loss == pytest.approx(b.loss, rel=1e-9)
    assert not [w for w in recwarn if "captures values" in str(w.message)]


@pytest.mark.parametrize("name", [name for name in FORMS if " " in name and "finetune" not in name])
def test_stacked_equals_loop_with_options(name):
    """Of which the loop is compared with independent forms; some of FDSE's figures go by rounding."""
    loop, stacked = (
        {k: v for k, v in federated(name, SHORT, execution)[0].values().items() if "figures" not in k}
        for execution in ("loop", "stacked")
    )
    assert_same(stacked, loop, 1e-9)


# ---- what rayfl.testing asks of every method

SHOWN = (
    *("runs", "trains", "seed_matters", "stacked_equals_loop", "state_is_used", "means_have_their_weights"),
    *("views_are_scored", "inputs_are_scored_alone", "scores_without_personalising", "options_are_kept"),
)
"""Checks of what independent forms, and the tests below, show."""


@each_method
@pytest.mark.parametrize(
    "checks",
    [
        pytest.param([check for check in CHECKS if check not in SHOWN], id="most"),
        pytest.param(SHOWN, id="shown", marks=pytest.mark.slow),
    ],
)
def test_all_checks_of_methods_pass(name, checks):
    """Its limits and its traffic have sharper tests elsewhere."""
    case = CASES[name]
    intent = {} if case.net is None else {"net": case.net}
    method = METHODS[name](**case.changing)
    check_method(method, only=checks, stateless=case.stateless, apart=case.apart, counts_less=True, **intent)


# ---- traffic and views


@pytest.mark.parametrize(
    ("name", "precision", "width"),
    [
        *((name, "float32", 4) for name in METHODS),
        *((n, "float64", 8) for n, m in METHODS.items() if "communication_bytes" in vars(m)),
    ],
)
def test_bytes_counted_are_bytes_declared(name, precision, width):
    """In another precision, too, where a method counts for itself."""
    run = federate(METHODS[name](), DATA, net_of(name, TINY), 2, precision=precision)
    result, k = run.results[1], counts(run.worker.net)
    for place, i in enumerate(result.ids):
        up, down = ({key: column[place] for key, column in c.items()} for c in (result.up, result.down))
        owned = int((DATA.label_matrix("train")[i] > 0).sum())
        assert owned < k["C"]
        expected = CASES[name].traffic(k, owned, len(DATA.clients))
        assert down == {key: width * count for key, count in expected[0].items()}
        assert up.keys() == expected[1].keys()
        assert all(up[key] == width * count for key, count in expected[1].items() if count is not None)


def test_bytes_of_fedco2_with_other_exchanges():
    """Bytes of FedCO2 without inter client transfer or with the last layer."""
    plain = federate(FedCO2(inter="none"), DATA, TINY, 2)
    k = counts(plain.worker.net)
    assert plain.results[1].up == plain.results[1].down == {"weights": [8 * (k["theta"] - k["b"])] * 4}
    small = federate(FedCO2(exchange="last_layer"), DATA, TINY, [[0, 1], [0, 2]])
    foreign = 8 * 3 * k["H"]  # there is one of every client from the start: at first the initial one
    assert [r.down["heads"] for r in small.results] == [[foreign, foreign]] * 2
    assert small.results[1].up["head"][1] == 8 * k["H"]


@each_method
def test_views_are_scored_as_declared(name):
    """Before the first round, after training and after aggregation, of clients old and new."""
    run = start(METHODS[name](), DATA, net_of(name, TINY))
    found = [run.worker.evaluate(0, run.server.download(range(4)), [range(4)], ["test"])]
    run.round([0, 2], score_splits=("test",))
    found.append(run.results[0].scores)
    found.append(run.worker.evaluate(0, run.server.download(range(4)), [range(4)], ["test"]))
    assert [set(f) for f in found] == [{0, 1, 2, 3}, {0, 2}, {0, 1, 2, 3}]
    views, case = METHODS[name]().views, CASES[name]
    assert ("global" in views) == case.has_global
    assert views[0] == "personal"
    assert bool(METHODS[name]().facts.without_loss) == case.without_loss
    for scores in found:
        for parts in scores.values():
            assert set(parts["test"]) == set(views)
            for view, one in parts["test"].items():
                assert (one.loss is None) == (view in run.worker.method.facts.without_loss)
    if case.has_global:
        x = torch.tensor(DATA.dataset.inputs[:4]).double()
        assert torch.equal(run.scores(0, x)["global"], run.scores(3, x)["global"])


def test_the_head_of_fedproto_has_a_loss():
    assert not FedProto(predict="head").facts.without_loss


@pytest.mark.parametrize("name", [n for n in METHODS if CASES[n].predicts_with_own])
def test_scores_after_training_are_of_the_clients_own_model(name):
    """In a federation of one that is what the server sends next, so that aggregation changes no score."""
    run = start(METHODS[name](), ragged([12], missing=False), net_of(name, TINY))
    run.round([0], score_splits=("test",))
    (trained,) = run.results[0].scores.values()
    (aggregated,) = run.worker.evaluate(0, run.server.download([0]), [[0]], ["test"]).values()
    assert set(trained["test"]) == set(METHODS[name]().views)
    for view, score in trained["test"].items():
        assert score.score == aggregated["test"][view].score
        assert score.loss == pytest.approx(aggregated["test"][view].loss, abs=1e-12)


# ---- averages


@each_method
def test_averaging_is_obeyed(name):
    """Clients have unequal sizes, so the two averages differ where a method averages."""
    averages = CASES[name].averages
    method = METHODS[name](**(averages or {}))
    assert method.facts.averaging == CASES[name].averaging
    runs = [federate(method, DATA, net_of(name, TINY), 1, averaging=a) for a in ("samples", "uniform")]
    a, b = ({k: v for k, v in run.values().items() if k.startswith("state/server/weights")} for run in runs)
    alike = (
        "running_var",
        "dfe_bias",
        "conv.bias",
        "conv.0.bias",
    )  # before BatchNorm
    if averages is None:
        assert_same(a, b)
        return
    assert a
    assert all(not torch.equal(a[k], b[k]) for k in a if not k.endswith(alike))


@pytest.mark.parametrize(
    ("method", "key", "of_server"),
    [
        (SCAFFOLD(), "control", lambda server: server["control"]),
        (FedDyn(alpha=0.5), "gradient", lambda server: 0.5 * server["drift"]),
    ],
    ids=["SCAFFOLD", "FedDyn"],
)
def test_what_the_server_keeps_is_the_mean_over_all_clients(method, key, of_server):
    """By samples it has the weights of the model's mean, whoever takes part: c of SCAFFOLD, h of FedDyn."""
    run = federate(method, DATA, TINY, [*SOME, [0, 1, 2, 3]], averaging="samples", **SETTINGS)
    sizes = {i: len(DATA.clients[i].train) for i in run.worker.states}
    mean = weighted_mean({i: state[key] for i, state in run.worker.states.items()}, sizes)
    assert len(sizes) == len(DATA.clients)
    assert mean.norm() > 1e-3
    assert_same(dict(mean), dict(of_server(run.server.state)), 1e-12)
    assert set(mean) == run.worker.net.train_names


# ---- options and documents


def options_of(name):
    return inspect.signature(METHODS[name]).parameters


@pytest.mark.parametrize(
    ("name", "option", "value"), [(name, *bad) for name in METHODS for bad in CASES[name].bad]
)
def test_bad_options_are_refused_by_name(name, option, value):
    with refused(BadValue, f"method.{option}"):
        METHODS[name](**{option: value})


@each_method
def test_every_option_is_checked(name):
    options = {
        option
        for option, parameter in options_of(name).items()
        if not isinstance(parameter.default, bool)  # every truth value is fine
    }
    assert {option for option, _ in CASES[name].bad} == options


@each_method
def test_options_are_kept_and_documented(name):
    """Under their own names, from which a run's configuration is written; in the help, and on the page."""
    method, page = METHODS[name](), (DOCS / f"{name.lower()}.md").read_text()
    described = texts_of(METHODS[name])
    for option, parameter in options_of(name).items():
        assert getattr(method, option) == parameter.default
        assert described[option]
        row = f"| `{option}` | {'none' if parameter.default is None else parameter.default} |"
        assert row in page
        if option == "eta" or option.endswith("lr"):
            (of_page,) = re.findall(rf"{re.escape(row)} (.*)", page)
            for text in (of_page, " ".join(described[option].replace("`", "").split())):
                assert re.search("factor of the round's|constant, whatever .?training.schedule", text)
    assert f"[{display_name(f'rayfl.methods.{name}')}]({name.lower()}.md)" in (DOCS / "README.md").read_text()


@each_method
def test_pages_say_what_deviates_and_what_uploads_reveal(name):
    page = (DOCS / f"{name.lower()}.md").read_text()
    for heading in ("## Deviations", "## What uploads can reveal"):
        (text,) = re.findall(rf"^{heading}\n+([^#]+)", page, re.MULTILINE)
        assert text.strip()


def test_options_of_the_default_method_keep_their_meaning():
    """The command line takes over options of one name when it changes from FedBN to another class."""
    for option, parameter in options_of("FedBN").items():
        defaults = {options_of(name)[option].default for name in METHODS if option in options_of(name)}
        assert defaults == {parameter.default}
