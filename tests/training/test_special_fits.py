"""Fits at a rate of their own, fits that only renew buffers, totals of a single batch, layers watched."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rayfl.training import Batch, Params
from rayfl.training.loop import run_loop
from rayfl.training.stacked import run_stacked
from tests.support.nets import Update, close, make_clients, only, same_bits, smooth_net

EXECUTIONS = pytest.mark.parametrize("run", [run_loop, run_stacked])


def drive(run: Any, fits: list[Update]) -> list[Any]:
    results: list[Any] = run(fits, lambda k, fitted: None)
    return results


@EXECUTIONS
def test_a_rate_of_its_own(run: Any) -> None:
    """One step at twice the rate goes twice as far; at rate 0 nothing moves but the statistics."""
    net = smooth_net(batch_norm=True)
    clients = make_clients(net, [5, 5])
    start = clients[0].initial
    steps = [
        [
            fitted.weights - start
            for fitted in drive(run, [only(c.fit(start, c.cross_entropy, lr=lr, stream=0)) for c in clients])
        ]
        for lr in (0.1, 0.2, 0.0)
    ]
    for once, twice, still in zip(*steps):
        assert close(2 * once.trainable(), twice.trainable(), 1e-12)
        assert all(not t.any() for t in still.trainable().values())
        assert same_bits(still["conv.1.running_mean"], once["conv.1.running_mean"])
        assert still["conv.1.running_mean"].any()


@EXECUTIONS
@pytest.mark.parametrize(
    "given", [{"momentum": 0.0}, {"weight_decay": 0.0}, {"clip": 0.0}, {"momentum": 0.5, "clip": 0.3}]
)
def test_an_optimiser_of_its_own(run: Any, given: dict[str, float]) -> None:
    """What a fit is given counts as if the run had it, and the rest is the run's; 0 switches off."""
    net, settings = smooth_net(), {"momentum": 0.9, "weight_decay": 0.1, "clip": 0.2}
    clients, others = make_clients(net, [12, 7], **settings), make_clients(net, [12, 7], **(settings | given))
    found = drive(run, [only(c.fit(c.initial, c.cross_entropy, epochs=2, **given)) for c in clients])
    expected = drive(run, [only(c.fit(c.initial, c.cross_entropy, epochs=2)) for c in others])
    plain = drive(run, [only(c.fit(c.initial, c.cross_entropy, epochs=2)) for c in clients])
    for a, b, c in zip(found, expected, plain):
        assert same_bits(a.weights, b.weights)
        assert a.effective_steps == b.effective_steps
        assert not same_bits(a.weights, c.weights)


@EXECUTIONS
def test_a_fit_that_only_renews_buffers(run: Any) -> None:
    """It ends where a fit at rate 0 ends, without a gradient."""
    net = smooth_net(batch_norm=True)
    clients = make_clients(net, [12, 7], momentum=0.5, clip=1.0, weight_decay=0.1)
    start = clients[0].initial
    frozen = Params(start.tensors, frozenset())
    found, expected = (
        drive(run, [only(c.fit(w, c.cross_entropy, lr=0.0, epochs=2, stream=0)) for c in clients])
        for w in (frozen, start)
    )
    for a, b in zip(found, expected):
        assert a.steps == b.steps > 2
        assert close(dict(a.weights), dict(b.weights), 1e-12)
        assert not same_bits(a.weights["conv.1.running_var"], start["conv.1.running_var"])


@EXECUTIONS
def test_a_total_of_the_first_batch(run: Any) -> None:
    """It is the batch with which the first fit of the round begins."""
    net = smooth_net()
    clients = make_clients(net, [12, 9])
    firsts = []

    def count(w: Params, batch: Batch, extra: Any) -> dict[str, Tensor]:
        return {"samples": torch.ones_like(batch.y).sum(), "pixels": batch.x.sum((0, 2, 3))}

    for k, total in enumerate(drive(run, [only(c.total(count, c.initial, batches=1)) for c in clients])):
        images, indices = clients[k]._examples, clients[k]._batches(1, 0)[0]
        assert total["samples"].item() == 5
        assert close(total["pixels"], images.batch(indices)[0].sum((0, 2, 3)), 1e-12)
        firsts.append(indices.tolist())
    assert firsts[0] != sorted(firsts[0])


def test_layers_are_watched_while_they_train() -> None:
    """What goes into a layer has a gradient, and train mode stays train mode."""
    net = smooth_net(batch_norm=True)
    w = net.initial(0)
    w.live = True
    w.tensors["conv.0.weight"].requires_grad_()
    x = torch.randn(4, 2, 6, 6, dtype=torch.float64)
    before = w["conv.1.running_mean"].clone()
    scores, (into_norm, into_head) = net.watch(w, x, ["conv.1", "head"])
    assert into_norm.shape == (4, 3, 4, 4)
    assert close(0.9 * before + 0.1 * into_norm.mean((0, 2, 3)), w["conv.1.running_mean"], 1e-12)
    assert close(net.head(w, into_head), scores, 1e-12)
    assert torch.autograd.grad(into_norm.sum(), w["conv.0.weight"])[0].any()
