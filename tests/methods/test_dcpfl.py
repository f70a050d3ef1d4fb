"""DC-PFL: rounds worked out by hand, and the statistics, virtual features and calibration by numbers."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from rayfl.methods import DCPFL, Cohort, Local, dcpfl
from rayfl.methods.dcpfl import (
    largest_remainder,
    pack_symmetric,
    pool_statistics,
    symmetric_root,
    unpack_symmetric,
)
from rayfl.nets import CNNB, LeNet
from rayfl.randomness import generator
from rayfl.training.sums import combine
from tests.support.by_hand import assert_same, federate, points, ragged, start

TWO_LAYER = "tests.support.by_hand.two_layer"
# one sample of class 0; two of class 0 and one of class 1
PAIR = points([((1, 0), 0)], [((3, 0), 0), ((5, 0), 0), ((0, 1), 1)])
DATA = ragged()


def s(x):
    """The logistic function."""
    return 1 / (1 + math.exp(-x))


def close(got, expected, tolerance=1e-12):
    expected = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


def rows(first):
    """The head that is left of 0 by steps on two classes: opposite rows."""
    return [list(first), [-v for v in first]]


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
    run = federate(method, PAIR, TWO_LAYER, cohorts=[[1], [0]], lr=1.0)
    close(run.servers[0]["means"], [[4, 0], [0, 1]])
    close(run.servers[0]["head"]["head.weight"], rows((1, -1 / 4)))

    trained = run.worker.states[0]["weights"]
    z = [1 + 2 * q + lam, -q / 2]
    close(trained["conv.1.weight"], [[z[0], 0], [z[1], 1]])
    close(trained["head.weight"], rows((1 + q, -1 / 4)))
    r = s(-2 * (z[0] - z[1] / 4))
    close(run.servers[1]["head"]["head.weight"], rows((1 + r * z[0], -1 / 4 + r * z[1])))
    close(run.servers[1]["means"], [z, [0, 1]])  # nobody has had class 1: it keeps its mean
    assert run.servers[1]["known"].tolist() == [True, True]


def test_samples_of_classes_without_a_mean_are_not_pulled():
    """Round 0, client 0: the mean of class 0 is (1, 0), the server's head (1/2, 0). Class 1 is unknown.

    Round 1, client 1, three samples in a batch. (3, 0): logits (3/2, -3/2), p - e_0 = (-s(-3), s(-3)), times
    B^T: (-s(-3), 0), times x^T; so (5, 0); (0, 1) of class 1: logits 0, B^T (1/2, -1/2) = (1/2, 0). The two
    of class 0 are pulled by lambda (1, 0) x^T, that of class 1 is not. All are divided by three.
    """
    lam = 0.3
    method = DCPFL(lam=lam, server_lr=1.0, calibrate=False)
    run = federate(method, PAIR, TWO_LAYER, cohorts=[[0], [1]], lr=1.0)
    assert run.servers[0]["known"].tolist() == [True, False]
    close(run.servers[0]["head"]["head.weight"], rows((1 / 2, 0)))
    step = [(3 * s(-3) + 5 * s(-5) - lam * 8) / 3, -1 / 6]
    close(run.worker.states[1]["weights"]["conv.1.weight"], [[1 + step[0], step[1]], [0, 1]])


@pytest.mark.parametrize("steps", [1, 3])
def test_the_server_takes_its_steps_client_by_client(steps):
    """Each step is on the mean cross-entropy of one client's class means, in an order drawn anew."""
    sent = [([[1.0, 0.0]], [0]), ([[4.0, 0.0], [0.0, 1.0]], [0, 1])]
    ends = []
    for order in ([0, 1], [1, 0]):
        head = torch.zeros(2, 2, dtype=torch.float64, requires_grad=True)
        for k in order:
            for _ in range(steps):
                means, classes = (torch.tensor(v) for v in sent[k])
                loss = F.cross_entropy(means.double() @ head.T, classes)
                head = (head - 0.5 * torch.autograd.grad(loss, head)[0]).detach().requires_grad_()
        ends.append(head.detach())
    assert (ends[0] - ends[1]).abs().max() > 1e-3

    server = start(DCPFL(server_lr=0.5, server_steps=steps, calibrate=False), PAIR, TWO_LAYER).server
    method = server.method
    up = {}
    for k, (means, classes) in enumerate(sent):
        counts = torch.ones(len(classes), dtype=torch.int64)
        mean = torch.tensor(means, dtype=torch.float64)
        up[k] = {"classes": torch.tensor(classes), "counts": counts, "mean": mean}
    orders = {}
    for seed in (3, 4):
        context = replace(server.context, seed=seed, initial=server.context.net.initial(0))
        for round in range(12):
            cohort = Cohort((0, 1), (1, 3), round, 4, context)
            head = method.aggregate(method.init_server(context), {"means": up}, cohort)["head"]
            which = [bool((head["head.weight"] - end).abs().max() < 1e-12) for end in ends]
            assert sum(which) == 1
            orders.setdefault(seed, []).append(which[0])
    assert all(len(set(found)) == 2 for found in orders.values())
    assert orders[3] != orders[4]


def test_first_round_is_local_training():
    """There are no class means yet, and the classifier is the initial one."""
    run, local = (federate(m, DATA, CNNB(), 1, epochs=2, momentum=0.5) for m in (DCPFL(lam=5.0), Local()))
    for i, state in local.worker.states.items():
        assert_same(dict(run.worker.states[i]["weights"]), dict(state["weights"]), 1e-12)


# ---- statistics


NET = CNNB()


def statistics_of_a_round(method, net=NET, data=DATA):
    """Return what the server pools after a round, and each client's features and labels."""
    run = start(method, data, net)
    everyone = range(len(data.clients))
    parts, _ = run.worker.train(0, run.server.download(everyone), [(i,) for i in everyone])
    pooled = pool_statistics(combine(run.worker.uploads["local_update"], [parts]))
    found = []
    for i in everyone:
        x, y = run.worker.examples.batch(torch.tensor(data.clients[i].train))
        with torch.no_grad():
            z = run.worker.net.eval.features(run.worker.states[i]["weights"], x)
        found.append((z.numpy(), y.numpy()))
    return pooled, found


@pytest.mark.parametrize("formula", ["pooled", "printed"])
def test_covariance_is_that_of_all_samples_together(formula):
    """And eq. 11 as printed exceeds it by the sum of the clients' covariances over n - 1."""
    pooled, found = statistics_of_a_round(DCPFL(cov_formula=formula))
    assert list(pooled) == [0, 1, 2, 3]
    for c, of_class in pooled.items():
        of_clients = [z[y == c] for z, y in found if (y == c).any()]
        assert min(map(len, of_clients)) < max(map(len, of_clients))
        together = np.concatenate(of_clients)
        assert of_class["count"] == len(together)
        close(of_class["mean"], together.mean(0))
        expected = np.cov(together.T)
        if formula == "printed":
            excess = sum(np.cov(z.T) for z in of_clients if len(z) > 1) / (len(together) - 1)
            assert np.abs(excess).max() > 1e-3 * np.abs(expected).max()
            expected = expected + excess
        got = unpack_symmetric(of_class["covariance"], len(expected))
        assert np.abs(got.numpy() - expected).max() < 1e-12 * np.abs(expected).max()


def test_statistics_by_hand():
    """Features are x: of class 0 there are 1 | 3, 5, with mean 3 and variance (4 + 0 + 4) / 2.

    The clients' own variances are 0, of one sample, and 2. As printed: 2/2 * 2 + (1 + 2 * 16 - 3 * 9) / 2.
    """
    for formula, variance in (("pooled", 4), ("printed", 5)):
        pooled, _ = statistics_of_a_round(DCPFL(cov_formula=formula), TWO_LAYER, PAIR)
        assert [pooled[c]["count"] for c in (0, 1)] == [3, 1]
        close(pooled[0]["mean"], [3, 0])
        close(pooled[0]["covariance"], [variance, 0, 0])
        assert pooled[1]["covariance"].tolist() == [0, 0, 0]  # one sample in all


@pytest.mark.parametrize("execution", ["loop", "stacked"])
def test_small_classes_can_be_withheld(execution):
    """Client 0 has nothing to send then, and nobody learns of class 1."""
    run = federate(DCPFL(min_class_count=2), PAIR, TWO_LAYER, 2, execution=execution)
    assert run.servers[0]["known"].tolist() == [True, False]
    close(run.servers[0]["means"], [[4, 0], [0, 0]])
    up = run.results[0].up
    assert (up["counts"], up["means"], up["covariances"]) == ([0, 8], [0, 16], [0, 24])
    alone = federate(DCPFL(min_class_count=2), PAIR, TWO_LAYER, [[0]], execution=execution)
    assert_same(dict(alone.server.state["head"]), dict(alone.worker.initial.select(lambda n: "head" in n)))


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
    close(root @ root, covariance)
    close(root, root.T)
    assert torch.linalg.eigvalsh(root).min() > -1e-12
    assert torch.linalg.matrix_rank(root) == min(rank, 6 - dead)


@given(st.integers(0, 5000), st.lists(st.integers(1, 10**6), min_size=1, max_size=30))
def test_largest_remainder(total, counts):
    sizes = largest_remainder(total, counts)
    assert sum(sizes) == total
    quotas = [total * n / sum(counts) for n in counts]
    assert all(abs(size - quota) < 1 for size, quota in zip(sizes, quotas))
    up = [quota % 1 for size, quota in zip(sizes, quotas) if size > quota]
    down = [quota % 1 for size, quota in zip(sizes, quotas) if size < quota]
    assert not up or not down or min(up) >= max(down) - 1e-6


@pytest.mark.parametrize(
    ("total", "counts", "sizes"),
    [(10, [1, 2, 3], [2, 3, 5]), (3, [1, 1], [2, 1]), (1, [5, 5, 5], [1, 0, 0]), (1000, [7], [1000])],
)
def test_ties_go_to_the_lower_class(total, counts, sizes):
    assert largest_remainder(total, counts) == sizes


COVARIANCE = torch.tensor([[4.0, 2, 0], [2, 1, 0], [0, 0, 9]], dtype=torch.float64)  # of rank 2


def made_up(*classes):
    """Statistics of classes with counts: the mean of class c is (c, c, c); one sample has no variance."""
    return {
        c: {
            "count": n,
            "mean": torch.full((3,), float(c), dtype=torch.float64),
            "covariance": pack_symmetric(COVARIANCE * (n > 1)),
        }
        for c, n in classes
    }


def test_virtual_features_have_the_moments_of_their_class():
    """Virtual features have mean and covariance of their class."""
    method = start(DCPFL(num_virtual=40_000), PAIR, TWO_LAYER).server.method
    z, y = method.virtual_features(made_up((0, 300), (3, 99), (7, 1)), generator(0, "virtual", 0))
    assert torch.bincount(y).tolist() == [30_000, 0, 0, 9_900, 0, 0, 0, 100]
    for c in (0, 3):
        mine = z[y == c]
        assert (mine.mean(0) - c).abs().max() < 0.1
        assert (mine.T.cov() - COVARIANCE).abs().max() < 0.3
        line = mine @ torch.tensor([1.0, -2, 0], dtype=torch.float64)  # where the covariance is singular
        close(line, torch.full_like(line, -float(c)), 1e-10)
    assert torch.equal(z[y == 7], torch.full((100, 3), 7.0, dtype=torch.float64))
    other, _ = method.virtual_features(made_up((0, 300), (3, 99), (7, 1)), generator(0, "virtual", 1))
    assert not torch.equal(z, other)  # drawn anew in each round


def test_virtual_features_can_be_clamped():
    free, clamped = (
        start(DCPFL(clamp_virtual=clamp), PAIR, TWO_LAYER).server.method.virtual_features(
            made_up((1, 9)), generator(0, "virtual", 0)
        )[0]
        for clamp in (False, True)
    )
    assert free.min() < 0
    assert torch.equal(clamped, free.clamp(min=0))


# ---- calibration


@pytest.mark.parametrize(("options", "steps"), [({"calib_epochs": 3}, 3), ({"calib_steps": 5}, 5)])
def test_calibration_is_gradient_descent_on_virtual_features(options, steps):
    """With all virtual features in one batch, from the classifier that was trained on the means."""
    fixed = {"num_virtual": 50, "calib_batch": 50, "calib_lr": 0.2, "absent": "reuse"}
    run = federate(DCPFL(**fixed, **options), DATA, LeNet(), 1)
    uncalibrated = federate(DCPFL(calibrate=False), DATA, LeNet(), 1).server.state["head"]
    z, y = run.server.method.virtual_features(
        run.server.state["statistics"], run.server.context.generator("virtual", 0)
    )
    head = torch.nn.Linear(84, 4).double()
    head.weight.data, head.bias.data = uncalibrated["head.weight"].clone(), uncalibrated["head.bias"].clone()
    optimiser = torch.optim.SGD(head.parameters(), 0.2)
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(head(z), y).backward()
        optimiser.step()
    close(run.server.state["head"]["head.weight"], head.weight.data)
    close(run.server.state["head"]["head.bias"], head.bias.data)


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"calib_epochs": 2}, [4, 4, 2, 4, 4, 2]),
        ({"calib_steps": 4}, [4, 4, 2, 4]),
        ({"calib_steps": 2}, [4, 4]),
        ({"calibrate": False}, []),
    ],
)
def test_batches_of_the_calibration(monkeypatch, options, sizes):
    run = start(DCPFL(num_virtual=10, calib_batch=4, calib_lr=0.5, **options), PAIR, TWO_LAYER)
    method, seen = run.server.method, []

    def step(net, head, z, y, lr, masked=None):
        if lr == method.calib_lr:
            seen.append(z)
        return head

    monkeypatch.setattr(dcpfl, "head_step", step)
    run.round([0, 1])
    assert [len(z) for z in seen] == sizes
    if sizes == [4, 4, 2, 4, 4, 2]:  # two passes over the same features, in different orders
        first, second = torch.cat(seen[:3]), torch.cat(seen[3:])
        assert not torch.equal(first, second)
        assert torch.equal(first.sort(0).values, second.sort(0).values)


def test_masked_classes_are_left_alone():
    """Client 0 has no class 0: its row is pushed down by the calibration, unless it is masked."""
    row = {
        name: federate(DCPFL(**options), DATA, LeNet(), [[0]]).server.state["head"]["head.weight"]
        for name, options in {
            "before": {"calibrate": False},
            "skip": {},
            "mask": {"absent": "mask"},
        }.items()
    }
    assert torch.equal(row["mask"][0], row["before"][0])
    assert not torch.equal(row["skip"][0], row["before"][0])
    assert not torch.equal(row["mask"][1], row["before"][1])


def test_absent_classes_can_be_drawn_from_what_was_last_known():
    everyone = [0, 1, 2, 3]
    run = federate(DCPFL(absent="reuse"), DATA, LeNet(), [everyone, [0]])
    before, after = (server["statistics"] for server in run.servers)
    assert list(after) == everyone
    assert torch.equal(after[0]["covariance"], before[0]["covariance"])
    assert not torch.equal(after[1]["covariance"], before[1]["covariance"])
    assert after[1]["count"] < before[1]["count"]
    _, y = run.server.method.virtual_features(after, generator(0, "virtual", 1))
    assert (y == 0).any()
    skipping = federate(DCPFL(), DATA, LeNet(), [everyone, [0]])
    assert "statistics" not in skipping.server.state
    assert (
        set(skipping.server.download([0])[0])
        == set(run.server.download([0])[0])
        == {"head", "means", "known"}
    )
    assert_same(dict(skipping.servers[0]["head"]), dict(run.servers[0]["head"]))
    assert not torch.equal(skipping.server.state["head"]["head.bias"], run.server.state["head"]["head.bias"])


# ---- what is scored, and where extractors start


def test_scored_classifiers():
    x = torch.tensor(DATA.dataset.inputs[DATA.clients[0].test]).double()
    scores = {}
    for eval_head in ("local", "global"):
        run = federate(DCPFL(eval_head=eval_head), DATA, LeNet(), 2)
        own = run.worker.states[0]["weights"]
        whole = own if eval_head == "local" else own.merge(run.server.state["head"])
        scores[eval_head] = run.scores(0, x)["personal"]
        with torch.no_grad():
            assert torch.equal(scores[eval_head], run.worker.net.eval(whole, x))
    assert not torch.equal(*scores.values())


def test_extractors_start_equal_or_independent():
    for init, equal in (("common", True), ("independent", False)):
        run = start(DCPFL(init=init), DATA, LeNet())
        first, second = (
            run.worker.state(i, run.worker.client(i, 0))["weights"]["conv.0.weight"] for i in (0, 1)
        )
        assert torch.equal(first, second) == equal


# ---- different nets


def test_different_extractors_share_a_classifier():
    """84 features of either net; the classifier that clients start from is the server's."""
    nets = [LeNet(), CNNB()]
    loop, stacked = (federate(DCPFL(), DATA, nets, 2, execution=e) for e in ("loop", "stacked"))
    assert_same(stacked.values(), loop.values(), 1e-9)
    first, second = (loop.worker.states[i]["weights"] for i in (0, 1))
    assert first["conv.0.weight"].shape[0] == 6
    assert second["conv.0.weight"].shape[0] == 16
    assert loop.server.state["means"].shape == (4, 84)
