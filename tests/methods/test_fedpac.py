"""FedPAC against numbers worked out by hand.

The net is ``TWO_LAYER``, so that features are the samples. With ``STILL`` as a learning rate nothing moves.
"""

import pytest
import torch

from rayfl.methods.fedpac import FedPAC, mixing_weights
from tests.methods.numbers import TWO_LAYER, assert_close, assert_row, body, head
from tests.support.by_hand import federate, points, start

STILL = 1e-200
PAIR = points([((1, 0), 0), ((0, 1), 1)], [((1, 0), 0), ((3, 0), 0)])


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
    assert_close(alpha, [[7 / 8, 1 / 8], [2 / 8, 6 / 8]])


def test_mixing_weights_of_clients_that_are_alike_go_by_their_variances():
    """Without bias alpha_ij is proportional to 1 / v_j, for every client i."""
    h = torch.ones(3, 2, 2, dtype=torch.float64)
    alpha = mixing_weights(h, torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64))
    assert_close(alpha, [[4 / 7, 2 / 7, 1 / 7]] * 3)


def test_mixing_weights_leave_out_who_is_far():
    """On a line, h = 0, 1, 10 and v = 1: client 1 lies between, so its mixture could be free of bias.

    With a, b and c for clients 0, 1 and 2, its objective is a^2 + b^2 + c^2 + (a - 9 c)^2. The solution
    without bounds has all weights above 0. That of client 0, a^2 + b^2 + c^2 + (b + 10 c)^2, has c = 0,
    b = 1 / 3.
    """
    h = torch.tensor([[[0.0]], [[1.0]], [[10.0]]], dtype=torch.float64)
    alpha = mixing_weights(h, torch.ones(3, dtype=torch.float64))
    assert_close(alpha[0], [2 / 3, 1 / 3, 0])
    # with s = a - 9 c: a + s = b = c - 9 s, and a + b + c = 1
    a, b, c = alpha[1].tolist()
    bias = a - 9 * c
    assert (a + bias, c - 9 * bias) == pytest.approx((b, b), abs=1e-12)
    assert min(a, b, c) > 0


def test_mixing_weights_without_variance_and_bias_are_some_mixture():
    alpha = mixing_weights(torch.ones(2, 1, 1, dtype=torch.float64), torch.zeros(2, dtype=torch.float64))
    assert_close(alpha.sum(1), [1, 1])
    assert alpha.min() >= 0


def test_mixing_weights_of_a_client_alone():
    alpha = mixing_weights(torch.ones(1, 2, 2, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
    assert alpha.tolist() == [[1.0]]


# ---- heads


def head_of(run, client):
    """Return the matrix that a client is scored with."""
    return head(run.worker.states[client]["own"]) + head(run.server.state["changes"][client])


def test_heads_are_mixed():
    """Heads step to (1/4, -1/4) and (1, 0): half the class means of the features.

    Client 0 has h = ((1/2, 0), (0, 1/2)) and v = (1 - 1/2) / 2 = 1/4, client 1 h = ((2, 0), (0, 0)) and
    v = (5 - 4) / 2 = 1/2. With D = 5/2, alpha is (12, 1) / 13 and (2, 11) / 13.
    """
    run = run_pair(1, head_lr=1.0)
    assert_row(head(run.worker.states[0]["own"]), [1 / 4, -1 / 4])
    assert_row(head(run.worker.states[1]["own"]), [1, 0])
    assert_row(head_of(run, 0), [(3 + 1) / 13, -3 / 13])
    assert_row(head_of(run, 1), [(1 / 2 + 11) / 13, -1 / 2 / 13])
    scores = run.scores(0, torch.tensor([[[[1.0, 1.0]]]], dtype=torch.float64))["personal"]
    assert_close(scores, [[1 / 13, -1 / 13]])


def test_small_weights_can_be_left_out():
    """Client 0 gives client 1 a weight of 1 / 13, client 1 gives client 0 one of 2 / 13."""
    run = run_pair(1, head_lr=1.0, least_weight=0.1)
    assert_row(head_of(run, 0), [1 / 4, -1 / 4])
    assert_row(head_of(run, 1), [(1 / 2 + 11) / 13, -1 / 2 / 13])
    alone = run_pair(1, head_lr=1.0, least_weight=0.99)
    assert_row(head_of(alone, 1), [1, 0])


def test_right_after_training_a_client_is_scored_with_the_head_that_it_has_trained():
    run = start(FedPAC(head_lr=1.0), PAIR, TWO_LAYER, lr=STILL, rounds=2)
    method = run.worker.method
    for number in range(2):
        run.round([0, 1])
        client = run.worker.client(0, number)
        down = run.server.download([0]).for_client(0)
        assert "change" in down
        assert "change" not in method.trained(client, down, {"weights": down["weights"]})


# ---- centroids


def test_a_class_without_a_global_centroid_is_drawn_to_the_client_s_own():
    """Client 0 knows of class 0 only what client 1 has sent; its own mean of class 1 is (0, 2).

    Its z - c are (-1, 0), (0, -1) and (0, 1) for samples of length 1, 1 and 3.
    """
    data = points([((1, 0), 0), ((0, 1), 1), ((0, 3), 1)], [((1, 0), 0), ((3, 0), 0)])
    run = run_pair([[1], [0]], lr=1.0, lam=0.3, data=data)
    assert run.servers[0]["known"].tolist() == [True, False]
    assert_close(body(run.server.state["weights"]), [[1 + 0.1, 0], [0, 1 - 0.2]])
