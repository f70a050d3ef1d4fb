"""FediOS against numbers worked out by hand, and what must hold of its projections.

The hand-computed cases use ``TWO_LAYER``, one client with x = (1, 1) of class 0, and steps of length 1. With
the identity basis the generic extractor has the first feature, the individual one the second. For a first row
h of B the gradient of the cross-entropy on features is -2 s(-2a) h.
"""

import json
import math

import pytest
import torch
from torch import nn

from rayfl.data import Synthetic
from rayfl.engine import Inline
from rayfl.errors import Conflict
from rayfl.federation import Federation
from rayfl.methods import Cohort, FediOS
from rayfl.methods.fedios import orthonormal_matrix, project_onto
from rayfl.nets import LeNet, SplitNet
from rayfl.randomness import generator
from rayfl.training import Net, Params, Training
from tests.methods.numbers import DATA, SETTINGS, TINY, TWO_LAYER, assert_close, assert_row, body, s
from tests.support.by_hand import assert_same, federate, points, ragged
from tests.support.nets import make_context
from tests.support.refusals import refused

ONE = points([((1, 1), 0)])
J = torch.ones(2, 2, dtype=torch.float64)


def extractors(run):
    """Return A of the generic and of the client's individual extractor."""
    return body(run.server.state["weights"]), body(run.worker.states[0]["own"])


# ---- the update by hand


def test_joint_step():
    """alpha = 1/4. Round 0: logits 0, so p - e_0 = (-1/2, 1/2) for all three losses, and A rests, as B = 0.

    phi^g = (1, 0), phi^p = (0, 1), phi^f = (alpha, 1 - alpha), so B's first row becomes half their sum,
    (u, v) = ((1 + alpha) / 2, (2 - alpha) / 2).

    Round 1: logits u, v and f = alpha u + (1 - alpha) v; q_x = s(-2x). B's first row gains (alpha q_f + q_u,
    (1 - alpha) q_f + q_v). The first generic feature has the gradient -2u (alpha q_f + q_u), the second
    individual one -2v ((1 - alpha) q_f + q_v); the others are projected away. Times x = (1, 1).
    """
    alpha = 0.25
    run = federate(FediOS(alpha=alpha, basis="identity"), ONE, TWO_LAYER, cohorts=2, lr=1.0)
    u, v = (1 + alpha) / 2, (2 - alpha) / 2
    assert_row(run.servers[0]["weights"]["head.weight"], [u, v])
    f = alpha * u + (1 - alpha) * v
    first, second = alpha * s(-2 * f) + s(-2 * u), (1 - alpha) * s(-2 * f) + s(-2 * v)
    assert_row(run.server.state["weights"]["head.weight"], [u + first, v + second])
    generic, individual = extractors(run)
    assert_close(generic, [[1 + 2 * u * first, 2 * u * first], [0, 1]])
    assert_close(individual, [[1, 0], [2 * v * second, 1 + 2 * v * second]])
    before, after = (run.worker.method.server_metrics(run.worker.context, state) for state in run.servers)
    assert before == {"individual_loss": pytest.approx(math.log(2)), "overlap": 0, "dead_rounds": 1}
    assert after == {
        "individual_loss": pytest.approx(math.log1p(math.exp(-2 * v))),
        "overlap": 0,
        "dead_rounds": 0,
    }


def test_recorded_loss_is_the_sum_of_three_cross_entropies():
    """At logits of 0 each is ln 2; without projections L_re = |<x, x>| = 2 comes on top."""
    with_projections = federate(FediOS(lam=0.3), ONE, TWO_LAYER, cohorts=1)
    assert with_projections.results[0].loss == [pytest.approx(3 * math.log(2), abs=1e-12)]
    without = federate(FediOS(lam=0.3, projections=False), ONE, TWO_LAYER, cohorts=1)
    assert without.results[0].loss == [pytest.approx(3 * math.log(2) + 0.3 * 2, abs=1e-12)]


@pytest.mark.parametrize(
    ("on", "expected"),
    [
        ("projected", 0.0),  # (1, 1)/2 times multiples of (1, -1)
        ("raw", (3 + 8) / 2),  # |<(1, 0), (3, 4)>| and |<(0, 2), (3, -4)>|
        ("cos", (3 / 5 + 4 / 5) / 2),
        # (1, 0) and (3, 4) become (1, 1)/2 and (-1, 1)/2, (0, 2) and (3, -4) become (1, 1) and (7, -7)/2
        ("relu", (1 / 4 + 7 / 2) / 2),
    ],
)
def test_overlaps(on, expected):
    """Subspaces spanned by (1, 1) and (1, -1)."""
    a, b = torch.tensor([[[1, 0], [0, 2]], [[3, 4], [3, -4]]], dtype=torch.float64)
    generic, individual = (torch.tensor([[1.0], [sign]]).double() / math.sqrt(2) for sign in (1, -1))
    overlap = FediOS(ortho_reg_on=on)._overlap_loss(
        a, b, project_onto(a, generic), project_onto(b, individual)
    )
    assert overlap.item() == pytest.approx(expected, abs=1e-12)


def test_alternating_schedule():
    """Without projections, two epochs of either kind in turn, momentum 1/2. One sample, so a step an epoch.

    1. Generic: logits 0, B's first row becomes (1/2, 1/2); A^g rests, as B = 0.
    2. Individual, B frozen: logit 1, q = s(-2), gradient of A^p: -2 q (1/2) J = -q J, so A^p = I + q J.
    3. Generic: logit 1. B's velocity is half of the last, 1/2, plus q: the row is (h, h), h = 1/2 + 1/4 + q.
       A^g gains q J.
    4. Individual: features (1 + 2q)(1, 1), logit 2 h (1 + 2q), r = s(-4 h (1 + 2q)). A^p gains q/2 J of its
       velocity and 2 r h J.
    """
    method = FediOS(schedule="alternating", projections=False)
    run = federate(method, ONE, TWO_LAYER, cohorts=1, lr=1.0, epochs=2, momentum=0.5)
    q = s(-2)
    h = 3 / 4 + q
    logit = 2 * h * (1 + 2 * q)
    assert run.results[0].steps == [4]
    assert_row(run.server.state["weights"]["head.weight"], [h, h])
    one = torch.eye(2, dtype=torch.float64)
    generic, individual = extractors(run)
    assert_close(generic, one + q * J)
    assert_close(individual, one + (q + q / 2 + 2 * s(-2 * logit) * h) * J)
    loss = (math.log1p(math.exp(-2)) + math.log1p(math.exp(-2 * logit))) / 2
    assert run.worker.method.server_metrics(run.worker.context, run.server.state) == {
        "individual_loss": pytest.approx(loss, abs=1e-12),
        "dead_rounds": 0,
    }


# ---- projections


def wide(d):
    """A net with d features."""
    return Net(lambda: SplitNet(nn.Flatten(), nn.Sequential(nn.Linear(2, d)), nn.Linear(d, 2)))


def bases_of(method, d, clients, seed=3):
    subspaces = make_context(wide(d), method, clients, seed).prepared
    each = [subspaces.bases(i, torch.zeros((), dtype=torch.float64)) for i in range(clients)]
    return [each[0]["generic"], *(b["individual"] for b in each)]


@pytest.mark.parametrize(("clients", "rank"), [(5, 85), (20, 24)])
def test_derived_ranks_of_512_features(clients, rank):
    assert [o.shape for o in bases_of(FediOS(basis="identity"), 512, clients)] == [(512, rank)] * (
        clients + 1
    )


@pytest.mark.parametrize("basis", ["qr", "uniform", "identity"])
@pytest.mark.parametrize("rank", [None, 3])
def test_projections_are_onto_orthogonal_subspaces(basis, rank):
    """O_i^T O_i = I and O_i^T O_j = 0 (what eq. 6 can mean), P is idempotent and of the given rank."""
    o = bases_of(FediOS(basis=basis, rank=rank), 32, 5)
    r = rank or 32 // 6
    gram = torch.cat(o, 1).T @ torch.cat(o, 1)
    assert_close(gram, torch.eye(6 * r, dtype=torch.float64))
    p = o[2] @ o[2].T
    assert_close(p @ p, p)
    assert torch.trace(p).item() == pytest.approx(r)
    z = torch.randn(7, 32, dtype=torch.float64)
    assert_close(project_onto(z, o[2]), z @ p)


@pytest.mark.parametrize("basis", ["qr", "uniform"])
def test_bases_are_the_one_decomposition_with_positive_diagonal(basis):
    q = orthonormal_matrix(basis, 16, seed=7)
    draw = torch.randn if basis == "qr" else torch.rand
    random = draw(16, 16, dtype=torch.float64, generator=generator(7, "projections"))
    r = q.T @ random
    assert_close(r.tril(-1), torch.zeros(16, 16, dtype=torch.float64))
    assert (r.diagonal() > 0).all()
    assert not torch.equal(q, orthonormal_matrix(basis, 16, seed=8))


def test_clients_share_subspaces_where_they_may():
    """32 dimensions, rank 10: three subspaces, of which clients 0, 2, 4 and 1, 3 share one."""
    generic, *own = bases_of(FediOS(rank=10, overflow="reuse"), 32, 5)
    assert [[torch.equal(a, b) for b in own] for a in own[:2]] == [
        [True, False] * 2 + [True],
        [False, True] * 2 + [False],
    ]
    assert all((generic.T @ o).abs().max() < 1e-12 for o in own)
    assert (own[0].T @ own[1]).abs().max() < 1e-12


def test_reuse_of_lines_for_many_clients():
    """Reuse falls back to lines where there are more clients than dimensions."""
    generic, *own = bases_of(FediOS(overflow="reuse"), 4, 7)
    assert generic.shape == (4, 1)
    assert torch.equal(own[0], own[3])
    assert not torch.equal(own[0], own[1])


@pytest.mark.parametrize(
    ("options", "d", "words"),
    [
        ({}, 5, "6 dimensions"),
        ({"rank": 6}, 32, "36 dimensions"),
        ({"rank": 17, "overflow": "reuse"}, 32, "at most 16"),
    ],
)
def test_what_does_not_fit_is_refused(options, d, words):
    with refused(Conflict, "method.rank") as caught:
        make_context(wide(d), FediOS(**options), 5)
    assert words in str(caught.value)
    make_context(wide(d), FediOS(**options, projections=False), 5)


def test_relu_after_the_identity_basis_is_refused():
    with refused(Conflict, "method.ortho_reg_on"):
        FediOS(ortho_reg_on="relu", basis="identity")
    FediOS(ortho_reg_on="relu", basis="identity", projections=False)


# ---- what follows from the projections


def test_the_literal_regulariser_is_zero_whatever_its_weight():
    """Eq. 11 is a^T P^g P^p b = 0. Not even rounding enters the weights: any lambda gives the same bits."""
    nets = "tests.support.by_hand.tiny_of_9"
    off, on = (federate(FediOS(lam=lam), DATA, nets, 2, **SETTINGS) for lam in (0.0, 50.0))
    assert_same(on.values(), off.values())
    for state in on.servers:
        assert on.worker.method.server_metrics(on.worker.context, state)["overlap"] < 1e-13


# ---- limits, state, records


def test_without_individual_extractors_there_is_nothing_to_record():
    run = federate(FediOS(individual_extractor=False), DATA, TINY, 1)
    scores = run.scores(0, torch.tensor(DATA.dataset.inputs[:4]).double())
    assert run.worker.method.views == tuple(scores) == ("personal", "global", "generic")
    assert run.worker.method.server_metrics(run.worker.context, run.server.state) == {}


def test_rounds_of_silent_individual_extractors_are_counted():
    """CE(H phi^p) within 0.01 of ln C: now, and in the rounds before without a break."""
    method, weights = FediOS(), Params({"head.weight": torch.zeros(5, 2)}, frozenset({"head.weight"}))
    context = make_context(wide(64), method, population=1, initial=weights)
    state = method.init_server(context)
    dead = []
    for distance in (0.009, -0.009, 0.011, 0.0, -0.011):
        figures = {"individual_loss": math.log(5) + distance, "overlap": 0.0}
        cohort = Cohort((0,), (1,), 0, 1, context)
        state = method.aggregate(state, {"weights": weights, "figures": figures}, cohort)
        dead.append(method.server_metrics(context, state)["dead_rounds"])
    assert dead == [1, 2, 0, 1, 0]


def test_a_run_with_dead_extractors_says_so_at_its_end(tmp_path, capsys):
    """With steps this small nothing is learnt in any of the three rounds; the figures are in the records."""
    federation = Federation(
        method=FediOS(), data=Synthetic(train=60, test=20), net=LeNet(), clients=2, rounds=3,
        training=Training(lr=1e-6),
        engine=Inline(), output=str(tmp_path / "run"), loggers=[], quiet=True,
    )  # fmt: skip
    federation.run()
    assert (
        "warning: the individual extractors of FediOS are dead: in the last 3 rounds"
        in capsys.readouterr().err
    )
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["figures"]["dead_rounds"] for line in lines] == [1, 2, 3]
    assert all(abs(line["figures"]["individual_loss"] - math.log(10)) < 0.01 for line in lines)
    assert FediOS().warning(Training(), DATA, {"dead_rounds": 2}) is None


def test_figures_are_means_over_the_cohort_and_no_traffic():
    """Figures are means over the cohort and do not count as traffic."""
    together, *alone = (
        federate(FediOS(projections=False), ragged([12, 30]), TINY, [ids]) for ids in ([0, 1], [0], [1])
    )
    assert set(together.results[0].up) == {"weights"}
    for name in ("individual_loss", "overlap"):
        found, *each = (
            run.worker.method.server_metrics(run.worker.context, run.server.state)[name]
            for run in (together, *alone)
        )
        assert found == pytest.approx(sum(each) / 2, rel=1e-9)
