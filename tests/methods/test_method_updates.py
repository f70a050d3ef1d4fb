"""Every method's update against numbers worked out by hand.

Unless said otherwise there are two clients of one sample each, x = (1, 0) of class 0 and x = (0, 1) of
class 1, one step of length lr = 1 a round, and the net is linear, logits W x with W = 0 at first. There the
softmax is (1/2, 1/2), and the gradient of the cross-entropy, (p - e_y) x^T, is

    g_0 = [[-1/2, 0], [1/2, 0]],    g_1 = [[0, 1/2], [0, -1/2]].

For two classes with logits (a, -a) the softmax is (s(2a), s(-2a)), with s the logistic function. In all that
follows the second row of W is minus the first, so that only the first row is given.
"""

import math

import pytest
import torch

from rayfl.engine.travel import Download
from rayfl.methods import SCAFFOLD, Ditto, FedBN, FedCO2, FedPer, FedProto, FedProx
from rayfl.nets import CNNB
from rayfl.training import Exponential, Fitted
from rayfl.training.params import Params
from tests.methods.numbers import (
    DATA,
    IDENTITIES,
    NORMED,
    ONE,
    PAIR,
    TWO_LAYER,
    assert_close,
    assert_row,
    body,
    head,
    s,
)
from tests.support.by_hand import assert_same, federate, points, start


@pytest.mark.parametrize(
    ("norm", "pull"), [("squared", 0.6 * 1 / 2), ("l2", 0.6 / 2 * (1 / 2) / math.sqrt(1 / 2))]
)
def test_fedprox(norm, pull):
    """One client, two steps in the round. The first has no pull, as w = w_t = 0, and goes to 1/2.

    There its logits are (1/2, -1/2), so that the second adds s(-1). It subtracts the pull: mu (w - w_t) =
    mu/2 for the squared norm, mu/2 (w - w_t) / ||w - w_t|| for the plain one, where ||w - w_t|| is
    sqrt(1/4 + 1/4).
    """
    run = federate(FedProx(mu=0.6, norm=norm), ONE, cohorts=1, lr=1.0, epochs=2)
    assert_row(head(run.server.state["weights"]), [1 / 2 + s(-1) - pull, 0])


def test_scaffold():
    """Round 0 has no drift. The steps are -g_i, their mean is (1/4, -1/4), and with eta_g = 1/2

        w = (1/8, -1/8),  c_i = g_i,  c = (g_0 + g_1) / 2 = (-1/4, 1/4).

    In round 1 only client 0 takes part. Its logits are (1/8, -1/8): the gradient is (-q, 0), q = s(-1/4), the
    drift c - c_0 = (1/4, 1/4), the step (q - 1/4, -1/4), and c_0 becomes the gradient (-q, 0). So

        w = (1/8, -1/8) + 1/2 (q - 1/4, -1/4) = (q/2, -1/4),
        c = (-1/4, 1/4) + 1/2 ((-q, 0) - (-1/2, 0)) = (-q/2, 1/4),    as N = 2.
    """
    run = federate(SCAFFOLD(server_lr=0.5), PAIR, cohorts=[[0, 1], [0]], lr=1.0)
    assert_row(head(run.servers[0]["weights"]), [1 / 8, -1 / 8])
    assert_row(head(run.servers[0]["control"]), [-1 / 4, 1 / 4])
    assert_row(head(run.clients[0][1]["control"]), [0, 1 / 2])
    q = s(-1 / 4)
    assert_row(head(run.servers[1]["weights"]), [q / 2, -1 / 4])
    assert_row(head(run.servers[1]["control"]), [-q / 2, 1 / 4])
    assert_row(head(run.clients[1][0]["control"]), [-q, 0])


def test_scaffold_renews_the_control_with_the_rate_of_the_round():
    """As above, with a rate of 1/2 in round 1. Only the step is shorter: c_0 still becomes the gradient."""
    run = federate(
        SCAFFOLD(server_lr=0.5), PAIR, cohorts=[[0, 1], [0]], lr=1.0, schedule=Exponential(decay=0.5)
    )
    q = s(-1 / 4)
    assert_row(head(run.servers[1]["weights"]), [1 / 8 + (q - 1 / 4) / 4, -1 / 8 - 1 / 16])
    assert_row(head(run.servers[1]["control"]), [-q / 2, 1 / 4])
    assert_row(head(run.clients[1][0]["control"]), [-q, 0])


def test_scaffold_scores_the_model_that_a_client_has_trained():
    """Right after training it is the client's own: the server's step size comes later.

    In round 1 client 0 has made the step (q - 1/4, -1/4) of ``test_scaffold`` from (1/8, -1/8), and its
    logits of (1, 0) are what the first column says.
    """
    run = federate(SCAFFOLD(server_lr=0.5), PAIR, cohorts=1, lr=1.0)
    run.round([0], score_splits=["test"])
    logit = 1 / 8 + s(-1 / 4) - 1 / 4
    loss = run.results[1].scores[0]["test"]["personal"].loss
    assert loss == pytest.approx(math.log(1 + math.exp(-2 * logit)), abs=1e-12)


def test_scaffold_without_steps():
    """A client that has taken no step uploads zeros and keeps its control."""
    run = federate(SCAFFOLD(), PAIR, cohorts=1, lr=1.0)
    client, state, down = run.worker.client(0, 1), run.worker.states[0], run.server.state
    update = run.worker.method.local_update(client, state, down)
    update.send(None)
    with pytest.raises(StopIteration) as end:
        update.send(Fitted(down["weights"], 0, 0.0, 0.0))
    upload, kept = end.value.value
    assert not upload["step"].norm()
    assert not upload["control"].norm()
    assert kept is state


def test_fedbn():
    """A net W BatchNorm(x), two samples per client, momentum of the statistics 0.1.

    Client 0 has (3, 0) of class 0 and (1, 0) of class 1: batch mean (2, 0), variance (1, 0), so the
    normalised x is (a, 0) and (-a, 0), a = 1 / sqrt(1 + 1e-5). The mean gradient of W is (-a/2, 0). Client
    1 has (0, 0) of class 0 and (0, 4) of class 1: mean (0, 2), variance (0, 4), normalised x (0, -b) and
    (0, b), b = 2 / sqrt(4 + 1e-5), gradient (0, b/2). So W = (a/4, -b/4) after round 0. Running means are
    (0.2, 0) and (0, 0.2); running variances, of the unbiased 2 and 8, (0.9 + 0.2, 0.9) and (0.9, 0.9 +
    0.8).

    Round 1, client 0: logits of the first sample are (a^2/4, -a^2/4), so p - e_0 = (-q, q), q = s(-a^2/2),
    and the gradient of BatchNorm's output is W^T (-q, q) = (-a q/2, b q/2); for the second it is the
    opposite. Times the normalised x, on average: (-a^2 q/2, 0), which is what BatchNorm's weight, still 1,
    loses. The bias's gradient is the mean of opposites, 0. Running mean 0.9 * 0.2 + 0.2, variance 0.9 * 1.1
    + 0.2.
    """
    data = points([((3, 0), 0), ((1, 0), 1)], [((0, 0), 0), ((0, 4), 1)])
    run = federate(FedBN(), data, NORMED, cohorts=2, lr=1.0)
    a, b = 1 / math.sqrt(1 + 1e-5), 2 / math.sqrt(4 + 1e-5)
    assert set(run.servers[0]["weights"]) == {"head.weight"}
    assert_row(head(run.servers[0]["weights"]), [a / 4, -b / 4])
    first = [run.clients[0][i]["own"] for i in (0, 1)]
    assert_close(first[0]["fc.0.running_mean"], [0.2, 0])
    assert_close(first[0]["fc.0.running_var"], [1.1, 0.9])
    assert_close(first[1]["fc.0.running_mean"], [0, 0.2])
    assert_close(first[1]["fc.0.running_var"], [0.9, 1.7])
    own, q = run.worker.states[0]["own"], s(-a * a / 2)
    assert_close(own["fc.0.weight"], [1 + a * a * q / 2, 1])
    assert_close(own["fc.0.bias"], [0, 0])
    assert_close(own["fc.0.running_mean"], [0.38, 0])
    assert_close(own["fc.0.running_var"], [1.19, 0.81])


def test_fedper():
    """A net B A x, with A = I shared and B = 0 personal.

    Round 0: A has no gradient, since B = 0; B_i = -g_i. Round 1: client 0 has logits (1/2, -1/2), p - e_0 =
    (-q, q), q = s(-1), so B_0 gains (q, 0) and A's gradient is B_0^T (-q, q) x^T = [[-q, 0], [0, 0]];
    client 1 likewise [[0, 0], [0, -q]]. The mean of A is (1 + q/2) I.
    """
    run = federate(FedPer(), PAIR, TWO_LAYER, cohorts=2, lr=1.0)
    q = s(-1)
    assert_close(body(run.servers[0]["weights"]), [[1.0, 0.0], [0.0, 1.0]])
    assert_close(body(run.servers[1]["weights"]), [[1 + q / 2, 0.0], [0.0, 1 + q / 2]])
    assert_row(head(run.worker.states[0]["own"]), [1 / 2 + q, 0])
    assert_row(head(run.worker.states[1]["own"]), [0, -1 / 2 - q])


def test_ditto():
    """mu = 1/2. Round 0: w = v = 0, so nothing pulls; v_i = -g_i, and w is the mean, (1/4, -1/4).

    Round 1, client 0: v has logits (1/2, -1/2) and gains s(-1); the pull 1/2 (v - w) is 1/2 (1/4, 1/4). So
    v_0 = (1/2 + s(-1) - 1/8, -1/8). From w its logits are (1/4, -1/4): its model is (1/4 + r, -1/4),
    r = s(-1/2), client 1's is (1/4, -1/4 - r), and the mean (1/4 + r/2, -1/4 - r/2).
    """
    run = federate(Ditto(mu=0.5), PAIR, cohorts=2, lr=1.0)
    r = s(-1 / 2)
    assert_row(head(run.clients[0][0]["own"]), [1 / 2, 0])
    assert_row(head(run.clients[1][0]["own"]), [1 / 2 + s(-1) - 1 / 8, -1 / 8])
    assert_row(head(run.clients[1][1]["own"]), [1 / 8, -1 / 2 - s(-1) + 1 / 8])
    assert_row(head(run.servers[1]["weights"]), [1 / 4 + r / 2, -1 / 4 - r / 2])


@pytest.mark.parametrize(("weights", "mean"), [("uniform", 2.5), ("counts", 3.0)])
def test_fedproto(weights, mean):
    """A net B A x, A = I, B = 0; features A x.

    Client 0 has (1, 0) of class 0; client 1 has (3, 0) and (5, 0) of class 0 and (0, 1) of class 1.

    Round 0: A has no gradient, since B = 0 and there are no prototypes, so features are x. Prototypes of
    class 0 are (1, 0) of one sample and (4, 0) of two: the global one is (2.5, 0), or (3, 0) by counts;
    that of class 1 is (0, 1). Round 1, client 0: B_0 = -g_0, so cross-entropy gives A the gradient [[-q,
    0], [0, 0]], q = s(-1), as in ``test_fedper``. The distance is (z - P)^2 / d with d = 2, its gradient
    2/2 (z - P) x^T = [[1 - P, 0], [0, 0]], times lambda.
    """
    data = points([((1, 0), 0)], [((3, 0), 0), ((5, 0), 0), ((0, 1), 1)])
    method = FedProto(lam=0.4, prototype_weights=weights)
    run = federate(method, data, TWO_LAYER, cohorts=2, lr=1.0)
    assert_close(run.servers[0]["prototypes"], [[mean, 0], [0, 1]])
    assert run.servers[0]["known"].tolist() == [True, True]
    assert_close(body(run.clients[1][0]["weights"]), [[1 + s(-1) + 0.4 * (mean - 1), 0], [0, 1]])


def test_fedproto_with_an_unknown_class():
    """Only client 0, of class 0, has ever taken part: nobody knows class 1, and nobody predicts it.

    Its prototype is (1, 0). Client 1's features of (0, 1), untrained, are at distance sqrt(2). When client
    1 comes alone, class 0 keeps its prototype, class 1 gets one, and client 1's sample of class 1 is not
    pulled.
    """
    run = federate(FedProto(), PAIR, TWO_LAYER, cohorts=[[0]], lr=1.0)
    x = torch.tensor([[[[0.0, 1.0]]]], dtype=torch.float64)
    assert_close(run.scores(1, x)["personal"], [[-math.sqrt(2), -math.inf]])
    run.round([1])
    assert_close(run.server.state["prototypes"], [[1, 0], [0, 1]])
    assert run.server.state["known"].tolist() == [True, True]
    assert_close(body(run.worker.states[1]["weights"]), [[1, 0], [0, 1]])


def test_fedproto_predicts_with_what_was_received_until_the_server_has_the_new_prototypes():
    """Prototypes (2, 0) and (1.5, 0): client 1's sample (0, 0) of class 0 is nearer to that of class 1.

    With its own ones, (0, 0) and (1.5, 0), it would be right. Steps are too small to move anything.
    """
    data = points([((4, 0), 0)], [((0, 0), 0), ((1.5, 0), 1)])
    run = federate(FedProto(), data, TWO_LAYER, cohorts=1, lr=1e-6)
    run.round([1], score_splits=["test"])
    assert run.results[1].scores[1]["test"]["personal"].score == 1


def test_fedproto_before_any_prototype_predicts_by_the_head():
    run = federate(FedProto(), PAIR, TWO_LAYER, cohorts=0)
    x = torch.tensor([[[[0.0, 1.0]]]], dtype=torch.float64)
    assert run.scores(0, x)["personal"].tolist() == [[0, 0]]


@pytest.mark.parametrize("inter", ["both", "online", "offline"])
def test_fedco2_sends_initial_classifiers_at_first(inter):
    """Nets B A x, A = B = I, three clients, of which only 0 and 1 take part: 2's classifier is there too.

    Client 0, x = (1, 0): the logits are (1, 0), through its own classifier and through those of the two
    others. p - e_0 = (-r, r), r = s(-1). Every classifier adds (-r, r) x^T to the gradient of A, the foreign
    ones mu times: A_0 = [[1 + k r, 0], [-k r, 1]] with k = 1 + 2 mu. Only the own one moves: B_0 = [[1 + r,
    0], [-r, 1]]. Client 1 mirrors this, and the mean of A has 1 + k r/2 on and -k r/2 off the diagonal.
    """
    mu, r = 0.6, s(-1)
    data = points([((1, 0), 0)], [((0, 1), 1)], [((1, 1), 0)])
    method = FedCO2(mu=mu, inter=inter, exchange="last_layer")
    run = federate(method, data, IDENTITIES, cohorts=[[0, 1]], lr=1.0)
    online, offline = (1 + 2 * mu * (inter in ("both", part)) for part in ("online", "offline"))
    own = run.clients[0][0]["offline"]
    assert_close(body(own), [[1 + offline * r, 0], [-offline * r, 1]])
    assert_close(head(own), [[1 + r, 0], [-r, 1]])
    on, off = 1 + online * r / 2, -online * r / 2
    assert_close(body(run.servers[0]["weights"]), [[on, off], [off, on]])
    heads = run.servers[0]["heads"]
    assert_close(head(heads[0]), [[1 + r, 0], [-r, 1]])
    assert_close(head(heads[2]), [[1, 0], [0, 1]])


@pytest.mark.parametrize("intra", ["both", "to_online", "to_offline", "none"])
def test_fedco2_intra_client_transfer(intra):
    """A linear net, no foreign heads. After round 0 offline nets are -g_i, the online net is (1/4, -1/4).

    Round 1, client 0, mutual phase: teachers' logits at temperature t are (1/2, -1/2)/t offline and (1/4,
    -1/4)/t online. The gradient of t^2 KL(teacher || student) on the student's logits is t (student -
    teacher), so online gains and offline loses m = t (s(1/t) - s(1/(2t))). Then each net makes its step on
    the cross-entropy from the new logits: a becomes a + s(-2a). Client 1 mirrors this in the mean.
    """
    t = 2.0
    m = t * (s(1 / t) - s(1 / (2 * t)))
    online = 1 / 4 + m * (intra in ("both", "to_online"))
    offline = 1 / 2 - m * (intra in ("both", "to_offline"))
    run = federate(FedCO2(intra=intra, inter="none", kd_temperature=t), PAIR, cohorts=2, lr=1.0)
    assert_row(head(run.clients[1][0]["offline"]), [offline + s(-2 * offline), 0])
    mean = (online + s(-2 * online) + 1 / 4) / 2
    assert_row(head(run.servers[1]["weights"]), [mean, -mean])


def test_what_fedco2_keeps_of_the_online_net():
    """BatchNorm is found by its type: in ``cnn-b`` no name gives it away."""

    def kept(**options):
        run = start(FedCO2(**options), DATA, CNNB())
        return run.worker.net.modules_of.keys() - run.server.state["weights"].keys()

    norms = {f"{layer}.{e}" for layer in ("conv.1", "conv.5", "fc.1", "fc.4") for e in ("weight", "bias")}
    assert kept(bn_personal="affine_only") == norms
    assert kept(personal="head", exchange="last_layer") == {"head.weight", "head.bias"}
    whole = start(FedCO2(), DATA, CNNB()).worker.net.modules_of
    assert kept(personal="head") == {name for name in whole if not name.startswith("conv.")}


@pytest.mark.parametrize("execution", ["loop", "stacked"])
def test_fedco2_leaves_a_clients_own_classifier_out(execution):
    """Also one whose scores are infinite: times 0 they would not be numbers.

    Client 1, to whom it is foreign, has a bad update; the others are as they were, to the bit.
    """
    run = federate(FedCO2(intra="none"), DATA, CNNB(), 1, execution=execution)
    heads, found = run.server.state["heads"], []
    for factor in (1.0, 1e308):
        weight = factor * heads[0]["head.weight"].sign()
        own = Params({**heads[0], "head.weight": weight}, heads[0].train_names)
        down = {**run.server.download([0])[0], "heads": {**heads, 0: own}}
        before = dict(run.worker.states)
        result = run.worker.train(1, Download(down, {}), [(0, 1)])[1]
        assert set(result.bad) == (set() if factor == 1 else {1})
        found.append(run.worker.states[0])
        run.worker.states.update(before)
    assert_same(dict(found[1]["offline"]), dict(found[0]["offline"]))
    assert_same(dict(found[1]["own"]), dict(found[0]["own"]))
