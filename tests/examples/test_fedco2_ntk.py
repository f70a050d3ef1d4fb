import sys
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rayfl import UserError
from tests.support.examples import example

ntk = example("fedco2/ntk.py")


def drawn(clients=3, samples=4, dimension=5, width=40, alpha=1.5, seed=0):
    data = ntk.draw_samples(clients, samples, dimension, seed=seed)
    return data, ntk.initial(clients, dimension, width, alpha, seed=seed)


def own(net):
    """The offline branch: the same weights, and directions for every client."""
    return ntk.Branch(net.v.expand(len(net.gamma), -1, -1).clone(), net.gamma, net.c)


def tangent_kernel(branches, data) -> Tensor:
    """Inner products of the gradients of the branches' mean, with respect to directions and magnitudes."""

    def output(*weights):
        pairs = zip(weights[::2], weights[1::2], branches)
        return torch.stack([ntk.predict(ntk.Branch(v, g, b.c), data) for v, g, b in pairs]).mean(0)

    weights = [w for b in branches for w in (b.v, b.gamma)]
    rows = torch.autograd.functional.jacobian(output, tuple(weights))
    flat = torch.cat([row.flatten(1) for row in rows], 1)
    return flat @ flat.T


def same(a, b):
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_kernels_are_inner_products_of_gradients():
    """And that of the mean is a quarter of the sum."""
    alpha = 1.5
    data, net = drawn(alpha=alpha)
    found = ntk.kernels(net, data, alpha)["Λ"]
    same(tangent_kernel([net], data), found["on"])
    same(tangent_kernel([own(net)], data), found["off"])
    same(tangent_kernel([net, own(net)], data), found["quarter"])


def test_both_projections_are_one_for_like_covariances():
    """Both projections are one where covariances are multiples of the identity."""
    data, net = drawn()
    data = replace(data, covariance=2 * torch.eye(5, dtype=torch.float64).expand(3, 5, 5))
    same(ntk.direction_kernel(net, data, 1.5, "plain"), ntk.direction_kernel(net, data, 1.5, "s"))
    data, net = drawn()
    apart = ntk.direction_kernel(net, data, 1.5, "plain") - ntk.direction_kernel(net, data, 1.5, "s")
    assert apart.abs().max() > 1e-3


def test_training_starts_in_the_direction_of_its_kernel():
    """The derivative of |F - y|^2 by the step size is -2 r^T K r."""
    data, net = drawn(width=300)
    found = ntk.kernels(net, data, 1.5)["Λ"]
    residual = ntk.predict(net, data) - data.y
    lr = 1e-7
    for mix, branches in (("on", [net]), ("quarter", [net, own(net)])):
        before, after = ntk.train(branches, data, lr, steps=1)
        slope = float(-2 * residual @ found[mix] @ residual)
        assert before == pytest.approx(float(residual.square().sum()))
        assert float(after - before) / lr == pytest.approx(slope, rel=1e-3)


def test_a_wide_net_trains_as_its_first_kernel_predicts():
    """A wide net trains as its first kernel predicts and keeps the bound."""
    data, net = drawn(2, 2, 4, width=20_000, alpha=1.0)
    draw = ntk.carry_out(data, net, alpha=1.0, steps=40)
    for mix in ntk.RUNS:
        torch.testing.assert_close(draw.losses[mix], draw.expected(mix), rtol=0.1, atol=1e-3)
        assert (draw.losses[mix] <= draw.bound(mix) * (1 + 1e-9)).all()
    assert ntk.steps_to(draw.losses["half"], 0.5) <= ntk.steps_to(draw.losses["quarter"], 0.5)


def test_linear_training_by_hand():
    kernel = torch.diag(torch.tensor([1.0, 0.5], dtype=torch.float64))
    residual = torch.tensor([2.0, 4.0], dtype=torch.float64)
    expected = torch.tensor([20.0, 1 + 9.0, 0.25 + 81 / 16], dtype=torch.float64)  # times 1/2, 3/4 per step
    same(ntk.linear(kernel, residual, lr=0.5, steps=2), expected)
    same(ntk.bound(kernel, residual, lr=0.5, steps=2), 20 * torch.tensor([1, 0.875, 0.875**2]).double())
    assert ntk.steps_to(torch.tensor([100.0, 2.0, 1.0, 0.5]), 0.01) == 2
    assert ntk.steps_to(torch.tensor([100.0, 2.0]), 0.01) is None


def test_the_example_prints_and_draws(tmp_path, capsys, monkeypatch):
    picture = tmp_path / "new" / "ntk.png"
    arguments = ["--save", str(picture), "--draws", "2", "--width", "100", "--steps", "10"]
    monkeypatch.setattr(sys, "argv", ["ntk.py", *arguments])
    assert ntk.main() == 0
    out = capsys.readouterr().out
    assert "for Λ: (a) held in 2, (b) in 2" in out
    assert picture.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": 1}, "--clients is 1: it must be at least 2"),
        ({"width": 0}, "--width is 0: it must be at least 1"),
        ({"alpha": 0.0}, "--alpha is 0.0: it must be a number above 0"),
        ({"draws": 1, "width": 10, "steps": 1, "save": "no/such.kind"}, "names no format of pictures"),
    ],
)
def test_bad_options_are_refused(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        ntk.analyse(**options)
