"""The federations that tests of methods are made of: data, nets, rounds and scores, by hand."""

import numpy as np
import pytest
import torch

from rayfl.methods import FedAvg
from rayfl.methods.fedbabu import FedBABU
from rayfl.testing import assert_same, federate, points, ragged, start
from rayfl.testing.by_hand import linear, tiny, tiny_wide
from rayfl.training import Exponential

PAIR = points([((1, 0), 0), ((0, 1), 1)], [((4, 3), 0)])


def test_points_are_training_and_test_data() -> None:
    assert PAIR.dataset.inputs[:, 0, 0].tolist() == [[1, 0], [0, 1], [4, 3]]
    assert PAIR.dataset.labels.tolist() == [0, 1, 0]
    assert PAIR.dataset.classes == 2
    for client, own in zip(PAIR.clients, ([0, 1], [2]), strict=True):
        assert client.train.tolist() == client.test.tolist() == own
        assert client.val.tolist() == []


def test_ragged_clients_lack_a_class_each() -> None:
    data = ragged()
    assert [len(client.train) for client in data.clients] == [12, 22, 16, 5]
    assert [len(client.test) for client in data.clients] == [4] * 4
    for i, client in enumerate(data.clients):
        own = data.dataset.labels[np.concatenate([client.train, client.test])]
        assert set(own.tolist()) == {0, 1, 2, 3} - {i}
    whole = ragged([8, 8], classes=3, missing=False)
    assert set(whole.dataset.labels[whole.clients[1].train].tolist()) == {0, 1, 2}
    assert data.dataset.inputs.shape == (12 + 22 + 16 + 5 + 16, 1, 16, 16)
    origin = data.dataset.origin
    assert all((origin[c.train] == 0).all() and (origin[c.test] != 0).all() for c in data.clients)
    same = ragged().dataset.inputs
    assert np.array_equal(same, data.dataset.inputs)


def test_nets_have_the_features_that_they_say() -> None:
    images = torch.zeros(2, 3, 16, 16)
    for net, width in ((tiny((3, 16, 16), 4), 2), (tiny_wide((3, 16, 16), 4), 3)):
        assert net.conv[0].out_channels == width  # type: ignore[index, union-attr]
        assert net.features(images).shape == (2, 5)
        assert net(images).shape == (2, 4)
    assert linear((1, 1, 2), 2).head.weight.tolist() == [[0, 0], [0, 0]]


def test_rounds_and_their_history() -> None:
    """A step of 1 from W = 0: client 0 sees (1, 0) and (0, 1) at once, each moves W by 1/4."""
    run = federate(FedAvg(), PAIR, cohorts=[[0], [1]], lr=1.0)
    assert [result.ids for result in run.results] == [[0], [1]]
    first = run.servers[0]["weights"]["head.weight"]
    torch.testing.assert_close(first, torch.tensor([[0.25, -0.25], [-0.25, 0.25]], dtype=torch.float64))
    assert len(run.servers) == len(run.clients) == 2
    assert run.servers[1]["weights"] is run.server.state["weights"]
    assert [result.ids for result in federate(FedAvg(), PAIR, cohorts=2).results] == [[0, 1]] * 2
    scores = run.scores(0, torch.tensor([[[[2.0, 0.0]]]], dtype=torch.float64))
    last = run.server.state["weights"]["head.weight"]
    assert scores["personal"].tolist() == [(2 * last[:, 0]).tolist()]
    assert run.values()["state/server/weights/head.weight"].equal(last)


def test_the_settings_of_small_runs() -> None:
    plan = start(FedAvg(), PAIR).worker.plan
    assert (plan.training.batch_size, plan.training.lr, plan.training.precision) == (8, 0.1, "float64")
    changed = start(FedAvg(), PAIR, rounds=3, lr=0.5, seed=7, averaging="uniform", execution="stacked").worker
    assert (changed.plan.rounds, changed.plan.training.lr, changed.plan.seed) == (3, 0.5, 7)
    assert (changed.context.averaging, changed.plan.engine.execution) == ("uniform", "stacked")


def test_scores_are_those_after_personalising() -> None:
    """FedBABU tunes the model that is scored, and keeps nothing of it."""
    run = federate(FedBABU(), ragged(), "rayfl.testing.by_hand.tiny", cohorts=[[0, 1]])
    before = run.values()
    images = torch.tensor(ragged().dataset.inputs[:3]).double()
    scores = run.scores(0, images)
    assert not torch.equal(scores["personal"], scores["global"])
    assert_same(run.values(), before)
    halved = federate(
        FedBABU(), ragged(), "rayfl.testing.by_hand.tiny", cohorts=[[0, 1]], schedule=Exponential(decay=0.5)
    )
    assert torch.equal(halved.scores(0, images)["personal"], scores["personal"])  # at the rate of round 0


def test_comparing_by_name() -> None:
    one, near = {"w": torch.ones(2)}, {"w": torch.ones(2) + 1e-6}
    assert_same(one, {"w": torch.ones(2)})
    assert_same(one, near, 1e-5)
    for other, tolerance in ((near, 0), (near, 1e-8), ({"v": torch.ones(2)}, 1), ({}, 1)):
        with pytest.raises(AssertionError):
            assert_same(one, other, tolerance)
