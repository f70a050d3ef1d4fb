"""FedBABU, Per-FedAvg, FedFomo, FedAMP and FedDBE against numbers worked out by hand, and their limits.

Data and nets are those of ``numbers``: a client's matrix has a first row (a, b) and a second one (-a, -b), so
that the sample (1, 0) of class 0 has a margin of 2 a.
"""

import math

import pytest
import torch

from rayfl.errors import Conflict
from rayfl.methods.fedamp import FedAMP
from rayfl.methods.fedbabu import FedBABU
from rayfl.methods.feddbe import FedDBE
from rayfl.methods.fedfomo import LEAST_DISTANCE, FedFomo
from rayfl.methods.perfedavg import PerFedAvg, _parts
from rayfl.training import Batch, State, Training
from tests.methods.numbers import IDENTITIES, ONE, PAIR, X, assert_close, assert_row, body, head, q, s
from tests.support.by_hand import assert_same, federate, points
from tests.support.federations import small
from tests.support.refusals import refused

# ---- FedBABU


def test_fedbabu():
    """Logits B A x with A = B = I: (1, 0), so that A alone steps by (q, -q) in its first column.

    Then the logits are (1 + q, -q). Tuning steps by r = s(-(1 + 2 q)) from there: A by r B^T (1, -1)
    in the first column, B by r (1, -1) (1 + q, -q)^T.
    """
    run = federate(FedBABU(tune_epochs=1), ONE, IDENTITIES, cohorts=1, lr=1.0)
    assert run.server.state["weights"].keys() == {"conv.1.weight"}
    assert_close(body(run.server.state["weights"]), [[1 + q, 0], [-q, 1]])
    scores = run.scores(0, X)
    assert_close(scores["global"], [[1 + q, -q]])
    r = s(-(1 + 2 * q))
    z = (1 + q + r, -q - r)
    along = r * ((1 + q) * z[0] - q * z[1])
    assert_close(scores["personal"], [[z[0] + along, z[1] - along]])
    scores = federate(FedBABU(tune_epochs=0), ONE, IDENTITIES, cohorts=1, lr=1.0).scores(0, X)
    assert torch.equal(scores["personal"], scores["global"])


# ---- Per-FedAvg


def test_perfedavg():
    """The inner step goes to a = 1/4, where the step is s(-1/2); the one before scoring is half as long."""
    run = federate(PerFedAvg(alpha=0.5), ONE, cohorts=1, lr=1.0)
    a = s(-1 / 2)
    assert_row(head(run.server.state["weights"]), [a, 0])
    scores = run.scores(0, X)
    own = a + 0.5 * s(-2 * a)
    assert_close(scores["personal"], [[own, -own]])
    assert_close(scores["global"], [[a, -a]])


def test_perfedavg_with_hessian_vectors():
    """g = -s(-1/2) in the first entry, so that the gradients at W = +-d g are -s(+-2 d s(-1/2)) there."""
    delta = 0.25
    run = federate(PerFedAvg(alpha=0.5, hessian="differences", delta=delta), ONE, cohorts=1, lr=1.0)
    step = s(-1 / 2)
    curved = (s(-2 * delta * step) - s(2 * delta * step)) / (2 * delta)
    assert_row(head(run.server.state["weights"]), [step + 0.5 * curved, 0])


@pytest.mark.parametrize(("size", "count", "sizes"), [(7, 2, [4, 3]), (7, 3, [3, 2, 2]), (5, 3, [5, 5, 5])])
def test_perfedavg_divides_a_batch(size, count, sizes):
    batch = Batch(torch.arange(size), torch.arange(size), torch.zeros(2))
    assert [len(part.y) for part in _parts(batch, count)] == sizes
    assert all(torch.equal(part.x, part.y) for part in _parts(batch, count))


def test_perfedavg_steps_on_as_many_samples_as_are_asked_for():
    """The step is half the mean of 7 of the inputs (2^k, 0): 7 digits of their sum are 1."""
    data = points([((2.0**k, 0), 0) for k in range(25)])
    run = federate(PerFedAvg(alpha=1.0, step_samples=7), data, cohorts=0)
    doubled = 14 * float(run.scores(0, X)["personal"][0, 0])
    assert doubled == pytest.approx(round(doubled), abs=1e-6)
    assert f"{round(doubled):b}".count("1") == 7


def test_perfedavg_refuses_differences_in_half_precision(tmp_path):
    training = Training(precision="bfloat16")
    with refused(Conflict, "training.precision"):
        small(tmp_path / "run", method=PerFedAvg(hessian="differences"), training=training).run()


# ---- FedFomo


def loss_at(a: float) -> float:
    return math.log1p(math.exp(-2 * a))


def test_fedfomo():
    """Round 0 ends with a = 1/2 and, as the other sample is (2, 0), with a = 1.

    In round 1 client 0 goes from 0 towards both by what they gain per distance, which is sqrt(2) a.
    """
    run = federate(FedFomo(), points([((1, 0), 0)], [((2, 0), 0)]), cohorts=2, lr=1.0)
    assert_row(head(run.clients[0][0]["weights"]), [1 / 2, 0])
    assert_row(head(run.servers[0]["models"][1]), [1, 0])
    gains = {
        j: (math.log(2) - loss_at(a)) / (math.sqrt(2) * a + LEAST_DISTANCE) for j, a in ((0, 1 / 2), (1, 1))
    }
    assert run.results[1].down["models"][0] == 4 * 8  # the own model does not travel
    mixed = (gains[0] / 2 + gains[1]) / (gains[0] + gains[1])
    assert_row(head(run.clients[1][0]["start"]), [mixed, 0])
    assert_row(head(run.clients[1][0]["weights"]), [mixed + s(-2 * mixed), 0])
    affinity = run.servers[1]["affinity"][0]
    assert affinity == pytest.approx({0: 1 + gains[0], 1: gains[1]}, abs=1e-12)


@pytest.mark.parametrize("own", ["always", "affinity"])
def test_fedfomo_where_nothing_is_better(own):
    """The loss of the same input in both classes is least at 0, where training began."""
    data = points([((1, 0), 0), ((1, 0), 1)])
    run = federate(FedFomo(models=1, own=own), data, cohorts=2, batch_size=1, lr=1.0)
    trained = run.clients[0][0]["weights"]
    assert head(trained).abs().max() > 0.1
    expected = trained.zeros() if own == "always" else trained
    assert_same(dict(run.clients[1][0]["start"]), dict(expected))


def test_fedfomo_leaves_out_models_that_overflow():
    """Their loss is not a number: a client goes on as if only its own model competed."""

    class Overflowing(FedFomo):
        def download_for(self, server: State, client: int) -> State:
            down = super().download_for(server, client)
            return {"models": {j: model.map(lambda t: t / 0) for j, model in down["models"].items()}}

    run, alone = (federate(m, PAIR, cohorts=2, lr=1.0) for m in (Overflowing(), FedFomo(models=1)))
    assert run.results[1].down["models"][0] > 0 == alone.results[1].down["models"][0]
    for i in (0, 1):
        assert_same(dict(run.clients[1][i]["weights"]), dict(alone.clients[1][i]["weights"]))
    assert run.servers[1]["affinity"][0].keys() == {0}


def test_fedfomo_asks_for_models_by_affinity():
    models = dict.fromkeys(range(6), 0)
    server = {"models": models, "affinity": {2: {2: 1.0, 0: 0.5, 4: -1.0}}, "epsilon": 0.0, "draw": 5}

    def asked(client, epsilon=0.0, **options):
        return [*FedFomo(**options).download_for({**server, "epsilon": epsilon}, client)["models"]]

    assert asked(2, models=4) == [0, 3, 5]
    assert asked(2, models=9) == [0, 3, 5, 1, 4]
    assert asked(2, models=2, own="affinity") == [2, 0]
    assert asked(4, models=3) == [5, 0]
    assert asked(4, models=1) == []
    drawn = [tuple(asked(i, epsilon=1.0, models=4)) for i in range(6)]
    assert all(len({*each}) == 3 and i not in each for i, each in enumerate(drawn))
    assert drawn == [tuple(asked(i, epsilon=1.0, models=4)) for i in range(6)]
    assert any(each != (i + 1, i + 2, i + 3) for i, each in enumerate(drawn[:3]))


def test_fedfomo_draws_less_and_less_at_random():
    run = federate(FedFomo(epsilon=0.12, epsilon_decay=0.05), PAIR, cohorts=3)
    assert [server["epsilon"] for server in run.servers] == pytest.approx([0.07, 0.02, 0], abs=1e-12)
    assert len({server["draw"] for server in run.servers}) == 3


# ---- FedAMP


def test_fedamp():
    """Round 0: w_i = (1/2, 0) and (0, -1/2), whose squared distance is 1, as both rows count.

    With alpha = 1/2 and sigma = 2 the other's weight is c = e^(-1/2) / 4, so that client 0 has
    u = ((1 - c) / 2, -c / 2). It steps by (q, 0) and, as lambda / alpha = 1/2, by (u - w) / 2.
    """
    run = federate(FedAMP(alpha=0.5, sigma=2.0, lam=0.25), PAIR, cohorts=2, lr=1.0)
    assert_row(head(run.servers[0]["models"][0]), [1 / 2, 0])
    c = math.exp(-1 / 2) / 4
    cloud = run.worker.method.download_for(run.servers[0], 0)["cloud"]
    assert_row(head(cloud), [(1 - c) / 2, -c / 2])
    assert_row(head(run.clients[1][0]["weights"]), [1 / 2 + q - c / 4, -c / 4])


def test_fedamp_pulls_a_client_without_a_cloud_model_to_where_it_begins():
    """In two steps, to 1/2 and by q - 1/2 lambda / alpha."""
    run = federate(FedAMP(alpha=0.5, lam=0.25), ONE, cohorts=1, lr=1.0, epochs=2)
    assert_row(head(run.clients[0][0]["weights"]), [1 / 2 + q - 1 / 4, 0])


# ---- FedDBE


def test_feddbe():
    """Logits B (A x + memory) with A = B = I. Client 0 has the mean mu (1, 0) before the first round.

    The mean of all is mu (1/2, 1/2). So A x of client 0 is pulled by kappa mu^2 / 4 (-1, 1), besides its
    step of (q, -q); so is the memory, by the latter alone, and B by (q, -q) (1, 0)^T.
    """
    kappa, mu = 0.8, 0.5
    run = federate(FedDBE(kappa=kappa, momentum=mu), PAIR, IDENTITIES, cohorts=1, lr=1.0)
    assert_close(run.servers[0]["before"]["mean"], [mu / 2, mu / 2])
    assert_close(run.clients[0][0]["memory"]["bias"], [q, -q])
    moved = (q - kappa * mu**2 / 4) / 2
    common = run.server.state["weights"]
    assert_close(body(common), [[1 + moved, -moved], [-moved, 1 + moved]])
    assert_close(head(common), [[1 + q / 2, -q / 2], [-q / 2, 1 + q / 2]])
    scores = run.scores(0, X)
    z = torch.tensor([1 + moved, -moved], dtype=torch.float64)
    torch.testing.assert_close(scores["global"][0], head(common) @ z, rtol=0, atol=1e-12)
    memory = torch.tensor([q, -q], dtype=torch.float64)
    torch.testing.assert_close(scores["personal"][0], head(common) @ (z + memory), rtol=0, atol=1e-12)
