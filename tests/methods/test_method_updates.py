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

from rayfl.methods import SCAFFOLD, Ditto, FedAvg, FedBN, FedCO2, FedPer, FedProto, FedProx, Local
from rayfl.nets import CNNB
from rayfl.training import Exponential, Fitted
from tests.support.by_hand import federate, points, ragged

PAIR = points([((1, 0), 0)], [((0, 1), 1)])
ONE = points([((1, 0), 0)])


def s(t):
    return 1 / (1 + math.exp(-t))


def assert_rows(weight, first):
    """Check a 2x2 matrix of which the second row is minus the first."""
    assert_matrix(weight, [first, [-v for v in first]])


def assert_matrix(weight, expected):
    torch.testing.assert_close(weight, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


def head(params):
    return params["head.weight"]


def lower(params):
    return params["conv.1.weight"]


def test_local():
    """Client 0 goes from 0 to 1/2 in the first round; there its logits are (1/2, -1/2).

    The gradient is then (s(1) - 1, s(-1)), so that the second round adds s(-1). Nothing is exchanged.
    """
    run = federate(Local(), PAIR, cohorts=2, lr=1.0)
    assert_rows(head(run.worker.states[0]["weights"]), [1 / 2 + s(-1), 0])
    assert_rows(head(run.worker.states[1]["weights"]), [0, -1 / 2 - s(-1)])
    assert run.server.state == {}


@pytest.mark.parametrize(
    ("norm", "pull"), [("squared", 0.6 * 1 / 2), ("l2", 0.6 / 2 * (1 / 2) / math.sqrt(1 / 2))]
)
def test_fedprox(norm, pull):
    """One client, two steps in the round. The first has no pull, as w = w_t = 0, and goes to 1/2.

    The second adds s(-1) as in ``test_local`` and subtracts the pull: mu (w - w_t) = mu/2 for the squared
    norm, mu/2 (w - w_t) / ||w - w_t|| for the plain one, where ||w - w_t|| = sqrt(1/4 + 1/4).
    """
    run = federate(FedProx(mu=0.6, norm=norm), ONE, cohorts=1, lr=1.0, epochs=2)
    assert_rows(head(run.server.state["weights"]), [1 / 2 + s(-1) - pull, 0])


def test_fedprox_pull_is_clipped_with_the_gradient():
    """With a clip of 0.1 the two steps have length 0.1, and the second, all pull, goes back.

    The first step reaches 0.1/sqrt(2) in each row; there the pull, 100 times that, exceeds the gradient.
    """
    run = federate(FedProx(mu=100.0), ONE, cohorts=1, lr=1.0, epochs=2, clip=0.1)
    torch.testing.assert_close(
        head(run.server.state["weights"]), torch.zeros(2, 2, dtype=torch.float64), rtol=0, atol=1e-5
    )


def test_scaffold():
    """Round 0 has no drift. The steps are -g_i, their mean is (1/4, -1/4), and with eta_g = 1/2

        w = (1/8, -1/8),  c_i = g_i,  c = (g_0 + g_1) / 2 = (-1/4, 1/4).

    In round 1 only client 0 takes part. Its logits are (1/8, -1/8): the gradient is (-q, 0), q = s(-1/4), the
    drift c - c_0 = (1/4, 1/4), the step (q - 1/4, -1/4), and c_0 becomes the gradient (-q, 0). So

        w = (1/8, -1/8) + 1/2 (q - 1/4, -1/4) = (q/2, -1/4),
        c = (-1/4, 1/4) + 1/2 ((-q, 0) - (-1/2, 0)) = (-q/2, 1/4),    as N = 2.
    """
    run = federate(SCAFFOLD(server_lr=0.5), PAIR, cohorts=[[0, 1], [0]], lr=1.0)
    assert_rows(head(run.servers[0]["weights"]), [1 / 8, -1 / 8])
    assert_rows(head(run.servers[0]["control"]), [-1 / 4, 1 / 4])
    assert_rows(head(run.clients[0][1]["control"]), [0, 1 / 2])
    q = s(-1 / 4)
    assert_rows(head(run.servers[1]["weights"]), [q / 2, -1 / 4])
    assert_rows(head(run.servers[1]["control"]), [-q / 2, 1 / 4])
    assert_rows(head(run.clients[1][0]["control"]), [-q, 0])


def test_scaffold_renews_the_control_with_the_rate_of_the_round():
    """As above, with a rate of 1/2 in round 1. Only the step is shorter: c_0 still becomes the gradient."""
    run = federate(
        SCAFFOLD(server_lr=0.5), PAIR, cohorts=[[0, 1], [0]], lr=1.0, schedule=Exponential(decay=0.5)
    )
    q = s(-1 / 4)
    assert_rows(head(run.servers[1]["weights"]), [1 / 8 + (q - 1 / 4) / 4, -1 / 8 - 1 / 16])
    assert_rows(head(run.servers[1]["control"]), [-q / 2, 1 / 4])
    assert_rows(head(run.clients[1][0]["control"]), [-q, 0])


def test_scaffold_averages_statistics():
    """eta_g scales the step of parameters; running statistics are the mean of the clients', as in FedAvg.

    One client, one round: whatever eta_g is, the server takes the client's statistics over.
    """
    data = ragged((12,))
    fedavg = federate(FedAvg(), data, CNNB(), cohorts=1).server.state["weights"]
    scaffold = federate(SCAFFOLD(server_lr=3.0), data, CNNB(), cohorts=1).server.state["weights"]
    buffers = fedavg.keys() - fedavg.train_names
    assert buffers
    for name in buffers:
        torch.testing.assert_close(scaffold[name], fedavg[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("server_lr", [0.5, 1.0])
def test_scaffold_scores_the_model_that_a_client_has_trained(server_lr):
    """Right after training it is the client's own: the server's step size comes later.

    In round 1 client 0 has made the step (q - 1/4, -1/4) of ``test_scaffold``, or with eta_g = 1 from
    (1/4, -1/4) the step (s(-1/2) - 1/4, -1/4), and its logits of (1, 0) are what the first column says.
    """
    run = federate(SCAFFOLD(server_lr=server_lr), PAIR, cohorts=1, lr=1.0)
    run.round([0], score_splits=["test"])
    first = server_lr / 4
    logit = first + s(-2 * first) - 1 / 4
    loss = run.results[1].scores[0]["test"]["personal"].loss
    assert loss == pytest.approx(math.log(1 + math.exp(-2 * logit)), abs=1e-12)


def test_scaffold_with_momentum():
    """Two steps with momentum 1/2: velocities g and g/2 + g', so w = -(3/2 g + g') and K = 1 + 3/2.

    g = -1/2 as ever; after the first step the logits are (1/2, -1/2), so g' = -s(-1).
    """
    run = federate(SCAFFOLD(), ONE, cohorts=1, lr=1.0, epochs=2, momentum=0.5)
    assert_rows(head(run.server.state["weights"]), [3 / 4 + s(-1), 0])
    assert_rows(head(run.worker.states[0]["control"]), [-(3 / 4 + s(-1)) / 2.5, 0])


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
    run = federate(FedBN(), data, "tests.support.by_hand.normed", cohorts=2, lr=1.0)
    a, b = 1 / math.sqrt(1 + 1e-5), 2 / math.sqrt(4 + 1e-5)
    assert set(run.servers[0]["weights"]) == {"head.weight"}
    assert_rows(head(run.servers[0]["weights"]), [a / 4, -b / 4])
    first = [run.clients[0][i]["own"] for i in (0, 1)]
    assert_matrix(first[0]["fc.0.running_mean"], [0.2, 0])
    assert_matrix(first[0]["fc.0.running_var"], [1.1, 0.9])
    assert_matrix(first[1]["fc.0.running_mean"], [0, 0.2])
    assert_matrix(first[1]["fc.0.running_var"], [0.9, 1.7])
    own, q = run.worker.states[0]["own"], s(-a * a / 2)
    assert_matrix(own["fc.0.weight"], [1 + a * a * q / 2, 1])
    assert_matrix(own["fc.0.bias"], [0, 0])
    assert_matrix(own["fc.0.running_mean"], [0.38, 0])
    assert_matrix(own["fc.0.running_var"], [1.19, 0.81])


def test_fedbn_affine_only():
    """As above, but running statistics are averaged: means (0.1, 0.1), variances (1.0, 1.3)."""
    data = points([((3, 0), 0), ((1, 0), 1)], [((0, 0), 0), ((0, 4), 1)])
    run = federate(FedBN(bn_personal="affine_only"), data, "tests.support.by_hand.normed", cohorts=1, lr=1.0)
    assert set(run.worker.states[0]["own"]) == {"fc.0.weight", "fc.0.bias"}
    assert_matrix(run.server.state["weights"]["fc.0.running_mean"], [0.1, 0.1])
    assert_matrix(run.server.state["weights"]["fc.0.running_var"], [1.0, 1.3])


def test_fedper():
    """A net B A x, with A = I shared and B = 0 personal.

    Round 0: A has no gradient, since B = 0; B_i = -g_i. Round 1: client 0 has logits (1/2, -1/2), p - e_0 =
    (-q, q), q = s(-1), so B_0 gains (q, 0) and A's gradient is B_0^T (-q, q) x^T = [[-q, 0], [0, 0]];
    client 1 likewise [[0, 0], [0, -q]]. The mean of A is (1 + q/2) I.
    """
    run = federate(FedPer(), PAIR, "tests.support.by_hand.two_layer", cohorts=2, lr=1.0)
    q = s(-1)
    assert_matrix(lower(run.servers[0]["weights"]), [[1.0, 0.0], [0.0, 1.0]])
    assert_matrix(lower(run.servers[1]["weights"]), [[1 + q / 2, 0.0], [0.0, 1 + q / 2]])
    assert_rows(head(run.worker.states[0]["own"]), [1 / 2 + q, 0])
    assert_rows(head(run.worker.states[1]["own"]), [0, -1 / 2 - q])


def test_ditto():
    """mu = 1/2. Round 0: w = v = 0, so nothing pulls; v_i = -g_i, and w is the mean, (1/4, -1/4).

    Round 1, client 0: v has logits (1/2, -1/2) and gains s(-1); the pull 1/2 (v - w) is 1/2 (1/4, 1/4). So
    v_0 = (1/2 + s(-1) - 1/8, -1/8). From w its logits are (1/4, -1/4): its model is (1/4 + r, -1/4),
    r = s(-1/2), client 1's is (1/4, -1/4 - r), and the mean (1/4 + r/2, -1/4 - r/2).
    """
    run = federate(Ditto(mu=0.5), PAIR, cohorts=2, lr=1.0)
    r = s(-1 / 2)
    assert_rows(head(run.clients[0][0]["own"]), [1 / 2, 0])
    assert_rows(head(run.clients[1][0]["own"]), [1 / 2 + s(-1) - 1 / 8, -1 / 8])
    assert_rows(head(run.clients[1][1]["own"]), [1 / 8, -1 / 2 - s(-1) + 1 / 8])
    assert_rows(head(run.servers[1]["weights"]), [1 / 4 + r / 2, -1 / 4 - r / 2])


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
    run = federate(method, data, "tests.support.by_hand.two_layer", cohorts=2, lr=1.0)
    assert_matrix(run.servers[0]["prototypes"], [[mean, 0], [0, 1]])
    assert run.servers[0]["known"].tolist() == [True, True]
    assert_matrix(lower(run.clients[1][0]["weights"]), [[1 + s(-1) + 0.4 * (mean - 1), 0], [0, 1]])


def test_fedproto_averages_the_distance_over_the_whole_batch():
    """Samples of a class without a prototype count in the mean, with distance 0.

    Client 0 makes the prototype of class 0, (1, 0). Then client 1 trains on (3, 0) of class 0 and (0, 1) of
    class 1. As B = 0, only the distance moves A: 1/(2 d) (z - P)^2 with d = 2 has the gradient
    2/4 (3 - 1) * 3 = 3 in the first entry.
    """
    data = points([((1, 0), 0)], [((3, 0), 0), ((0, 1), 1)])
    run = federate(FedProto(lam=0.4), data, "tests.support.by_hand.two_layer", cohorts=[[0], [1]], lr=1.0)
    assert_matrix(lower(run.clients[1][1]["weights"]), [[1 - 0.4 * 3, 0], [0, 1]])


def test_fedproto_with_an_unknown_class():
    """Only client 0, of class 0, has ever taken part: nobody knows class 1, and nobody predicts it.

    Its prototype is (1, 0). Client 1's features of (0, 1), untrained, are at distance sqrt(2). When client
    1 comes alone, class 0 keeps its prototype, class 1 gets one, and client 1's sample of class 1 is not
    pulled.
    """
    run = federate(FedProto(), PAIR, "tests.support.by_hand.two_layer", cohorts=[[0]], lr=1.0)
    x = torch.tensor([[[[0.0, 1.0]]]], dtype=torch.float64)
    assert_matrix(run.scores(1, x)["personal"], [[-math.sqrt(2), -math.inf]])
    run.round([1])
    assert_matrix(run.server.state["prototypes"], [[1, 0], [0, 1]])
    assert run.server.state["known"].tolist() == [True, True]
    assert_matrix(lower(run.worker.states[1]["weights"]), [[1, 0], [0, 1]])


def test_fedproto_predicts_with_what_was_received_until_the_server_has_the_new_prototypes():
    """Prototypes (2, 0) and (1.5, 0): client 1's sample (0, 0) of class 0 is nearer to that of class 1.

    With its own ones, (0, 0) and (1.5, 0), it would be right. Steps are too small to move anything.
    """
    data = points([((4, 0), 0)], [((0, 0), 0), ((1.5, 0), 1)])
    run = federate(FedProto(), data, "tests.support.by_hand.two_layer", cohorts=1, lr=1e-6)
    run.round([1], score_splits=["test"])
    assert run.results[1].scores[1]["test"]["personal"].correct == 1


def test_fedproto_before_any_prototype_predicts_by_the_head():
    run = federate(FedProto(), PAIR, "tests.support.by_hand.two_layer", cohorts=0)
    x = torch.tensor([[[[0.0, 1.0]]]], dtype=torch.float64)
    assert run.scores(0, x)["personal"].tolist() == [[0, 0]]


def test_fedco2_inter_client_transfer():
    """Nets B A x, A = I, B = 0, no mutual phase, the last layer is exchanged, mu = 0.6.

    Round 0, in which foreign heads are 0 and have no part in the gradient of A: offline heads become
    H_i = -g_i, the mean online head is (1/4, -1/4), every A stays I. Round 1,
    client 0, x = (1, 0): through the foreign head H_1 = (0, -1/2) the logits are 0, p - e_0 = (-1/2, 1/2),
    and the gradient of A is mu H_1^T (-1/2, 1/2) x^T = [[0, 0], [mu/2, 0]], in both nets.

    Offline: the own task as in ``test_fedper``, q = s(-1): A_0 = [[1 + q, 0], [-mu/2, 1]], B_0 = (1/2 + q,
    0). Online: logits (1/4, -1/4), p - e_0 = (-r, r), r = s(-1/2). B gains (r, 0), and A's gradient is
    (1/4, -1/4; -1/4, 1/4)^T (-r, r) x^T = [[-r/2, 0], [r/2, 0]]: A_0 = [[1 + r/2, 0], [-r/2 - mu/2, 1]].
    Client 1 mirrors this, A_1 = [[1, -r/2 - mu/2], [0, 1 + r/2]]. The mean of A has 1 + r/4 on and -(r +
    mu)/4 off the diagonal, that of B the first row (1/4 + r/2, -1/4 - r/2).
    """
    mu, q, r = 0.6, s(-1), s(-1 / 2)
    method = FedCO2(mu=mu, intra="none", exchange="last_layer")
    run = federate(method, PAIR, "tests.support.by_hand.two_layer", cohorts=2, lr=1.0)
    assert_rows(head(run.servers[0]["heads"][0]), [1 / 2, 0])
    assert_rows(head(run.servers[0]["heads"][1]), [0, -1 / 2])
    assert_rows(head(run.servers[0]["weights"]), [1 / 4, -1 / 4])
    offline = run.clients[1][0]["offline"]
    assert_matrix(lower(offline), [[1 + q, 0], [-mu / 2, 1]])
    assert_rows(head(offline), [1 / 2 + q, 0])
    assert_rows(head(run.servers[1]["heads"][0]), [1 / 2 + q, 0])
    on, off = 1 + r / 4, -(r + mu) / 4
    assert_matrix(lower(run.servers[1]["weights"]), [[on, off], [off, on]])
    assert_rows(head(run.servers[1]["weights"]), [1 / 4 + r / 2, -1 / 4 - r / 2])


@pytest.mark.parametrize("execution", ["loop", "stacked"])
@pytest.mark.parametrize("inter", ["both", "online", "offline"])
def test_fedco2_sends_initial_classifiers_at_first(inter, execution):
    """Nets B A x, A = B = I, three clients, of which only 0 and 1 take part: 2's classifier is there too.

    Client 0, x = (1, 0): the logits are (1, 0), through its own classifier and through those of the two
    others. p - e_0 = (-r, r), r = s(-1). Every classifier adds (-r, r) x^T to the gradient of A, the foreign
    ones mu times: A_0 = [[1 + k r, 0], [-k r, 1]] with k = 1 + 2 mu. Only the own one moves: B_0 = [[1 + r,
    0], [-r, 1]]. Client 1 mirrors this, and the mean of A has 1 + k r/2 on and -k r/2 off the diagonal.
    """
    mu, r = 0.6, s(-1)
    data = points([((1, 0), 0)], [((0, 1), 1)], [((1, 1), 0)])
    method = FedCO2(mu=mu, inter=inter, exchange="last_layer")
    net = "tests.support.by_hand.identities"
    run = federate(method, data, net, cohorts=[[0, 1]], lr=1.0, execution=execution)
    online, offline = (1 + 2 * mu * (inter in ("both", part)) for part in ("online", "offline"))
    own = run.clients[0][0]["offline"]
    assert_matrix(lower(own), [[1 + offline * r, 0], [-offline * r, 1]])
    assert_matrix(head(own), [[1 + r, 0], [-r, 1]])
    on, off = 1 + online * r / 2, -online * r / 2
    assert_matrix(lower(run.servers[0]["weights"]), [[on, off], [off, on]])
    heads = run.servers[0]["heads"]
    assert_matrix(head(heads[0]), [[1 + r, 0], [-r, 1]])
    assert_matrix(head(heads[2]), [[1, 0], [0, 1]])


@pytest.mark.parametrize("inter", ["online", "offline"])
def test_fedco2_inter_client_transfer_to_one_net(inter):
    """As above, but the term of the foreign head, mu/2 in A, reaches only one of the nets."""
    mu, r = 0.6, s(-1 / 2)
    method = FedCO2(mu=mu, intra="none", inter=inter, exchange="last_layer")
    run = federate(method, PAIR, "tests.support.by_hand.two_layer", cohorts=2, lr=1.0)
    online, offline = (mu, 0) if inter == "online" else (0, mu)
    assert lower(run.clients[1][0]["offline"])[1, 0].item() == pytest.approx(-offline / 2, abs=1e-12)
    assert lower(run.servers[1]["weights"])[1, 0].item() == pytest.approx(-(r + online) / 4, abs=1e-12)


def test_fedco2_adds_up_the_terms_of_all_foreign_heads():
    """As above, with client 1 twice: client 0 has two equal foreign heads, and each adds mu/2 in A."""
    mu, q = 0.6, s(-1)
    data = points([((1, 0), 0)], [((0, 1), 1)], [((0, 1), 1)])
    method = FedCO2(mu=mu, intra="none", inter="offline", exchange="last_layer")
    run = federate(method, data, "tests.support.by_hand.two_layer", cohorts=2, lr=1.0)
    assert_matrix(lower(run.clients[1][0]["offline"]), [[1 + q, 0], [-2 * mu / 2, 1]])


@pytest.mark.parametrize("intra", ["both", "to_online", "to_offline", "none"])
@pytest.mark.parametrize("t", [1.0, 2.0])
def test_fedco2_intra_client_transfer(intra, t):
    """A linear net, no foreign heads. After round 0 offline nets are -g_i, the online net is (1/4, -1/4).

    Round 1, client 0, mutual phase: teachers' logits at temperature t are (1/2, -1/2)/t offline and (1/4,
    -1/4)/t online. The gradient of t^2 KL(teacher || student) on the student's logits is t (student -
    teacher), so online gains and offline loses m = t (s(1/t) - s(1/(2t))). Then each net makes its step on
    the cross-entropy from the new logits: a becomes a + s(-2a). Client 1 mirrors this in the mean.
    """
    m = t * (s(1 / t) - s(1 / (2 * t)))
    online = 1 / 4 + m * (intra in ("both", "to_online"))
    offline = 1 / 2 - m * (intra in ("both", "to_offline"))
    run = federate(FedCO2(intra=intra, inter="none", kd_temperature=t), PAIR, cohorts=2, lr=1.0)
    assert_rows(head(run.clients[1][0]["offline"]), [offline + s(-2 * offline), 0])
    mean = (online + s(-2 * online) + 1 / 4) / 2
    assert_rows(head(run.servers[1]["weights"]), [mean, -mean])


def test_fedco2_averages_the_divergence_over_the_batch():
    """As above, with every sample twice in its batch, which changes no mean."""
    data = points([((1, 0), 0)] * 2, [((0, 1), 1)] * 2)
    run = federate(FedCO2(inter="none"), data, cohorts=2, lr=1.0)
    offline = 1 / 2 - (s(1) - s(1 / 2))
    assert_rows(head(run.clients[1][0]["offline"]), [offline + s(-2 * offline), 0])


def test_fedco2_teachers_stay_as_they_were_when_the_round_began():
    """As in ``test_fedco2_intra_client_transfer``, with two epochs of mutual learning.

    Students have moved in the second, teachers have not.
    """
    online, offline = 1 / 4, 1 / 2
    for _ in range(2):
        online, offline = online + s(1) - s(2 * online), offline + s(1 / 2) - s(2 * offline)
    run = federate(FedCO2(mutual_epochs=2, inter="none"), PAIR, cohorts=2, lr=1.0)
    assert_rows(head(run.clients[1][0]["offline"]), [offline + s(-2 * offline), 0])


def test_fedco2_fuses_by_the_sum_of_logits():
    """After round 0 the logits of x = (1, 0) are (1/4, -1/4) online and, at client 0, (1/2, -1/2) offline."""
    run = federate(FedCO2(), PAIR, cohorts=1, lr=1.0)
    scores = run.scores(0, torch.tensor([[[[1.0, 0.0]]]], dtype=torch.float64))
    assert_matrix(scores["online"], [[1 / 4, -1 / 4]])
    assert_matrix(scores["offline"], [[1 / 2, -1 / 2]])
    assert_matrix(scores["personal"], [[3 / 4, -3 / 4]])
