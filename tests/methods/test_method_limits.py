"""What methods become at the limits of their options, and what must hold all along."""

import pytest
import torch
import torch.nn.functional as F

from rayfl.engine.travel import Download
from rayfl.methods import (
    METHODS,
    SCAFFOLD,
    Ditto,
    FedAvg,
    FedBN,
    FedCO2,
    FedDyn,
    FedPer,
    FedProto,
    FedProx,
    Local,
)
from rayfl.nets import CNNB, FedAvgCNN, LeNet, build
from rayfl.training import weighted_mean
from rayfl.training.params import Params
from tests.methods.cases import CASES, net_of
from tests.support.by_hand import assert_same, federate, points, ragged, start

DATA = ragged()
NET = CNNB()
ALONE = ragged([12], missing=False)
SOME = [[0, 1, 2], [1, 3], [0, 2, 3], [0, 1, 2, 3]]  # cohorts with latecomers
SETTINGS = {"epochs": 2, "momentum": 0.5, "weight_decay": 1e-3, "clip": 1.0}


class FedPerWithoutPersonalLayers(FedPer):
    def shared(self, net, name, module):
        return True


@pytest.mark.parametrize(
    ("method", "net"),
    [
        (FedProx(mu=0), CNNB()),
        (FedBN(), LeNet()),
        (FedBN(), FedAvgCNN()),
        (FedPerWithoutPersonalLayers(), CNNB()),
    ],
)
def test_equals_fedavg_bit_for_bit(method, net):
    run, other = (federate(m, DATA, net, SOME, **SETTINGS) for m in (method, FedAvg()))
    assert_same(dict(run.server.state["weights"]), dict(other.server.state["weights"]))


def sgd(net, data, rounds, epochs, momentum, weight_decay, clip):
    """Train a plain module on all of the first client's data at once, with a new optimiser in each round."""
    train = data.clients[0].train
    x, y = torch.tensor(data.dataset.inputs[train]).double(), torch.tensor(data.dataset.labels[train])
    for _ in range(rounds):
        optimiser = torch.optim.SGD(net.parameters(), 0.1, momentum, weight_decay=weight_decay)
        for _ in range(epochs):
            optimiser.zero_grad()
            F.cross_entropy(net(x), y).backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
            optimiser.step()


@pytest.mark.parametrize("name", [n for n in METHODS if CASES[n].plain is not None])
def test_one_client_is_plain_sgd(name):
    """A federation of one, without regularisers, is SGD; every view is the trained net."""
    kind = net_of(name, CNNB())
    run = federate(METHODS[name](**CASES[name].plain), ALONE, kind, batch_size=50, **SETTINGS)
    net = build(kind, ALONE.dataset.shape, ALONE.dataset.classes).double()
    for entry, tensor in [*net.named_parameters(), *net.named_buffers()]:
        tensor.data.copy_(run.worker.initial[entry])
    sgd(net.train(), ALONE, rounds=3, **SETTINGS)
    x = torch.tensor(ALONE.dataset.inputs[ALONE.clients[0].test]).double()
    with torch.no_grad():
        expected = net.eval()(x)
    scores = run.scores(0, x)
    if name == "FedCO2":
        scores["personal"] = scores["personal"] / 2  # the sum of two equal nets
    for view, got in scores.items():
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10, msg=view)


@pytest.mark.parametrize("name", [n for n in METHODS if CASES[n].predicts_with_own])
def test_scores_after_training_are_of_the_clients_own_model(name):
    """In a federation of one that is what the server sends next, so that aggregation changes no score."""
    run = start(METHODS[name](), ALONE, net_of(name, CNNB()))
    run.round([0], score_splits=("test",))
    (trained,) = run.results[0].scores.values()
    (aggregated,) = run.worker.evaluate(0, run.server.download([0]), [[0]], ["test"]).values()
    assert set(trained["test"]) == set(METHODS[name]().views)
    for view, score in trained["test"].items():
        assert score.correct == aggregated["test"][view].correct
        assert score.loss == pytest.approx(aggregated["test"][view].loss, abs=1e-12)


# ---- FedProx


def moved(method, **settings):
    """Return how far one round of one client moves the model."""
    run = federate(method, ALONE, LeNet(), cohorts=1, batch_size=50, lr=0.01, **settings)
    return (run.server.state["weights"] - run.worker.initial).norm().item()


def test_fedprox_with_a_large_mu_freezes_the_model():
    """With mu = 1/lr each step throws the former ones away: w_{k+1} = w_0 - lr g(w_k)."""
    distances = [moved(FedProx(mu=mu), epochs=20) for mu in (0, 1, 10, 100)]
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 1.2 * moved(FedAvg(), epochs=1) < distances[0] / 10


# ---- second means


@pytest.mark.parametrize("averaging", ["uniform", "samples"])
@pytest.mark.parametrize("cohorts", [3, SOME])
@pytest.mark.parametrize(
    ("method", "key", "of_server"),
    [
        (SCAFFOLD(), "control", lambda server: server["control"]),
        (FedDyn(alpha=0.5), "gradient", lambda server: 0.5 * server["drift"]),
    ],
    ids=["SCAFFOLD", "FedDyn"],
)
def test_what_the_server_keeps_is_the_mean_over_all_clients(method, key, of_server, cohorts, averaging):
    """It has the weights of the model's mean, for any participation: c of SCAFFOLD, and h of FedDyn."""
    run = federate(method, DATA, CNNB(), cohorts, averaging=averaging, **SETTINGS)
    sizes = {i: len(DATA.clients[i].train) if averaging == "samples" else 1 for i in run.worker.states}
    mean = weighted_mean({i: state[key] for i, state in run.worker.states.items()}, sizes)
    assert len(sizes) == len(DATA.clients)
    assert mean.norm() > 1e-3
    assert_same(dict(mean), dict(of_server(run.server.state)), 1e-12)
    assert set(mean) == run.worker.net.train_names


UNEQUAL = points(*([((1, 1), int(k < ones)) for k in range(count)] for count, ones in ((10, 3), (90, 63))))
WITHOUT_A_COMMON_OPTIMUM = {
    "COPA": "every client keeps its head, which is the whole net here",
    "FedALA": "clients start from mixtures with their own models",
    "FedBABU": "the head, which is the whole net here, keeps its first values",
    "FedCP": "features pass through what depends on the client",
    "FedDBE": "what clients remember moves the optimum of what they have in common",
    "FedKD": "the common net learns from personal ones",
    "FedPAC": "every client keeps its head",
    "FedPer": "every client keeps its head",
    "FedRep": "every client keeps its head",
    "FedSR": "it needs a net with layers of its own",
    "FDSE": "it needs a net with layers of its own",
    "FedFA": "it needs a net with layers of its own",
    "PartialFed": "clients choose own layers to start from",
    "PerFedAvg": "the optimum is that after a step of each client",
    "PFedMe": "the optimum is that of the Moreau envelopes, in no closed form",
    "PFedVEM": "heads have a prior, and a mean by confidence",
}
OPTIONS = {"FedRoD": {"balanced": False}}
COMMON = [name for name in METHODS if CASES[name].averages is not None]


@pytest.mark.parametrize("averaging", ["uniform", "samples"])
@pytest.mark.parametrize("name", [name for name in COMMON if name not in WITHOUT_A_COMMON_OPTIMUM])
def test_a_common_model_finds_the_optimum_of_its_mean(name, averaging):
    """Ten samples with a share of 0.3 of class 1, and ninety with 0.7, all with the same input."""
    options = CASES[name].plain or OPTIONS.get(name, {})
    settings = {"averaging": averaging, "batch_size": 100, "steps": 1, "lr": 1.0}
    run = federate(METHODS[name](**options), UNEQUAL, cohorts=40, **settings)
    scores = run.scores(0, torch.ones(1, 1, 1, 2, dtype=torch.float64))
    common = next(scores[view] for view in ("global", "online", "personal") if view in scores)
    share = {"uniform": (0.3 + 0.7) / 2, "samples": (3 + 63) / 100}[averaging]
    assert common.softmax(1)[0, 1].item() == pytest.approx(share, abs=1e-8)


# ---- what is personal


def names(run):
    return set(run.server.state["weights"])


BN = {f"{layer}.{e}" for layer in ("conv.1", "conv.5", "fc.1", "fc.4") for e in ("weight", "bias")}
STATISTICS = {n.rsplit(".", 1)[0] + f".running_{e}" for n in BN for e in ("mean", "var")}
HEAD = {"head.weight", "head.bias"}


def in_fc_stack(net):
    return {n for n in net.modules_of if not n.startswith("conv.")}


@pytest.mark.parametrize(
    ("method", "personal"),
    [
        (FedBN(), BN | STATISTICS),
        (FedBN(bn_personal="affine_only"), BN),
        (FedPer(), HEAD),
        (FedPer(personal="fc_stack"), None),
        (FedCO2(), BN | STATISTICS),
        (FedCO2(bn_personal="affine_only"), BN),
        (FedCO2(personal="head", exchange="last_layer"), HEAD),
        (FedCO2(personal="head"), None),
        (FedCO2(personal="bn_and_head", exchange="last_layer"), HEAD | BN | STATISTICS),
    ],
)
def test_personal_entries(method, personal):
    """BatchNorm is found by its type: in ``cnn-b`` no name gives it away."""
    run = federate(method, DATA, CNNB(), 1)
    expected = in_fc_stack(run.worker.net) if personal is None else personal
    assert set(run.worker.states[0]["own"]) == expected
    assert names(run) == set(run.worker.net.modules_of) - expected


def test_personal_layers_of_a_client_that_was_not_sampled_stay():
    run = federate(FedBN(), DATA, CNNB(), [[0, 1, 2, 3], [1, 2]])
    assert run.clients[1][0] is run.clients[0][0]
    x = torch.tensor(DATA.dataset.inputs[:4]).double()
    own = run.servers[1]["weights"].merge(run.clients[0][0]["own"])
    assert torch.equal(run.scores(0, x)["personal"], run.worker.net.eval(own, x))


# ---- Ditto, FedProto: local training beside


def local_weights(cohorts, net=NET):
    run = federate(Local(), DATA, net, cohorts, **SETTINGS)
    return {i: dict(state["weights"]) for i, state in run.worker.states.items()}


@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_ditto_is_fedavg_beside_a_personal_model(mu):
    run = federate(Ditto(mu=mu), DATA, CNNB(), SOME, **SETTINGS)
    other = federate(FedAvg(), DATA, CNNB(), SOME, **SETTINGS)
    assert_same(dict(run.server.state["weights"]), dict(other.server.state["weights"]))
    alone = local_weights(SOME)
    for i, state in run.worker.states.items():
        if mu == 0:
            assert_same(dict(state["own"]), alone[i])
        else:
            assert not torch.equal(state["own"]["head.weight"], alone[i]["head.weight"])


@pytest.mark.parametrize("weights", ["uniform", "counts"])
def test_fedproto_without_the_pull_is_local_training(weights):
    method = FedProto(lam=0, prototype_weights=weights)
    run = federate(method, DATA, CNNB(), SOME, **SETTINGS)
    for i, expected in local_weights(SOME).items():
        assert_same(dict(run.worker.states[i]["weights"]), expected)


@pytest.mark.parametrize("weights", ["uniform", "counts"])
def test_fedproto_prototypes_are_class_means(weights):
    """After one round: features averaged per client and class, then over clients (or all at once)."""
    run = federate(FedProto(prototype_weights=weights), DATA, CNNB(), 1, batch_size=50)
    rows = [[] for _ in range(DATA.dataset.classes)]
    for i, client_data in enumerate(DATA.clients):
        x = torch.tensor(DATA.dataset.inputs[client_data.train]).double()
        z = run.worker.net.eval.features(run.worker.states[i]["weights"], x)
        y = torch.tensor(DATA.dataset.labels[client_data.train])
        for c in y.unique().tolist():
            rows[c] += [z[y == c].mean(0)] if weights == "uniform" else list(z[y == c])
    expected = torch.stack([torch.stack(r).mean(0) for r in rows])
    torch.testing.assert_close(run.server.state["prototypes"], expected, rtol=1e-10, atol=1e-10)


def test_fedproto_pulls_features_to_the_prototypes():
    def spread(lam):
        run = federate(FedProto(lam=lam), DATA, LeNet(), 6, epochs=2)
        x = torch.tensor(DATA.dataset.inputs).double()
        y = torch.tensor(DATA.dataset.labels)
        z = run.worker.net.eval.features(run.worker.states[0]["weights"], x)
        prototypes = run.server.state["prototypes"]
        return ((z - prototypes[y]).square().sum() / prototypes.square().sum()).item()

    assert spread(5.0) < 0.8 * spread(0.0)


# ---- Fed-CO2


@pytest.mark.parametrize("cohorts", [3, SOME])
def test_fedco2_without_transfers_is_fedbn_beside_local(cohorts):
    run = federate(FedCO2(intra="none", inter="none"), DATA, CNNB(), cohorts, **SETTINGS)
    online = federate(FedBN(), DATA, CNNB(), cohorts, averaging="uniform", **SETTINGS)
    assert_same(dict(run.server.state["weights"]), dict(online.server.state["weights"]))
    alone = local_weights(cohorts)
    for i, state in run.worker.states.items():
        assert_same(dict(state["own"]), dict(online.worker.states[i]["own"]))
        assert_same(dict(state["offline"]), alone[i])


@pytest.mark.parametrize(("data", "mu"), [(ALONE, 1.0), (DATA, 0.0)])
def test_fedco2_without_inter_client_transfer(data, mu):
    """FedCO2 of one client or without mu has no inter client transfer."""
    run, other = (
        federate(FedCO2(mu=mu, inter=inter), data, CNNB(), 3, **SETTINGS) for inter in ("both", "none")
    )
    assert_same(dict(run.server.state["weights"]), dict(other.server.state["weights"]))
    for i, state in run.worker.states.items():
        assert_same(dict(state["offline"]), dict(other.worker.states[i]["offline"]))


def test_fedco2_learns_by_each_transfer():
    """Each changes both nets, that between clients from the first round on, the other from the second."""
    runs = {
        (intra, inter): federate(FedCO2(intra=intra, inter=inter), DATA, CNNB(), 2)
        for intra, inter in [("none", "none"), ("both", "none"), ("none", "both")]
    }
    plain = runs.pop(("none", "none"))
    for (_, inter), run in runs.items():
        for k, differs in ((0, inter == "both"), (1, True)):
            offline = run.clients[k][0]["offline"] - plain.clients[k][0]["offline"]
            online = run.servers[k]["weights"] - plain.servers[k]["weights"]
            assert bool(offline.norm() > 1e-6) == differs
            assert bool(online.norm() > 1e-6) == differs


def test_fedco2_has_no_mutual_phase_the_first_time():
    """20 samples in batches of 8 are 3 steps an epoch; mutual learning takes 3 epochs, adaptation 2."""
    data = ragged([20, 20, 20])
    method = FedCO2(mutual_epochs=3, adapt_epochs=2)
    run = federate(method, data, LeNet(), [[0, 1], [0, 2], [0, 1, 2]])
    assert [r.steps for r in run.results] == [[6, 6], [15, 6], [15, 15, 15]]


def test_fedco2_adapts_for_the_epochs_of_the_run():
    """FedCO2 adapts for the epochs of the run if not told otherwise."""
    run = federate(FedCO2(), ragged([20]), LeNet(), 2, epochs=4)
    assert [r.steps for r in run.results] == [[12], [3 + 12]]


def test_fedco2_offline_nets_may_start_apart():
    same, apart = (start(FedCO2(offline_init=init), DATA, CNNB()) for init in ("same", "independent"))

    def offline(run, i):
        return run.worker.state(i, run.worker.client(i, 0))["offline"]["head.weight"]

    initial = same.worker.initial["head.weight"]
    assert torch.equal(offline(same, 0), initial)
    starts = [initial, *(offline(apart, i) for i in range(3))]
    assert all(not torch.equal(a, b) for k, a in enumerate(starts) for b in starts[:k])
    assert torch.equal(offline(apart, 1), offline(apart, 1))


def test_fedco2_keeps_the_last_classifier_of_every_client():
    """And by the common initial one as long as it has not been sampled at all."""
    run = federate(FedCO2(), DATA, CNNB(), [[2, 0], [1, 2]])
    assert [list(server["heads"]) for server in run.servers] == [[0, 1, 2, 3]] * 2
    names = run.worker.net.names("fc_stack", "head")
    for k, never in ((0, (1, 3)), (1, (3,))):
        for i in never:
            assert_same(dict(run.servers[k]["heads"][i]), {n: run.worker.initial[n] for n in sorted(names)})
    assert_same(dict(run.servers[1]["heads"][0]), dict(run.servers[0]["heads"][0]))
    assert not torch.equal(
        run.servers[1]["heads"][2]["head.weight"], run.servers[0]["heads"][2]["head.weight"]
    )


@pytest.mark.parametrize(
    ("client", "entry", "matters"),
    [(1, "fc.1.running_mean", True), (1, "head.weight", True), (0, "head.weight", False)],
)
def test_fedco2_uses_foreign_classifiers_statistics(client, entry, matters):
    """Client 0 is trained with one classifier changed: client 1's matters, its own does not."""

    def second_round(factor):
        run = federate(FedCO2(intra="none"), DATA, CNNB(), 1)
        head = run.server.state["heads"][client]
        changed = Params({**head, entry: factor * head[entry]}, head.train_names)
        run.server.state = {
            **run.server.state,
            "heads": {**run.server.state["heads"], client: changed},
        }
        run.round([0])
        return run.worker.states[0]["offline"]

    assert bool((second_round(2.0) - second_round(1.0)).norm() > 1e-6) == matters


@pytest.mark.parametrize("execution", ["loop", "stacked"])
def test_fedco2_leaves_a_clients_own_classifier_out(execution):
    """Also one whose scores are infinite: times 0 they would not be numbers.

    Client 1, to whom it is foreign, has a bad update; the others are as they were, to the bit.
    """
    run = federate(FedCO2(intra="none"), DATA, CNNB(), 1, execution=execution)
    heads, found = run.server.state["heads"], []
    for factor in (1.0, 1e308):
        weight = factor * heads[0]["head.weight"].sign()
        head = Params({**heads[0], "head.weight": weight}, heads[0].train_names)
        down = {**run.server.download([0])[0], "heads": {**heads, 0: head}}
        before = dict(run.worker.states)
        result = run.worker.train(1, Download(down, {}), [(0, 1)])[1]
        assert set(result.bad) == (set() if factor == 1 else {1})
        found.append(run.worker.states[0])
        run.worker.states.update(before)
    assert_same(dict(found[1]["offline"]), dict(found[0]["offline"]))
    assert_same(dict(found[1]["own"]), dict(found[0]["own"]))


def test_fedco2_does_not_compute_with_a_clients_own_classifier(monkeypatch):
    """One batch of four clients in a loop: two nets, each through the classifiers of three others."""
    run = start(FedCO2(), ragged([8, 8, 8, 8]), CNNB())
    calls, compute = [], run.worker.net.eval.head

    def head(w, z, cut):
        calls.append(w)
        return compute(w, z, cut)

    monkeypatch.setattr(run.worker.net.eval, "head", head)
    run.round([0, 1, 2, 3])
    assert len(calls) == 4 * 2 * 3


def test_fedco2_leaves_frozen_classifiers_alone():
    run = federate(FedCO2(), DATA, CNNB(), 1)
    before = {i: head.clone() for i, head in run.server.state["heads"].items()}
    run.worker.train(1, run.server.download([0]), [(0,)])
    for i, head in run.server.state["heads"].items():
        assert_same(dict(head), dict(before[i]))


def test_fedco2_teaches_only_the_net_that_it_is_told_to():
    """In the mutual phase of ``to_online`` neither weights nor statistics of the offline net move."""
    runs = {
        intra: federate(FedCO2(intra=intra, inter="none"), points([((1, 0), 0)] * 4), NORMED, 2)
        for intra in ("to_online", "to_offline", "none")
    }

    def statistics(intra, part):
        return runs[intra].worker.states[0][part]["fc.0.running_mean"][0].item()

    for intra, part, passes in [
        ("to_online", "own", 3),
        ("to_online", "offline", 2),
        ("to_offline", "own", 2),
        ("to_offline", "offline", 3),
        ("none", "own", 2),
    ]:
        assert statistics(intra, part) == pytest.approx(1 - 0.9**passes, abs=1e-12)


NORMED = "tests.support.by_hand.normed"
