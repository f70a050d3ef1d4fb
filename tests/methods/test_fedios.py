"""FediOS against numbers worked out by hand, and what must hold of its projections.

The hand-computed cases use nets B A x without bias, A = I and B = 0 at first, one client with x = (1, 1) of
class 0, steps of length 1. With the identity basis the generic extractor has the first feature, the
individual one the second. For logits (a, -a) the softmax is (s(2a), s(-2a)); the second row of B is minus the
first, so that only the first row is given. For a first row h the gradient of the cross-entropy on features
is -2 s(-2a) h.
"""

import json
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rayfl.data import Synthetic
from rayfl.engine import Inline
from rayfl.errors import Conflict
from rayfl.federation import Federation
from rayfl.methods import Cohort, FedAvg, FediOS
from rayfl.methods.fedios import orthonormal_matrix, project_onto
from rayfl.nets import CNNB, LeNet, SplitNet
from rayfl.randomness import generator
from rayfl.training import Net, Params, Training
from rayfl.training.loop import run_loop
from tests.support.by_hand import assert_same, federate, points, ragged, start
from tests.support.nets import make_context
from tests.support.refusals import refused

DATA = ragged()
SETTINGS = {"epochs": 2, "momentum": 0.5, "weight_decay": 1e-3, "clip": 1.0}
ONE = points([((1, 1), 0)])
TWO_LAYER = "tests.support.by_hand.two_layer"
J = [[1.0, 1.0], [1.0, 1.0]]


def s(t):
    return 1 / (1 + math.exp(-t))


def matrix(rows):
    return torch.tensor(rows, dtype=torch.float64)


def assert_close(got, expected, tolerance=1e-12):
    expected = expected if isinstance(expected, torch.Tensor) else matrix(expected)
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


def assert_rows(weight, first):
    assert_close(weight, [first, [-v for v in first]])


def extractors(run, client=0):
    """Return A of the generic and of a client's individual extractor."""
    return run.server.state["weights"]["conv.1.weight"], run.worker.states[client]["own"]["conv.1.weight"]


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
    assert_rows(run.servers[0]["weights"]["head.weight"], [u, v])
    f = alpha * u + (1 - alpha) * v
    first, second = alpha * s(-2 * f) + s(-2 * u), (1 - alpha) * s(-2 * f) + s(-2 * v)
    assert_rows(run.server.state["weights"]["head.weight"], [u + first, v + second])
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


@pytest.mark.parametrize("options", [{"ortho_reg_on": "raw"}, {"projections": False}])
def test_regulariser_between_features_that_are_not_projected(options):
    """B = 0, so only L_re moves the extractors: <A x, A x> has the gradient (A x) x^T = J on either A."""
    run = federate(FediOS(lam=0.3, basis="identity", **options), ONE, TWO_LAYER, cohorts=1, lr=1.0)
    for extractor in extractors(run):
        assert_close(extractor, torch.eye(2, dtype=torch.float64) - 0.3 * matrix(J))
    figures = run.worker.method.server_metrics(run.worker.context, run.server.state)
    assert figures["overlap"] == pytest.approx(2)


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
    a, b = matrix([[1, 0], [0, 2]]), matrix([[3, 4], [3, -4]])
    generic, individual = (matrix([[1], [sign]]) / math.sqrt(2) for sign in (1, -1))
    overlap = FediOS(ortho_reg_on=on)._overlap_loss(
        a, b, project_onto(a, generic), project_onto(b, individual)
    )
    assert overlap.item() == pytest.approx(expected, abs=1e-12)


def four_features(shape, classes):
    """Logits B A x with four features: A x is (1, 1, 2, 1) for x = (1, 0), (1, 2, 1, 1) for x = (0, 1)."""
    extractor = nn.Linear(2, 4, bias=False)
    extractor.weight.data = torch.tensor([[1.0, 1.0], [1.0, 2.0], [2.0, 1.0], [1.0, 1.0]])
    head = nn.Linear(4, 2, bias=False)
    nn.init.zeros_(head.weight)
    return SplitNet(nn.Sequential(nn.Flatten(), extractor), nn.Sequential(), head)


FOUR = "tests.methods.test_fedios.four_features"
PAIR = points([((1, 0), 0)], [((0, 1), 1)])


def test_the_mean_dilutes_what_one_client_has_learnt():
    """Two clients, ranks 1, one column of H unused. Features: phi^g = e_0, phi_0^p = e_1, phi_1^p = e_2.

    Client 0 adds (3/2, 3/2, 0, 0)/2 to the first row of H = 0, client 1, of the other class, -(3/2, 0, 3/2,
    0)/2. Their mean is (0, 3/8, -3/8, 0). Right after training each has its own H.
    """
    run = start(FediOS(basis="identity"), PAIR, FOUR, lr=1.0)
    run.round([0, 1], score_splits=("test",))
    assert_rows(run.server.state["weights"]["head.weight"], [0, 3 / 8, -3 / 8, 0])
    x = matrix([[[[1, 0]]]])
    scores = run.scores(0, x)
    assert_close(scores["individual"], [[3 / 8, -3 / 8]])
    assert_close(scores["personal"], [[3 / 16, -3 / 16]])
    assert_close(scores["generic"], [[0, 0]])
    after = {view: one.loss for view, one in run.results[0].scores[0]["test"].items()}
    loss = math.log1p(math.exp(-2 * 3 / 4))
    assert after == pytest.approx(dict.fromkeys(("personal", "global", "generic", "individual"), loss))


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
    assert_rows(run.server.state["weights"]["head.weight"], [h, h])
    one = torch.eye(2, dtype=torch.float64)
    generic, individual = extractors(run)
    assert_close(generic, one + q * matrix(J))
    assert_close(individual, one + (q + q / 2 + 2 * s(-2 * logit) * h) * matrix(J))
    loss = (math.log1p(math.exp(-2)) + math.log1p(math.exp(-2 * logit))) / 2
    assert run.worker.method.server_metrics(run.worker.context, run.server.state) == {
        "individual_loss": pytest.approx(loss, abs=1e-12),
        "dead_rounds": 0,
    }


def test_alternating_leaves_personal_columns_of_the_head():
    """Alternating schedule leaves the personal columns of the head alone."""
    run = federate(FediOS(schedule="alternating"), DATA, LeNet(), 2)
    moved = run.server.state["weights"]["head.weight"] - run.worker.initial["head.weight"]
    bases = [run.worker.context.prepared.bases(i, moved) for i in range(4)]
    assert (moved @ bases[0]["generic"]).norm() > 1e-3
    assert all((moved @ b["individual"]).norm() < 1e-12 for b in bases)


# ---- projections


def wide(d):
    """A net with d features."""
    return Net(lambda: SplitNet(nn.Flatten(), nn.Sequential(nn.Linear(2, d)), nn.Linear(d, 2)))


def bases_of(method, d, clients, seed=3):
    subspaces = make_context(wide(d), method, clients, seed).prepared
    each = [subspaces.bases(i, torch.zeros((), dtype=torch.float64)) for i in range(clients)]
    return [each[0]["generic"], *(b["individual"] for b in each)]


@pytest.mark.parametrize(
    ("clients", "rank"), [(4, 102), (5, 85), (6, 73), (10, 46), (12, 39), (15, 32), (20, 24)]
)
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


def test_the_uniform_basis_takes_most_of_positive_features():
    """The first direction of the uniform basis takes most of features that are not negative."""
    ones = torch.ones(64, dtype=torch.float64) / 8
    share = {
        basis: (ones @ orthonormal_matrix(basis, 64, 0)[:, 0]).item() ** 2 for basis in ("qr", "uniform")
    }
    assert share["qr"] < 0.2 < 0.6 < share["uniform"]


def test_every_process_draws_the_same_projections():
    """Every process draws the same projections and none travel."""
    runs = [start(FediOS(), DATA, CNNB()) for _ in range(2)]
    one, other = (run.worker.context.prepared.bases(2, run.worker.initial["head.weight"]) for run in runs)
    assert all(torch.equal(one[kind], other[kind]) for kind in ("generic", "individual"))
    assert set(runs[0].server.download([0])[0]) == {"weights"}


def test_clients_share_subspaces_where_they_may():
    """32 dimensions, rank 10: three subspaces, of which clients 0, 2, 4 and 1, 3 share one."""
    generic, *own = bases_of(FediOS(rank=10, overflow="reuse"), 32, 5)
    assert [[torch.equal(a, b) for b in own] for a in own[:2]] == [
        [True, False] * 2 + [True],
        [False, True] * 2 + [False],
    ]
    assert all((generic.T @ o).abs().max() < 1e-12 for o in own)
    assert (own[0].T @ own[1]).abs().max() < 1e-12


def test_reuse_changes_nothing_where_all_subspaces_fit():
    for rank in (None, 2):
        error, reuse = (bases_of(FediOS(rank=rank, overflow=o), 32, 5) for o in ("error", "reuse"))
        assert all(torch.equal(a, b) for a, b in zip(error, reuse, strict=True))


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


def test_the_refusal_comes_before_anything_starts(tmp_path):
    federation = Federation(method=FediOS(rank=20), clients=5, engine=Inline(), output=str(tmp_path / "run"))
    with refused(Conflict, "method.rank"):
        federation.run()
    assert not (tmp_path / "run").exists()


def test_relu_after_the_identity_basis_is_refused():
    with refused(Conflict, "method.ortho_reg_on"):
        FediOS(ortho_reg_on="relu", basis="identity")
    FediOS(ortho_reg_on="relu", basis="identity", projections=False)


# ---- what follows from the projections


@pytest.mark.parametrize("basis", ["qr", "uniform", "identity"])
def test_the_literal_regulariser_is_zero_whatever_its_weight(basis):
    """Eq. 11 is a^T P^g P^p b = 0. Not even rounding enters the weights: any lambda gives the same bits."""
    off, on = (federate(FediOS(lam=lam, basis=basis), DATA, CNNB(), 2, **SETTINGS) for lam in (0.0, 50.0))
    assert_same(on.values(), off.values())
    for state in on.servers:
        assert on.worker.method.server_metrics(on.worker.context, state)["overlap"] < 1e-13


@pytest.mark.parametrize(
    "options", [{"ortho_reg_on": on} for on in ("raw", "relu", "cos")] + [{"projections": False}]
)
def test_its_variants_are_not(options):
    off, on = (federate(FediOS(lam=lam, **options), DATA, CNNB(), 1) for lam in (0.0, 0.05))
    assert (on.server.state["weights"] - off.server.state["weights"]).norm() > 1e-4
    assert on.worker.method.server_metrics(on.worker.context, on.server.state)["overlap"] > 1e-3


@pytest.mark.parametrize("basis", ["qr", "uniform", "identity"])
def test_gradients_of_the_head_are_orthogonal_between_clients(basis):
    """Eq. 7: dCE(H phi_i^p)/dH, a sum of (p - e_y) phi_i^T, lies in client i's subspace."""
    method, y = FediOS(basis=basis), torch.arange(6) % 3
    _, *own = bases_of(method, 24, 3)
    gradients = []
    for o in own:
        head = torch.randn(3, 24, dtype=torch.float64, requires_grad=True)
        z = torch.randn(6, 24, dtype=torch.float64)
        gradients += torch.autograd.grad(F.cross_entropy(project_onto(z, o) @ head.T, y), head)
    for i, g in enumerate(gradients):
        assert g.norm() > 1e-2
        assert_close(project_onto(g, own[i]), g)
        for j in {0, 1, 2} - {i}:
            assert project_onto(g, own[j]).abs().max() < 1e-12
            assert (g @ gradients[j].T).abs().max() < 1e-12


def test_a_client_changes_the_head_in_two_subspaces_only():
    """A client changes the head in its own and the generic subspace only."""
    run = federate(FediOS(rank=10), DATA, LeNet(), [[2]])
    moved = run.server.state["weights"]["head.weight"] - run.worker.initial["head.weight"]
    generic, *own = (
        run.worker.context.prepared.bases(i, moved)[k]
        for i, k in [(0, "generic"), *((i, "individual") for i in range(4))]
    )
    assert (moved @ generic).norm() > 1e-3
    assert [bool((moved @ o).norm() > 1e-3) for o in own] == [False, False, True, False]
    used = torch.cat([generic, own[2]], 1)
    assert_close(project_onto(moved, used), moved)  # nor do directions move that no subspace has


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_the_fused_score_is_the_average_of_logits(alpha):
    """H phi^f = alpha H phi^g + (1 - alpha) H phi^p, the bias included."""
    run = federate(FediOS(alpha=alpha), DATA, CNNB(), 1)
    assert run.server.state["weights"]["head.bias"].norm() > 1e-2
    scores = run.scores(1, torch.tensor(DATA.dataset.inputs[:6]).double())
    assert_close(scores["personal"], alpha * scores["generic"] + (1 - alpha) * scores["individual"])
    assert torch.equal(scores["global"], scores["generic"])


def test_both_extractors_are_alike_without_projections():
    """alpha = 1/2 and P = I: both start alike and have the same gradients, until the mean sets them apart."""
    run = start(FediOS(lam=0.0, projections=False), DATA, CNNB(), momentum=0.5)
    client = run.worker.client(1, 0)
    method, down = run.worker.method, run.server.download([1])[0]
    update = method.local_update(client, method.init_client(client), down)
    ((up, state),) = run_loop([update], lambda *_: None)
    own = state["own"]
    assert len(own) == len(up["weights"]) - 2
    assert_same({name: up["weights"][name] for name in own}, dict(own))
    assert not torch.equal(own["conv.0.weight"], client.initial["conv.0.weight"])
    run.round([0, 1, 2, 3])
    assert not torch.equal(
        run.server.state["weights"]["conv.0.weight"], run.worker.states[1]["own"]["conv.0.weight"]
    )


# ---- limits, state, records


def test_neither_projections_nor_individual_extractors_is_fedavg():
    method = FediOS(projections=False, individual_extractor=False)
    run, other = (federate(m, DATA, CNNB(), [[0, 1], [1, 2, 3]], **SETTINGS) for m in (method, FedAvg()))
    assert_same(dict(run.server.state["weights"]), dict(other.server.state["weights"]))
    assert run.worker.states == {}


def test_only_the_generic_subspace_without_individual_ones():
    """Without individual extractors only the generic subspace is used."""
    run = federate(FediOS(individual_extractor=False), DATA, LeNet(), 1)
    moved = run.server.state["weights"]["head.weight"] - run.worker.initial["head.weight"]
    assert_close(project_onto(moved, run.worker.context.prepared.bases(0, moved)["generic"]), moved)
    scores = run.scores(0, torch.tensor(DATA.dataset.inputs[:4]).double())
    assert set(scores) == {"personal", "global", "generic"}
    assert all(torch.equal(score, scores["global"]) for score in scores.values())
    assert run.worker.method.server_metrics(run.worker.context, run.server.state) == {}


def test_an_unsampled_client_keeps_its_extractor():
    """A client that was not sampled keeps its extractor and receives the rest."""
    run = federate(FediOS(), DATA, CNNB(), [[0, 1, 2, 3], [1, 2]])
    assert run.clients[1][0] is run.clients[0][0]
    x = torch.tensor(DATA.dataset.inputs[:4]).double()
    w, own, net = run.servers[1]["weights"], run.clients[0][0]["own"], run.worker.net.eval
    bases = run.worker.context.prepared.bases(0, w["head.weight"])
    mixed = 0.5 * project_onto(net.features(w, x), bases["generic"]) + 0.5 * project_onto(
        net.features(own, x), bases["individual"]
    )
    assert_close(run.scores(0, x)["personal"], net.head(w, mixed))


def test_individual_extractors_start_as_copies():
    """Individual extractors start as copies and have their own statistics."""
    run = start(FediOS(), DATA, CNNB())
    client = run.worker.client(0, 0)
    own = run.worker.state(0, client)["own"]
    assert_same(dict(own), {n: t for n, t in client.initial.items() if not n.startswith("head.")})
    run.round([0, 1])
    trained = run.worker.states[0]["own"]["conv.1.running_mean"]
    assert not torch.equal(trained, run.server.state["weights"]["conv.1.running_mean"])


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


def test_a_large_raw_regulariser_kills_the_extractor():
    """Features of a net with ReLU are not negative, so their raw product is large; the cosine is bounded."""
    data = ragged([24] * 3, missing=False)
    raw, cos = (
        federate(FediOS(lam=10.0, ortho_reg_on=on), data, LeNet(), 5, epochs=4, lr=0.05)
        for on in ("raw", "cos")
    )
    figures = [run.worker.method.server_metrics(run.worker.context, run.server.state) for run in (raw, cos)]
    assert [f["dead_rounds"] for f in figures] == [5, 0]
    dead, alive = (FediOS().warning(Training(), data, each) for each in figures)
    assert "dead: in the last 5 rounds" in dead
    assert alive is None


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


def test_figures_are_means_over_the_cohort_and_no_traffic():
    """Figures are means over the cohort and do not count as traffic."""
    run = federate(FediOS(projections=False), ragged([12, 30]), CNNB(), 1)
    assert set(run.results[0].up) == {"weights"}
    alone = [federate(FediOS(projections=False), ragged([12, 30]), CNNB(), [[i]]) for i in (0, 1)]
    for name in ("individual_loss", "overlap"):
        mean = sum(r.worker.method.server_metrics(r.worker.context, r.server.state)[name] for r in alone) / 2
        found = run.worker.method.server_metrics(run.worker.context, run.server.state)[name]
        assert found == pytest.approx(mean, rel=1e-9)


def test_it_learns_with_both_schedules():
    data = ragged([60, 60, 60])
    for schedule in ("joint", "alternating"):
        run = federate(FediOS(schedule=schedule), data, LeNet(), 8, epochs=2)
        scores = run.worker.evaluate(0, run.server.download(range(3)), [range(3)], ["test"])
        correct = sum(parts["test"]["personal"].correct for parts in scores.values())
        assert correct >= 10  # of 12 in four classes
