"""FedPAC against numbers worked out by hand, and its limit.

The net has logits B A x with A = I and B = 0 at first, so that features are the samples. With ``STILL`` as a
learning rate nothing moves.
"""

import math

import pytest
import torch

from rayfl.errors import BadValue
from rayfl.methods import FedRep
from rayfl.methods.fedpac import FedPAC, mixing_weights
from rayfl.nets import CNNB
from rayfl.testing import method_checks
from tests.support.by_hand import assert_same, federate, points, ragged, start
from tests.support.refusals import refused

TWO_LAYER = "tests.support.by_hand.two_layer"
STILL = 1e-200
PAIR = points([((1, 0), 0), ((0, 1), 1)], [((1, 0), 0), ((3, 0), 0)])
SOME = [[0, 1, 2], [1, 3], [0, 2, 3]]


def assert_tensor(found, expected, tolerance=1e-12):
    torch.testing.assert_close(
        found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=tolerance, check_dtype=False
    )


def assert_row(weight, first, tolerance=1e-12):
    """Compare a matrix whose second row is minus the first."""
    assert_tensor(weight, [first, [-value for value in first]], tolerance)


def run_pair(cohorts, lr=STILL, data=PAIR, **options):
    return federate(FedPAC(**{"head_lr": STILL} | options), data, TWO_LAYER, cohorts, lr=lr)


# ---- weights of the mixtures


@pytest.mark.parametrize("scale", [1.0, 1e-4])
def test_mixing_weights_of_two_clients(scale):
    """Client 0 minimises a^2 v_0 + (1 - a)^2 (v_1 + D), D = ||h_0 - h_1||^2.

    So a = (v_1 + D) / (v_0 + v_1 + D).
    """
    h = torch.zeros(2, 2, 3, dtype=torch.float64)
    h[0, 1, 2], h[1, 0, 0] = 1.0, -2.0  # D = 5
    alpha = mixing_weights(scale * h, scale**2 * torch.tensor([1.0, 2.0], dtype=torch.float64))
    assert_tensor(alpha, [[7 / 8, 1 / 8], [2 / 8, 6 / 8]])


def test_mixing_weights_of_clients_that_are_alike_go_by_their_variances():
    """Without bias alpha_ij is proportional to 1 / v_j, for every client i."""
    h = torch.ones(3, 2, 2, dtype=torch.float64)
    alpha = mixing_weights(h, torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64))
    assert_tensor(alpha, [[4 / 7, 2 / 7, 1 / 7]] * 3)


def test_mixing_weights_leave_out_who_is_far():
    """On a line, h = 0, 1, 10 and v = 1: client 1 lies between, so its mixture could be free of bias.

    With a, b and c for clients 0, 1 and 2, its objective is a^2 + b^2 + c^2 + (a - 9 c)^2. The solution
    without bounds has all weights above 0. That of client 0, a^2 + b^2 + c^2 + (b + 10 c)^2, has c = 0,
    b = 1 / 3.
    """
    h = torch.tensor([[[0.0]], [[1.0]], [[10.0]]], dtype=torch.float64)
    alpha = mixing_weights(h, torch.ones(3, dtype=torch.float64))
    assert_tensor(alpha[0], [2 / 3, 1 / 3, 0])
    # with s = a - 9 c: a + s = b = c - 9 s, and a + b + c = 1
    a, b, c = alpha[1].tolist()
    bias = a - 9 * c
    assert (a + bias, c - 9 * bias) == pytest.approx((b, b), abs=1e-12)
    assert min(a, b, c) > 0


def test_mixing_weights_without_variance_and_bias_are_some_mixture():
    alpha = mixing_weights(torch.ones(2, 1, 1, dtype=torch.float64), torch.zeros(2, dtype=torch.float64))
    assert_tensor(alpha.sum(1), [1, 1])
    assert alpha.min() >= 0


def test_mixing_weights_of_a_client_alone():
    alpha = mixing_weights(torch.ones(1, 2, 2, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
    assert alpha.tolist() == [[1.0]]


# ---- heads


def head_of(run, client):
    """Return the matrix that a client is scored with."""
    change = run.server.state["changes"][client]["head.weight"]
    return run.worker.states[client]["own"]["head.weight"] + change


def test_heads_are_mixed():
    """Heads step to (1/4, -1/4) and (1, 0): half the class means of the features.

    Client 0 has h = ((1/2, 0), (0, 1/2)) and v = (1 - 1/2) / 2 = 1/4, client 1 h = ((2, 0), (0, 0)) and
    v = (5 - 4) / 2 = 1/2. With D = 5/2, alpha is (12, 1) / 13 and (2, 11) / 13.
    """
    run = run_pair(1, head_lr=1.0)
    assert_row(run.worker.states[0]["own"]["head.weight"], [1 / 4, -1 / 4])
    assert_row(run.worker.states[1]["own"]["head.weight"], [1, 0])
    assert_row(head_of(run, 0), [(3 + 1) / 13, -3 / 13])
    assert_row(head_of(run, 1), [(1 / 2 + 11) / 13, -1 / 2 / 13])
    scores = run.scores(0, torch.tensor([[[[1.0, 1.0]]]], dtype=torch.float64))["personal"]
    assert_tensor(scores, [[1 / 13, -1 / 13]])


def test_small_weights_can_be_left_out():
    """Client 0 gives client 1 a weight of 1 / 13, client 1 gives client 0 one of 2 / 13."""
    run = run_pair(1, head_lr=1.0, least_weight=0.1)
    assert_row(head_of(run, 0), [1 / 4, -1 / 4])
    assert_row(head_of(run, 1), [(1 / 2 + 11) / 13, -1 / 2 / 13])
    alone = run_pair(1, head_lr=1.0, least_weight=0.99)
    assert_row(head_of(alone, 1), [1, 0])


def test_a_client_starts_from_its_newest_mixture():
    """Client 0 has its mixture of round 0 after it was left out of round 1, and trains it in round 2."""
    run = run_pair([[0, 1], [1], [0]], head_lr=1.0)
    before, after = run.servers[0]["changes"][0], run.servers[1]["changes"][0]
    assert_same(dict(before), dict(after))
    b = head_of_round(run, 0, 1)
    row, q = b[0], [1 / (1 + math.exp(2 * margin)) for margin in (b[0][0], -b[0][1])]
    assert_row(run.worker.states[0]["own"]["head.weight"], [row[0] + q[0] / 2, row[1] - q[1] / 2])


def head_of_round(run, client, round):
    own, change = run.clients[round][client]["own"], run.servers[round]["changes"][client]
    return (own["head.weight"] + change["head.weight"]).tolist()


def test_right_after_training_a_client_is_scored_with_the_head_that_it_has_trained():
    run = start(FedPAC(head_lr=1.0), PAIR, TWO_LAYER, lr=STILL, rounds=2)
    method = run.worker.method
    for number in range(2):
        run.round([0, 1])
        client = run.worker.client(0, number)
        down = run.server.download([0]).for_client(0)
        assert "change" in down
        assert "change" not in method.trained(client, down, {"weights": down["weights"]})


# ---- extractor and centroids


def test_the_extractor_trains_below_the_new_head():
    """Client 0 has B = (1/4, -1/4), so that A steps by q / 4 (1, -1) (x) (1, -1), q = s(-1/2).

    Client 1 has B = (1, 0), and A steps by B^T (e - p) x^T: by s(-2) and 3 s(-6) for the two samples.
    """
    run = run_pair(1, lr=1.0, head_lr=1.0)
    step = 1 / (1 + math.exp(1 / 2)) / 4
    other = (2 / (1 + math.exp(2)) + 6 / (1 + math.exp(6))) / 2
    expected = [[1 + (step + other) / 2, -step / 2], [-step / 2, 1 + step / 2]]
    assert_tensor(run.server.state["weights"]["conv.1.weight"], expected)


def test_centroids_are_means_over_all_samples():
    """Class 0 has the features 1, 1 and 3; class 1 one."""
    run = run_pair(1)
    assert_tensor(run.server.state["centroids"], [[5 / 3, 0], [0, 1]])
    assert run.server.state["known"].tolist() == [True, True]


def test_centroids_come_from_the_trained_extractor():
    run = run_pair([[0]], lr=1.0, head_lr=1.0)
    assert_tensor(run.server.state["centroids"], run.server.state["weights"]["conv.1.weight"].T.tolist())


def test_features_are_drawn_to_the_centroids():
    """Without a head, A steps from round 1 on by -lambda times the mean of (z - c) x^T; 2 / d is 1.

    Client 0 has z - c = -2/3 for its sample of class 0, and 0 for the other; client 1 has -2/3 and 4/3. So
    A[0, 0] changes by lambda / 3 and by -lambda 5/3.
    """
    run = run_pair(2, lr=1.0, lam=0.3)
    assert_tensor(run.servers[0]["weights"]["conv.1.weight"], [[1, 0], [0, 1]])
    assert_tensor(run.servers[1]["weights"]["conv.1.weight"], [[1 - 2 / 3 * 0.3, 0], [0, 1]])


def test_a_class_without_a_global_centroid_is_drawn_to_the_client_s_own():
    """Client 0 knows of class 0 only what client 1 has sent; its own mean of class 1 is (0, 2).

    Its z - c are (-1, 0), (0, -1) and (0, 1) for samples of length 1, 1 and 3.
    """
    data = points([((1, 0), 0), ((0, 1), 1), ((0, 3), 1)], [((1, 0), 0), ((3, 0), 0)])
    run = run_pair([[1], [0]], lr=1.0, lam=0.3, data=data)
    assert run.servers[0]["known"].tolist() == [True, False]
    assert_tensor(run.server.state["weights"]["conv.1.weight"], [[1 + 0.1, 0], [0, 1 - 0.2]])


def test_a_class_that_nobody_has_keeps_its_centroid():
    run = run_pair([[0, 1], [1]])
    assert_tensor(run.server.state["centroids"], [[2, 0], [0, 1]])


# ---- limits, and what every method must do


def test_without_pull_and_collaboration_it_is_fedrep_bit_for_bit():
    method = FedPAC(lam=0.0, collaborate=False, head_lr=None)
    settings = {"epochs": 2, "momentum": 0.5, "weight_decay": 1e-3, "clip": 1.0}
    run, other = (federate(m, ragged(), CNNB(), SOME, **settings) for m in (method, FedRep(head_epochs=1)))
    assert_same(dict(run.server.state["weights"]), dict(other.server.state["weights"]))
    for i in range(4):
        own, theirs = run.worker.states[i]["own"], other.worker.states[i]["own"]
        assert_same(dict(own), dict(theirs))
    assert not run.server.state["changes"]


def test_a_client_alone_keeps_its_head():
    run = federate(FedPAC(), ragged((16,)), CNNB(), 2)
    change = run.server.state["changes"][0]
    assert max(float(t.abs().max()) for t in change.values()) < 1e-12


@pytest.mark.parametrize(
    ("option", "value"), [("lam", -1.0), ("head_epochs", 0), ("head_lr", 0.0), ("least_weight", 1.0)]
)
def test_bad_options_are_refused(option, value):
    with refused(BadValue, f"method.{option}"):
        FedPAC(**{option: value})


@method_checks(
    FedPAC(),
    FedPAC(collaborate=False, lam=0.5, head_lr=None),
    stateless=False,
    apart=["head.*"],
    mean="samples",
    counts_less=True,
    limits=[({"lam": 0.0, "collaborate": False, "head_lr": None, "head_epochs": 1}, FedRep(head_epochs=1))],
)
def test_it_does_what_every_method_must(check):
    check()
