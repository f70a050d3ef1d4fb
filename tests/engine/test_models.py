"""The models of a session, by the numbers of linear nets, and as modules of PyTorch's own."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rayfl.engine.models import Models, local_pair
from rayfl.errors import BadValue, Missing, Unknown
from rayfl.methods import Ditto, FedAvg, Local, Method
from rayfl.training import Client, State
from tests.support.by_hand import federate, points, ragged
from tests.support.refusals import refused

TINY = "rayfl.testing.by_hand.tiny"
X = torch.tensor([[[[1.0, 0.0]]], [[[0.0, 2.0]]]], dtype=torch.float64)


class Doubled(FedAvg):
    """Scores are twice those of the net, which is no single net."""

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        _unused = client.class_counts * 2
        return dict.fromkeys(self.views, 2 * client.net.eval(down["weights"], x))


class Given(Ditto):
    """Ditto whose new clients get the mean of the personal models."""

    def state_for_new_clients(self, context: Any, state: State) -> State:
        return state


def after_a_step(method: Method, *more: Any) -> Models:
    """Return the models after client 0 has made a step of 1 from W = 0 by its sample (1, 0) of class 0.

    The softmax is 1/2, so that W becomes [[1/2, 0], [-1/2, 0]].
    """
    run = federate(method, points([((1, 0), 0)], *more), cohorts=[[0]], lr=1.0)
    return Models(run.worker, run.server, 1, {0})


def trained(method: Method, net: Any = TINY, channels: int = 1) -> Models:
    data = ragged(val=2)
    images = np.repeat(data.dataset.inputs, channels, axis=1)
    dataset = replace(data.dataset, inputs=images, mean=(0.0,) * channels, std=(1.0,) * channels)
    run = federate(method, replace(data, dataset=dataset), net, cohorts=[[0, 1]])
    return Models(run.worker, run.server, 1, {0, 1})


def test_what_a_client_scores_and_predicts() -> None:
    models = after_a_step(FedAvg())
    assert models.scores(0, X)["personal"].tolist() == [[0.5, -0.5], [0.0, 0.0]]
    p = math.e / (1 + math.e)
    raw: Any = X.float().numpy()
    for inputs in (raw, torch.tensor(raw)):
        found = models[0].predict(inputs)
        assert found.flatten().tolist() == pytest.approx([p, 1 - p, 0.5, 0.5])
        assert not found.requires_grad
    assert models.features(0, X)["personal"].tolist() == [[1.0, 0.0], [0.0, 2.0]]
    assert models[0].views == models.views
    assert (models.round, models.when, models.views) == (1, "after 1 round", ("personal", "global"))
    models.round = 2
    assert models.when == "after 2 rounds"


def test_states_are_copies_by_name() -> None:
    """That of a client without any training is the one with which it would begin."""
    models = after_a_step(Ditto(mu=0.0), [((0, 1), 1)])
    step = {"head.weight": [[0.5, 0.0], [-0.5, 0.0]]}
    found = [models.state(0)["own"], models.server["weights"], models.state(1)["own"]]
    assert [type(each) for each in found] == [dict] * 3
    values = [{name: tensor.tolist() for name, tensor in each.items()} for each in found]
    assert values == [step, step, {"head.weight": [[0.0, 0.0]] * 2}]
    for each in found:
        each["head.weight"].fill_(7.0)
    assert models.scores(0, X)["personal"].tolist() == models.scores(0, X)["global"].tolist()
    assert models.server["weights"]["head.weight"].tolist() == step["head.weight"]
    assert after_a_step(FedAvg()).state(0) == {}


def test_features_are_those_of_views_that_a_last_layer_ends() -> None:
    """Looking leaves nothing behind in the net, not even where scores cannot be computed."""
    models = after_a_step(Doubled())
    assert models.features(0, X) == {}
    with pytest.raises(RuntimeError):
        models.features(0, X[..., :1])
    assert not models._worker.net.eval.module.head._forward_hooks


def test_who_has_never_trained() -> None:
    """Its personal model is what the plan says, or the mean of those of clients that have trained."""
    data = points([((1, 0), 0)], [((0, 1), 1)], [((1, 1), 1)])
    run = federate(Given(mu=0.0), data, cohorts=[[0], [1]], lr=1.0)
    models = Models(run.worker, run.server, 2, {0, 1})
    assert [each.trained for each in models] == [True, True, False]
    own = [models.scores(k, X)["personal"] for k in (0, 1)]
    assert own[0][0].tolist() == [0.5, -0.5]
    assert own[1][1].tolist() == [-1.0, 1.0]
    plan = run.worker.plan
    for by, expected in (("global", models.scores(2, X)["global"]), (None, (own[0] + own[1]) / 2)):
        run.worker.plan = replace(plan, counts_by=by)
        assert torch.equal(models.scores(2, X)["personal"], expected)
        assert torch.equal(models.scores(0, X)["personal"], own[0])


def test_the_data_of_a_client() -> None:
    models = trained(FedAvg())
    for split, size in (("train", 22), ("val", 2), ("test", 4)):
        x, y = models.batch(1, split)
        indices = models.data.clients[1].split(split)
        assert len(indices) == size
        assert np.array_equal(x.float().numpy(), models.data.dataset.inputs[indices])
        assert y.tolist() == models.data.dataset.labels[indices].tolist()
    assert torch.equal(models.batch(1)[0], models.batch(1, "test")[0])
    with refused(Missing):
        Models(models._worker, models._server, 1, {0}, has_data=False).batch(1)


def test_clients_and_views_that_there_are_not() -> None:
    models = after_a_step(FedAvg(), [((0, 1), 1)])
    assert len(models) == 2
    assert [each.client for each in models] == [0, 1]
    for client in (-1, 2):
        for call in (models.batch, models.state, lambda k: models[k], lambda k: models.scores(k, X)):
            with refused(Unknown, f"client {client}"):
                call(client)
        with refused(Unknown, f"client {client}"):
            models.features(client, X)
        with refused(Unknown, f"client {client}"):
            models.plain(client, "personal")
    with refused(Unknown, "view"):
        models[0].module("own")
    for inputs in (X, X.float()[..., 0], torch.zeros(2, 1, 1, 3)):
        with refused(BadValue, "inputs"):
            models[0].predict(inputs)


def test_a_view_of_one_net_is_this_net() -> None:
    """With its own names, parameters and buffers; it can be changed, and the run's models stay."""
    models = trained(FedAvg())
    module, x = models[0].module(), models.batch(0, "train")[0]
    expected = models.scores(0, x)["personal"]
    assert torch.equal(module(x), expected)
    assert {"conv.0.weight", "head.bias"} <= {name for name, _ in module.named_parameters()}
    assert {"conv.1.running_mean", "conv.1.running_var"} <= {name for name, _ in module.named_buffers()}
    assert all(parameter.requires_grad for parameter in module.parameters())
    assert not module.training
    for tensor in module.state_dict().values():
        tensor.zero_()
    assert torch.equal(models.scores(0, x)["personal"], expected)


def test_a_net_of_the_clients_own() -> None:
    models = trained(Local(), [TINY, f"{TINY}_wide"])
    modules, x = [models[k].module() for k in (0, 1)], models.batch(0)[0]
    assert [module.state_dict()["conv.0.weight"].shape[0] for module in modules] == [2, 3]
    for k, module in enumerate(modules):
        assert torch.equal(module(x), models.scores(k, x)["personal"])


@pytest.mark.parametrize(("channels", "examples"), [(2, 3), (3, 2)])
def test_another_view_is_a_graph_for_batches_of_any_size_and_layout(channels: int, examples: int) -> None:
    models = trained(Doubled(), channels=channels)
    assert models.plain(0, "personal") is None
    assert models.example_inputs().shape == (examples, channels, 16, 16)
    module, x = models[0].module(), models.batch(0, "train")[0]
    assert isinstance(module, torch.fx.GraphModule)
    assert not module.training
    for rows in (x, x[:1], x.contiguous(memory_format=torch.channels_last)):
        torch.testing.assert_close(module(rows), models.scores(0, rows)["personal"])
    weights = models.server["weights"]
    sizes = sorted(value.shape for name, value in weights.items() if "num_batches" not in name)
    assert sorted(value.shape for value in module.state_dict().values()) == sizes


def test_a_pair_of_its_own() -> None:
    """In a loop on the CPU, whatever the run's engine is."""
    run = federate(FedAvg(), ragged(), TINY, cohorts=[[0]])
    plan = replace(run.worker.plan, method=FedAvg(), metrics=("balanced_accuracy",))
    plan = replace(plan, engine=replace(plan.engine, device="cuda", execution="stacked"))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before + 1)
        worker, server = local_pair(plan, run.worker.data)
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)
    found = worker.plan
    assert (found.engine.device, found.engine.execution, found.metrics) == ("cpu", "loop", ())
    assert worker.context is not server.context
