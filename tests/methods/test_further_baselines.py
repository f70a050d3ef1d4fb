"""FedKD, PartialFed, FedALA, pFedMe, FedFA and FedSR against numbers worked out by hand, and their limits.

Data and nets are those of ``numbers``: a client's matrix has a first row (a, b) and a second one (-a, -b), so
that the sample (1, 0) of class 0 has a margin of 2 a.
"""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from rayfl.data import Dirichlet, Synthetic
from rayfl.engine import BadUpdate
from rayfl.errors import Conflict
from rayfl.evaluation import Default
from rayfl.methods import (
    Cohort,
    Ditto,
    FedALA,
    FedAMP,
    FedAvg,
    FedBN,
    FedCO2,
    FedDGGA,
    FedDyn,
    FedFA,
    FedKD,
    FedPer,
    FedProx,
    FedSR,
    PartialFed,
    PFedMe,
)
from rayfl.methods.fedkd import truncate_svd
from rayfl.methods.fedsr import kl_to_classes
from rayfl.nets import CNNB, FFA, FedFAAlexNet, build
from rayfl.randomness import seed_of
from rayfl.running.checks import check_run
from rayfl.training import Constant, Params, Training, noise
from rayfl.training.noise import step_keys
from tests.methods.numbers import (
    DATA,
    NORMED,
    ONE,
    PAIR,
    SETTINGS,
    TINY,
    assert_close,
    assert_row,
    head,
    q,
    s,
)
from tests.support.by_hand import federate, points, ragged, start
from tests.support.federations import small
from tests.support.nets import make_context, smooth_net
from tests.support.refusals import refused


def row(a, b=0.0):
    """Return a matrix whose second row is minus the first."""
    return torch.tensor([[a, b], [-a, -b]], dtype=torch.float64)


def weights(matrix):
    return Params({"head.weight": matrix}, frozenset({"head.weight"}))


# ---- FedKD


def test_fedkd():
    """Round 0 starts from equal models, whose answers agree: a step of 1/2 each, and the mean is 1/4.

    Then client 0 has a mentor at 1/2 and a mentee at 1/4, so p = s(1) and m = s(1/2) for the right class, and
    the divergences are divided by c = -ln p - ln m. Features are the inputs, which teach the map alone: its
    first column moves by the distance from (1, 0) over ln 2 in round 0.
    """
    run = start(FedKD(), PAIR, lr=1.0)
    drawn = run.worker.state(0, run.worker.client(0, 0))["map"]["weight"]
    run.round([0, 1])
    assert_row(head(run.clients[0][0]["mentor"]), [1 / 2, 0])
    assert_row(head(run.servers[0]["weights"]), [1 / 4, -1 / 4])
    assert head(run.clients[0][0]["mentor"]).data_ptr() != head(run.servers[0]["weights"]).data_ptr()
    moved = run.clients[0][0]["map"]["weight"]
    wanted = drawn[:, 0] + (torch.tensor([1.0, 0.0]) - drawn[:, 0]) / math.log(2)
    torch.testing.assert_close(moved[:, 0], wanted, rtol=0, atol=1e-12)
    assert torch.equal(moved[:, 1], drawn[:, 1])
    run.round([0])
    p, m = s(1), s(1 / 2)
    c = -math.log(p) - math.log(m)
    assert_row(head(run.clients[1][0]["mentor"]), [1 / 2 - (p - 1) - (p - m) / c, 0])
    assert_row(head(run.servers[1]["weights"]), [1 / 4 - (m - 1) - (m - p) / c, -1 / 4])


@pytest.mark.parametrize(("energy", "rank"), [(0.5, 1), (0.9, 1), (0.91, 2), (1.0, 2)])
def test_fedkd_keeps_the_fewest_singular_terms(energy, rank):
    """Of singular values 3 and 1 the first has 9/10 of the energy."""
    turn = torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=torch.float64)
    matrix = turn @ torch.tensor([[3.0, 0, 0], [0, 1, 0]], dtype=torch.float64)
    low, found = truncate_svd(matrix, energy)
    assert found == rank
    expected = matrix if rank == 2 else turn @ torch.tensor([[3.0, 0, 0], [0, 0, 0]], dtype=torch.float64)
    torch.testing.assert_close(low, expected, rtol=0, atol=1e-12)


def test_fedkd_sends_nothing_of_no_change():
    low, rank = truncate_svd(torch.zeros(3, 2), 0.9)
    assert (rank, low.abs().sum().item()) == (0, 0)


def test_fedkd_records_the_ranks_of_a_single_round():
    """Of the change of a 2x2 matrix by one sample, which has rank 1."""
    run = federate(FedKD(), ONE, cohorts=1)
    assert run.worker.method.server_metrics(run.worker.context, run.server.state) == {"ranks": [1.0]}


def test_fedkd_counts_factors_where_they_are_less():
    """A 10x20 matrix of rank 1 takes 1 + 10 + 20 numbers; one of rank 7 would take 217, more than its 200."""
    w = Params(
        {"a": torch.zeros(10, 20), "b": torch.zeros(5, 2, 2, 2), "c": torch.zeros(9)}, frozenset("abc")
    )
    for ranks, numbers in (((1.0, 1.0), 31 + 14 + 9), ((7.0, 3.0), 200 + 40 + 9)):
        up = {"weights": w, "ranks": torch.tensor(ranks)}
        received, sent = FedKD().communication_bytes(None, {"weights": w}, up)
        assert (received["weights"], sent["weights"]) == (4 * 249, 4 * numbers)


def test_fedkd_of_models_that_are_sure_stays_finite():
    """Cross-entropies of both models are 0 in float32 after a few steps this long."""
    run = federate(FedKD(), ONE, cohorts=6, lr=20.0, precision="float32")
    assert all(bool(t.isfinite().all()) for t in run.values().values())


def test_fedkd_leaves_it_to_others_to_see_what_has_diverged():
    matrix = torch.tensor([[math.nan, 0.0], [0.0, 1.0]])
    assert truncate_svd(matrix, 0.9)[0] is matrix


@pytest.mark.parametrize("execution", ["loop", "stacked"])
def test_fedkd_with_a_mentee_of_another_width(execution):
    """Mentors of two nets with 7 and 9 features, around one mentee with 5."""
    nets = ["tests.support.by_hand.tiny_of_7", "tests.support.by_hand.tiny_of_9"]
    run = federate(FedKD(mentee=TINY), DATA, nets, 2, execution=execution)
    assert [tuple(run.worker.states[i]["map"]["weight"].shape) for i in (0, 1)] == [(7, 5), (9, 5)]


# ---- PartialFed


@pytest.mark.parametrize(
    ("mode", "other"),
    [("all", FedAvg()), ("no_bn", FedBN()), ("no_cls", FedPer()), ("adaptive", FedAvg())],
)
def test_new_clients_of_partialfed_are_those_of_another_method(mode, other):
    """Client 3 never trains. With learned choices it takes everything from the server, which is FedAvg's at
    first.
    """
    data = replace(DATA, unseen=1)
    found = []
    for method in (PartialFed(mode=mode), other):
        run = federate(method, data, TINY, [[0, 1, 2]], averaging="samples", **SETTINGS)
        given = run.worker.state_for_new_clients([0, 1, 2])
        scores = run.worker.unseen(0, run.server.download([3]), [3], given)["unseen"][3]
        found.append(scores["test"]["personal"])
    assert found[0] == found[1]


def test_partialfed_learns_its_logits():
    """One client, whose own model has a margin of 4 and whose received one has a margin of -2.

    With v = softmax((0 + gumbel) / T) the margin is -2 v_0 + 4 v_1, and its loss has the slope -s(-margin).
    A margin moves with logit 0 by v_0 v_1 / T (-2 - 4).
    """
    run = start(PartialFed(gumbel_start=2.0, gumbel_decay=0.5), ONE, lr=1.0)
    run.round([0])
    run.worker.states[0] = {**run.worker.states[0], "own": weights(row(2.0))}
    run.server.state = {**run.server.state, "weights": weights(row(-1.0))}
    run.round([0])
    key = step_keys(seed_of(run.worker.plan.seed, "noise", 0, 1, 1), 1)[0]
    gumbel = -(-(noise.uniform(key, (1, 2)).double() + 2.0**-25).log()).log()
    v0, v1 = F.softmax(gumbel[0] / 1.0, 0).tolist()  # the temperature has halved
    slope = -s(-(-2 * v0 + 4 * v1)) * v0 * v1 * (-2 - 4)
    logits = run.worker.states[0]["logits"]
    torch.testing.assert_close(
        logits, torch.tensor([[-slope, slope]], dtype=torch.float64), rtol=0, atol=1e-9
    )
    assert run.worker.states[0]["kept"].tolist() == [1.0]
    known = {"kept": [1.0], "kept_by": [1.0], "kept head": [1.0]}
    assert run.worker.method.server_metrics(run.worker.context, run.server.state) == known


def test_partialfed_records_which_layers_each_client_has_kept():
    """BatchNorm counts with the layer before it; clients are in the order of their numbers."""
    worker = start(PartialFed(), DATA, CNNB()).worker
    method = worker.method
    kept = {1: torch.tensor([0.0, 0, 1, 0, 1]), 3: torch.tensor([0.0, 1, 1, 0, 0])}
    server = method.aggregate({}, {"weights": "mean", "kept": kept}, run_cohort((1, 3), (1, 1)))
    assert method.server_metrics(worker.context, server) == {
        "kept": [0, 0.5, 1, 0, 0.5],
        "kept_by": [2, 2],
        "kept conv.0": [0, 0],
        "kept conv.4": [0, 1],
        "kept fc.0": [1, 1],
        "kept fc.3": [0, 0],
        "kept head": [1, 0],
    }


def test_partialfed_learns_on_a_share_of_the_data():
    """Half of 22 samples, in batches of 8."""
    run = start(PartialFed(share=0.5), DATA, TINY)
    client = run.worker.client(1, 0)
    learning = run.worker.method._learn_choices(client, run.worker.state(1, client), client.initial)
    assert [len(batch) for batch in learning.send(None).batches] == [8, 3]
    learning.close()


def test_partialfed_takes_the_largest_draw(monkeypatch):
    """In float32, where 1 - 2^-24 + 2^-25 is 1."""
    monkeypatch.setattr(noise, "uniform", lambda key, shape: torch.full(shape, 1 - 2.0**-24))
    run = federate(PartialFed(), ONE, cohorts=3, lr=1.0, precision="float32")
    assert run.worker.states[0]["logits"].isfinite().all()


@pytest.mark.parametrize(
    ("method", "val", "warns"),
    [
        (PartialFed(), 0, True),
        (PartialFed(), 3, False),
        (PartialFed(mode="all"), 0, False),
        (FedDGGA(), 0, True),
    ],
)
def test_clients_without_validation_data_are_warned_of(method, val, warns):
    """Where the method goes by validation data, and makes do with training data."""
    data = ragged(val=val)
    warnings, _ = check_run(start(method, data, TINY).worker.plan, Default(), data)
    assert any("client 0 has none (4 such clients)" in text for text in warnings) == warns


@pytest.mark.parametrize(
    ("method", "lr", "warns"),
    [
        (PFedMe(), 0.1, True),
        (PFedMe(), 0.05, False),
        (FedProx(mu=11), 0.1, True),
        (FedProx(mu=11, norm="l2"), 0.1, False),
        (Ditto(mu=3), 0.5, True),
        (Ditto(), 0.5, False),
        (FedDyn(alpha=3), 0.5, True),
        (FedAMP(alpha=0.2), 0.1, True),  # times 11 other clients
        (FedAMP(alpha=0.09, lam=0.8), 0.1, False),
        (FedAMP(alpha=0.09), 0.1, True),
    ],
)
def test_a_pull_that_goes_too_far_is_warned_of(tmp_path, method, lr, warns):
    run = small(tmp_path, method=method, training=Training(lr=lr))
    assert any("above 1" in text for text in run.check(run.federated_data())[0]) == warns


@pytest.mark.parametrize(
    ("inter", "domains", "warns"), [("both", 1, True), ("both", 2, False), ("none", 1, False)]
)
def test_fedco2_names_its_algorithm_for_one_domain(tmp_path, inter, domains, warns):
    """Before a run, and where the run ends because it has diverged."""
    data = Synthetic(train=240, test=60, domains=domains, partition=Dirichlet(alpha=1.0))
    run = small(tmp_path, method=FedCO2(inter=inter, mu=1e30), data=data)
    assert any("intra=none method.inter=none" in text for text in run.check(run.federated_data())[0]) == warns
    if warns:
        with refused(BadUpdate, "client 1") as caught:
            run.run()
        assert "method.inter=none" in str(caught.value)


def test_partialfed_tells_of_a_collapse():
    def warning(**metrics: Any) -> str | None:
        return PartialFed().warning(Training(), PAIR, metrics)

    assert "has collapsed to Local" in (warning(kept=[1.0, 1.0]) or "")
    assert warning(kept=[1.0, 0.5]) is None
    assert warning() is None


def test_partialfed_refuses_layers_that_it_cannot_mix():
    with refused(Conflict, "method.mode"):
        start(PartialFed(), DATA, "tests.support.by_hand.with_prelu")
    start(PartialFed(mode="no_cls"), DATA, "tests.support.by_hand.with_prelu")


def test_partialfed_has_no_more_layers_than_the_net():
    with refused(Conflict, "method.k"):
        start(PartialFed(mode="top", k=4), DATA, TINY)
    start(PartialFed(mode="top", k=3), DATA, TINY)


# ---- FedALA

EAGER = {"layer_idx": 1, "rand_percent": 100.0, "threshold": 100.0, "num_pre_loss": 2}


def test_fedala():
    """Client 0 is at own = (1/2, 0) when it receives (1/4, -1/4).

    Where W has a first column of w, the margin is 1 - w/2, and the loss moves with each of its numbers by
    (1 - s(1 - w/2)) / 4. Three passes are taken at first: more than ``num_pre_loss``. The second column has
    no gradient. Then a step is taken from 1/2 - w/4, and the next round learns for one pass.
    """
    run = federate(FedALA(eta=2.0, **EAGER), PAIR, cohorts=[[0, 1], [0], [0]], lr=1.0)
    w = 1.0
    for _ in range(3):
        w -= 2 * (1 - s(1 - w / 2)) / 4
    assert_close(run.clients[1][0]["W"]["head.weight"], [[w, 1], [w, 1]])
    first = 1 / 2 - w / 4
    own = first + 1 - s(2 * first)
    assert_row(head(run.clients[1][0]["own"]), [own, -1 / 4])
    received = head(run.servers[1]["weights"])[0, 0].item()  # that of client 0 alone, so own = received
    assert received == pytest.approx(own, abs=1e-12)
    assert_close(run.clients[2][0]["W"]["head.weight"], [[w, 1], [w, 1]])


def test_fedala_stays_between_own_and_received():
    run = federate(FedALA(eta=1e6, **EAGER), PAIR, cohorts=[[0, 1], [0]], lr=1.0)
    assert_close(run.clients[1][0]["W"]["head.weight"], [[0, 1], [0, 1]])
    assert_row(head(run.clients[1][0]["own"]), [1 / 2 + q, -1 / 4])


def test_fedala_learns_on_a_share_of_the_data_until_it_settles():
    """15 samples of 22, in two batches of 8, where all of them would make three. After 100 passes it ends."""
    run = start(FedALA(rand_percent=65.0), DATA, TINY)
    client, method = run.worker.client(1, 0), run.worker.method
    learning = method._learn(client, run.worker.state(1, client), client.initial, 1)
    assert [len(batch) for batch in learning.send(None).batches] == [8, 7]
    learning.close()
    losses = [0.0, 10.0] * 50
    assert [method._settle_weights(losses[:n]) for n in (99, 100)] == [False, True]


@pytest.mark.parametrize("execution", ["loop", "stacked"])
def test_fedala_learns_on_two_samples_at_least(execution):
    """A tenth of 2 and of 5 samples is one sample, of which BatchNorm has no variance."""
    five = [((1, 0), 0), ((3, 1), 1), ((2, 2), 1), ((0, 3), 0), ((1, 1), 1)]
    few = points([((1, 0), 0), ((0, 1), 1)], five)
    run = federate(FedALA(rand_percent=10.0, eta=5.0), few, NORMED, cohorts=2, execution=execution)
    for i in (0, 1):
        assert not torch.equal(run.clients[1][i]["W"]["head.weight"], torch.ones(2, 2).double())


# ---- pFedMe


def test_pfedme():
    """K = 2 steps of length 1 for theta: 1/2 first, then 1/2 - (-q) - lam / 2; w goes to lam theta.

    With beta = 1/2 the server goes half the way. Then theta starts from the received model.
    """
    lam = 0.5
    run = federate(PFedMe(lam=lam, K=2, beta=0.5), ONE, cohorts=2, lr=1.0)
    theta = 1 / 2 + q - lam / 2
    assert_row(head(run.clients[0][0]["own"]), [theta, 0])
    w = lam * theta / 2
    assert_row(head(run.servers[0]["weights"]), [w, 0])
    theta = w
    for _ in range(2):
        theta = theta - (s(2 * theta) - 1) - lam * (theta - w)
    assert_row(head(run.clients[1][0]["own"]), [theta, 0])
    assert_row(head(run.servers[1]["weights"]), [w + lam * (theta - w) / 2, 0])


def test_pfedme_goes_on_with_theta_within_a_round():
    """Two epochs of one sample: the second one's theta starts from the first one's, w being elsewhere.

    The rate of w is 4 / 2 in the first round, and that of theta a tenth of it.
    """
    settings = {"lr": 4.0, "schedule": Constant(warmup=1), "epochs": 2}
    run = federate(PFedMe(lam=0.25, K=1, personal_lr=0.1), ONE, cohorts=1, **settings)
    first = 0.2 / 2
    w = 0.5 * first
    second = first - 0.2 * (s(2 * first) - 1 + 0.25 * (first - w))
    assert_row(head(run.clients[0][0]["own"]), [second, 0])
    assert_row(head(run.server.state["weights"]), [w - 0.5 * (w - second), 0])


# ---- FedFA


@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (2, 1, 1, 1)], ids=["one sample", "one pixel"])
def test_ffa_passes_on_what_has_no_variance(shape):
    """Where it would draw, if it came to that: there is nothing that it could draw from."""
    layer = FFA(1).train()
    layer.prob = 1.0
    x = torch.ones(shape)
    assert layer(x) is x


@pytest.mark.parametrize(
    ("ids", "samples", "mean", "variance"), [((0, 1), (1, 3), 2.5, 1.0), ((0,), (1,), 1.0, 5.0)]
)
def test_fedfa_takes_variances_over_clients(ids, samples, mean, variance):
    """Means of 1 and 3; a client with three times the samples has three votes. Of one, the variance stays."""
    own = {i: Params({"mean": torch.tensor([1.0 + 2 * i])}, frozenset()) for i in ids}
    before = Params({"mean": torch.zeros(1), "mean_var": torch.tensor([5.0])}, frozenset())
    up = {"weights": "after", "statistics": own}
    after = FedFA().aggregate({"weights": "before", "statistics": before}, up, run_cohort(ids, samples))
    assert {n: t.item() for n, t in after["statistics"].items()} == {"mean": mean, "mean_var": variance}


def run_cohort(ids, samples):
    return Cohort(ids, samples, 0, sum(samples), make_context(smooth_net()))


def test_fedfa_refuses_nets_without_its_layers():
    with refused(Conflict, "net"):
        start(FedFA(), DATA, TINY)


# ---- FedSR


def test_fedsr_measures_information():
    """One feature, C = 2: the Gaussian is N(2, 1), that of the class N(1, 1), whose divergence is 1/2."""
    one = math.log(math.e - 1)  # softplus makes 1 of it
    entries = {"mean": torch.tensor([[9.0], [1.0]]), "scale": torch.full((2, 1), one), "C": torch.tensor(2.0)}
    classes = Params(entries, frozenset())
    mean, scale, y = torch.tensor([[1.0]]), torch.tensor([[0.5]]), torch.tensor([1])
    assert kl_to_classes(classes, mean, scale, y).item() == pytest.approx(0.5, abs=1e-6)
    other = classes.replace({"C": torch.tensor(-2.0)})  # N(-2, 1) is 3 away: 9 / 2
    assert kl_to_classes(other, mean, scale, y).item() == pytest.approx(4.5, abs=1e-6)


def test_fedsr_refuses_nets_without_a_gaussian():
    with refused(Conflict, "net"):
        start(FedSR(), DATA, TINY)


def test_layers_of_fedfa_stand_after_the_pooling_where_a_stage_has_one():
    with torch.device("meta"):
        net = build(FedFAAlexNet(), (3, 96, 96), 10)
    kinds = [type(m).__name__ for m in net.conv.children()]
    places = [k for k, name in enumerate(kinds) if name == "FFA"]
    assert [kinds[k - 1] for k in places] == ["MaxPool2d", "MaxPool2d", "ReLU", "ReLU", "MaxPool2d"]
    assert kinds[-1] == "Flatten"
