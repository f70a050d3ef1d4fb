"""Dropout: masks that follow from the step's key, and nothing from a global generator."""

from itertools import combinations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rayfl.errors import BadCode
from rayfl.nets import SplitNet
from rayfl.randomness import seed_of
from rayfl.training import Net
from rayfl.training.client import inside_loss
from rayfl.training.dropout import Dropout, next_mask, put_dropout
from rayfl.training.loop import run_loop
from rayfl.training.noise import fold, step_keys
from rayfl.training.stacked import run_stacked
from tests.support.nets import CLASSES, SHAPE, close, make_client, make_clients, only, same_bits
from tests.support.refusals import refused

N = 100_000


def split_with(*layers, features=5, shape=SHAPE):
    """A small net with these layers before its head."""
    size = shape[0] * shape[1] * shape[2]
    fc = nn.Sequential(nn.Linear(size, features), nn.Tanh(), *layers)
    return SplitNet(nn.Flatten(), fc, nn.Linear(features, CLASSES))


def net_with(*layers):
    return Net(lambda: split_with(*layers), dtype=torch.float64)


def drawn(shapes, key=7, p=0.5):
    """The masks of one loss."""
    with inside_loss(torch.tensor(key)):
        return [next_mask(shape, p) for shape in shapes]


@pytest.mark.parametrize("p", [0.01, 0.25, 0.5, 0.9])
def test_share_of_what_is_dropped(p):
    """Within five standard deviations, in either half of the bits that a mask is made of, and nested."""
    (mask,), (rarer,) = drawn([(N,)], p=p), drawn([(N,)], p=p / 2)
    for half in (slice(0, N // 2), slice(N // 2, N)):
        assert abs((~mask[half]).double().mean().item() - p) < 5 * (p * (1 - p) / (N / 2)) ** 0.5
    assert not (mask & ~rarer).any()


def correlation(a, b):
    return torch.corrcoef(torch.stack([a.double(), b.double()]))[0, 1].abs().item()


def test_masks_are_independent():
    """Of layers and calls, of steps and clients, and of the numbers that a loss draws from the same key."""
    start = [seed_of(5, "noise", client, 0, 0) for client in (0, 1)]
    keys = [key for first in start for key in step_keys(first, 3).tolist()]
    masks = [mask for key in keys for mask in drawn([(N,)] * 3, key)]
    masks.append(drawn([(N,)], fold(torch.tensor(keys[0]), 0).item())[0])
    worst = max(correlation(a, b) for a, b in combinations(masks, 2))
    assert worst < 6 / N**0.5


def test_places_of_a_mask_are_independent():
    (mask,) = drawn([(100, 1000)])
    flat = mask.flatten()
    for lag in (1, 2, 1000, N // 2):
        assert correlation(flat[:-lag], flat[lag:]) < 5 / (N - lag) ** 0.5


@pytest.mark.parametrize("p", [0.0, 0.2, 0.5, 1.0])
def test_values_are_0_or_scaled(p):
    x = torch.rand(50, 40, dtype=torch.float64) + 0.1
    with inside_loss(torch.tensor(3)):
        y = Dropout(p)(x)
    if p == 1:
        assert not y.any()
    else:
        kept = y != 0
        torch.testing.assert_close(y[kept], x[kept] / (1 - p), rtol=1e-12, atol=0)
        assert abs(1 - kept.double().mean().item() - p) < 0.05
    assert y.dtype == x.dtype


def test_channels_are_dropped_together():
    with inside_loss(torch.tensor(3)):
        y = Dropout(0.5, apart=2)(torch.ones(40, 30, 2, 3))
        z = Dropout(0.5, apart=1)(torch.ones(40, 30, 2, 3))
        batches = [Dropout(0.5, apart=0)(torch.ones(4, 3)).unique() for _ in range(40)]
    assert ((y.amax((2, 3)) == 2) == (y.amin((2, 3)) == 2)).all()
    assert 0.4 < (y == 0).double().mean().item() < 0.6
    assert y[0].unique().numel() == 2  # channels of one sample
    assert all(sample.unique().numel() == 1 for sample in z)
    assert z.unique().numel() == 2
    assert torch.cat(batches).sort().values.unique_consecutive(return_counts=True)[1].min() > 8
    assert all(values.numel() == 1 for values in batches)


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_alpha_dropout_keeps_mean_and_variance(p):
    x = torch.randn(N, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with inside_loss(torch.tensor(3)):
        y = Dropout(p, alpha=True)(x)
    assert abs(y.mean().item()) < 0.02
    assert abs(y.var().item() - 1) < 0.02
    # The affine function that keeps both: what is dropped is at -1.758 before it (Klambauer et al., 2017)
    dropped = y.mode().values.item()
    kept = y != dropped
    slope = ((y[kept][1:] - y[kept][:-1]) / (x[kept][1:] - x[kept][:-1])).median().item()
    assert slope == pytest.approx((1 - p + p * (1 - p) * 1.7580993408473766**2) ** -0.5)
    torch.testing.assert_close(y[kept], slope * (x[kept] + 1.7580993408473766) + dropped)


KINDS = {
    "two": lambda: (nn.Dropout(0.2), nn.Linear(5, 5), nn.AlphaDropout(0.3)),
    "2d": lambda: (nn.Unflatten(1, (5, 1, 1)), nn.Dropout2d(0.4), nn.FeatureAlphaDropout(0.1), nn.Flatten()),
    "3d": lambda: (nn.Unflatten(1, (5, 1, 1, 1)), nn.Dropout3d(0.4, inplace=True), nn.Flatten()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_stacked_is_the_loop(kind):
    """With momentum and remainders; and dropout there is: without it, the weights are others."""
    net = Net(lambda: split_with(*KINDS[kind]()), dtype=torch.float64)
    found = []
    for run in (run_loop, run_stacked):
        clients = make_clients(net, (12, 17, 9), momentum=0.5)
        fits = [only(c.fit(c.initial, c.loss, epochs=2)) for c in clients]
        found.append(run(fits, lambda *_: None))
    assert close(*found, 1e-9)
    clients = make_clients(net, (12, 17, 9), momentum=0.5)
    fits = [
        only(c.fit(c.initial, lambda w, b, _: F.cross_entropy(net.eval(w, b.x), b.y), epochs=2))
        for c in clients
    ]
    plain = run_loop(fits, lambda *_: None)
    assert not any(close(a.weights, b.weights, 1e-4) for a, b in zip(found[0], plain))


def test_global_generators_play_no_part():
    """Neither are they drawn from, nor do they matter."""
    net, results = net_with(nn.Dropout(0.5)), []
    for seed in (0, 1):
        torch.manual_seed(seed)
        before = torch.random.get_rng_state()
        client = make_client(net)
        results += run_loop([only(client.fit(client.initial, client.loss))], lambda *_: None)
        assert torch.equal(torch.random.get_rng_state(), before)
    assert same_bits(*results)


def test_every_pass_of_a_loss_has_masks_of_its_own():
    net, masks = net_with(nn.Dropout(0.5)), []

    def loss(w, batch, extra):
        masks.extend(net.features(w, batch.x) == 0 for _ in range(2))
        return net(w, batch.x).sum() * 0

    client = make_client(net, n=10)
    run_loop([only(client.fit(client.initial, loss, epochs=1))], lambda *_: None)
    assert all(not torch.equal(a, b) for a, b in combinations(masks, 2))


def test_nothing_is_dropped_in_eval_mode():
    net = net_with(nn.Dropout(0.5))
    client = make_client(net)
    x, _ = client._examples.batch(torch.arange(4))
    plain = Net(lambda: split_with(nn.Identity()), dtype=torch.float64)
    assert torch.equal(net.eval(client.initial, x), plain(client.initial, x))
    total = only(client.total(lambda w, batch, extra: net.eval(w, batch.x).sum(0), client.initial))
    alone = only(client.total(lambda w, batch, extra: plain(w, batch.x).sum(0), client.initial))
    assert torch.equal(run_loop([total], lambda *_: None)[0], run_loop([alone], lambda *_: None)[0])


@pytest.mark.parametrize("run", [run_loop, run_stacked])
def test_train_mode_outside_a_fit_raises(run):
    net = net_with(nn.Dropout(0.5))
    client = make_client(net)
    x, _ = client._examples.batch(torch.arange(4))
    with pytest.raises(RuntimeError, match=r"outside the loss of a fit.*use net\.eval"):
        net(client.initial, x)
    total = only(client.total(lambda w, batch, extra: net(w, batch.x).sum(0), client.initial))
    with pytest.raises(RuntimeError, match="outside the loss of a fit"):
        run([total], lambda *_: None)
    fit = only(client.fit(client.initial, client.loss))
    run([fit], lambda *_: None)  # the key of its last step is forgotten
    with pytest.raises(RuntimeError, match="outside the loss of a fit"):
        net(client.initial, x)


class Other(nn.Dropout):
    """Somebody's own dropout, which may do anything."""


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.MultiheadAttention(4, 2, dropout=0.1),
        lambda: nn.RReLU(),
        lambda: nn.FractionalMaxPool2d(2, 1),
        lambda: Other(0.1),
    ],
)
def test_nets_with_layers_that_draw_otherwise_draw(layer):
    net = Net(lambda: split_with(layer()))
    assert (net.draws, net.eval.draws, net.rebuilt().draws) == (True, True, True)


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_recurrent_layers_with_dropout_are_refused(layer):
    """Their masks on a GPU are those of a process."""
    with refused(BadCode, "layer 'fc.2'"):
        Net(lambda: split_with(layer(4, 4, 2, dropout=0.1)))


def test_layers_that_do_not_draw_are_left_alone():
    net = nn.Sequential(
        nn.MultiheadAttention(4, 2), nn.LSTM(4, 4, 2), Other(0), nn.TransformerEncoderLayer(4, 2, 8, 0)
    )
    assert not put_dropout(net)
    assert isinstance(net[2], Other)
    assert isinstance(net[3].dropout, Dropout)
    assert put_dropout(nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8)))


def test_each_layer_has_its_kind_of_dropout():
    """What is dropped together, entries, channels, samples or batches; and whether mean and variance stay."""
    torchvision = pytest.importorskip("torchvision")
    layers = (nn.Dropout, nn.AlphaDropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout)
    depths = [torchvision.ops.StochasticDepth(p, mode) for p, mode in ((0.7, "row"), (0.8, "batch"))]
    net = nn.Sequential(*(layer(0.1 * k) for k, layer in enumerate(layers, 1)), *depths)
    put_dropout(net)
    assert [each.apart for each in net] == [None, None, 2, 2, 2, 2, 1, 0]
    assert [each.alpha for each in net] == [False, True, False, False, False, True, False, False]
    assert [each.p for each in net] == pytest.approx([0.1 * k for k in range(1, 9)])
