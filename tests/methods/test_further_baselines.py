"""FedKD, PartialFed, FedALA, pFedMe, FedFA and FedSR against numbers worked out by hand, and their limits.

Samples, steps and nets are those of ``test_baselines``: a client's matrix has a first row (a, b) and a second
one (-a, -b), so that the sample (1, 0) of class 0 has a margin of 2 a.
"""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rayfl.data import Dirichlet, Synthetic
from rayfl.engine import BadUpdate
from rayfl.errors import Conflict
from rayfl.evaluation import Default
from rayfl.methods import (
    Cohort,
    Ditto,
    FedALA,
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
    Local,
    PartialFed,
    PFedMe,
    TopK,
)
from rayfl.methods.fedkd import truncate_svd
from rayfl.methods.fedsr import kl_to_classes
from rayfl.nets import CNNB, FFA, FedFAAlexNet, FedFACNN, FedSRAlexNet, FedSRCNN, LeNet, build
from rayfl.nets.augmenting import EPS
from rayfl.randomness import seed_of
from rayfl.running.checks import check_run
from rayfl.training import Constant, Params, Training, noise
from rayfl.training.noise import step_keys
from tests.methods.test_baselines import (
    DATA,
    ONE,
    PAIR,
    SETTINGS,
    SOME,
    assert_matrix,
    assert_row,
    head,
    q,
    s,
)
from tests.support.by_hand import assert_same, federate, points, ragged, start
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


def test_fedkd_counts_factors_where_they_are_less():
    """A 10x20 matrix of rank 1 takes 1 + 10 + 20 numbers; one of rank 7 would take 217, more than its 200."""
    w = Params(
        {"a": torch.zeros(10, 20), "b": torch.zeros(5, 2, 2, 2), "c": torch.zeros(9)}, frozenset("abc")
    )
    for ranks, numbers in (((1.0, 1.0), 31 + 14 + 9), ((7.0, 3.0), 200 + 40 + 9)):
        up = {"weights": w, "ranks": torch.tensor(ranks)}
        received, sent = FedKD().communication_bytes(None, {"weights": w}, up)
        assert (received["weights"], sent["weights"]) == (4 * 249, 4 * numbers)


def test_fedkd_with_all_energy_loses_nothing(monkeypatch):
    compressed = federate(FedKD(T_start=1.0, T_end=1.0), DATA, CNNB(), SOME)
    monkeypatch.setattr("rayfl.methods.fedkd.is_smaller_factored", lambda rank, matrix: False)
    plain = federate(FedKD(), DATA, CNNB(), SOME)
    for run in (compressed, plain):
        run.server.state.pop("ranks")
    assert_same(compressed.values(), plain.values(), 1e-9)


def test_fedkd_sends_more_from_round_to_round():
    method = FedKD(T_start=0.5, T_end=0.9)
    assert [method._energy_share(t, 5) for t in (0, 2, 4)] == pytest.approx([0.5, 0.7, 0.9])
    assert method._energy_share(0, 1) == 0.5


def test_fedkd_of_models_that_are_sure_stays_finite():
    """Cross-entropies of both models are 0 in float32 after a few steps this long."""
    run = federate(FedKD(), ONE, cohorts=6, lr=20.0, precision="float32")
    assert all(bool(t.isfinite().all()) for t in run.values().values())


def test_fedkd_leaves_it_to_others_to_see_what_has_diverged():
    matrix = torch.tensor([[math.nan, 0.0], [0.0, 1.0]])
    assert truncate_svd(matrix, 0.9)[0] is matrix


@pytest.mark.parametrize("execution", ["loop", "stacked"])
def test_fedkd_with_a_mentee_of_another_width(execution):
    """Mentors of two nets with 84 and 512 features, around one mentee with 84."""
    nets = ["tests.support.by_hand.tiny_of_7", "tests.support.by_hand.tiny_of_9"]
    run = federate(FedKD(mentee=LeNet()), DATA, nets, 2, execution=execution)
    assert [tuple(run.worker.states[i]["map"]["weight"].shape) for i in (0, 1)] == [(7, 84), (9, 84)]


# ---- PartialFed


@pytest.mark.parametrize(
    ("mode", "other", "averaging"),
    [("all", FedAvg(), "samples"), ("no_bn", FedBN(), "uniform"), ("no_cls", FedPer(), "samples")],
)
def test_partialfed_with_fixed_layers_is_another_method(mode, other, averaging):
    """Bit for bit: FedAvg, FedBN and FedPer."""
    settings = SETTINGS | {"averaging": averaging}
    run, known = (federate(m, DATA, CNNB(), SOME, **settings) for m in (PartialFed(mode=mode), other))
    names = known.server.state["weights"].keys()
    own = dict(run.server.state["weights"].select(names.__contains__))
    assert_same(own, dict(known.server.state["weights"]))
    x = torch.tensor(DATA.dataset.inputs[:4]).double()
    for i in range(4):
        assert torch.equal(run.scores(i, x)["personal"], known.scores(i, x)["personal"])


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
        run = federate(method, data, CNNB(), [[0, 1, 2]], averaging="samples", **SETTINGS)
        given = run.worker.state_for_new_clients([0, 1, 2])
        scores = run.worker.unseen(0, run.server.download([3]), [3], given)["unseen"][3]
        found.append(scores["test"]["personal"])
    assert found[0] == found[1]


def test_partialfed_loads_the_first_or_the_last_layers():
    """After round 0 client 0 has its own A and B of logits B A x; of the global ones it takes one."""
    for mode, loaded, kept in (
        ("bottom", "conv.1.weight", "head.weight"),
        ("top", "head.weight", "conv.1.weight"),
    ):
        run = federate(
            PartialFed(mode=mode), PAIR, "tests.support.by_hand.two_layer", cohorts=2, lr=1.0, epochs=1
        )
        worker, received = run.worker, run.servers[0]["weights"]
        chosen = worker.method._chosen_model(worker.context, run.clients[0][0], received)
        assert torch.equal(chosen[loaded], run.servers[0]["weights"][loaded])
        assert torch.equal(chosen[kept], run.clients[0][0]["own"][kept])


def test_partialfed_begins_with_everything_from_the_server():
    run = federate(PartialFed(), PAIR, cohorts=1, lr=1.0)
    assert run.clients[0][0]["kept"].tolist() == [0.0]
    assert_row(head(run.clients[0][0]["own"]), [1 / 2, 0])


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
    run = start(PartialFed(share=0.5), DATA, CNNB())
    client = run.worker.client(1, 0)
    learning = run.worker.method._learn_choices(client, run.worker.state(1, client), client.initial)
    assert [len(batch) for batch in learning.send(None).batches] == [8, 3]
    learning.close()


def test_partialfed_takes_the_largest_draw(monkeypatch):
    """In float32, where 1 - 2^-24 + 2^-25 is 1."""
    monkeypatch.setattr(noise, "uniform", lambda key, shape: torch.full(shape, 1 - 2.0**-24))
    run = federate(PartialFed(), ONE, cohorts=3, lr=1.0, precision="float32")
    assert run.worker.states[0]["logits"].isfinite().all()


def test_partialfed_learns_on_validation_data():
    """Where the client has some: here they say the opposite of the training data, and so do the logits."""
    data = points([((1, 0), 0), ((1, 0), 1)])
    client = data.clients[0]
    halved = replace(data, clients=(replace(client, train=client.train[:1], val=client.train[1:]),))
    run = start(PartialFed(), halved, lr=1.0)
    run.round([0])
    run.worker.states[0] = {**run.worker.states[0], "own": weights(row(2.0))}
    run.server.state = {**run.server.state, "weights": weights(row(-1.0))}
    run.round([0])
    assert run.worker.states[0]["kept"].tolist() == [0.0]


@pytest.mark.parametrize(
    ("method", "val", "warns"),
    [
        (PartialFed(), 0, True),
        (PartialFed(), 3, False),
        (PartialFed(mode="all"), 0, False),
        (FedDGGA(), 0, True),
        (TopK(of=FedDGGA()), 0, True),
    ],
)
def test_clients_without_validation_data_are_warned_of(method, val, warns):
    """Where the method goes by validation data, and makes do with training data."""
    data = ragged(val=val)
    warnings = check_run(start(method, data, CNNB()).worker.plan, Default(), data)
    assert any("client 0 has none (4 such clients)" in text for text in warnings) == warns


@pytest.mark.parametrize(
    ("method", "lr", "warns"),
    [
        (PFedMe(), 0.1, True),
        (PFedMe(), 0.05, False),
        (FedProx(mu=11), 0.1, True),
        (FedProx(mu=11, norm="l2"), 0.1, False),
        (TopK(of=Ditto(mu=3)), 0.5, True),
        (Ditto(), 0.5, False),
        (FedDyn(alpha=3), 0.5, True),
    ],
)
def test_a_pull_that_goes_too_far_is_warned_of(tmp_path, method, lr, warns):
    run = small(tmp_path, method=method, training=Training(lr=lr))
    assert any("above 1" in text for text in run.check(run.federated_data())) == warns


@pytest.mark.parametrize(
    ("inter", "domains", "warns"), [("both", 1, True), ("both", 2, False), ("none", 1, False)]
)
def test_fedco2_names_its_algorithm_for_one_domain(tmp_path, inter, domains, warns):
    """Before a run, and where the run ends because it has diverged."""
    data = Synthetic(train=240, test=60, domains=domains, partition=Dirichlet(alpha=1.0))
    run = small(tmp_path, method=FedCO2(inter=inter, mu=1e30), data=data)
    assert any("intra=none method.inter=none" in text for text in run.check(run.federated_data())) == warns
    if warns:
        with refused(BadUpdate, "client 1") as caught:
            run.run()
        assert "method.inter=none" in str(caught.value)


@pytest.mark.parametrize("execution", ["loop", "stacked"])
def test_partialfed_mixes_layers_with_their_batch_norm(execution):
    """v_0 F(h; global) + v_1 F(h; own) with BatchNorm inside F: a step of the logits, in plain PyTorch."""
    data = ragged((22,))
    settings = {"lr": 1.0, "batch_size": 22, "execution": execution}
    run = start(PartialFed(gumbel_start=2.0, gumbel_decay=0.5), data, CNNB(), **settings)
    run.round([0])
    both, plain = [], []
    for seed in (1, 2):
        w = run.worker.net.initial(seed)
        draw = torch.Generator().manual_seed(seed)
        odd = {n: torch.rand(t.shape, generator=draw).double() + 0.5 for n, t in w.items() if t.dim() == 1}
        both.append(w.replace(odd))
        net = build(CNNB(), (1, 16, 16), 4).double().eval()
        net.load_state_dict(dict(both[-1]), strict=False)
        plain.append([m for m in net.modules() if not list(m.children())])
    run.server.state = {**run.server.state, "weights": both[0]}
    run.worker.states[0] = {**run.worker.states[0], "own": both[1]}
    run.round([0])

    logits = torch.zeros(5, 2, dtype=torch.float64, requires_grad=True)
    key = step_keys(seed_of(run.worker.plan.seed, "noise", 0, 1, 1), 1)[0]
    gumbel = -(-(noise.uniform(key, (5, 2)).double() + 2.0**-25).log()).log()
    v = iter(F.softmax(logits + gumbel, 1))
    h = torch.tensor(data.dataset.inputs[:22]).double()
    for first, second in zip(*plain, strict=True):
        if isinstance(first, nn.Conv2d | nn.Linear):
            share, a, b = next(v), first(h), second(h)
        elif isinstance(first, nn.BatchNorm2d | nn.BatchNorm1d):
            a, b = first(a), second(b)
        else:
            h = first(h)
            continue
        h = share[0] * a + share[1] * b
    F.cross_entropy(h, torch.tensor(data.dataset.labels[:22])).backward()
    torch.testing.assert_close(run.worker.states[0]["logits"], -logits.grad, rtol=1e-9, atol=1e-9)


def test_partialfed_that_has_collapsed_is_local_training():
    """Two clients of one class each, without validation data: from the second round on both keep all."""
    run, alone = (federate(m, PAIR, cohorts=3, lr=1.0) for m in (PartialFed(), Local()))
    for i in (0, 1):
        assert_same(dict(run.worker.states[i]["own"]), dict(alone.worker.states[i]["weights"]))
    metrics = [run.worker.method.server_metrics(run.worker.context, server) for server in run.servers]
    assert [m["kept head"] for m in metrics] == [[0, 0], [1, 1], [1, 1]]
    assert "has collapsed to Local" in run.worker.method.warning(run.worker.plan.training, PAIR, metrics[-1])


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
        start(PartialFed(mode="top", k=6), DATA, LeNet())


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
    assert_matrix(run.clients[1][0]["W"]["head.weight"], [[w, 1], [w, 1]])
    first = 1 / 2 - w / 4
    own = first + 1 - s(2 * first)
    assert_row(head(run.clients[1][0]["own"]), [own, -1 / 4])
    received = head(run.servers[1]["weights"])[0, 0].item()  # that of client 0 alone, so own = received
    assert received == pytest.approx(own, abs=1e-12)
    assert_matrix(run.clients[2][0]["W"]["head.weight"], [[w, 1], [w, 1]])


def test_fedala_stays_between_own_and_received():
    run = federate(FedALA(eta=1e6, **EAGER), PAIR, cohorts=[[0, 1], [0]], lr=1.0)
    assert_matrix(run.clients[1][0]["W"]["head.weight"], [[0, 1], [0, 1]])
    assert_row(head(run.clients[1][0]["own"]), [1 / 2 + q, -1 / 4])


def test_fedala_learns_for_one_pass_once_settled():
    """Two clients change places, so that W has something to learn in every round."""
    run = federate(FedALA(eta=0.1, **EAGER), PAIR, cohorts=[[0, 1]] * 3, lr=1.0)
    own, received = (head(p)[0] for p in (run.clients[1][0]["own"], run.servers[1]["weights"]))
    W = run.clients[1][0]["W"]["head.weight"]
    off = received[0] - own[0]
    margin = 2 * (own[0] + off * W[0, 0])
    step = 0.1 * (s(margin) - 1) * off
    torch.testing.assert_close(run.clients[2][0]["W"]["head.weight"][0, 0], (W[0, 0] - step).clamp(0, 1))


def test_fedala_without_steps_of_w_is_fedavg():
    run, other = (
        federate(m, DATA, CNNB(), SOME, **SETTINGS) for m in (FedALA(eta=1e-300, **EAGER), FedAvg())
    )
    assert_same(dict(run.server.state["weights"]), dict(other.server.state["weights"]), 1e-9)


def test_fedala_learns_on_a_share_of_the_data():
    """15 samples of 22, in two batches of 8, where all of them would make three."""
    run = start(FedALA(rand_percent=65.0), DATA, CNNB())
    client = run.worker.client(1, 0)
    request = client.fit(client.initial, client.loss, share=0.65, epochs=1)
    assert [len(batch) for batch in request.batches] == [8, 7]
    assert set(torch.cat(request.batches).tolist()) < set(DATA.clients[1].train.tolist())


@pytest.mark.parametrize("execution", ["loop", "stacked"])
def test_fedala_learns_on_two_samples_at_least(execution):
    """A tenth of 2 and of 5 samples is one sample, of which BatchNorm has no variance."""
    five = [((1, 0), 0), ((3, 1), 1), ((2, 2), 1), ((0, 3), 0), ((1, 1), 1)]
    few = points([((1, 0), 0), ((0, 1), 1)], five)
    net = "tests.support.by_hand.normed"
    run = federate(FedALA(rand_percent=10.0, eta=5.0), few, net, cohorts=2, execution=execution)
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


def test_pfedme_renews_statistics_as_training_does():
    """A step with K = 1 sees the batch once, so the running statistics are those of FedAvg's first step."""
    data = points([((1, 0), 0), ((3, 1), 1)])
    net = "tests.support.by_hand.normed"
    run, other = (federate(m, data, net, cohorts=1, lr=0.1) for m in (PFedMe(K=1), FedAvg()))
    for name in ("fc.0.running_mean", "fc.0.running_var"):
        assert torch.equal(run.server.state["weights"][name], other.server.state["weights"][name])
        torch.testing.assert_close(run.clients[0][0]["own"][name], other.server.state["weights"][name])


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
def test_pfedme_averages_statistics_whatever_beta_is(beta):
    """A batch of (1, 0) and (3, 1) has the mean (2, 1/2) and the variance (2, 1/2), of which a tenth counts.

    Parameters move by beta: w = beta lr lam theta from w = 0.
    """
    data = points([((1, 0), 0), ((3, 1), 1)])
    run = federate(PFedMe(lam=0.5, K=1, beta=beta), data, "tests.support.by_hand.normed", cohorts=1, lr=0.1)
    w = run.server.state["weights"]
    torch.testing.assert_close(w["fc.0.running_mean"].tolist(), [0.2, 0.05], rtol=0, atol=1e-12)
    torch.testing.assert_close(w["fc.0.running_var"].tolist(), [1.1, 0.95], rtol=0, atol=1e-12)
    torch.testing.assert_close(head(w), 0.1 * 0.5 * beta * head(run.clients[0][0]["own"]))


# ---- FedFA

FFA_NET = "tests.support.by_hand.ffa"


class Fixed:
    """Draws nothing: always the same numbers."""

    def __init__(self, uniform, normal):
        self.drawn = {"uniform": uniform, "normal": normal}

    def uniform(self, shape):
        return torch.full(shape, self.drawn["uniform"])

    def normal(self, shape):
        return torch.full(shape, self.drawn["normal"])


def layer(uniform=0.0, normal=1.0, channels=1):
    made = FFA(channels).double().train()
    made.prob, made.source = 0.5, Fixed(uniform, normal)
    return made


X = torch.tensor([[[[0.0, 2.0]]], [[[0.0, 4.0]]]], dtype=torch.float64)
"""Two samples of one channel, with means 1 and 2 and variances 2 and 8."""


def test_ffa_draws_statistics():
    """With draws of 1 a statistic moves by its deviation over the batch times the square root of 2.

    With one channel gamma is 1. The means differ with variance 1/2, the deviations with variance
    (sqrt 8 - sqrt 2)^2 / 2 = 1.
    """
    scale = [math.sqrt(2 + EPS), math.sqrt(8 + EPS)]
    spread = [math.sqrt(2 * (0.5 + EPS)), math.sqrt(2 * ((scale[1] - scale[0]) ** 2 / 2 + EPS))]
    out = layer()(X)
    for sample, mean, s_ in zip((0, 1), (1.0, 2.0), scale, strict=True):
        expected = (s_ + spread[1]) * (X[sample] - mean) / s_ + mean + spread[0]
        torch.testing.assert_close(out[sample], expected, rtol=0, atol=1e-12)


def test_ffa_keeps_running_statistics_when_it_is_applied():
    made = layer()
    made(X)
    assert made.mean.item() == pytest.approx(0.01 * 1.5, abs=1e-12)
    scale = (math.sqrt(2 + EPS) + math.sqrt(8 + EPS)) / 2
    assert made.scale.item() == pytest.approx(0.99 + 0.01 * scale, abs=1e-12)
    idle = layer(uniform=0.5)
    assert torch.equal(idle(X), X)
    assert (idle.mean.item(), idle.scale.item()) == (0, 1)


def test_ffa_is_wider_where_clients_differ():
    """Variances over clients of 1 and 3: q = 1/2 and 3/4, so gamma = 2 q / (q_0 + q_1) = 4/5 and 6/5."""
    made = layer(channels=2)
    made.mean_var.copy_(torch.tensor([1.0, 3.0]))
    statistic = torch.tensor([[0.0, 0.0], [2.0, 2.0]], dtype=torch.float64)
    moved = (made._draw_statistic(statistic, made.mean_var) - statistic)[0]
    torch.testing.assert_close(moved**2, torch.tensor([2 * 9 / 5, 2 * 11 / 5]).double(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("x", [X[:1], X[..., :1]], ids=["one sample", "one pixel"])
def test_ffa_passes_on_what_has_no_variance(x):
    assert torch.equal(layer()(x), x)
    assert torch.equal(layer().eval()(X), X)


def test_fedfa_takes_variances_over_clients():
    """Means of 1 and 3, deviations of 1 and 2; a client with three times the samples has three votes."""
    run = start(FedFA(), DATA, FFA_NET)
    method, names = run.worker.method, ("conv.3.mean", "conv.3.scale")
    own = {i: Params({names[0]: torch.tensor([a]), names[1]: torch.tensor([b])}, frozenset())
           for i, a, b in ((0, 1.0, 1.0), (1, 3.0, 2.0))}  # fmt: skip
    before = own[0].merge(Params({f"{n}_var": torch.ones(1) for n in names}, frozenset()))
    state = {"weights": "before", "statistics": before}
    cohort = run_cohort((0, 1), (1, 3))
    after = method.aggregate(state, {"weights": "after", "statistics": own}, cohort)["statistics"]
    assert {n: t.item() for n, t in after.items()} == {
        names[0]: 2.5, names[1]: 1.75, f"{names[0]}_var": 1.0, f"{names[1]}_var": 0.25
    }  # fmt: skip
    alone = method.aggregate(state, {"weights": "after", "statistics": {0: own[0]}}, run_cohort((0,), (1,)))
    assert alone["statistics"][f"{names[0]}_var"].item() == 1.0  # of before


def run_cohort(ids, samples):
    return Cohort(ids, samples, 0, sum(samples), make_context(smooth_net()))


def test_fedfa_as_in_the_public_code():
    values = torch.tensor([[1.0, 2.0], [3.0, 2.0]])
    assert FedFA(var_mode="scalar")._client_variance(values).tolist() == [0.5, 0.5]
    assert FedFA()._client_variance(values).tolist() == [1.0, 0.0]


def test_fedfa_that_never_augments_is_fedavg():
    run, other = (federate(m, DATA, FFA_NET, SOME, **SETTINGS) for m in (FedFA(prob=0.0), FedAvg()))
    known = other.server.state["weights"]
    assert_same(dict(run.server.state["weights"]), {n: known[n] for n in run.server.state["weights"]})


def test_fedfa_augments():
    run, other = (federate(FedFA(prob=p), DATA, FFA_NET, 1) for p in (0.0, 1.0))
    name = "conv.0.weight"
    assert not torch.equal(run.server.state["weights"][name], other.server.state["weights"][name])


def test_fedfa_refuses_nets_without_its_layers():
    with refused(Conflict, "net"):
        start(FedFA(), DATA, LeNet())


# ---- FedSR

GAUSSIAN = "tests.support.by_hand.gaussian"


def test_fedsr_measures_information():
    """One feature, C = 2: the Gaussian is N(2, 1), that of the class N(1, 1), whose divergence is 1/2."""
    one = math.log(math.e - 1)  # softplus makes 1 of it
    entries = {"mean": torch.tensor([[9.0], [1.0]]), "scale": torch.full((2, 1), one), "C": torch.tensor(2.0)}
    classes = Params(entries, frozenset())
    mean, scale, y = torch.tensor([[1.0]]), torch.tensor([[0.5]]), torch.tensor([1])
    assert kl_to_classes(classes, mean, scale, y).item() == pytest.approx(0.5, abs=1e-6)
    other = classes.replace({"C": torch.tensor(-2.0)})  # N(-2, 1) is 3 away: 9 / 2
    assert kl_to_classes(other, mean, scale, y).item() == pytest.approx(4.5, abs=1e-6)


def test_fedsr_against_a_step_by_pytorch():
    """One client and one step, written with modules and autograd."""
    data = replace(DATA, clients=(replace(DATA.clients[0], train=DATA.clients[0].train[:8]),))
    method = FedSR(alpha_l2r=0.1, alpha_cmi=0.2)
    run = start(method, data, GAUSSIAN, lr=0.3)
    w = run.server.state["weights"]
    module = build(GAUSSIAN, (1, 16, 16), 4).double().train()
    module.load_state_dict({n: t.clone() for n, t in w.items()}, strict=False)
    tables = [torch.zeros(4, 12), torch.ones(4, 12), torch.ones(())]
    r, raw, c = (t.double().requires_grad_() for t in tables)
    run.round([0])

    key = step_keys(seed_of(run.worker.plan.seed, "noise", 0, 0, 0), 1)[0]
    (batch,) = next(run.worker.client(0, 0)._passes(0))
    x = torch.tensor(DATA.dataset.inputs[batch.numpy()]).double()
    y = torch.tensor(DATA.dataset.labels[batch.numpy()])
    mean, scale = module.fc[0](module.conv(x)).chunk(2, 1)
    scale = F.softplus(scale)
    z = mean + scale * noise.normal(key, tuple(mean.shape)).double()
    ours, theirs = (
        torch.distributions.Normal(c * mean, c * scale),
        torch.distributions.Normal(r[y], F.softplus(raw[y])),
    )
    cmi = torch.distributions.kl_divergence(ours, theirs).sum(1).mean()
    loss = F.cross_entropy(module.head(z), y) + 0.1 * z.norm(dim=1).mean() + 0.2 * cmi
    loss.backward()
    new = run.server.state["weights"]
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(new[name], parameter.detach() - 0.3 * parameter.grad, rtol=0, atol=1e-12)
    classes = run.worker.states[0]["classes"]
    for name, table in (("mean", r), ("scale", raw), ("C", c)):
        torch.testing.assert_close(classes[name], table.detach() - 0.3 * table.grad, rtol=0, atol=1e-12)


def test_fedsr_scores_by_mean_probabilities():
    run = start(FedSR(test_samples=3), DATA, GAUSSIAN)
    x = torch.tensor(DATA.dataset.inputs[:5]).double()
    found = run.scores(0, x)["personal"]
    net, w = run.worker.net.eval, run.server.state["weights"]
    module = build(GAUSSIAN, (1, 16, 16), 4).double().eval()
    module.load_state_dict(dict(w), strict=False)
    with torch.no_grad():
        mean, scale = module.fc[0](module.conv(x)).chunk(2, 1)
        key = torch.tensor(seed_of(run.worker.plan.seed, "features at evaluation"))
        z = [mean + F.softplus(scale) * noise.normal(noise.split(key, k), (12,)).double() for k in range(3)]
        expected = torch.stack([F.softmax(net.head(w, each), 1) for each in z]).mean(0)
    torch.testing.assert_close(found.exp(), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(run.scores(0, x[:2])["personal"], found[:2])  # whoever else is in the batch


def test_fedsr_refuses_nets_without_a_gaussian():
    with refused(Conflict, "net"):
        start(FedSR(), DATA, LeNet())


# ---- their nets


def parameters(net, shape=(3, 96, 96), classes=10):
    module = build(net, shape, classes)
    return sum(p.numel() for p in module.parameters()), module


def test_nets_have_the_parameters_of_their_papers():
    count, module = parameters(FedFAAlexNet())
    assert count == 12_974_154
    layers = [m for m in module.modules() if isinstance(m, FFA)]
    assert [len(m.mean) for m in layers] == [64, 192, 384, 256, 256]
    assert sum(b.numel() for m in layers for b in m.buffers()) == 4 * 1_152
    count, module = parameters(FedSRAlexNet())
    assert count == 12_974_154 - 10_250 + 1024 * 1024 + 1024 + 512 * 10 + 10
    assert (module.head.in_features, module.fc[-2].out_features) == (512, 1024)


def test_their_layers_stand_after_the_pooling():
    """Where a stage has one; the flatten stays last."""
    kinds = [type(m).__name__ for m in parameters(FedFAAlexNet())[1].conv.children()]
    places = [k for k, name in enumerate(kinds) if name == "FFA"]
    assert [kinds[k - 1] for k in places] == ["MaxPool2d", "MaxPool2d", "ReLU", "ReLU", "MaxPool2d"]
    assert kinds[-2:] == ["Averages", "Flatten"]
    small = [type(m).__name__ for m in parameters(FedFACNN(), (3, 32, 32))[1].conv.children()]
    assert [small[k - 1] for k, name in enumerate(small) if name == "FFA"] == ["ReLU"] * 2
    assert isinstance(parameters(FedSRCNN(), (3, 32, 32))[1].head, nn.Linear)
