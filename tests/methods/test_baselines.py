"""Updates of the baselines against numbers worked out by hand, and their limits.

Data, nets and matrices are those of ``numbers``.
"""

import math
from dataclasses import replace

import pytest
import torch

from rayfl.errors import Conflict
from rayfl.methods import (
    APFL,
    COPA,
    FD,
    FML,
    MOON,
    Cohort,
    FedCP,
    FedDGGA,
    FedDyn,
    FedGH,
    FedHEAL,
    FedOpt,
    FedRep,
    FedRoD,
    LGFedAvg,
    Local,
    PFedVEM,
    fedcp,
)
from rayfl.nets import CNNB, LeNet
from rayfl.training import Constant, Params, noise
from tests.methods.numbers import (
    DATA,
    IDENTITIES,
    ONE,
    PAIR,
    TINY,
    TWO_LAYER,
    X,
    assert_close,
    assert_row,
    head,
    q,
    s,
)
from tests.support.by_hand import assert_same, federate, points, start
from tests.support.nets import make_context, smooth_net
from tests.support.refusals import refused

# ---- FedDyn


def test_feddyn():
    """With alpha = 1/2. Round 0: w_i = (1/2, 0) and (0, -1/2), mean (1/4, -1/4), so g_0 = (-1/4, 0), and

        H = h / alpha = -(mean) = (-1/4, 1/4),  w = mean - H = (1/2, -1/2).

    In round 1 client 0 alone steps from there by -((-q, 0) - g_0) = (q - 1/4, 0), so that

        g_0 = (-1/4, 0) - 1/2 (q - 1/4, 0),  H = (-1/4, 1/4) - 1/2 (q - 1/4, 0),  w = w_0 - H.
    """
    run = federate(FedDyn(alpha=0.5), PAIR, cohorts=[[0, 1], [0]], lr=1.0)
    assert_row(head(run.servers[0]["weights"]), [1 / 2, -1 / 2])
    assert_row(head(run.servers[0]["drift"]), [-1 / 4, 1 / 4])
    assert_row(head(run.clients[0][0]["gradient"]), [-1 / 4, 0])
    assert_row(head(run.clients[1][0]["gradient"]), [-1 / 8 - q / 2, 0])
    assert_row(head(run.servers[1]["drift"]), [-1 / 8 - q / 2, 1 / 4])
    assert_row(head(run.servers[1]["weights"]), [3 / 8 + 3 * q / 2, -3 / 4])
    assert run.results[0].down.keys() == {"weights"}


# ---- FedOpt


@pytest.mark.parametrize(
    ("rule", "tau", "square"),
    [
        ("adam", 0.5, 0.99 * 0.25 + 0.01 * 0.25),
        ("adagrad", 0.5, 0.25 + 0.25),
        ("yogi", 0.75, 0.5625 - 0.01 * 0.25),
        ("yogi", 0.25, 0.0625 + 0.01 * 0.25),
    ],
)
def test_fedopt_adapts(rule, tau, square):
    """The change is D = 1/2, so that m = 0.05, v as given from tau^2, and w = 0.1 m / (sqrt(v) + tau)."""
    run = federate(FedOpt(rule=rule, server_lr=0.1, tau=tau), ONE, cohorts=1, lr=1.0)
    assert run.server.state["square"]["head.weight"][0, 0].item() == pytest.approx(square, abs=1e-12)
    assert_row(head(run.server.state["weights"]), [0.1 * 0.05 / (math.sqrt(square) + tau), 0])


# ---- FedRep


@pytest.mark.parametrize(("head_epochs", "b"), [(1, 1 / 2), (2, 1 / 2 + q)])
def test_fedrep(head_epochs, b):
    """Logits B A x with A = I: first B alone goes to (b, 0), then A alone steps by B^T (e - p) x^T.

    There the logits are (b, -b), so that e - p = (s(-2b), -s(-2b)), and A[0, 0] = 1 + 2 b s(-2b).
    """
    run = federate(FedRep(head_epochs=head_epochs), ONE, TWO_LAYER, cohorts=1, lr=1.0)
    assert_row(head(run.worker.states[0]["own"]), [b, 0])
    assert_close(run.server.state["weights"]["conv.1.weight"], [[1 + 2 * b * s(-2 * b), 0], [0, 1]])


# ---- APFL


def test_apfl_learns_its_weight():
    """In round 0 both models are the same, and alpha stays. In round 1 its slope is <v - w, gradient>.

    That is twice (1/8 - 1/2) (-s(-13/16)), as both rows count.
    """
    run = federate(APFL(alpha=0.25), ONE, cohorts=2, lr=1.0)
    assert run.clients[0][0]["alpha"].item() == 0.25
    alpha = 0.25 - 3 / 4 * s(-13 / 16)
    assert run.clients[1][0]["alpha"].item() == pytest.approx(alpha, abs=1e-12)
    mixed = 1 / 2 - 3 / 8 * alpha
    assert_row(head(run.clients[1][0]["own"]), [1 / 8 + alpha * s(-2 * mixed), 0])
    expected = alpha * head(run.clients[1][0]["own"])[0, 0] + (1 - alpha) * (1 / 2 + q)
    assert run.scores(0, X)["personal"][0, 0].item() == pytest.approx(expected.item(), abs=1e-12)


def test_apfl_keeps_its_weight_within_bounds():
    """With lr = 4 the weight would become negative in round 1."""
    run = federate(APFL(alpha=0.25), ONE, cohorts=2, lr=4.0)
    assert run.clients[1][0]["alpha"].item() == 0.0


# ---- FD


def test_fd():
    """Two clients of class 0, x = (1, 0) and x = (0, 2), gamma = 1/2. Round 0 has no targets.

    The models are at 1/2 and at 1, with the logits (1/2, -1/2) and (2, -2): the answers are s(1) and s(4).
    In round 1 each is taught the other's answer: the gradient by the first logit is p - 1 + (p - F) / 2.
    """
    data = points([((1, 0), 0)], [((0, 2), 0)])
    run = federate(FD(gamma=0.5), data, cohorts=2, lr=1.0)
    assert run.servers[0]["owners"].tolist() == [2, 0]
    assert_close(run.servers[0]["outputs"], [[s(1) + s(4), s(-1) + s(-4)], [0, 0]])
    gap = s(4) - s(1)
    assert_row(head(run.clients[1][0]["weights"]), [1 / 2 + q + gap / 2, 0])
    assert_row(head(run.clients[1][1]["weights"]), [0, 1 + 2 * s(-4) - gap])


def test_fd_has_no_targets_where_nobody_else_owns_the_class():
    """Each of the two is the only one of its class, and trains as if alone."""
    run, alone = (federate(m, PAIR, cohorts=3, lr=1.0) for m in (FD(), Local()))
    for i in range(2):
        assert_same(dict(run.worker.states[i]["weights"]), dict(alone.worker.states[i]["weights"]))


# ---- COPA


def test_copa():
    """Round 0: the heads B go from 0 to (1/2, 0) and (0, -1/2); through heads of 0 nothing reaches A = I.

    In round 1 client 0 alone steps. Its own head gives A the step (q, 0) x^T and itself becomes (1/2 + q, 0).
    The other's gives logits of 0, and A half of the step H_1^T (e - p) = (0, -1/2) x^T. All heads together
    predict: the mean is (1/4 + q/2, -1/4), and A x is the first column of A.
    """
    lower = [-1 / 4, 1]
    run = federate(COPA(w_foreign=0.5), PAIR, TWO_LAYER, cohorts=[[0, 1], [0]], lr=1.0)
    assert_close(run.server.state["weights"]["conv.1.weight"], [[1 + q, 0], lower])
    first, second = head(run.server.state["heads"])
    assert_row(first, [1 / 2 + q, 0])
    assert_row(second, [0, -1 / 2])
    scores = run.scores(0, X)
    everyone = (1 / 4 + q / 2) * (1 + q) - lower[0] / 4
    assert scores["global"][0, 0].item() == pytest.approx(everyone, abs=1e-12)
    assert scores["personal"][0, 0].item() == pytest.approx(everyone, abs=1e-12)


def test_copa_scores_a_client_after_training_with_its_new_head():
    """Right after training the server still has the old one."""
    run = federate(COPA(), DATA, TINY, 2)
    before = run.server.state["heads"]
    run.round([1], score_splits=("test",))
    x = torch.tensor(DATA.dataset.inputs[DATA.clients[1].test]).double()
    own = run.worker.states[1]["own"]
    mean = sum(head(own) if j == 1 else head(before)[j] for j in range(4)) / 4
    bias = sum(own["head.bias"] if j == 1 else before["head.bias"][j] for j in range(4)) / 4
    net = run.worker.net.eval
    w = run.server.state["weights"]
    logits = net.features(w, x) @ mean.T + bias
    torch.testing.assert_close(run.scores(1, x)["personal"], logits, rtol=0, atol=1e-12)
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(DATA.dataset.labels[DATA.clients[1].test]))
    assert run.results[-1].scores[1]["test"]["personal"].loss == pytest.approx(loss.item(), abs=1e-12)


# ---- FedGH


def test_fedgh():
    """The net is linear, so that features are the samples; the server's steps are of length 1/2.

    Client 0 has the mean (1/2, 1/2) of class 0 and client 1 the mean (1, -1) of class 1, at right angles: in
    either order both meet logits of 0, and W = 1/2 (1/2 (1/2, 1/2) - 1/2 (1, -1)). In training both start
    from W = 0.
    """
    data = points([((1, 0), 0), ((0, 1), 0)], [((1, -1), 1)])
    run = federate(FedGH(server_lr=0.5), data, cohorts=1, lr=1.0)
    assert_row(head(run.server.state["head"]), [-1 / 8, 3 / 8])
    assert_row(head(run.worker.states[1]["weights"]), [-1 / 2, 1 / 2])
    assert run.results[0].up == {"means": [16, 16], "classes": [8, 8]}


# ---- FedHEAL


def test_fedheal():
    """Two numbers, two clients, tau = beta = 1/2, worked through two rounds.

    Round 0 masks nothing: the updates (1, -1) and (3, 1) have the sizes sqrt(2) and sqrt(10). In round 1
    client 0 falls in its first number, which rose before: consistency 0, masked; all others keep their signs.
    What is left are (0, -1) and (1, 1), of the sizes 1 and sqrt(2); the first number has only client 1.
    """
    method = FedHEAL(tau=0.5, beta=0.5)

    def w(*values):
        return Params({"w": torch.tensor(values, dtype=torch.float64)}, frozenset({"w"}))

    context = make_context(smooth_net(), method, population=2, initial=w(0.0, 0.0))
    server = method.init_server(context)
    server = method.aggregate(
        server, {"weights": {0: w(1.0, -1.0), 1: w(3.0, 1.0)}}, Cohort((0, 1), (1, 1), 0, 2, context)
    )
    sizes = [math.sqrt(2), math.sqrt(10)]
    delta = [size / sum(sizes) / 2 for size in sizes]
    p = [1 / 2 + d for d in delta]
    x = [(p[0] + 3 * p[1]) / sum(p), (-p[0] + p[1]) / sum(p)]
    torch.testing.assert_close(server["weights"]["w"].tolist(), x, rtol=0, atol=1e-12)

    up = {0: w(x[0] - 1, x[1] - 1), 1: w(x[0] + 1, x[1] + 1)}
    after = method.aggregate(server, {"weights": up}, Cohort((0, 1), (1, 1), 1, 2, context))
    sizes = [1, math.sqrt(2)]
    delta = [d / 2 + size / sum(sizes) / 2 for d, size in zip(delta, sizes)]
    p = [before + d for before, d in zip(p, delta)]
    x = [x[0] + 1, x[1] + (p[1] - p[0]) / sum(p)]
    torch.testing.assert_close(after["weights"]["w"].tolist(), x, rtol=0, atol=1e-12)
    assert after["history"][0]["w"].tolist() == [0.5, 0.0]
    assert after["history"][1]["w"].tolist() == [1.0, 1.0]
    assert method.server_metrics(context, after)["p"] == pytest.approx([v / sum(p) for v in p])
    assert server["history"][0]["w"].tolist() == [1.0, 0.0]  # what was handed in stays


def test_fedheal_weighs_newcomers_by_the_size_of_their_round():
    """Two of eight clients in round 0, four others in round 1: their weights start at 1/2 and at 1/4."""
    method = FedHEAL(tau=0.5, beta=0.0)
    one = Params({"w": torch.ones(1, dtype=torch.float64)}, frozenset({"w"}))
    context = make_context(smooth_net(), method, population=8, initial=one)
    server = method.init_server(context)
    for round, ids in enumerate([(0, 1), (2, 3, 4, 5)]):
        cohort = Cohort(ids, (1,) * len(ids), round, 8, context)
        server = method.aggregate(server, {"weights": dict.fromkeys(ids, one)}, cohort)
    assert server["p"] == dict.fromkeys([0, 1], 1 / 2) | dict.fromkeys([2, 3, 4, 5], 1 / 4)


# ---- FedCP


def test_fedcp(monkeypatch):
    """A policy of zeros and no noise: half of every feature goes to each head, the policy stays (ReLU).

    Round 0: the own head steps from 0 to (1/4, 0), the global one is frozen at 0, and the server gets half
    of their sum, (1/8, 0). Round 1: the logits are 1/2 (1/4 + 1/8) = 3/16, the own head's step s(-3/8) / 2.
    """
    monkeypatch.setattr(fedcp, "initial_policy", lambda seed, initial: policy_of_zeros())
    monkeypatch.setattr(fedcp, "gumbel_noise", lambda key, count, like: torch.zeros(count, 2, 2).to(like))
    run = federate(FedCP(), ONE, cohorts=2, lr=1.0)
    assert_row(head(run.clients[0][0]["head"]), [1 / 4, 0])
    assert_row(head(run.servers[0]["head"]), [1 / 8, 0])
    own = 1 / 4 + s(-3 / 8) / 2
    assert_row(head(run.clients[1][0]["head"]), [own, 0])
    assert_row(head(run.clients[1][0]["global_head"]), [1 / 8, 0])
    assert_row(head(run.servers[1]["head"]), [(own + 1 / 8) / 2, 0])
    assert not run.servers[1]["policy"]["shift"].any()
    assert run.scores(0, X)["personal"][0, 0].item() == pytest.approx((own + 1 / 8) / 2, abs=1e-12)


def policy_of_zeros():
    shapes = {"weight": (4, 2), "bias": (4,), "scale": (4,), "shift": (4,)}
    return Params({n: torch.zeros(shape).double() for n, shape in shapes.items()}, frozenset(shapes))


def test_fedcp_draws_a_context_for_each_client():
    """The same before and in its first round; in its second one, it has that of its head."""
    run = federate(FedCP(), DATA, TINY, [[0], [0]])
    first, later, other = (
        run.worker.state(i, run.worker.client(i, r))["context"] for i, r in ((1, 0), (1, 2), (2, 0))
    )
    assert torch.equal(first, later)
    assert not torch.equal(first, other)
    run.round([1])
    assert torch.equal(run.clients[2][1]["context"], first)
    run.round([1])
    assert torch.equal(run.clients[3][1]["context"], fedcp.context_of(run.clients[2][1]["head"]))


def test_fedcp_scores_with_noise_where_it_is_asked_for():
    x = torch.tensor(DATA.dataset.inputs[:4]).double()
    plain, noisy = (federate(FedCP(gumbel_eval=noise), DATA, TINY, 1) for noise in (False, True))
    assert torch.equal(plain.scores(0, x)["global"], noisy.scores(0, x)["global"])
    assert not torch.equal(plain.scores(0, x)["personal"], noisy.scores(0, x)["personal"])


def test_fedcp_noise_is_gumbels():
    """Mean 0.5772 and variance pi^2 / 6, to three standard errors of 40,000 draws."""
    drawn = fedcp.gumbel_noise(torch.tensor(7), 1000, torch.zeros(1, 20).double())
    assert drawn.mean().item() == pytest.approx(0.5772, abs=3 * 1.2825 / 200)
    assert drawn.var().item() == pytest.approx(math.pi**2 / 6, abs=3 * 0.0173)


@pytest.mark.parametrize(
    ("u", "drawn"), [(0.0, -math.log(25 * math.log(2))), (1 - 2.0**-24, 24 * math.log(2))]
)
def test_fedcp_noise_is_finite_at_both_ends(monkeypatch, u, drawn):
    """The least and the largest uniform number: of 2^-25 and of 1 - 2^-24 the noise is -ln(-ln u)."""
    monkeypatch.setattr(noise, "uniform", lambda key, shape: torch.full(shape, u))
    found = fedcp.gumbel_noise(torch.tensor(0), 1, torch.zeros(1, 1).double())
    assert found[0, 0, 0].item() == pytest.approx(drawn, abs=1e-6)


# ---- pFedVEM


@pytest.fixture
def without_noise(monkeypatch):
    """Draw every head at the mean of its posterior, and start from a prior mean of 0."""
    monkeypatch.setattr(noise, "normal", lambda key, shape: torch.zeros(shape))
    monkeypatch.setattr(torch, "randn", lambda shape, generator: torch.zeros(shape))


def test_pfedvem(without_noise):
    """Round 0: rho^2 = 1, as sigma = 1 and mu is the prior mean, where the divergence has no slope.

    The means step to (1/2, 0) and (0, -1/2) with equal confidence: the prior mean becomes (1/4, -1/4). In
    round 1 client 0 is off by (1/4, 1/4) in both rows: rho^2 = 1 + 1/16, and its mean steps by
    (q, 0) - (1/4, 1/4) 16/17, sigma's s = ln(e - 1) by sigmoid(s) (1/sigma - sigma/rho^2) = sigmoid(s) / 17.
    """
    run = federate(PFedVEM(), PAIR, cohorts=[[0, 1], [0]], lr=1.0)
    assert_row(head(run.clients[0][0]["mean"]), [1 / 2, 0])
    assert_row(head(run.servers[0]["head"]), [1 / 4, -1 / 4])
    s0 = math.log(math.e - 1)
    torch.testing.assert_close(head(run.clients[0][1]["spread"]), torch.full((2, 2), s0).double())
    assert_row(head(run.clients[1][0]["mean"]), [1 / 2 + q - 4 / 17, -4 / 17])
    spread = s0 + s(s0) / 17
    torch.testing.assert_close(head(run.clients[1][0]["spread"]), torch.full((2, 2), spread).double())
    assert_row(head(run.servers[1]["head"]), [1 / 2 + q - 4 / 17, -4 / 17])


@pytest.mark.parametrize(("mean", "step"), [(True, 1 / 2), (False, 1.0)])
def test_pfedvem_divides_the_objective(without_noise, mean, step):
    """Two samples: the slopes of their losses are averaged or added; the rate is 4 / 2 times 1 / 2."""
    data = points([((1, 0), 0), ((1, 0), 0)])
    method = PFedVEM(normalize_elbo=mean, head_lr=0.5)
    run = federate(method, data, cohorts=1, lr=4.0, schedule=Constant(warmup=1))
    assert_row(head(run.worker.states[0]["mean"]), [step, 0])


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1000.0])
def test_pfedvem_starts_with_the_scale_that_is_asked_for(scale):
    """Also with one of which exp is infinite."""
    run = start(PFedVEM(init_scale=scale), ONE)
    spread = run.worker.state(0, run.worker.client(0, 0))["spread"]["head.weight"]
    wanted = torch.full_like(spread, scale)
    torch.testing.assert_close(torch.nn.functional.softplus(spread), wanted, rtol=1e-9, atol=0)


# ---- LG-FedAvg


def test_lgfedavg_shares_the_last_tensors():
    """Two are those of the last layer; BatchNorm statistics stay, even where all parameters are shared."""
    run = start(LGFedAvg(), DATA, CNNB())
    assert run.server.state["weights"].keys() == {"head.weight", "head.bias"}
    run = start(LGFedAvg(p=1000), DATA, CNNB())
    assert run.server.state["weights"].keys() == run.worker.net.train_names


def test_lgfedavg_refuses_nets_whose_shared_layers_differ():
    for p, nets in ((2, [LeNet(), CNNB()]), (6, [CNNB(), CNNB()])):
        assert start(LGFedAvg(p=p), DATA, nets).worker.client(1, 0).net is not None
    with refused(Conflict, "net"):
        start(LGFedAvg(p=6), DATA, [LeNet(), CNNB()])


def test_lgfedavg_scores_new_clients_with_different_nets():
    """Different extractors have no mean: client 3, which never trains, has the initial one of its net."""
    run = federate(LGFedAvg(), replace(DATA, unseen=1), [LeNet(), CNNB()], [[0, 1, 2]])
    given = run.worker.state_for_new_clients([0, 1, 2])
    scores = run.worker.unseen(0, run.server.download([3]), [3], given)["unseen"][3]["test"]["personal"]
    client, test = run.worker.client(3, 0), DATA.clients[3].test
    w = client.initial.merge(run.server.state["weights"])
    x, y = (torch.tensor(values[test]) for values in (DATA.dataset.inputs, DATA.dataset.labels))
    expected = torch.nn.functional.cross_entropy(client.net.eval(w, x.double()), y)
    assert scores.loss == pytest.approx(expected.item(), abs=1e-9)


# ---- MOON


def test_moon():
    """Logits B A x with A = B = I at x = (1, 0) of class 0: z = z_glob = (1, 0), and z_prev = (0, 1).

    e - p = (q, -q) with q = s(-1). The cosines are 1 and 0, and the slope of the second one in z is (0, 1);
    with tau = 1/2 its share is s(-2), so that mu = 2 pushes z by 2 s(-2) / tau along -(0, 1).
    """
    run = start(MOON(mu=2.0), ONE, IDENTITIES, lr=1.0)
    turned = torch.tensor([[0, 1], [1, 0]], dtype=torch.float64)
    run.worker.states[0] = {"previous": run.worker.initial.replace({"conv.1.weight": turned})}
    run.round([0])
    w = run.server.state["weights"]
    assert_close(w["conv.1.weight"], [[1 + q, 0], [-q - 4 * s(-2), 1]])
    assert_close(head(w), [[1 + q, 0], [-q, 1]])
    assert_same(dict(run.worker.states[0]["previous"]), dict(w), 1e-12)


# ---- FedRoD

TWO_TO_ONE = points([((1, 0), 0), ((1, 0), 0), ((1, 0), 1)])


@pytest.mark.parametrize(("balanced", "g"), [(True, 0), (False, 1 / 6)])
def test_fedrod(balanced, g):
    """Logits B A x from A = I and B = 0; two samples of class 0 and one of class 1 at one place.

    The plain loss moves a head by 2/3 - 1/2 = 1/6. The balanced one has the odds of 2 to 1 in its softmax
    already, and moves nothing.
    """
    run = federate(FedRoD(balanced=balanced), TWO_TO_ONE, TWO_LAYER, cohorts=1, lr=1.0)
    assert_row(head(run.server.state["weights"]), [g, 0])
    assert_row(head(run.worker.states[0]["own"]), [1 / 6, 0])
    scores = run.scores(0, X)
    assert_close(scores["personal"], [[g + 1 / 6, -g - 1 / 6]])
    assert_close(scores["global"], [[g, -g]])


# ---- FedDG-GA


def numbers(value):
    return Params({"w": torch.tensor([value], dtype=torch.float64)}, frozenset({"w"}))


def gaps(values):
    return {i: torch.tensor(v, dtype=torch.float64) for i, v in values.items()}


@pytest.mark.parametrize(
    ("center", "round", "a"),
    [
        (False, 0, [1 / 3 + 0.2 / 3, 1 / 3 - 0.1 / 3, 1 / 3]),
        (False, 2, [1 / 3 + 0.1 / 3, 1 / 3 - 0.05 / 3, 1 / 3]),
        (True, 0, [1 / 3 + 0.2 / 3 * (0.15 / 0.15), 1 / 3 - 0.2 / 3, 1 / 3]),
    ],
)
def test_feddgga(center, round, a):
    """Gaps of 0.2 and -0.1, N = 3, 4 rounds: a_i moves by 0.2/3, falling to 0, times gap / 0.2.

    The third client is not there. With the mean 0.05 taken off the gaps are 0.15 and -0.15. Weights add up to
    1 again; models are 1 and 5.
    """
    method = FedDGGA(center=center)
    context = make_context(smooth_net(), method, population=3, rounds=4, initial=numbers(0.0))
    up = {"weights": {0: numbers(1.0), 1: numbers(5.0)}, "gap": gaps({0: 0.2, 1: -0.1})}
    before = method.init_server(context)
    server = method.aggregate(before, up, Cohort((0, 1), (1, 1), round, 3, context))
    a = [v / sum(a) for v in a]
    assert server["a"].tolist() == pytest.approx(a, abs=1e-12)
    assert server["weights"]["w"].item() == pytest.approx((a[0] + 5 * a[1]) / (a[0] + a[1]), abs=1e-12)
    assert method.server_metrics(context, server)["a"] == server["a"].tolist()
    assert before["a"].tolist() == [1 / 3] * 3


def test_feddgga_takes_uniform_weights_where_all_are_0():
    method = FedDGGA(step=1.0)
    context = make_context(smooth_net(), method, population=2, rounds=4)
    server = {"weights": numbers(0.0), "a": torch.tensor([0.0, 1.0], dtype=torch.float64)}
    up = {"weights": {0: numbers(3.0)}, "gap": gaps({0: -1.0})}
    after = method.aggregate(server, up, Cohort((0,), (1,), 0, 2, context))
    assert (after["a"].tolist(), after["weights"]["w"].item()) == ([0.0, 1.0], 3.0)


@pytest.mark.parametrize(("held", "badness"), [(0, -math.log(s(1 / 2))), (1, math.log(2))])
def test_feddgga_goes_by_validation_data(held, badness):
    """Two samples at right angles: of one that is held out nothing is known. Without such data all count."""
    data = points([((1, 0), 0), ((0, 1), 1)])
    client = data.clients[0]
    if held:
        client = replace(client, train=client.train[:1], val=client.train[1:])
    run = federate(FedDGGA(metric="loss"), replace(data, clients=(client,)), cohorts=1, lr=1.0)
    assert run.clients[0][0]["badness"].item() == pytest.approx(badness, abs=1e-12)


# ---- FML


def test_fml():
    """One client, alpha = 1/2 and beta = 1/4. Round 0 starts from equal models: steps of 1/4 and 1/8.

    Then the private model says p = s(1/2) and the meme m = s(1/4) for the right class. By the first logit the
    slopes are (p - 1) / 2 + (p - m) / 2 and (m - 1) / 4 + 3 (m - p) / 4.
    """
    run = federate(FML(alpha=0.5, beta=0.25), ONE, cohorts=2, lr=1.0)
    assert_row(head(run.clients[0][0]["own"]), [1 / 4, 0])
    assert_row(head(run.servers[0]["weights"]), [1 / 8, 0])
    p, m = s(1 / 2), s(1 / 4)
    assert_row(head(run.clients[1][0]["own"]), [1 / 4 - ((p - 1) / 2 + (p - m) / 2), 0])
    assert_row(head(run.servers[1]["weights"]), [1 / 8 - ((m - 1) / 4 + 3 * (m - p) / 4), 0])


@pytest.mark.parametrize("execution", ["loop", "stacked"])
def test_fml_with_a_meme_of_another_net(execution):
    """Private models of two nets, whose features differ in size, around one meme."""
    nets = [f"tests.support.by_hand.tiny_of_{k}" for k in (7, 9)]
    run = federate(FML(meme=TINY), DATA, nets, 2, execution=execution)
    assert run.server.state["weights"].keys() == run.worker.context.nets["meme"].initial(0).keys()
    assert [head(run.worker.states[i]["own"]).shape for i in (0, 1)] == [(4, 7), (4, 9)]
    x = torch.tensor(DATA.dataset.inputs[:4]).double()
    assert torch.equal(run.scores(0, x)["global"], run.scores(1, x)["global"])
