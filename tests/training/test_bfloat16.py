"""Training with the nets' arithmetic in bfloat16."""

from typing import Any

import pytest
import torch
from torch import nn

from rayfl.methods import FedAvg
from rayfl.testing.checks import TINY
from rayfl.training import Net
from rayfl.training.loop import run_loop
from rayfl.training.stacked import run_stacked
from tests.support.by_hand import ragged, start
from tests.support.nets import close, make_client, make_clients, make_images, only, same_bits, smooth_split

LOW = {"precision": "bfloat16", "epochs": 2, "momentum": 0.5}


def nets(batch_norm: bool = True) -> tuple[Net, Net]:
    plain, low = (Net(lambda: smooth_split(batch_norm), bfloat16=low) for low in (False, True))
    return plain, low


@pytest.mark.parametrize("run", [run_loop, run_stacked])
def test_a_fit_is_nearly_that_of_float32(run: Any) -> None:
    """Weights, statistics, gradients and losses are in float32; matrix products are not."""
    images, found = make_images(60, dtype=torch.float32), []
    for net in nets():
        clients = [make_client(net, images, n, id=k, first=20 * k, **LOW) for k, n in enumerate((12, 7))]
        seen: list[torch.dtype] = []

        def loss(w: Any, batch: Any, extra: Any, net: Net = net, seen: list[Any] = seen) -> torch.Tensor:
            z = net.features(w, batch.x)
            scores = net.head(w, z)
            seen.extend((z.dtype, scores.dtype))
            return nn.functional.cross_entropy(scores, batch.y)

        fits = [only(c.fit(c.initial, loss)) for c in clients]
        found.append(run(fits, lambda k, fitted: None))
        assert set(seen) == {torch.float32}
    for plain, low in zip(*found):
        assert {t.dtype for t in low.weights.values()} == {torch.float32}
        assert close(plain.weights, low.weights, 0.02)
        assert abs(plain.loss - low.loss) < 0.02
        assert not same_bits(plain.weights, low.weights)
        statistics = "conv.1.running_mean"
        assert not same_bits(low.weights[statistics], low.weights[statistics].bfloat16().float())


def test_batch_norm_in_gradients_of_ones_own_is_stacked() -> None:
    """As in APFL and PFedMe, which take gradients inside of a loss."""
    _, net = nets()
    images = make_images(60, dtype=torch.float32)
    clients = [make_client(net, images, 12, id=k, first=20 * k, **LOW) for k in range(2)]

    def slope(w: Any, batch: Any, factor: torch.Tensor) -> torch.Tensor:
        def loss(factor: torch.Tensor) -> torch.Tensor:
            scaled = w.merge(w.trainable().map(lambda t: factor * t))
            return nn.functional.cross_entropy(net.eval(scaled, batch.x), batch.y)

        return torch.func.grad(loss)(factor)

    found = [
        run([only(c.total(slope, c.initial, torch.ones(()))) for c in clients], lambda k, fitted: None)
        for run in (run_loop, run_stacked)
    ]
    assert close(*found, 0.02)


def test_a_teacher_takes_no_gradient_away() -> None:
    """A call without gradients before one with them: what autocast keeps of the first must not serve both."""
    _, net = nets(batch_norm=False)
    client = make_client(net, make_images(dtype=torch.float32), **LOW)

    def loss(w: Any, batch: Any, extra: Any) -> torch.Tensor:
        with torch.no_grad():
            net.eval(w, batch.x)
        return client.loss(w, batch)

    (taught,) = run_loop([only(client.fit(client.initial, loss, stream=0))], lambda *_: None)
    (plain,) = run_loop([only(client.fit(client.initial, client.loss, stream=0))], lambda *_: None)
    assert same_bits(taught.weights, plain.weights)
    assert not same_bits(taught.weights, client.initial)


def test_only_nets_compute_in_it() -> None:
    plain, low = nets(batch_norm=False)
    x, _ = make_images(dtype=torch.float32).batch(torch.arange(40))
    w = plain.initial(0)
    difference = (plain(w, x) - low(w, x)).abs().max().item()
    assert 1e-5 < difference < 0.02
    scores, seen = low.watch(w, x, ["fc.0", "head"])
    assert {t.dtype for t in (scores, *seen)} == {torch.float32}
    assert make_clients(plain, [3], precision="bfloat16")[0]._training.dtype == torch.float32
    runs = [start(FedAvg(), ragged(), TINY, precision=each) for each in ("float32", "bfloat16")]
    assert [run.worker.net._bfloat16 for run in runs] == [False, True]
