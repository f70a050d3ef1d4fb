"""DC-PFL: rounds worked out by hand, and the statistics, virtual features and calibration by numbers."""

from itertools import pairwise

import pytest
import torch

from rayfl.methods import DCPFL
from rayfl.methods.dcpfl import (
    largest_remainder,
    pack_symmetric,
    pool_statistics,
    symmetric_root,
    unpack_symmetric,
)
from rayfl.randomness import generator
from rayfl.training.sums import combine
from tests.methods.numbers import DATA, TINY, TWO_LAYER, assert_close, assert_row, body, head, s
from tests.support.by_hand import assert_same, federate, points, start

# one sample of class 0; two of class 0 and one of class 1
UNEQUAL = points([((1, 0), 0)], [((3, 0), 0), ((5, 0), 0), ((0, 1), 1)])


# ---- rounds by hand: features A x with A = I, logits B A x with B = 0


def test_two_rounds():
    """One client a round, learning rates 1, no calibration.

    Round 0, client 1: the features are x, for A has no gradient where B = 0. Its means are (4, 0) of class 0
    and (0, 1) of class 1; the server's step adds (1/2 (4, 0) - 1/2 (0, 1)) / 2 = (1, -1/4) to the first row.

    Round 1, client 0, x = (1, 0): logits (1, -1), p - e_0 = (-q, q) with q = s(-2). The cross-entropy gives A
    the gradient B^T (-q, q) x^T = [[-2 q, 0], [q/2, 0]], the distance to (4, 0) lambda (-1, 0) x^T. B gains
    (q, 0). Then the client's feature is z = A x; the server steps from the B that it had sent: logits
    (u, -u), u = z_0 - z_1 / 4, and the first row gains s(-2 u) z.
    """
    lam, q = 0.3, s(-2)
    method = DCPFL(lam=lam, server_lr=1.0, calibrate=False)
    run = federate(method, UNEQUAL, TWO_LAYER, cohorts=[[1], [0]], lr=1.0)
    assert_close(run.servers[0]["means"], [[4, 0], [0, 1]])
    assert_row(head(run.servers[0]["head"]), [1, -1 / 4])

    trained = run.worker.states[0]["weights"]
    z = [1 + 2 * q + lam, -q / 2]
    assert_close(body(trained), [[z[0], 0], [z[1], 1]])
    assert_row(head(trained), [1 + q, -1 / 4])
    r = s(-2 * (z[0] - z[1] / 4))
    assert_row(head(run.servers[1]["head"]), [1 + r * z[0], -1 / 4 + r * z[1]])
    assert_close(run.servers[1]["means"], [z, [0, 1]])  # nobody has had class 1: it keeps its mean
    assert run.servers[1]["known"].tolist() == [True, True]


# ---- statistics


@pytest.mark.parametrize(("formula", "variance"), [("pooled", 4), ("printed", 5)])
def test_statistics_by_hand(formula, variance):
    """Features are x: of class 0 there are 1 | 3, 5, with mean 3 and variance (4 + 0 + 4) / 2.

    The clients' own variances are 0, of one sample, and 2. As printed: 2/2 * 2 + (1 + 2 * 16 - 3 * 9) / 2.
    """
    run = start(DCPFL(cov_formula=formula), UNEQUAL, TWO_LAYER)
    parts, _ = run.worker.train(0, run.server.download([0, 1]), [(0,), (1,)])
    pooled = pool_statistics(combine(run.worker.uploads["local_update"], [parts]))
    assert [pooled[c]["count"] for c in (0, 1)] == [3, 1]
    assert_close(pooled[0]["mean"], [3, 0])
    assert_close(pooled[0]["covariance"], [variance, 0, 0])
    assert pooled[1]["covariance"].tolist() == [0, 0, 0]  # one sample in all


def test_small_classes_can_be_withheld():
    """Client 0 has nothing to send then, and nobody learns of class 1."""
    run = federate(DCPFL(min_class_count=2), UNEQUAL, TWO_LAYER, 2)
    assert run.servers[0]["known"].tolist() == [True, False]
    assert_close(run.servers[0]["means"], [[4, 0], [0, 0]])
    up = run.results[0].up
    assert (up["counts"], up["means"], up["covariances"]) == ([0, 8], [0, 16], [0, 24])
    alone = federate(DCPFL(min_class_count=2), UNEQUAL, TWO_LAYER, [[0]])
    assert torch.equal(head(alone.server.state["head"]), head(alone.worker.initial))


def test_triangles():
    matrix = torch.tensor([[1.0, 2, 3], [2, 4, 5], [3, 5, 6]])
    assert pack_symmetric(matrix).tolist() == [1, 2, 3, 4, 5, 6]
    assert torch.equal(unpack_symmetric(pack_symmetric(matrix), 3), matrix)


# ---- virtual features


@pytest.mark.parametrize(("rank", "dead"), [(6, 0), (2, 0), (3, 2), (0, 6)])
def test_symmetric_root(rank, dead):
    """Of singular matrices too; rows without variance change nothing."""
    factor = torch.randn(6, rank, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    factor[[1, 4, 0, 2, 3, 5][:dead]] = 0
    covariance = factor @ factor.T
    root = symmetric_root(covariance)
    assert_close(root @ root, covariance)
    assert_close(root, root.T)
    assert torch.linalg.eigvalsh(root).min() > -1e-12
    assert torch.linalg.matrix_rank(root) == min(rank, 6 - dead)


@pytest.mark.parametrize(
    ("total", "counts", "sizes"),
    [(10, [1, 2, 3], [2, 3, 5]), (3, [1, 1], [2, 1]), (1, [5, 5, 5], [1, 0, 0]), (1000, [7], [1000])],
)
def test_ties_go_to_the_lower_class(total, counts, sizes):
    assert largest_remainder(total, counts) == sizes


def test_virtual_features_can_be_clamped():
    covariance = pack_symmetric(4 * torch.eye(3, dtype=torch.float64))
    statistics = {1: {"count": 9, "mean": torch.ones(3, dtype=torch.float64), "covariance": covariance}}
    free, clamped = (
        DCPFL(clamp_virtual=clamp).virtual_features(statistics, generator(0, "virtual", 0))[0]
        for clamp in (False, True)
    )
    assert free.min() < 0
    assert torch.equal(clamped, free.clamp(min=0))


# ---- calibration


def test_steps_of_the_calibration():
    """Of 10 virtual features in batches of 4 an epoch takes 3 steps; without calibration none is taken."""

    def trained(**options):
        fixed = {"num_virtual": 10, "calib_batch": 4, "calib_lr": 0.5}
        run = federate(DCPFL(**fixed, **options), UNEQUAL, TWO_LAYER, cohorts=1)
        return head(run.server.state["head"])

    for epochs, steps in ((1, 3), (2, 6)):
        assert torch.equal(trained(calib_epochs=epochs), trained(calib_steps=steps))
    heads = [trained(calibrate=False), *(trained(calib_steps=k) for k in (2, 3, 4))]
    assert all(not torch.equal(a, b) for a, b in pairwise(heads))


# ---- what is scored, and where extractors start


def test_extractors_start_equal_or_independent():
    for init, equal in (("common", True), ("independent", False)):
        run = start(DCPFL(init=init), DATA, TINY)
        first, second = (head(run.worker.state(i, run.worker.client(i, 0))["weights"]) for i in (0, 1))
        assert torch.equal(first, second) == equal


# ---- different nets


def test_different_extractors_share_a_classifier():
    """5 features of either net; the classifier that clients start from is the server's."""
    nets = [TINY, "rayfl.testing.by_hand.tiny_wide"]
    loop, stacked = (federate(DCPFL(), DATA, nets, 2, execution=e) for e in ("loop", "stacked"))
    assert_same(stacked.values(), loop.values(), 1e-9)
    assert [len(loop.worker.states[i]["weights"]["conv.0.weight"]) for i in (0, 1)] == [2, 3]
    assert loop.server.state["means"].shape == (4, 5)
